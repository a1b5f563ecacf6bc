// SPDX-License-Identifier: Apache-2.0
//! Links and switches that fail, noticed or not.

use super::{Fabric, SwitchKind, wire};
use crate::sys::{PORT_DISABLED, PORT_FORWARDING};
use crate::tools::retry_until;
use crate::{Error, Result};
use fide_sys::clock::mono_ns;
use std::time::Duration;

/// How long it may take until the carrier of a link is reported.
const CARRIER_LIMIT: Duration = Duration::from_secs(5);

/// How a link fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both ends see their carrier go.
    Carrier,
    /// Both ends keep their carrier, and nothing passes in either direction.
    Silent,
}

impl Fabric {
    /// Cuts a link. Gives CLOCK_MONOTONIC in ns just before and after; the cut is in force at the second.
    pub fn cut_link(&self, link: usize, how: Cut) -> Result<(u64, u64)> {
        self.set_link(link, Some(how))
    }

    /// Undoes whatever cut the link; the same times. Forwarding is back at the second, carriers are reported
    /// soon after.
    pub fn restore_link(&self, link: usize) -> Result<(u64, u64)> {
        self.set_link(link, None)
    }

    /// Cuts all links of a switch, one after the other; times from the first to the last.
    pub fn cut_switch(&self, switch: &str, how: Cut) -> Result<(u64, u64)> {
        self.on_links(switch, |l| self.cut_link(l, how))
    }

    /// Restores all links of a switch, also those that had been cut one by one.
    pub fn restore_switch(&self, switch: &str) -> Result<(u64, u64)> {
        self.on_links(switch, |l| self.restore_link(l))
    }

    fn on_links(&self, switch: &str, f: impl Fn(usize) -> Result<(u64, u64)>) -> Result<(u64, u64)> {
        self.switch(switch)?;
        let before = mono_ns();
        for link in self.spec.links_of(switch) {
            f(link)?;
        }
        Ok((before, mono_ns()))
    }

    fn set_link(&self, link: usize, cut: Option<Cut>) -> Result<(u64, u64)> {
        let spec = self.spec.links.get(link).ok_or_else(|| {
            let last = self.spec.links.len();
            Error::Spec(format!("no link {link}: they count from 0, and there are {last}"))
        })?;
        // One switch end is enough for both directions. A bridge does it by itself; Open vSwitch has to be asked by a
        // process, which takes milliseconds.
        let ends = [(&spec.a, false), (&spec.b, true)];
        let mut ends: Vec<_> =
            ends.into_iter().filter_map(|(e, second)| Some((self.switch(&e.node).ok()?, e, second))).collect();
        ends.sort_by_key(|(s, ..)| s.kind == SwitchKind::Ovs);
        let Some((switch, end, second)) = ends.first() else {
            return Err(Error::Spec(format!("link {link} has no switch at either end")));
        };
        let index = wire::link_index(link, *second);
        let before = mono_ns();
        match (cut, &switch.ovs) {
            (Some(Cut::Carrier), _) => switch.control.set_up(index, false)?,
            (Some(Cut::Silent), None) => switch.control.set_port_state(index, PORT_DISABLED)?,
            (Some(Cut::Silent), Some(ovs)) => ovs.silence(&end.port, true)?,
            (None, ovs) => {
                switch.control.set_up(index, true)?;
                match ovs {
                    // The kernel takes this only once it has reported the carrier, a moment after the link is up.
                    None => retry_until("a restored link", CARRIER_LIMIT, || {
                        switch.control.set_port_state(index, PORT_FORWARDING).map_err(|e| e.to_string())
                    })?,
                    Some(ovs) => ovs.silence(&end.port, false)?,
                }
            }
        }
        Ok((before, mono_ns()))
    }
}
