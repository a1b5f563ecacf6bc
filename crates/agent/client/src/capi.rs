// SPDX-License-Identifier: Apache-2.0
//! The C ABI: what `include/fide.h` declares. FiDe's Listing 1 as functions and upcalls, for any event loop,
//! and X-Lane's in [`lanes`].
//!
//! A handle may be used from several threads: calls to the agent take a lock, `fide_is_fenced`,
//! `fide_lease_remaining_ns`, `fide_host_state` and `fide_beat` take none. No lock is held while an upcall
//! runs, so an upcall may call anything but `fide_close`. No panic crosses the boundary.

#[doc(hidden)]
pub mod boundary;
mod dispatch;
mod lanes;
mod types;

pub use lanes::*;
pub use types::*;

use crate::{Client, ConnectOptions, MonitorId, ProcessId, Wanted};
use boundary::{Failure, bytes, guard, invalid, needed, sized, text};
use dispatch::{Dispatcher, with_text};
use fide_agent_api::protocol::PeerState;
use libc::{c_char, c_int, c_void};
use std::{
    os::fd::{AsRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A connection to the agent of this host.
pub struct Fide {
    client: Mutex<Client>,
    live: crate::Live,
    epoll: OwnedFd,
    spin: Option<Duration>,
    upcalls: Mutex<Upcalls>,
    dispatcher: Mutex<Option<Dispatcher>>,
}

/// The upcalls of a handle, and the pointer that the user wants to find in them.
#[derive(Clone, Copy)]
struct Upcalls {
    table: FideUpcalls,
    user: *mut c_void,
}

// SAFETY: `user` is passed back to the user's functions and never looked at; `fide_set_upcalls` says that
// they may run on any thread that dispatches.
unsafe impl Send for Upcalls {}

const _: fn() = || {
    fn sync<T: Sync>() {}
    sync::<Fide>();
};

/// # Safety
/// `handle` is null or came from `fide_open` and was not closed.
unsafe fn handle<'a>(handle: *const Fide) -> Result<&'a Fide, Failure> {
    // SAFETY: as the contract says.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid("the fide_t pointer is NULL; use the one that fide_open gave"))
}

impl Fide {
    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills a caller's permit with what `ask` is granted. 1 if that is something, 0 if not.
///
/// # Errors
/// Those of `ask`; `permit` is NULL, or has no size.
///
/// # Safety
/// `permit` is null or points to a fide_permit whose `size` is set.
#[doc(hidden)]
pub unsafe fn permit_into(
    permit: *mut FidePermit,
    ask: impl FnOnce() -> Result<Option<crate::Permit>, Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: by the contract; zero is valid for fide_permit (numbers).
    let given = unsafe { sized(permit, "fide_permit") }?;
    let given = given.ok_or_else(|| invalid("permit is NULL; pass the address of a fide_permit"))?;
    let Some(granted) = ask()? else { return Ok(0) };
    let filled = FidePermit::of(given.size, &granted);
    // SAFETY: `given.size` bytes at `permit` are the caller's, by the contract.
    unsafe { boundary::fill(permit, &filled, given.size) };
    Ok(1)
}

fn id_of(id: u32) -> Result<c_int, Failure> {
    c_int::try_from(id).map_err(|_| Failure(-libc::EOVERFLOW, "too many registrations in one handle".into()))
}

fn id_from(id: c_int, what: &str) -> Result<u32, Failure> {
    u32::try_from(id).map_err(|_| invalid(&format!("{id} is not a {what} id")))
}

fn clamp16(size: u32) -> u16 {
    size.min(u16::MAX.into()) as u16
}

/// Version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn fide_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The message of the last failed call of this thread. Valid until the next failing call of this thread;
/// never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn fide_last_error() -> *const c_char {
    boundary::last_error()
}

/// Connects to the agent of this host. `options` may be NULL. On success `*out` is the handle. Returns 0, or
/// a negative errno: -ENOENT or -ECONNREFUSED without an agent, -EPROTONOSUPPORT for one of another version.
///
/// # Safety
/// `options` is null or points to a fide_options whose `size` is set; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_open(options: *const FideOptions, out: *mut *mut Fide) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(invalid("out is NULL; pass the address of a fide_t pointer"));
        }
        // SAFETY: writable by the contract.
        unsafe { out.write(std::ptr::null_mut()) };
        let mut connect = ConnectOptions::default();
        // SAFETY: by the contract; zero is valid for fide_options (null pointers and numbers).
        if let Some(given) = unsafe { sized(options, "fide_options") }? {
            // SAFETY: the strings are NUL-terminated or NULL, as fide_options says.
            let (socket, program) = unsafe { (text(given.socket, "socket")?, text(given.program, "program")?) };
            connect.path = socket.map(Into::into);
            connect.program = program.unwrap_or_default().to_owned();
            connect.spin_ns = given.spin_ns;
            if given.call_timeout_ms > 0 {
                connect.call_timeout = Duration::from_millis(given.call_timeout_ms.into());
            }
        }
        let spin = (connect.spin_ns > 0).then(|| Duration::from_nanos(connect.spin_ns));
        let client = Client::connect(connect)?;
        let epoll = client.as_fd().try_clone_to_owned().map_err(|error| {
            Failure(-error.raw_os_error().unwrap_or(libc::EMFILE), format!("duplicating a descriptor: {error}"))
        })?;
        let fide = Fide {
            live: client.live(),
            client: Mutex::new(client),
            epoll,
            spin,
            upcalls: Mutex::new(Upcalls { table: FideUpcalls::default(), user: std::ptr::null_mut() }),
            dispatcher: Mutex::new(None),
        };
        // SAFETY: writable by the contract.
        unsafe { out.write(Box::into_raw(Box::new(fide))) };
        Ok(0)
    })
}

/// Closes a handle, and stops its dispatcher thread. Processes that did not quit stay joined until they
/// exit. NULL is allowed. Not from within an upcall.
///
/// # Safety
/// `fide` came from fide_open, is not closed yet, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_close(fide: *mut Fide) {
    guard(|| {
        if fide.is_null() {
            return Ok(0);
        }
        // SAFETY: from Box::into_raw in fide_open, by the contract; nobody else uses it.
        let stopped = unsafe { dispatch::stop(&*fide) };
        if stopped.is_ok() {
            // SAFETY: as above; the dispatcher thread has ended.
            drop(unsafe { Box::from_raw(fide) });
        }
        stopped
    });
}

/// Registers this process under `name` to be watched by others (FiDe, Listing 1: join). With
/// `beat_timeout_us` above 0 it counts as stalled when fide_beat was not called for that long.
/// Returns a process id (> 0) or a negative errno: -EEXIST if the name is taken, -EINVAL for a name
/// that cannot be one.
///
/// # Safety
/// `fide` is a live handle; `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_join(fide: *mut Fide, name: *const c_char, beat_timeout_us: u32) -> c_int {
    // SAFETY: the same contract.
    unsafe { fide_join_pid(fide, name, 0, beat_timeout_us) }
}

/// As fide_join, for the process `pid` (0: this one). -EPERM for a process of another user.
///
/// # Safety
/// As fide_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_join_pid(fide: *mut Fide, name: *const c_char, pid: u32, beat_timeout_us: u32) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, name) = unsafe { (handle(fide)?, needed(name, "name")?) };
        let joined = fide.client().join_pid(name, pid, Duration::from_micros(beat_timeout_us.into()))?;
        id_of(joined.id.0)
    })
}

/// Ends a registration: watchers are notified that it left, which is no failure (FiDe, Listing 1: quit).
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_quit(fide: *mut Fide, process: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let fide = unsafe { handle(fide) }?;
        fide.client().quit(ProcessId(id_from(process, "process")?))?;
        Ok(0)
    })
}

/// Watches "name@host", or "@host" for the host itself (FiDe, Listing 1: monitor). `wanted` may be NULL
/// (the shortest timeout, no piggybacks), `granted` too. Returns a monitor id (> 0) or a negative errno:
/// -EHOSTUNREACH for an unknown host, -ERANGE for a timeout that this host cannot hold.
///
/// # Safety
/// `fide` is a live handle; `target` is a NUL-terminated string; `wanted` is readable or null; `granted`
/// writable or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_monitor(
    fide: *mut Fide,
    target: *const c_char,
    wanted: *const FideResources,
    granted: *mut FideResources,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, target, wanted) = unsafe { (handle(fide)?, needed(target, "target")?, wanted.as_ref()) };
        let wanted = wanted.map_or(Wanted::default(), |wanted| Wanted {
            timeout: (wanted.timeout_us > 0).then(|| Duration::from_micros(wanted.timeout_us.into())),
            pbsize: clamp16(wanted.pbsize),
        });
        let monitor = fide.client().monitor(target, wanted)?;
        // SAFETY: writable or null by the contract.
        if let Some(granted) = unsafe { granted.as_mut() } {
            granted.timeout_us = monitor.timeout.as_micros().min(u32::MAX.into()) as u32;
            granted.pbsize = monitor.pbsize.into();
        }
        id_of(monitor.id.0)
    })
}

/// Stops watching (FiDe, Listing 1: unmonitor).
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_unmonitor(fide: *mut Fide, monitor: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let fide = unsafe { handle(fide) }?;
        fide.client().unmonitor(MonitorId(id_from(monitor, "monitor")?))?;
        Ok(0)
    })
}

/// Sends bytes with the heartbeats, from the process that joined first (FiDe, Listing 1: piggyback).
/// Returns 0; -EMSGSIZE above the granted size (trying again will not help), -EAGAIN while the outbox is
/// full (try later), -ENOENT without a join.
///
/// # Safety
/// `fide` is a live handle; `len` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_piggyback(fide: *mut Fide, data: *const c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, bytes) = unsafe { (handle(fide)?, bytes(data, len)?) };
        fide.client().piggyback(bytes)?;
        Ok(0)
    })
}

/// As fide_piggyback, for a program that waits for others' answers: the agent sends the message at once, up
/// to twice between two heartbeats, and later messages with the next heartbeat. One system call.
///
/// # Safety
/// As fide_piggyback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_piggyback_now(fide: *mut Fide, data: *const c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, bytes) = unsafe { (handle(fide)?, bytes(data, len)?) };
        fide.client().piggyback_now(bytes)?;
        Ok(0)
    })
}

/// As fide_piggyback, from the process with this id.
///
/// # Safety
/// As fide_piggyback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_piggyback_as(fide: *mut Fide, process: c_int, data: *const c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, bytes) = unsafe { (handle(fide)?, bytes(data, len)?) };
        fide.client().piggyback_as(ProcessId(id_from(process, "process")?), bytes)?;
        Ok(0)
    })
}

/// "I make progress": one atomic addition, from any thread, without a lock.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_beat(fide: *const Fide) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { handle(fide) }?.live.beat();
        Ok(0)
    })
}

/// Has the scheduler run the calling thread soon after it is woken: for the thread that calls
/// fide_dispatch. Needs no privilege. 0, or -EINVAL before Linux 6.12 or for a thread that is not of the
/// ordinary policy (nothing is changed then).
#[unsafe(no_mangle)]
pub extern "C" fn fide_wake_eagerly() -> c_int {
    guard(|| {
        crate::wake_eagerly()
            .map_err(|errno| Failure(-errno.raw_os_error(), format!("the scheduler grants no short slice: {errno}")))?;
        Ok(0)
    })
}

/// 1 if this program must not act now, 0 if it may; negative (so: do not act) on an error. No lock, no
/// system call. 1 also from the moment that this host has another incarnation (see
/// fide_rejoined_acknowledge). The answer is about the moment of asking: a resource that must not see a
/// late write needs the token of fide_may_act.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_is_fenced(fide: *const Fide) -> c_int {
    // SAFETY: by the contract.
    guard(|| Ok(unsafe { handle(fide) }?.live.fenced().into()))
}

/// How many nanoseconds this host may still act if its agent's loop does not run again: 0 when fenced,
/// INT64_MAX without limit (which no agent gives: under trust = "network" it is the shortest timeout). No
/// lock, no system call.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_lease_remaining_ns(fide: *const Fide) -> i64 {
    guard(|| {
        // SAFETY: by the contract.
        let remaining = unsafe { handle(fide) }?.live.lease_remaining();
        Ok(remaining.map_or(i64::MAX, |remaining| remaining.as_nanos().min(i64::MAX as u128) as i64))
    })
}

/// Whether this program may act now, as what, and until when. 1 if it may: `*permit` has the rest. 0 if it
/// is fenced: `*permit` is not changed. Negative (so: do not act) on an error. No lock, no system call.
///
/// # Safety
/// `fide` is a live handle; `permit` points to a fide_permit whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_may_act(fide: *const Fide, permit: *mut FidePermit) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { permit_into(permit, || Ok(handle(fide)?.live.may_act())) }
    })
}

/// This program acknowledges that its host is now `incarnation`, as FIDE_NOTICE_KIND_REJOINED reported. It
/// knows that others have declared dead everything that ran here before, and may have replaced it, and it
/// acts as a newcomer. Until then it is fenced. 0, or -ESTALE if that is not the last incarnation reported.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_rejoined_acknowledge(fide: *mut Fide, incarnation: u32) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let fide = unsafe { handle(fide) }?;
        fide.client().rejoined_acknowledge(incarnation)?;
        Ok(0)
    })
}

/// The state of a monitor's target: a fide_state, or a negative errno.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_peer_state(fide: *mut Fide, monitor: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let fide = unsafe { handle(fide) }?;
        Ok(match fide.client().peer_state(MonitorId(id_from(monitor, "monitor")?)) {
            PeerState::Unknown => FideState::Unknown as c_int,
            PeerState::Alive => FideState::Alive as c_int,
            PeerState::Dead => FideState::Dead as c_int,
        })
    })
}

/// The state of a host (1..) in the alive table: a fide_state, or a negative errno. No lock, no system
/// call.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_host_state(fide: *const Fide, host_id: u16) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let fide = unsafe { handle(fide) }?;
        let state = fide.live.with_table(|table| table.state(host_id, crate::HOST_SLOT));
        Ok(match state {
            None | Some(crate::state::UNKNOWN) => FideState::Unknown as c_int,
            Some(crate::state::ALIVE) => FideState::Alive as c_int,
            Some(_) => FideState::Dead as c_int,
        })
    })
}

/// Id of this host in the cluster (1..), or a negative errno.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_host_id(fide: *const Fide) -> c_int {
    // SAFETY: by the contract.
    guard(|| Ok(unsafe { handle(fide) }?.live.with_table(|table| table.host_id()).into()))
}

/// Sets the functions to call, and their first argument. They run on the thread that dispatches. NULL
/// removes them.
///
/// # Safety
/// `fide` is a live handle; `upcalls` is null or points to a fide_upcalls whose `size` is set; its functions
/// may be called with `user` on any thread that dispatches, until others are set or the handle is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_set_upcalls(fide: *mut Fide, upcalls: *const FideUpcalls, user: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: by the contract; zero is valid for fide_upcalls (no functions).
        let (fide, table) = unsafe { (handle(fide)?, sized(upcalls, "fide_upcalls")?) };
        *fide.upcalls.lock().unwrap_or_else(PoisonError::into_inner) =
            Upcalls { table: table.unwrap_or_default(), user };
        Ok(0)
    })
}

/// A descriptor that is readable when fide_dispatch has something to do; for select, poll, epoll or an
/// event library. It belongs to the handle.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_fd(fide: *const Fide) -> c_int {
    // SAFETY: by the contract.
    guard(|| Ok(unsafe { handle(fide) }?.epoll.as_raw_fd()))
}

/// Calls the upcalls for the events that are there. Without any, waits first, at most `timeout_ms` (0: not
/// at all, negative: for ever). Returns how many events there were (0 when the time is over), -EINTR after
/// a signal, or a negative errno.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_dispatch(fide: *mut Fide, timeout_ms: c_int) -> c_int {
    // SAFETY: by the contract.
    guard(|| dispatch::dispatch(unsafe { handle(fide) }?, timeout_ms, None))
}

/// Starts a thread that dispatches for ever, for programs without an event loop. -EALREADY if there is one.
/// If it cannot go on because the memory that it shares with the agent is damaged, it reports that by a
/// last on_notice, FIDE_NOTICE_KIND_DISPATCH_ENDED.
///
/// # Safety
/// `fide` is a live handle; it must not be closed from within an upcall.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_start(fide: *mut Fide) -> c_int {
    // SAFETY: by the contract.
    guard(|| dispatch::start(unsafe { handle(fide) }?))
}

/// Stops the dispatcher thread and waits for its end; allowed without one. -EDEADLK from within an upcall
/// that it runs.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_stop(fide: *mut Fide) -> c_int {
    // SAFETY: by the contract.
    guard(|| dispatch::stop(unsafe { handle(fide) }?))
}
