// SPDX-License-Identifier: Apache-2.0
//! How long a host that is not a member yet has waited for each thing, so that nobody is blamed for a packet
//! that is only on its way.

use fide_types::{HostId, MAX_HOSTS, PerHost};

/// A running process of another member is blamed for its silence (another key, another port) after this long.
/// In a group that is being founded, first packets come within milliseconds; the rest is for hosts that are
/// just starting.
pub(crate) const BLAMED_AFTER_NS: u64 = 2_000_000_000;

/// Since when this host has waited for each thing. The caller passes the time.
#[derive(Debug, Clone)]
pub(crate) struct Waits {
    /// The process of each host that runs and has sent no packet that could be opened, and since when.
    silent: PerHost<Option<(u32, u64)>>,
    /// Since when nothing is missing, although this host is not a member.
    complete: Option<u64>,
}

impl Default for Waits {
    fn default() -> Self {
        Self { silent: PerHost::new(MAX_HOSTS, |_| None), complete: None }
    }
}

impl Waits {
    /// Notes the present state. `silent`: the processes that run and of which no packet has come, with their
    /// hosts.
    pub(crate) fn observe(&mut self, now_ns: u64, silent: impl Iterator<Item = (u16, u32)>, is_complete: bool) {
        let before = std::mem::replace(&mut self.silent, PerHost::new(MAX_HOSTS, |_| None));
        for (host, process) in silent {
            let Some(silent) = self.silent.get_mut(host) else { continue };
            let since = before[host].filter(|(of, _)| *of == process).map_or(now_ns, |(_, since)| since);
            *silent = Some((process, since));
        }
        self.complete = is_complete.then(|| self.complete.unwrap_or(now_ns));
    }

    /// How long a host's process has run without a packet, if that is long enough to blame it.
    pub(crate) fn blamed_ns(&self, host: HostId, now_ns: u64) -> Option<u64> {
        let (_, since) = (*self.silent.get(host)?)?;
        Some(now_ns.saturating_sub(since)).filter(|ns| *ns >= BLAMED_AFTER_NS)
    }

    /// Whether nothing has been missing for so long that a person has to do something.
    pub(crate) fn is_stuck(&self, now_ns: u64) -> bool {
        self.complete.is_some_and(|since| now_ns.saturating_sub(since) >= BLAMED_AFTER_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: u64 = BLAMED_AFTER_NS;

    #[test]
    fn process_that_just_came_up_is_not_blamed() {
        let mut waits = Waits::default();
        waits.observe(100, [(2, 7)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 100 + LATE - 1), None, "its packet may be on its way");
        waits.observe(100 + LATE, [(2, 7)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 100 + LATE), Some(LATE));
        assert_eq!(waits.blamed_ns(3, 100 + LATE), None, "another host");
        // A process that follows it is another one, and so is the same that has been heard meanwhile.
        waits.observe(200 + LATE, [(2, 8)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 200 + LATE), None);
        waits.observe(300 + LATE, std::iter::empty(), false);
        waits.observe(400 + LATE, [(2, 8)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 200 + 2 * LATE), None);
    }

    #[test]
    fn group_that_is_complete_is_stuck_only_after_a_while() {
        let mut waits = Waits::default();
        waits.observe(1, std::iter::empty(), true);
        assert!(!waits.is_stuck(LATE));
        waits.observe(LATE, std::iter::empty(), true);
        assert!(waits.is_stuck(1 + LATE));
        waits.observe(2 + LATE, std::iter::empty(), false);
        waits.observe(3 + LATE, std::iter::empty(), true);
        assert!(!waits.is_stuck(4 + LATE), "something was missing in between");
    }

    #[test]
    fn hosts_beyond_the_most_are_left_out() {
        let mut waits = Waits::default();
        waits.observe(1, [(0, 7), (65, 7)].into_iter(), false);
        assert_eq!((waits.blamed_ns(0, LATE * 2), waits.blamed_ns(65, LATE * 2)), (None, None));
    }
}
