// SPDX-License-Identifier: Apache-2.0
//! An end's own clock, and a connection's requests for the other end's.

/// A clock that goes on by more at once has been set forward, or this end did not run for so long.
const JUMP_NS: u64 = 1_000_000_000;

/// Packets tell times that differ by so much.
const MOMENT_NS: u64 = 1000;

/// The caller's clock, made so that it never goes back: what is planned by it is still done in time. Where the caller's goes back this
/// one stands still at that moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnClock {
    last_ns: u64,
    /// It is ahead of the caller's.
    ahead_ns: u64,
    /// Since then it has not stepped, as far as can be seen.
    pub(super) whole_since_ns: u64,
}

/// What is seen of a clock when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    GoesOn,
    /// It was set back: some time is lost, at most that since it was read last.
    WentBack,
    /// It went on by so much.
    Jumped(u64),
}

impl OwnClock {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { last_ns: now_ns, ahead_ns: 0, whole_since_ns: 0 }
    }

    /// This clock's time at one of the caller's.
    pub(crate) fn of(&self, caller_ns: u64) -> u64 {
        caller_ns.saturating_add(self.ahead_ns).max(self.last_ns)
    }

    /// The caller's time at one of this clock.
    pub(crate) fn callers(&self, own_ns: u64) -> u64 {
        if own_ns == u64::MAX { own_ns } else { own_ns.saturating_sub(self.ahead_ns) }
    }

    /// Reads the clock, whose steps do not matter any more.
    pub(crate) fn goes_on(&mut self, caller_ns: u64) -> u64 {
        self.last_ns = self.of(caller_ns);
        self.last_ns
    }

    /// Reads the clock.
    pub(crate) fn read(&mut self, caller_ns: u64) -> (u64, Reading) {
        let (before_ns, shown_ns) = (self.last_ns, caller_ns.saturating_add(self.ahead_ns));
        let reading = if shown_ns < before_ns {
            // A moment later, so that what happened before differs from what happens from now on.
            self.last_ns = before_ns + MOMENT_NS;
            self.ahead_ns = self.last_ns - caller_ns;
            Reading::WentBack
        } else {
            self.last_ns = shown_ns;
            let by_ns = shown_ns - before_ns;
            if by_ns > JUMP_NS { Reading::Jumped(by_ns) } else { Reading::GoesOn }
        };
        if reading != Reading::GoesOn {
            self.whole_since_ns = self.last_ns;
        }
        (self.last_ns, reading)
    }
}

/// By how much later than the network brings it FEEDBACK is read: it waits for further packets, and threads of both ends wait to be
/// woken. A running mean, and how much it varies, as RFC 6298 has them for round trips.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Late {
    pub(super) mean_ns: u64,
    pub(super) varies_ns: u64,
}

impl Late {
    pub(super) fn note(&mut self, late_ns: u64) {
        self.varies_ns = (3 * self.varies_ns + self.mean_ns.abs_diff(late_ns)) / 4;
        self.mean_ns = (7 * self.mean_ns + late_ns) / 8;
    }
}

/// Longest time between two requests, and the time between the first ones, and those after a step.
const EVERY_NS: u64 = 500_000_000;
const SOON_NS: u64 = 50_000_000;
const SOON: u32 = 8;
/// While messages come a request goes with a packet that leaves anyway, as often as this, or this share of a round trip.
const CARRIED_EVERY_NS: u64 = 20_000_000;
const CARRIED_SHARE: u64 = 8;
/// Requests whose time is known: an answer may come after so many more have left.
const PINGS: usize = 32;

/// A request that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answered {
    /// When it left, and with which packet.
    pub(super) left_ns: u64,
    pub(super) packet: u64,
    /// None that left later was answered before it.
    pub(super) is_newest: bool,
}

/// Requests for the other end's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pings {
    /// When each left, in the place of its number; 0 if it was answered.
    left_ns: [u64; PINGS],
    /// Of the packets with which they left.
    numbers: [u64; PINGS],
    count: u64,
    /// One more than the newest one that was answered.
    answered: u64,
    last_ns: u64,
    next_ns: u64,
    /// So many follow soon.
    soon: u32,
    /// Messages came since the last one.
    is_wanted: bool,
}

impl Pings {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            left_ns: [0; PINGS],
            numbers: [0; PINGS],
            count: 0,
            answered: 0,
            last_ns: 0,
            next_ns: now_ns,
            soon: SOON,
            is_wanted: false,
        }
    }

    /// Requests so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// When one is to leave by itself.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// A message has come: the other end's clock matters.
    pub(super) fn wants(&mut self) {
        self.is_wanted = true;
    }

    /// One is to leave by itself by this time.
    pub(super) fn no_later_than(&mut self, at_ns: u64) {
        self.next_ns = self.next_ns.min(at_ns);
    }

    /// Nothing is known of the other end's clock.
    pub(super) fn start_again(&mut self, now_ns: u64) {
        (self.next_ns, self.soon) = (now_ns, SOON);
    }

    /// Whether one goes with a packet that leaves now.
    pub(super) fn is_carried(&self, now_ns: u64, round_trip_ns: u64) -> bool {
        let every_ns = CARRIED_EVERY_NS.max(round_trip_ns / CARRIED_SHARE);
        self.is_wanted && now_ns >= self.last_ns.saturating_add(every_ns)
    }

    /// What the next one says.
    pub(super) fn echo(&self) -> [u8; 8] {
        self.count.to_be_bytes()
    }

    fn place(number: u64) -> usize {
        usize::try_from(number % PINGS as u64).unwrap_or(0)
    }

    /// It leaves, with the packet of this number.
    pub(super) fn left(&mut self, now_ns: u64, number: u64) {
        let place = Self::place(self.count);
        (self.left_ns[place], self.numbers[place]) = (now_ns, number);
        self.count += 1;
        let gap_ns = if self.soon > 0 { SOON_NS } else { EVERY_NS };
        self.soon = self.soon.saturating_sub(1);
        (self.last_ns, self.next_ns, self.is_wanted) = (now_ns, now_ns + gap_ns, false);
    }

    /// The one with this answer; none if there is none, or it was answered.
    pub(super) fn answered(&mut self, echo: [u8; 8]) -> Option<Answered> {
        let number = u64::from_be_bytes(echo);
        let is_known = number < self.count && self.count - number <= PINGS as u64;
        let place = Self::place(number);
        let left_ns = is_known.then(|| std::mem::take(&mut self.left_ns[place])).filter(|left_ns| *left_ns > 0)?;
        let is_newest = number >= self.answered;
        self.answered = self.answered.max(number + 1);
        Some(Answered { left_ns, packet: self.numbers[place], is_newest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_goes_back_stands_still_for_a_moment() {
        let mut clock = OwnClock::new(1000);
        assert_eq!(clock.read(5000), (5000, Reading::GoesOn));
        assert_eq!(clock.read(3000), (6000, Reading::WentBack));
        assert_eq!((clock.read(3500), clock.of(3600)), ((6500, Reading::GoesOn), 6600));
        assert_eq!((clock.callers(7000), clock.callers(u64::MAX)), (4000, u64::MAX));
        assert_eq!(clock.read(0), (7500, Reading::WentBack));
        assert_eq!(clock.read(JUMP_NS + 1), (JUMP_NS + 7501, Reading::Jumped(JUMP_NS + 1)));
        assert_eq!(clock.whole_since_ns, JUMP_NS + 7501);
    }

    #[test]
    fn answers_are_known_though_more_requests_have_left() {
        let mut pings = Pings::new(7);
        for at in 0..40 {
            pings.left(100 + at, 1000 + at);
        }
        let answered = |pings: &mut Pings, number: u64| pings.answered(number.to_be_bytes());
        let of = |number: u64, is_newest| Some(Answered { left_ns: 100 + number, packet: 1000 + number, is_newest });
        assert_eq!((answered(&mut pings, 8), answered(&mut pings, 39)), (of(8, true), of(39, true)));
        assert_eq!(answered(&mut pings, 9), of(9, false), "a later one was answered before");
        assert_eq!((answered(&mut pings, 8), answered(&mut pings, 7), answered(&mut pings, 40)), (None, None, None));
        assert_eq!(answered(&mut pings, u64::MAX), None);
    }
}
