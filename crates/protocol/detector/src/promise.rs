// SPDX-License-Identifier: Apache-2.0
//! The timeouts of pairs, and what this host promises by them: the least, to suspect nobody sooner ([`crate::lease`]).

use crate::detector::Detector;
use crate::types::*;
use fide_types::Trust;
use fide_types::planted::{self, Planted};

impl Detector {
    /// Promises no more than `promise_us` from now on, however long timeouts become: what whoever starts this host again must know.
    pub fn set_promise_max(&mut self, promise_us: u32) {
        self.promise_max_us = promise_us;
    }

    /// Does this host's judgement allow that a timeout becomes shorter again ([`Detector::set_timeout`])?
    pub fn lowers_timeouts(&self) -> bool {
        self.config.trust == Trust::Network || self.by_view(self.config.me)
    }

    /// Sets the timeout of a pair. Under lease trust it becomes shorter only where views judge both: what was promised before is kept there
    /// until it ends, whatever the timeout is by then ([`crate::view`]). Who judges alone keeps its promises by its timeout, which only grows.
    ///
    /// # Errors
    /// [`TimeoutError`]; nothing has changed.
    pub fn set_timeout(&mut self, now_ns: u64, peer: u16, timeout_ns: u64) -> Result<(), TimeoutError> {
        let before_us = self.promise_us();
        let (me, by_views) = (self.config.me, self.by_view(self.config.me) && self.by_view(peer));
        let entry = self.peers.get_mut(usize::from(peer).wrapping_sub(1)).filter(|p| p.id != me);
        let entry = entry.ok_or(TimeoutError::UnknownHost { host: peer })?;
        if timeout_ns < entry.timeout_ns && self.config.trust == Trust::Lease && !by_views {
            return Err(TimeoutError::Lower { asked_ns: timeout_ns, present_ns: entry.timeout_ns });
        }
        if timeout_ns != entry.timeout_ns {
            entry.timeout_ns = timeout_ns;
            self.tell(Event::TimeoutChanged { host: peer, timeout_ns });
        }
        if self.promise_us() < before_us && !planted::is(Planted::ForgetsLonger) {
            self.promise_before_us = self.promise_before_us.max(before_us);
            let left_ns = u64::from(before_us) * 1000;
            self.promise_settled_ns =
                self.promise_settled_ns.max(now_ns.max(self.last_tick_ns).saturating_add(left_ns));
        }
        Ok(())
    }

    /// The least of the pair timeouts, as told to others.
    pub(crate) fn promise_us(&self) -> u32 {
        u32::try_from(self.least_ns().unwrap_or(0) / 1000).unwrap_or(u32::MAX).min(self.promise_max_us)
    }

    /// The shortest of this host's timeouts; of a host without peers that which it began with.
    pub fn timeout_least_ns(&self) -> u64 {
        self.least_ns().unwrap_or(self.config.timeout_ns)
    }

    fn least_ns(&self) -> Option<u64> {
        self.peers.iter().filter(|p| p.id != self.config.me).map(|p| p.timeout_ns).min()
    }

    /// The longest that this life has promised.
    pub(crate) fn promise_most_us(&self) -> u32 {
        self.promise_us().max(self.promise_before_us)
    }

    /// For how long leases may still run that this host knows of, by any clock: those that it has granted, its own, and what is left
    /// of older views.
    pub(crate) fn binds_us(&self, now_ns: u64) -> u32 {
        if self.config.trust == Trust::Network {
            return 0;
        }
        // Whose lease has no end is alone in its view: only itself can decide another, and installs that at once.
        let own_ns = if self.lease_ns == u64::MAX { 0 } else { self.lease_ns };
        let until_ns = own_ns.max(self.view_settled_ns).max(self.former_until_ns).max(self.promise_settled_ns);
        self.promise_us().max(wait_us(self.config.with_drift(until_ns.saturating_sub(now_ns))))
    }
}

/// Rounded up.
pub(crate) fn wait_us(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(1000)).unwrap_or(u32::MAX)
}
