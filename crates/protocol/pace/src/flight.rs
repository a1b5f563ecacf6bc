// SPDX-License-Identifier: Apache-2.0
//! Packets that were sent and of which nothing is known yet: which have come, which are lost, and how fast they
//! were delivered.
//!
//! **Lost.** A packet is lost once one that was sent [`REORDERED_MAX`] packets later has come, or one that was sent
//! later, and 9/8 of a round trip have passed (RFC 9002 §6.1).
//!
//! **Delivery rate.** As the IETF's draft has it (draft-cheng-iccrg-delivery-rate-estimation): bytes delivered
//! between the sending of a packet and its acknowledgement, over the longer of the time in which they were sent
//! and the time in which they came. The latter is by the receiver's clock, so that what delays feedback on its way
//! back does not count.

use crate::loss::Losses;

/// Packets by which another one may overtake a packet, before it counts as lost.
pub const REORDERED_MAX: u64 = 3;
/// What a round trip varies by at least, and how much later feedback may come for other reasons.
pub(crate) const VARIES_LEAST_US: u64 = 1000;
pub(crate) const LATER_US: u64 = 10_000;
/// Feedback is missing if it comes so much later than a round trip, at least.
pub(crate) const SILENCE_LEAST_NS: u64 = (4 * VARIES_LEAST_US + LATER_US) * 1000;

/// Most packets under way; while there are more, nothing is sent.
pub const FLIGHT_MAX: usize = 16_384;

/// What a packet carries that matters when it comes or is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cargo {
    /// A symbol, for the first time or again.
    Symbol(u64),
    /// Redundancy of the block that begins with this symbol.
    Redundancy(u64),
    /// Redundancy of a window: nobody waits for one packet of it.
    Window,
    /// A packet that measures the path's largest packet.
    Probe,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub number: u64,
    pub cargo: Cargo,
    /// On the link, as [`Flight::sent`] was told.
    pub bytes: u32,
    /// False: it counts as lost.
    pub came: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    Came,
    Lost,
}

/// A packet under way.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Of the packet; others have no entry of their own, as FEEDBACK.
    number: u64,
    cargo: Cargo,
    bytes: u32,
    /// Of all that was sent up to it.
    sent_bytes: u64,
    sent_ns: u64,
    fate: Fate,
    /// Bytes delivered, and when the last of them came by the receiver's clock, as it was sent.
    delivered: u64,
    delivered_there_us: u64,
    /// When the first packet of its flight was sent.
    first_sent_ns: u64,
    /// The application had nothing more to send.
    is_app_limited: bool,
    /// It was lost as a buffer was full.
    is_of_full: bool,
}

impl Sent {
    fn outcome(&self, came: bool) -> Outcome {
        Outcome { number: self.number, cargo: self.cargo, bytes: self.bytes, came }
    }
}

/// How fast packets were delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered in `interval_ns`.
    pub bytes: u64,
    pub interval_ns: u64,
    /// The application sent less than it could have: the path may be faster.
    pub is_app_limited: bool,
}

impl RateSample {
    #[must_use]
    pub fn bytes_per_s(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.interval_ns.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// What one FEEDBACK brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct News {
    /// Bytes that have come, and bytes lost.
    pub came_bytes: u64,
    pub lost_bytes: u64,
    pub lost_packets: u64,
    pub rate: Option<RateSample>,
    /// When the largest packet named was sent, if it is news.
    pub largest_sent_ns: Option<u64>,
    /// Bytes that had been sent with that packet.
    pub largest_sent_bytes: Option<u64>,
    /// Bytes under way when the largest one was sent had been delivered up to here: a round has passed when that
    /// exceeds what was delivered at the round's begin.
    pub delivered_before: u64,
}

/// All packets under way.
#[derive(Debug, Clone)]
pub struct Flight {
    packets: std::collections::VecDeque<Sent>,
    bytes: u64,
    sent_bytes: u64,
    largest_came: Option<u64>,
    /// What became of each packet below this number is known; of those between this and the largest that came at most
    /// [`REORDERED_MAX`] are not.
    known_until: u64,
    delivered: u64,
    delivered_there_us: u64,
    first_sent_ns: u64,
    /// Since then none of the packets under way has come.
    waits_ns: u64,
    /// Of the first packets of a flight that came: bytes delivered with them, and when, by the receiver's clock.
    first_there: Option<(u64, u64)>,
    /// Until so many bytes are delivered, what is sent was limited by the application.
    app_limited_until: u64,
    losses: Losses,
    is_full: bool,
    /// Packets that were looked at to find those of which nothing is known.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

impl Default for Flight {
    fn default() -> Self {
        Self {
            packets: std::collections::VecDeque::with_capacity(64),
            bytes: 0,
            sent_bytes: 0,
            largest_came: None,
            known_until: 0,
            delivered: 0,
            delivered_there_us: 0,
            first_sent_ns: 0,
            waits_ns: 0,
            first_there: None,
            app_limited_until: 0,
            losses: Losses::default(),
            is_full: false,
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }
}

impl Flight {
    /// Bytes under way.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[must_use]
    pub fn is_full(&self) -> bool {
        self.packets.len() >= FLIGHT_MAX
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes sent so far.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Bytes delivered so far.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    #[must_use]
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// The application has nothing more to send now.
    pub fn note_app_limited(&mut self) {
        self.app_limited_until = (self.delivered + self.bytes).max(1);
    }

    /// A packet is sent.
    pub fn sent(&mut self, now_ns: u64, number: u64, cargo: Cargo, bytes: u32) {
        // A path so slow, or messages so rare, that a packet comes before the next one leaves: if that one was paced, the time
        // between them is the path's.
        if self.bytes == 0 && (self.app_limited_until > 0 || self.delivered == 0) {
            self.first_sent_ns = now_ns;
            // The receiver's clock at this moment is not known: samples count from what comes first.
            (self.delivered_there_us, self.first_there) = (0, None);
        }
        if self.bytes == 0 {
            self.waits_ns = now_ns;
        }
        self.bytes += u64::from(bytes);
        self.sent_bytes += u64::from(bytes);
        self.packets.push_back(Sent {
            number,
            cargo,
            bytes,
            sent_bytes: self.sent_bytes,
            sent_ns: now_ns,
            fate: Fate::Unknown,
            delivered: self.delivered,
            delivered_there_us: self.delivered_there_us,
            first_sent_ns: self.first_sent_ns,
            is_app_limited: self.app_limited_until > 0,
            is_of_full: false,
        });
    }

    /// The packet that was sent last, and of which nothing is known.
    #[must_use]
    pub fn newest_unknown_sent_ns(&self) -> Option<u64> {
        // It is the last one, or near the largest that came; but where nothing is under way, each would be looked at.
        let packets = self.packets.iter().rev().filter(|_| self.bytes > 0);
        packets.inspect(|_| self.looks()).find(|sent| sent.fate == Fate::Unknown).map(|sent| sent.sent_ns)
    }

    /// Whether the path's buffer is full, so that what is lost now is no part of the model of losses.
    pub fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Since when none of the packets under way has come.
    #[must_use]
    pub fn waits_since_ns(&self) -> Option<u64> {
        (self.bytes > 0).then_some(self.waits_ns)
    }

    /// When the oldest packet below the largest that came counts as lost, unless it comes.
    #[must_use]
    pub fn loss_at_ns(&self, round_trip_ns: u64) -> Option<u64> {
        let largest = self.largest_came?;
        let packets = self.packets.range(self.place(self.known_until)..).take_while(|sent| sent.number < largest);
        // In the order in which they were sent.
        let oldest = packets.inspect(|_| self.looks()).find(|sent| sent.fate == Fate::Unknown)?;
        Some(oldest.sent_ns + loss_after_ns(round_trip_ns))
    }

    /// Where the packet of this number is, or the first one after it.
    fn place(&self, number: u64) -> usize {
        self.packets.partition_point(|sent| sent.number < number)
    }

    fn looks(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// FEEDBACK names packets: runs from the first to the last number, the newest run first. `there_us`: when
    /// the largest came, by the receiver's clock. `tell`: what became of each packet of which nothing was known.
    pub fn feedback(
        &mut self,
        now_ns: u64,
        runs: impl Iterator<Item = (u64, u64)>,
        there_us: u64,
        round_trip_ns: u64,
        tell: &mut impl FnMut(Outcome),
    ) -> News {
        let mut news = News::default();
        let mut newest: Option<Sent> = None;
        for (at, (first, last)) in runs.enumerate() {
            if at == 0 {
                self.largest_came = self.largest_came.max(Some(last));
            }
            let from = self.place(first);
            for sent in self.packets.iter_mut().skip(from).take_while(|sent| sent.number <= last) {
                if sent.fate == Fate::Came {
                    continue;
                }
                // One that counted as lost may come yet.
                if sent.fate == Fate::Unknown {
                    self.bytes -= u64::from(sent.bytes);
                }
                sent.fate = Fate::Came;
                self.delivered += u64::from(sent.bytes);
                news.came_bytes += u64::from(sent.bytes);
                tell(sent.outcome(true));
                if sent.number == last && at == 0 {
                    news.largest_sent_ns = Some(sent.sent_ns);
                    news.largest_sent_bytes = Some(sent.sent_bytes);
                }
                if newest.is_none_or(|newest| sent.number > newest.number) {
                    newest = Some(*sent);
                }
            }
        }
        if let Some(newest) = newest {
            self.waits_ns = now_ns;
            news.delivered_before = newest.delivered;
            news.rate = self.rate(there_us, &newest);
            self.first_there.get_or_insert((self.delivered, there_us));
            self.delivered_there_us = there_us;
            self.first_sent_ns = newest.sent_ns;
        }
        if self.app_limited_until > 0 && self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        self.find_lost(now_ns, round_trip_ns, &mut news, tell);
        news
    }

    fn rate(&self, there_us: u64, newest: &Sent) -> Option<RateSample> {
        let (before, before_us) = match newest.delivered_there_us {
            0 => self.first_there?,
            before_us => (newest.delivered, before_us),
        };
        let sent_ns = newest.sent_ns.saturating_sub(newest.first_sent_ns);
        let came_ns = there_us.saturating_sub(before_us) * 1000;
        let is_app_limited = newest.is_app_limited;
        let bytes = self.delivered - before;
        (came_ns > 0).then_some(RateSample { bytes, interval_ns: sent_ns.max(came_ns), is_app_limited })
    }

    /// This end's clock went on by so much at once: nobody could hear of what is under way.
    pub fn jumped(&mut self, by_ns: u64) {
        for sent in &mut self.packets {
            sent.sent_ns += by_ns;
            sent.first_sent_ns += by_ns;
        }
        self.first_sent_ns += by_ns;
        self.waits_ns += by_ns;
    }

    /// Time has passed: packets may count as lost now.
    pub fn timeout(&mut self, now_ns: u64, round_trip_ns: u64, tell: &mut impl FnMut(Outcome)) -> News {
        let mut news = News::default();
        self.find_lost(now_ns, round_trip_ns, &mut news, tell);
        news
    }

    fn find_lost(&mut self, now_ns: u64, round_trip_ns: u64, news: &mut News, tell: &mut impl FnMut(Outcome)) {
        let after_ns = loss_after_ns(round_trip_ns);
        // None has come: those that are lost already are forgotten all the same.
        let largest = self.largest_came.unwrap_or(0);
        let (from, mut known_until) = (self.place(self.known_until), largest);
        for sent in self.packets.range_mut(from..).take_while(|sent| sent.number < largest) {
            let is_late = sent.number + REORDERED_MAX <= largest || now_ns.saturating_sub(sent.sent_ns) >= after_ns;
            if sent.fate == Fate::Unknown && is_late {
                sent.fate = Fate::Lost;
                self.bytes -= u64::from(sent.bytes);
                news.lost_bytes += u64::from(sent.bytes);
                news.lost_packets += 1;
                sent.is_of_full = self.is_full;
                tell(sent.outcome(false));
            }
            if sent.fate == Fate::Unknown {
                known_until = known_until.min(sent.number);
            }
        }
        self.known_until = known_until;
        // Lost ones stay for a while, as they may come yet.
        while let Some(oldest) = self.packets.front() {
            let is_over = match oldest.fate {
                Fate::Unknown => false,
                Fate::Came => true,
                Fate::Lost => {
                    now_ns.saturating_sub(oldest.sent_ns) >= 2 * after_ns || self.packets.len() > FLIGHT_MAX / 2
                }
            };
            if !is_over {
                break;
            }
            if oldest.cargo != Cargo::Probe {
                match oldest.fate {
                    Fate::Lost if oldest.is_of_full || self.is_full => self.losses.note_of_full(),
                    fate => self.losses.note(fate == Fate::Lost),
                }
            }
            self.packets.pop_front();
        }
    }

    /// Nothing has come for long: everything under way counts as lost.
    pub fn all_lost(&mut self, tell: &mut impl FnMut(Outcome)) -> u64 {
        let mut lost = 0;
        for sent in &mut self.packets {
            if sent.fate == Fate::Unknown {
                sent.fate = Fate::Lost;
                lost += u64::from(sent.bytes);
                tell(sent.outcome(false));
            }
        }
        self.bytes = 0;
        lost
    }
}

fn loss_after_ns(round_trip_ns: u64) -> u64 {
    (round_trip_ns + round_trip_ns / 8).max(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const ROUND_TRIP: u64 = 30 * MS;

    struct Told(Vec<(Cargo, bool)>);

    #[test]
    fn lost_packets_are_forgotten_though_none_has_ever_come() {
        let mut flight = Flight::default();
        for number in 0..FLIGHT_MAX as u64 {
            flight.sent(0, number, Cargo::Symbol(number), 1000);
        }
        assert!(flight.is_full());
        flight.all_lost(&mut |_| {});
        flight.timeout(100 * ROUND_TRIP, ROUND_TRIP, &mut |_| {});
        assert!(!flight.is_full());
    }

    #[test]
    fn clock_that_jumps_makes_no_silence() {
        let mut flight = Flight::default();
        flight.sent(MS, 0, Cargo::Symbol(0), 1000);
        flight.jumped(1_000_000_000);
        assert_eq!(flight.waits_since_ns(), Some(MS + 1_000_000_000));
    }

    fn of(flight: &mut Flight, now_ns: u64, there_us: u64, runs: &[(u64, u64)]) -> (News, Vec<(Cargo, bool)>) {
        let mut told = Told(Vec::new());
        let news = flight.feedback(now_ns, runs.iter().copied(), there_us, ROUND_TRIP, &mut |outcome| {
            told.0.push((outcome.cargo, outcome.came))
        });
        (news, told.0)
    }

    fn sends(flight: &mut Flight, numbers: std::ops::Range<u64>, gap_ns: u64) {
        for number in numbers {
            flight.sent(number * gap_ns, number, Cargo::Symbol(100 + number), 1000);
        }
    }

    #[test]
    fn packet_is_lost_once_three_later_ones_have_overtaken_it() {
        let mut flight = Flight::default();
        sends(&mut flight, 0..6, MS);
        let (news, told) = of(&mut flight, 31 * MS, 1, &[(1, 2)]);
        assert_eq!((news.came_bytes, news.lost_packets, flight.bytes()), (2000, 0, 4000));
        assert_eq!(told, [(Cargo::Symbol(101), true), (Cargo::Symbol(102), true)]);
        let (news, told) = of(&mut flight, 32 * MS, 2, &[(1, 3)]);
        assert_eq!((news.came_bytes, news.lost_bytes, flight.bytes()), (1000, 1000, 2000));
        assert_eq!(told, [(Cargo::Symbol(103), true), (Cargo::Symbol(100), false)]);
        // It was only late.
        let (news, told) = of(&mut flight, 33 * MS, 3, &[(0, 3)]);
        assert_eq!((news.came_bytes, told), (1000, vec![(Cargo::Symbol(100), true)]));
        assert_eq!((flight.losses().lost(), flight.losses().received()), (0, 4));
    }

    #[test]
    fn packet_is_lost_an_eighth_of_a_round_trip_after_a_later_one_may_have_come() {
        let mut flight = Flight::default();
        sends(&mut flight, 0..2, MS);
        assert_eq!(flight.loss_at_ns(ROUND_TRIP), None);
        of(&mut flight, 31 * MS, 1, &[(1, 1)]);
        let at = flight.loss_at_ns(ROUND_TRIP).unwrap();
        assert_eq!(at, ROUND_TRIP / 8 * 9);
        assert_eq!(flight.timeout(at - 1, ROUND_TRIP, &mut |_| panic!()).lost_packets, 0);
        assert_eq!(flight.timeout(at, ROUND_TRIP, &mut |outcome| assert!(!outcome.came)).lost_packets, 1);
        assert!(flight.is_empty());
        flight.timeout(at + 3 * ROUND_TRIP, ROUND_TRIP, &mut |_| panic!());
        assert_eq!((flight.losses().lost(), flight.losses().received()), (1, 1));
    }

    #[test]
    fn one_lost_packet_makes_nobody_look_at_all_that_are_under_way() {
        const PACKETS: u64 = 8000;
        let mut flight = Flight::default();
        sends(&mut flight, 0..PACKETS, 1000);
        for last in 1..PACKETS {
            of(&mut flight, 31 * MS, last, &[(last, last)]);
            let before = flight.looks.get();
            assert_eq!(
                (flight.loss_at_ns(ROUND_TRIP).is_some(), flight.newest_unknown_sent_ns().is_some()),
                (last < 3, last < PACKETS - 1)
            );
            assert!(flight.looks.get() - before <= 2 * REORDERED_MAX, "{last}");
        }
        assert_eq!(flight.packets.len() as u64, PACKETS, "all are there still");
    }

    proptest! {
        /// Whatever comes, those that count as lost next are found as if all were looked at.
        #[test]
        fn oldest_packet_of_which_nothing_is_known_is_found(
            turns in prop::collection::vec((0_u8..10, 0_u64..40, 0_u64..8), 1..200),
        ) {
            let (mut flight, mut next, mut now_ns) = (Flight::default(), 1, MS);
            for (what, back, len) in turns {
                now_ns += MS;
                match what {
                    0..5 => (0..len).for_each(|_| {
                        flight.sent(now_ns, next, Cargo::Symbol(next), 1000);
                        // Packets of other kinds have numbers, too.
                        next += 1 + back % 2;
                    }),
                    5..8 => {
                        let last = next.saturating_sub(1 + back);
                        of(&mut flight, now_ns, now_ns / 1000, &[(last.saturating_sub(len), last)]);
                    }
                    8 => {
                        now_ns += back * MS;
                        flight.timeout(now_ns, ROUND_TRIP, &mut |_| {});
                    }
                    _ => {
                        flight.all_lost(&mut |_| {});
                    }
                }
                let largest = flight.largest_came.unwrap_or(0);
                let unknown = || flight.packets.iter().filter(|sent| sent.fate == Fate::Unknown);
                let oldest = unknown().filter(|sent| sent.number < largest).map(|sent| sent.sent_ns).min();
                prop_assert_eq!(flight.loss_at_ns(ROUND_TRIP), oldest.map(|sent_ns| sent_ns + ROUND_TRIP / 8 * 9));
                prop_assert_eq!(flight.newest_unknown_sent_ns(), unknown().map(|sent| sent.sent_ns).max());
            }
        }
    }

    /// Packets leave each millisecond, and come each five.
    #[test]
    fn delivery_rate_is_that_of_the_slowest_link() {
        let mut flight = Flight::default();
        sends(&mut flight, 0..40, MS);
        let mut last = None;
        for number in 0..40 {
            let there_us = 15_000 + 5000 * number;
            // FEEDBACK is held up on its way back, and comes four at once.
            let back_ms = 30 + 5 * (number / 4 * 4 + 3);
            let (news, _) = of(&mut flight, back_ms * MS, there_us, &[(number, number)]);
            last = news.rate.or(last);
            if number > 0 {
                let rate = news.rate.unwrap().bytes_per_s();
                assert!(rate <= 1000 * 1000 / 5 * 11 / 10 || number < 4, "{number}: {rate}");
            }
        }
        assert_eq!(last.unwrap().bytes_per_s(), 200_000);
    }

    #[test]
    fn rate_of_an_application_that_pauses_is_marked() {
        let mut flight = Flight::default();
        sends(&mut flight, 0..1, MS);
        flight.note_app_limited();
        sends(&mut flight, 1..2, MS);
        of(&mut flight, 30 * MS, 10, &[(0, 0)]);
        let (news, _) = of(&mut flight, 31 * MS, 1010, &[(0, 1)]);
        assert!(news.rate.unwrap().is_app_limited);
        sends(&mut flight, 40..42, MS);
        of(&mut flight, 80 * MS, 50_000, &[(40, 40)]);
        let (news, _) = of(&mut flight, 81 * MS, 51_000, &[(40, 41)]);
        assert!(!news.rate.unwrap().is_app_limited);
    }

    #[test]
    fn forged_feedback_of_packets_that_were_never_sent_changes_nothing() {
        let mut flight = Flight::default();
        sends(&mut flight, 5..8, MS);
        let (news, told) = of(&mut flight, 31 * MS, 1, &[(0, 4)]);
        assert_eq!((news, told), (News::default(), vec![]));
        assert_eq!(flight.bytes(), 3000);
    }
}
