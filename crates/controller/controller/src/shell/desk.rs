// SPDX-License-Identifier: Apache-2.0
//! How others reach the thread.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::handler::{Peer, Request, Route};
use crate::leader::Candidate;
use crate::sequence::Refusal;
use crate::upcalls::Board;

/// An answer on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// JSON text.
    pub body: String,
    /// It tells what was stored when this controller last knew: it cannot prove that it still leads.
    pub stale: bool,
}

/// Why the handler was not asked, or its decision does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{} requests wait already; try again", super::QUEUE_MAX)]
    Busy,
    #[error("this controller is stopping; ask again in a moment")]
    Stopping,
    #[error("this controller does not lead{}", said(leader.as_ref(), trouble.as_deref()))]
    NotLeader { leader: Option<Candidate>, trouble: Option<String> },
    #[error("this controller cannot change anything just now: {why}; repeat the request with the same number")]
    ReadOnly { why: String },
    #[error("it is not known whether this was carried out: {why}; repeat the request with the same number")]
    Unknown { why: String },
    #[error(transparent)]
    Order(#[from] Refusal),
    #[error("this was carried out before, but its answer was too long to be kept; ask for the state")]
    AnswerGone,
    #[error("the decision cannot be stored: {why}; nothing was changed")]
    TooLarge { why: String },
}

fn said(leader: Option<&Candidate>, trouble: Option<&str>) -> String {
    match (leader, trouble) {
        (Some(Candidate { name, address }), _) => format!(", {name} at {address} does; ask that one"),
        (None, Some(why)) => {
            format!(", and cannot find out who does: {why}; ask again in a moment, for a change with the same number")
        }
        (None, None) => ", nor is known who does; ask again in a moment, for a change with the same number".to_owned(),
    }
}

impl Refused {
    /// HTTP status and the error's code.
    pub fn code(&self) -> (u16, &'static str) {
        match self {
            Refused::Busy => (503, "busy"),
            Refused::Stopping => (503, "stopping"),
            Refused::NotLeader { .. } => (503, "not_leader"),
            Refused::ReadOnly { .. } => (503, "read_only"),
            Refused::Unknown { .. } => (503, "unknown_outcome"),
            Refused::Order(refusal @ Refusal::TooManyPeers { .. }) => (503, refusal.code()),
            Refused::Order(refusal) => (409, refusal.code()),
            Refused::AnswerGone => (409, "answer_gone"),
            Refused::TooLarge { .. } => (500, "decision_too_large"),
        }
    }

    /// What else the error says.
    pub fn details(&self) -> Value {
        match self {
            Refused::NotLeader { leader: Some(leader), .. } => json!({"leader": leader}),
            Refused::Order(refusal) => match refusal.expected() {
                Some(expected) => json!({"expected": expected.to_string()}),
                None => json!({}),
            },
            _ => json!({}),
        }
    }
}

/// What waits in the queue.
pub(super) enum Job<E> {
    Request(Asked),
    Event(E),
}

pub(super) struct Asked {
    pub(super) peer: Peer,
    pub(super) request: Request,
    /// Of a changing request.
    pub(super) digest: u64,
    pub(super) reply: oneshot::Sender<Result<Reply, Refused>>,
}

type Send = dyn Fn(Asked) -> Result<(), Refused> + std::marker::Send + Sync;

/// Takes requests to the thread. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    send: Arc<Send>,
    board: Board,
    routes: Arc<[Route]>,
}

impl Desk {
    pub(super) fn new<E: std::marker::Send + 'static>(
        queue: SyncSender<Job<E>>,
        board: Board,
        routes: Vec<Route>,
    ) -> Desk {
        let send = move |asked| queue.try_send(Job::Request(asked)).map_err(|e| refused(&e));
        Desk { send: Arc::new(send), board, routes: routes.into() }
    }

    /// Has `request` decided. `digest` is that of [`crate::sequence::digest`]. A caller that goes away does not stop the
    /// decision.
    pub async fn ask(&self, peer: Peer, request: Request, digest: u64) -> Result<Reply, Refused> {
        let (reply, answer) = oneshot::channel();
        (self.send)(Asked { peer, request, digest, reply })?;
        answer.await.unwrap_or(Err(Refused::Stopping))
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    pub fn routes(&self) -> &[Route] {
        &self.routes
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("routes", &self.routes).finish_non_exhaustive()
    }
}

fn refused<T>(error: &TrySendError<T>) -> Refused {
    match error {
        TrySendError::Full(_) => Refused::Busy,
        TrySendError::Disconnected(_) => Refused::Stopping,
    }
}

/// Takes events to the thread. Cheap to clone.
#[derive(Debug)]
pub struct Teller<E> {
    queue: SyncSender<Job<E>>,
}

impl<E> Clone for Teller<E> {
    fn clone(&self) -> Self {
        Teller { queue: self.queue.clone() }
    }
}

impl<E> fmt::Debug for Job<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Job::Request(_) => "Request",
            Job::Event(_) => "Event",
        })
    }
}

impl<E> Teller<E> {
    pub(super) fn new(queue: SyncSender<Job<E>>) -> Teller<E> {
        Teller { queue }
    }

    /// Has `event` handled, if this controller leads when its turn comes; otherwise it is dropped, and
    /// [`crate::handler::Handler::resume`] finds out what is so. [`Refused::Busy`] at the bound: tell again later.
    pub fn tell(&self, event: E) -> Result<(), Refused> {
        self.queue.try_send(Job::Event(event)).map_err(|e| refused(&e))
    }
}

/// For tests: without a shell. What is told comes out at the other end; at `bound` it is busy.
#[cfg(test)]
pub(crate) fn pipe<E>(bound: usize) -> (Teller<E>, impl Fn(std::time::Duration) -> Option<E>) {
    let (send, receive) = std::sync::mpsc::sync_channel(bound);
    let next = move |limit| match receive.recv_timeout(limit) {
        Ok(Job::Event(event)) => Some(event),
        _ => None,
    };
    (Teller::new(send), next)
}
