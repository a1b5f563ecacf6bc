// SPDX-License-Identifier: Apache-2.0
//! What this host promises to others: the least of its pair timeouts, so that it suspects nobody sooner
//! ([`crate::lease`]).

use crate::detector::Detector;
use crate::promises::wait_us;
use crate::types::*;
use fide_types::{
    HostId, Trust,
    planted::{self, Planted},
};

impl Detector {
    /// Promises no more than `promise_us` from now on, however long timeouts become. The next agent of this
    /// host has to know that bound ([`Detector::heed_former`]).
    pub fn set_promise_max(&mut self, promise_us: u32) {
        self.promises.set_max(promise_us);
    }

    /// An earlier life of this host, which has ended, promised up to `promise_us`, perhaps just before it
    /// ended. Until all that has run out this life founds no view and drops no member. To be called before
    /// anything else.
    pub fn heed_former(&mut self, now_ns: u64, promise_us: u32) {
        if planted::is(Planted::ForgetsPromise) {
            return;
        }
        let until_ns = now_ns.saturating_add(u64::from(promise_us) * 1000);
        self.promises.inherit(until_ns);
        for peer in self.peers.others_mut() {
            peer.promised_until_ns = peer.promised_until_ns.max(until_ns);
        }
    }

    /// May a timeout of this host shrink again ([`Detector::set_timeout`])?
    pub fn lowers_timeouts(&self) -> bool {
        self.config.trust == Trust::Network || self.is_judged_by_views(self.config.me)
    }

    /// Sets the timeout of a pair. Under lease trust it shrinks only where views judge both hosts: there this
    /// host keeps what it promised until that ends, whatever the timeout is by then ([`crate::view`]). A host
    /// that judges by itself keeps its promises by its timeout, which only grows.
    ///
    /// # Errors
    /// [`TimeoutError`]; nothing has changed.
    pub fn set_timeout(&mut self, now_ns: u64, peer: HostId, timeout_ns: u64) -> Result<(), TimeoutError> {
        let before_us = self.promise_us();
        let by_views = self.is_judged_by_views(self.config.me) && self.is_judged_by_views(peer);
        let entry = self.peers.get_mut(peer).ok_or(TimeoutError::UnknownHost { host: peer })?;
        if timeout_ns < entry.timeout_ns && self.config.trust == Trust::Lease && !by_views {
            return Err(TimeoutError::Lower { asked_ns: timeout_ns, present_ns: entry.timeout_ns });
        }
        if timeout_ns != entry.timeout_ns {
            entry.timeout_ns = timeout_ns;
            self.emit(Event::TimeoutChanged { host: peer, timeout_ns });
        }
        if self.promise_us() < before_us && !planted::is(Planted::ForgetsLonger) {
            self.promises.lower(now_ns.max(self.last_tick_ns), before_us);
        }
        Ok(())
    }

    /// The shortest of this host's timeouts; for a host without peers, its configured one.
    pub fn timeout_least_ns(&self) -> u64 {
        self.peers.least_timeout_ns().unwrap_or(self.config.timeout_ns)
    }

    /// What this host promises now.
    pub(crate) fn promise_us(&self) -> u32 {
        self.promises.of_timeout(self.peers.least_timeout_ns().unwrap_or(0))
    }

    /// The longest promise of this life.
    pub(crate) fn longest_promise_us(&self) -> u32 {
        self.promise_us().max(self.promises.longer_before_us())
    }

    /// For how long, by any clock, the leases may still run that this host knows of: those that it has
    /// granted, its own, and what is left of older views.
    pub(crate) fn binds_us(&self, now_ns: u64) -> u32 {
        if self.config.trust == Trust::Network {
            return 0;
        }
        // A host whose lease has no end is alone in its view: only it can decide another one, and installs
        // that at once.
        let own_until_ns = if self.lease.until_ns() == u64::MAX { 0 } else { self.lease.until_ns() };
        let until_ns = own_until_ns.max(self.promises.binding_until_ns());
        self.promise_us().max(wait_us(self.config.with_drift(until_ns.saturating_sub(now_ns))))
    }
}
