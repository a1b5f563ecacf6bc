// SPDX-License-Identifier: Apache-2.0
//! The thread around the engine: it reads the clocks, waits, and has the engine turn.

use std::io;

use fide_net::pace::Ready;

use super::{
    Engine,
    ports::{TOKEN_COMMAND, TOKEN_DOORBELL},
};
use crate::clock::{Clocks, HostClocks};

/// Longest wait between two turns, so that a lost wake-up costs no more than this.
const IDLE_NS: u64 = 100_000_000;

impl Engine {
    /// Turns until a command stops it, in a thread that is isolated already.
    ///
    /// # Errors
    /// The kernel's, if waiting fails; a witness' disk.
    pub fn run(mut self) -> io::Result<()> {
        let clocks = &mut HostClocks;
        // After a takeover, the table shows the state that was taken over.
        self.publish_exclusion();
        self.publish_me(clocks.now());
        let mut ready = Ready::default();
        while !self.stopping {
            self.turn(clocks);
            let now = clocks.now();
            let deadline_ns = self.next_turn_ns(now.mono_ns);
            self.ports.waiter.wait(deadline_ns, &mut ready)?;
            // Measured even if something arrived meanwhile, as long as the deadline has passed.
            let woken = clocks.now();
            if deadline_ns > now.mono_ns && woken.mono_ns >= deadline_ns {
                self.was_late(woken, woken.mono_ns - deadline_ns);
            }
            if ready.tokens().any(|token| token == TOKEN_COMMAND) {
                self.exchange.quiet_engine();
            }
            for token in ready.tokens() {
                let client = token.checked_sub(TOKEN_DOORBELL).and_then(|client| u8::try_from(client).ok());
                if let Some(client) = client {
                    self.rung(client);
                }
            }
        }
        match self.failed.take() {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(()),
        }
    }

    /// Nothing wakes the loop for what lies in memory.
    fn longest_wait_ns(&self) -> u64 {
        if self.ports.polled.is_empty() { IDLE_NS } else { self.facts.poll_ns.min(IDLE_NS) }
    }

    /// When the next turn begins at the latest, on CLOCK_MONOTONIC.
    pub(super) fn next_turn_ns(&self, now_ns: u64) -> u64 {
        match self.repeat.next_ns() {
            Some(next_ns) => self.clock.mono_of(next_ns),
            None if self.busy_turn => now_ns,
            None => {
                let due_ns = self.clock.mono_of(self.detector.poll_timeout());
                due_ns.min(self.lanes.due_ns()).min(now_ns + self.longest_wait_ns())
            }
        }
    }
}
