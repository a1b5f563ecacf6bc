// SPDX-License-Identifier: Apache-2.0
//! Packets to the other end.

use super::{Closed, Transport, clock_us, silence::OUTAGE_PING_NS};
use crate::{
    congestion::{TOGETHER_NS, time_ns},
    flight::Cargo,
    packet::{AT_ONCE, DATA_OVERHEAD, Feedback, Frame, HEADER_LEN, REDUNDANCY_LEN, TAG_LEN, Writer, frame_len, low},
    sender::{Left, Outgoing, Way},
};

/// How much of a pace, and how much time at least and at most, a packet that left late may be followed sooner: a host wakes a
/// thread some tens of microseconds late, which at a fast pace is many packets.
const CATCH_UP: u64 = 4;
pub(super) const CATCH_UP_LEAST_NS: u64 = 100_000;
const CATCH_UP_MAX_NS: u64 = 200_000;
/// Packets without a symbol delay symbols by as much as they are themselves, up to one byte for so many of symbols: the rate of
/// a path is measured with symbols, so that it would seem ever slower otherwise.
const CONTROL_SHARE: u64 = 32;
const CONTROL_ROOM_MAX: u64 = 1000;

/// Packets of which the mean size is taken.
const SIZES: u64 = 16;

/// Bytes of UDP's and IPv4's headers, which a link carries, too.
pub(super) const AROUND_LEN: usize = 28;

/// Bytes on a link of a packet with so many to seal.
fn wire_bytes(len: usize) -> u64 {
    (len + HEADER_LEN + TAG_LEN + AROUND_LEN) as u64
}

/// Paces are told so often at least while packets leave.
const PACES_NS: u64 = 10_000_000;

/// A packet to be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub number: u64,
    /// Bytes of what is to be sealed.
    pub len: usize,
    /// What it asks for: it goes to the address that is to be proven by these bytes ([`Transport::challenge`]).
    pub challenge: Option<[u8; 8]>,
    /// It is to leave at this time, which is not past; none: now.
    pub departs_ns: Option<u64>,
}

/// Of a packet: when it is written, and when it leaves, which is the same unless it is written ahead.
#[derive(Debug, Clone, Copy)]
struct Times {
    now_ns: u64,
    departs_ns: u64,
    /// It leaves when the pace lets a symbol leave.
    is_paced: bool,
}

impl Transport {
    /// Whether something is to be sent that is paced, and the path has room for it.
    pub(super) fn has_paced(&self, now_ns: u64, way: &Way) -> bool {
        let is_due = self.sender.due_ns(way).is_some_and(|due_ns| due_ns <= now_ns);
        self.has_room() && (self.sender.has_something() || is_due)
    }

    /// Writes the next packet that is to leave now, or soon ([`Transport::writes_ahead`]); none if there is none. `plain` has room for the
    /// largest packet.
    pub fn write(&mut self, now_ns: u64, plain: &mut [u8]) -> Option<Written> {
        if self.closed.is_some() && self.closing.is_none() {
            return None;
        }
        let now_ns = self.reads(now_ns);
        let way = self.way();
        // In the order of their numbers: what overtakes others would seem to be their loss.
        let order_ns = self.left_ns.max(now_ns);
        let paced_ns = self.paced_ns(now_ns, order_ns, &way);
        let departs_ns = paced_ns.unwrap_or(order_ns);
        let times = Times { now_ns, departs_ns, is_paced: paced_ns.is_some() };
        let written = self.write_next(times, &way, plain)?;
        self.left_ns = departs_ns;
        Some(Written { departs_ns: (departs_ns > now_ns).then(|| self.own.callers(departs_ns)), ..written })
    }

    /// When the packet leaves that may be written now with a symbol; none if there is none.
    fn paced_ns(&self, now_ns: u64, order_ns: u64, way: &Way) -> Option<u64> {
        let goes_by_itself = self.closing.is_some() || !self.challenges.is_empty();
        let leaves_ns = self.leaves_ns().max(order_ns);
        let may = !goes_by_itself && leaves_ns <= now_ns + self.ahead_ns && self.has_paced(now_ns, way);
        may.then_some(leaves_ns)
    }

    fn write_next(&mut self, times: Times, way: &Way, plain: &mut [u8]) -> Option<Written> {
        let Times { now_ns, departs_ns, is_paced } = times;
        let room = (self.packet_max() - HEADER_LEN - TAG_LEN).min(plain.len());
        let mut writer = Writer::new(&mut plain[..room]);
        writer.sent(clock_us(departs_ns));
        let empty = writer.len();
        if let Some(reason) = self.closing.take() {
            // Whether or not the last answer came: without one the other end knows no clock, and delivers nothing.
            if let Some((echo, came_us)) = self.told_pong.filter(|_| self.pongs.is_empty()) {
                writer.frame(&Frame::Pong { echo, came_us: low(came_us) });
            }
            self.write_pongs(&mut writer);
            writer.frame(&Frame::Close { reason: &reason });
            self.closed.get_or_insert(Closed::Here);
            let len = writer.len();
            return Some(self.control(departs_ns, len));
        }
        if let Some(echo) = self.challenges.pop_front() {
            writer.frame(&Frame::Ping(echo));
            let len = writer.len();
            return Some(Written { challenge: Some(echo), ..self.control(departs_ns, len) });
        }
        if let Some(size) = self.probes_mtu().then(|| self.mtu.probe(now_ns)).flatten() {
            return self.write_probe(departs_ns, size, plain);
        }
        self.write_control(times, &mut writer);
        let has_control = writer.len() > empty;
        if !is_paced {
            let len = writer.len();
            return has_control.then(|| self.control(departs_ns, len));
        }
        self.write_symbol(departs_ns, way, writer, has_control)
    }

    /// Goes on with a packet that is to leave at `departs_ns`.
    fn write_symbol(
        &mut self,
        departs_ns: u64,
        way: &Way,
        mut writer: Writer<'_>,
        has_control: bool,
    ) -> Option<Written> {
        let symbol_max = self.symbol_max();
        let needs = self.sender.prepare(departs_ns, way, symbol_max);
        // A symbol that leaves no room for the rest: the rest goes first.
        if has_control && needs.is_some_and(|needs| needs + REDUNDANCY_LEN > writer.room()) {
            let len = writer.len();
            return Some(self.control(departs_ns, len));
        }
        let Some(outgoing) = self.sender.next(symbol_max) else {
            let len = writer.len();
            return has_control.then(|| self.control(departs_ns, len));
        };
        let (frame, left, cargo) = match outgoing {
            Outgoing::Window { first, data, seed, content } => {
                (Frame::Window { first: low(first), data, seed, content }, Left::Redundancy, Cargo::Window)
            }
            Outgoing::Symbol { number, content } => {
                (Frame::Data { symbol: low(number), content }, Left::Symbol(number), Cargo::Symbol(number))
            }
            Outgoing::Redundancy { first, data, redundancy, index, content } => {
                let frame = Frame::Redundancy { first: low(first), data, redundancy, index, content };
                (frame, Left::Redundancy, Cargo::Redundancy(first))
            }
        };
        debug_assert!(frame_len(&frame) <= writer.room());
        if !writer.frame(&frame) {
            let len = writer.len();
            return has_control.then(|| self.control(departs_ns, len));
        }
        let len = writer.len();
        let bytes = wire_bytes(len);
        self.sender.left(left, bytes);
        let written = self.number(len);
        #[allow(clippy::cast_possible_truncation, reason = "at most a datagram")]
        self.flight.sent(departs_ns, written.number, cargo, bytes as u32);
        self.congestion.sent(departs_ns, bytes, self.flight.sent_bytes());
        self.symbol_bytes = (SIZES - 1) * self.symbol_bytes / SIZES + bytes / SIZES;
        self.control_room = (self.control_room + bytes / CONTROL_SHARE).min(CONTROL_ROOM_MAX);
        if departs_ns >= self.departs_ns {
            self.together_until_ns = if self.is_fast() { departs_ns + TOGETHER_NS } else { 0 };
        }
        self.departs(departs_ns, bytes);
        Some(written)
    }

    /// Whether packets leave together.
    pub(super) fn is_fast(&self) -> bool {
        self.pace_ns() < TOGETHER_NS / 2
    }

    /// From now on packets are written by so much before they leave, for a sender of datagrams that keeps their times.
    pub fn writes_ahead(&mut self, ns: u64) {
        self.ahead_ns = ns;
    }

    /// When the next packet that is paced may be written.
    pub(super) fn written_ns(&self) -> u64 {
        self.leaves_ns().saturating_sub(self.ahead_ns)
    }

    /// When the next packet that is paced may leave: in the past if it may leave with the last one.
    pub(super) fn leaves_ns(&self) -> u64 {
        if self.departs_ns < self.together_until_ns { self.together_until_ns - TOGETHER_NS } else { self.departs_ns }
    }

    /// The next one follows at the path's pace.
    fn departs(&mut self, now_ns: u64, bytes: u64) {
        let gap_ns = time_ns(bytes, self.congestion.bytes_per_s());
        // Of two packets that leave at once, to measure the link, the first is not late.
        let catch_up_ns = if gap_ns == 0 { 0 } else { (gap_ns / CATCH_UP).clamp(CATCH_UP_LEAST_NS, CATCH_UP_MAX_NS) };
        self.departs_ns = self.departs_ns.max(now_ns.saturating_sub(catch_up_ns)) + gap_ns;
    }

    /// A packet without a symbol: it leaves at once, and the next symbol somewhat later.
    fn control(&mut self, now_ns: u64, len: usize) -> Written {
        let paced = wire_bytes(len).min(self.control_room);
        if paced > 0 {
            self.control_room -= paced;
            self.departs(now_ns, paced);
        }
        self.number(len)
    }

    fn number(&mut self, len: usize) -> Written {
        let number = self.next_number;
        self.next_number += 1;
        Written { number, len, challenge: None, departs_ns: None }
    }

    fn write_control(&mut self, times: Times, writer: &mut Writer<'_>) {
        let Times { now_ns, is_paced, .. } = times;
        let is_due = self.feedback_due_ns.is_some_and(|due_ns| now_ns >= due_ns);
        if is_due || is_paced && self.unnamed > 0 {
            self.write_feedback(writer);
        }
        let leaves_anyway = is_due || is_paced;
        let answers = leaves_anyway || self.pong_due_ns().is_some_and(|due_ns| now_ns >= due_ns);
        if answers {
            self.write_pongs(writer);
        }
        let is_carried = leaves_anyway
            && (now_ns >= self.pings.next_ns() || self.pings.is_carried(now_ns, self.trips.smoothed_us() * 1000));
        let asks = (is_carried || now_ns >= self.ping_due_ns()) && writer.frame(&Frame::Ping(self.pings.echo()));
        if asks {
            self.pings.left(now_ns, self.next_number);
            if self.is_out() {
                // The answer to this one comes before the next one.
                let gap_ns = OUTAGE_PING_NS.max(2 * self.round_trip_ns());
                self.pings.no_later_than(now_ns + gap_ns);
            }
        }
        let is_news = self.sender.floor() > self.told_floor;
        // What told it may have been lost: it is told again with each request.
        if is_news && leaves_anyway || (is_news || asks) && self.is_awaited_in_vain() {
            let symbol = self.sender.floor();
            if writer.frame(&Frame::Floor { symbol: low(symbol) }) {
                self.told_floor = symbol;
            }
        }
        if (is_paced || is_due) && now_ns.saturating_sub(self.told_paces_ns) >= PACES_NS {
            let frame = self.paces_frame(now_ns);
            if writer.frame(&Frame::Paces(frame)) {
                self.told_paces_ns = now_ns;
            }
        }
    }

    fn write_pongs(&mut self, writer: &mut Writer<'_>) {
        while let Some((echo, came_us, _)) = self.pongs.front().copied()
            && writer.frame(&Frame::Pong { echo, came_us: low(came_us) })
        {
            self.pongs.pop_front();
            if echo[0] & AT_ONCE == 0 {
                self.told_pong = Some((echo, came_us));
            }
        }
    }

    fn write_feedback(&mut self, writer: &mut Writer<'_>) {
        let Some((largest, newest, runs)) = self.numbers.runs(self.named_from[0]) else { return };
        let lost = low(self.receiver.counts().lost);
        let received_us = low(self.largest_came_us);
        let marked = self.marked;
        let awaited = low(self.receiver.next_symbol());
        if writer.frame(&Frame::Feedback(Feedback { largest, received_us, newest, runs, marked, lost, awaited })) {
            (self.unnamed, self.feedback_due_ns) = (0, None);
        }
    }

    fn write_probe(&mut self, now_ns: u64, size: usize, plain: &mut [u8]) -> Option<Written> {
        let len = size - HEADER_LEN - TAG_LEN;
        let mut writer = Writer::new(plain.get_mut(..len)?);
        writer.sent(clock_us(now_ns));
        writer.frame(&Frame::Padding);
        let written = self.number(len);
        #[allow(clippy::cast_possible_truncation, reason = "at most a datagram")]
        self.flight.sent(now_ns, written.number, Cargo::Probe, wire_bytes(len) as u32);
        self.departs(now_ns, wire_bytes(len));
        Some(written)
    }
}

const _: () = assert!(DATA_OVERHEAD > HEADER_LEN + TAG_LEN);
