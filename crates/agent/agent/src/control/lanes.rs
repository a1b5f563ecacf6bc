// SPDX-License-Identifier: Apache-2.0
//! Requests of programs about lanes: passed to the lanes' thread, and answered when that thread has an
//! answer.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::mpsc::sync_channel,
    time::{Duration, Instant},
};

use fide_agent_api::protocol::{Empty, ErrorCode, Refusal, Reply as Answer};
use serde_json::Value;

use super::{
    Control,
    connections::Answered,
    quotas::{Asker, Resource, Usage, admit},
};
use crate::{
    command::Command,
    trees::{Ask, Input, Order},
};

/// Requests that may wait for the controller at a time.
const TICKETS_MAX: usize = 64;
/// How long a leaving agent waits until its lanes are given back.
const GIVE_BACK: Duration = Duration::from_secs(2);
const GIVE_BACK_STEP: Duration = Duration::from_millis(5);

/// Requests that are answered later.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    next: u64,
    open: HashMap<u64, Ticket>,
    /// Clients and sessions that are gone, of which the lanes' thread could not be notified yet.
    gone: Vec<(u8, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Ticket {
    connection: u64,
    /// Number of the request.
    id: u64,
    /// The user that it counts against, even once its connection is gone.
    share: u32,
}

impl Tickets {
    /// Whether this user may have one more waiting request.
    fn admit(&self, asker: Asker, own_uid: u32) -> Result<(), Refusal> {
        let usage = Usage::of(asker.uid, own_uid, self.open.values().map(|ticket| (ticket.share, 1)));
        admit(Resource::LaneRequests, asker, usage, TICKETS_MAX).map_err(|refusal| {
            let message = format!("too many requests wait for the controller: {}", refusal.message);
            Refusal::new(ErrorCode::Full, message, "ask again")
        })
    }
}

impl Control {
    /// Passes a request on. Only a refusal is answered at once.
    pub(super) fn ask_lane(&mut self, connection: u64, id: u64, ask: Ask) -> Option<(Answer, Vec<OwnedFd>)> {
        let refusal = self.try_ask_lane(connection, id, ask).err()?;
        Some((Answer::error(id, refusal), Vec::new()))
    }

    fn try_ask_lane(&mut self, connection: u64, id: u64, ask: Ask) -> Result<(), Refusal> {
        let client = self.client_of(connection)?;
        let uid = self.connections[&connection].who.share;
        let asker = self.asker(uid, Resource::LaneRequests);
        let session = self.sessions.get(&client).map_or(0, |session| session.serial);
        let Some(trees) = &self.parts.trees else {
            let hint = "add [controller] to its configuration, and run `fide controller`";
            return Err(Refusal::new(ErrorCode::NotSupported, "this agent has no controller to plan lanes", hint));
        };
        let busy = || Refusal::new(ErrorCode::Full, "too many requests wait for the controller", "ask again");
        self.tickets.admit(asker, self.own_uid)?;
        let ticket = self.tickets.next;
        trees.ask(Input::Ask { ticket, client, session, uid, asked: Instant::now(), ask }).map_err(|_| busy())?;
        self.tickets.next += 1;
        self.tickets.open.insert(ticket, Ticket { connection, id, share: uid });
        Ok(())
    }

    pub(super) fn answer_lane(&mut self, ticket: u64, answer: Result<Value, Refusal>) {
        let Some(Ticket { connection, id, .. }) = self.tickets.open.remove(&ticket) else { return };
        let client = self.connections.get(&connection).and_then(|connection| connection.client);
        let bell = client.and_then(|client| self.sessions.get(&client)?.doorbell.try_clone().ok());
        let (answer, fds) = match answer {
            Ok(value) => (Answer::ok(id, &value), bell.into_iter().collect()),
            Err(refusal) => (Answer::error(id, refusal), Vec::new()),
        };
        self.answer(connection, &answer, &fds);
    }

    pub(super) fn listen(&mut self, id: u64, connection: u64, service: u8, on: bool) -> Answered {
        let client = self.client_of(connection)?;
        if service == 0 {
            return Err(Refusal::new(ErrorCode::BadRequest, "service 0", "services are 1 to 255"));
        }
        self.parts.exchange.call(Command::Listen { client, service, on })?;
        Ok(Answer::ok(id, &Empty {}))
    }

    /// Gives back the lanes of a session that is gone, unless other sessions share them.
    pub(super) fn give_back_lanes_of(&mut self, client: u8, session: u64) {
        if self.parts.trees.is_some() {
            self.tickets.gone.push((client, session));
            self.retry_lanes();
        }
    }

    pub(super) fn retry_lanes(&mut self) {
        let Some(trees) = &self.parts.trees else { return };
        while let Some((client, session)) = self.tickets.gone.pop() {
            if trees.ask(Input::Gone { client, session }).is_err() {
                self.tickets.gone.push((client, session));
                return;
            }
        }
    }

    /// Gives all lanes back, so that others can have them now and not only once they are found unused.
    pub(super) fn give_back_lanes(&mut self) {
        let Some(trees) = &self.parts.trees else { return };
        let (done, given_back) = sync_channel(1);
        if trees.ask(Input::Leave { done }).is_err() {
            return;
        }
        // The lanes' thread needs this one to have the loop close them.
        for _ in 0..GIVE_BACK.as_millis() / GIVE_BACK_STEP.as_millis() {
            for order in trees.take() {
                if let Order::Call { command, done } = order
                    && let Ok(reply) = self.parts.exchange.call(command)
                {
                    let _ = done.try_send(reply);
                }
            }
            if given_back.recv_timeout(GIVE_BACK_STEP).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_requests_of_one_user_leave_some_for_others() {
        let mut tickets = Tickets::default();
        let asker = |uid| Asker { uid, privileged: uid == 0, limit: None, only_root: false };
        let mut take_all = |uid| {
            let mut taken = 0;
            while tickets.admit(asker(uid), 0).is_ok() {
                let key = tickets.open.len() as u64;
                tickets.open.insert(key, Ticket { connection: 1, id: 1, share: uid });
                taken += 1;
            }
            let refusal = tickets.admit(asker(uid), 0).expect_err("full");
            assert!(refusal.code == ErrorCode::Full && refusal.hint == "ask again", "{refusal:?}");
            taken
        };
        assert_eq!(take_all(1000), TICKETS_MAX * 7 / 16, "a half of what is left for users");
        assert_eq!(take_all(1001), TICKETS_MAX * 7 / 32);
        assert!(take_all(0) >= TICKETS_MAX / 8, "root's part");
        assert!(take_all(1002) > 0, "the last user too");
    }
}
