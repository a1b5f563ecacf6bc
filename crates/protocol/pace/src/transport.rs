// SPDX-License-Identifier: Apache-2.0
//! One connection between two ends, both directions, without addresses and keys: times and opened packets in;
//! packets to be sealed, times to wait for, and messages out.
//!
//! ```text
//!  send ──► sender ──► write ──► (sealed, on the wire) ──► open ──► receiver ──► poll_message
//!              ▲                                             │
//!              └── flight, congestion, clock ◄── FEEDBACK ◄──┘
//! ```

mod config;
mod incoming;
mod incoming_view;
mod outgoing;
mod pace;
mod silence;
mod snapshot;
mod times;

pub use config::{ConfigError, PACES_WINDOW_MAX_NS, PACES_WINDOW_MIN_NS};
pub use incoming::PeerError;
pub use outgoing::Written;
pub use pace::View;
pub use snapshot::Snapshot;

pub use crate::packet::Arrival;

use std::collections::VecDeque;

use incoming::NAMED_SINGLY;
use times::{Late, Pings};
pub(crate) use times::{OwnClock, Reading};

use crate::{
    clock::RoundTrips,
    congestion::{Congestion, FEEDBACK_LEAST_NS, FEEDBACK_MOST_NS, Level, XPace},
    flight::{Cargo, Flight, News, Outcome},
    mtu::{self, PathMtu},
    numbers::Numbers,
    packet::{self, DATA_OVERHEAD, DATAGRAM_MAX, PacesFrame},
    plan::{self, Path},
    receiver::{Message, ReceivedCounts, Receiver},
    rhythm::Rhythm,
    sender::{SendError, Sender, SentCounts, Way},
    step::{Meter, Step, WINDOW_NS},
};

/// Which answer to congestion a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// As X-PACE's paper has it.
    XPace,
    /// Holds a queue of a part of one packet: [`Level`].
    #[default]
    Level,
}

/// How a connection is to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// From the time a message is sent to its expiry, unless it has a deadline of its own; at most [`DEADLINE_MAX_NS`].
    pub deadline_ns: u64,
    /// The share of messages that may be lost: as long as no more are, none waits for a lost one, and none is sent again.
    pub residual_loss: f64,
    /// Messages that may wait to be sent; one keeps what is sent fresh.
    pub queue_max: usize,
    pub algorithm: Algorithm,
    /// Both ways of the path take equally long, as NTP assumes. A deadline then has to be longer than one way; else it has to be longer
    /// than a round trip, as the other end knows this clock no better. Where the way there takes longer, a message can be late by half
    /// of the difference, and so it can by half of a queue that stands for ten seconds, or of what the round trip becomes shorter by
    /// while the message waits at the receiver.
    pub even_ways: bool,
    /// Bytes of the largest datagram that the own link takes.
    pub datagram_max: usize,
    /// A peer that is not heard for so long has vanished; at least [`IDLE_LEAST_NS`].
    pub idle_ns: u64,
    /// The slowest turn of a step counts for so long: as long as an application is expected to keep its pace.
    /// [`PACES_WINDOW_MIN_NS`] to [`PACES_WINDOW_MAX_NS`].
    pub paces_window_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            deadline_ns: 100_000_000,
            residual_loss: 0.001,
            queue_max: 1,
            algorithm: Algorithm::default(),
            even_ways: false,
            datagram_max: mtu::MOST,
            idle_ns: 30_000_000_000,
            paces_window_ns: WINDOW_NS,
        }
    }
}

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// By this end.
    Here,
    /// By the other end, with its reason.
    There(String),
    /// It was not heard for [`Config::idle_ns`].
    Vanished,
    /// It sent what no end would send.
    Peer(PeerError),
}

/// What a connection has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub sent: SentCounts,
    pub received: ReceivedCounts,
    /// Packets that came twice, or too late to tell.
    pub repeated_packets: u64,
    pub black_holes: u64,
    pub clock_steps: u64,
}

/// While packets leave, a request waits for one so long.
const CARRIED_NS: u64 = 20_000_000;
/// Requests that are not answered yet, and challenges: an end makes three at a time at most. Of more the oldest is dropped.
const PONGS_MAX: usize = 4;
/// A peer that was not heard because this end did not run is given so much time, or four round trips, to be heard.
const GRACE_NS: u64 = 2_000_000_000;
/// After the end of a connection its other end's clock is asked for during this time, or two round trips, if messages wait for it.
const ENDING_NS: u64 = 1_000_000_000;
/// A peer that has nothing to send is heard each half second: with less than this one lost packet could end a connection.
pub const IDLE_LEAST_NS: u64 = 1_000_000_000;
/// Longest deadline. Times cross the network as 32 bits of microseconds: half of that may be ahead, 35 minutes.
pub const DEADLINE_MAX_NS: u64 = 1_800_000_000_000;

/// An application that is woken to send is so late at most; one that is later is slower than the path.
const LATE_MAX_NS: u64 = 300_000;
/// How redundancy is planned is looked at so often.
const PLANS_NS: u64 = 50_000_000;

/// One end of a connection.
#[derive(Debug)]
pub struct Transport {
    config: Config,
    sender: Sender,
    receiver: Receiver,
    flight: Flight,
    numbers: Numbers,
    trips: RoundTrips,
    /// The round trip of the set-up; the most there is on another path.
    set_up_us: u64,
    congestion: Box<dyn Congestion>,
    mtu: PathMtu,
    /// Of the next packet.
    next_number: u64,
    /// The next packet that is paced leaves at this time at the earliest.
    departs_ns: u64,
    /// Until then packets leave together with the last one.
    together_until_ns: u64,
    /// Packets are written so long before they leave.
    ahead_ns: u64,
    /// When the last packet left, or leaves.
    left_ns: u64,
    /// Bytes on a link of a packet with a symbol or redundancy: a running mean.
    symbol_bytes: u64,
    /// Bytes of packets without a symbol that are paced.
    control_room: u64,
    /// Since then the path has room for another packet.
    room_ns: u64,
    /// So does the next message, as far as the other end's application is concerned.
    message_departs_ns: u64,
    /// Packets to be named in FEEDBACK: how many, since when, and when it is due.
    unnamed: u32,
    feedback_due_ns: Option<u64>,
    /// FEEDBACK names packets from the first of these numbers on, from some time on from the second, which was the largest then.
    named_from: [u64; 2],
    named_since_ns: u64,
    /// A gap was noticed: until then FEEDBACK that names it is repeated with each packet.
    repeats_until_ns: u64,
    /// When the packet came that is read, and when the largest one came, by this clock.
    came_ns: u64,
    largest_came_us: u64,
    marked: u32,
    /// When a clock was seen to be set last, and by how much the way there by both clocks is longer since then in all: congestion
    /// looks at these ways as if no clock had been set.
    longer: (u64, i64),
    late: Late,
    /// The time by the other end's clock that its newest packet said.
    peer_us: u64,
    told_floor: u64,
    /// The first symbol that the other end awaits, as it has told.
    awaited_there: u64,
    planned_ns: u64,
    plan_lost: plan::Lost,
    told_paces_ns: u64,
    /// The other end's paces.
    peer_paces: PacesFrame,
    own: OwnClock,
    pings: Pings,
    /// A message did not fit one packet: a path that takes larger ones is looked for.
    wants_larger: bool,
    /// What the other end asked with, when it came, in microseconds, and when the answer is due: the last ones.
    pongs: VecDeque<([u8; 8], u64, u64)>,
    /// The last answer that has left.
    told_pong: Option<([u8; 8], u64)>,
    heard_ns: u64,
    /// How often in a row feedback was missing for so long that everything under way counts as lost.
    silences: u32,
    peer_marked: u32,
    send: Meter,
    transmit: Meter,
    receive: Meter,
    deliver: Meter,
    /// Since then messages wait here that the application does not take.
    untaken_since_ns: Option<u64>,
    /// The application's sends, and messages that came whole: these are so many.
    sends: Rhythm,
    arrivals: Rhythm,
    arrived: u64,
    /// The running mean of the way there, by both ends' clocks.
    one_way_us: Option<u64>,
    /// The same of the way here.
    one_way_here_us: Option<u64>,
    /// The bottleneck as [`Transport::take_change`] told it.
    told_bottleneck: Option<(Step, u64)>,
    /// Bytes that are to be asked for in packets of their own, and bytes that have come back: the last ones.
    challenges: VecDeque<[u8; 8]>,
    answered: VecDeque<[u8; 8]>,
    /// What became of packets: empty between two calls, so that none allocates.
    told: Vec<Outcome>,
    /// The application was kept waiting since the last feedback.
    was_held: bool,
    closing: Option<String>,
    last_reason: String,
    /// The other end has closed, with its reason, before its clock was known: what came before that waits for an exchange of times, until
    /// this time at the latest.
    ending: Option<(String, u64)>,
    closed: Option<Closed>,
    repeated_packets: u64,
}

impl Transport {
    /// A connection that was set up. `round_trip_us`: as the set-up took it.
    #[must_use]
    pub fn new(now_ns: u64, config: Config, round_trip_us: u64) -> Self {
        let config = Config { datagram_max: config.datagram_max.min(DATAGRAM_MAX), ..config };
        let congestion = congestion(config.algorithm, round_trip_us);
        let mut sender = Sender::new(config.queue_max);
        sender.set_tolerated(config.residual_loss);
        let meter = Meter::new(config.paces_window_ns.clamp(PACES_WINDOW_MIN_NS, PACES_WINDOW_MAX_NS));
        Self {
            config,
            sender,
            receiver: Receiver::default(),
            flight: Flight::default(),
            numbers: Numbers::default(),
            trips: RoundTrips::new(round_trip_us),
            set_up_us: round_trip_us,
            congestion,
            mtu: PathMtu::new(config.datagram_max),
            next_number: 0,
            departs_ns: now_ns,
            ahead_ns: 0,
            left_ns: 0,
            together_until_ns: 0,
            symbol_bytes: mtu::LEAST as u64,
            control_room: 0,
            room_ns: now_ns,
            message_departs_ns: now_ns,
            unnamed: 0,
            feedback_due_ns: None,
            named_from: [0; 2],
            named_since_ns: now_ns,
            repeats_until_ns: 0,
            came_ns: 0,
            late: Late::default(),
            largest_came_us: 0,
            marked: 0,
            longer: (0, 0),
            peer_us: 0,
            told_floor: 0,
            awaited_there: 0,
            planned_ns: 0,
            plan_lost: plan::Lost::default(),
            told_paces_ns: 0,
            peer_paces: PacesFrame::default(),
            own: OwnClock::new(now_ns),
            pings: Pings::new(now_ns),
            wants_larger: false,
            pongs: VecDeque::with_capacity(PONGS_MAX),
            told_pong: None,
            heard_ns: now_ns,
            silences: 0,
            peer_marked: 0,
            send: meter,
            transmit: meter,
            receive: meter,
            deliver: meter,
            untaken_since_ns: None,
            sends: Rhythm::default(),
            arrivals: Rhythm::default(),
            arrived: 0,
            one_way_us: None,
            one_way_here_us: None,
            told_bottleneck: None,
            challenges: VecDeque::with_capacity(PONGS_MAX),
            answered: VecDeque::with_capacity(PONGS_MAX),
            told: Vec::new(),
            was_held: false,
            closing: None,
            last_reason: String::new(),
            ending: None,
            closed: None,
            repeated_packets: 0,
        }
    }

    /// Takes a message, to be delivered within [`Config::deadline_ns`], or within a time of its own.
    ///
    /// # Errors
    /// [`SendError`]; nothing has changed.
    pub fn send(&mut self, now_ns: u64, bytes: &[u8], deadline_ns: Option<u64>) -> Result<u64, SendError> {
        let now_ns = self.reads(now_ns);
        let deadline_ns = deadline_ns.unwrap_or(self.config.deadline_ns);
        if deadline_ns > DEADLINE_MAX_NS {
            return Err(SendError::Deadline { given_ns: deadline_ns, max_ns: DEADLINE_MAX_NS });
        }
        let expires_ns = now_ns.saturating_add(deadline_ns);
        // It has more than the path takes.
        self.was_held |= self.sender.waiting() > 0;
        let expires_there_us = clock_us(expires_ns.saturating_add(self.way_back_ns()));
        let pushed = self.sender.push(now_ns, bytes, expires_ns, expires_there_us);
        if matches!(pushed, Ok(_) | Err(SendError::Full(_))) {
            // It makes messages so often, also if not all are taken.
            self.send.turn(now_ns);
        }
        let message = pushed?;
        self.wants_larger |= bytes.len() > self.symbol_max();
        self.sends.note(now_ns);
        // The path could have taken it before, so that it may be faster than what is sent.
        if now_ns > self.departs_ns.max(self.room_ns) + (self.pace_ns() / 4).min(LATE_MAX_NS) {
            self.flight.note_app_limited();
        }
        self.message_departs(now_ns);
        Ok(message)
    }

    /// The next message. None: nothing is here that has not expired.
    pub fn poll_message(&mut self, now_ns: u64) -> Option<Message> {
        let now_ns = self.reads(now_ns);
        let message = self.latest_there_us(now_ns).and_then(|peer_now_us| self.receiver.poll(peer_now_us));
        self.note_arrivals(now_ns);
        if message.is_some() {
            self.deliver.turn(now_ns);
        } else {
            self.deliver.waits(now_ns);
        }
        self.untaken_since_ns = (self.receiver.waiting() > 0).then_some(now_ns);
        message
    }

    /// Whether a message is here that has not expired.
    #[must_use]
    pub fn has_message(&self, now_ns: u64) -> bool {
        self.peer_now_us(now_ns).is_some_and(|peer_now_us| self.receiver.has_message(peer_now_us))
    }

    /// The application takes nothing more.
    pub fn drop_messages(&mut self) {
        self.receiver.drop_messages();
    }

    /// The memory of a message may be used again.
    pub fn recycle(&mut self, message: Message) {
        self.receiver.recycle(message);
    }

    /// The latest that the other end's clock may show now: nothing is delivered that has expired by it. None, and
    /// nothing is delivered, before the first exchange of times; nor from the moment on in which a packet shows that a
    /// clock has stepped, until the next exchange.
    #[must_use]
    pub fn peer_now_us(&self, now_ns: u64) -> Option<u64> {
        self.latest_there_us(self.own.of(now_ns))
    }

    fn latest_there_us(&self, now_ns: u64) -> Option<u64> {
        self.trips.latest_there_us(clock_us(now_ns))
    }

    /// Reads the caller's clock, by which everything here is done. If that has lost time, what waits here is older than it says.
    fn reads(&mut self, caller_ns: u64) -> u64 {
        if self.closed.is_some() {
            // It is not read while nothing happens, and no exchange of times follows. What waits here expires no later by it.
            return self.own.goes_on(caller_ns);
        }
        let (now_ns, reading) = self.own.read(caller_ns);
        match reading {
            Reading::GoesOn => return now_ns,
            Reading::WentBack => self.sender.give_up_all(),
            Reading::Jumped(by_ns) => {
                // So that they have left before this moment.
                self.flight.jumped(by_ns.saturating_sub(1000 + self.ahead_ns));
                let grace_ns = GRACE_NS.max(4 * self.round_trip_ns());
                self.heard_ns = self.heard_ns.max((now_ns + grace_ns).saturating_sub(self.config.idle_ns));
            }
        }
        self.trips.own_clock_stepped(clock_us(now_ns));
        self.pings.start_again(now_ns);
        now_ns
    }

    /// How the two clocks differ, in microseconds, and how sure that is.
    #[must_use]
    pub fn round_trips(&self) -> &RoundTrips {
        &self.trips
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            sent: self.sender.counts(),
            received: self.receiver.counts(),
            repeated_packets: self.repeated_packets,
            black_holes: self.mtu.black_holes(),
            clock_steps: self.trips.steps(),
        }
    }

    /// Of messages without one of their own ([`Config::deadline_ns`]).
    #[must_use]
    pub fn deadline_ns(&self) -> u64 {
        self.config.deadline_ns
    }

    /// Why the connection is over; none while it is not.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Ends the connection, and tells the other end why.
    pub fn close(&mut self, reason: &str) {
        if self.closed.is_none() {
            let end = (0..=reason.len().min(crate::packet::REASON_MAX)).rev().find(|at| reason.is_char_boundary(*at));
            reason[..end.unwrap_or(0)].clone_into(&mut self.last_reason);
            self.closing = Some(self.last_reason.clone());
        }
    }

    /// The whole number of a packet whose lowest bits these are.
    #[must_use]
    pub fn whole_number(&self, low: u32) -> u64 {
        packet::extend(low, self.numbers.largest().unwrap_or(0))
    }

    /// The largest number that has come.
    #[must_use]
    pub fn largest_received(&self) -> Option<u64> {
        self.numbers.largest()
    }

    /// Asks for these bytes back, in a packet of its own, to see whether the other end gets packets at an address:
    /// [`Written::challenge`]. That packet goes there, and all others to where they went before.
    pub fn challenge(&mut self, echo: [u8; 8]) {
        if self.closed.is_none() && !self.challenges.contains(&echo) {
            push_bounded(&mut self.challenges, echo);
        }
    }

    /// Bytes that have come back and that were no question for the time.
    pub fn take_answered(&mut self) -> Option<[u8; 8]> {
        self.answered.pop_front()
    }

    /// Counts a packet of a connection that is over. False: it has come before.
    pub fn take_number(&mut self, number: u64) -> bool {
        self.numbers.take(number)
    }

    /// The other end is at another address: what is under way is lost; and on another path what was known of that does not hold.
    pub fn moved(&mut self, now_ns: u64, is_same_path: bool) {
        if self.closed.is_some() {
            return;
        }
        if !is_same_path {
            self.congestion = congestion(self.config.algorithm, self.trips.smoothed_us());
            self.mtu = PathMtu::new(self.config.datagram_max);
            self.set_up_us = u64::MAX;
            (self.one_way_us, self.one_way_here_us) = (None, None);
        }
        let now_ns = self.reads(now_ns);
        // It has answered from there: an outage is over.
        self.silences = 0;
        self.pings.no_later_than(now_ns);
        let mut told = std::mem::take(&mut self.told);
        self.flight.all_lost(&mut |outcome| told.push(outcome));
        told.drain(..).for_each(|outcome| self.resolve(now_ns, outcome));
        self.told = told;
    }

    /// A connection that is over tells the other end so once more, as that still sends.
    pub fn close_again(&mut self) {
        if let Some(reason) = match &self.closed {
            Some(Closed::Here) => Some(self.last_reason.clone()),
            Some(Closed::Peer(why)) => Some(why.to_string()),
            _ => None,
        } {
            self.closing = Some(reason);
        }
    }

    /// A packet has come after the end: what it asks for is answered with the next CLOSE, as messages of before may wait for it.
    pub fn asked_after_end(&mut self, now_ns: u64, plain: &[u8]) {
        let now_ns = self.reads(now_ns);
        self.came_ns = now_ns;
        let mut frames = plain.get(packet::SENT_LEN..).unwrap_or_default();
        while let Ok(Some(frame)) = packet::read_frame(&mut frames) {
            if let packet::Frame::Ping(echo) = frame {
                self.answers(now_ns, echo);
            }
        }
    }

    /// The other end has closed. What came before that is delivered, for which its clock has to be known.
    fn ends(&mut self, now_ns: u64, reason: &str) {
        self.receiver.end();
        if self.latest_there_us(now_ns).is_some() || !self.receiver.has_symbols() {
            self.closed = Some(Closed::There(reason.to_owned()));
        } else if self.ending.is_none() {
            let waits_ns = ENDING_NS.max(2 * self.round_trip_ns());
            self.ending = Some((reason.to_owned(), now_ns + waits_ns));
            self.pings.start_again(now_ns);
        }
    }

    /// It has closed, and nothing waits for its clock any more.
    fn ends_now(&mut self, now_ns: u64) {
        let is_known = self.latest_there_us(now_ns).is_some();
        if let Some((reason, _)) = self.ending.take_if(|(_, until_ns)| is_known || now_ns >= *until_ns) {
            self.closed.get_or_insert(Closed::There(reason));
        }
    }

    /// Whether everything that was sent has arrived, or was given up.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sender.is_idle()
    }

    /// When a request for the other end's clock leaves in a packet of its own, if none comes that may carry it.
    fn ping_due_ns(&self) -> u64 {
        let is_soon_carried = self.pings.count() > 0 && !self.flight.is_empty();
        self.pings.next_ns() + if is_soon_carried { CARRIED_NS } else { 0 }
    }

    /// The same of an answer; the first ones leave at once, and those to a challenge.
    fn answers(&mut self, now_ns: u64, echo: [u8; 8]) {
        let is_soon_carried = echo[0] & packet::AT_ONCE == 0
            && !self.flight.is_empty()
            && self.numbers.largest().is_some_and(|largest| largest >= NAMED_SINGLY);
        let due_ns = now_ns + if is_soon_carried { CARRIED_NS } else { 0 };
        push_bounded(&mut self.pongs, (echo, clock_us(self.came_ns), due_ns));
    }

    fn pong_due_ns(&self) -> Option<u64> {
        self.pongs.iter().map(|(.., due_ns)| *due_ns).min()
    }

    /// Whether a larger packet would be of use, and there is feedback to come.
    fn probes_mtu(&self) -> bool {
        self.wants_larger && !self.flight.is_empty()
    }

    /// Whether the path takes another packet.
    fn has_room(&self) -> bool {
        // What comes while feedback waits, and while threads of both ends wait to be woken, is no queue of the path.
        let unnamed_ns = FEEDBACK_LEAST_NS + 2 * self.late.mean_ns.saturating_sub(FEEDBACK_MOST_NS);
        let unnamed = |rate: u64| u128::from(rate) * u128::from(unnamed_ns) / 1_000_000_000;
        let unnamed = self.congestion.path_bytes_per_s().map_or(0, unnamed);
        let window = self.congestion.window_bytes().saturating_add(u64::try_from(unnamed).unwrap_or(u64::MAX));
        !self.is_out() && self.flight.bytes() + self.packet_max() as u64 <= window && !self.flight.is_full()
    }

    /// The other end waits for symbols that do not come any more, and nothing is under way, or follows, that could tell it.
    fn is_awaited_in_vain(&self) -> bool {
        let is_quiet = self.flight.is_empty() && !self.sender.has_something() && !self.is_out();
        is_quiet && self.sender.floor() > self.awaited_there
    }

    fn packet_max(&self) -> usize {
        self.mtu.size()
    }

    fn symbol_max(&self) -> usize {
        self.packet_max() - DATA_OVERHEAD - crate::block::coded_len(0) - 4
    }

    /// How long a packet and its answer take at most, as a rule.
    pub(crate) fn round_trip_ns(&self) -> u64 {
        (self.trips.smoothed_us().max(self.trips.latest_us())
            + 4 * self.trips.variation_us().min(self.trips.smoothed_us() / 8))
            * 1000
    }

    /// What a packet of the largest size takes at the rate of the path.
    fn pace_ns(&self) -> u64 {
        crate::congestion::time_ns(self.packet_max() as u64, self.congestion.bytes_per_s())
    }

    /// What a packet with a symbol takes of the path, as those are that were sent last.
    fn symbol_ns(&self) -> u64 {
        crate::congestion::time_ns(self.symbol_bytes, self.path_rate())
    }

    /// Bytes a second, whether or not two packets leave at once just now.
    fn path_rate(&self) -> u64 {
        self.congestion.path_bytes_per_s().unwrap_or(self.congestion.bytes_per_s())
    }

    /// The other end takes this clock to be ahead by what the way back takes, as it cannot know better. That is made up for if this is known
    /// to be half of a round trip.
    fn way_back_ns(&self) -> u64 {
        let is_known = self.config.even_ways && self.trips.is_known();
        // The first exchanges may all have met a queue.
        if is_known { self.trips.shortest_us().min(self.set_up_us) * 1000 / 2 } else { 0 }
    }

    /// How long before its expiry a symbol has to leave: the other end knows this clock but for what the way back takes, and delivers
    /// nothing that may have expired, so it counts with a whole round trip.
    fn way(&self) -> Way {
        let least_ns = self.trips.shortest_us() * 1000 - self.way_back_ns();
        let queue_us = self.trips.smoothed_us().saturating_sub(self.trips.shortest_us());
        let usual_ns = least_ns + (queue_us / 2 + self.trips.variation_us()) * 1000;
        let least_ns = if self.trips.is_known() { least_ns } else { 0 };
        Way { least_ns, usual_ns, pace_ns: crate::congestion::time_ns(self.packet_max() as u64, self.path_rate()) }
    }

    fn plan(&mut self, now_ns: u64) {
        if now_ns < self.planned_ns + PLANS_NS {
            return;
        }
        self.planned_ns = now_ns;
        let path = Path {
            losses: self.flight.losses().model(),
            round_trip_ns: self.round_trip_ns(),
            one_way_ns: self.way().usual_ns,
            pace_ns: self.symbol_ns(),
            symbols_ns: self.sender.of_a_symbol_ns(self.send.mean().effective_ns),
            deadline_ns: self.config.deadline_ns,
            residual_loss: self.sender.planned_loss(),
        };
        let plan = path.plan(&mut self.plan_lost);
        let is_without = plan.redundancy == 0;
        self.sender.set_plan(plan);
        if is_without {
            // Nothing comes any more for what hoped for it.
            let way = self.way();
            self.sender.without_redundancy(now_ns, &way);
        }
    }

    /// What became of a packet.
    fn resolve(&mut self, now_ns: u64, outcome: Outcome) {
        let way = self.way();
        let Outcome { number, cargo, bytes, came } = outcome;
        let datagram = bytes as usize - outgoing::AROUND_LEN;
        if cargo != Cargo::Probe {
            self.mtu.note(now_ns, number, datagram, came);
        }
        match cargo {
            Cargo::Symbol(number) => self.sender.resolve_symbol(now_ns, number, came, &way),
            Cargo::Redundancy(first) => self.sender.resolve_redundancy(now_ns, first, came, &way),
            Cargo::Window => {}
            Cargo::Probe => self.mtu.probed(now_ns, datagram, came),
        }
    }

    /// When to call [`Transport::timeout`], and [`Transport::write`] after it, even if nothing comes.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> u64 {
        let own_ns = self.own.of(now_ns);
        self.own.callers(self.own_due_ns(own_ns)).max(now_ns)
    }

    fn own_due_ns(&self, now_ns: u64) -> u64 {
        if self.closing.is_some() {
            return now_ns;
        }
        if self.closed.is_some() {
            return u64::MAX;
        }
        if !self.challenges.is_empty() {
            return now_ns;
        }
        let way = self.way();
        let paced = self.has_paced(now_ns, &way).then_some(self.written_ns());
        let received = self.receiver.due_us().zip(self.latest_there_us(now_ns)).map(|(due_us, peer_now_us)| {
            now_ns.saturating_add(due_us.saturating_sub(peer_now_us).saturating_mul(1000))
        });
        let sent = match self.has_room() {
            true => self.sender.due_ns(&way).map(|due_ns| due_ns.max(self.written_ns())),
            false => self.late_ns(&way),
        };
        let lost = self.flight.loss_at_ns(self.round_trip_ns());
        let all = [
            paced,
            self.feedback_due_ns,
            received,
            sent,
            lost,
            self.silence_ns(),
            Some(self.ping_due_ns()),
            self.pong_due_ns(),
            (self.sender.floor() > self.told_floor && self.is_awaited_in_vain()).then_some(now_ns),
            Some(self.heard_ns.saturating_add(self.config.idle_ns)),
            self.ending.as_ref().map(|(_, until_ns)| *until_ns),
            self.probes_mtu().then(|| self.mtu.due_ns()),
        ];
        all.into_iter().flatten().min().unwrap_or(u64::MAX).max(now_ns)
    }

    /// Time has passed.
    pub fn timeout(&mut self, now_ns: u64) {
        if self.closed.is_some() {
            return;
        }
        let now_ns = self.reads(now_ns);
        if now_ns >= self.heard_ns.saturating_add(self.config.idle_ns) {
            self.closed = Some(Closed::Vanished);
            return;
        }
        self.receiver.advance(self.latest_there_us(now_ns).unwrap_or(0));
        self.note_arrivals(now_ns);
        self.ends_now(now_ns);
        let round_trip_ns = self.round_trip_ns();
        let mut told = std::mem::take(&mut self.told);
        let news = self.flight.timeout(now_ns, round_trip_ns, &mut |outcome| told.push(outcome));
        self.note_silence(now_ns, &mut told);
        told.drain(..).for_each(|outcome| self.resolve(now_ns, outcome));
        self.told = told;
        self.tell_congestion(now_ns, &news, None);
        self.drop_late(now_ns);
    }

    fn tell_congestion(&mut self, now_ns: u64, news: &News, came: Option<incoming::Came>) {
        if *news == News::default() && came.is_none() {
            return;
        }
        let marked_packets = came.map_or(0, |came| u64::from(came.marked));
        self.congestion.feedback(
            now_ns,
            &crate::congestion::Feedback {
                came_bytes: news.came_bytes,
                lost_bytes: news.lost_bytes,
                marked_packets,
                in_flight_bytes: self.flight.bytes(),
                delivered: self.flight.delivered(),
                delivered_before: news.delivered_before,
                newest_sent_bytes: news.largest_sent_bytes,
                rate: news.rate,
                round_trip_us: came.and_then(|came| came.round_trip_us),
                one_way_us: came.and_then(|came| came.one_way_us),
                came_us: came.map_or(0, |came| came.came_us),
                packet_bytes: self.packet_max() as u64,
                was_held: std::mem::take(&mut self.was_held),
            },
        );
        self.flight.set_full(self.congestion.is_full());
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, new: T) {
    if queue.len() >= PONGS_MAX {
        queue.pop_front();
    }
    queue.push_back(new);
}

fn congestion(algorithm: Algorithm, round_trip_us: u64) -> Box<dyn Congestion> {
    let packet_bytes = mtu::LEAST as u64;
    match algorithm {
        Algorithm::XPace => Box::new(XPace::new(packet_bytes, round_trip_us)),
        Algorithm::Level => Box::new(Level::new(packet_bytes, round_trip_us)),
    }
}

/// Microseconds of this end's clock, as packets have them.
#[must_use]
pub fn clock_us(now_ns: u64) -> u64 {
    now_ns / 1000
}
