// SPDX-License-Identifier: Apache-2.0
//! The BPF programs and their loaders.
//!
//! - [`ExitWatch`]: notifies the agent when the last thread of a watched process leaves
//!   (`c/exit_watch.bpf.c`, FiDe §3.4).
//! - [`Receive`]: checks, counts and stores heartbeats where they arrive, arms a timer for each
//!   peer, and notifies waiting programs of a death without any thread in between
//!   (`c/heartbeat.bpf.c`, FiDe §3.2 and §3.4).
//! - [`pingpong`]: where the packets of the jitter bench arrive (`c/pingpong.bpf.c`).
//! - [`culprits`]: who else ran on the cores of a measurement (`c/culprits.bpf.c`).
//!
//! The headers in `c/` are the only contract between the C programs and Rust: the build generates the Rust side from
//! them ([`intf`] from `intf.h`).
//!
//! **Invariant:** no policy. A program reports a silence or an exit; who is dead is decided by
//! `fide-detector`. The one verdict of which the receive program notifies clients by itself is a notice that the
//! dying process' own kernel sent, which needs no decision.

pub mod culprits;
mod exit_watch;
pub mod intf;
mod map;
pub mod pingpong;
mod receive;
mod xdp;

pub use exit_watch::{ExitWatch, ExitWatchFds, Registration};
pub use receive::{ClientRings, Notified, Receive, ReceiveFds, Settings};
pub use xdp::{XdpFacts, XdpMode, xdp_facts};

/// What can go wrong between here and the kernel.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel refused to load or attach; the text is the kernel's own.
    #[error("the kernel did not take the {program} program: {reason}")]
    Load { program: &'static str, reason: String },
    /// XDP could not be attached to an interface.
    #[error("XDP ({mode}) could not be attached to interface {ifindex}: {why}")]
    Attach { ifindex: u32, mode: XdpMode, why: std::io::Error },
    /// A map operation failed.
    #[error("{what}: {why}")]
    Map { what: &'static str, why: std::io::Error },
    /// A map inherited from another agent has another layout.
    #[error(
        "map {map} holds values of {found} bytes, this program needs {wanted}: the running agent is of another version, restart instead of taking over"
    )]
    Layout { map: &'static str, found: u32, wanted: u32 },
}

/// Keeps libbpf from writing to standard error, for the whole process: what failed is in the errors.
pub fn hush() {
    libbpf_rs::set_print(None);
}

impl BpfError {
    pub(crate) fn last(what: &'static str) -> Self {
        Self::Map { what, why: std::io::Error::last_os_error() }
    }

    pub(crate) fn load(program: &'static str, error: &libbpf_rs::Error) -> Self {
        Self::Load { program, reason: error.to_string() }
    }
}

/// What the build generates from the headers in `c/`.
#[allow(
    dead_code,
    non_camel_case_types,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks
)]
mod generated {
    pub mod intf {
        include!(concat!(env!("OUT_DIR"), "/intf.rs"));
    }
    pub mod culprits {
        include!(concat!(env!("OUT_DIR"), "/culprits.rs"));
    }
    pub mod pingpong {
        include!(concat!(env!("OUT_DIR"), "/pingpong.rs"));
    }
}

mod skel {
    pub(crate) mod exit_watch {
        #![allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports, unreachable_pub)]
        include!(concat!(env!("OUT_DIR"), "/exit_watch.skel.rs"));
    }
    pub(crate) mod culprits {
        #![allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports, unreachable_pub)]
        include!(concat!(env!("OUT_DIR"), "/culprits.skel.rs"));
    }
    pub(crate) mod pingpong {
        #![allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports, unreachable_pub)]
        include!(concat!(env!("OUT_DIR"), "/pingpong.skel.rs"));
    }
    #[cfg(test)]
    pub(crate) mod gaps_probe {
        #![allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports, unreachable_pub)]
        include!(concat!(env!("OUT_DIR"), "/gaps_probe.skel.rs"));
    }
    pub(crate) mod heartbeat {
        #![allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports, unreachable_pub)]
        include!(concat!(env!("OUT_DIR"), "/heartbeat.skel.rs"));
    }
}

#[cfg(test)]
mod tests;
