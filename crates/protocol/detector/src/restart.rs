// SPDX-License-Identifier: Apache-2.0
//! How a detector goes on: a witness as the incarnation that it was, an excluded host as a new one.

use crate::carry::Carry;
use crate::config::{Config, ConfigError};
use crate::detector::Detector;
use crate::life::LIFE_BITS;
use crate::roster::Local;
use crate::types::*;
use crate::view::{Outcome, Vote};
use fide_types::{
    MAX_PROCESSES,
    planted::{self, Planted},
};

impl Detector {
    /// A voter that starts again as the incarnation that it was, with its stored vote. `life` starts at 1 and
    /// is higher than in any earlier life of this incarnation; the numbers of its heartbeats begin with it.
    ///
    /// # Errors
    /// [`ConfigError`]; [`ConfigError::Incarnation`] if the vote is of another incarnation.
    pub fn resume(config: Config, vote: &Vote, life: u32, now_ns: u64) -> Result<Detector, ConfigError> {
        if vote.incarnation != config.incarnation || life == 0 {
            return Err(ConfigError::Incarnation);
        }
        let mut detector = Detector::new(config, now_ns)?;
        let former_seq = u64::from(life) << LIFE_BITS;
        detector.life.resume(former_seq);
        detector.sent.skip(former_seq);
        detector.sent.forget();
        let before = *detector.views.members();
        detector.views.recall(vote);
        if !vote.id.is_none() {
            detector.apply(now_ns, Outcome::Installed { before }, detector.config.me);
        }
        detector.heed_former(now_ns, vote.promise_us);
        Ok(detector)
    }

    /// After [`Event::Excluded`]: goes on as a new incarnation, and so do the local processes that are alive.
    ///
    /// # Errors
    /// [`RestartError`]; nothing has changed.
    pub fn restart(&mut self, now_ns: u64, incarnation: u32) -> Result<(), RestartError> {
        if self.life.is_put_back() {
            return Err(RestartError::PutBack);
        }
        let heard_of = if planted::is(Planted::PassesThroughFormers) { 0 } else { self.life.highest_heard() };
        let present = self.config.incarnation.max(heard_of);
        if incarnation <= present {
            return Err(RestartError::Incarnation { incarnation, present });
        }
        self.config.incarnation = incarnation;
        self.life.restart(self.sent.newest());
        self.lease.restart();
        self.sent.forget();
        self.views.restart(incarnation, now_ns);
        for peer in self.peers.others_mut() {
            peer.own_restart(now_ns);
        }
        self.locals.restart(incarnation);
        for slot in 0..MAX_PROCESSES as u8 {
            self.queues.clear(usize::from(slot));
            if let Some(Local { incarnation, name, .. }) = self.locals.get(slot).copied() {
                self.emit(Event::Up { host: self.config.me, slot, incarnation, name });
            }
        }
        for wish in self.wishes.iter_mut() {
            wish.carry = Carry::Pending;
        }
        self.carries = true;
        self.renew_lease(now_ns);
        Ok(())
    }
}
