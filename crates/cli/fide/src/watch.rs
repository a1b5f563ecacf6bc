// SPDX-License-Identifier: Apache-2.0
//! `fide watch`: waits for events about a process or host.

use std::{
    ffi::{OsStr, OsString},
    io,
    process::{Child, Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::anyhow;
use fide_agent_api::protocol::{PeerState, parse_target};
use fide_client::{Client, ConnectOptions, Event, Evidence, Monitor, MonitorId, Reason, Verdict, Wanted};
use fide_types::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::{
    ask::SocketArguments,
    exit::{Done, Failure, UNHEALTHY},
    reader,
    say::{say, tell},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to watch: NAME@HOST for a process, @HOST for a host
    #[arg(required = true, value_name = "NAME@HOST")]
    targets: Vec<String>,
    #[command(flatten)]
    socket: SocketArguments,
    /// Wanted timeout for silent hosts, in microseconds; by default, the best that this host can hold
    #[arg(long, value_name = "US")]
    timeout_us: Option<u64>,
    /// Run CMD in the shell at each failure. FIDE_TARGET, FIDE_REASON, FIDE_CODE and FIDE_INCARNATION
    /// describe the failure; FIDE_TOKEN is this host's fencing token (empty while the host may not act, or
    /// without a view)
    #[arg(long, value_name = "CMD")]
    on_failure: Option<OsString>,
    /// Count an end from before this watch began as a failure too. By default it is only printed, and the
    /// watch waits for the next process of that name, which may have taken over from the former one
    #[arg(long)]
    count_earlier: bool,
    /// Go on after a failure instead of ending with exit code 1
    #[arg(long)]
    forever: bool,
    /// End with exit code 0 if nothing failed for this long
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    limit: Option<Duration>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    for target in &arguments.targets {
        parse_target(target).map_err(fide_client::Error::from)?;
    }
    let options = ConnectOptions {
        path: Some(arguments.socket.path()),
        program: "fide watch".into(),
        ..ConnectOptions::default()
    };
    let mut client = Client::connect(options)?;
    let earlier = begin_watching(&mut client, arguments)?;
    // Older kernels refuse; then this waits like any other program.
    let _ = fide_client::wake_eagerly();
    // A limit beyond the clock's range is no limit.
    let until = arguments.limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut watched = arguments.targets.len();
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(ExitCode::SUCCESS);
        }
        let Some(event) = next(&mut client, left, arguments.on_failure.is_none())? else { continue };
        if earlier.is_of(&event) {
            continue;
        }
        let failed = report(&event, arguments, &client);
        if let Event::Rejoined { incarnation } = event {
            // A program that only watches has nothing to give up.
            client.rejoined_acknowledge(incarnation)?;
        }
        if failed && !arguments.forever {
            return Ok(ExitCode::from(UNHEALTHY));
        }
        if let Event::Dropped { .. } = event {
            // There is one such event for each target, and this program registers nothing else.
            watched = watched.saturating_sub(1);
            if watched == 0 {
                return Err(Failure::new(UNHEALTHY, anyhow!("nothing is watched any more; start it anew")));
            }
        }
    }
}

/// Watches each target, and prints what is known of it.
fn begin_watching(client: &mut Client, arguments: &Arguments) -> Result<Earlier, Failure> {
    let mut earlier = Earlier::default();
    for target in &arguments.targets {
        let wanted = Wanted { timeout: arguments.timeout_us.map(Duration::from_micros), pbsize: 0 };
        let monitor = client.monitor(target, wanted)?;
        // The agent that would send the event lives as long as its host does.
        let is_this_host = target.strip_prefix('@') == Some(client.agent().host.as_str());
        let state = match monitor.state {
            _ if is_this_host => "alive",
            PeerState::Unknown => "unknown",
            PeerState::Alive => "alive",
            PeerState::Dead => "dead",
        };
        let before = monitor.state == PeerState::Dead && !arguments.count_earlier;
        if before {
            earlier.note(&monitor);
        }
        print(
            arguments.json,
            &json!({
                "kind": "watching", "target": target, "timeout_us": micros(monitor.timeout), "state": state,
                "incarnation": (monitor.incarnation != 0).then_some(monitor.incarnation), "earlier": before,
            }),
            &if before {
                format!(
                    "watching {target}: incarnation {} ended before this watch began; the next one is waited for",
                    monitor.incarnation
                )
            } else {
                format!("watching {target}: {}", standing(state, monitor.timeout, is_this_host))
            },
        );
    }
    Ok(earlier)
}

/// Prints an event, and runs the operator's command if it is a failure. Returns whether it is one.
fn report(event: &Event, arguments: &Arguments, client: &Client) -> bool {
    let failure = match event {
        Event::Verdict(verdict) => Some(verdict).filter(|verdict| verdict.reason.is_failure()),
        _ => None,
    };
    // The command starts before the event is printed: whatever reads the output may be slow.
    let reaction = failure.zip(arguments.on_failure.as_deref()).map(|(v, command)| Reaction::begin(command, v, client));
    if let Some((value, line)) = describe(event) {
        print(arguments.json, &value, &line);
    }
    if let Some(reaction) = reaction {
        reaction.finish();
    }
    failure.is_some()
}

/// The next event within `limit`. If the output is all that matters (`for_a_reader`), ends this process once
/// nobody reads it.
fn next(client: &mut Client, limit: Option<Duration>, for_a_reader: bool) -> Result<Option<Event>, Failure> {
    if !for_a_reader {
        return Ok(client.wait_event(limit)?);
    }
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        if let Some(event) = client.poll_event()? {
            return Ok(Some(event));
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let stdout = io::stdout();
        let mut fds = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN), reader::poll_fd(&stdout)];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if reader::has_gone(&fds[1]) {
            reader::end();
        }
    }
}

/// What is known of a target, and how soon its end is noticed.
fn standing(state: &str, timeout: Duration, is_this_host: bool) -> String {
    if is_this_host {
        "this host itself: only others can be notified that it died, so watch it there".to_owned()
    } else if timeout.is_zero() {
        format!("{state}, on this host: its end is notified at once")
    } else {
        format!("{state}, silence is noticed within {}", Time::from(timeout))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time in seconds");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Incarnations that had ended before they were watched: events about them are no news.
#[derive(Debug, Default)]
struct Earlier(Vec<(MonitorId, u8, u32)>);

impl Earlier {
    fn note(&mut self, of: &Monitor) {
        self.0.push((of.id, of.slot, of.incarnation));
    }

    fn is_of(&self, event: &Event) -> bool {
        let (monitor, evidence) = match event {
            Event::Up { monitor, evidence, .. } => (*monitor, evidence),
            Event::Verdict(verdict) => (verdict.monitor, &verdict.evidence),
            _ => return false,
        };
        self.0.contains(&(monitor, evidence.slot, evidence.incarnation))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn print(json: bool, value: &Value, line: &str) {
    if json {
        tell!("{value}");
    } else {
        tell!("{line}");
    }
}

fn reason(reason: Reason) -> (&'static str, Option<i32>, String) {
    match reason {
        Reason::Exited(-1) => ("exited", None, "exited with an unknown status".into()),
        Reason::Exited(code) => ("exited", Some(code), format!("exited with code {code}")),
        Reason::Killed(signal) => ("killed", Some(signal), format!("was killed by signal {signal}")),
        Reason::Left => ("left", None, "left".into()),
        Reason::HostSilent => ("host_silent", None, "is silent: its host is dead or cut off".into()),
        Reason::Stalled => ("stalled", None, "stalled: it does not beat".into()),
        Reason::Recovered => ("recovered", None, "beats again".into()),
    }
}

fn evidence(evidence: &Evidence) -> Value {
    json!({
        "host_id": evidence.host_id, "slot": evidence.slot, "incarnation": evidence.incarnation,
        "seq": evidence.seq, "rx_ns": evidence.rx_ns, "at_ns": evidence.at_ns, "plane": evidence.plane,
        "direct": evidence.direct,
    })
}

/// Describes an event for programs and for people. Events of lanes are left to `fide lane`.
pub(crate) fn describe(event: &Event) -> Option<(Value, String)> {
    Some(match event {
        Event::Up { target, evidence: known, .. } => (
            json!({ "kind": "up", "target": &**target, "evidence": evidence(known) }),
            format!("{target} is up, incarnation {}", known.incarnation),
        ),
        Event::Verdict(verdict) => {
            let (name, code, text) = reason(verdict.reason);
            (
                json!({
                    "kind": "verdict", "target": &*verdict.target, "reason": name, "code": code,
                    "failure": verdict.reason.is_failure(), "evidence": evidence(&verdict.evidence),
                }),
                format!("{} {text}", verdict.target),
            )
        }
        Event::Piggyback { target, bytes, .. } => (
            json!({ "kind": "piggyback", "target": &**target, "bytes": bytes.len() }),
            format!("{target} says \"{}\"", String::from_utf8_lossy(bytes).escape_debug()),
        ),
        Event::TimeoutChanged { timeout, .. } => (
            json!({ "kind": "timeout_changed", "timeout_us": micros(*timeout) }),
            format!("silence is noticed within {} now", Time::from(*timeout)),
        ),
        Event::Fenced => (json!({ "kind": "fenced" }), "this host is fenced: it cannot prove to be heard".into()),
        Event::Unfenced => (json!({ "kind": "unfenced" }), "this host may act again".into()),
        Event::PathLost { host_id, plane } => (
            json!({ "kind": "path_lost", "host_id": host_id, "plane": plane }),
            format!("plane {plane} from host {host_id} is silent while the other is heard: a network fault, no death"),
        ),
        Event::PathRestored { host_id, plane } => (
            json!({ "kind": "path_restored", "host_id": host_id, "plane": plane }),
            format!("plane {plane} from host {host_id} is heard again"),
        ),
        Event::Rejoined { incarnation } => (
            json!({ "kind": "rejoined", "incarnation": incarnation }),
            format!(
                "this host is incarnation {incarnation} now: others were notified that everything that ran here is dead"
            ),
        ),
        Event::ObserverStalled { .. } => (
            json!({ "kind": "observer_stalled" }),
            "this host did not run on time; its suspicions were withheld".into(),
        ),
        Event::Detached { why } => {
            (json!({ "kind": "detached", "why": &**why }), format!("the agent went away ({why}); looking for it"))
        }
        Event::Reattached { resumed } => {
            (json!({ "kind": "reattached", "resumed": resumed }), "the agent is back".into())
        }
        Event::Dropped { what, refusal } => (
            json!({ "kind": "dropped", "what": &**what, "why": refusal.to_string() }),
            format!("{what} is not watched any more: {refusal}"),
        ),
        Event::Lost { count } => {
            (json!({ "kind": "lost", "count": count }), format!("{count} events were lost: they came too fast"))
        }
        // Events of the processes and lanes that a program owns: this program owns none.
        Event::MonitorRequest { .. }
        | Event::PbsizeChanged { .. }
        | Event::LaneMessage { .. }
        | Event::LaneChanged { .. }
        | Event::LaneTerminated { .. } => return None,
    })
}

/// The operator's command for one failure.
struct Reaction<'a> {
    command: &'a OsStr,
    running: io::Result<Child>,
}

impl<'a> Reaction<'a> {
    fn begin(command: &'a OsStr, verdict: &Verdict, client: &Client) -> Self {
        let (name, code, _) = reason(verdict.reason);
        let running = Command::new("sh")
            .arg("-c")
            .arg(command)
            .env("FIDE_TARGET", &*verdict.target)
            .env("FIDE_REASON", name)
            .env("FIDE_CODE", code.map(|code| code.to_string()).unwrap_or_default())
            .env("FIDE_INCARNATION", verdict.evidence.incarnation.to_string())
            .env(
                "FIDE_TOKEN",
                client.may_act().and_then(|permit| permit.token()).map(|token| token.to_string()).unwrap_or_default(),
            )
            .spawn();
        Self { command, running }
    }

    /// Waits for the command, so that it has run when this program ends. A command that fails does not end
    /// the watch: it may succeed at the next failure.
    fn finish(self) {
        match self.running.and_then(|mut child| child.wait()) {
            Ok(status) if status.success() => {}
            Ok(status) => say!("fide: --on-failure `{}` ended with {status}", self.command.display()),
            Err(error) => say!("fide: --on-failure `{}` could not be run: {error}", self.command.display()),
        }
    }
}
