// SPDX-License-Identifier: Apache-2.0
//! For how long this node may act (trust = lease).
//!
//! # Why nobody acts on the silence of a node that still acts
//!
//! Let host j acknowledge heartbeat n of host i with the promise T. j received n at r (j's clock) and
//! promises not to suspect i before r + T. i sent n at s(n), before j received it. On i's clock the limit is
//! s(n) + T - m with the margin m = T * drift: in that time j's clock, which runs at most `drift_ppm` faster,
//! advances by less than T. So while i is within the limit, j has not suspected i, whatever the network or
//! either scheduler did in between. A late acknowledgement only gives a limit that has passed already.
//!
//! j keeps the promise because its own deadline is never sooner. T is the least of j's pair timeouts.
//! Timeouts only grow while j runs; where views judge they may shrink, and then j keeps what it promised by
//! its record of it (`promised_until_ns`). And j counts i's silence from i's newest heartbeat, which is no
//! older than the one acknowledged. So the observer waits the lease out by construction, and under policy
//! network nothing is added when it suspects. An incarnation superseded by a newer one was promised the same,
//! so its verdict waits for the same moment.
//!
//! # Policy network
//!
//! Any host that monitors i may go on without it, so i's lease is the least limit over all live peers that
//! monitor it. A peer that i itself has declared dead does not count: if the two were merely cut off from
//! each other, each waits out the other, and both go on. That is the split which this policy accepts (all
//! trees between them cut at once).
//!
//! **The first limit.** When i hears a peer for the first time, its heartbeat g *greets* the peer: it
//! acknowledges the peer's incarnation and no heartbeat (`seq_low` 0). A peer judges only hosts that have
//! greeted it. It cannot act on a silence before s(g) + T, so that is its first limit, and a host that starts
//! fences nobody. A peer that was never greeted cannot judge. A peer whose last heartbeat said that it does
//! not hear i is not judged, as it may act without regard to i. If that peer had heard this incarnation of i
//! before, it has declared it dead by now, and i takes itself for excluded: the word of it may be lost.
//!
//! **A new agent on i.** If i's agent ends and another one starts, i's programs still act by the lease that
//! the first agent left in shared memory: until i's shortest timeout after that agent's last turn. A host
//! that hears the new incarnation, and had not been acknowledged by the one before, was no part of that
//! lease. So it allows the former incarnation the longest lease that i can have granted, counted from when it
//! hears the new one: what i promised to others, which is no less than i's shortest timeout.
//!
//! **A stall is no cut, and must not split the cluster.** If i stalled until its limit for j had passed, j
//! may have declared i dead and act alone. If i heard only what j had sent before, j may never have taken i
//! to be up, and acts without regard to it. If j then falls silent, i cannot tell whether j has died, or has
//! stalled and will act. So i declares no peer dead that is not *bound*. A peer is not bound if
//!
//! - its newest heartbeat did not acknowledge one of i's while the limit of that one was still ahead; or
//! - i has stalled beyond the peer's limit since; or
//! - the peer's limit ran out before it acknowledged what i sent after a stall: that left late, and perhaps
//!   too late.
//!
//! When such a peer is silent for its timeout, or another incarnation of it is heard, i takes itself for
//! excluded and comes back as another incarnation. This also holds for a peer that i has not heard to know i,
//! if i has greeted it and has stalled since. (An acknowledgement of a heartbeat says that j takes i to be
//! up; the greeting does not.)
//!
//! # Policy majority
//!
//! Only a majority of the view can go on without i ([`crate::view`]), so i's lease is the (n/2)-th largest
//! limit among the n members, own excluded. Then i and n/2 others, a majority, are bound, and every other
//! majority contains one of them. [`crate::view`] says what a change of view adds to this.

use crate::config::Config;
use crate::types::Event;
use fide_types::MAX_HOSTS;
use fide_types::planted::{self, Planted};
use serde::{Deserialize, Serialize};

/// Own heartbeats whose time of sending is remembered; an acknowledgement of an older one is worthless
/// anyway.
pub const SENT_MAX: usize = 4096;

/// When each of the last [`SENT_MAX`] heartbeats was sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SentLog {
    at_ns: Box<[u64]>,
    newest: u64,
    oldest: u64,
}

impl Default for SentLog {
    fn default() -> SentLog {
        SentLog::new()
    }
}

impl SentLog {
    pub fn new() -> SentLog {
        SentLog { at_ns: vec![0; SENT_MAX].into_boxed_slice(), newest: 0, oldest: 1 }
    }

    /// The number of the last heartbeat; 0 for none.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Heartbeats are recorded in order, each number once.
    pub fn record(&mut self, seq: u64, now_ns: u64) {
        self.at_ns[seq as usize % SENT_MAX] = now_ns;
        self.newest = seq;
        self.oldest = self.oldest.max((seq + 1).saturating_sub(SENT_MAX as u64));
    }

    /// Numbers up to `seq` were used, and it is not known when.
    pub fn skip(&mut self, seq: u64) {
        for unknown in self.newest + 1..=seq.min(self.newest + SENT_MAX as u64) {
            // As if sent at time 0, which gives a limit that has passed.
            self.at_ns[unknown as usize % SENT_MAX] = 0;
        }
        self.newest = seq;
        self.oldest = self.oldest.max((seq + 1).saturating_sub(SENT_MAX as u64));
    }

    /// What was sent so far belongs to another incarnation, or counts for nothing any more.
    pub fn forget(&mut self) {
        self.oldest = self.newest + 1;
    }

    /// The full number of an acknowledged heartbeat, if it was sent by this incarnation and recently enough.
    pub fn expand(&self, seq_low: u32) -> Option<u64> {
        let back = u64::from((self.newest as u32).wrapping_sub(seq_low));
        let seq = self.newest.checked_sub(back)?;
        (seq >= self.oldest && seq != 0).then_some(seq)
    }

    /// When that heartbeat was sent, if it is remembered.
    pub fn time_of(&self, seq: u64) -> Option<u64> {
        (seq >= self.oldest && seq <= self.newest).then(|| self.at_ns[seq as usize % SENT_MAX])
    }
}

/// The lease, as it was announced last.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lease {
    until_ns: u64,
    fenced: bool,
    /// This incarnation has had a lease.
    was_granted: bool,
}

impl Lease {
    /// `fenced`: until a lease is granted.
    pub(crate) fn new(fenced: bool) -> Lease {
        Lease { until_ns: 0, fenced, was_granted: false }
    }

    /// Another incarnation begins.
    pub(crate) fn restart(&mut self) {
        self.was_granted = false;
    }

    /// The lease now ends at `until_ns`. Returns the event if that starts or ends a fence.
    pub(crate) fn renew(&mut self, now_ns: u64, until_ns: u64) -> Option<Event> {
        self.until_ns = until_ns;
        let was_fenced = std::mem::replace(&mut self.fenced, now_ns >= until_ns);
        self.was_granted |= !self.fenced;
        let lease_until_ns = until_ns;
        match (was_fenced, self.fenced) {
            (false, true) => Some(Event::Fenced { lease_until_ns }),
            (true, false) => Some(Event::Unfenced { lease_until_ns }),
            _ => None,
        }
    }

    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    /// Is the node fenced, as it was announced last?
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Has this incarnation ever had a lease?
    pub(crate) fn was_granted(&self) -> bool {
        self.was_granted
    }
}

/// Until when the peer that acknowledged a heartbeat sent at `sent_ns` is bound, on the sender's clock.
pub fn limit_ns(config: &Config, sent_ns: u64, promise_us: u32) -> u64 {
    if promise_us == 0 {
        return 0;
    }
    sent_ns.saturating_add(config.lease_of(u64::from(promise_us) * 1000))
}

/// The limit that a majority of a view of `members` keeps, own vote included. `limits` are those of the other
/// members (fewer when some are unknown).
pub fn majority(members: usize, limits: impl Iterator<Item = u64>) -> u64 {
    let needed = members / 2 - usize::from(planted::is(Planted::LeaseOfFewer) && members > 1);
    if needed == 0 {
        return u64::MAX;
    }
    let mut sorted = [0u64; MAX_HOSTS];
    let mut count = 0;
    for limit in limits.take(MAX_HOSTS) {
        sorted[count] = limit;
        count += 1;
    }
    if count < needed {
        return 0;
    }
    let (_, nth, _) = sorted[..count].select_nth_unstable_by(needed - 1, |a, b| b.cmp(a));
    *nth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majority_lease_counts_the_own_vote() {
        assert_eq!(majority(1, [].into_iter()), u64::MAX);
        assert_eq!(majority(2, [7].into_iter()), 7);
        assert_eq!(majority(2, [].into_iter()), 0);
        assert_eq!(majority(3, [7, 9].into_iter()), 9);
        assert_eq!(majority(4, [7, 9, 3].into_iter()), 7);
        assert_eq!(majority(5, [7, 9, 3, 1].into_iter()), 7);
        assert_eq!(majority(5, [7].into_iter()), 0);
    }

    #[test]
    fn acknowledged_numbers_are_expanded_up_to_the_bound() {
        let mut sent = SentLog::new();
        let base = (1u64 << 32) - 2;
        for seq in base..base + 10 {
            sent.record(seq, seq * 10);
        }
        assert_eq!(sent.expand((base + 9) as u32), Some(base + 9));
        assert_eq!(sent.expand(base as u32), Some(base));
        assert_eq!(sent.time_of(base + 3), Some((base + 3) * 10));
        assert_eq!(sent.expand((base + 10) as u32), None, "not sent yet");
        for seq in base + 10..base + 10 + SENT_MAX as u64 {
            sent.record(seq, seq);
        }
        assert_eq!(sent.expand((base + 9) as u32), None, "at the bound the oldest is forgotten");
        sent.forget();
        assert_eq!(sent.expand((base + 20) as u32), None);
    }
}
