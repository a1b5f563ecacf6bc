// SPDX-License-Identifier: Apache-2.0
//! What a thread of a proxy does while nothing comes.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::link::Turn;

/// So long after the last thing that came it looks without a sleep.
pub const BUSY: Duration = Duration::from_micros(200);
/// The longest sleep. It grows with the time since the last thing that came, so that nothing waits for more than a part of that longer.
pub const NAP_MAX: Duration = Duration::from_millis(1);
const NAP_MIN: Duration = Duration::from_micros(20);
/// A sleep takes so much of the time since the last thing that came.
const SHARE: u32 = 8;

#[derive(Debug)]
pub(super) struct Idle {
    is_busy: bool,
    since: Option<Instant>,
}

impl Idle {
    /// `is_busy`: it never sleeps.
    pub(super) fn new(is_busy: bool) -> Self {
        Self { is_busy, since: None }
    }

    /// After a turn.
    pub(super) fn turn(&mut self, turn: Turn) {
        if turn == Turn::Busy {
            self.since = None;
        }
        if turn != Turn::Idle {
            return;
        }
        let idle = self.since.get_or_insert_with(Instant::now).elapsed();
        if self.is_busy || idle < BUSY {
            // The program that is to read may have this core.
            thread::yield_now();
        } else {
            thread::sleep((idle / SHARE).clamp(NAP_MIN, NAP_MAX));
        }
    }
}
