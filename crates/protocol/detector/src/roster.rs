// SPDX-License-Identifier: Apache-2.0
//! Processes: those of this host, and those that peers told of.
//!
//! A changed entry is carried in *every* heartbeat from the first that had it (`first_seq`) until each live, listening peer
//! has acknowledged a heartbeat not older than that one: whichever it acknowledged, it carried the entry. When not all
//! fit, those in flight stay until acknowledged, then the next ones follow. Ends go first. A slot is used again only after
//! everyone knows of its last end.
//!
//! **One name, one process after the other.** A host has one live process of a name at most, and numbers its processes in the
//! order in which they join (by [`newer`], within one life of its agent). They are told in that order: an entry goes with or after
//! those of all former processes of its name, and in each heartbeat after them; who begins to listen is told only the last one that
//! has settled. A receiver that hears of a process for the first time holds all former ones of its name for ended, and takes no notice
//! of one whose successor it knows.

use crate::types::{ProcessView, Via};
use fide_types::ProcessState;
use fide_wire::{MAX_PROCESSES, Name, Roster, SECTION_HEADER_LEN};
use serde::{Deserialize, Serialize};

/// Watches that this host can hold.
pub const WISHES_MAX: usize = 1024;
/// Watches of peers that are remembered (to tell each once).
pub const REQUESTS_MAX: usize = 1024;

/// Where something that must reach every peer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Carry {
    #[default]
    Settled,
    /// Not yet in a heartbeat.
    Pending,
    /// In every heartbeat since that one.
    Since(u64),
}

/// A process of this host.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Local {
    pub name: Name,
    pub incarnation: u32,
    pub state: ProcessState,
    pub at_ns: u64,
    pub pb_assigned: u32,
    pub pb_sent: u32,
    /// Sent before the first heartbeat that carried the present entry.
    pub pb_base: u32,
    pub carry: Carry,
    pub notice: bool,
}

impl Local {
    pub fn wire(&self, slot: usize) -> Roster {
        Roster {
            slot: slot as u8,
            state: self.state,
            name: Some(self.name),
            incarnation: self.incarnation,
            pb_seq: if self.state.is_final() { self.pb_assigned } else { self.pb_base },
            at_ns: self.at_ns,
        }
    }

    pub fn wire_len(&self) -> usize {
        SECTION_HEADER_LEN + fide_wire::ROSTER_LEN + self.name.as_bytes().len()
    }

    pub fn look(&self) -> ProcessView {
        ProcessView {
            name: self.name,
            incarnation: self.incarnation,
            state: self.state,
            at_ns: self.at_ns,
            pb_seq: self.pb_assigned,
        }
    }
}

/// An end that waits for the piggybacks sent before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub state: ProcessState,
    pub at_ns: u64,
    pub via: Via,
    pub pb_seq: u32,
    /// All its piggybacks were in heartbeats up to this one; 0 when that is not known yet (told by a notice).
    pub seq: u64,
    pub deadline_ns: u64,
}

/// A process of a peer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Remote {
    pub name: Name,
    pub incarnation: u32,
    pub state: ProcessState,
    pub at_ns: u64,
    pub delivered: u32,
    pub lost: u32,
    pub held: Option<Held>,
    /// The heartbeat that told of it first.
    pub since_seq: u64,
    pub gap: bool,
}

impl Remote {
    pub fn look(&self) -> ProcessView {
        ProcessView {
            name: self.name,
            incarnation: self.incarnation,
            state: self.state,
            at_ns: self.at_ns,
            pb_seq: self.delivered,
        }
    }
}

/// A watch of a local client (or of the host), told to the subject's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    pub host: u16,
    pub process: Option<Name>,
    pub watcher_slot: u8,
    pub timeout_us: u32,
    pub pbsize: u16,
    pub carry: Carry,
    pub watchers: u32,
}

/// A watch of a peer, so that it is told once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub host: u16,
    pub incarnation: u32,
    pub watcher_slot: u8,
    pub slot: u8,
    pub timeout_us: u32,
    pub pbsize: u16,
}

/// The processes of one host, by slot.
pub type Slots<T> = Box<[Option<T>]>;

pub fn slots<T: Copy>(hosts: usize) -> Slots<T> {
    vec![None; hosts * MAX_PROCESSES].into_boxed_slice()
}

/// Of two processes of one host, in one life of its agent: the one that joined later.
pub fn newer(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}
