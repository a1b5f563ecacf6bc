// SPDX-License-Identifier: Apache-2.0
//! Messages between two programs over memory that both see (NTSocks, CoNEXT 2022): memory of one host, or of two hosts of a
//! rack, mapped through PCIe.
//!
//! | module | what it holds |
//! |---|---|
//! | [`window`] | the memory as one end sees it: it writes the other end's part and reads its own |
//! | [`shm`] | a window between two programs of one host, with a bell for those who sleep |
//! | [`pci`] | a window between two hosts, through a PCI device |
//! | [`ring`] | messages in order through a window, without a lock |
//! | [`packets`] | packets that are dropped rather than waited for, as those of heartbeats and lanes |
//! | [`plane`] | packets to several hosts, through a device for each |
//! | [`stream`] | bytes in order both ways, as a connection has them |
//! | [`wait`] | waiting for the other end without taking a core |
//! | [`carry`] | the bytes of a TCP connection, which go on through a window |
//! | [`end`] | an end of such a connection, for all threads and processes that have its socket |
//! | [`link`] | connections between two hosts that see one memory: what the proxies of both do |
//! | [`proxy`] | the threads that do it |
//! | [`meet`] | how the two ends of a TCP connection within a host come to share memory |
//! | [`dead`] | which hosts are declared dead, for the error of connections to them |
//!
//! **Invariant: nobody believes the other end.** It may be another user's program, or broken. Each index and each length that
//! it writes is read once, and checked on the copy. What is wrong ends the ring with an error; nothing outside of it is read
//! or written.

pub mod carry;
pub mod dead;
pub mod end;
pub mod link;
mod lock;
pub mod meet;
pub mod packets;
pub mod pci;
pub mod plane;
pub mod proxy;
pub mod ring;
pub mod shm;
pub mod stream;
pub mod wait;
pub mod window;
