// SPDX-License-Identifier: Apache-2.0
//! How other parts reach the decision loop.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

use fide_controller_api::Code;
use fide_controller_api::failure::{Details, Leader};
use tokio::sync::oneshot;

use crate::handler::{Peer, Request, Route};
use crate::leader::Candidate;
use crate::sequence::Refusal;
use crate::upcalls::Board;

/// An answer to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// JSON text.
    pub body: String,
    /// It is from the last state that this controller knew, and may be stale: the controller cannot prove
    /// that it still leads.
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
    pub fn code(&self) -> (u16, Code) {
        match self {
            Refused::Busy => (503, Code::Busy),
            Refused::Stopping => (503, Code::Stopping),
            Refused::NotLeader { .. } => (503, Code::NotLeader),
            Refused::ReadOnly { .. } => (503, Code::ReadOnly),
            Refused::Unknown { .. } => (503, Code::UnknownOutcome),
            Refused::Order(refusal @ Refusal::TooManyPeers { .. }) => (503, refusal.code()),
            Refused::Order(refusal) => (409, refusal.code()),
            Refused::AnswerGone => (409, Code::AnswerGone),
            Refused::TooLarge { .. } => (500, Code::DecisionTooLarge),
        }
    }

    /// Further fields of the error.
    pub fn details(&self) -> Details {
        match self {
            Refused::NotLeader { leader: Some(Candidate { name, address }), .. } => {
                let leader = Leader { name: name.clone(), address: address.clone() };
                Details { leader: Some(leader), ..Details::default() }
            }
            Refused::Order(refusal) => Details { expected: refusal.expected(), ..Details::default() },
            _ => Details::default(),
        }
    }
}

/// An entry of the queue.
pub(super) enum Job<E> {
    Request(Asked),
    Event(E),
}

pub(super) struct Asked {
    pub(super) peer: Peer,
    pub(super) request: Request,
    /// Only of a changing request.
    pub(super) digest: u64,
    pub(super) reply: oneshot::Sender<Result<Reply, Refused>>,
}

type Send = dyn Fn(Asked) -> Result<(), Refused> + std::marker::Send + Sync;

/// Sends requests to the decision loop. Cheap to clone.
#[derive(Clone)]
pub struct RequestSender {
    send: Arc<Send>,
    board: Board,
    routes: Arc<[Route]>,
}

impl RequestSender {
    pub(super) fn new<E: std::marker::Send + 'static>(
        queue: SyncSender<Job<E>>,
        board: Board,
        routes: Vec<Route>,
    ) -> RequestSender {
        let send = move |asked| queue.try_send(Job::Request(asked)).map_err(|e| refused(&e));
        RequestSender { send: Arc::new(send), board, routes: routes.into() }
    }

    /// Has `request` decided. `digest` comes from [`crate::sequence::digest`]. A caller that goes away does
    /// not stop the decision.
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

impl fmt::Debug for RequestSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestSender").field("routes", &self.routes).finish_non_exhaustive()
    }
}

fn refused<T>(error: &TrySendError<T>) -> Refused {
    match error {
        TrySendError::Full(_) => Refused::Busy,
        TrySendError::Disconnected(_) => Refused::Stopping,
    }
}

/// Sends events to the decision loop. Cheap to clone.
#[derive(Debug)]
pub struct EventSender<E> {
    queue: SyncSender<Job<E>>,
}

impl<E> Clone for EventSender<E> {
    fn clone(&self) -> Self {
        EventSender { queue: self.queue.clone() }
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

impl<E> EventSender<E> {
    pub(super) fn new(queue: SyncSender<Job<E>>) -> EventSender<E> {
        EventSender { queue }
    }

    /// Has `event` handled, if this controller leads when its turn comes. Otherwise it is dropped, and
    /// [`crate::handler::Handler::resume`] finds out the present state. [`Refused::Busy`] at the bound:
    /// send it again later.
    pub fn send(&self, event: E) -> Result<(), Refused> {
        self.queue.try_send(Job::Event(event)).map_err(|e| refused(&e))
    }
}

/// For tests: without a shell. The events come out at the other end; at `bound` it is busy.
#[cfg(test)]
pub(crate) fn pipe<E>(bound: usize) -> (EventSender<E>, impl Fn(std::time::Duration) -> Option<E>) {
    let (send, receive) = std::sync::mpsc::sync_channel(bound);
    let next = move |limit| match receive.recv_timeout(limit) {
        Ok(Job::Event(event)) => Some(event),
        _ => None,
    };
    (EventSender::new(send), next)
}
