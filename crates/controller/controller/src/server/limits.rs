// SPDX-License-Identifier: Apache-2.0
//! How much of everything a peer may have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fide_controller_api::identity::Identity;
use fide_controller_api::limits::{BODY_MAX, CONNECTIONS_PER_PEER, POLLS_PER_PEER, REQUESTS_BURST, REQUESTS_PER_S};

use super::{
    BODY_TIMEOUT, CONNECTIONS_MAX, GRACE, HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS, HEAD_TIMEOUT,
    REFUSALS_PER_PEER,
};

/// The bounds of a server; the constants unless a test wants to meet them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub connections: usize,
    pub handshakes: usize,
    pub handshakes_per_address: usize,
    pub connections_per_peer: usize,
    pub refusals_per_peer: usize,
    pub body_bytes: usize,
    pub requests_per_s: u64,
    pub requests_burst: u64,
    pub polls_per_peer: usize,
    pub handshake_timeout: Duration,
    pub head_timeout: Duration,
    pub body_timeout: Duration,
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: CONNECTIONS_MAX,
            handshakes: HANDSHAKES_MAX,
            handshakes_per_address: HANDSHAKES_PER_ADDRESS,
            connections_per_peer: CONNECTIONS_PER_PEER,
            refusals_per_peer: REFUSALS_PER_PEER,
            body_bytes: BODY_MAX,
            requests_per_s: REQUESTS_PER_S,
            requests_burst: REQUESTS_BURST,
            polls_per_peer: POLLS_PER_PEER,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            head_timeout: HEAD_TIMEOUT,
            body_timeout: BODY_TIMEOUT,
            grace: GRACE,
        }
    }
}

/// A token bucket, in billionths of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bucket {
    nanotokens: u64,
    at_ns: u64,
}

const NANO: u64 = 1_000_000_000;

impl Bucket {
    pub(super) fn full(burst: u64, now_ns: u64) -> Bucket {
        Bucket { nanotokens: burst.saturating_mul(NANO), at_ns: now_ns }
    }

    /// Takes a token, or says after how many seconds (at least 1) there is one.
    pub(super) fn take(&mut self, per_s: u64, burst: u64, now_ns: u64) -> Result<(), u64> {
        let gained = now_ns.saturating_sub(self.at_ns).saturating_mul(per_s);
        self.at_ns = self.at_ns.max(now_ns);
        self.nanotokens = self.nanotokens.saturating_add(gained).min(burst.saturating_mul(NANO));
        match self.nanotokens.checked_sub(NANO) {
            Some(rest) => {
                self.nanotokens = rest;
                Ok(())
            }
            None => Err((NANO - self.nanotokens).div_ceil(per_s.max(1)).div_ceil(NANO).max(1)),
        }
    }
}

#[derive(Debug)]
struct Use {
    bucket: Bucket,
    polls: usize,
    connections: usize,
}

/// What each peer has. A peer without connections is forgotten, so there are at most as many as connections.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    limits: Limits,
    uses: Arc<Mutex<BTreeMap<Identity, Use>>>,
}

/// A poll or a connection; given back when dropped.
#[derive(Debug)]
pub(super) struct Held {
    peers: Peers,
    peer: Identity,
    poll: bool,
}

impl Peers {
    pub(super) fn new(limits: Limits) -> Peers {
        Peers { limits, uses: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Identity, Use>> {
        self.uses.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts a connection. The second value is whether it is one too many. `None` beyond those that are to be told so.
    pub(super) fn connect(&self, peer: Identity, now_ns: u64) -> Option<(Held, bool)> {
        let mut uses = self.lock();
        let new = || Use { bucket: Bucket::full(self.limits.requests_burst, now_ns), polls: 0, connections: 0 };
        let one = uses.entry(peer).or_insert_with(new);
        if one.connections >= self.limits.connections_per_peer + self.limits.refusals_per_peer {
            return None;
        }
        one.connections += 1;
        Some((Held { peers: self.clone(), peer, poll: false }, one.connections > self.limits.connections_per_peer))
    }

    /// Counts a request of a connected peer, or says after how many seconds it may make one.
    pub(super) fn request(&self, peer: Identity, now_ns: u64) -> Result<(), u64> {
        match self.lock().get_mut(&peer) {
            Some(one) => one.bucket.take(self.limits.requests_per_s, self.limits.requests_burst, now_ns),
            None => Ok(()),
        }
    }

    /// Counts a long poll of a connected peer, if it may have one more.
    pub(super) fn poll(&self, peer: Identity) -> Option<Held> {
        let mut uses = self.lock();
        let one = uses.get_mut(&peer)?;
        (one.polls < self.limits.polls_per_peer).then(|| {
            one.polls += 1;
            Held { peers: self.clone(), peer, poll: true }
        })
    }
}

/// Seconds after which a peer that is gone has its full bucket again by itself.
const FORGET_NS: u64 = 60 * NANO;

impl Drop for Held {
    fn drop(&mut self) {
        let mut uses = self.peers.lock();
        let Some(one) = uses.get_mut(&self.peer) else { return };
        match self.poll {
            true => one.polls = one.polls.saturating_sub(1),
            false => one.connections = one.connections.saturating_sub(1),
        }
        // Reconnecting is no way to a full bucket: kept until it would be full anyway.
        let now_ns = crate::clock::Now::read().boot_ns;
        uses.retain(|_, one| {
            one.connections > 0 || one.polls > 0 || now_ns.saturating_sub(one.bucket.at_ns) < FORGET_NS
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = Bucket::full(3, 0);
        for _ in 0..3 {
            assert_eq!(bucket.take(2, 3, 0), Ok(()));
        }
        assert_eq!(bucket.take(2, 3, 0), Err(1));
        assert_eq!(bucket.take(2, 3, NANO / 2), Ok(()));
        assert_eq!(bucket.take(2, 3, NANO / 2), Err(1));
        // A clock that goes back gives nothing.
        assert_eq!(bucket.take(2, 3, 0), Err(1));
        for _ in 0..3 {
            assert_eq!(bucket.take(2, 3, 100 * NANO), Ok(()));
        }
        assert_eq!(bucket.take(2, 3, 100 * NANO), Err(1));
    }

    proptest! {
        /// Never more than burst + rate * time; and who waits as told gets one.
        #[test]
        fn a_bucket_holds_its_bound(per_s in 1..1000u64, burst in 1..100u64, gaps in prop::collection::vec(0..NANO / 10, 0..300)) {
            let (mut bucket, mut now, mut taken) = (Bucket::full(burst, 0), 0, 0u64);
            for gap in gaps {
                now += gap;
                match bucket.take(per_s, burst, now) {
                    Ok(()) => taken += 1,
                    Err(s) => prop_assert!(bucket.clone().take(per_s, burst, now + s * NANO).is_ok()),
                }
                prop_assert!(u128::from(taken) * u128::from(NANO) <= u128::from(burst * NANO) + u128::from(per_s) * u128::from(now));
            }
        }
    }
}
