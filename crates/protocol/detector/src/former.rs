// SPDX-License-Identifier: Apache-2.0
//! What became of an incarnation that an earlier agent of this host has reported as up.
//!
//! This agent may never hear that incarnation: it may have died while no agent ran here. Programs that were
//! informed that it is up still wait for its end, which is reported once it is certain:
//!
//! - Another incarnation of the host was heard here. That is a later one, and no lease of the former one can
//!   run any more. With views none can: the later one came into a view only without the former one. Under
//!   trust lease, where each host judges alone, the former one's programs act by the lease that its agent
//!   left in their memory, which ends no later after that agent's last turn than the timeout that it began
//!   with ([`crate::lease`]). This agent never heard that agent, so it waits for the longest timeout that it
//!   knows of, from when it heard the later incarnation.
//! - Policy majority, between voters: this incarnation is in a view that lacks the former one. Views only
//!   move on. This incarnation is younger than what the earlier agent reported, so the view is later than any
//!   with the former one in it, and no incarnation comes back into a view once it was dropped. (An observer
//!   takes any view that it hears of, perhaps an old one of a host that was cut off. So for an observer this
//!   is not certain.)
//! - Trust network, where this host judges alone: nothing came for a whole timeout since this agent started.
//!   There a silence is a death.
//!
//! In all other cases it is not known yet. Under trust lease and policy network that lasts until the host is
//! back: a host that never knew of this incarnation has promised it nothing.

use crate::detector::Detector;
use crate::peer::Peer;
use crate::types::PeerState;
use fide_types::{
    HostId, Role, Trust,
    planted::{self, Planted},
};

/// No measured timeout is longer. An agent may grant less than the one before it, if the host was tuned in
/// between. (A longer timeout that was configured before and is not any more is not known:
/// docs/internals/promises.md.)
const MEASURED_MAX_NS: u64 = 1_000_000_000;

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// Not known yet.
    Unknown,
    /// It is up here, or its end was reported here: this agent has followed it as usual.
    Here,
    /// It is dead, and that was not reported here.
    Over,
}

impl Detector {
    /// What became of the incarnation of `host` that `is_it` picks. `timeout_ns` was granted for it before;
    /// this agent started at `since_ns`.
    pub fn became_of(
        &self,
        now_ns: u64,
        host: HostId,
        is_it: impl Fn(u32) -> bool,
        timeout_ns: u64,
        since_ns: u64,
    ) -> Former {
        let Some(peer) = self.peers.get(host) else { return Former::Unknown };
        let was_up = peer.state != PeerState::Unknown;
        if was_up && is_it(peer.incarnation) {
            return Former::Here;
        }
        if was_up && self.former_is_over(now_ns, peer, timeout_ns) {
            return Former::Over;
        }
        if self.life.is_excluded() {
            return Former::Unknown;
        }
        let is_over = if self.is_judged_by_views(host) {
            self.view_lacks(host, is_it)
        } else {
            self.is_silent_since(now_ns, peer, timeout_ns, since_ns)
        };
        if is_over { Former::Over } else { Former::Unknown }
    }

    /// A later incarnation of `peer` was up here. Has every lease of the former one run out?
    fn former_is_over(&self, now_ns: u64, peer: &Peer, timeout_ns: u64) -> bool {
        let must_know = self.must_know_me(peer.id);
        if peer.is_up() && (!must_know || planted::is(Planted::EndsFormers)) {
            return true;
        }
        let granted_ns = timeout_ns.max(peer.timeout_ns).max(u64::from(peer.promise_us()) * 1000);
        let longest_ns = self.config.with_drift(granted_ns.max(MEASURED_MAX_NS));
        must_know && !self.life.is_excluded() && now_ns >= peer.since_ns.saturating_add(longest_ns)
    }

    /// Is this voter in a view that lacks that incarnation of `host`?
    fn view_lacks(&self, host: HostId, is_it: impl Fn(u32) -> bool) -> bool {
        let me = self.config.me;
        let role = self.config.member(me).role;
        let is_member = self.is_judged_by_views(me) && self.views.contains(me, self.config.incarnation);
        let lacks = !self.views.members().incarnation(host).is_some_and(is_it);
        is_member && role == Role::Voter && self.views.has_view() && lacks
    }

    /// Trust network: has nothing come of a peer that this host monitors for a whole timeout since this agent
    /// started?
    fn is_silent_since(&self, now_ns: u64, peer: &Peer, timeout_ns: u64, since_ns: u64) -> bool {
        let last_ns = peer.floor_ns.max(since_ns).max(peer.noted_ns());
        let silent = now_ns >= last_ns.saturating_add(timeout_ns.max(peer.timeout_ns));
        self.config.trust == Trust::Network && peer.monitored && silent
    }
}
