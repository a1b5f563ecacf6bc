// SPDX-License-Identifier: Apache-2.0
//! Where a peer is: RFC 9000 §9.
//!
//! A peer's address may change, and its newest packets come from another one then. They also do so if somebody on the path
//! copies them, and brings them sooner. So both addresses are asked, each in a packet of its own with bytes that come back:
//!
//! | the old one answers | the new one answers | |
//! |---|---|---|
//! | no | yes | the peer has moved |
//! | yes | | it has not: whoever sends from the new address hands on what the peer sends |
//! | later | yes | it moves, and back again |
//!
//! The new address has to answer from there. The answer of the old one may come from anywhere: only the peer itself can give it, and
//! whoever copies packets brings that one sooner, too. It is waited for somewhat longer than a round trip.

use std::net::SocketAddr;

use crate::packet::{HEADER_LEN, SENT_LEN, TAG_LEN};

/// Bytes that come back.
pub(super) type Echo = [u8; 8];

/// An address is asked so often at most.
const CHALLENGE_NS: u64 = 100_000_000;
/// Bytes of a packet that asks. A packet that is shorter makes none: an address that is not proven gets no more than it sent.
const CHALLENGE_LEN: usize = HEADER_LEN + SENT_LEN + 1 + size_of::<Echo>() + TAG_LEN;
/// A new address has this time and two round trips, before another one is asked in its place.
const PATIENCE_NS: u64 = 100_000_000;
/// The old one has so much more than a round trip.
const GRACE_NS: u64 = 2_000_000;
/// For so long packets from there bring a peer back to the address that it has left.
const LEFT_NS: u64 = 10_000_000_000;

/// A packet of the peer, which it has sealed: maybe a copy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Came {
    pub(super) from: SocketAddr,
    pub(super) number: u64,
    /// It has the largest number so far.
    pub(super) is_newest: bool,
    /// Bytes of the datagram.
    pub(super) len: usize,
    pub(super) round_trip_ns: u64,
}

/// An address from which the peer's packets come, while it is not known to be there.
#[derive(Debug, Clone, Copy)]
struct Other {
    address: SocketAddr,
    echo: Echo,
    /// Of the address where it was last known to be.
    old_echo: Echo,
    since_ns: u64,
    asked_ns: u64,
    waits_ns: u64,
    /// It has answered: the peer moves there then.
    moves_ns: Option<u64>,
}

/// An address that the peer has left.
#[derive(Debug, Clone, Copy)]
struct Left {
    address: SocketAddr,
    /// The largest number at that time.
    number: u64,
    until_ns: u64,
    /// What it was asked with last.
    echo: Echo,
}

/// The addresses of one peer.
#[derive(Debug)]
pub(super) struct Paths {
    current: SocketAddr,
    other: Option<Other>,
    left: Option<Left>,
    /// The largest number so far.
    largest: u64,
    /// Nobody is asked before this time.
    asks_ns: u64,
}

impl Paths {
    pub(super) fn new(current: SocketAddr) -> Self {
        Self { current, other: None, left: None, largest: 0, asks_ns: 0 }
    }

    /// Where packets go.
    pub(super) fn current(&self) -> SocketAddr {
        self.current
    }

    /// Where a packet goes that asks with these bytes.
    pub(super) fn asked(&self, echo: Echo) -> SocketAddr {
        let other = self.other.filter(|other| other.echo == echo).map(|other| other.address);
        let left = || self.left.filter(|left| left.echo == echo).map(|left| left.address);
        other.or_else(left).unwrap_or(self.current)
    }

    /// When to call [`Paths::timeout`].
    pub(super) fn due_ns(&self) -> u64 {
        self.other.and_then(|other| other.moves_ns).unwrap_or(u64::MAX)
    }

    fn left(&self, now_ns: u64) -> Option<Left> {
        self.left.filter(|left| now_ns < left.until_ns)
    }

    /// A packet has come. Returns with which bytes two addresses are to be asked, if they are. `echo`: bytes that nobody can
    /// guess, others for each number.
    pub(super) fn came(&mut self, now_ns: u64, came: Came, echo: impl Fn(u8) -> Echo) -> Option<[Echo; 2]> {
        if came.is_newest {
            self.largest = came.number;
        }
        if came.from == self.current || came.len < CHALLENGE_LEN || now_ns < self.asks_ns {
            return None;
        }
        let is_left = self.left(now_ns).is_some_and(|left| left.address == came.from && came.number > left.number);
        if !came.is_newest && !is_left {
            return None;
        }
        let other = match &mut self.other {
            Some(other) if other.address == came.from => {
                other.asked_ns = now_ns;
                *other
            }
            // Not each address that somebody sends from in between.
            Some(other) if now_ns < other.since_ns + PATIENCE_NS + 2 * came.round_trip_ns && !is_left => return None,
            _ => *self.other.insert(Other {
                address: came.from,
                echo: echo(0),
                old_echo: echo(1),
                since_ns: now_ns,
                asked_ns: now_ns,
                waits_ns: came.round_trip_ns + GRACE_NS,
                moves_ns: None,
            }),
        };
        self.asks_ns = now_ns + CHALLENGE_NS;
        Some([other.old_echo, other.echo])
    }

    /// These bytes have come back: the peer may be at another address from now on.
    pub(super) fn answered(&mut self, now_ns: u64, from: SocketAddr, echo: Echo) {
        // It moved a moment ago, and is at the old address nevertheless.
        if let Some(left) = self.left(now_ns).filter(|left| left.echo == echo) {
            self.go_back(left);
            return;
        }
        let Some(other) = self.other else { return };
        if let Some(left) = self.left(now_ns).filter(|left| left.address == other.address && other.echo == echo) {
            self.go_back(left);
            return;
        }
        if other.old_echo == echo && self.left(now_ns).is_none_or(|left| left.address != other.address) {
            self.other = None;
        }
        if other.echo == echo && other.address == from {
            let moves_ns = other.moves_ns.unwrap_or(other.asked_ns + other.waits_ns);
            self.other = Some(Other { moves_ns: Some(moves_ns), ..other });
        }
        self.timeout(now_ns);
    }

    /// Time has passed: the peer may be at another address from now on.
    pub(super) fn timeout(&mut self, now_ns: u64) {
        let Some(other) = self.other.filter(|other| other.moves_ns.is_some_and(|moves_ns| now_ns >= moves_ns)) else {
            return;
        };
        let (address, number) = (std::mem::replace(&mut self.current, other.address), self.largest);
        self.left = Some(Left { address, number, until_ns: now_ns + LEFT_NS, echo: other.old_echo });
        self.other = None;
    }

    fn go_back(&mut self, left: Left) {
        // The one where it was taken for is an address as any other now.
        (self.current, self.other, self.left) = (left.address, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RTT: u64 = 20 * MS;
    /// It waits so long for the old address.
    const HOLD: u64 = RTT + GRACE_NS;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 5000))
    }

    fn packet(host: u8, number: u64, is_newest: bool) -> Came {
        Came { from: at(host), number, is_newest, len: 100, round_trip_ns: RTT }
    }

    fn echo(number: u64) -> impl Fn(u8) -> Echo {
        move |which| (number * 256 + u64::from(which)).to_be_bytes()
    }

    fn asks(paths: &mut Paths, now_ns: u64, came: Came) -> Option<[Echo; 2]> {
        paths.came(now_ns, came, echo(came.number))
    }

    fn moves(paths: &mut Paths, act: impl FnOnce(&mut Paths)) -> bool {
        let before = paths.current();
        act(paths);
        paths.current() != before
    }

    #[test]
    fn peer_whose_old_address_is_silent_moves_after_a_round_trip() {
        let mut paths = Paths::new(at(1));
        assert_eq!(asks(&mut paths, 0, packet(1, 1, true)), None);
        let [old, new] = asks(&mut paths, MS, packet(2, 2, true)).unwrap();
        assert_eq!((paths.asked(old), paths.asked(new)), (at(1), at(2)));
        assert!(!moves(&mut paths, |paths| paths.answered(MS + RTT, at(3), new)), "from elsewhere");
        assert_eq!(paths.due_ns(), u64::MAX);
        assert!(!moves(&mut paths, |paths| paths.answered(MS + RTT, at(2), new)));
        assert_eq!(paths.due_ns(), MS + HOLD);
        assert!(!moves(&mut paths, |paths| paths.timeout(MS + HOLD - 1)));
        assert!(moves(&mut paths, |paths| paths.timeout(MS + HOLD)));
        assert_eq!((paths.current(), paths.due_ns()), (at(2), u64::MAX));
    }

    #[test]
    fn address_that_is_asked_again_keeps_its_bytes() {
        let mut paths = Paths::new(at(1));
        let long = |came: Came| Came { round_trip_ns: 50 * RTT, ..came };
        let [_, new] = asks(&mut paths, 0, long(packet(2, 2, true))).unwrap();
        for turn in 1..8 {
            let again = asks(&mut paths, turn * CHALLENGE_NS, long(packet(2, 2 + turn, true)));
            assert_eq!(again.map(|[_, new]| new), Some(new));
            assert_eq!(asks(&mut paths, turn * CHALLENGE_NS + 1, long(packet(2, 3 + turn, true))), None, "so soon");
        }
        assert!(!moves(&mut paths, |paths| paths.answered(50 * RTT, at(2), new)));
        assert!(paths.due_ns() < 100 * RTT);
    }

    #[test]
    fn peer_that_answers_at_its_address_stays() {
        let mut paths = Paths::new(at(1));
        let [old, new] = asks(&mut paths, 0, packet(2, 2, true)).unwrap();
        assert!(!moves(&mut paths, |paths| paths.answered(RTT - MS, at(2), new)));
        assert!(
            !moves(&mut paths, |paths| paths.answered(RTT, at(2), old)),
            "a copy of the old address' answer, which comes sooner"
        );
        assert!(
            !moves(&mut paths, |paths| paths.timeout(10 * RTT))
                && !moves(&mut paths, |paths| paths.answered(10 * RTT, at(2), new))
        );
        assert_eq!(paths.current(), at(1));
    }

    #[test]
    fn peer_that_was_taken_to_another_address_comes_back() {
        for answers_late in [false, true] {
            let mut paths = Paths::new(at(1));
            let [old, new] = asks(&mut paths, 0, packet(2, 2, true)).unwrap();
            paths.answered(RTT, at(2), new);
            assert!(moves(&mut paths, |paths| paths.timeout(HOLD)) && paths.current() == at(2));
            if answers_late {
                assert!(moves(&mut paths, |paths| paths.answered(HOLD + 1, at(2), old)));
            } else {
                // Each of its packets comes from the other address first.
                assert_eq!(asks(&mut paths, CHALLENGE_NS, packet(2, 3, true)), None);
                let [other, left] = asks(&mut paths, CHALLENGE_NS, packet(1, 3, false)).unwrap();
                assert_eq!((paths.asked(other), paths.asked(left)), (at(2), at(1)));
                assert!(
                    !moves(&mut paths, |paths| paths.answered(CHALLENGE_NS + RTT, at(2), other)),
                    "that one answers, too"
                );
                assert!(moves(&mut paths, |paths| paths.answered(CHALLENGE_NS + RTT, at(2), left)));
            }
            assert_eq!(paths.current(), at(1));
            // And it is not taken back there.
            let at_ns = 10 * CHALLENGE_NS;
            let [old, new] = asks(&mut paths, at_ns, packet(2, 9, true)).unwrap();
            assert!(
                !moves(&mut paths, |paths| paths.answered(at_ns + 1, at(2), new))
                    && !moves(&mut paths, |paths| paths.answered(at_ns + 1, at(2), old))
            );
            assert!(!moves(&mut paths, |paths| paths.timeout(2 * at_ns)) && paths.current() == at(1));
        }
    }

    #[test]
    fn packets_from_the_time_before_a_move_bring_nobody_back() {
        let mut paths = Paths::new(at(1));
        let [_, new] = asks(&mut paths, 0, packet(2, 7, true)).unwrap();
        paths.answered(RTT, at(2), new);
        assert!(moves(&mut paths, |paths| paths.timeout(HOLD)));
        assert_eq!(asks(&mut paths, CHALLENGE_NS, packet(1, 6, false)), None);
        assert_eq!(asks(&mut paths, LEFT_NS * 2, packet(1, 9, false)), None, "long after that");
    }

    #[test]
    fn address_gets_no_more_than_it_sent() {
        let mut paths = Paths::new(at(1));
        let short = Came { len: CHALLENGE_LEN - 1, ..packet(2, 2, true) };
        assert_eq!(asks(&mut paths, 0, short), None);
        // Nor does another one in between, until the first had its time.
        assert!(asks(&mut paths, 0, packet(2, 3, true)).is_some());
        assert_eq!(asks(&mut paths, CHALLENGE_NS, packet(3, 4, true)), None);
        assert!(asks(&mut paths, 2 * CHALLENGE_NS, packet(3, 5, true)).is_some());
    }
}
