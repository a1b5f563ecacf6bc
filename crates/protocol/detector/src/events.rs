// SPDX-License-Identifier: Apache-2.0
//! The bounded queue of events that the caller has yet to poll.

use crate::types::Event;
use std::collections::VecDeque;

/// Events that wait to be polled. The last [`EVENTS_RESERVE`] places are for events that must not be lost.
pub(crate) const EVENTS_MAX: usize = 2048 + EVENTS_RESERVE;
/// One verdict for each process of each host, one for each host, and some to spare.
pub(crate) const EVENTS_RESERVE: usize = 64 * 64 + 64 + 64;

/// The queue, and the message buffer lent with the event polled last.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    lent: Option<u16>,
}

impl Default for Events {
    fn default() -> Events {
        Events { queue: VecDeque::with_capacity(EVENTS_MAX), lent: None }
    }
}

impl Events {
    /// Queues an event.
    ///
    /// # Errors
    /// The event itself, if the queue is at its bound. Events that the caller can do without keep off the
    /// reserve.
    pub(crate) fn push(&mut self, event: Event) -> Result<(), Event> {
        let may_be_lost =
            matches!(event, Event::Piggyback { .. } | Event::MonitorRequest { .. } | Event::TimeoutChanged { .. });
        let bound = if may_be_lost { EVENTS_MAX - EVENTS_RESERVE } else { EVENTS_MAX };
        if self.queue.len() >= bound {
            return Err(event);
        }
        self.queue.push_back(event);
        Ok(())
    }

    /// The next event. The buffer of a piggyback is lent with it.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        if let Event::Piggyback { buffer, .. } = event {
            self.lent = Some(buffer);
        }
        Some(event)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes back the buffer lent with the event polled last.
    pub(crate) fn take_lent(&mut self) -> Option<u16> {
        self.lent.take()
    }

    /// Is `buffer` lent?
    pub(crate) fn lends(&self, buffer: u16) -> bool {
        self.lent == Some(buffer)
    }
}
