// SPDX-License-Identifier: Apache-2.0
//! Redundancy of the last symbols, which leaves between them ([`crate::window`]).
//!
//! The window is what the open block is else: it begins with `block_from`, which follows the newest symbol, and what is lost of it
//! is hoped for.

use super::{Coded, Of, Sender};
use crate::window::{Encoder, WINDOW_MAX};

#[derive(Debug, Default)]
pub(super) struct Ahead {
    pub(super) now_ns: u64,
    /// When the newest symbol counts as the last one for now.
    tail_ns: Option<u64>,
    encoder: Encoder,
}

impl Sender {
    fn share(&self) -> f64 {
        self.plan.redundancy as f64 / self.plan.data.max(1) as f64
    }

    /// A new symbol has left.
    pub(super) fn slide(&mut self) {
        if self.plan.window == 0 || self.plan.redundancy == 0 {
            return;
        }
        let most = self.plan.window.min(WINDOW_MAX) as u64;
        self.block_from = self.block_from.max(self.next_number().saturating_sub(most));
        self.coded_due = (self.coded_due + self.share()).min(1.0 + self.share());
        self.ahead.tail_ns = Some(self.ahead.now_ns.saturating_add(self.plan.tail_ns));
    }

    /// When redundancy of the window leaves next, if nothing comes.
    pub(super) fn window_due_ns(&self) -> Option<u64> {
        let is_open = self.plan.redundancy > 0 && self.block_from < self.next_number();
        let due_ns = if self.coded_due >= 1.0 { Some(0) } else { self.ahead.tail_ns };
        due_ns.filter(|_| is_open)
    }

    /// Makes the redundancy that is due.
    pub(super) fn code_window(&mut self, now_ns: u64) {
        let open = self.next_number() - self.block_from.max(self.first);
        let is_tail = self.ahead.tail_ns.take_if(|tail_ns| now_ns >= *tail_ns).is_some();
        // Where messages wait it is the path that has none follow, and takes less than it did.
        if is_tail && self.queue.is_empty() {
            self.coded_due += self.share() * open as f64 / 2.0;
        }
        if open == 0 {
            // All has come.
            self.coded_due = self.coded_due.min(1.0);
            return;
        }
        while self.coded_due >= 1.0 {
            self.coded_due -= 1.0;
            let first = self.next_number() - open.min(WINDOW_MAX as u64);
            let from = usize::try_from(first - self.first).unwrap_or(0);
            let symbols = self.symbols.range(from..);
            let expires_ns = symbols.clone().map(|symbol| symbol.expires_ns).max().unwrap_or(0);
            let data = u8::try_from(symbols.len()).unwrap_or(u8::MAX);
            let mut content = self.pool.take();
            let seed = self.ahead.encoder.encode(first, symbols.map(|symbol| &symbol.content[..]), &mut content);
            self.coded.push_back(Coded { first, data, of: Of::Window { seed }, content, expires_ns });
        }
    }
}
