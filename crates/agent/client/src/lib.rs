// SPDX-License-Identifier: Apache-2.0
//! The library that programs link to be notified of failures: the Rust API, and the C ABI of `fide.h`
//! ([`capi`]).
//!
//! ```no_run
//! use fide_client::{Client, ConnectOptions, Event, Wanted};
//!
//! let mut fide = Client::connect(ConnectOptions::default())?;
//! fide.join("replica-1")?;
//! let peer = fide.monitor("replica-2@beta", Wanted::default())?;
//! println!("notified within {:?} of silence", peer.timeout);
//! while let Some(event) = fide.wait_event(None)? {
//!     if let Event::Verdict(verdict) = event {
//!         println!("{} is dead: {:?}", verdict.target, verdict.reason);
//!     }
//! }
//! # Ok::<(), fide_client::Error>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`protocol`] | the messages to the agent (the agent uses them too) |
//! | `client` | [`Client`]: the calls, and taking events |
//! | `reattach` | what happens when the agent goes away and comes back |
//! | `eager` | [`wake_eagerly`]: has a thread run soon after it is woken |
//! | `lanes` | messages with a latency contract: requested, granted, sent |
//! | `registry` | which watch belongs to which monitor, which verdicts were delivered already |
//! | `permit` | whether this host may act, as what, until when; fencing tokens |
//! | `memory`, `link` | mapped memory and the socket |
//! | [`capi`] | the C ABI |
//!
//! **The path of an event**: the agent, or the kernel's receive program itself, puts a record into this
//! client's ring; the ring's descriptor wakes `epoll_wait` in [`Client::wait_event`]; the record is decoded
//! on the caller's thread. There are no helper threads.
//!
//! **Invariant: no privileges.** A client needs access to the agent's socket and nothing else.

mod client;
mod eager;
mod error;
mod event;
mod granted;
mod lanes;
mod link;
mod memory;
mod permit;
mod reattach;
#[doc(hidden)]
pub mod registry;

pub mod capi;

pub use fide_agent_api::protocol;

pub use client::{Client, ConnectOptions, Counters};
pub use eager::wake_eagerly;
pub use error::{Declined, Error};
pub use event::{Event, Evidence, MonitorId, ProcessId, Verdict};
pub use fide_agent_api::table::{HostRecord, LEASE_FOREVER_NS, ProcessRecord, TableReader, state};
pub use fide_types::Reason;
pub use fide_types::{HOST_SLOT, PIGGYBACK_MAX};
pub use granted::{Joined, Monitor, Wanted};
pub use lanes::{LANES_MAX, Lane, LaneGrant, LaneId, LaneLatency, LaneReason, LaneWanted};
pub use memory::{Live, now_ns};
pub use permit::{Permit, Token, View, ViewId};
