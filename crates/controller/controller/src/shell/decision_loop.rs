// SPDX-License-Identifier: Apache-2.0
//! The decision loop: what its thread does in each turn.

mod storing;

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use fide_controller_api::Method;
use fide_controller_api::identity::Identity;
use fide_controller_api::sequence::Sequence;
use tokio::sync::oneshot;

use super::entry::{Done, Entry, Whole, encode, grouped, records, restore};
use super::senders::{Asked, Job, Refused, Reply};
use super::{IDLE, RECORDS_MAX, RELOAD_PAUSE_NS, SNAPSHOT_BYTES, SNAPSHOT_RECORDS, TURN_MAX};
use crate::clock::Now;
use crate::handler::{Answer, Decision, Handler};
use crate::leader::{Authority, Candidate, Leadership};
use crate::sequence::{Admission, Kept, Sequences};
use crate::store::{self, Loaded, Snapshot, Store};
use crate::upcalls::{Board, EVENT_BYTES_MAX};

/// Shortest turn, for a deadline that stays in the past.
const TURN_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct DecisionLoop<H, S, L, A> {
    handler: H,
    store: S,
    leadership: L,
    act: A,
    board: Board,
    /// The known state; `None` while standing by.
    state: Option<State>,
    /// Why the store must be loaded before anything is decided.
    trouble: Option<String>,
    tried_ns: u64,
    /// The handler has missed an event, or was rolled back to the stored state: it has to repeat its
    /// orders.
    unsure: bool,
    /// Whether the last turn could decide. If not, a deadline is no reason to hurry, because it cannot be
    /// met.
    decides: bool,
}

/// The stored state, and what follows from it.
struct State {
    epoch: u64,
    sequences: Sequences,
    /// A copy of the store's content, to roll back to.
    stored: Loaded,
}

enum Mode {
    Lead,
    ReadOnly(String),
    Standby { leader: Option<Candidate>, trouble: Option<String> },
}

type ReplyTo = oneshot::Sender<Result<Reply, Refused>>;

/// Decided, and not stored yet.
struct Pending<E> {
    entries: Vec<Vec<u8>>,
    replies: Vec<(ReplyTo, Result<Reply, Refused>, bool)>,
    upcalls: Vec<(Identity, String)>,
    forget: Vec<Identity>,
    effects: Vec<E>,
}

impl<E> Default for Pending<E> {
    fn default() -> Self {
        Pending { entries: vec![], replies: vec![], upcalls: vec![], forget: vec![], effects: vec![] }
    }
}

impl<H: Handler, S: Store, L: Leadership, A: FnMut(H::Effect)> DecisionLoop<H, S, L, A> {
    pub(super) fn new(handler: H, store: S, leadership: L, act: A, board: Board) -> Self {
        DecisionLoop {
            handler,
            store,
            leadership,
            act,
            board,
            state: None,
            trouble: None,
            tried_ns: 0,
            unsure: false,
            decides: false,
        }
    }

    pub(super) fn run(mut self, jobs: &Receiver<Job<H::Event>>, stopped: &Receiver<()>) {
        loop {
            let stopping = stopped.try_recv() == Err(TryRecvError::Disconnected);
            let wait = if stopping { Duration::ZERO } else { self.wait() };
            let mut turn = Vec::with_capacity(TURN_MAX);
            match jobs.recv_timeout(wait) {
                Ok(job) => turn.push(job),
                Err(RecvTimeoutError::Timeout) if stopping => break,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            turn.extend(std::iter::from_fn(|| jobs.try_recv().ok()).take(TURN_MAX - 1));
            self.turn(turn);
        }
        self.board.close();
    }

    fn wait(&self) -> Duration {
        let deadline_ns = if self.decides && self.state.is_some() { self.handler.deadline_ns() } else { None };
        let Some(deadline_ns) = deadline_ns else { return IDLE };
        Duration::from_nanos(deadline_ns.saturating_sub(Now::read().boot_ns)).clamp(TURN_PAUSE, IDLE)
    }

    fn turn(&mut self, jobs: Vec<Job<H::Event>>) {
        let now = Now::read();
        let mode = self.follow(now);
        let mut pending = Pending::default();
        if matches!(mode, Mode::Lead) && self.handler.deadline_ns().is_some_and(|at| at <= now.boot_ns) {
            let decision = self.handler.tick(now);
            self.note(decision, &mut pending);
        }
        for job in jobs {
            // A store that failed in this turn ends the turn's decisions.
            let failed = self.trouble.clone().map(Mode::ReadOnly);
            let mode = failed.as_ref().unwrap_or(&mode);
            if matches!(mode, Mode::Lead) && self.unsure {
                self.resume(now, &mut pending);
            }
            match (mode, job) {
                (Mode::Lead, Job::Request(asked)) => self.request(asked, now, &mut pending),
                (Mode::Lead, Job::Event(event)) => {
                    let decision = self.handler.event(event, now);
                    self.note(decision, &mut pending);
                }
                (_, Job::Event(_)) => {
                    tracing::debug!("an event is dropped: this controller does not lead");
                    self.unsure = true;
                }
                (Mode::ReadOnly(why), Job::Request(asked)) => self.read_only(asked, why, now),
                (Mode::Standby { leader, trouble }, Job::Request(asked)) => {
                    let refused = Refused::NotLeader { leader: leader.clone(), trouble: trouble.clone() };
                    let _ = asked.reply.send(Err(refused));
                }
            }
        }
        if matches!(mode, Mode::Lead) && self.trouble.is_none() && self.unsure {
            self.resume(now, &mut pending);
        }
        self.commit(pending);
        self.decides = matches!(mode, Mode::Lead) && self.trouble.is_none();
        if self.trouble.is_none() && self.is_full(SNAPSHOT_RECORDS) {
            self.snapshot();
        }
    }

    /// Brings the state in line with the leadership.
    fn follow(&mut self, now: Now) -> Mode {
        match self.leadership.authority() {
            Authority::Leader { epoch } => self.lead(epoch, now),
            Authority::ReadOnly { epoch, why } if self.state.as_ref().is_some_and(|s| s.epoch == epoch) => {
                Mode::ReadOnly(why)
            }
            Authority::ReadOnly { why, .. } => Mode::Standby { leader: None, trouble: Some(why) },
            Authority::Standby { leader, trouble } => {
                self.stand_by();
                Mode::Standby { leader, trouble }
            }
        }
    }

    fn stand_by(&mut self) {
        self.trouble = None;
        self.tried_ns = 0;
        if self.state.take().is_some() {
            self.board.close();
        }
    }

    fn lead(&mut self, epoch: u64, now: Now) -> Mode {
        if self.state.as_ref().is_some_and(|state| state.epoch != epoch) {
            // Another controller may have led in between.
            self.stand_by();
        }
        if self.state.is_none() || self.trouble.is_some() {
            if now.boot_ns.saturating_sub(self.tried_ns) < RELOAD_PAUSE_NS {
                return Mode::ReadOnly(self.trouble.clone().unwrap_or_default());
            }
            self.tried_ns = now.boot_ns;
            self.load(epoch, now);
        }
        if self.trouble.is_none() && self.is_full(RECORDS_MAX) {
            self.snapshot();
        }
        match (&self.trouble, &self.state) {
            (Some(why), _) => Mode::ReadOnly(why.clone()),
            (None, Some(_)) => Mode::Lead,
            // Deposed.
            (None, None) => Mode::Standby { leader: None, trouble: None },
        }
    }

    fn load(&mut self, epoch: u64, now: Now) {
        let loaded = match self.store.load(epoch) {
            Ok(loaded) => loaded,
            Err(why) => return self.failed(&why),
        };
        match restore(&mut self.handler, &loaded) {
            Ok((sequences, upcalls)) => {
                tracing::info!(epoch, records = loaded.records.len(), "the state of {} is loaded", self.store.place());
                self.state = Some(State { epoch, sequences, stored: loaded });
                self.trouble = None;
                self.board.open(upcalls);
            }
            Err(why) => {
                self.state = None;
                self.board.close();
                return self.block(format!("{}: {why}", self.store.place()));
            }
        }
        let mut pending = Pending::default();
        self.resume(now, &mut pending);
        self.commit(pending);
    }

    /// Nothing can be decided, for this reason, until the store is loaded.
    fn block(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            tracing::error!("nothing can be changed: {why}");
        }
        self.trouble = Some(why);
    }

    /// The store failed. It has to be loaded before anything else, unless this controller is deposed.
    fn failed(&mut self, why: &store::Error) {
        self.block(why.to_string());
        if matches!(why, store::Error::Fenced { .. }) {
            self.leadership.deposed();
            self.stand_by();
        }
    }

    fn request(&mut self, asked: Asked, now: Now, pending: &mut Pending<H::Effect>) {
        let Asked { peer, request, digest, reply } = asked;
        let Some(state) = &self.state else {
            let _ = reply.send(Err(Refused::NotLeader { leader: None, trouble: None }));
            return;
        };
        let (Some(sequence), false) = (request.sequence, request.method == Method::Get) else {
            let answer = self.handler.read(&peer, &request, now);
            pending.replies.push((reply, Ok(reply_of(answer, false)), true));
            return;
        };
        let result = match state.sequences.check(peer.identity, sequence, digest) {
            Err(refusal) => Err(refusal.into()),
            Ok(Admission::Repeat(Kept { status, body: Some(body) })) => Ok(Reply { status, body, stale: false }),
            Ok(Admission::Repeat(Kept { body: None, .. })) => Err(Refused::AnswerGone),
            Ok(Admission::Fresh) => {
                let decision = self.handler.change(&peer, &request, now);
                self.take(decision, Some((peer.identity, sequence, digest)), pending)
            }
        };
        pending.replies.push((reply, result, false));
    }

    /// Answers a read from the last known state; refuses everything else.
    fn read_only(&self, asked: Asked, why: &str, now: Now) {
        let Asked { peer, request, reply, .. } = asked;
        let result = match (&self.state, request.method) {
            (Some(_), Method::Get) => Ok(reply_of(self.handler.read(&peer, &request, now), true)),
            _ => Err(Refused::ReadOnly { why: why.to_owned() }),
        };
        let _ = reply.send(result);
    }
}

fn reply_of(answer: Answer, stale: bool) -> Reply {
    Reply { status: answer.status, body: answer.body.to_string(), stale }
}
