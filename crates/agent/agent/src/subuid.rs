// SPDX-License-Identifier: Apache-2.0
//! Which user an id counts against: a user and its subordinate ids (`/etc/subuid`) share one quota.
//!
//! The file decides, and not the caller's namespace: a file that belongs to a subordinate id and has the
//! setuid bit gives that id to its owner outside of every namespace too.

use std::{
    fs,
    path::Path,
    sync::{Arc, OnceLock, mpsc},
    thread,
    time::Duration,
};

use crate::{names::user_id, privileges};

/// Ranges that are read; ids in further ones count as users of their own.
const RANGES_MAX: usize = 4096;
/// How long a start waits for the owners' ids. Resolving a user name may need a directory that does not
/// answer.
const LIMIT: Duration = Duration::from_secs(1);

/// A range of ids that belong to another user.
#[derive(Debug)]
pub struct Shares {
    ranges: Arc<OnceLock<Ranges>>,
}

/// All ranges that were read.
#[derive(Debug, Default)]
struct Ranges(Vec<Range>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
    owner: u32,
}

impl Shares {
    /// The ranges of this file (subuid(5)), for an agent of `own`. None if it cannot be read, or if the
    /// owners' ids are not known within [`LIMIT`].
    #[must_use]
    pub fn read(path: &'static Path, own: u32) -> Self {
        let read = move || Ranges::parse(&fs::read_to_string(path).unwrap_or_default(), own, user_id);
        let (shares, is_done) = Self::begin(read, LIMIT);
        if !is_done {
            tracing::warn!("the owners in {} are not known yet: each id in it has a share of its own", path.display());
        }
        shares
    }

    /// The ranges that `read` returns, in a thread that is waited for no longer than `limit`; whether it
    /// was in time.
    fn begin(read: impl FnOnce() -> Ranges + Send + 'static, limit: Duration) -> (Self, bool) {
        let ranges = Arc::new(OnceLock::new());
        let (theirs, (done, is_done)) = (ranges.clone(), mpsc::sync_channel(1));
        let reads = move || {
            let _ = privileges::drop_excess();
            let _ = theirs.set(read());
            let _ = done.try_send(());
        };
        let begun = thread::Builder::new().name("fide-subuid".to_owned()).spawn(reads).is_ok();
        (Self { ranges }, begun && is_done.recv_timeout(limit).is_ok())
    }

    /// The user that `uid` counts against.
    #[must_use]
    pub fn of(&self, uid: u32) -> u32 {
        self.ranges.get().map_or(uid, |ranges| ranges.owner(uid))
    }
}

impl Ranges {
    fn parse(text: &str, own: u32, id_of: impl Fn(&str) -> Option<u32>) -> Self {
        let range = |line: &str| {
            let mut words = line.trim().split(':');
            let (owner, first, count) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            // Containers of root, or of the agent's own user, count as users of their own: a subordinate id
            // must not have these users' rights.
            let owner = id_of(owner).filter(|owner| *owner != 0 && *owner != own)?;
            words.next().is_none().then_some(Range { first, count, owner })
        };
        Self(text.lines().filter_map(range).take(RANGES_MAX).collect())
    }

    fn owner(&self, uid: u32) -> u32 {
        let has = |range: &&Range| uid != 0 && uid >= range.first && uid - range.first < range.count;
        self.0.iter().find(has).map_or(uid, |range| range.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Ranges {
        Ranges::parse(text, 1002, |name| match name {
            "root" => Some(0),
            "alice" => Some(1000),
            number => number.parse().ok(),
        })
    }

    #[test]
    fn subordinate_ids_count_against_their_owner() {
        let shares = parse("alice:100000:65536\n1001:165536:10\nroot:300000:65536\n1002:400000:5\n");
        assert_eq!([0, 1000, 99_999].map(|uid| shares.owner(uid)), [0, 1000, 99_999]);
        assert_eq!([100_000, 165_535, 165_536, 165_545].map(|uid| shares.owner(uid)), [1000, 1000, 1001, 1001]);
        assert_eq!(
            [165_546, 300_000, 400_000].map(|uid| shares.owner(uid)),
            [165_546, 300_000, 400_000],
            "of nobody or with rights"
        );
    }

    #[test]
    fn nobody_takes_roots_share_and_nonsense_is_left_out() {
        let text =
            "alice:0:4294967295\n\n# none\nnobody-here:1:5\nalice:x:1\nalice:7\nalice:1:2:3\n1001:4294967290:100\n";
        let shares = parse(text);
        assert_eq!((shares.owner(0), shares.owner(9)), (0, 1000), "root is root");
        let shares = parse("1001:4294967290:100\n");
        assert_eq!([u32::MAX, 0, 80].map(|uid| shares.owner(uid)), [1001, 0, 80]);
        assert_eq!(parse(&"alice:1:1\n".repeat(2 * RANGES_MAX)).0.len(), RANGES_MAX);
    }

    #[test]
    fn unanswering_user_directory_does_not_delay_the_start() {
        let (answers, answered) = mpsc::sync_channel(0);
        let read = move || {
            let _ = answered.recv();
            parse("alice:100000:65536\n")
        };
        let (shares, is_done) = Shares::begin(read, Duration::from_millis(10));
        assert_eq!((is_done, shares.of(100_000)), (false, 100_000), "it goes on without them");
        answers.send(()).expect("it waits");
        while shares.of(100_000) != 1000 {
            thread::yield_now();
        }
        let (shares, is_done) = Shares::begin(|| parse("alice:100000:65536\n"), Duration::from_secs(600));
        assert_eq!((is_done, shares.of(100_000)), (true, 1000));
    }
}
