// SPDX-License-Identifier: Apache-2.0
//! Exclusion: the other hosts go on without this incarnation, and this host comes back as the next one.
//!
//! The next incarnation has to be stored first. If that fails, on a full disk say, the host stays fenced
//! and tries again, later each time; `fide status` says why and when.

use crate::excluded::Excluded;
use std::time::{Duration, Instant};

use fide_detector::RestartError;

use super::Control;
use crate::{
    command::{Command, EngineGone, Reply},
    incarnation,
};

/// Between two log lines about a machine that was put back to a snapshot.
const REMINDED: Duration = Duration::from_secs(60);

impl Control {
    /// Stores the next incarnation and begins again with it.
    pub(super) fn begin_again(&mut self) -> Result<(), EngineGone> {
        let mut above = self.parts.incarnation.max(self.noted.newest());
        let next = loop {
            let next = match incarnation::next_after(&self.parts.config.state_dir, above) {
                Ok(next) => next,
                Err(why) => break Err(why.to_string()),
            };
            match self.parts.exchange.call(Command::Restart { incarnation: next })? {
                // The loop found out just now; the next turn logs it.
                Reply::NotBegun(RestartError::PutBack) => return Ok(()),
                // Others have heard of a later incarnation, from a state directory that was lost, say.
                Reply::NotBegun(RestartError::Incarnation { present, .. }) if present > above => above = present,
                Reply::NotBegun(why) => break Err(why.to_string()),
                _ => break Ok(next),
            }
        };
        match next {
            Ok(next) => {
                self.excluded = None;
                self.parts.incarnation = next;
                tracing::warn!(incarnation = next, "excluded by the others; this host begins again");
            }
            Err(error) => {
                let excluded = Excluded::failed(self.excluded.as_ref(), error.clone(), Instant::now());
                tracing::error!(
                    "excluded by the others, and fenced until this host has a new incarnation: {error}; attempt {}, the next in {} ms",
                    excluded.attempts,
                    excluded.next.saturating_duration_since(Instant::now()).as_millis()
                );
                self.excluded = Some(excluded);
            }
        }
        Ok(())
    }

    /// Logs that this machine was put back to a snapshot. This host remembers nothing since that snapshot,
    /// so programs that joined must not go on under a later incarnation: it stays fenced.
    fn log_put_back(&mut self) {
        let now = Instant::now();
        if self.excluded.as_ref().is_some_and(|said| now < said.next) {
            return;
        }
        let why = "this machine was put back to a snapshot, a clone of it runs, or its state directory was lost: others have heard of this agent \
                   what it has yet to say. End the programs that joined here, see that one machine runs, and start the agent anew. If this comes \
                   back, its former incarnation is beyond the clock: change the cluster's key on all hosts";
        tracing::error!("fenced until people act: {why}");
        let attempts = self.excluded.as_ref().map_or(0, |said| said.attempts);
        self.excluded = Some(Excluded { why: why.to_owned(), attempts, next: now + REMINDED });
    }

    /// Begins again if this host is excluded, or tries again when it is time. It reads the loop's state,
    /// which an agent that takes over has too, and so needs no record of the exclusion.
    pub(super) fn retry_excluded(&mut self) -> Result<(), EngineGone> {
        if self.parts.exchange.is_put_back() {
            self.log_put_back();
            return Ok(());
        }
        match &self.excluded {
            Some(excluded) if Instant::now() < excluded.next => Ok(()),
            Some(_) => self.begin_again(),
            None if self.parts.exchange.is_excluded() => self.begin_again(),
            None => Ok(()),
        }
    }
}
