// SPDX-License-Identifier: Apache-2.0
//! Requests of connections, taken in turn.

use std::time::Instant;

use fide_agent_api::protocol::{MESSAGE_MAX, Reply as Answer, Request};

use super::{
    Control,
    quotas::{Resource, cost, registers},
};
use crate::socket::{self, Request as Received};

/// Requests taken from one connection before the others have their turn.
const REQUESTS_PER_TURN: usize = 16;
/// Sessions that users may open in one turn. With BPF, opening one waits until no program of the kernel
/// still looks at the place of its ring, as closing one does (`docs/internals/agent-loop.md`).
const OPENS_PER_TURN: usize = 2;
/// What a message costs that is not a request.
const COST_OF_NONSENSE: i64 = 4;

impl Control {
    pub(super) fn serve(&mut self, token: u64) {
        let mut buffer = vec![0; MESSAGE_MAX];
        for _ in 0..REQUESTS_PER_TURN {
            if self.end.is_some() {
                return;
            }
            let Some(connection) = self.connections.get(&token) else { return };
            let (uid, refused) = (connection.who.share, connection.refused.clone());
            let privileged = self.asker(uid, Resource::Connections).privileged;
            if !privileged && connection.client.is_none() && self.opened >= OPENS_PER_TURN {
                // It may open one more session. Its request is still there in the next turn, which begins
                // at once.
                return;
            }
            if !privileged && !self.connections.budgets.may_ask(uid, Instant::now()) {
                return self.pause(token);
            }
            let peek = self.parts.listener.takes_descriptors();
            let len = match socket::receive_request(connection.socket(), &mut buffer, peek) {
                Ok(Received::Message(len)) => len,
                Ok(Received::Nothing) => return,
                // Answered like any other request that cannot be understood.
                Ok(Received::TooLong) => 0,
                Ok(Received::Closed | Received::Descriptors) | Err(_) => return self.close(token),
            };
            let request = Request::parse(&buffer[..len]);
            if !privileged {
                let asked = request.as_ref().map(|request| (cost(&request.op), registers(&request.op)));
                let (cost, registers) = asked.unwrap_or((COST_OF_NONSENSE, false));
                self.connections.budgets.charge(uid, cost, registers, Instant::now());
            }
            let answered = match (request, refused) {
                (Ok(request), Some(refusal)) => Some((Answer::error(request.id, refusal), Vec::new())),
                (Ok(request), None) => self.request(token, request),
                (Err(answer), _) => Some((answer, Vec::new())),
            };
            // Otherwise the answer follows later.
            if let Some((answer, fds)) = answered {
                self.answer(token, &answer, &fds);
            }
        }
    }
}
