// SPDX-License-Identifier: Apache-2.0
//! `fide status`, `fide explain`, `fide metrics`: questions to this host's agent.

use std::{fmt::Write, path::PathBuf, process::ExitCode};

use fide_agent_api::protocol::{DEFAULT_SOCKET, Op, SOCKET_ENV};
use fide_cli::call::ask;
use fide_types::Time;
use serde_json::Value;

use crate::{
    columns::columns,
    exit::{Done, UNHEALTHY},
    gaps, timeouts,
};

/// Where the agent is.
#[derive(clap::Args, Clone)]
pub(crate) struct SocketArguments {
    /// The agent's socket; by default $FIDE_SOCKET, else /run/fide/agent.sock
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl SocketArguments {
    pub(crate) fn path(&self) -> PathBuf {
        let from_env = || std::env::var_os(SOCKET_ENV).filter(|path| !path.is_empty()).map(PathBuf::from);
        self.socket.clone().or_else(from_env).unwrap_or_else(|| DEFAULT_SOCKET.into())
    }
}

#[derive(clap::Args)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    socket: SocketArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct ExplainArguments {
    /// Id of the event, such as h1-17; without one the last events are listed
    event: Option<String>,
    #[command(flatten)]
    socket: SocketArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct MetricsArguments {
    #[command(flatten)]
    socket: SocketArguments,
}

pub(crate) fn status(arguments: &StatusArguments) -> Done {
    let status = ask(&arguments.socket.path(), Op::Status {})?;
    if arguments.json {
        println!("{status:#}");
    } else {
        print!("{}", status_text(&status));
    }
    // Whoever acts on this host's word should know that it has none.
    Ok(ExitCode::from(if status["fenced"] == Value::Bool(true) { UNHEALTHY } else { 0 }))
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn micros(value: &Value) -> String {
    value.as_u64().map_or_else(|| "never".to_owned(), |us| Time::us(us).to_string())
}

/// A line for each host that is configured otherwise: it is not heard.
pub(crate) fn differs(status: &Value) -> impl Iterator<Item = String> {
    list(&status["differs"])
        .map(|other| format!("NOT HEARD: {} is configured otherwise in {}", text(&other["host"]), text(&other["says"])))
}

/// A peer in the table of `fide status`.
fn peer_row(peer: &Value) -> Vec<String> {
    let planes: Vec<String> = list(&peer["planes"])
        .map(|plane| {
            let lost = if plane["path_lost"] == Value::Bool(true) { " PATH LOST" } else { "" };
            format!("{}, {}{lost}", micros(&plane["silent_us"]), plane["lost"])
        })
        .collect();
    vec![
        text(&peer["host"]),
        text(&peer["state"]),
        micros(&peer["timeout_us"]),
        micros(&peer["jitter_us"]),
        planes.join(" | "),
    ]
}

fn status_text(status: &Value) -> String {
    let mut out = String::new();
    let fence = if status["fenced"] == Value::Bool(true) { "FENCED: may not act" } else { "may act" };
    let view = &status["view"];
    let members: Vec<String> = list(&view["members"]).map(text).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} of cluster {}, incarnation {}: {fence}\ntrust {}, policy {}, heartbeat {}, timeout {}",
        text(&status["host"]),
        text(&status["cluster"]),
        status["incarnation"],
        text(&status["trust"]),
        text(&status["policy"]),
        micros(&status["heartbeat_us"]),
        micros(&status["timeout_us"]),
    );
    let excluded = &status["excluded"];
    if !excluded.is_null() {
        let _ = writeln!(
            out,
            "EXCLUDED by the others, and cannot begin again: {}; {} attempts, the next in {}",
            text(&excluded["why"]),
            excluded["attempts"],
            micros(&excluded["next_attempt_us"])
        );
    }
    if !members.is_empty() {
        let _ = writeln!(out, "view {}.{}: {}", view["generation"], view["number"], members.join(", "));
    }
    let clock = &status["clock"];
    if !clock.is_null() {
        let _ = writeln!(
            out,
            "clock: raw, from {}; {} ppm of drift assumed; the processor's counter is {} as a witness; stood still {} times",
            text(&clock["source"]),
            clock["drift_ppm"],
            text(&clock["counter"]),
            ["suspended", "stopped", "moved"].iter().filter_map(|kind| clock[kind].as_u64()).sum::<u64>(),
        );
    }
    for line in differs(status) {
        let _ = writeln!(out, "{line}");
    }
    let rows: Vec<Vec<String>> = list(&status["peers"]).map(peer_row).collect();
    let peers = columns(&["peer", "state", "timeout", "jitter", "planes (silent, lost)"], &[0, 1, 4], &rows);
    let mut lines = peers.lines();
    let _ = writeln!(out, "\n{}", lines.next().unwrap_or_default());
    for (peer, line) in list(&status["peers"]).zip(lines) {
        let _ = writeln!(out, "{line}");
        for process in list(&peer["processes"]) {
            let _ = writeln!(out, "  {}@{}: {}", text(&process["name"]), text(&peer["host"]), text(&process["state"]));
        }
    }
    for line in gaps::lines(status).chain(timeouts::lines(status)) {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "\nunder watch here:");
    for process in list(&status["processes"]) {
        let _ = writeln!(out, "  {} (pid {})", text(&process["name"]), process["pid"]);
    }
    if list(&status["lanes"]).next().is_some() {
        let _ = writeln!(out, "\nlanes:");
    }
    for lane in list(&status["lanes"]) {
        let period = Time::ns(lane["period_ns"].as_u64().unwrap_or(0));
        let _ = writeln!(
            out,
            "  {:<14} {} bytes every {period} over {} trees; {} packets, {} messages, {} beyond the contract",
            text(&lane["name"]),
            lane["packet_max_bytes"],
            lane["trees"],
            lane["packets"],
            lane["messages"],
            lane["exceeded"]
        );
    }
    let _ = writeln!(out, "\nrungs:");
    for (ladder, rungs) in status["rungs"].as_object().into_iter().flatten() {
        let rungs = rungs.as_array().map_or_else(|| vec![rungs], |rungs| rungs.iter().collect());
        for (plane, rung) in rungs.iter().enumerate() {
            let plane = if rungs.len() > 1 { format!(" {plane}") } else { String::new() };
            let why = rung["fell_back"].as_str().map(|why| format!("  ({why})")).unwrap_or_default();
            let _ = writeln!(out, "  {:<14} {}{why}", format!("{ladder}{plane}"), text(&rung["used"]));
        }
    }
    out
}

pub(crate) fn explain(arguments: &ExplainArguments) -> Done {
    let path = arguments.socket.path();
    let Some(event) = &arguments.event else {
        let answer = ask(&path, Op::Events { since: 0, kind: None })?;
        if arguments.json {
            println!("{:#}", answer["events"]);
        } else {
            for event in list(&answer["events"]) {
                println!("{:<12} {}", text(&event["id"]), text(&event["text"]));
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let explained = ask(&path, Op::Explain { event: event.clone() })?;
    if arguments.json {
        println!("{explained:#}");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}", text(&explained["text"]));
    for (key, value) in explained["evidence"].as_object().into_iter().flatten() {
        println!("  {key:<20} {}", text(value));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn metrics(arguments: &MetricsArguments) -> Done {
    let answer = ask(&arguments.socket.path(), Op::Metrics {})?;
    print!("{}", text(&answer["text"]));
    Ok(ExitCode::SUCCESS)
}
