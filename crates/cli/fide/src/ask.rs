// SPDX-License-Identifier: Apache-2.0
//! `fide status`, `fide explain`, `fide metrics`: questions to this host's agent.

use std::{fmt::Write, path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use fide_agent_api::protocol::{DEFAULT_SOCKET, MetricsOk, Op, SOCKET_ENV};
use fide_agent_api::status::{KnownPeer, LaneStatus, PeerStatus, PlaneStatus, Status};
use fide_cli::call::ask;
use fide_types::Time;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    columns::columns,
    exit::{Done, Failure, UNHEALTHY},
    gaps,
    say::{show, show_text},
    timeouts,
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
    // The JSON as it came, so that fields of a later version are shown.
    let fenced = if arguments.json {
        show!("{status:#}")?;
        status["fenced"] == Value::Bool(true)
    } else {
        let status = read(&status)?;
        show_text(&status_text(&status))?;
        status.fenced
    };
    // A script that acts for this host learns from the exit code that the host may not act.
    Ok(ExitCode::from(if fenced { UNHEALTHY } else { 0 }))
}

/// Parses the answer to `status`; fields of a later version are left out.
pub(crate) fn read(status: &Value) -> Result<Status, Failure> {
    understood("status", status)
}

/// Parses an answer as `T`. The error names `what` was asked for.
fn understood<T: DeserializeOwned>(what: &str, answer: &Value) -> Result<T, Failure> {
    T::deserialize(answer).map_err(|error| {
        Failure::new(
            UNHEALTHY,
            anyhow!("the agent's {what} is not understood: {error}; are fide and the agent the same version?"),
        )
    })
}

/// The fields of an event that a list shows.
#[derive(Deserialize)]
struct ListedEvent {
    id: String,
    text: String,
}

/// The fields of the events that are shown; `--json` prints all of their fields.
#[derive(Deserialize)]
struct ListedEvents {
    events: Vec<ListedEvent>,
}

#[derive(Deserialize)]
struct Explained {
    text: String,
    /// Present in verdicts.
    #[serde(default)]
    evidence: Map<String, Value>,
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn us(us: u64) -> String {
    Time::us(us).to_string()
}

/// A line for each host whose configuration differs from this host's: such a host is not heard.
pub(crate) fn differs(status: &Status) -> impl Iterator<Item = String> {
    status.differs.iter().map(|other| format!("NOT HEARD: {} is configured otherwise in {}", other.host, other.says))
}

/// A peer in the table of `fide status`.
fn peer_row(peer: &PeerStatus) -> Vec<String> {
    let known = peer.known.as_ref();
    let plane = |plane: &PlaneStatus| {
        let silent = plane.silent_us.map_or_else(|| "never".to_owned(), us);
        format!("{silent}, {}{}", plane.lost, if plane.path_lost { " PATH LOST" } else { "" })
    };
    let planes: Vec<String> = known.iter().flat_map(|known| &known.planes).map(plane).collect();
    let time = |of: fn(&KnownPeer) -> u64| known.map_or_else(|| "never".to_owned(), |known| us(of(known)));
    vec![
        peer.host.clone(),
        peer.state.clone(),
        time(|known| known.timeout_us),
        time(|known| known.jitter_us),
        planes.join(" | "),
    ]
}

fn status_text(status: &Status) -> String {
    let mut out = String::new();
    let fence = if status.fenced { "FENCED: may not act" } else { "may act" };
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} of cluster {}, incarnation {}: {fence}\ntrust {}, policy {}, heartbeat {}, timeout {}",
        status.host,
        status.cluster,
        status.incarnation,
        status.trust.as_str(),
        status.policy.as_str(),
        us(status.heartbeat_us),
        us(status.timeout_us),
    );
    if let Some(excluded) = &status.excluded {
        let _ = writeln!(
            out,
            "EXCLUDED by the others, and cannot begin again: {}; {} attempts, the next in {}",
            excluded.why,
            excluded.attempts,
            us(excluded.next_attempt_us)
        );
    }
    let view = &status.view;
    if !view.members.is_empty() {
        let _ = writeln!(out, "view {}.{}: {}", view.generation, view.number, view.members.join(", "));
    }
    if let Some(clock) = &status.clock {
        let _ = writeln!(
            out,
            "clock: raw, from {}; {} ppm of drift assumed; the processor's counter is {} as a witness; stood still {} times",
            clock.source,
            clock.drift_ppm,
            clock.counter,
            clock.doubts(),
        );
    }
    for line in differs(status) {
        let _ = writeln!(out, "{line}");
    }
    peers_text(&mut out, status);
    for line in gaps::lines(status).chain(timeouts::lines(status)) {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "\nunder watch here:");
    for process in &status.processes {
        let _ = writeln!(out, "  {} (pid {})", process.name, process.pid);
    }
    lanes_text(&mut out, &status.lanes);
    let _ = writeln!(out, "\nrungs:");
    for (ladder, rungs) in status.rungs.by_name() {
        for (plane, rung) in rungs.iter().enumerate() {
            let plane = if rungs.len() > 1 { format!(" {plane}") } else { String::new() };
            let why = rung.fell_back.as_ref().map(|why| format!("  ({why})")).unwrap_or_default();
            let _ = writeln!(out, "  {:<14} {}{why}", format!("{ladder}{plane}"), rung.used);
        }
    }
    out
}

fn peers_text(out: &mut String, status: &Status) {
    let rows: Vec<Vec<String>> = status.peers.iter().map(peer_row).collect();
    let peers = columns(&["peer", "state", "timeout", "jitter", "planes (silent, lost)"], &[0, 1, 4], &rows);
    let mut lines = peers.lines();
    let _ = writeln!(out, "\n{}", lines.next().unwrap_or_default());
    for (peer, line) in status.peers.iter().zip(lines) {
        let _ = writeln!(out, "{line}");
        for process in peer.known.iter().flat_map(|known| &known.processes) {
            let _ = writeln!(out, "  {}@{}: {}", process.name, peer.host, process.state);
        }
    }
}

fn lanes_text(out: &mut String, lanes: &[LaneStatus]) {
    if !lanes.is_empty() {
        let _ = writeln!(out, "\nlanes:");
    }
    for lane in lanes {
        let _ = writeln!(
            out,
            "  {:<14} {} bytes every {} over {} trees; {} packets, {} messages, {} beyond the contract",
            lane.name,
            lane.packet_max_bytes,
            Time::ns(lane.period_ns),
            lane.trees,
            lane.packets,
            lane.messages,
            lane.exceeded
        );
    }
}

pub(crate) fn explain(arguments: &ExplainArguments) -> Done {
    let path = arguments.socket.path();
    let Some(event) = &arguments.event else {
        let answer = ask(&path, Op::Events { since: 0, kind: None })?;
        let listed: ListedEvents = understood("list of events", &answer)?;
        if arguments.json {
            show!("{:#}", answer["events"])?;
        } else {
            for event in listed.events {
                show!("{:<12} {}", event.id, event.text)?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    let explained = ask(&path, Op::Explain { event: event.clone() })?;
    let Explained { text: why, evidence } = understood("explanation", &explained)?;
    if arguments.json {
        show!("{explained:#}")?;
        return Ok(ExitCode::SUCCESS);
    }
    show!("{why}")?;
    for (key, value) in &evidence {
        show!("  {key:<20} {}", text(value))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn metrics(arguments: &MetricsArguments) -> Done {
    let answer = ask(&arguments.socket.path(), Op::Metrics {})?;
    let MetricsOk { text } = understood("metrics", &answer)?;
    show_text(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
pub(crate) mod tests {
    use fide_agent_api::status::{PlannedNetwork, Rung, Rungs, SCHEMA, ViewStatus};
    use fide_types::{Policy, Role, Trust};

    use super::*;

    /// A peer that this host knows, modified by `change`.
    pub(crate) fn known(host: &str, change: impl FnOnce(KnownPeer) -> KnownPeer) -> PeerStatus {
        let known = KnownPeer {
            role: Role::Voter,
            monitored: true,
            incarnation: 7,
            suspected: false,
            timeout_us: 10_200,
            timeout_parts: None,
            jitter_us: 12,
            gaps: None,
            network: PlannedNetwork { latency_min_ns: 100_000, jitter_max_ns: 0 },
            last_seq: 9,
            planes: vec![
                PlaneStatus { silent_us: Some(850), received: 10, lost: 0, path_lost: false },
                PlaneStatus { silent_us: None, received: 0, lost: 3, path_lost: true },
            ],
            processes_left_out: false,
            processes: Vec::new(),
        };
        PeerStatus { known: Some(change(known)), state: "up".to_owned(), ..unknown(host) }
    }

    pub(crate) fn unknown(host: &str) -> PeerStatus {
        PeerStatus { host: host.to_owned(), id: 2, state: "unknown".to_owned(), known: None }
    }

    /// The status of a host with these peers.
    pub(crate) fn status(peers: Vec<PeerStatus>) -> Status {
        let rung = |used: &str| Rung::new(used, None);
        Status {
            schema: SCHEMA,
            cluster: "db".to_owned(),
            host: "h1".to_owned(),
            host_id: 1,
            incarnation: 7,
            version: "0".to_owned(),
            up_ns: 1,
            trust: Trust::Lease,
            policy: Policy::Majority,
            mode: "sleep".to_owned(),
            heartbeat_us: 1000,
            timeout_us: 10_200,
            fenced: false,
            clock: None,
            lease_left_us: None,
            excluded: None,
            view: ViewStatus { generation: 7, number: 1, members: vec!["h1".to_owned(), "h2".to_owned()] },
            own_lateness_max_us: 0,
            rungs: Rungs {
                receive: vec![rung("xdp"), Rung::new("udp", Some("no BPF".to_owned()))],
                send: vec![rung("af_packet"), rung("af_packet")],
                exit_watch: rung("sched_process_exit"),
                events: rung("bpf ring"),
                timer: rung("bpf timer"),
                bound: rung("14 ms"),
                core: rung("core 1"),
                priority: rung("SCHED_FIFO 80"),
                memory: rung("all pages"),
                c_states: rung("held"),
                isolated: rung("none"),
            },
            differs: Vec::new(),
            peers,
            processes: Vec::new(),
            clients: Vec::new(),
            lanes: Vec::new(),
            counters: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn status_of_a_peer_names_its_lost_path_and_each_plane_its_rung() {
        let text = status_text(&status(vec![known("h2", |known| known), unknown("h3")]));
        let line = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(line(&["h2", "up", "10.2 ms", "850 us, 0", "never, 3 PATH LOST"]), "{text}");
        assert!(line(&["h3", "unknown", "never"]), "{text}");
        assert!(line(&["receive 1", "udp", "(no BPF)"]) && line(&["view 7.1: h1, h2"]), "{text}");
    }

    #[test]
    fn invalid_status_is_an_error() {
        let error = read(&serde_json::json!({ "schema": 1 })).expect_err("not a status");
        assert!(error.error.to_string().contains("not understood"), "{:#}", error.error);
        let mut whole = serde_json::to_value(status(Vec::new())).expect("plain data");
        whole["of_a_later_version"] = true.into();
        assert!(read(&whole).is_ok());
    }
}
