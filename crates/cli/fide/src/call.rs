// SPDX-License-Identifier: Apache-2.0
//! One question to an agent, and its answer.

use std::{path::Path, time::Duration};

use anyhow::anyhow;
use fide_agent::socket;
use fide_agent_api::protocol::{MESSAGE_MAX, Op, Reply, Request};
use fide_sys::seqpacket::{self, Received, Wait};
use serde_json::Value;

use crate::exit::{Failure, UNHEALTHY};

/// How long an agent may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Number of the question; a connection carries only one.
const QUESTION: u64 = 1;

/// Asks the agent one question.
pub fn ask(path: &Path, op: Op) -> Result<Value, Failure> {
    let agent = socket::connect(path)
        .map_err(|errno| Failure::from(fide_client::Error::NoAgent { path: path.to_owned(), errno }))?;
    seqpacket::send(&agent, &Request { id: QUESTION, op }.to_bytes(), &[])?;
    let mut buffer = vec![0; MESSAGE_MAX];
    let received = seqpacket::receive(&agent, &mut buffer, 0, Wait::For(ANSWER));
    match received.map_err(|why| anyhow!("the agent's answer: {why}"))? {
        Received::Message(len, _) => {
            let reply = Reply::parse(&buffer[..len]).map_err(|error| anyhow!("the agent's answer: {error}"))?;
            if reply.id != QUESTION {
                let why = anyhow!(
                    "the agent's answer is to another question: its number is {}, that of the question {QUESTION}",
                    reply.id
                );
                return Err(Failure::new(UNHEALTHY, why));
            }
            Ok(reply.result::<Value>().map_err(fide_client::Error::from)?)
        }
        Received::Nothing | Received::End => {
            Err(Failure::new(UNHEALTHY, anyhow!("the agent at {} does not answer", path.display())))
        }
    }
}
