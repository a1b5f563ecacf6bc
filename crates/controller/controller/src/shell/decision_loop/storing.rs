// SPDX-License-Identifier: Apache-2.0
//! From a decision to the store, and only then to the outside; back, if the store refuses it.

use fide_controller_api::Code;
use fide_types::Time;

use super::*;

impl<H: Handler, S: Store, L: Leadership, A: FnMut(H::Effect)> DecisionLoop<H, S, L, A> {
    pub(super) fn note(&mut self, decision: Decision<H::Effect>, pending: &mut Pending<H::Effect>) {
        if let Err(why) = self.take(decision, None, pending) {
            tracing::error!("a decision does not count: {why}");
        }
    }

    /// Has the handler repeat its orders. If that cannot be stored, nothing is decided, because rules and
    /// deadlines that follow from the stored state would be missing.
    pub(super) fn resume(&mut self, now: Now, pending: &mut Pending<H::Effect>) {
        self.unsure = false;
        let decision = self.handler.resume(now);
        match self.take(decision, None, pending) {
            Err(why @ Refused::TooLarge { .. }) => self.block(format!("what follows from the stored state: {why}")),
            Err(why) => tracing::error!("what follows from the stored state is not done yet: {why}"),
            Ok(_) => {}
        }
    }

    /// Adds a decision, which the handler's state already contains, to the entries to be stored.
    pub(super) fn take(
        &mut self,
        decision: Decision<H::Effect>,
        asked: Option<(Identity, Sequence, u64)>,
        pending: &mut Pending<H::Effect>,
    ) -> Result<Reply, Refused> {
        if self.state.is_none() {
            // Deposed within this turn.
            return Err(Refused::NotLeader { leader: None, trouble: None });
        }
        if decision.take_back {
            // Earlier decisions of this turn count.
            self.flush(pending)?;
            self.roll_back();
            self.unsure = true;
            let nothing = || Answer::error(500, Code::TakenBack, "the controller has a fault; nothing was changed");
            let reply = reply_of(decision.answer.unwrap_or_else(nothing), false);
            self.answered(asked, &reply);
            return Ok(reply);
        }
        let silent = Answer::error(500, Code::NoAnswer, "the controller decided without an answer; ask for the state");
        let changes_nothing = decision.changes_nothing();
        let reply = reply_of(decision.answer.unwrap_or(silent), false);
        if changes_nothing {
            // There is nothing to store, so a report of a broken tree does not wait for the store. A
            // controller that forgets its number tells the peer which number it expects, and carries the
            // request out again, with the same result.
            self.answered(asked, &reply);
        } else {
            let done = asked.map(|(peer, sequence, digest)| Done {
                peer,
                sequence,
                digest,
                answer: Kept::new(reply.status, reply.body.clone()),
            });
            let upcalls: Vec<(Identity, String)> =
                decision.upcalls.into_iter().map(|(peer, body)| (peer, body.to_string())).collect();
            let entry = Entry {
                core: decision.record,
                done,
                upcalls: grouped(&upcalls),
                acknowledged: self.board.take_unstored(),
                forget: decision.forget,
            };
            self.reserve(&entry, pending)?;
            if let (Some(state), Some(done)) = (&mut self.state, entry.done) {
                state.sequences.record(done.peer, done.sequence, done.digest, done.answer);
            }
            for peer in &entry.forget {
                if let Some(state) = &mut self.state {
                    state.sequences.forget(*peer);
                }
            }
            pending.upcalls.extend(upcalls);
            pending.forget.extend(entry.forget);
        }
        pending.effects.extend(decision.effects);
        Ok(reply)
    }

    /// Uses up the number of a request that changed nothing.
    fn answered(&mut self, asked: Option<(Identity, Sequence, u64)>, reply: &Reply) {
        if let (Some(state), Some((peer, sequence, digest))) = (&mut self.state, asked) {
            state.sequences.record(peer, sequence, digest, Kept::new(reply.status, reply.body.clone()));
        }
    }

    /// Adds `entry` to the next append. If that would become too large, the append is made now.
    fn reserve(&mut self, entry: &Entry, pending: &mut Pending<H::Effect>) -> Result<(), Refused> {
        let long = entry.upcalls.iter().map(|(_, body)| body.len()).find(|len| *len > EVENT_BYTES_MAX);
        let encoded = match long {
            Some(len) => Err(format!("an event of {len} bytes, at most {EVENT_BYTES_MAX} are allowed")),
            None => records(entry).map_err(|why| why.to_string()),
        };
        let (parts, last) = match encoded {
            Ok(encoded) => encoded,
            Err(why) => {
                self.flush(pending)?;
                // The handler has made the change; it is rolled back, together with the handler's orders
                // and deadlines.
                self.roll_back();
                self.unsure = true;
                return Err(Refused::TooLarge { why });
            }
        };
        let bytes: usize = pending.entries.iter().map(Vec::len).sum();
        if !parts.is_empty() || pending.entries.len() >= store::BATCH_MAX || bytes + last.len() > store::BATCH_BYTES_MAX
        {
            self.flush(pending)?;
        }
        for part in parts {
            // Without its last part it is not a decision yet.
            pending.entries.push(part);
            self.flush(pending)?;
        }
        pending.entries.push(last);
        Ok(())
    }

    fn flush(&mut self, pending: &mut Pending<H::Effect>) -> Result<(), Refused> {
        self.commit(std::mem::take(pending));
        match (&self.trouble, &self.state) {
            (Some(why), _) => Err(Refused::ReadOnly { why: why.clone() }),
            (None, None) => Err(Refused::NotLeader { leader: None, trouble: None }),
            (None, Some(_)) => Ok(()),
        }
    }

    /// Stores the pending decisions, and only then sends their answers and effects.
    pub(super) fn commit(&mut self, pending: Pending<H::Effect>) {
        let Pending { entries, replies, upcalls, forget, effects } = pending;
        if !entries.is_empty() {
            let begun = std::time::Instant::now();
            let stored = match &mut self.state {
                Some(state) => {
                    let done = self.store.append(state.stored.last() + 1, &entries);
                    done.inspect(|()| state.stored.records.extend(entries))
                }
                None => Err(store::Error::NotLoaded { place: self.store.place() }),
            };
            tracing::debug!("stored, in {}", Time::from(begun.elapsed()));
            if let Err(why) = stored {
                let refused = match &why {
                    store::Error::Unavailable { .. } | store::Error::Io { .. } => {
                        Refused::Unknown { why: why.to_string() }
                    }
                    store::Error::Fenced { .. } => Refused::NotLeader { leader: None, trouble: None },
                    _ => Refused::ReadOnly { why: why.to_string() },
                };
                self.roll_back();
                self.failed(&why);
                for (reply, ..) in replies {
                    let _ = reply.send(Err(refused.clone()));
                }
                return;
            }
        }
        for (peer, body) in upcalls {
            if let Err(why) = self.board.publish(peer, body) {
                tracing::error!(%peer, "an event is not delivered: {why}");
            }
        }
        forget.into_iter().for_each(|peer| self.board.forget(peer));
        effects.into_iter().for_each(&mut self.act);
        let epoch = self.state.as_ref().map(|state| state.epoch);
        let proved = matches!(self.leadership.authority(), Authority::Leader { epoch: led } if Some(led) == epoch);
        for (reply, mut result, read) in replies {
            if let Ok(reply) = &mut result {
                reply.stale = read && !proved;
            }
            // The caller may have gone.
            let _ = reply.send(result);
        }
    }

    /// Rolls the handler and the order of requests back to the stored state.
    fn roll_back(&mut self) {
        let Some(state) = &mut self.state else { return };
        match restore(&mut self.handler, &state.stored) {
            Ok((sequences, _)) => state.sequences = sequences,
            Err(why) => {
                self.state = None;
                self.board.close();
                self.block(why.to_string());
            }
        }
    }

    pub(super) fn is_full(&self, records: usize) -> bool {
        self.state.as_ref().is_some_and(|state| {
            let stored = &state.stored.records;
            stored.len() >= records || stored.iter().map(Vec::len).sum::<usize>() >= SNAPSHOT_BYTES
        })
    }

    pub(super) fn snapshot(&mut self) {
        let Some(state) = &mut self.state else { return };
        let whole =
            Whole { core: self.handler.snapshot(), sequences: state.sequences.clone(), upcalls: self.board.copy() };
        let through = state.stored.last();
        let made = match encode(&whole) {
            Ok(bytes) => self.store.snapshot(through, &bytes).map(|()| bytes),
            Err(why) => Err(store::Error::Io { place: self.store.place(), why: why.to_string() }),
        };
        match made {
            Ok(bytes) => {
                state.stored = Loaded { snapshot: Some(Snapshot { through, state: bytes }), records: Vec::new() }
            }
            Err(why) => self.failed(&why),
        }
    }
}
