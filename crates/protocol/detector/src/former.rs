// SPDX-License-Identifier: Apache-2.0
//! What became of an incarnation that an agent of this host, before this one, has told to be up.
//!
//! This agent may never hear it: it may have died while there was no agent here. Programs that were told that it is up wait
//! for its end all the same, which is told once it is certain:
//!
//! - another incarnation of the host was heard here, which is a later one, and no lease of the former can run any more. With views
//!   there is none: only without the former did the later one come into a view. Where each judges alone under trust lease, the
//!   former's programs act by what its agent left in their memory: no longer after its last turn than the timeout that it
//!   began with ([`crate::lease`]). This agent never heard that agent, and counts, from when it heard the later one, the longest that
//!   it knows of;
//! - policy majority, between voters: this incarnation is in a view that lacks it. Views only move on, and this incarnation
//!   is younger than what the agent before has told, so the view is a later one than any with the host in it; and no
//!   incarnation comes back into a view once it was dropped. (An observer takes any view that it hears of, perhaps an old
//!   one of a host that was cut off, so for it this is not certain.)
//! - trust network, judged by this host alone: nothing came for a whole timeout since this agent started. There a silence is
//!   a death.
//!
//! In all other cases it is not known yet. Under trust lease and policy network that lasts until the host is back: a host that
//! never knew of this incarnation has promised it nothing.

use crate::detector::Detector;
use crate::types::PeerState;
use fide_types::planted::{self, Planted};
use fide_types::{Role, Trust};

/// No measured timeout is longer. An agent may grant less than the one before it did, whose host was tuned since.
/// (One whose configuration had a longer one, and has a shorter one now, is not known of: docs/internals/promises.md.)
const MEASURED_MAX_NS: u64 = 1_000_000_000;

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// Not yet.
    Unknown,
    /// It is up here, or its end was told here: the ordinary way goes on with it.
    Here,
    /// It is dead, and nobody was told here.
    Over,
}

impl Detector {
    /// What became of the incarnation of `host` that `is_it` picks. `timeout_ns`: what was granted for it before, `since_ns`: when
    /// this agent started.
    pub fn became_of(
        &self,
        now_ns: u64,
        host: u16,
        is_it: impl Fn(u32) -> bool,
        timeout_ns: u64,
        since_ns: u64,
    ) -> Former {
        let at = usize::from(host).wrapping_sub(1);
        let Some(peer) = self.peers.get(at).filter(|peer| peer.id != self.config.me) else { return Former::Unknown };
        let it = is_it(peer.incarnation);
        match peer.state {
            // Up, or it was, and was told by name.
            PeerState::Up | PeerState::Dead | PeerState::Left if it => return Former::Here,
            PeerState::Up if !self.must_know(host) || planted::is(Planted::EndsFormers) => return Former::Over,
            PeerState::Unknown => {}
            // Of a later one, which was up.
            PeerState::Up | PeerState::Dead | PeerState::Left => {
                let granted_ns = timeout_ns.max(peer.timeout_ns).max(u64::from(peer.promise_us) * 1000);
                let most_ns = self.config.with_drift(granted_ns.max(MEASURED_MAX_NS));
                if self.must_know(host) && !self.excluded && now_ns >= peer.since_ns.saturating_add(most_ns) {
                    return Former::Over;
                }
            }
        }
        if self.excluded {
            return Former::Unknown;
        }
        if self.by_view(host) {
            let member = self.agreement.members.incarnation(host);
            let mine = self.by_view(self.config.me) && self.agreement.holds(self.config.me, self.config.incarnation);
            let role = self.config.members[usize::from(self.config.me) - 1].role;
            let lacks = mine && role == Role::Voter && !self.agreement.id.is_none() && !member.is_some_and(&is_it);
            return if lacks { Former::Over } else { Former::Unknown };
        }
        let silent_ns = peer.floor_ns.max(since_ns).max(peer.noted_ns);
        let silent = now_ns >= silent_ns.saturating_add(timeout_ns.max(peer.timeout_ns));
        if self.config.trust == Trust::Network && peer.monitored && silent { Former::Over } else { Former::Unknown }
    }
}
