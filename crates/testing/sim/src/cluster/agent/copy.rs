// SPDX-License-Identifier: Apache-2.0
//! A copy of an agent, as a snapshot of its machine has it.

use super::{super::session::Copies, Agent, Connected};

impl Agent {
    pub(in super::super) fn copy(&self, copies: &mut Copies) -> Self {
        let connected =
            |of: &Connected| Connected { link: copies.link(&of.link), pid: copies.pid(of.pid), token: of.token };
        Self {
            connected: self.connected.iter().map(connected).collect(),
            detector: self.detector.clone(),
            me: self.me,
            table: copies.table(&self.table),
            sessions: self.sessions.iter().map(|of| copies.session(of)).collect(),
            watches: self.watches.clone(),
            subjects: self.subjects.clone(),
            next_watch: self.next_watch,
            next_token: self.next_token,
            owners: self.owners.iter().map(|(slot, pid, token)| (*slot, copies.pid(*pid), *token)).collect(),
            exits: self.exits.iter().map(|pid| copies.pid(*pid)).collect(),
            timeout_min_ns: self.timeout_min_ns,
            asleep_ns: self.asleep_ns,
            ahead_ns: self.ahead_ns,
            published: self.published.clone(),
            repeat: self.repeat.clone(),
            frozen: self.frozen.clone(),
        }
    }
}
