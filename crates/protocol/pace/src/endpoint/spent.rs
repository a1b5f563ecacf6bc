// SPDX-License-Identifier: Apache-2.0
//! Which set-ups have made a connection: a copy of one makes no other, also after the connection is over.

use std::collections::BTreeSet;

use crate::setup::{COOKIE_LIFE_US, Message};

/// Set-ups that are remembered. Beyond them the oldest is forgotten, and its cookie, with all that are as old, holds no longer:
/// such a client gets another cookie, which takes it a round trip.
pub(super) const SPENT_MAX: usize = 16_384;
/// Bytes of a message that are in no other one: its ephemeral key.
const KEY_LEN: usize = 32;

/// The set-ups of the time that a cookie is good for.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// When the cookie was made, and the ephemeral key.
    used: BTreeSet<(u64, [u8; KEY_LEN])>,
    /// Cookies that were made until then hold no longer.
    until_us: u64,
}

fn ephemeral(message: &Message) -> [u8; KEY_LEN] {
    message.first_chunk().copied().unwrap_or_default()
}

impl Spent {
    /// Whether a cookie that was made then is still good for this message.
    pub(super) fn allows(&self, made_us: u64, message: &Message) -> bool {
        made_us > self.until_us && !self.used.contains(&(made_us, ephemeral(message)))
    }

    /// It is not from now on.
    pub(super) fn add(&mut self, now_us: u64, made_us: u64, message: &Message) {
        self.used.insert((made_us, ephemeral(message)));
        while let Some((oldest_us, _)) = self.used.first().copied() {
            let is_needed = oldest_us + COOKIE_LIFE_US >= now_us && oldest_us > self.until_us;
            if is_needed && self.used.len() <= SPENT_MAX {
                break;
            }
            if is_needed {
                self.until_us = oldest_us;
            }
            self.used.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(at: usize) -> Message {
        std::array::from_fn(|byte| if byte < 8 { at.to_be_bytes()[byte] } else { 0 })
    }

    #[test]
    fn set_up_holds_once_and_no_more_are_remembered_than_are_needed() {
        let (mut spent, start_us) = (Spent::default(), 1_000_000_000);
        assert!(spent.allows(start_us, &message(0)));
        spent.add(start_us, start_us, &message(0));
        assert!(!spent.allows(start_us, &message(0)));
        assert!(spent.allows(start_us, &message(1)), "another client's of the same moment");
        spent.add(start_us + COOKIE_LIFE_US + 1, start_us + COOKIE_LIFE_US, &message(2));
        assert_eq!(spent.used.len(), 1, "no cookie of the first is good any more");
    }

    #[test]
    fn at_the_bound_older_cookies_hold_no_longer() {
        let (mut spent, start_us) = (Spent::default(), 1_000_000_000);
        for at in 0..SPENT_MAX + 10 {
            spent.add(start_us + 100_000, start_us + at as u64, &message(at));
            assert!(spent.used.len() <= SPENT_MAX);
        }
        for at in 0..SPENT_MAX + 10 {
            assert!(!spent.allows(start_us + at as u64, &message(at)), "{at} again");
        }
        assert!(!spent.allows(start_us, &message(SPENT_MAX + 10)), "a cookie as old as one that is forgotten");
        assert!(spent.allows(start_us + SPENT_MAX as u64 + 10, &message(SPENT_MAX + 10)));
    }
}
