// SPDX-License-Identifier: Apache-2.0
//! After an exclusion: the others go on without this incarnation, and this host comes back as the next.
//!
//! The next incarnation has to be on disk first. Where it cannot be stored, on a full disk say, the host stays fenced and tries
//! again, later each time; `fide status` says why and when.

use crate::excluded::Excluded;
use std::time::{Duration, Instant};

use fide_detector::RestartError;

use super::Control;
use crate::{
    command::{Command, EngineGone, Reply},
    incarnation,
};

/// Told of a machine that was put back, again and again.
const REMINDED: Duration = Duration::from_secs(60);

impl Control {
    /// Peers go on without this incarnation; it comes back as the next.
    pub(super) fn begin_again(&mut self) -> Result<(), EngineGone> {
        let mut above = self.parts.incarnation.max(self.noted.newest());
        let next = loop {
            let next = match incarnation::next_after(&self.parts.config.state_dir, above) {
                Ok(next) => next,
                Err(why) => break Err(why.to_string()),
            };
            match self.parts.exchange.call(Command::Restart { incarnation: next })? {
                // Found out just now; the next turn says so.
                Reply::NotBegun(RestartError::PutBack) => return Ok(()),
                // Others have heard of a later one, of a state directory that was lost, say.
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

    /// Nothing here remembers what it has said since the snapshot, so programs that joined must not go on as a later incarnation: this host
    /// stays fenced.
    fn say_put_back(&mut self) {
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

    /// Begins again if this host is excluded, or tries again when it is time. Asks the loop's state, which also the agent that takes
    /// over has, and needs no record of what happened.
    pub(super) fn retry_excluded(&mut self) -> Result<(), EngineGone> {
        if self.parts.exchange.is_put_back() {
            self.say_put_back();
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
