// SPDX-License-Identifier: Apache-2.0
//! `fide lane`: sends and receives messages with a latency contract from a shell.

mod listen;
mod pace;
mod send;

use std::{
    io::{self, ErrorKind, Write},
    time::Duration,
};

use fide_client::{Client, ConnectOptions, Event, LaneGrant, LaneReason};
use fide_types::Time;
use serde_json::{Value, json};

use crate::{
    ask::SocketArguments,
    exit::{Done, Failure},
    say::{say, shown},
    watch,
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Ask for a lane to other hosts, and send each line of standard input as one message
    ///
    /// Exit codes: 0 all lines were sent, or SIGINT or SIGTERM came, 1 the lane was refused or ended, 2
    /// usage, or a line that is too long, 3 this agent has no controller, 4 not permitted.
    Send(send::Arguments),
    /// Print what other hosts send
    Listen(listen::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    match &arguments.command {
        Command::Send(arguments) => send::run(arguments),
        Command::Listen(arguments) => listen::run(arguments),
    }
}

fn connect(socket: &SocketArguments, program: &str) -> Result<Client, Failure> {
    Ok(Client::connect(ConnectOptions { path: Some(socket.path()), program: program.into(), ..Default::default() })?)
}

/// Where lines go. As text, what was asked for goes to standard output and the rest to standard error; as
/// JSON, all of it goes to standard output.
#[derive(Clone, Copy, Debug)]
struct Out {
    json: bool,
}

impl Out {
    /// Prints a line that was asked for. Returns whether somebody still reads.
    fn say(self, value: &Value, line: &str) -> Result<bool, Failure> {
        let mut out = io::stdout().lock();
        let written = if self.json { writeln!(out, "{value}") } else { writeln!(out, "{line}") };
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            written => shown(written).map(|()| true),
        }
    }

    fn tell(self, value: &Value, line: &str) -> Result<bool, Failure> {
        if self.json {
            return self.say(value, line);
        }
        say!("fide: {line}");
        Ok(true)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds the fields of `grant` to `value`.
fn with_grant(mut value: Value, grant: &LaneGrant) -> Value {
    value["packet_max_bytes"] = grant.packet_max_bytes.into();
    value["message_max_bytes"] = grant.message_max_bytes.into();
    value["period_ns"] = nanos(grant.period).into();
    value["bounded"] = grant.latency.is_some().into();
    value["latency_min_ns"] = grant.latency.map(|latency| nanos(latency.min)).into();
    value["jitter_max_ns"] = grant.latency.map(|latency| nanos(latency.jitter_max)).into();
    value
}

fn grant_text(grant: &LaneGrant) -> String {
    let latency = match grant.latency {
        Some(latency) => {
            let (nearest, any) = (Time::from(latency.min), Time::from(latency.min + latency.jitter_max));
            format!("{nearest} to the nearest host, {any} to any")
        }
        None => "best effort, no latency is bounded".to_owned(),
    };
    format!("a packet of {} bytes every {}, {latency}", grant.packet_max_bytes, Time::from(grant.period))
}

/// Events for the owner of a lane and for listeners, except messages.
fn describe(event: &Event) -> Option<(Value, String)> {
    Some(match event {
        Event::LaneChanged { grant, reason, grace, .. } => {
            let (name, text) = match reason {
                LaneReason::Te => ("TE", "the network carries it otherwise".to_owned()),
                LaneReason::BwExceeded => ("BW_EXCEEDED", "more was sent than agreed".to_owned()),
                LaneReason::BwUnused => ("BW_UNUSED", "less than half of it was used".to_owned()),
                LaneReason::Other(reason) => ("other", format!("reason {reason}")),
            };
            let value = json!({ "kind": "bandwidth_changed", "reason": name, "grace_ns": nanos(*grace) });
            (with_grant(value, grant), format!("{text}; in {} the lane is {}", Time::from(*grace), grant_text(grant)))
        }
        Event::LaneTerminated { name, why, grace, .. } => (
            json!({ "kind": "bandwidth_terminated", "name": &**name, "why": &**why, "grace_ns": nanos(*grace) }),
            format!("lane {name} is over in {}: {why}", Time::from(*grace)),
        ),
        Event::Dropped { what, refusal } => (
            json!({ "kind": "dropped", "what": &**what, "why": refusal.to_string() }),
            format!("{what} is refused by the agent that came back: {refusal}"),
        ),
        other => return watch::describe(other),
    })
}
