// SPDX-License-Identifier: Apache-2.0
//! Makes links and switches fail, with or without a lost carrier.

use super::{Fabric, SwitchKind, wire};
use crate::sys::{PORT_DISABLED, PORT_FORWARDING};
use crate::tools::retry_until;
use crate::{Error, Result};
use fide_sys::clock::mono_ns;
use std::time::Duration;

/// How long the kernel may take to report the carrier of a link.
const CARRIER_LIMIT: Duration = Duration::from_secs(5);

/// How a link fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both ends lose their carrier.
    Carrier,
    /// Both ends keep their carrier, and nothing passes in either direction.
    Silent,
}

impl Fabric {
    /// Cuts a link. Returns CLOCK_MONOTONIC in ns just before and after; at the second time, the cut is in
    /// force.
    pub fn cut_link(&self, link: usize, how: Cut) -> Result<(u64, u64)> {
        self.set_link(link, Some(how))
    }

    /// Undoes whatever cut the link. Returns the same times. At the second one, forwarding is back; carriers
    /// are reported soon after.
    pub fn restore_link(&self, link: usize) -> Result<(u64, u64)> {
        self.set_link(link, None)
    }

    /// Cuts all links of a switch, one after the other. Returns the times before the first and after the
    /// last.
    pub fn cut_switch(&self, switch: &str, how: Cut) -> Result<(u64, u64)> {
        self.on_links(switch, |l| self.cut_link(l, how))
    }

    /// Restores all links of a switch, even those that had been cut one by one.
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
        // Cutting at one switch is enough for both directions. At a bridge, a system call does it; Open
        // vSwitch needs a process, which takes milliseconds.
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
                    // The kernel accepts this only once it has reported the carrier, a moment after the link
                    // is up.
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
