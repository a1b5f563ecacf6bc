// SPDX-License-Identifier: Apache-2.0
//! How long a host that is no member yet has waited for what, so that nobody is blamed for a packet that is only on its way.

use fide_wire::MAX_HOSTS;

/// Another member's process that runs is blamed for its silence (another key, another port) after this long. In a group that forms, first
/// packets come within milliseconds; the rest is for hosts that are just starting.
pub(crate) const BLAMED_AFTER_NS: u64 = 2_000_000_000;

/// Since when each thing lasts. Time is given.
#[derive(Debug, Clone)]
pub(crate) struct Waits {
    /// By id - 1: the process that runs and has sent nothing that could be read, and since when.
    silent: [Option<(u32, u64)>; MAX_HOSTS],
    /// Since when nothing is missing, and this host is no member all the same.
    complete: Option<u64>,
}

impl Default for Waits {
    fn default() -> Self {
        Self { silent: [None; MAX_HOSTS], complete: None }
    }
}

impl Waits {
    /// What is so now. `silent`: of each other host the process that runs and of which no packet has come.
    pub(crate) fn look(&mut self, now_ns: u64, silent: impl Iterator<Item = (u16, u32)>, is_complete: bool) {
        let before = std::mem::replace(&mut self.silent, [None; MAX_HOSTS]);
        for (host, process) in silent {
            let Some(at) = usize::from(host).checked_sub(1).filter(|at| *at < MAX_HOSTS) else { continue };
            let since = before[at].filter(|(of, _)| *of == process).map_or(now_ns, |(_, since)| since);
            self.silent[at] = Some((process, since));
        }
        self.complete = is_complete.then(|| self.complete.unwrap_or(now_ns));
    }

    /// For how long a host's process has run without a packet, if that is long enough to blame it.
    pub(crate) fn blamed_ns(&self, host: u16, now_ns: u64) -> Option<u64> {
        let (_, since) = (*self.silent.get(usize::from(host).checked_sub(1)?)?)?;
        Some(now_ns.saturating_sub(since)).filter(|ns| *ns >= BLAMED_AFTER_NS)
    }

    /// Whether nothing has been missing for so long that somebody has to do something.
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
        waits.look(100, [(2, 7)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 100 + LATE - 1), None, "its packet may be on its way");
        waits.look(100 + LATE, [(2, 7)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 100 + LATE), Some(LATE));
        assert_eq!(waits.blamed_ns(3, 100 + LATE), None, "another host");
        // A process that follows it is another one, and so is the same that has been heard meanwhile.
        waits.look(200 + LATE, [(2, 8)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 200 + LATE), None);
        waits.look(300 + LATE, std::iter::empty(), false);
        waits.look(400 + LATE, [(2, 8)].into_iter(), false);
        assert_eq!(waits.blamed_ns(2, 200 + 2 * LATE), None);
    }

    #[test]
    fn group_that_is_complete_is_stuck_only_after_a_while() {
        let mut waits = Waits::default();
        waits.look(1, std::iter::empty(), true);
        assert!(!waits.is_stuck(LATE));
        waits.look(LATE, std::iter::empty(), true);
        assert!(waits.is_stuck(1 + LATE));
        waits.look(2 + LATE, std::iter::empty(), false);
        waits.look(3 + LATE, std::iter::empty(), true);
        assert!(!waits.is_stuck(4 + LATE), "something was missing in between");
    }

    #[test]
    fn hosts_beyond_the_most_are_left_out() {
        let mut waits = Waits::default();
        waits.look(1, [(0, 7), (65, 7)].into_iter(), false);
        assert_eq!((waits.blamed_ns(0, LATE * 2), waits.blamed_ns(65, LATE * 2)), (None, None));
    }
}
