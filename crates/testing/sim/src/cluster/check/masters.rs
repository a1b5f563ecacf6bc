// SPDX-License-Identifier: Apache-2.0
//! Of a service that runs once, only the master that was promoted last acts.

use super::{Checked, violated};
use fide_types::HostId;

/// The masters in order: host, and time of promotion.
#[derive(Debug, Default)]
pub(in super::super) struct Masters {
    promoted: Vec<(u16, u64)>,
}

impl Masters {
    /// The number of the new master, from 1.
    pub(in super::super) fn promoted(&mut self, host: HostId, now_ns: u64) -> u64 {
        self.promoted.push((host, now_ns));
        self.promoted.len() as u64
    }

    /// The host and number of the newest master.
    pub(in super::super) fn newest(&self) -> Option<(u16, u64)> {
        self.promoted.last().map(|(host, _)| (*host, self.promoted.len() as u64))
    }

    /// A master acts; its keeper last looked at the fence at `looked_ns`. If the keeper has not looked since
    /// another master was promoted, it is only late, as any program is that asks before it acts. If it has
    /// looked, it let the master act wrongly.
    pub(in super::super) fn acts(&self, host: HostId, epoch: u64, looked_ns: u64) -> Checked {
        let next = usize::try_from(epoch).ok().and_then(|next| self.promoted.get(next));
        match next {
            Some((other, at_ns)) if looked_ns > *at_ns => {
                let text = format!("h{host} acts as master {epoch}; h{other} is master {} since {at_ns} ns", epoch + 1);
                violated("never two masters", text)
            }
            _ => Ok(()),
        }
    }
}
