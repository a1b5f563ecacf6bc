// SPDX-License-Identifier: Apache-2.0
//! What one end has received: symbols, what is restored from redundancy, and messages in order.
//!
//! A message is delivered once all its symbols are here and nothing before it is awaited any more. What is missing is
//! awaited until the sender says that it does not come ([`Receiver::set_floor`]), a message behind it would expire, or it
//! may be lost ([`tolerance`]).
//! Nothing is delivered after it has expired, by the sender's clock.

pub(crate) mod tolerance;

use std::collections::VecDeque;

use tolerance::Tolerance;

use crate::{
    block::{BLOCK_MAX, Codec},
    packet::extend,
    per_message::PerMessage,
    pool::Pool,
    symbol::{Description, SYMBOL_MAX},
    window::{Decoder, WINDOW_MAX},
};

/// Symbols for which there is room: three quarters from the first that is awaited on, and a quarter before it, which
/// blocks may need. If one comes that is farther ahead, what is awaited before it is given up.
const HELD_MAX: u64 = 16_384;
/// A sender gives up at most so many symbols beyond those that have come, in an outage at whatever rate: their lowest 32 bits
/// tell which they are.
const FLOOR_AHEAD_MAX: u64 = 1 << 28;
/// Symbols that are kept before the first that is awaited: redundancy of a block with that one may need them.
const KEPT: u64 = 2 * BLOCK_MAX as u64;
/// Bytes of symbols that are held.
const HELD_BYTES_MAX: usize = 24 << 20;
/// Bytes of memory of symbols and of messages that is kept to be used again.
const SYMBOL_POOL_BYTES: usize = 1 << 20;
const MESSAGE_POOL_BYTES: usize = 1 << 20;
/// Blocks whose redundancy is kept.
const BLOCKS_MAX: usize = 64;
/// Messages that wait for the application, and their bytes; the oldest give way.
const READY_MAX: usize = 4096;
const READY_BYTES_MAX: usize = 32 << 20;

/// What is missing is awaited until so long before a message behind it expires, so that the application has time to
/// take that.
pub(crate) const EARLY_US: u64 = 2000;

/// A symbol or redundancy that no sender would have sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SymbolError {
    #[error("symbol {0} is no part of a message")]
    Symbol(u64),
    #[error("a symbol of {0} bytes, and at most {SYMBOL_MAX} are allowed")]
    Long(usize),
    #[error("redundancy for a window of {0} symbols: from 1 to {WINDOW_MAX}")]
    Window(u8),
    #[error(
        "redundancy for {data} symbols with {redundancy} coded packets, and at most {BLOCK_MAX} of each are allowed"
    )]
    Block { data: u8, redundancy: u8 },
}

#[derive(Debug, Default)]
struct Slot {
    /// One more than the symbol's number; 0 for none.
    holds: u64,
    content: Vec<u8>,
    expires_us: u64,
}

/// The redundancy of a block.
#[derive(Debug)]
struct Block {
    first: u64,
    data: u8,
    redundancy: u8,
    coded: Vec<(u8, Vec<u8>)>,
}

/// A message in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its number; numbers that are skipped were lost.
    pub number: u64,
    pub bytes: Vec<u8>,
    /// When it expires, by the sender's clock.
    pub expires_us: u64,
}

/// What became of what was sent, as far as the receiver knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceivedCounts {
    /// Messages delivered.
    pub delivered: u64,
    /// Messages that were not: lost on their way, or late.
    pub lost: u64,
    /// Of those, messages that were here when they expired.
    pub late: u64,
    /// Symbols restored from redundancy.
    pub restored: u64,
    /// Symbols that came again, or too late.
    pub repeated: u64,
    /// Gaps that were not awaited, as what is missing may be lost.
    pub passed_over: u64,
}

/// One direction of a connection, at its receiver.
#[derive(Debug)]
pub struct Receiver {
    slots: Vec<Slot>,
    /// The first symbol that is awaited.
    next: u64,
    /// One more than the highest symbol that has come.
    end: u64,
    floor: u64,
    /// Of the message that begins at `next`: the symbol after those that are here, and their bytes.
    progress: Option<(u64, usize)>,
    /// Nothing behind a gap at `next` expires before that. It may be of a symbol that is passed.
    behind_us: Option<u64>,
    /// Gaps before this symbol are not awaited: it would expire.
    hopeless: u64,
    /// Bytes of the symbols that are held, and the first of them.
    held_bytes: usize,
    held_from: u64,
    blocks: VecDeque<Block>,
    codec: Codec,
    window: Decoder,
    ready: VecDeque<Message>,
    ready_bytes: usize,
    symbols: Pool,
    messages: Pool,
    /// Empty, but for their memory.
    spare_coded: Vec<Vec<(u8, Vec<u8>)>>,
    restored: Vec<(u64, Vec<u8>)>,
    /// One more than the number of the last message that was passed.
    passed: u64,
    tolerance: Tolerance,
    /// Messages that have been here as a whole, and in time.
    completed: u64,
    per_message: PerMessage,
    counts: ReceivedCounts,
}

fn slot(slots: &[Slot], number: u64) -> Option<&Slot> {
    slots.get(Receiver::place(number)).filter(|slot| slot.holds == number + 1)
}

enum Step {
    /// The next symbol to look at.
    To(u64),
    Wait,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            next: 0,
            end: 0,
            floor: 0,
            progress: None,
            behind_us: None,
            hopeless: 0,
            held_bytes: 0,
            held_from: 0,
            blocks: VecDeque::new(),
            codec: Codec::default(),
            window: Decoder::default(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            symbols: Pool::new(SYMBOL_POOL_BYTES),
            messages: Pool::new(MESSAGE_POOL_BYTES),
            spare_coded: Vec::new(),
            restored: Vec::new(),
            passed: 0,
            tolerance: Tolerance::default(),
            completed: 0,
            per_message: PerMessage::default(),
            counts: ReceivedCounts::default(),
        }
    }
}

impl Receiver {
    #[must_use]
    pub fn counts(&self) -> ReceivedCounts {
        self.counts
    }

    /// Messages that wait for the application.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Messages that the application could take so far.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// What a message takes, with all that comes for it.
    pub(crate) fn per_message(&self) -> &PerMessage {
        &self.per_message
    }

    /// Whether a message waits for the application that has not expired. `peer_now_us`: the latest that the sender's clock may show.
    #[must_use]
    pub fn has_message(&self, peer_now_us: u64) -> bool {
        self.ready.iter().any(|message| message.expires_us >= peer_now_us)
    }

    /// Whether anything is here that may be delivered.
    #[must_use]
    pub fn has_symbols(&self) -> bool {
        !self.ready.is_empty() || self.next < self.end
    }

    /// Nothing more comes: what is here waits for nothing.
    pub fn end(&mut self) {
        self.floor = self.floor.max(self.end);
    }

    /// The application takes nothing more.
    pub fn drop_messages(&mut self) {
        while !self.ready.is_empty() {
            self.drop_ready();
        }
    }

    /// The first symbol that is awaited, for extending the lowest bits of others.
    #[must_use]
    pub fn next_symbol(&self) -> u64 {
        self.next
    }

    fn place(number: u64) -> usize {
        usize::try_from(number % HELD_MAX).unwrap_or(0)
    }

    fn get(&self, number: u64) -> Option<&Slot> {
        slot(&self.slots, number)
    }

    /// A symbol has come. `peer_us`: about the sender's present time.
    ///
    /// # Errors
    /// No sender would have sent it. Nothing has changed.
    pub fn symbol(&mut self, number: u64, content: &[u8], peer_us: u64) -> Result<(), SymbolError> {
        self.per_message.packet(content.len() as u64);
        if number < self.next || self.get(number).is_some() {
            self.counts.repeated += 1;
            self.tolerance.late(number);
            return Ok(());
        }
        self.store(number, content, peer_us)?;
        let block =
            self.blocks.iter().position(|block| (block.first..block.first + u64::from(block.data)).contains(&number));
        if let Some(block) = block {
            self.restore(block, peer_us);
        }
        self.restore_by_window(peer_us);
        Ok(())
    }

    fn store(&mut self, number: u64, content: &[u8], peer_us: u64) -> Result<(), SymbolError> {
        let (description, part) = Description::read(content).ok_or(SymbolError::Symbol(number))?;
        if content.len() > SYMBOL_MAX {
            return Err(SymbolError::Long(content.len()));
        }
        self.make_room(number);
        if self.held_bytes + content.len() > HELD_BYTES_MAX {
            // As if it had been lost on its way.
            return Ok(());
        }
        let place = Self::place(number);
        if self.slots.len() <= place {
            let len = (place + 1).next_power_of_two().min(Self::place(HELD_MAX - 1) + 1);
            self.slots.resize_with(len, Slot::default);
        }
        let slot = &mut self.slots[place];
        // What may have been there before was let go of.
        slot.holds = number + 1;
        slot.content = self.symbols.copy(content);
        self.held_bytes += content.len();
        slot.expires_us = extend(description.expires_us, peer_us);
        self.window.came(number, content, &mut self.symbols);
        if number > self.next {
            self.behind_us = Some(self.behind_us.map_or(slot.expires_us, |behind_us| behind_us.min(slot.expires_us)));
        }
        self.per_message.part(part.len() as u64, description.len.into());
        self.end = self.end.max(number + 1);
        Ok(())
    }

    /// Nothing that is so far before a symbol is awaited any more.
    fn make_room(&mut self, number: u64) {
        let least = (number + 1).saturating_sub(HELD_MAX / 4 * 3);
        if least > self.next {
            // What is complete before it is not lost: the slots that are needed for others are those before `next`.
            self.floor = self.floor.max(least);
            self.advance(0);
            self.go_to(self.next.max(least));
        }
    }

    fn go_to(&mut self, next: u64) {
        self.next = next;
        self.progress = None;
        let until = next.saturating_sub(KEPT);
        // Each place once at most.
        self.held_from = self.held_from.max(until.saturating_sub(HELD_MAX));
        while self.held_from < until {
            let number = self.held_from;
            self.held_from += 1;
            if let Some(slot) = self.slots.get_mut(Self::place(number)).filter(|slot| slot.holds == number + 1) {
                slot.holds = 0;
                self.held_bytes -= slot.content.len();
                self.symbols.give(std::mem::take(&mut slot.content));
            }
        }
    }

    /// Redundancy has come. `peer_us`: about the sender's present time.
    ///
    /// # Errors
    /// No sender would have sent it. Nothing has changed.
    pub fn redundancy(
        &mut self,
        first: u64,
        data: u8,
        redundancy: u8,
        index: u8,
        coded: &[u8],
        peer_us: u64,
    ) -> Result<(), SymbolError> {
        self.per_message.packet(coded.len() as u64);
        let is_count = |count: u8| (1..=BLOCK_MAX).contains(&count.into());
        if !is_count(data) || !is_count(redundancy) || index >= redundancy {
            return Err(SymbolError::Block { data, redundancy });
        }
        if first.saturating_add(data.into()) <= self.next {
            // Nothing of it is awaited any more.
            return Ok(());
        }
        self.make_room(first);
        self.tolerance.coded(first + 3 * BLOCK_MAX as u64);
        let known = self.blocks.iter().position(|block| block.first == first);
        let at = known.unwrap_or_else(|| {
            if self.blocks.len() >= BLOCKS_MAX {
                self.forget_block(0);
            }
            let coded = self.spare_coded.pop().unwrap_or_default();
            self.blocks.push_back(Block { first, data, redundancy, coded });
            self.blocks.len() - 1
        });
        let block = &mut self.blocks[at];
        if (block.data, block.redundancy) != (data, redundancy) {
            return Err(SymbolError::Block { data, redundancy });
        }
        if block.coded.iter().all(|(known, _)| *known != index) {
            block.coded.push((index, self.symbols.copy(coded)));
        }
        self.restore(at, peer_us);
        Ok(())
    }

    /// Redundancy of a window has come. `peer_us`: about the sender's present time.
    ///
    /// # Errors
    /// No sender would have sent it. Nothing has changed.
    pub fn window(&mut self, first: u64, data: u8, seed: u8, coded: &[u8], peer_us: u64) -> Result<(), SymbolError> {
        self.per_message.packet(coded.len() as u64);
        if !(1..=WINDOW_MAX).contains(&data.into()) {
            return Err(SymbolError::Window(data));
        }
        let end = first.saturating_add(data.into());
        if end <= self.next {
            // Nothing of it is awaited any more.
            return Ok(());
        }
        self.make_room(end - 1);
        self.tolerance.coded(first + 3 * BLOCK_MAX as u64);
        let slots = &self.slots;
        let here = |number| slot(slots, number).map(|slot| &slot.content[..]);
        self.window.coded((first, data, seed), coded, here, &mut self.symbols);
        self.restore_by_window(peer_us);
        Ok(())
    }

    fn restore_by_window(&mut self, peer_us: u64) {
        while let Some((number, symbol)) = self.window.restored(&mut self.symbols) {
            let is_new = number >= self.next && self.get(number).is_none();
            if is_new && self.store(number, &symbol, peer_us).is_ok() {
                self.counts.restored += 1;
            }
            self.symbols.give(symbol);
        }
    }

    /// Restores what is missing of a block, if enough of it is here.
    fn restore(&mut self, at: usize, peer_us: u64) {
        let block = &self.blocks[at];
        let numbers = block.first..block.first + u64::from(block.data);
        let missing = numbers.clone().filter(|number| self.get(*number).is_none());
        let (missing, awaited) =
            missing.fold((0, false), |(count, any), number| (count + 1, any || number >= self.next));
        if missing > 0 && awaited && block.coded.len() < missing {
            return;
        }
        if missing > 0 && awaited {
            let mut codec = std::mem::take(&mut self.codec);
            let mut restored = std::mem::take(&mut self.restored);
            let (block, pool) = (&self.blocks[at], &mut self.symbols);
            let (slots, first) = (&self.slots, block.first);
            let symbols = (0..u64::from(block.data)).map(|at| slot(slots, first + at).map(|slot| &slot.content[..]));
            let coded = block.coded.iter().map(|(index, coded)| (usize::from(*index), &coded[..]));
            // If the peer coded something else nothing is restored.
            let _ = codec.decode(symbols, block.data.into(), block.redundancy.into(), coded, |index, symbol| {
                restored.push((first + index as u64, pool.copy(symbol)));
            });
            for (number, symbol) in restored.drain(..) {
                if number >= self.next && self.store(number, &symbol, peer_us).is_ok() {
                    self.counts.restored += 1;
                }
                self.symbols.give(symbol);
            }
            (self.codec, self.restored) = (codec, restored);
        }
        self.forget_block(at);
    }

    fn forget_block(&mut self, at: usize) {
        let Some(Block { mut coded, .. }) = self.blocks.remove(at) else { return };
        coded.drain(..).for_each(|(_, content)| self.symbols.give(content));
        self.spare_coded.push(coded);
    }

    /// The share of messages that the sender's application lets be lost, and the time of a round trip.
    pub fn set_tolerance(&mut self, share: f64, round_trip_us: u64) {
        self.tolerance.set(share, round_trip_us);
    }

    /// Symbols below this one do not come any more. False: no sender gets so far ahead, and nothing has changed.
    pub fn set_floor(&mut self, floor: u64) -> bool {
        let is_near = floor <= self.end.max(self.next).saturating_add(FLOOR_AHEAD_MAX);
        if is_near {
            self.floor = self.floor.max(floor);
        }
        is_near
    }

    /// What comes now comes at this time by the sender's clock, at the latest; 0 if that is not known.
    pub fn set_now(&mut self, peer_now_us: u64) {
        self.tolerance.set_now(peer_now_us);
    }

    /// What is here is older by so much than the sender's clock says: it expires so much sooner.
    pub fn age(&mut self, us: u64) {
        self.tolerance.forget_gap();
        let slots = self.slots.iter_mut().filter(|slot| slot.holds > 0).map(|slot| &mut slot.expires_us);
        let ready = self.ready.iter_mut().map(|message| &mut message.expires_us);
        let all = slots.chain(ready).chain(&mut self.behind_us);
        all.for_each(|expires_us| *expires_us = expires_us.saturating_sub(us));
    }

    /// Goes on with what is here. `peer_now_us`: the latest that the sender's clock may show now.
    pub fn advance(&mut self, peer_now_us: u64) {
        while let Step::To(next) = self.step(peer_now_us) {
            self.go_to(next);
        }
        let next = self.next;
        self.window.is_awaited_from(next, &mut self.symbols);
        while let Some(block) = self.blocks.front()
            && block.first + u64::from(block.data) <= next
        {
            self.forget_block(0);
        }
        while let Some(message) = self.ready.front()
            && message.expires_us < peer_now_us
        {
            self.drop_ready();
        }
    }

    fn drop_ready(&mut self) {
        if let Some(message) = self.ready.pop_front() {
            self.ready_bytes -= message.bytes.len();
            self.counts.lost += 1;
            self.counts.late += 1;
            self.messages.give(message.bytes);
        }
    }

    /// A symbol behind a gap that begins here would expire if the gap was awaited any longer.
    fn would_expire(&mut self, from: u64, peer_now_us: u64) -> bool {
        let until_us = peer_now_us + EARLY_US;
        if self.behind_us.is_some_and(|behind_us| behind_us <= until_us) {
            // All gaps before all of these at once: one look for all.
            let (mut behind_us, mut hopeless) = (None, 0);
            for number in from + 1..self.end {
                match self.get(number).map(|slot| slot.expires_us) {
                    Some(us) if us <= until_us => hopeless = number,
                    Some(us) => behind_us = Some(behind_us.map_or(us, |before_us: u64| before_us.min(us))),
                    None => {}
                }
            }
            (self.behind_us, self.hopeless) = (behind_us, self.hopeless.max(hopeless));
        }
        from < self.hopeless
    }

    /// The first symbol behind this one, and before `until`, that is here.
    fn present_after(&self, number: u64, until: u64) -> Option<u64> {
        (number + 1..until).find(|number| self.get(*number).is_some())
    }

    /// If a gap is not awaited any longer, as what is missing may be lost: the symbol behind it.
    fn passes(&mut self, from: u64, peer_now_us: u64) -> Option<u64> {
        let to = self.present_after(from, self.end.min(from + 2 + tolerance::GAP_MAX))?;
        let passes = self.tolerance.passes(from, to, self.end, peer_now_us);
        self.counts.passed_over += u64::from(passes);
        passes.then_some(to)
    }

    /// What to do with the first symbol that is awaited.
    fn step(&mut self, peer_now_us: u64) -> Step {
        let next = self.next;
        let Some(slot) = self.get(next) else {
            let given_up = self.floor.max(if self.would_expire(next, peer_now_us) { self.hopeless } else { 0 });
            if next < given_up {
                return Step::To(self.present_after(next, self.end.min(given_up)).unwrap_or(given_up));
            }
            return self.passes(next, peer_now_us).map_or(Step::Wait, Step::To);
        };
        let Some((begin, _)) = Description::read(&slot.content) else { return Step::To(next + 1) };
        let expires_us = slot.expires_us;
        if begin.offset != 0 {
            // Its beginning was given up.
            return Step::To(next + 1);
        }
        let (mut at, mut bytes) = self.progress.unwrap_or((next, 0));
        loop {
            let part = self.get(at).and_then(|slot| Description::read(&slot.content));
            let Some((description, part)) = part else {
                self.progress = Some((at, bytes));
                let is_over = at < self.floor || expires_us < peer_now_us;
                // A shorter one behind it would expire: rather that than both.
                let would_expire = self.would_expire(at, peer_now_us);
                let at = at.max(next + 1);
                if is_over || would_expire {
                    return Step::To(at);
                }
                return self.passes(at, peer_now_us).map_or(Step::Wait, Step::To);
            };
            let is_same = (description.message, description.len) == (begin.message, begin.len);
            if !is_same || description.offset as usize != bytes {
                // The rest of the message was dropped.
                return Step::To(at);
            }
            bytes += part.len();
            at += 1;
            if bytes == begin.len as usize {
                break;
            }
        }
        self.complete(next..at, begin, expires_us, peer_now_us);
        Step::To(at)
    }

    fn complete(&mut self, symbols: std::ops::Range<u64>, begin: Description, expires_us: u64, peer_now_us: u64) {
        let number = extend(begin.message, self.passed);
        if number < self.passed {
            // A sender numbers its messages upwards.
            return;
        }
        let lost = number - self.passed;
        self.counts.lost += lost;
        self.passed = number + 1;
        let is_late = expires_us < peer_now_us;
        self.tolerance.count(lost + 1, lost + u64::from(is_late));
        if is_late {
            self.counts.lost += 1;
            self.counts.late += 1;
            return;
        }
        let mut bytes = self.messages.take();
        for symbol in symbols {
            if let Some((_, part)) = self.get(symbol).and_then(|slot| Description::read(&slot.content)) {
                bytes.extend_from_slice(part);
            }
        }
        while self.ready.len() >= READY_MAX || self.ready_bytes + bytes.len() > READY_BYTES_MAX {
            if self.ready.is_empty() {
                break;
            }
            self.drop_ready();
        }
        self.ready_bytes += bytes.len();
        self.completed += 1;
        self.ready.push_back(Message { number, bytes, expires_us });
    }

    /// The next message, unless it has expired. `peer_now_us`: the latest that the sender's clock may show now.
    pub fn poll(&mut self, peer_now_us: u64) -> Option<Message> {
        self.advance(peer_now_us);
        let message = self.ready.pop_front()?;
        self.ready_bytes -= message.bytes.len();
        self.counts.delivered += 1;
        Some(message)
    }

    /// A message's memory may be used again.
    pub fn recycle(&mut self, message: Message) {
        self.messages.give(message.bytes);
    }

    /// When to call [`Receiver::advance`] even if nothing comes, by the sender's clock.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        let awaited = self.progress.map_or(self.next, |(at, _)| at);
        let waits = self.end > awaited;
        let own = self.get(self.next).map(|slot| slot.expires_us + 1);
        let ready = self.ready.front().map(|message| message.expires_us + 1);
        let behind = self.behind_us.filter(|_| waits).map(|us| us.saturating_sub(EARLY_US));
        [behind, own, ready, self.tolerance.due_us(awaited)].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(message: u32, len: u32, offset: u32, part: usize) -> Vec<u8> {
        let description = Description { message, len, offset, expires_us: 2_000_000_000 };
        [&description.write()[..], &vec![0; part]].concat()
    }

    fn held(receiver: &Receiver) -> usize {
        receiver.slots.iter().map(|slot| slot.content.capacity() + size_of::<Slot>()).sum()
    }

    /// Each message is taken at once, and nothing is ever missing.
    #[test]
    fn connection_without_losses_holds_nothing() {
        let mut receiver = Receiver::default();
        for at in 0..20_000_u32 {
            receiver.symbol(at.into(), &symbol(at, 1300, 0, 1300), 1).unwrap();
            let message = receiver.poll(1).unwrap();
            receiver.recycle(message);
        }
        assert!(held(&receiver) < 1 << 20, "{} KiB are held for nothing", held(&receiver) >> 10);
    }

    #[test]
    fn memory_that_a_peer_can_take_has_a_bound() {
        let mut receiver = Receiver::default();
        let long = receiver.symbol(1, &symbol(1, 60_000, 0, 60_000), 1);
        assert_eq!(long, Err(SymbolError::Long(60_016)));
        for at in 1..40_000_u32 {
            receiver.symbol(at.into(), &symbol(at, 1400, 0, 1400), 1).unwrap();
            receiver.advance(0);
            assert!(receiver.held_bytes <= HELD_BYTES_MAX);
        }
        assert!(held(&receiver) <= HELD_BYTES_MAX + (1 << 20));
    }

    #[test]
    fn floor_after_an_outage_is_taken() {
        let mut receiver = Receiver::default();
        receiver.symbol(0, &symbol(0, 1, 0, 1), 1).unwrap();
        assert!(receiver.poll(1).is_some());
        assert!(!receiver.set_floor(1 << 30), "no sender gets so far ahead");
        assert!(receiver.set_floor(4_000_000));
        receiver.symbol(4_000_001, &symbol(4_000_001, 1, 0, 1), 1).unwrap();
        assert!(receiver.poll(1).is_none(), "the one before it may come yet");
        receiver.symbol(4_000_000, &symbol(4_000_000, 1, 0, 1), 1).unwrap();
        assert_eq!((receiver.poll(1).unwrap().number, receiver.poll(1).unwrap().number), (4_000_000, 4_000_001));
    }

    /// Each second one is missing: one look at all of them, and each is looked at once more.
    #[test]
    fn many_gaps_are_passed_in_one_go() {
        for is_floor in [true, false] {
            let (mut receiver, last) = (Receiver::default(), 12_280_u32);
            for at in (1..last).step_by(2) {
                receiver.symbol(at.into(), &symbol(at, 1, 0, 1), 1).unwrap();
                receiver.advance(0);
            }
            if is_floor {
                assert!(receiver.set_floor(last.into()));
                receiver.advance(0);
            } else {
                receiver.advance(2_000_000_000 - EARLY_US);
            }
            assert_eq!((receiver.waiting(), receiver.next_symbol()), (READY_MAX, u64::from(last)));
        }
    }

    /// The application is 60 messages behind; one in 60 is long.
    #[test]
    fn memory_of_long_messages_is_not_kept_for_short_ones() {
        let (mut receiver, mut next, mut message) = (Receiver::default(), 0_u64, 0_u32);
        for round in 0..600 {
            let len: u32 = if round % 60 == 0 { 1 << 20 } else { 1 };
            for offset in (0..len).step_by(1400) {
                let part = usize::try_from((len - offset).min(1400)).unwrap();
                receiver.symbol(next, &symbol(message, len, offset, part), 1).unwrap();
                next += 1;
                receiver.advance(1);
            }
            message += 1;
            if receiver.waiting() > 60 {
                let message = receiver.poll(1).unwrap();
                receiver.recycle(message);
            }
        }
        let ready: usize = receiver.ready.iter().map(|message| message.bytes.capacity()).sum();
        let holds: usize = receiver.ready.iter().map(|message| message.bytes.len()).sum();
        assert!(ready < 6 << 20, "{} KiB wait, in {} KiB", holds >> 10, ready >> 10);
    }
}
