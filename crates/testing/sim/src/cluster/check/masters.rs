// SPDX-License-Identifier: Apache-2.0
//! Of a service that runs once, the one promoted last acts, and none before it.

use super::{Checked, violated};

/// Who was master, in order: the host, and when it was promoted.
#[derive(Debug, Default)]
pub(in super::super) struct Masters {
    promoted: Vec<(u16, u64)>,
}

impl Masters {
    /// Its number, from 1.
    pub(in super::super) fn promoted(&mut self, host: u16, now_ns: u64) -> u64 {
        self.promoted.push((host, now_ns));
        self.promoted.len() as u64
    }

    /// The host of the newest.
    pub(in super::super) fn newest(&self) -> Option<(u16, u64)> {
        self.promoted.last().map(|(host, _)| (*host, self.promoted.len() as u64))
    }

    /// A master acts, whose keeper has looked at the fence then. A keeper that has not looked since another was promoted is late, as any
    /// program may be that asks before it acts; one that has looked let it act.
    pub(in super::super) fn acts(&self, host: u16, epoch: u64, looked_ns: u64) -> Checked {
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
