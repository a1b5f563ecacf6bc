// SPDX-License-Identifier: Apache-2.0
//! Promises made before, and when they have run out.

use serde::{Deserialize, Serialize};

/// What may still bind this host beside its present promise.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Promises {
    max_us: u32,
    longer_before_us: u32,
    longer_until_ns: u64,
    former_until_ns: u64,
    older_views_until_ns: u64,
}

impl Promises {
    pub(crate) fn new(now_ns: u64) -> Promises {
        Promises {
            max_us: u32::MAX,
            longer_before_us: 0,
            longer_until_ns: 0,
            former_until_ns: now_ns,
            older_views_until_ns: 0,
        }
    }

    /// No promise is longer from now on, whatever the timeouts are.
    pub(crate) fn set_max(&mut self, promise_us: u32) {
        self.max_us = promise_us;
    }

    /// The promise of a host whose shortest timeout is `timeout_ns`.
    pub(crate) fn of_timeout(&self, timeout_ns: u64) -> u32 {
        u32::try_from(timeout_ns / 1000).unwrap_or(u32::MAX).min(self.max_us)
    }

    /// The promise was `before_us` until now, and is shorter from now on.
    pub(crate) fn lower(&mut self, now_ns: u64, before_us: u32) {
        self.longer_before_us = self.longer_before_us.max(before_us);
        self.longer_until_ns = self.longer_until_ns.max(now_ns.saturating_add(u64::from(before_us) * 1000));
    }

    /// The longest promise of this life before its timeouts shrank; 0 if they never did.
    pub(crate) fn longer_before_us(&self) -> u32 {
        self.longer_before_us
    }

    /// What an earlier life of this host promised holds until then.
    pub(crate) fn inherit(&mut self, until_ns: u64) {
        self.former_until_ns = self.former_until_ns.max(until_ns);
    }

    /// What is left at `now_ns` of the promises of an earlier life.
    pub(crate) fn inherited_us(&self, now_ns: u64) -> u32 {
        wait_us(self.former_until_ns.saturating_sub(now_ns))
    }

    /// When everything promised before has run out: by an earlier life, or before the timeouts shrank.
    pub(crate) fn settled_ns(&self) -> u64 {
        self.former_until_ns.max(self.longer_until_ns)
    }

    /// A view was installed. Leases of older views have run out at `until_ns`.
    pub(crate) fn install_view(&mut self, until_ns: u64) {
        self.older_views_until_ns = until_ns;
    }

    /// When the leases of views older than the present one have run out.
    pub(crate) fn older_views_until_ns(&self) -> u64 {
        self.older_views_until_ns
    }

    /// When all of this has run out.
    pub(crate) fn binding_until_ns(&self) -> u64 {
        self.settled_ns().max(self.older_views_until_ns)
    }
}

/// In microseconds, rounded up.
pub(crate) fn wait_us(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(1000)).unwrap_or(u32::MAX)
}
