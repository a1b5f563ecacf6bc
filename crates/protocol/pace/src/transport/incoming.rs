// SPDX-License-Identifier: Apache-2.0
//! Opened packets of the other end.

use super::{Closed, Transport, clock_us, push_bounded, times::Answered};
use crate::{
    clock::{Stamps, Told},
    congestion::{FEEDBACK_LEAST_NS, FEEDBACK_MOST_NS},
    packet::{self, Arrival, Feedback, Frame, Malformed, SENT_LEN, extend, read_frame},
    receiver::SymbolError,
};

/// The other end has the keys, and sent what no end would send: the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    #[error("FEEDBACK for packet {largest}, and {sent} were sent")]
    NeverSent { largest: u64, sent: u64 },
    #[error("FEEDBACK that awaits symbol {awaited}, and {sent} were sent")]
    Awaits { awaited: u64, sent: u64 },
    #[error("FLOOR of {0}, which is farther than any sender gets ahead")]
    Floor(u32),
}

/// Packets that one FEEDBACK names at most, while there is room for it.
const NAMED_MAX: u32 = 32;
/// For this share of a round trip after a gap was noticed FEEDBACK waits as short as possible.
const REPEATED_SHARE: u64 = 2;
/// FEEDBACK names the packets of so many round trips at least, and of so much time: what is not known of those of before does not matter any
/// more. Else each run is named until there are 32 newer ones, which is most of FEEDBACK where packets are lost.
const NAMED_ROUNDS: u64 = 4;
const NAMED_LEAST_NS: u64 = 50_000_000;
/// The first packets are named one by one.
pub(super) const NAMED_SINGLY: u64 = 64;

/// A packet that has waited longer than this counts as one that comes now: its time may be wrong.
const WAITED_MAX_NS: u64 = 100_000_000;

/// What is known with FEEDBACK of its newest packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Came {
    pub(super) round_trip_us: Option<u64>,
    pub(super) one_way_us: Option<i64>,
    pub(super) came_us: u64,
    pub(super) marked: u32,
}

#[allow(clippy::cast_possible_wrap, reason = "a difference of two clocks")]
fn difference(of: u64, and: u64) -> i64 {
    of.wrapping_sub(and) as i64
}

impl Transport {
    /// A packet of the other end was opened. `plain`: when it was sent, and its frames.
    ///
    /// # Errors
    /// The other end is at fault: the connection ends, which is told to it.
    pub fn open(&mut self, now_ns: u64, number: u64, plain: &[u8], arrival: Arrival) -> Result<(), PeerError> {
        if self.closed.is_some() {
            return Ok(());
        }
        let now_ns = self.reads(now_ns);
        if !self.numbers.take(number) {
            self.repeated_packets += 1;
            return Ok(());
        }
        self.heard_ns = now_ns;
        let waited_ns = Some(arrival.waited_ns).filter(|waited_ns| *waited_ns <= WAITED_MAX_NS).unwrap_or(0);
        // Not before the packet before it, nor before a step of this clock.
        self.came_ns = now_ns.saturating_sub(waited_ns).max(self.came_ns).max(self.own.whole_since_ns).min(now_ns);
        let result = self.open_frames(now_ns, number, plain, arrival.is_marked);
        if let Err(why) = &result {
            self.close(&why.to_string());
            self.closed.get_or_insert(Closed::Peer(*why));
        }
        result
    }

    fn open_frames(&mut self, now_ns: u64, number: u64, plain: &[u8], is_marked: bool) -> Result<(), PeerError> {
        let (sent, mut frames) = plain.split_first_chunk::<SENT_LEN>().ok_or(Malformed::Short("sent"))?;
        let sent_us = u32::from_be_bytes(*sent);
        let sent_us = if self.peer_us == 0 { u64::from(sent_us) | 1 << 32 } else { extend(sent_us, self.peer_us) };
        let is_largest = self.numbers.largest() == Some(number);
        if is_largest {
            self.peer_us = sent_us;
            let told = self.trips.came(clock_us(self.came_ns), sent_us);
            self.clocks_told(now_ns, told);
        }
        self.receiver.set_now(self.latest_there_us(now_ns).unwrap_or(0));
        let mut is_to_be_named = false;
        while let Some(frame) = read_frame(&mut frames)? {
            let is_of_messages = matches!(frame, Frame::Data { .. } | Frame::Redundancy { .. } | Frame::Window { .. });
            is_to_be_named |= is_of_messages || frame == Frame::Padding;
            if is_of_messages {
                self.pings.wants();
            }
            self.frame(now_ns, sent_us, frame)?;
        }
        if is_largest {
            self.largest_came_us = clock_us(self.came_ns);
            self.note_way_here(now_ns, sent_us);
        }
        self.marked = self.marked.wrapping_add(is_marked.into());
        if is_to_be_named {
            self.note_named(now_ns, number);
            self.note_unnamed(now_ns, is_largest, is_marked);
        }
        // Without a clock nothing expires.
        self.receiver.advance(self.latest_there_us(now_ns).unwrap_or(0));
        self.note_arrivals(now_ns);
        self.ends_now(now_ns);
        Ok(())
    }

    /// How far back FEEDBACK reaches: also to one that came late.
    fn note_named(&mut self, now_ns: u64, number: u64) {
        // Without a queue of FEEDBACK, which would have more of it.
        let names_ns = NAMED_LEAST_NS.max(NAMED_ROUNDS * self.trips.shortest_us() * 1000);
        if now_ns >= self.named_since_ns.saturating_add(names_ns) {
            self.named_from = [self.named_from[1], self.numbers.largest().unwrap_or(0)];
            self.named_since_ns = now_ns;
        }
        self.named_from = self.named_from.map(|from| from.min(number));
    }

    fn note_unnamed(&mut self, now_ns: u64, is_largest: bool, is_marked: bool) {
        self.unnamed += 1;
        let is_gap = self.numbers.newest_run() < self.unnamed.into();
        let is_early = self.numbers.largest().is_some_and(|largest| largest < NAMED_SINGLY);
        let is_soon = is_early || is_gap || !is_largest || is_marked || self.unnamed >= NAMED_MAX;
        let round_trip_ns = self.trips.smoothed_us() * 1000;
        if is_gap {
            self.repeats_until_ns = now_ns + round_trip_ns / REPEATED_SHARE;
        }
        // FEEDBACK that named a gap may have been lost: what follows says the same, soon.
        let is_repeated = now_ns < self.repeats_until_ns;
        let most_ns = if is_repeated { FEEDBACK_LEAST_NS } else { FEEDBACK_MOST_NS };
        let wait_ns = (round_trip_ns / 8).clamp(FEEDBACK_LEAST_NS, most_ns);
        let due_ns = if is_soon { now_ns } else { now_ns + wait_ns };
        self.feedback_due_ns = Some(self.feedback_due_ns.map_or(due_ns, |before_ns| before_ns.min(due_ns)));
    }

    fn frame(&mut self, now_ns: u64, sent_us: u64, frame: Frame<'_>) -> Result<(), PeerError> {
        match frame {
            Frame::Data { symbol, content } => {
                let number = extend(symbol, self.receiver.next_symbol());
                self.receiver.symbol(number, content, self.peer_us)?;
            }
            Frame::Redundancy { first, data, redundancy, index, content } => {
                let first = extend(first, self.receiver.next_symbol());
                self.receiver.redundancy(first, data, redundancy, index, content, self.peer_us)?;
            }
            Frame::Window { first, data, seed, content } => {
                let first = extend(first, self.receiver.next_symbol());
                self.receiver.window(first, data, seed, content, self.peer_us)?;
            }
            Frame::Feedback(feedback) => self.feedback(now_ns, sent_us, &feedback)?,
            Frame::Paces(paces) => {
                self.peer_paces = paces;
                self.message_departs_soon(now_ns);
                let tolerated = f64::from(paces.tolerated_ppm) / 1e6;
                self.receiver.set_tolerance(tolerated, self.trips.smoothed_us());
            }
            Frame::Floor { symbol } => {
                let floor = extend(symbol, self.receiver.next_symbol());
                if !self.receiver.set_floor(floor) {
                    return Err(PeerError::Floor(symbol));
                }
            }
            Frame::Ping(echo) => self.answers(now_ns, echo),
            Frame::Pong { echo, came_us } => {
                if echo[0] & packet::AT_ONCE != 0 {
                    push_bounded(&mut self.answered, echo);
                }
                if let Some(Answered { left_ns, packet, is_newest }) = self.pings.answered(echo) {
                    // Also a packet without a symbol shows that the path is back, and takes small ones.
                    self.silences = 0;
                    self.mtu.heard(packet);
                    let t2_us = extend(came_us, self.peer_us);
                    let stamps =
                        Stamps { t1_us: clock_us(left_ns), t2_us, t3_us: sent_us, t4_us: self.came_after_us(left_ns) };
                    // One that was overtaken may have been held up by somebody for as long as they liked: neither the path nor a
                    // clock is what it says.
                    if is_newest {
                        self.exchanged(now_ns, &stamps);
                    }
                }
            }
            Frame::Close { reason } => self.ends(now_ns, reason),
            Frame::Padding => {}
        }
        Ok(())
    }

    /// When the packet came that answers one which left then.
    fn came_after_us(&self, left_ns: u64) -> u64 {
        clock_us(self.came_ns.max(left_ns))
    }

    /// Four times are known. None: this end's clock has stepped since the first one.
    fn exchanged(&mut self, now_ns: u64, stamps: &Stamps) -> Option<Told> {
        if stamps.t1_us < clock_us(self.own.whole_since_ns) {
            return None;
        }
        let told = self.trips.add(now_ns, stamps);
        self.clocks_told(now_ns, told);
        Some(told)
    }

    /// What a packet or an exchange says of steps. What waits here, to be sent or to be delivered, may be older than the clocks say.
    fn clocks_told(&mut self, now_ns: u64, told: Told) {
        if told.stepped {
            self.pings.start_again(now_ns);
        }
        if told.lost_time {
            self.sender.give_up_all();
        }
        if told.older_us > 0 {
            self.receiver.age(told.older_us);
        }
        if told.longer_us != 0 {
            self.longer = (now_ns, self.longer.1.wrapping_add(told.longer_us));
        }
    }

    fn feedback(&mut self, now_ns: u64, sent_us: u64, feedback: &Feedback) -> Result<(), PeerError> {
        let largest = extend(feedback.largest, self.next_number);
        if largest >= self.next_number {
            return Err(PeerError::NeverSent { largest, sent: self.next_number });
        }
        let (awaited, sent) = (extend(feedback.awaited, self.sender.next_number()), self.sender.next_number());
        if awaited > sent {
            return Err(PeerError::Awaits { awaited, sent });
        }
        let came_us = extend(feedback.received_us, self.peer_us);
        let mut below = largest + 1;
        let newest = packet::Run { gap: 0, len: feedback.newest };
        let runs = std::iter::once(newest).chain(feedback.runs.as_slice().iter().copied()).map_while(|run| {
            let last = below.checked_sub(u64::from(run.gap) + 1)?;
            let first = (last + 1).checked_sub(run.len.into())?;
            below = first;
            Some((first, last))
        });
        let (round_trip_ns, had_room) = (self.round_trip_ns(), self.has_room());
        self.mtu.heard(largest);
        let mut told = std::mem::take(&mut self.told);
        let news = self.flight.feedback(now_ns, runs, came_us, round_trip_ns, &mut |outcome| told.push(outcome));
        if news.came_bytes > 0 {
            self.silences = 0;
        }
        let mut came = Came {
            round_trip_us: None,
            one_way_us: None,
            came_us,
            marked: feedback.marked.wrapping_sub(self.peer_marked),
        };
        self.peer_marked = feedback.marked;
        if let Some(sent_ns) = news.largest_sent_ns {
            // It may have left as it was written: nobody knows whether a host has kept its time, and a clock that is believed to be
            // behind delivers late.
            let t1_us = clock_us(sent_ns.saturating_sub(self.ahead_ns));
            let stamps = Stamps { t1_us, t2_us: came_us, t3_us: sent_us, t4_us: self.came_after_us(sent_ns) };
            let told = self.exchanged(now_ns, &stamps);
            let t1_us = clock_us(sent_ns);
            let round_trip_us = Stamps { t1_us, ..stamps }.round_trip_us();
            came.round_trip_us = told.map(|_| round_trip_us);
            if told.is_some() {
                self.late.note(now_ns.saturating_sub(sent_ns).saturating_sub(round_trip_us * 1000));
            }
            // With the packet that showed a step a time of before may have come.
            let (longer_ns, longer_us) = self.longer;
            let one_way_us = difference(came_us, t1_us).wrapping_sub(longer_us);
            let is_whole = longer_ns < now_ns && told.is_some_and(|told| told.counts);
            came.one_way_us = is_whole.then_some(one_way_us);
            self.note_one_way(now_ns, difference(came_us, t1_us));
        }
        self.awaited_there = self.awaited_there.max(awaited);
        self.sender.is_awaited_from(awaited, feedback.lost);
        told.drain(..).for_each(|outcome| self.resolve(now_ns, outcome));
        self.told = told;
        self.tell_congestion(now_ns, &news, Some(came));
        if news.came_bytes > 0 || news.lost_bytes > 0 {
            self.plan(now_ns);
        }
        if !had_room && self.has_room() {
            self.room_ns = now_ns;
        }
        Ok(())
    }
}
