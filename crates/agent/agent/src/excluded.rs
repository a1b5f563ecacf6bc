// SPDX-License-Identifier: Apache-2.0
//! Why an excluded host has not begun again, and when it tries next.

use std::time::{Duration, Instant};

/// From the first failure to the next attempt; twice as long after each.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Why this host has not begun again, and when it tries next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    pub why: String,
    pub attempts: u32,
    pub next: Instant,
}

impl Excluded {
    /// Another attempt has failed.
    pub(crate) fn failed(before: Option<&Self>, why: String, now: Instant) -> Self {
        let attempts = before.map_or(0, |before| before.attempts).saturating_add(1);
        // 2^5 times the shortest pause is beyond the longest.
        let wait = (RETRY_MIN * 2u32.pow((attempts - 1).min(5))).min(RETRY_MAX);
        Self { why, attempts, next: now + wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_back_off_and_never_end() {
        let now = Instant::now();
        let mut excluded = None;
        let mut waits = Vec::new();
        for attempt in 1..=40 {
            let next = Excluded::failed(excluded.as_ref(), "full".into(), now);
            assert_eq!(next.attempts, attempt);
            waits.push(next.next - now);
            excluded = Some(next);
        }
        assert!(waits.is_sorted());
        assert_eq!((waits[0], waits[1], waits[39]), (RETRY_MIN, RETRY_MIN * 2, RETRY_MAX));
    }
}
