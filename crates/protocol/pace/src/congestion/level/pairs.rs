// SPDX-License-Identifier: Apache-2.0
//! The rate of the bottleneck's link, from pairs of packets that leave at once: the link serves one after the other,
//! whatever other flows do.
//!
//! Jitter may move the two of a pair by as much as the link does, so that the link seems several times as fast as it is. Where the first
//! pairs do not agree some trains follow, of more packets: jitter moves the last one of a train by no more, and the link by much more.

use std::collections::VecDeque;

use super::{
    super::{FEEDBACK_MOST_NS, Feedback},
    TOGETHER_US, as_f64,
};

/// Rates of pairs that are kept; the middle one counts.
pub(super) const KEPT: usize = 5;
/// So many pairs at least have come at once, before that says anything.
const TOGETHER_LEAST: usize = 2;
/// FEEDBACK does not wait for as long.
const FEEDBACK_MOST_US: f64 = 1.5 * FEEDBACK_MOST_NS as f64 / 1e3;
/// Pairs under way at a time that are measured.
const UNDER_WAY: usize = 8;
/// Two packets are a pair if they leave within this time.
const AT_ONCE_NS: u64 = 100_000;
/// If they come no farther apart than they have left, but for a quarter of that, the link has not moved them apart: it is faster
/// than they say.
const STRETCHED: u64 = 4;
const FASTER: f64 = f64::INFINITY;
/// Packets of a pair.
pub(super) const PAIR: u64 = 2;
/// It is jitter if pairs differ, or delays change from packet to packet, by more than this share of the time between the two of a pair, and by
/// more than this time.
const JITTER_SHARE: f64 = 0.15;
/// If pairs differ by no more than this, delays change for a queue of others.
const AGREES_SHARE: f64 = 0.03;
const JITTER_LEAST_US: f64 = TOGETHER_US;
/// So many pairs at least, and at most, say whether there is jitter.
const JITTER_PAIRS: std::ops::RangeInclusive<usize> = 3..=KEPT;
/// Packets of a train: with fewer it says little more than a pair. It makes a queue of this time at most, and of this share of a round trip:
/// on a short path queues show soon.
const TRAIN_LEAST: u64 = 5;
const TRAIN_MOST: u64 = 10;
const TRAIN_US: f64 = 8_000.0;
const TRAIN_ROUNDS: f64 = 0.3;
/// So many trains say what the link is, and so many are tried at most: packets may be lost, and an application may be too slow for them.
const TRAINS: usize = 2;
const TRAINS_TRIED: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Packets that leave before the next pair.
    Waits(u64),
    /// Some have left, the first and the last one at these times.
    Open { first_ns: u64, last_ns: u64, packets: u64, places: Places },
    /// All of so many have left; the packet after them leaves later, as they were early.
    Repays(u64),
}

/// Bytes sent with the first, and the last, packet of a pair or train, and all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    first: u64,
    last: u64,
}

/// A pair or a train under way.
#[derive(Debug, Clone, Copy)]
struct Expected {
    places: Places,
    packets: u64,
    /// Bytes of the last packet.
    bytes: u64,
    /// It left so much later than the first one.
    apart_us: u64,
}

/// How a train has begun to come: when the packet came that FEEDBACK says is the newest, bytes sent with it, and bytes delivered by then.
#[derive(Debug, Clone, Copy)]
struct Begun {
    came_us: u64,
    newest: u64,
    delivered: u64,
}

/// Sends pairs and measures them.
#[derive(Debug)]
pub(super) struct Pairs {
    state: State,
    expected: VecDeque<Expected>,
    /// Pairs that were sent since somebody asked.
    sent: u64,
    /// Bytes sent with the newest packet that has come.
    newest: u64,
    came_us: u64,
    rates: [f64; KEPT],
    /// Between two packets of each.
    gaps_us: [f64; KEPT],
    count: usize,
    /// Pairs that came at once: the path delivers in bursts, or is faster than clocks tell.
    together: usize,
    /// Packets of a train; none: pairs are enough.
    train: Option<u64>,
    /// Of the train that comes, by its first FEEDBACK.
    begun: Option<Begun>,
    /// Trains that were measured, and begun.
    trains: usize,
    tried: usize,
}

impl Pairs {
    /// The first two packets are a pair.
    pub(super) fn new() -> Self {
        Self {
            state: State::Waits(0),
            expected: VecDeque::with_capacity(UNDER_WAY),
            sent: 0,
            newest: 0,
            came_us: 0,
            rates: [0.0; KEPT],
            gaps_us: [0.0; KEPT],
            count: 0,
            together: 0,
            train: None,
            begun: None,
            trains: 0,
            tried: 0,
        }
    }

    /// A packet has left. `at`: bytes sent with it and before it. `apart`: packets between two pairs or trains; none for no more of them.
    /// `packets`: of the next one.
    pub(super) fn sent(&mut self, now_ns: u64, bytes: u64, at: u64, apart: Option<u64>, packets: u64) {
        self.state = match self.state {
            State::Waits(0) if apart.is_some() => {
                self.tried += usize::from(packets > PAIR);
                State::Open { first_ns: now_ns, last_ns: now_ns, packets: 1, places: Places { first: at, last: at } }
            }
            State::Waits(left) => State::Waits(left.saturating_sub(1)),
            State::Open { first_ns, last_ns, packets: before, places }
                if now_ns.saturating_sub(last_ns) <= AT_ONCE_NS =>
            {
                self.sent += 1;
                let (places, left) = (Places { last: at, ..places }, before + 1);
                if left >= packets {
                    self.expect(places, left, bytes, now_ns.saturating_sub(first_ns));
                    State::Repays(left)
                } else {
                    State::Open { first_ns, last_ns: now_ns, packets: left, places }
                }
            }
            // The application did not send the next one in time.
            State::Open { first_ns, last_ns, packets: left, places } => {
                if left >= PAIR {
                    self.expect(places, left, bytes, last_ns.saturating_sub(first_ns));
                }
                State::Waits(apart.unwrap_or(0))
            }
            State::Repays(_) => State::Waits(apart.unwrap_or(0)),
        };
    }

    fn expect(&mut self, places: Places, packets: u64, bytes: u64, apart_ns: u64) {
        // Of more pairs the newest ones are not measured.
        if self.expected.len() < UNDER_WAY {
            self.expected.push_back(Expected { places, packets, bytes, apart_us: apart_ns / 1000 });
        }
    }

    /// The pace until the next packet, in paces.
    pub(super) fn gap(&self) -> f64 {
        match self.state {
            State::Waits(_) => 1.0,
            State::Open { .. } => 0.0,
            State::Repays(packets) => as_f64(packets),
        }
    }

    /// Feedback has come. `change_us`: by how much delays change from packet to packet. `path_us`: a round trip. Returns whether its packet has
    /// waited for another one of its pair or train.
    pub(super) fn came(&mut self, feedback: &Feedback, [change_us, path_us]: [f64; 2]) -> bool {
        // Of older packets alone, which came out of order.
        let Some(newest) = feedback.newest_sent_bytes else { return false };
        let last_us = std::mem::replace(&mut self.came_us, feedback.came_us);
        let before = std::mem::replace(&mut self.newest, newest);
        let mut measured = None;
        while let Some(pair) = self.expected.pop_front_if(|pair| newest >= pair.places.last) {
            measured = Some(pair);
        }
        let Some(Expected { places: Places { last, .. }, packets, bytes, apart_us }) = measured else {
            return self.is_within(feedback, newest);
        };
        let begun = self.begun.take();
        if packets > PAIR {
            // Only if nothing of it was lost, or overtaken.
            if newest == last
                && let Some(begun) = begun
                && begun.newest + (TRAIN_LEAST - 1) * bytes <= last
                && feedback.delivered - begun.delivered == last - begun.newest
            {
                self.train_came(last - begun.newest, bytes, feedback.came_us.saturating_sub(begun.came_us), apart_us);
            }
            return true;
        }
        let came_bytes = feedback.came_bytes;
        if newest != last || before + came_bytes != last {
            return false;
        }
        // One FEEDBACK for both, which does not wait for as long as the link would take.
        let is_one =
            came_bytes >= 2 * bytes && self.link().is_some_and(|link| as_f64(bytes) * 1e6 / link > FEEDBACK_MOST_US);
        if came_bytes != bytes && !is_one {
            return false;
        }
        if is_one || feedback.came_us <= last_us {
            self.together += 1;
        } else {
            self.note(as_f64(bytes), 1.0, feedback.came_us - last_us, apart_us);
        }
        if self.train.is_none() && JITTER_PAIRS.contains(&self.count()) {
            self.train = self.train_packets(path_us).filter(|_| self.has_jitter(change_us));
        }
        true
    }

    /// Whether a packet of a train has come that is neither its first nor its last one.
    fn is_within(&mut self, feedback: &Feedback, newest: u64) -> bool {
        let is_train = |train: &&Expected| train.packets > PAIR && newest >= train.places.first;
        if self.expected.front().filter(is_train).is_none() {
            return false;
        }
        let is_first = self.begun.is_none();
        let Feedback { came_us, delivered, .. } = *feedback;
        self.begun.get_or_insert(Begun { came_us, newest, delivered });
        !is_first
    }

    /// So many bytes came in a time that left within another, after `gaps` gaps.
    fn note(&mut self, bytes: f64, gaps: f64, came_apart_us: u64, apart_us: u64) {
        let is_faster = came_apart_us <= apart_us + apart_us / STRETCHED;
        self.rates[self.count % KEPT] = if is_faster { FASTER } else { bytes * 1e6 / as_f64(came_apart_us) };
        self.gaps_us[self.count % KEPT] = as_f64(came_apart_us) / gaps;
        self.count += 1;
    }

    /// A train has come. What pairs and trains before these said does not count any more.
    fn train_came(&mut self, bytes: u64, packet: u64, came_apart_us: u64, apart_us: u64) {
        if self.trains == 0 {
            (self.count, self.together) = (0, 0);
        }
        self.trains += 1;
        self.note(as_f64(bytes), as_f64(bytes) / as_f64(packet), came_apart_us, apart_us);
    }

    /// The mean time between two packets that left at once.
    pub(super) fn gap_us(&self) -> f64 {
        let known = self.count.min(KEPT);
        let sum: f64 = self.gaps_us[..known].iter().sum();
        // Of those that came at once there was none.
        (sum / as_f64((known + self.together) as u64).max(1.0)).max(1.0)
    }

    /// Pairs do not say how fast the link is.
    pub(super) fn has_jitter(&self, change_us: f64) -> bool {
        let known = &self.gaps_us[..self.count.min(KEPT)];
        let most = known.iter().copied().fold(0.0, f64::max);
        let least = if self.together > 0 { 0.0 } else { known.iter().copied().fold(most, f64::min) };
        let differ_us = most - least;
        let is_queue = self.count() > 1 && differ_us <= AGREES_SHARE * self.gap_us();
        !is_queue && differ_us.max(change_us) > (JITTER_SHARE * self.gap_us()).max(JITTER_LEAST_US)
    }

    /// How many packets a train has; none: the link is too slow for one, the path too short, or it delivers in bursts.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few")]
    fn train_packets(&self, path_us: f64) -> Option<u64> {
        let packets = 1.0 + TRAIN_US.min(TRAIN_ROUNDS * path_us) / self.gap_us();
        let packets = (packets as u64).min(TRAIN_MOST);
        (packets >= TRAIN_LEAST && !self.are_together()).then_some(packets)
    }

    /// Trains are needed: there is jitter.
    pub(super) fn has_trains(&self) -> bool {
        self.train.is_some()
    }

    /// Trains have yet to say how fast the link is.
    pub(super) fn awaits_trains(&self) -> bool {
        self.train.is_some() && self.trains < TRAINS && (self.tried < TRAINS_TRIED || self.trains_under_way() > 0)
    }

    fn trains_under_way(&self) -> usize {
        self.expected.iter().filter(|pair| pair.packets > PAIR).count()
    }

    /// Packets of the next train; none: all that are needed are under way.
    pub(super) fn next_train(&self) -> Option<u64> {
        // The one that is just leaving is to be whole.
        let is_open = matches!(self.state, State::Open { .. });
        let is_wanted = self.tried < TRAINS_TRIED && self.trains + self.trains_under_way() < TRAINS;
        self.train.filter(|_| is_open || is_wanted)
    }

    /// The link is to be measured again.
    pub(super) fn again(&mut self) {
        (self.trains, self.tried) = (0, 0);
    }

    /// How many pairs were sent since the last call.
    pub(super) fn take_sent(&mut self) -> u64 {
        std::mem::take(&mut self.sent)
    }

    /// Whether not all came at once.
    pub(super) fn are_measured(&self) -> bool {
        self.count > 0
    }

    /// How many have come.
    pub(super) fn count(&self) -> usize {
        self.count + self.together
    }

    /// Bytes a second. None: not known yet, or the link is faster than the pairs can tell.
    pub(super) fn link(&self) -> Option<f64> {
        self.ranked(1, 2)
    }

    /// The rate of which this share of the pairs is slower.
    fn ranked(&self, share: usize, of: usize) -> Option<f64> {
        let known = self.count.min(KEPT);
        let mut sorted = self.rates;
        sorted[..known].sort_by(f64::total_cmp);
        (known > 0).then(|| sorted[known * share / of]).filter(|rate| *rate < FASTER)
    }

    /// Most pairs came at once.
    pub(super) fn are_together(&self) -> bool {
        self.together >= (2 * self.count).max(TOGETHER_LEAST)
    }

    /// The slowest of the pairs.
    fn least(&self) -> f64 {
        self.rates[..self.count.min(KEPT)].iter().copied().fold(f64::MAX, f64::min)
    }

    /// How far the slowest is below the middle one, in shares of that, twice: from 0, if they agree, to 1.
    pub(super) fn spread(&self) -> f64 {
        self.link().map_or(1.0, |link| (2.0 * (1.0 - self.least() / link)).clamp(0.0, 1.0))
    }

    /// The link's rate, as far as the pairs agree on it; the slowest of them if they do not. None: as many came at once.
    pub(super) fn sure_link(&self) -> Option<f64> {
        if self.are_together() {
            return None;
        }
        let (link, least) = (self.link()?, self.least());
        if self.trains > 0 && self.count <= TRAINS {
            return Some(least);
        }
        Some(least + (link - least) * (1.0 - self.spread()))
    }

    /// The same by the faster ones: others' packets between two make a link seem slow.
    pub(super) fn fast_link(&self) -> Option<f64> {
        self.ranked(3, 4)
    }

    /// The path delivers this: its link is not slower.
    pub(super) fn at_least(&mut self, rate: f64) {
        let known = self.count.min(KEPT);
        self.rates[..known].iter_mut().for_each(|known| *known = known.max(rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1000;
    /// By which jitter moves the packets of the first pairs, in microseconds.
    const JITTER_US: [i64; 3] = [600, -500, 300];
    /// Changes from packet to packet, and a round trip.
    const SEEN_US: [f64; 2] = [0.0, 30_000.0];

    /// So many bytes have come, the last one with the packet up to which so many were sent.
    fn feedback(came_us: u64, came_bytes: u64, newest: u64) -> Feedback {
        Feedback {
            came_bytes,
            lost_bytes: 0,
            marked_packets: 0,
            in_flight_bytes: 0,
            delivered: newest,
            delivered_before: 0,
            newest_sent_bytes: Some(newest),
            rate: None,
            round_trip_us: None,
            one_way_us: None,
            came_us,
            packet_bytes: BYTES,
            was_held: false,
        }
    }

    /// Sends so many at once as are wanted, and lets them come over a link that takes so long for each. `moved_us`: the last one, besides.
    fn round(pairs: &mut Pairs, sent: &mut u64, at_us: u64, link_us: u64, moved_us: i64) -> u64 {
        let packets = pairs.next_train().unwrap_or(PAIR);
        for _ in 0..packets {
            *sent += BYTES;
            pairs.sent(at_us * 1000, BYTES, *sent, Some(0), packets);
        }
        let first = *sent - packets * BYTES;
        for packet in 1..=packets {
            let us = at_us + 10_000 + packet * link_us;
            let us = if packet == packets { us.saturating_add_signed(moved_us) } else { us };
            pairs.came(&feedback(us, BYTES, first + packet * BYTES), SEEN_US);
        }
        // Repays.
        *sent += BYTES;
        pairs.sent(at_us * 1000 + 9_000_000, BYTES, *sent, Some(0), PAIR);
        pairs.came(&feedback(at_us + 19_000, BYTES, *sent), SEEN_US);
        packets
    }

    #[test]
    fn trains_say_what_pairs_with_jitter_do_not() {
        let (mut pairs, mut sent) = (Pairs::new(), 0);
        for (at, moved_us) in (0..).zip(JITTER_US) {
            assert_eq!(round(&mut pairs, &mut sent, at * 30_000, 800, moved_us), PAIR);
        }
        assert!(pairs.has_trains() && pairs.awaits_trains());
        for (at, moved_us) in [(3, 600), (4, -500)] {
            assert!(round(&mut pairs, &mut sent, at * 30_000, 800, moved_us) >= TRAIN_LEAST);
        }
        // 1,000 bytes in 800 us.
        let link = pairs.sure_link().expect("measured") / 1.25e6;
        assert!((0.85..1.0).contains(&link) && !pairs.awaits_trains(), "{link:.2} of the link");
        assert_eq!(pairs.next_train(), None);
    }

    /// A packet before the pair is lost: what follows the pair, a pace later, is no part of it.
    #[test]
    fn pair_behind_a_lost_packet_is_measured_by_its_own_packets() {
        let mut pairs = Pairs::new();
        for at in 0..10 {
            let (sent, sent_ns) = (at * 4 * BYTES, at * 40_000_000);
            pairs.sent(sent_ns, BYTES, sent + BYTES, Some(1), PAIR);
            pairs.sent(sent_ns, BYTES, sent + 2 * BYTES, Some(1), PAIR);
            pairs.sent(sent_ns + 20_000_000, BYTES, sent + 3 * BYTES, Some(1), PAIR);
            pairs.sent(sent_ns + 30_000_000, BYTES, sent + 4 * BYTES, Some(1), PAIR);
            // The first packet after each pair is lost, so that less is delivered than was sent.
            for (place, us) in [(1, 10_800), (2, 11_600), (4, 40_000)] {
                let delivered = (at * 3 + place.min(3)) * BYTES;
                let feedback = feedback(at * 40_000 + us, BYTES, sent + place * BYTES);
                pairs.came(&Feedback { delivered, ..feedback }, SEEN_US);
            }
        }
        assert_eq!((pairs.count(), pairs.has_trains()), (10, false));
        // 1,000 bytes in 800 us.
        let link = pairs.sure_link().expect("measured") / 1.25e6;
        assert!((link - 1.0).abs() < 0.01, "{link:.2} of the link");
    }

    #[test]
    fn pairs_that_agree_are_enough() {
        let (mut pairs, mut sent) = (Pairs::new(), 0);
        for at in 0..10 {
            assert_eq!(round(&mut pairs, &mut sent, at * 30_000, 800, 0), PAIR);
        }
        assert!(!pairs.has_trains());
        let link = pairs.sure_link().expect("measured") / 1.25e6;
        assert!((link - 1.0).abs() < 0.01, "{link:.2} of the link");
    }

    /// The first packet of each pair is lost, and the next packet, 20 ms later, is as long.
    #[test]
    fn pairs_that_lost_a_packet_say_nothing() {
        let (mut pairs, mut sent, mut delivered) = (Pairs::new(), 0, 0);
        for at_us in (0..10).map(|at| at * 60_000) {
            for (after_us, is_lost) in [(0, true), (0, false), (20_000, false)] {
                sent += BYTES;
                pairs.sent((at_us + after_us) * 1000, BYTES, sent, Some(0), PAIR);
                if !is_lost {
                    delivered += BYTES;
                    let feedback = feedback(at_us + after_us + 10_000, BYTES, sent);
                    pairs.came(&Feedback { delivered, ..feedback }, SEEN_US);
                }
            }
        }
        assert_eq!((pairs.count(), pairs.link()), (0, None));
    }

    #[test]
    fn trains_that_do_not_come_whole_are_given_up() {
        let (mut pairs, mut sent) = (Pairs::new(), 0);
        for (at, moved_us) in (0..).zip(JITTER_US) {
            round(&mut pairs, &mut sent, at * 30_000, 800, moved_us);
        }
        for at in 3..20 {
            // The application sends one, and the next a millisecond later.
            let packets = pairs.next_train().unwrap_or(PAIR);
            sent += BYTES;
            pairs.sent(at * 30_000_000, BYTES, sent, Some(0), packets);
            sent += BYTES;
            pairs.sent(at * 30_000_000 + 1_000_000, BYTES, sent, Some(0), packets);
            pairs.came(&feedback(at * 30_000 + 12_000, 2 * BYTES, sent), SEEN_US);
        }
        assert!(!pairs.awaits_trains());
    }
}
