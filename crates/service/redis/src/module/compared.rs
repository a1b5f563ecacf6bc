// SPDX-License-Identifier: Apache-2.0
//! What a server knows of comparisons ([`super::comparing`]).

use std::time::Instant;

use crate::remark::{Digest, Remark, Settings};

/// This server's part in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) number: u64,
    /// The data is to be that of this position.
    pub(super) position: u64,
    /// Digest of the answers to numbered requests there.
    pub(super) numbered: u64,
    pub(super) found: Found,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The server has not applied everything up to the position yet.
    Due,
    /// A child takes the digest.
    Running,
    Digest(Digest),
    Nothing,
}

/// At the leader: what the servers have found.
#[derive(Debug, Clone)]
pub(super) struct Collected {
    pub(super) number: u64,
    pub(super) since: Instant,
    pub(super) of: Vec<(u16, Option<Digest>)>,
}

/// What all servers found, while this one's child still runs.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) number: u64,
    pub(super) leader: u16,
    pub(super) of: Vec<(u16, Digest)>,
}

/// How the last comparison went, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) number: u64,
    /// Servers that had a digest.
    pub(super) servers: usize,
    /// The names of those whose data differs; of all if nobody knows who is right.
    pub(super) differ: Vec<String>,
}

/// A remark that is decided.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) remark: Remark,
    pub(super) position: u64,
    /// Digest of the answers to numbered requests there.
    pub(super) numbered: u64,
}

#[derive(Debug, Default)]
pub(super) struct Compare {
    /// Remarks that are decided, and that this server has yet to follow.
    said: Vec<Said>,
    pub(super) own: Option<Own>,
    pub(super) collected: Option<Collected>,
    /// Somebody has asked for a comparison.
    pub(super) asked: Option<u64>,
    /// What came while this server's child still ran.
    pub(super) early: Option<Early>,
    /// When this leader has begun one last, or began to lead.
    pub(super) begun: Option<Instant>,
    /// The view whose members this leader has told its settings.
    pub(super) told_in: Option<u32>,
    /// This server's, but for its port.
    pub(super) settings: Settings,
    pub(super) compared: u64,
    pub(super) skipped: u64,
    pub(super) differed: u64,
    pub(super) last: Option<Last>,
}

impl Compare {
    /// This server leads from now on, or does not any more: what a leader does begins anew.
    pub(super) fn begin_term(&mut self) {
        (self.collected, self.asked, self.told_in) = (None, None, None);
        self.begun = Some(Instant::now());
    }

    /// The data is replaced.
    pub(super) fn drop_own(&mut self) {
        (self.own, self.early) = (None, None);
        self.said.clear();
    }

    /// These remarks are decided at this position, where the answers to numbered requests have that digest.
    pub(super) fn note_said(&mut self, remarks: Vec<Remark>, position: u64, numbered: u64) {
        self.said.extend(remarks.into_iter().map(|remark| Said { remark, position, numbered }));
    }

    pub(super) fn take_said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.said)
    }

    pub(super) fn is_running(&self) -> bool {
        self.own.is_some_and(|own| own.found == Found::Running)
    }
}
