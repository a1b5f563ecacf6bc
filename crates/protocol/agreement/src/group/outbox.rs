// SPDX-License-Identifier: Apache-2.0
//! Control messages that wait to be sent.

use std::collections::VecDeque;

use fide_types::HostSet;

use super::{Group, control::Control};
use crate::Start;

/// Messages that may wait; more are dropped. Whatever is dropped is sent again at the next resend, or asked
/// for.
const OUTBOX_MAX: usize = 1024;

/// To whom, the number of the sender's view when the message was made (places are those of that view), and
/// the message.
type Outgoing = (HostSet, u32, Control);

#[derive(Debug, Clone, Default)]
pub(super) struct Outbox(VecDeque<Outgoing>);

impl Outbox {
    pub(super) fn push(&mut self, to: HostSet, view: u32, control: Control) {
        if self.0.len() < OUTBOX_MAX {
            self.0.push_back((to, view, control));
        }
    }

    pub(super) fn pop(&mut self) -> Option<Outgoing> {
        self.0.pop_front()
    }
}

impl<P: Start> Group<P> {
    /// Queues a control message, with the number of the present view.
    pub(super) fn say(&mut self, to: HostSet, control: Control) {
        self.outbox.push(to, self.epochs.number(), control);
    }
}
