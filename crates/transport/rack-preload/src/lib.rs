// SPDX-License-Identifier: Apache-2.0
//! An `LD_PRELOAD` library that carries the TCP connections of unmodified glibc programs over shared memory, where both ends are
//! programs of one host under it, and leaves all others to the kernel.
//!
//! ```text
//! FIDE_RACK_MONITOR=/run/rack.sock LD_PRELOAD=/…/libfide_rack_preload.so program
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `table` | what is known of descriptors, found without a lock |
//! | `conn` | a connection, from its begin to its memory |
//! | `monitor` | questions to the monitor, and its answers; forks |
//! | `bytes`, `data`, `splice`, `file`, `prints` | reads and writes |
//! | `poll`, `epoll`, `set`, `ready`, `times` | waiting |
//! | `before`, `process` | descriptors that are not to be connections; whose descriptors they are |
//! | `peers` | the other ends' addresses, for the error of a connection to a host that is dead |
//! | `calls` | all other functions |
//! | `exec` | programs that are begun, and what they are to find |
//! | `rings` | io_uring |
//! | `memory` | memory of the library's own |
//! | `real` | the functions that come next |
//! | `stats` | what was done |
//!
//! Descriptors stay the kernel's sockets. `FIDE_RACK_MONITOR` names the monitor's socket; without it all is left to the kernel, as it is if
//! `FIDE_RACK_MONITOR_UID` is the number of another user than the monitor's.
//! `FIDE_RACK_PEERS` has the addresses of hosts that the monitor has links to, as networks with `+` between them: it is asked of
//! connections with these, and of those within the host.
//! `FIDE_RACK_DEAD` names the directory of the addresses of dead hosts ([`fide_rack::dead`]), which is `/run/fide-hangup` else.
//! `FIDE_RACK_STATS` names a file that a line is appended to as the program ends, `-` standard error: its number, and how many connections
//! went over to memory.
//!
//! **What is not followed.** A connection goes back to TCP for good, or stays there, as it enters what is not followed: `SCM_RIGHTS`, the
//! descriptors 0 to 2 (as before another program is begun), a descriptor whose `FD_CLOEXEC` is cleared, or that a program which is begun is
//! told of (`exec`), urgent bytes, `O_ASYNC`, `SO_ZEROCOPY`, kernel TLS. It stays with its memory if another thread waits for it, or the
//! other end cannot follow, as where it is gone and bytes are unread: `SCM_RIGHTS`, `SO_ZEROCOPY` and kernel TLS then fail with `EOPNOTSUPP`.
//! Its bytes are not seen, once it goes through its memory, by a program that inherits it as another descriptor and was not told of it, by a
//! set or a second descriptor from before it was connected, and by what makes system calls without the C library (Go). So do not run such
//! programs under it.
//! A program that makes a ring of io_uring keeps to TCP (`rings`; `FIDE_RACK_IO_URING`).
//!
//! **Other than with TCP.** A bad pointer faults, instead of `EFAULT`. A write that waits for room in TCP is interrupted by each signal,
//! also one whose handler was installed with `SA_RESTART`. A write to an end whose program was killed fails once its end was seen, or 128 KiB
//! are unread. A close by a thread is one for the other end also as another thread waits. Nobody is cancelled as it waits for a read or a
//! write. Where the memory comes, a read or a look may end early, and there is more room. What is edge-triggered is told once more after a
//! read that has left something. `SIOCOUTQ` is 0. All differences that are known stand in `tests/calls/differences.rs`. An epoll set that
//! parent and child of a fork both use knows only what each has asked for. A set
//! that `poll`, `select` or another set waits for may be said to have something, and have nothing. `EPOLLEXCLUSIVE` wakes more sets than one.
//! A handler that has interrupted a write, or a read, in its middle gets `EAGAIN` from the same, and epoll is not for one that has
//! interrupted it.

#![cfg_attr(test, allow(dead_code, reason = "the hooks are not part of tests"))]

mod before;
mod bytes;
pub mod calls;
mod conn;
pub mod data;
pub mod epoll;
pub mod exec;
pub mod file;
mod memory;
mod monitor;
mod peers;
pub mod poll;
pub mod prints;
mod process;
mod ready;
mod real;
pub mod rings;
mod set;
pub mod splice;
mod stats;
mod table;
mod times;

/// Not the program's: the library may be called while that one is at it.
#[cfg(not(test))]
#[global_allocator]
static MEMORY: memory::Memory = memory::Memory::new();

/// What runs as the program begins, forks and ends. Tests of this crate's own are no such program.
#[cfg(not(test))]
mod hooks;
