// SPDX-License-Identifier: Apache-2.0
//! What one end has to send: messages that wait, symbols of which nothing is known yet, symbols that are sent
//! again, and redundancy.
//!
//! ```text
//!  push ──► messages ──► symbols ──► packets ──► came: done
//!                           ▲                      lost: again, if there is time, else given up
//!                           └─────── again ◄──────┘
//!  symbols of a block ──► redundancy ──► packets
//! ```
//!
//! A symbol that is done or given up moves the *floor*: symbols below it do not come any more, and the receiver
//! need not wait for them.

mod ahead;
mod repair;

use std::collections::VecDeque;

use ahead::Ahead;
use repair::{Block, Tolerated};

use crate::{
    block::Codec,
    per_message::PerMessage,
    plan::Plan,
    pool::Pool,
    receiver::EARLY_US,
    symbol::{DESCRIPTION_LEN, Description, MESSAGE_MAX},
};

/// Most symbols of which nothing is known yet; while there are more, no new one is sent.
pub const SYMBOLS_MAX: usize = 8192;
/// Most messages that wait to be sent, whatever the user asked for.
pub const MESSAGES_MAX: usize = 4096;

/// Messages over which their symbols are counted.
const WHOLE_MAX: u64 = 1024;

/// Symbols that may be taken for lost at once.
const GUESSES_MAX: u32 = 8;

/// So many coded packets fewer leave at most, after messages that were dropped.
const CODED_LEAST: f64 = -16.0;

/// Bytes of memory that is kept to be used again, of symbols and of messages each.
const POOL_BYTES: usize = 2 << 20;

/// Why a message is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("a message of {len} bytes, and at most {max} are allowed: cut it")]
    TooLong { len: usize, max: usize },
    #[error(
        "{0} messages wait to be sent already: wait until one has left, or send less often (`bottleneck_pace` says how often)"
    )]
    Full(usize),
    #[error("a deadline of {} s, and at most {} s are allowed: give a shorter one", seconds(*.given_ns), seconds(*.max_ns))]
    Deadline { given_ns: u64, max_ns: u64 },
    #[error("the message expired before it was sent: its deadline is in the past")]
    Expired,
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A message that waits, or is just being cut.
#[derive(Debug)]
struct Queued {
    message: u64,
    bytes: Vec<u8>,
    cut: usize,
    /// Symbols that were cut off so far.
    symbols: u64,
    expires_ns: u64,
    expires_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    /// Lost, and to be sent again.
    Again,
    /// Lost, and there is no time to send it again; redundancy may stand for it.
    Hoped,
    Done,
}

#[derive(Debug)]
struct Symbol {
    content: Vec<u8>,
    expires_ns: u64,
    state: State,
    /// Packets under way that carry it, and copies that are sent later.
    copies: u32,
    pending: u32,
    was_again: bool,
}

/// A symbol, or a copy of it, that is sent again at this time.
#[derive(Debug, Clone, Copy)]
struct Later {
    at_ns: u64,
    number: u64,
}

#[derive(Debug)]
struct Coded {
    first: u64,
    data: u8,
    of: Of,
    content: Vec<u8>,
    expires_ns: u64,
}

/// What a coded packet is of.
#[derive(Debug, Clone, Copy)]
enum Of {
    Block { redundancy: u8, index: u8 },
    Window { seed: u8 },
}

/// What to put into the next packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outgoing<'a> {
    Symbol { number: u64, content: &'a [u8] },
    Redundancy { first: u64, data: u8, redundancy: u8, index: u8, content: &'a [u8] },
    Window { first: u64, data: u8, seed: u8, content: &'a [u8] },
}

/// What became of messages and symbols so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SentCounts {
    /// Messages taken.
    pub messages: u64,
    /// Messages that were dropped before all of it was sent, as it could not arrive in time.
    pub dropped: u64,
    /// Symbols sent for the first time.
    pub symbols: u64,
    /// Symbols sent again.
    pub again: u64,
    /// Coded packets sent.
    pub redundancy: u64,
    /// Symbols given up.
    pub given_up: u64,
}

/// What is known of the way, for what can still arrive in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// How long before its expiry a packet has to leave, at least.
    pub least_ns: u64,
    /// The same with the usual queues.
    pub usual_ns: u64,
    /// Time between two packets.
    pub pace_ns: u64,
}

/// One direction of a connection, at its sender.
#[derive(Debug)]
pub struct Sender {
    /// Messages that may wait.
    queue_max: usize,
    queue: VecDeque<Queued>,
    symbols: VecDeque<Symbol>,
    /// Number of the first one in `symbols`.
    first: u64,
    again: VecDeque<u64>,
    later: VecDeque<Later>,
    /// Symbols below this one are not taken for lost any more unless that is heard.
    guessed: u64,
    /// Symbols that may be taken for lost.
    guesses_due: f64,
    /// Copies that are to be sent: a part of one is kept for the next symbol.
    copies_due: f64,
    /// The same of coded packets, for the next block.
    coded_due: f64,
    tolerated: Tolerated,
    coded: VecDeque<Coded>,
    /// First symbol of the block that is not closed.
    block_from: u64,
    blocks: VecDeque<Block>,
    ahead: Ahead,
    plan: Plan,
    codec: Codec,
    /// Of symbols and coded packets, and of messages.
    pool: Pool,
    messages_pool: Pool,
    messages: u64,
    /// The last messages of which all was sent, and their symbols: those of before count half.
    whole: [u64; 2],
    per_message: PerMessage,
    counts: SentCounts,
}

impl Sender {
    /// `queue_max`: messages that may wait to be sent.
    #[must_use]
    pub fn new(queue_max: usize) -> Self {
        Self {
            queue_max: queue_max.clamp(1, MESSAGES_MAX),
            queue: VecDeque::new(),
            symbols: VecDeque::new(),
            first: 0,
            again: VecDeque::new(),
            later: VecDeque::new(),
            guessed: 0,
            guesses_due: 0.0,
            copies_due: 0.0,
            coded_due: 0.0,
            tolerated: Tolerated::default(),
            coded: VecDeque::new(),
            block_from: 0,
            blocks: VecDeque::new(),
            ahead: Ahead::default(),
            plan: Plan::NONE,
            codec: Codec::default(),
            pool: Pool::new(POOL_BYTES),
            messages_pool: Pool::new(POOL_BYTES),
            messages: 0,
            whole: [0; 2],
            per_message: PerMessage::default(),
            counts: SentCounts::default(),
        }
    }

    /// Takes a message. `expires_us`: the same moment as `expires_ns`, as it is told to the receiver.
    ///
    /// # Errors
    /// [`SendError`]; nothing has changed.
    pub fn push(&mut self, now_ns: u64, bytes: &[u8], expires_ns: u64, expires_us: u64) -> Result<u64, SendError> {
        if bytes.len() > MESSAGE_MAX {
            return Err(SendError::TooLong { len: bytes.len(), max: MESSAGE_MAX });
        }
        if expires_ns <= now_ns {
            return Err(SendError::Expired);
        }
        if !self.has_room() {
            return Err(SendError::Full(self.queue.len()));
        }
        let copy = self.messages_pool.copy(bytes);
        let message = self.messages;
        self.messages += 1;
        self.counts.messages += 1;
        self.tolerated.sent();
        self.queue.push_back(Queued { message, bytes: copy, cut: 0, symbols: 0, expires_ns, expires_us });
        Ok(message)
    }

    /// Whether a message would be taken.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.queue_max
    }

    /// Messages that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    #[must_use]
    pub fn counts(&self) -> SentCounts {
        self.counts
    }

    /// The share of a time between two messages that is between two symbols, as a rule.
    #[must_use]
    pub fn of_a_symbol_ns(&self, message_ns: u64) -> u64 {
        let [messages, symbols] = self.whole;
        let ns = u128::from(message_ns) * u128::from(messages.max(1)) / u128::from(symbols.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// What a message takes, with all that is sent for it.
    pub(crate) fn per_message(&self) -> &PerMessage {
        &self.per_message
    }

    /// How the next block is protected.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Symbols below this one do not come any more.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.first
    }

    /// Of the next symbol.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.first + self.symbols.len() as u64
    }

    /// Whether everything that was taken has arrived, or was given up.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.symbols.is_empty() && self.coded.is_empty()
    }

    fn symbol(&mut self, number: u64) -> Option<&mut Symbol> {
        self.symbols.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Whether there is anything to send now.
    #[must_use]
    pub fn has_something(&self) -> bool {
        let is_new = !self.queue.is_empty() && self.symbols.len() < SYMBOLS_MAX;
        !self.again.is_empty() || !self.coded.is_empty() || is_new
    }

    /// Drops what cannot arrive in time, and makes redundancy that is due. Returns how many bytes [`Sender::next`] will
    /// give.
    pub fn prepare(&mut self, now_ns: u64, way: &Way, symbol_max: usize) -> Option<usize> {
        self.take_guesses(now_ns, way);
        self.take_later(now_ns, way);
        self.ahead.now_ns = now_ns;
        self.close_block(now_ns, way);
        // Last: what is made above may be of symbols that have become too long.
        self.drop_late(now_ns, way, symbol_max);
        if let Some(number) = self.again.front() {
            let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
            return self.symbols.get(at).map(|symbol| symbol.content.len());
        }
        if let Some(coded) = self.coded.front() {
            return Some(coded.content.len());
        }
        let queued = self.queue.front().filter(|_| self.symbols.len() < SYMBOLS_MAX)?;
        Some((queued.bytes.len() - queued.cut + DESCRIPTION_LEN).min(symbol_max))
    }

    /// After [`Sender::prepare`]: what the next packet carries, with a symbol of at most `symbol_max` bytes; none if there
    /// is nothing. To be followed by [`Sender::left`].
    pub fn next(&mut self, symbol_max: usize) -> Option<Outgoing<'_>> {
        if let Some(number) = self.again.front().copied() {
            let content = &self.symbols[usize::try_from(number - self.first).ok()?].content;
            return Some(Outgoing::Symbol { number, content });
        }
        if !self.coded.is_empty() {
            let Coded { first, data, of, ref content, .. } = self.coded[0];
            return Some(match of {
                Of::Block { redundancy, index } => Outgoing::Redundancy { first, data, redundancy, index, content },
                Of::Window { seed } => Outgoing::Window { first, data, seed, content },
            });
        }
        if self.symbols.len() >= SYMBOLS_MAX {
            return None;
        }
        let number = self.next_number();
        let mut content = self.pool.take();
        let Some(queued) = self.queue.front_mut() else {
            self.pool.give(content);
            return None;
        };
        let (expires_ns, bytes) = (queued.expires_ns, &queued.bytes);
        let end = bytes.len().min(queued.cut + symbol_max.saturating_sub(DESCRIPTION_LEN).max(1));
        #[allow(clippy::cast_possible_truncation, reason = "at most MESSAGE_MAX, and the lowest bits of the others")]
        let description = Description {
            message: queued.message as u32,
            len: bytes.len() as u32,
            offset: queued.cut as u32,
            expires_us: queued.expires_us as u32,
        };
        content.extend_from_slice(&description.write());
        content.extend_from_slice(&bytes[queued.cut..end]);
        queued.cut = end;
        queued.symbols += 1;
        if end == bytes.len()
            && let Some(queued) = self.queue.pop_front()
        {
            if self.whole[0] >= WHOLE_MAX {
                self.whole = self.whole.map(|count| count / 2);
            }
            self.whole = [self.whole[0] + 1, self.whole[1] + queued.symbols];
            self.messages_pool.give(queued.bytes);
        }
        self.symbols.push_back(Symbol {
            content,
            expires_ns,
            state: State::Done,
            copies: 0,
            pending: 0,
            was_again: false,
        });
        let content = &self.symbols.back()?.content;
        Some(Outgoing::Symbol { number, content })
    }

    /// What [`Sender::next`] gave is on its way, in a packet of so many bytes.
    pub fn left(&mut self, sent: Left, bytes: u64) {
        self.per_message.packet(bytes);
        match sent {
            Left::Symbol(number) => {
                let is_again = self.again.front() == Some(&number);
                if is_again {
                    self.again.pop_front();
                    self.counts.again += 1;
                } else {
                    self.counts.symbols += 1;
                    self.slide();
                    self.guesses_due = (self.guesses_due + self.plan.guesses).min(GUESSES_MAX.into());
                    if self.plan.redundancy == 0 && self.block_from == number {
                        self.block_from = number + 1;
                    }
                }
                let Some(symbol) = self.symbol(number) else { return };
                symbol.state = State::UnderWay;
                symbol.copies += 1;
                let part = Description::read(&symbol.content).filter(|_| !is_again);
                let part = part.map(|(description, part)| (part.len() as u64, description.len.into()));
                if let Some((part, len)) = part {
                    self.per_message.part(part, len);
                }
            }
            Left::Redundancy => {
                if let Some(coded) = self.coded.pop_front() {
                    self.counts.redundancy += 1;
                    self.pool.give(coded.content);
                }
            }
        }
    }

    /// Drops messages, and gives up symbols, that cannot arrive in time, are too long for a path that has become narrower, or that
    /// nobody awaits any more. What is at the front then may leave.
    fn drop_late(&mut self, now_ns: u64, way: &Way, symbol_max: usize) {
        let arrives_ns = now_ns + way.least_ns;
        while let Some(queued) = self.queue.front()
            && (arrives_ns > queued.expires_ns || self.gives_way(queued, now_ns + way.usual_ns, way, symbol_max))
        {
            if let Some(queued) = self.queue.pop_front() {
                self.messages_pool.give(queued.bytes);
            }
            self.counts.dropped += 1;
            // The path takes less than it seems: a message has the place of a coded packet.
            self.coded_due = (self.coded_due - 1.0).max(CODED_LEAST);
        }
        // What has expired needs no hope, and no answer.
        for symbol in self.symbols.iter_mut().filter(|symbol| symbol.state != State::Done) {
            if symbol.expires_ns >= now_ns || symbol.state == State::Again {
                break;
            }
            self.counts.given_up += 1;
            symbol.state = State::Done;
        }
        self.advance();
        while let Some(coded) = self.coded.front()
            && (arrives_ns > coded.expires_ns
                || coded.content.len() > crate::block::coded_len(symbol_max)
                || coded.first + u64::from(coded.data) <= self.first)
        {
            let (first, of) = (coded.first, coded.of);
            if let Some(coded) = self.coded.pop_front() {
                self.pool.give(coded.content);
            }
            // A block may begin where a window of before did.
            if matches!(of, Of::Block { .. }) {
                self.resolve_redundancy(now_ns, first, false, way);
            }
        }
        while let Some(number) = self.again.front().copied() {
            if let Some(symbol) = self.symbol(number).filter(|symbol| symbol.state != State::Done) {
                if arrives_ns <= symbol.expires_ns && symbol.content.len() <= symbol_max {
                    break;
                }
                if symbol.copies > 0 {
                    symbol.state = State::UnderWay;
                } else {
                    symbol.state = State::Done;
                    self.counts.given_up += 1;
                }
            }
            self.again.pop_front();
        }
        self.advance();
    }

    /// A message of several packets, of which the last would leave too late, makes way for the one behind it before its first one
    /// leaves: else each would be sent in part, and none would arrive. The last one is tried, as the path may be faster.
    fn gives_way(&self, queued: &Queued, arrives_ns: u64, way: &Way, symbol_max: usize) -> bool {
        let part = symbol_max.saturating_sub(DESCRIPTION_LEN).max(1);
        let before = self.again.len() + self.coded.len() + queued.bytes.len().saturating_sub(1) / part;
        let last_ns = arrives_ns.saturating_add((before as u64).saturating_mul(way.pace_ns));
        queued.cut == 0 && queued.bytes.len() > part && self.queue.len() > 1 && last_ns > queued.expires_ns
    }

    /// Symbols at the front that are done are forgotten.
    fn advance(&mut self) {
        self.restart_block();
        while let Some(symbol) = self.symbols.front()
            // The open block needs its symbols.
            && (self.first < self.block_from || self.plan.redundancy == 0)
            && symbol.state == State::Done
        {
            if let Some(symbol) = self.symbols.pop_front() {
                self.pool.give(symbol.content);
            }
            self.first += 1;
            self.block_from = self.block_from.max(self.first);
        }
    }

    /// An open block of which all has come needs no redundancy: the next symbol begins another one.
    fn restart_block(&mut self) {
        let next = self.next_number();
        if self.range(self.block_from, next).all(|symbol| symbol.state == State::Done) {
            self.block_from = next;
        }
    }

    /// When there is something to do even if nothing comes: a copy, the redundancy of the open block, or what is hoped for has expired.
    #[must_use]
    pub fn due_ns(&self, way: &Way) -> Option<u64> {
        let later_ns = self.later.front().map(|later| later.at_ns);
        [later_ns, self.guess_due_ns(way), self.block_due_ns(way), self.hope_ends_ns()].into_iter().flatten().min()
    }

    /// The first symbol of which something is awaited is only hoped for, until then. Of others something comes, or shows that they are lost.
    fn hope_ends_ns(&self) -> Option<u64> {
        let first = self.symbols.iter().find(|symbol| symbol.state != State::Done)?;
        (first.state == State::Hoped).then_some(first.expires_ns.saturating_add(1))
    }

    /// When the first of what waits cannot arrive any more, or has expired: [`Sender::prepare`] drops it then.
    #[must_use]
    pub fn late_ns(&self, way: &Way) -> Option<u64> {
        let leaves = |expires_ns: u64| expires_ns.saturating_add(1).saturating_sub(way.least_ns);
        let queued = self.queue.front().map(|queued| leaves(queued.expires_ns));
        let coded = self.coded.front().map(|coded| leaves(coded.expires_ns));
        let at = |number: &u64| usize::try_from(number.checked_sub(self.first)?).ok();
        let again = self.again.front().and_then(at).and_then(|at| self.symbols.get(at));
        let again = again.map(|symbol| leaves(symbol.expires_ns));
        let is_awaited = |symbol: &&Symbol| matches!(symbol.state, State::UnderWay | State::Hoped);
        let awaited = self.symbols.front().filter(is_awaited).map(|symbol| symbol.expires_ns.saturating_add(1));
        [queued, coded, again, awaited].into_iter().flatten().min()
    }

    /// When the open block is closed: at once if it is complete, and else so that its redundancy comes in time even if no more
    /// symbols come.
    fn block_due_ns(&self, way: &Way) -> Option<u64> {
        if self.plan.window > 0 {
            return self.window_due_ns();
        }
        let oldest = self.symbols.get(usize::try_from(self.block_from.checked_sub(self.first)?).ok()?)?;
        if self.next_number() - self.block_from >= self.plan.data as u64 {
            return (self.plan.redundancy > 0).then_some(0);
        }
        let needs_ns = way.usual_ns + (self.plan.redundancy as u64 + 1) * way.pace_ns + EARLY_US * 1000;
        (self.plan.redundancy > 0).then_some(oldest.expires_ns.saturating_sub(needs_ns))
    }

    /// Makes the redundancy of the open block if it is complete, or due.
    fn close_block(&mut self, now_ns: u64, way: &Way) {
        let open = usize::try_from(self.next_number() - self.block_from).unwrap_or(usize::MAX);
        let is_due = self.block_due_ns(way).is_some_and(|due_ns| now_ns >= due_ns);
        if self.plan.redundancy == 0 {
            self.without_redundancy(now_ns, way);
            return;
        }
        if self.plan.window > 0 {
            self.code_window(now_ns);
            return;
        }
        if open == 0 || open < self.plan.data && !is_due {
            return;
        }
        let data = open.min(crate::block::BLOCK_MAX);
        let first = self.block_from;
        let from = usize::try_from(first - self.first).unwrap_or(0);
        let expires_ns = self.symbols.range(from..from + data).map(|symbol| symbol.expires_ns).max().unwrap_or(0);
        let (coded, pool) = (&mut self.coded, &mut self.pool);
        // A block that is shorter, as it is due, has its share; several short ones have one coded packet together.
        self.coded_due += self.plan.redundancy as f64 * data as f64 / self.plan.data.max(data) as f64 + f64::EPSILON;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some tens")]
        let redundancy = (self.coded_due as usize).min(crate::block::BLOCK_MAX);
        self.coded_due = (self.coded_due - redundancy as f64).min(1.0);
        if redundancy == 0 {
            self.without_redundancy(now_ns, way);
            return;
        }
        let symbols = self.symbols.range(from..from + data).map(|symbol| &symbol.content[..]);
        let made = self.codec.encode(symbols, redundancy, |index, bytes| {
            let content = pool.copy(bytes);
            #[allow(clippy::cast_possible_truncation, reason = "at most BLOCK_MAX")]
            let (data, redundancy, index) = (data as u8, redundancy as u8, index as u8);
            coded.push_back(Coded { first, data, of: Of::Block { redundancy, index }, content, expires_ns });
        });
        let end = first + data as u64;
        self.block_from = end;
        if made.is_ok() {
            self.blocks.push_back(Block { first, end, outstanding: redundancy, came: 0 });
        }
        self.advance();
    }
}

/// What has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Symbol(u64),
    Redundancy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_what_is_under_way() {
        const LEN: usize = 256 * 1024;
        // A round trip of so many packets.
        const UNDER_WAY: usize = 200;
        let way = Way { least_ns: 0, usual_ns: 0, pace_ns: 0 };
        let (mut sender, mut now_ns, mut numbers) = (Sender::new(1), 1, VecDeque::new());
        for _ in 0..200 {
            now_ns += 1_000_000;
            sender.push(now_ns, &vec![0; LEN], u64::MAX, 0).unwrap();
            while sender.prepare(now_ns, &way, 1160).is_some() {
                let Some(Outgoing::Symbol { number, .. }) = sender.next(1160) else { break };
                sender.left(Left::Symbol(number), 1200);
                numbers.push_back(number);
                if numbers.len() > UNDER_WAY
                    && let Some(number) = numbers.pop_front()
                {
                    sender.resolve_symbol(now_ns, number, true, &way);
                }
            }
            let most: usize = sender.symbols.iter().map(|symbol| symbol.content.capacity()).sum();
            assert!(most <= (UNDER_WAY + 1) * 2400, "{most} bytes");
        }
        numbers.into_iter().for_each(|number| sender.resolve_symbol(now_ns, number, true, &way));
        assert!(sender.is_idle());
    }

    #[test]
    fn packet_of_a_window_says_nothing_of_a_block_that_begins_there() {
        let way = Way { least_ns: 0, usual_ns: 0, pace_ns: 0 };
        let mut sender = Sender::new(9);
        let sends = |sender: &mut Sender, expires_ns| {
            sender.push(1, &[0; 100], expires_ns, 0).unwrap();
            sender.prepare(1, &way, 1400);
            let Some(Outgoing::Symbol { number, .. }) = sender.next(1400) else { panic!("a message waits") };
            sender.left(Left::Symbol(number), 200);
        };
        let block = Plan { data: 3, redundancy: 1, ..Plan::NONE };
        sender.set_plan(Plan { data: 2, window: 9, ..block });
        (0..2).for_each(|_| sends(&mut sender, 1_000_000_000));
        // One of the window is made, and waits.
        sender.prepare(1, &way, 1400);
        sender.set_plan(block);
        let coded = sender.coded.pop_front().unwrap();
        sends(&mut sender, 2_000_000_000);
        sender.prepare(1, &way, 1400);
        sender.coded.push_front(coded);
        assert_eq!((sender.coded.len(), sender.blocks.len()), (2, 1));
        sender.prepare(1_500_000_000, &way, 1400);
        assert_eq!((sender.coded.len(), sender.blocks.front().map(|block| block.outstanding)), (1, Some(1)));
    }

    #[test]
    fn symbols_of_a_wider_path_are_given_up() {
        let way = Way { least_ns: 0, usual_ns: 0, pace_ns: 0 };
        let mut sender = Sender::new(3);
        for len in [100, 100, 1300] {
            sender.push(1, &vec![0; len], u64::MAX, 0).unwrap();
            sender.prepare(1, &way, 1400);
            let Some(Outgoing::Symbol { number, .. }) = sender.next(1400) else { panic!("a message waits") };
            sender.left(Left::Symbol(number), 1200);
        }
        for (number, came) in [(1, false), (2, false), (1, true)] {
            sender.resolve_symbol(2, number, came, &way);
        }
        // The one before the long one has come after all.
        assert_eq!(sender.prepare(3, &way, 1160), None);
        assert!(sender.next(1160).is_none());
        assert_eq!(sender.counts().given_up, 1);
    }
}
