// SPDX-License-Identifier: Apache-2.0
//! The deciding state machine, as the shell sees it.
//!
//! A [`Handler`] is a state machine on one thread. It gets a request, an event or the time, changes its
//! state at once, and returns the consequences: an answer, a record from which the change can be made
//! again, upcalls, effects. The shell stores the record; only then does any of them leave the thread. If
//! the record cannot be stored, the shell discards the state and has the handler restore the last stored
//! one. So nothing leaves that is not stored.

use fide_controller_api::failure::Failed;
use fide_controller_api::identity::{Identity, Role};
use fide_controller_api::sequence::Sequence;
use fide_controller_api::{Code, Method};
use serde_json::{Value, json};

use crate::clock::Now;

/// The peer that asks. Also an axum extractor, see [`crate::server`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub identity: Identity,
}

/// A path that a handler serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub method: Method,
    /// With parameters in braces, as [`fide_controller_api::paths::template`] has them.
    pub path: &'static str,
    /// The roles that may use it.
    pub roles: &'static [Role],
}

/// One request, its form checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub method: Method,
    /// [`Route::path`].
    pub path: &'static str,
    /// The braces' content, in order, percent-decoded.
    pub parameters: Vec<(String, String)>,
    /// What follows `?`, in order, percent-decoded.
    pub query: Vec<(String, String)>,
    /// `Null` if there was none.
    pub body: Value,
    /// Only of a changing request. The shell has checked it; the incarnation distinguishes a peer's lives.
    pub sequence: Option<Sequence>,
}

impl Request {
    /// The parameter `name` of the path; empty if the route has none of that name.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }
}

/// The answer to a peer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// An HTTP status.
    pub status: u16,
    pub body: Value,
}

impl Answer {
    /// 200.
    pub fn ok(body: Value) -> Answer {
        Answer { status: 200, body }
    }

    /// A [`Failed`]; `message` says what was wrong and how to correct it.
    pub fn error(status: u16, code: Code, message: impl ToString) -> Answer {
        Answer { status, body: json!(Failed::new(code, message)) }
    }
}

/// The consequences of a decision.
#[derive(Debug, Clone)]
pub struct Decision<E> {
    /// For the peer that asked; meaningless after events and ticks.
    pub answer: Option<Answer>,
    /// The record from which [`Handler::restore`] makes the change again. `None`: the state did not change.
    pub record: Option<Vec<u8>>,
    /// Events for peers, in order.
    pub upcalls: Vec<(Identity, Value)>,
    /// Actions outside the controller.
    pub effects: Vec<E>,
    /// Peers that are gone for good: their queues and their request numbers are forgotten.
    pub forget: Vec<Identity>,
    /// The handler's state is wrong: it is rolled back to the stored state. Only this decision's answer
    /// counts.
    pub take_back: bool,
}

impl<E> Default for Decision<E> {
    fn default() -> Self {
        Decision {
            answer: None,
            record: None,
            upcalls: Vec::new(),
            effects: Vec::new(),
            forget: Vec::new(),
            take_back: false,
        }
    }
}

impl<E> Decision<E> {
    /// Only an answer.
    pub fn answer(answer: Answer) -> Decision<E> {
        Decision { answer: Some(answer), ..Decision::default() }
    }

    pub(crate) fn changes_nothing(&self) -> bool {
        self.record.is_none() && self.upcalls.is_empty() && self.forget.is_empty()
    }
}

/// Why a stored state was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RestoreError(pub String);

/// The state machine that decides. All calls come from one thread; none may block.
pub trait Handler: Send + 'static {
    /// An event outside, sent by an [`crate::shell::EventSender`]: a switch has answered, say.
    type Event: Send + 'static;
    /// An action outside the controller.
    type Effect: Send + 'static;

    /// The paths that it serves. Called once.
    fn routes(&self) -> Vec<Route>;

    /// Takes over the state of `snapshot`, or the first state, and makes the changes of `records` again. It
    /// has to forget any earlier state, even if this fails.
    fn restore(&mut self, snapshot: Option<&[u8]>, records: &[&[u8]]) -> Result<(), RestoreError>;

    /// Its state as bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// This controller begins to lead, or goes on after its state was uncertain. Effects of stored
    /// decisions may have been lost with its predecessor, so the handler repeats its orders. Not always
    /// called after a [`Handler::restore`]: also when events were missed, with the state as it is.
    fn resume(&mut self, now: Now) -> Decision<Self::Effect>;

    /// Decides a changing request. Called once for each sequence number.
    fn change(&mut self, peer: &Peer, request: &Request, now: Now) -> Decision<Self::Effect>;

    /// Answers a question.
    fn read(&self, peer: &Peer, request: &Request, now: Now) -> Answer;

    /// Handles an event outside.
    fn event(&mut self, event: Self::Event, now: Now) -> Decision<Self::Effect>;

    /// When [`Handler::tick`] is due, by [`Now::boot_ns`].
    fn deadline_ns(&self) -> Option<u64>;

    /// Its deadline has passed.
    fn tick(&mut self, now: Now) -> Decision<Self::Effect>;
}
