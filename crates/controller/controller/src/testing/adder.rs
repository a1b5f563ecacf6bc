// SPDX-License-Identifier: Apache-2.0
//! The smallest handler that uses everything: a sum.

use fide_controller_api::identity::{Identity, Role};
use fide_controller_api::{Code, Method};
use serde_json::json;

use crate::clock::Now;
use crate::handler::{Answer, Decision, Handler, Peer, Request, RestoreError, Route};

/// A record: a tick is owed.
const OWED: u64 = u64::MAX;
/// What a tick adds.
const TICK: u64 = 1000;

/// Adds the numbers that it is sent, and notifies the asking peer and `host.watcher`. An event is added
/// too; a tick adds 1000.
#[derive(Debug, Default)]
pub(crate) struct Adder {
    total: u64,
    count: u64,
    /// A tick will come; its time follows from this at each start.
    owed: bool,
    deadline_ns: Option<u64>,
}

pub(crate) const ADD: Route = Route { method: Method::Post, path: "/v1/add", roles: &[Role::Host, Role::Operator] };
pub(crate) const ODD: Route = Route { method: Method::Put, path: "/v1/odd/{how}", roles: &[Role::Host] };
pub(crate) const TOTAL: Route = Route { method: Method::Get, path: "/v1/total", roles: &[Role::Host, Role::Operator] };
const RESET: Route = Route { method: Method::Delete, path: "/v1/total", roles: &[Role::Operator] };

pub(crate) fn watcher() -> Identity {
    Identity::host("watcher").unwrap()
}

impl Adder {
    fn add(&mut self, n: u64) -> Decision<u64> {
        self.total += n;
        self.count += 1;
        Decision {
            answer: Some(Answer::ok(json!({"total": self.total, "count": self.count}))),
            record: Some(n.to_le_bytes().to_vec()),
            upcalls: vec![(watcher(), json!({"total": self.total}))],
            effects: vec![self.total],
            ..Decision::default()
        }
    }
}

impl Handler for Adder {
    type Event = u64;
    type Effect = u64;

    fn routes(&self) -> Vec<Route> {
        vec![ADD, ODD, TOTAL, RESET]
    }

    fn restore(&mut self, snapshot: Option<&[u8]>, records: &[&[u8]]) -> Result<(), RestoreError> {
        let number = |bytes: &[u8]| {
            let first = bytes.first_chunk::<8>().ok_or(RestoreError("8 bytes".into()))?;
            Ok(u64::from_le_bytes(*first))
        };
        *self = Adder::default();
        if let Some(bytes) = snapshot {
            let (total, rest) = bytes.split_at_checked(8).ok_or(RestoreError("17 bytes".into()))?;
            (self.total, self.count, self.owed) = (number(total)?, number(rest)?, rest.get(8) == Some(&1));
        }
        for record in records {
            let n = number(record)?;
            if n == OWED {
                self.owed = true;
                continue;
            }
            self.owed &= n != TICK;
            self.total = self.total.wrapping_add(n);
            self.count += 1;
        }
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        [&self.total.to_le_bytes()[..], &self.count.to_le_bytes(), &[u8::from(self.owed)]].concat()
    }

    fn resume(&mut self, now: Now) -> Decision<u64> {
        self.deadline_ns = self.owed.then_some(now.boot_ns + 1_000_000);
        Decision { effects: vec![self.total], ..Decision::default() }
    }

    fn change(&mut self, _: &Peer, request: &Request, now: Now) -> Decision<u64> {
        match (request.path, request.parameter("how")) {
            (path, _) if path == ADD.path => match request.body["n"].as_u64() {
                Some(n) => self.add(n),
                None => Decision::answer(Answer::error(422, Code::from("no_number"), "`n` is missing; give a number")),
            },
            (_, "refused_late") => {
                self.total += 1;
                Decision { take_back: true, ..Decision::answer(Answer::error(409, Code::from("no"), "it had begun")) }
            }
            (_, "large") => {
                self.total += 1;
                Decision { record: Some(vec![0; crate::shell::ENTRY_MAX]), ..Decision::default() }
            }
            (_, "wide") => {
                // More than fits into one append.
                let record = [&1u64.to_le_bytes()[..], &vec![7; 3 * crate::store::BATCH_BYTES_MAX]].concat();
                Decision { record: Some(record), ..self.add(1) }
            }
            (_, "talkative") => Decision {
                upcalls: vec![(watcher(), json!("x".repeat(crate::upcalls::EVENT_BYTES_MAX)))],
                ..self.add(1)
            },
            (_, "long") => {
                Decision { answer: Some(Answer::ok(json!("x".repeat(crate::sequence::ANSWER_MAX)))), ..self.add(1) }
            }
            (_, "later") => {
                self.owed = true;
                // Far in the future: a caller that cannot wait forgets it, and resumes.
                let far_ns = request.body["far"].as_u64().unwrap_or(1_000_000);
                self.deadline_ns = Some(now.boot_ns + far_ns);
                Decision { record: Some(OWED.to_le_bytes().to_vec()), ..Decision::answer(Answer::ok(json!({}))) }
            }
            (_, "forget") => Decision { forget: vec![watcher()], ..self.add(0) },
            _ => Decision::default(),
        }
    }

    fn read(&self, _: &Peer, _: &Request, _: Now) -> Answer {
        Answer::ok(json!({"total": self.total, "count": self.count}))
    }

    fn event(&mut self, n: u64, _: Now) -> Decision<u64> {
        self.add(n)
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    fn tick(&mut self, _: Now) -> Decision<u64> {
        (self.deadline_ns, self.owed) = (None, false);
        self.add(TICK)
    }
}
