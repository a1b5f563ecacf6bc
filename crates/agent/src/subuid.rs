// SPDX-License-Identifier: Apache-2.0
//! Whose share a user id takes: users with subordinate ids (`/etc/subuid`) have one share all the same.
//!
//! The file is what decides, and not the namespace of whoever connects: a file that belongs to a subordinate id and has the setuid bit gives
//! that id to its owner outside of every namespace too.

use std::{fs, path::Path};

use crate::names::user_id;

/// Ranges that are read; what is beyond counts as users of their own.
const RANGES_MAX: usize = 4096;

/// Ids that belong to other users.
#[derive(Debug, Default)]
pub struct Shares {
    ranges: Vec<Range>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
    owner: u32,
}

impl Shares {
    /// Those of this file (subuid(5)), for an agent of `own`; none if it cannot be read.
    #[must_use]
    pub fn read(path: &Path, own: u32) -> Self {
        Self::parse(&fs::read_to_string(path).unwrap_or_default(), own, user_id)
    }

    fn parse(text: &str, own: u32, id_of: impl Fn(&str) -> Option<u32>) -> Self {
        let range = |line: &str| {
            let mut words = line.trim().split(':');
            let (owner, first, count) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            // Containers of root, or of the agent's own user, are users of their own: nobody has these users' rights by a subordinate id.
            let owner = id_of(owner).filter(|owner| *owner != 0 && *owner != own)?;
            words.next().is_none().then_some(Range { first, count, owner })
        };
        Self { ranges: text.lines().filter_map(range).take(RANGES_MAX).collect() }
    }

    /// The user in whose share `uid` counts.
    #[must_use]
    pub fn of(&self, uid: u32) -> u32 {
        let has = |range: &&Range| uid != 0 && uid >= range.first && uid - range.first < range.count;
        self.ranges.iter().find(has).map_or(uid, |range| range.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Shares {
        Shares::parse(text, 1002, |name| match name {
            "root" => Some(0),
            "alice" => Some(1000),
            number => number.parse().ok(),
        })
    }

    #[test]
    fn subordinate_ids_count_in_their_owners_share() {
        let shares = parse("alice:100000:65536\n1001:165536:10\nroot:300000:65536\n1002:400000:5\n");
        assert_eq!([0, 1000, 99_999].map(|uid| shares.of(uid)), [0, 1000, 99_999]);
        assert_eq!([100_000, 165_535, 165_536, 165_545].map(|uid| shares.of(uid)), [1000, 1000, 1001, 1001]);
        assert_eq!(
            [165_546, 300_000, 400_000].map(|uid| shares.of(uid)),
            [165_546, 300_000, 400_000],
            "of nobody or with rights"
        );
    }

    #[test]
    fn nobody_takes_roots_share_and_nonsense_is_left_out() {
        let text =
            "alice:0:4294967295\n\n# none\nnobody-here:1:5\nalice:x:1\nalice:7\nalice:1:2:3\n1001:4294967290:100\n";
        let shares = parse(text);
        assert_eq!((shares.of(0), shares.of(9)), (0, 1000), "root is root");
        let shares = parse("1001:4294967290:100\n");
        assert_eq!([u32::MAX, 0, 80].map(|uid| shares.of(uid)), [1001, 0, 80]);
        assert_eq!(parse(&"alice:1:1\n".repeat(2 * RANGES_MAX)).ranges.len(), RANGES_MAX);
    }
}
