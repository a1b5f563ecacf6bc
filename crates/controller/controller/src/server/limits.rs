// SPDX-License-Identifier: Apache-2.0
//! Each peer's share of everything.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fide_controller_api::identity::Identity;
use fide_controller_api::limits::{BODY_MAX, CONNECTIONS_PER_PEER, POLLS_PER_PEER, REQUESTS_BURST, REQUESTS_PER_S};
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use super::{
    BODY_TIMEOUT, CONNECTIONS_MAX, GRACE, HANDSHAKE_TIMEOUT, HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS, HEAD_TIMEOUT,
    REFUSALS_PER_PEER,
};

/// The bounds of a server; the constants, except in tests that reach them.
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

/// The latest time that a bucket was used at, ns. governor reads its clock itself; here the time comes as
/// an argument.
#[derive(Debug)]
struct Passed(AtomicU64);

impl Clock for Passed {
    type Instant = Duration;

    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// A token bucket.
#[derive(Debug)]
pub(super) struct Bucket(RateLimiter<NotKeyed, InMemoryState, Passed, NoOpMiddleware<Duration>>);

const NANO: u64 = 1_000_000_000;

impl Bucket {
    /// Full: with all of its `burst`. Both are at least 1.
    pub(super) fn full(per_s: u64, burst: u64, now_ns: u64) -> Bucket {
        let each = Duration::from_nanos(NANO.div_ceil(per_s.max(1)));
        let burst = NonZeroU32::new(u32::try_from(burst).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(each).expect("at least a nanosecond").allow_burst(burst);
        Bucket(RateLimiter::direct_with_clock(quota, Passed(AtomicU64::new(now_ns))))
    }

    /// Takes a token, or returns the seconds (at least 1) until there is one. A clock that goes back adds
    /// no tokens.
    pub(super) fn take(&self, now_ns: u64) -> Result<(), u64> {
        self.0.clock().0.fetch_max(now_ns, Ordering::Relaxed);
        self.0.check().map_err(|refused| {
            let wait = refused.wait_time_from(self.0.clock().now());
            (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
        })
    }

    /// When it was last used.
    fn at_ns(&self) -> u64 {
        self.0.clock().0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Use {
    bucket: Bucket,
    polls: usize,
    connections: usize,
}

/// Each peer's usage. A peer without connections is forgotten, so there are at most as many as connections.
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

    /// Counts a connection. The second value is whether it is one too many. `None` if it is not even kept
    /// open to be refused.
    pub(super) fn connect(&self, peer: Identity, now_ns: u64) -> Option<(Held, bool)> {
        let mut uses = self.lock();
        let new = || Use {
            bucket: Bucket::full(self.limits.requests_per_s, self.limits.requests_burst, now_ns),
            polls: 0,
            connections: 0,
        };
        let one = uses.entry(peer).or_insert_with(new);
        if one.connections >= self.limits.connections_per_peer + self.limits.refusals_per_peer {
            return None;
        }
        one.connections += 1;
        Some((Held { peers: self.clone(), peer, poll: false }, one.connections > self.limits.connections_per_peer))
    }

    /// Counts a request of a connected peer, or returns the seconds until it may make one.
    pub(super) fn request(&self, peer: Identity, now_ns: u64) -> Result<(), u64> {
        match self.lock().get_mut(&peer) {
            Some(one) => one.bucket.take(now_ns),
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

/// Seconds after which a peer that is gone would have a full bucket anyway.
const FORGET_NS: u64 = 60 * NANO;

impl Drop for Held {
    fn drop(&mut self) {
        let mut uses = self.peers.lock();
        let Some(one) = uses.get_mut(&self.peer) else { return };
        match self.poll {
            true => one.polls = one.polls.saturating_sub(1),
            false => one.connections = one.connections.saturating_sub(1),
        }
        // A new connection must not bring a full bucket: the bucket is kept until it would be full anyway.
        let now_ns = crate::clock::Now::read().boot_ns;
        uses.retain(|_, one| {
            one.connections > 0 || one.polls > 0 || now_ns.saturating_sub(one.bucket.at_ns()) < FORGET_NS
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bucket_gives_its_burst_and_then_its_rate() {
        let bucket = Bucket::full(2, 3, 0);
        for _ in 0..3 {
            assert_eq!(bucket.take(0), Ok(()));
        }
        assert_eq!(bucket.take(0), Err(1));
        assert_eq!(bucket.take(NANO / 2), Ok(()));
        assert_eq!(bucket.take(NANO / 2), Err(1));
        // A clock that goes back adds no tokens.
        assert_eq!(bucket.take(0), Err(1));
        for _ in 0..3 {
            assert_eq!(bucket.take(100 * NANO), Ok(()));
        }
        assert_eq!(bucket.take(100 * NANO), Err(1));
    }

    proptest! {
        /// Never more than burst + rate * time; and a peer that waits as long as it was asked to gets a
        /// token.
        #[test]
        fn bucket_holds_its_bound(per_s in 1..1000u64, burst in 1..100u64, gaps in prop::collection::vec(0..NANO / 10, 0..300)) {
            let (bucket, mut now, mut taken) = (Bucket::full(per_s, burst, 0), 0, 0u64);
            for gap in gaps {
                now += gap;
                if let Err(s) = bucket.take(now) {
                    now += s * NANO;
                    prop_assert_eq!(bucket.take(now), Ok(()));
                }
                taken += 1;
                prop_assert!(u128::from(taken) * u128::from(NANO) <= u128::from(burst * NANO) + u128::from(per_s) * u128::from(now));
            }
        }
    }
}
