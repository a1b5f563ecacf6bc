// SPDX-License-Identifier: Apache-2.0
//! Which controller decides.
//!
//! * [`Single`]: one controller on one host, by a lock on a file. It leads as long as it lives.
//! * [`Elected`]: one of several, by a key in etcd that goes with a lease. The leader keeps the lease alive;
//!   when it cannot, it stops leading before the lease can end ([`Authority::ReadOnly`]), and leads on if it
//!   finds the lease still alive.
//!
//! Each leadership has an epoch, larger than all before, under which its changes are stored
//! ([`crate::store`]). The clock only spares a deposed leader useless work: the store is what keeps it from
//! writing.

mod elected;
mod single;

use serde::{Deserialize, Serialize};

pub use elected::{Elected, ElectedOptions, TTL_MIN_S};
pub use single::{Lock, LockError, Single};

/// What this controller may do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authority {
    /// Decide.
    Leader { epoch: u64 },
    /// It led and may lead again under the same epoch, but cannot prove it: it may report the last state,
    /// and change nothing.
    ReadOnly { epoch: u64, why: String },
    /// Nothing; peers should ask `leader`, if one is known. `trouble`: why the leader cannot be found out.
    Standby { leader: Option<Candidate>, trouble: Option<String> },
}

/// A controller that leads or wants to lead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Name of the controller.
    pub name: String,
    /// `HOST:PORT` where agents reach it.
    pub address: String,
}

/// Answers without waiting.
pub trait Leadership: Send {
    /// Called before each decision, and again before a read is answered.
    fn authority(&self) -> Authority;

    /// The store has refused this epoch: another controller leads, whatever this one believes.
    fn deposed(&self);
}

impl<L: Leadership + ?Sized> Leadership for Box<L> {
    fn authority(&self) -> Authority {
        (**self).authority()
    }
    fn deposed(&self) {
        (**self).deposed();
    }
}

impl<L: Leadership + Sync + ?Sized> Leadership for std::sync::Arc<L> {
    fn authority(&self) -> Authority {
        (**self).authority()
    }
    fn deposed(&self) {
        (**self).deposed();
    }
}

#[cfg(test)]
mod tests;
