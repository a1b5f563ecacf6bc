// SPDX-License-Identifier: Apache-2.0
//! What becomes of symbols and redundancy that were sent, and what is sent again.
//!
//! A lost symbol of a block with redundancy is *hoped* for: it is not sent again before it is clear that the block's coded
//! packets do not suffice, and then only as many symbols as are missing are. While the block is open nobody knows when its
//! coded packets will leave, as that depends on the next messages: what is lost meanwhile is sent again.

use super::{Later, Sender, State, Way};
use crate::receiver::tolerance::{CREDIT_MAX, DEBT_MAX, USED};

/// As long as the receiver may pass over a gap, what is lost is sent again this share of a round trip later, and so much:
/// perhaps nobody awaits it.
const DOUBT_SHARE: u64 = 8;
const DOUBT_NS: u64 = 3_000_000;

/// Messages after which one that was lost beyond what was asked for counts half: those of the start are no reason to protect others
/// for ever.
const BEYOND_HALF: f64 = 5000.0;
/// What is left of it after one message.
const BEYOND_KEPT: f64 = 1.0 - std::f64::consts::LN_2 / BEYOND_HALF;
/// So many of them halve the share that is planned with, or what may be lost of so many messages: chance loses more of the messages where
/// more may be lost.
const BEYOND_HALVES: f64 = 4.0;
const BEYOND_HALVES_OF: f64 = 3000.0;

/// What the receiver may pass over, as it counts that itself, and what was lost.
#[derive(Debug, Default)]
pub(super) struct Tolerated {
    pub(super) share: f64,
    credit: f64,
    /// Lost messages as the receiver has told.
    told: u32,
    /// Messages lost beyond what was asked for.
    beyond: f64,
}

impl Tolerated {
    pub(super) fn sent(&mut self) {
        self.credit = (self.credit + USED * self.share).min(CREDIT_MAX);
        self.beyond = ((self.beyond - self.share) * BEYOND_KEPT).max(0.0);
    }

    /// So many messages were lost.
    fn lost(&mut self, count: u32) {
        self.credit = (self.credit - f64::from(count)).max(-DEBT_MAX);
        self.beyond = (self.beyond + f64::from(count)).min(DEBT_MAX);
    }

    fn is_any(&self) -> bool {
        self.credit >= 1.0
    }

    /// The share to plan with: less than was asked for if more was lost.
    pub(super) fn planned(&self) -> f64 {
        self.share / (1.0 + self.beyond / BEYOND_HALVES.max(BEYOND_HALVES_OF * self.share))
    }
}

/// A block whose redundancy is not known to have come, or to be lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) first: u64,
    pub(super) end: u64,
    /// Coded packets of which nothing is known, and those that have come.
    pub(super) outstanding: usize,
    pub(super) came: usize,
}

impl Sender {
    /// A packet with this symbol has come, or is lost.
    pub fn resolve_symbol(&mut self, now_ns: u64, number: u64, came: bool, way: &Way) {
        let has_hope = self.has_hope(now_ns, number, way);
        let Some(symbol) = self.symbol(number) else { return };
        symbol.copies = symbol.copies.saturating_sub(1);
        match (symbol.state, came) {
            (State::Done, _) => {}
            (_, true) => symbol.state = State::Done,
            (State::UnderWay, false) if symbol.copies == 0 && symbol.pending == 0 => {
                symbol.state = State::Hoped;
                if !has_hope && self.tolerated.is_any() {
                    let at_ns = now_ns + way.least_ns / DOUBT_SHARE + DOUBT_NS;
                    self.put_later(at_ns, number);
                } else if !has_hope {
                    self.send_again(now_ns, number, way);
                }
            }
            _ => {}
        }
        if has_hope {
            self.settle(now_ns, number, way);
        }
        self.advance();
    }

    /// A lost symbol is sent again if there is time; else it is given up.
    fn send_again(&mut self, now_ns: u64, number: u64, way: &Way) {
        let plan = self.plan;
        let Some(symbol) = self.symbol(number) else { return };
        let left_ns = symbol.expires_ns.checked_sub(now_ns + way.usual_ns);
        let Some(left_ns) = left_ns else {
            symbol.state = State::Done;
            self.counts.given_up += 1;
            return;
        };
        symbol.state = State::Again;
        symbol.was_again = true;
        let is_last = left_ns < plan.round_ns;
        let mut copies = 0;
        if is_last {
            self.copies_due += plan.copies;
            while self.copies_due >= 1.0 {
                self.copies_due -= 1.0;
                copies += 1;
            }
        }
        if let Some(symbol) = self.symbol(number) {
            symbol.pending = copies;
        }
        self.again.push_back(number);
        for copy in 1..=u64::from(copies) {
            self.put_later(now_ns + copy * plan.apart_ns, number);
        }
    }

    /// When the next symbol of which nothing was heard is taken for lost, as it could not be sent again in time else.
    pub(super) fn guess_due_ns(&self, way: &Way) -> Option<u64> {
        let at = usize::try_from(self.guessed.max(self.first) - self.first).ok()?;
        let symbol = self.symbols.get(at).filter(|_| self.plan.guess_ns > 0)?;
        Some(symbol.expires_ns.saturating_sub(way.usual_ns + self.plan.guess_ns))
    }

    /// FEEDBACK may be lost, and in a long burst nothing comes that it could name: what is not known by now is sent again.
    pub(super) fn take_guesses(&mut self, now_ns: u64, way: &Way) {
        while self.guess_due_ns(way).is_some_and(|due_ns| due_ns <= now_ns) {
            let number = self.guessed.max(self.first);
            self.guessed = number + 1;
            let is_unknown = |symbol: &mut super::Symbol| symbol.state == State::UnderWay && !symbol.was_again;
            if self.guesses_due >= 1.0 && self.symbol(number).is_some_and(is_unknown) {
                self.guesses_due -= 1.0;
                self.send_again(now_ns, number, way);
            }
        }
    }

    /// In the order of times.
    fn put_later(&mut self, at_ns: u64, number: u64) {
        let at = self.later.partition_point(|later| later.at_ns <= at_ns);
        self.later.insert(at, Later { at_ns, number });
    }

    /// What was put off is sent.
    pub(super) fn take_later(&mut self, now_ns: u64, way: &Way) {
        while let Some(Later { number, .. }) = self.later.front().filter(|later| later.at_ns <= now_ns).copied() {
            self.later.pop_front();
            let has_hope = self.has_hope(now_ns, number, way);
            let Some(symbol) = self.symbol(number) else { continue };
            match symbol.state {
                // Its block was closed meanwhile.
                State::Hoped if has_hope => {}
                State::Hoped => self.send_again(now_ns, number, way),
                State::UnderWay | State::Again if symbol.pending > 0 => {
                    symbol.pending -= 1;
                    symbol.state = State::Again;
                    self.again.push_back(number);
                }
                // It was put off, and was sent again before.
                State::UnderWay | State::Again | State::Done => {}
            }
        }
    }

    /// A coded packet of the block that begins with this symbol has come, or is lost.
    pub fn resolve_redundancy(&mut self, now_ns: u64, first: u64, came: bool, way: &Way) {
        let Some(block) = self.blocks.iter_mut().find(|block| block.first == first) else { return };
        block.outstanding = block.outstanding.saturating_sub(1);
        block.came += usize::from(came);
        self.settle(now_ns, first, way);
        self.advance();
    }

    /// Redundancy may stand for a symbol: its block is closed, and not all of its coded packets are known to have come or to be
    /// lost. Of a window's nobody knows that, so that one with a longer deadline than is planned for is sent again while there is time.
    fn has_hope(&mut self, now_ns: u64, number: u64, way: &Way) -> bool {
        let is_in_window = self.plan.window > 0 && self.plan.redundancy > 0 && number >= self.block_from;
        let round_ends_ns = now_ns.saturating_add(way.usual_ns).saturating_add(self.plan.round_ns);
        let has_round = |symbol: &mut super::Symbol| symbol.expires_ns >= round_ends_ns;
        is_in_window && !self.symbol(number).is_some_and(has_round) || self.block_of(number).is_some()
    }

    fn block_of(&self, number: u64) -> Option<usize> {
        self.blocks.iter().position(|block| (block.first..block.end).contains(&number))
    }

    /// Of a closed block nothing more is awaited if its redundancy suffices, and some symbols are sent again if it cannot.
    fn settle(&mut self, now_ns: u64, number: u64, way: &Way) {
        let Some(at) = self.block_of(number) else { return };
        let Block { first, end, outstanding, came } = self.blocks[at];
        let of = |state| move |symbol: &&mut super::Symbol| symbol.state == state;
        let hoped = self.range(first, end).filter(of(State::Hoped)).count();
        let missing = self.range(first, end).filter(|symbol| symbol.state != State::Done).count();
        if came >= missing {
            self.range(first, end).for_each(|symbol| symbol.state = State::Done);
            self.blocks.remove(at);
            return;
        }
        let again = hoped.saturating_sub(came + outstanding);
        if outstanding == 0 {
            self.blocks.remove(at);
        }
        let mut numbers = first.max(self.first)..end;
        for _ in 0..again {
            let next = numbers.find(|number| self.is_hoped(*number));
            if let Some(number) = next {
                self.send_again(now_ns, number, way);
            }
        }
        if outstanding == 0 {
            // Coded packets that have come stand for the others, once these have come, too.
            self.range(first, end).filter(of(State::Hoped)).for_each(|symbol| symbol.state = State::Done);
        }
    }

    fn is_hoped(&mut self, number: u64) -> bool {
        self.symbol(number).is_some_and(|symbol| symbol.state == State::Hoped)
    }

    pub(super) fn range(&mut self, first: u64, end: u64) -> impl Iterator<Item = &mut super::Symbol> {
        let at = |number: u64| usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let (from, to) = (at(first).min(self.symbols.len()), at(end).min(self.symbols.len()));
        self.symbols.range_mut(from..to)
    }

    /// There is no redundancy for the open block, after all: what is lost of it is sent again.
    pub(crate) fn without_redundancy(&mut self, now_ns: u64, way: &Way) {
        for number in self.block_from.max(self.first)..self.next_number() {
            if self.is_hoped(number) {
                self.send_again(now_ns, number, way);
            }
        }
        self.block_from = self.next_number();
    }

    /// The share of messages to be lost that redundancy is planned for.
    #[must_use]
    pub fn planned_loss(&self) -> f64 {
        self.tolerated.planned()
    }

    /// The share of messages that may be lost.
    pub fn set_tolerated(&mut self, share: f64) {
        self.tolerated.share = share;
    }

    /// The receiver does not await symbols below this one: they are here, restored, or passed over. `lost`: the lowest bits
    /// of the number of messages that were lost so far.
    pub fn is_awaited_from(&mut self, awaited: u64, lost: u32) {
        let more = lost.wrapping_sub(self.tolerated.told);
        // FEEDBACK may be overtaken.
        if more < u32::MAX / 2 {
            self.tolerated.told = lost;
            self.tolerated.lost(more);
        }
        self.range(0, awaited).for_each(|symbol| symbol.state = State::Done);
        self.blocks.retain(|block| block.end > awaited);
        self.advance();
    }

    /// All that was taken so far is given up: it may have expired.
    pub fn give_up_all(&mut self) {
        while let Some(queued) = self.queue.pop_front() {
            self.messages_pool.give(queued.bytes);
            self.counts.dropped += 1;
        }
        while let Some(coded) = self.coded.pop_front() {
            self.pool.give(coded.content);
        }
        for symbol in &mut self.symbols {
            self.counts.given_up += u64::from(symbol.state != State::Done);
            symbol.state = State::Done;
        }
        self.again.clear();
        self.later.clear();
        self.blocks.clear();
        self.block_from = self.next_number();
        self.advance();
    }
}
