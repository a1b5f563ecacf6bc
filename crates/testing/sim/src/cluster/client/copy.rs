// SPDX-License-Identifier: Apache-2.0
//! A copy of a program's client library, as a snapshot of its machine has it.

use super::{super::session::Copies, Client, State};

impl Client {
    pub(in super::super) fn copy(&self, copies: &mut Copies) -> Self {
        let state = match &self.state {
            State::Opening(link) => State::Opening(link.as_ref().map(|link| copies.link(link))),
            State::Attached(link) => State::Attached(copies.link(link)),
            State::Away => State::Away,
            State::Greeting(link) => State::Greeting(copies.link(link)),
            State::Registering(link) => State::Registering(copies.link(link)),
        };
        Self {
            pid: copies.pid(self.pid),
            state,
            wants: self.wants.clone(),
            has: self.has,
            opened: self.opened.clone(),
            registry: self.registry.clone(),
            targets: self.targets.clone(),
            table: copies.table(&self.table),
            acknowledged: self.acknowledged,
            incarnation_notified: self.incarnation_notified,
            session: copies.session(&self.session),
            todo: self.todo.clone(),
            pending: self.pending.clone(),
            attempt: self.attempt,
            timer_ns: self.timer_ns,
            lost_seen: self.lost_seen,
        }
    }
}
