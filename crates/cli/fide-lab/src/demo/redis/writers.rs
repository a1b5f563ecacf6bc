// SPDX-License-Identifier: Apache-2.0
//! Clients that write numbers, one after the other, each to a key of its own, and follow the leader. Each
//! write returns the number before it, so a lost one is seen by the next write.

use std::{
    io,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use fide_sys::clock::mono_ns;

use super::{
    connection::{Connection, Reply},
    shared::Shared,
};

/// A write that is unanswered for this long: the client asks who leads.
const PATIENCE: Duration = Duration::from_millis(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_micros(200);
/// A write is acknowledged within this, or the demo fails.
const LIMIT: Duration = Duration::from_secs(20);
/// Most writes of a client.
const WRITES_MAX: u64 = 5_000_000;

/// What a client has seen, in the end.
#[derive(Debug, Clone, Default)]
pub(super) struct Written {
    pub(super) key: String,
    pub(super) acknowledged: u64,
    /// Numbers that were acknowledged and were not there.
    pub(super) lost: u64,
    /// The first thing that cannot be.
    pub(super) wrong: Option<String>,
}

impl Written {
    /// A write of the number after the last acknowledged one was acknowledged; `before` was there before it.
    fn take(&mut self, before: Option<u64>, is_repeated: bool) {
        let (last, number) = (self.acknowledged, self.acknowledged + 1);
        self.acknowledged = number;
        let before = before.unwrap_or(0);
        if before < last {
            self.lost += last - before;
        }
        // An attempt whose answer was lost may have been executed.
        let is_possible = before == last || (before == number && is_repeated);
        if !is_possible && self.wrong.is_none() {
            self.wrong = Some(format!("{}: {before} was there when {number} was written, after {last}", self.key));
        }
    }

    /// The number that a server has at the end, when nothing is under way.
    pub(super) fn check(&mut self, host: usize, found: Option<u64>) {
        let found = found.unwrap_or(0);
        if found < self.acknowledged {
            self.lost += self.acknowledged - found;
        }
        if found != self.acknowledged && self.wrong.is_none() {
            self.wrong = Some(format!("{}: h{host} has {found} at the end, after {}", self.key, self.acknowledged));
        }
    }
}

struct Client<'a> {
    shared: &'a Shared,
    /// The server that it writes to.
    session: Option<(usize, Connection)>,
    /// The host that it wrote to last.
    last: usize,
}

/// How an attempt went.
enum Attempt {
    Acknowledged(usize, Option<u64>),
    /// Nobody knows whether it was executed, or it was not.
    Again,
}

impl Client<'_> {
    /// Connects to the leader.
    fn connect(&mut self) -> Option<()> {
        let leader = self.shared.find_leader(self.last)?;
        let connection = Connection::to(self.shared.servers[leader - 1].address).ok()?;
        self.last = leader;
        self.session = Some((leader, connection));
        Some(())
    }

    fn attempt(&mut self, key: &str, number: &str) -> Attempt {
        if self.session.is_none() && self.connect().is_none() {
            return Attempt::Again;
        }
        let Some((host, mut connection)) = self.session.take() else { return Attempt::Again };
        let answered = (|| -> io::Result<Option<Reply>> {
            connection.send(&["SET", key, number, "GET"])?;
            while !connection.is_readable(PATIENCE)? {
                if self.shared.find_leader(host).is_some_and(|leader| leader != host) {
                    return Ok(None);
                }
            }
            connection.receive().map(Some)
        })();
        let before = match answered {
            Ok(Some(Reply::Text(before))) => before.parse().ok(),
            Ok(Some(Reply::Null)) => None,
            _ => return Attempt::Again,
        };
        self.session = Some((host, connection));
        Attempt::Acknowledged(host, before)
    }
}

/// Writes until the load ends, in the namespace of this thread.
///
/// # Errors
/// A write is not acknowledged within [`LIMIT`].
pub(super) fn run(shared: &Shared, number: usize) -> anyhow::Result<Written> {
    let mut written = Written { key: format!("writer:{number}"), ..Written::default() };
    let mut client = Client { shared, session: None, last: 0 };
    while !shared.stops() && written.acknowledged < WRITES_MAX {
        let text = (written.acknowledged + 1).to_string();
        let begun = Instant::now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            if let Attempt::Acknowledged(host, before) = client.attempt(&written.key, &text) {
                shared.acknowledge(mono_ns(), host);
                written.take(before, attempts > 1);
                break;
            }
            shared.asked_again.fetch_add(1, Relaxed);
            if begun.elapsed() > LIMIT {
                bail!("{} was not acknowledged within {LIMIT:?} as {text}", written.key);
            }
            thread::sleep(PAUSE);
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_write_is_seen_by_the_next_one() {
        let mut written = Written { key: "writer:0".to_owned(), ..Written::default() };
        written.take(None, false);
        written.take(Some(1), false);
        // Its first attempt was executed.
        written.take(Some(3), true);
        assert_eq!((written.acknowledged, written.lost), (3, 0));
        assert!(written.wrong.is_none());
        written.take(Some(1), true);
        assert_eq!((written.acknowledged, written.lost), (4, 2));
        assert!(written.wrong.is_some());
    }

    #[test]
    fn number_that_nobody_has_written_is_wrong() {
        let mut written = Written::default();
        written.take(Some(1), false);
        assert!(written.wrong.is_some() && written.lost == 0);
        let mut written = Written { acknowledged: 7, ..Written::default() };
        written.check(2, Some(7));
        assert!(written.wrong.is_none());
        written.check(3, Some(5));
        assert!(written.wrong.is_some() && written.lost == 2);
    }
}
