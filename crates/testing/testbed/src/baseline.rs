// SPDX-License-Identifier: Apache-2.0
//! The baselines that Fide is measured against, each as it is used in the field:
//!
//! * [`TcpFin`]: a blocking read on a connection that the dying process held; the commonest failure detector of all.
//! * [`watch_pidfd`]: epoll on a pidfd on the same host, as a supervisor does it.
//! * [`Memberlist`]: hashicorp/memberlist (SWIM with Lifeguard), a Go program built from `baselines/memberlist`.
//! * [`Bfd`]: FRR's bfdd, bidirectional forwarding detection (RFC 5880) in user space.
//!
//! All times are CLOCK_MONOTONIC in ns, stamped as soon as the watcher runs again.

mod bfd;
mod local;
mod memberlist;

pub use bfd::Bfd;
pub use local::{Notice, TcpFin, watch_pidfd};
pub use memberlist::{Alarms, Fastest, Knobs, Memberlist, find_fastest};
