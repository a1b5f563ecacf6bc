// SPDX-License-Identifier: Apache-2.0
//! One question to an agent, and its answer.

use std::{os::fd::AsFd, path::Path};

use anyhow::anyhow;
use fide_agent::socket;
use fide_agent_api::protocol::{MESSAGE_MAX, Op, Reply, Request};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
};
use serde_json::Value;

use crate::exit::{Failure, UNHEALTHY};

/// How long an agent may take to answer.
const ANSWER: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Number of the question; a connection carries only one.
const QUESTION: u64 = 1;

/// Asks the agent one question.
pub fn ask(path: &Path, op: Op) -> Result<Value, Failure> {
    let agent = socket::connect(path).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Failure::from(fide_client::Error::NoAgent { path: path.to_owned(), errno })
    })?;
    socket::send(agent.as_fd(), &Request { id: QUESTION, op }.to_bytes(), &[])?;
    let mut buffer = vec![0; MESSAGE_MAX];
    rustix::event::poll(&mut [PollFd::new(&agent, PollFlags::IN)], Some(&ANSWER)).map_err(std::io::Error::from)?;
    match socket::receive(agent.as_fd(), &mut buffer)? {
        Some((len, _)) if len > 0 => {
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
        _ => Err(Failure::new(UNHEALTHY, anyhow!("the agent at {} does not answer", path.display()))),
    }
}
