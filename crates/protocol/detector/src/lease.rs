// SPDX-License-Identifier: Apache-2.0
//! For how long this node may act (trust = lease).
//!
//! # Why nobody acts on the silence of a node that still acts
//!
//! Let host j acknowledge heartbeat n of host i, with the promise T. j received n at r (its clock) and promises not to
//! suspect i before r + T. i sent n at s(n), before j received it. On i's clock the limit is s(n) + T - m with
//! m = T * drift: in that time j's clock, which runs at most `drift_ppm` faster, advances less than T. So while i is
//! within the limit, j has not suspected i, whatever the network or either scheduler did in between: a late
//! acknowledgement only gives a limit that has passed already.
//!
//! j keeps the promise because its own deadline is never sooner: T is the least of j's pair timeouts, timeouts are only
//! raised while running (where views judge they may fall, and j keeps what it promised by its record of it), and j counts i's silence from its newest heartbeat, which is no older than the one acknowledged.
//! The observer waits the lease out by this construction; nothing is added at suspicion time under policy network. An
//! incarnation superseded by a newer one was promised the same, so its verdict waits for the same moment.
//!
//! - **policy network:** anybody who monitors i may go on without it, so i's lease is the least limit over all live peers
//!   that monitor it. A peer that i itself holds dead does not count: if both were merely cut off from each other, each
//!   waits out the other and both go on. That is the split this policy accepts (all trees between them cut at once).
//!   A peer heard for the first time is told so (an acknowledgement of nothing, `seq_low` 0) in heartbeat g, and judges
//!   nobody who has not told it so: it cannot act on a silence before s(g) + T, so that is its first limit, and a host that
//!   starts fences nobody. A peer that was never told cannot judge, and one whose
//!   last heartbeat said that it does not hear this host is not judged: it may act without regard to this host. If it had
//!   heard this incarnation before, it holds it dead by now, and this host takes itself for excluded: its word may be lost.
//!
//!   If i's agent ends and another one starts, i's programs still act by the lease that the first one left in shared memory: until
//!   i's shortest timeout after its last turn. Who hears the new incarnation, and had not been acknowledged by the one before, was
//!   no part of that lease. So it gives the one before the longest that i can have granted, from when it hears the new one: what i
//!   promised to others, which is no less than its shortest timeout. (The simulator found it: h1, back after an exclusion, held the
//!   former incarnation of h2 dead, which still waited out its promise to the former incarnation of h1.)
//!
//!   Standing still is no cut, and must not split. If i stood still until its limit for j was past, j may hold i dead and act
//!   alone; if i heard only what j had sent before, j may never have held i to be up, and acts without regard to it. If j
//!   then falls silent, i cannot know whether j has died or stands still, and acts. So i holds nobody dead who is not bound: whose
//!   newest heartbeat did not acknowledge one of i's while the limit of that was still ahead, or for whose limit i has stood
//!   still since, or whose limit ran out before it acknowledged what i sent after it stood still: that left late, if not too late. When such a peer is silent for its timeout, or another incarnation of it is heard, i takes itself for excluded, and
//!   comes back as another incarnation. That j was not heard to know i is no excuse, if i has told it that it is heard and has stood
//!   still since. (An acknowledgement of a heartbeat says that j holds i to be up; the greeting, of nothing, does not. The
//!   simulator found them: two hosts, each stands still once; or j holds i dead, and its agent starts again before i wakes.)
//! - **policy majority:** only a majority of the view can go on without i ([`crate::view`]), so i's lease is the
//!   (n/2)-th largest limit among the n members, own excluded: then i and n/2 others, a majority, are bound, and every
//!   other majority contains one of them. [`crate::view`] says what a change of view adds to this.

use crate::config::Config;
use fide_types::planted::{self, Planted};
use fide_wire::MAX_HOSTS;
use serde::{Deserialize, Serialize};

/// Own heartbeats whose time of sending is remembered; an acknowledgement of an older one is worthless anyway.
pub const SENT_MAX: usize = 4096;

/// When each of the last [`SENT_MAX`] heartbeats was sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sent {
    at_ns: Box<[u64]>,
    newest: u64,
    oldest: u64,
}

impl Default for Sent {
    fn default() -> Sent {
        Sent::new()
    }
}

impl Sent {
    pub fn new() -> Sent {
        Sent { at_ns: vec![0; SENT_MAX].into_boxed_slice(), newest: 0, oldest: 1 }
    }

    /// Heartbeats are recorded in order, each number once.
    pub fn record(&mut self, seq: u64, now_ns: u64) {
        self.at_ns[seq as usize % SENT_MAX] = now_ns;
        self.newest = seq;
        self.oldest = self.oldest.max((seq + 1).saturating_sub(SENT_MAX as u64));
    }

    /// Numbers up to `seq` were used without a record of when.
    pub fn skip(&mut self, seq: u64) {
        for unknown in self.newest + 1..=seq.min(self.newest + SENT_MAX as u64) {
            // Sent at the beginning of time: a limit that has passed.
            self.at_ns[unknown as usize % SENT_MAX] = 0;
        }
        self.newest = seq;
        self.oldest = self.oldest.max((seq + 1).saturating_sub(SENT_MAX as u64));
    }

    /// What was sent before belongs to another incarnation.
    pub fn forget(&mut self) {
        self.oldest = self.newest + 1;
    }

    /// The full number of an acknowledged heartbeat, when it was sent by this incarnation and lately enough.
    pub fn expand(&self, seq_low: u32) -> Option<u64> {
        let back = u64::from((self.newest as u32).wrapping_sub(seq_low));
        let seq = self.newest.checked_sub(back)?;
        (seq >= self.oldest && seq != 0).then_some(seq)
    }

    pub fn time_of(&self, seq: u64) -> Option<u64> {
        (seq >= self.oldest && seq <= self.newest).then(|| self.at_ns[seq as usize % SENT_MAX])
    }
}

/// Until when the acknowledger of a heartbeat sent at `sent_ns` is bound, on the sender's clock.
pub fn limit_ns(config: &Config, sent_ns: u64, promise_us: u32) -> u64 {
    if promise_us == 0 {
        return 0;
    }
    sent_ns.saturating_add(config.lease_of(u64::from(promise_us) * 1000))
}

/// The least limit of those who count; `None` when nobody counts.
pub fn least(limits: impl Iterator<Item = u64>) -> Option<u64> {
    limits.min()
}

/// The limit that a majority of a view of `members` keeps, own vote included. `limits` are those of the other members
/// (fewer when some are unknown).
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
    fn a_majority_counts_its_own_vote() {
        assert_eq!(majority(1, [].into_iter()), u64::MAX);
        assert_eq!(majority(2, [7].into_iter()), 7);
        assert_eq!(majority(2, [].into_iter()), 0);
        assert_eq!(majority(3, [7, 9].into_iter()), 9);
        assert_eq!(majority(4, [7, 9, 3].into_iter()), 7);
        assert_eq!(majority(5, [7, 9, 3, 1].into_iter()), 7);
        assert_eq!(majority(5, [7].into_iter()), 0);
    }

    #[test]
    fn acknowledgements_are_expanded() {
        let mut sent = Sent::new();
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
