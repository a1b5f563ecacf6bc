// SPDX-License-Identifier: Apache-2.0
//! Four hosts in network namespaces and two switches; each host has an agent and a program.

use std::{
    ops::Range,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use fide_testbed::{Agents, AgentsSpec, Spec, Testbed, baseline::TcpFin};
use serde_json::{Value, json};

use super::{
    deaths::Scene,
    ears::{Ears, is_host},
};

/// Processes die here.
pub(super) const VICTIMS: usize = 1;
/// The program here is notified of everything.
pub(super) const WATCHER: usize = 2;
/// This host falls silent.
pub(super) const SILENT: usize = 3;
/// This host only watches: no host watches it.
pub(super) const OBSERVER: usize = 4;
/// Hosts that are watched.
pub(super) const VOTERS: [usize; 3] = [VICTIMS, WATCHER, SILENT];
const HOSTS: usize = 4;
/// Rate of a switch port, so that a plane can be flooded.
pub(super) const RATE_MBIT: u32 = 100;
/// How long agents may take to hear each other.
const FORM_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// The hosts, without agents.
pub(super) fn build() -> anyhow::Result<Testbed> {
    Ok(Testbed::build(Spec { hosts: HOSTS, rate_mbit: Some(RATE_MBIT), ..Spec::default() })?)
}

/// Agents on the hosts, and programs that watch. When it is dropped, the agents are killed.
pub(super) struct Cluster<'a> {
    pub(super) bed: &'a Testbed,
    pub(super) ears: Ears,
    pub(super) agents: Agents,
    /// The times in which cuts healed, CLOCK_MONOTONIC ns.
    pub(super) heals: Vec<Range<u64>>,
}

/// A verdict about a host without a fault.
pub(super) struct Wrong {
    /// The verdict, and the reason that its agent gives.
    pub(super) text: String,
    /// Whether the verdict came while a cut healed.
    pub(super) healing: bool,
    /// Whether the host that was declared dead reports that it did not run for most of its silence.
    pub(super) stalled: bool,
}

impl<'a> Cluster<'a> {
    /// Starts agents with these rules and waits until they have formed a cluster.
    pub(super) fn start(bed: &'a Testbed, trust: &str, policy: &str) -> anyhow::Result<Self> {
        let spec = AgentsSpec {
            program: vec![fide_testbed::find_binary("fide")?],
            trust: trust.to_owned(),
            policy: policy.to_owned(),
            member_extra: [(OBSERVER, "role = \"observer\"".to_owned())].into(),
            ..AgentsSpec::default()
        };
        let agents = Agents::start(bed, spec)?;
        await_formed(|host| agents.ask(host, "status", json!({})))
            .with_context(|| format!("the agent of h1 said:\n{}", agents.log_tail(1)))?;
        let sockets: Vec<PathBuf> = (1..=HOSTS).map(|host| agents.socket(host)).collect();
        let ears = Ears::start(&sockets, &VOTERS)?;
        Ok(Self { bed, ears, agents, heals: Vec::new() })
    }

    /// Waits until every watched host is heard by all others and may act.
    pub(super) fn await_formed(&self) -> anyhow::Result<()> {
        await_formed(|host| self.agents.ask(host, "status", json!({})))
    }

    pub(super) fn status(&self, host: usize) -> anyhow::Result<Value> {
        self.agents.ask(host, "status", json!({})).map_err(|why| anyhow!("the agent of h{host} does not answer: {why}"))
    }

    /// The longest timeout that `watchers` hold `host` to, ns.
    pub(super) fn timeout_ns(&self, watchers: &[usize], host: usize) -> anyhow::Result<i64> {
        let mut longest = 0;
        for watcher in watchers {
            let status = self.status(*watcher)?;
            let timeout_us = peers(&status)
                .find(|peer| peer["id"] == json!(host))
                .and_then(|peer| peer["timeout_us"].as_i64())
                .ok_or_else(|| anyhow!("the agent of h{watcher} does not say its timeout for h{host}"))?;
            longest = longest.max(timeout_us * 1000);
        }
        Ok(longest)
    }

    /// Processes die on one host and are watched from another.
    pub(super) fn scene(&self) -> anyhow::Result<Scene<'a>> {
        let tcp = TcpFin::listen(self.bed.host(WATCHER), 0)?;
        Scene::new(Some(self.bed.host(VICTIMS)), "h1", &self.agents.socket(VICTIMS), &self.agents.socket(WATCHER), tcp)
    }

    /// Verdicts about hosts other than [`SILENT`], as programs on hosts other than [`SILENT`] got them.
    pub(super) fn wrong_verdicts(&mut self) -> Vec<Wrong> {
        let agents = &self.agents;
        let mut wrong = Vec::new();
        for heard in self.ears.since(0).filter(|heard| heard.host != SILENT) {
            let Some(verdict) = heard.death() else { continue };
            let Some(accused) = VOTERS.into_iter().find(|host| is_host(&verdict.target, *host)) else { continue };
            if accused == SILENT {
                continue;
            }
            let silence = Silence::behind(agents, heard.host, accused, verdict.evidence.rx_ns);
            let why = silence.as_ref().map(|silence| format!(" ({})", silence.text)).unwrap_or_default();
            let text = format!("h{} was notified: {:?} of {}{why}", heard.host, verdict.reason, verdict.target);
            let healing = self.heals.iter().any(|heal| heal.contains(&heard.at_ns))
                || silence.as_ref().is_some_and(|silence| silence.observer == SILENT);
            let stalled = silence.is_some_and(|silence| silence.is_stall_of(agents, accused));
            wrong.push(Wrong { text, healing, stalled });
        }
        wrong
    }
}

/// The silence behind a verdict, as its observer explains it. All hosts share one CLOCK_MONOTONIC.
struct Silence {
    /// The host that gave the verdict.
    observer: usize,
    span_ns: Range<u64>,
    text: String,
}

impl Silence {
    /// The reason that the agent of `host` gives for its verdict on `accused` around `at_ns`, if the agent
    /// still has it. If `accused` came back, it had been excluded, and the reason is the silence behind that
    /// exclusion.
    fn behind(agents: &Agents, host: usize, accused: usize, at_ns: u64) -> Option<Self> {
        let verdict = Self::nearest(agents, host, accused, at_ns)?;
        if verdict["evidence"]["via"] != json!("superseded") {
            return Self::of(host, &verdict);
        }
        let before = |event: &&Value| event["monotonic_ns"].as_u64().is_some_and(|ns| ns <= at_ns);
        let excluded = events(agents, accused, "excluded");
        let excluded = excluded.iter().filter(before).max_by_key(|event| event["monotonic_ns"].as_u64())?;
        let by = VOTERS.into_iter().chain([OBSERVER]).find(|host| excluded["by"] == json!(format!("h{host}")))?;
        Self::of(by, &Self::nearest(agents, by, accused, excluded["monotonic_ns"].as_u64()?)?)
    }

    /// The verdict of `host` on `accused` nearest to `at_ns`.
    fn nearest(agents: &Agents, host: usize, accused: usize, at_ns: u64) -> Option<Value> {
        let target = json!(format!("@h{accused}"));
        let about = |event: &Value| event["subject"] == target && event["verdict"] == json!("host_silent");
        let ago = |event: &Value| event["monotonic_ns"].as_u64().unwrap_or(0).abs_diff(at_ns);
        events(agents, host, "verdict").into_iter().filter(about).min_by_key(ago)
    }

    fn of(observer: usize, verdict: &Value) -> Option<Self> {
        let evidence = &verdict["evidence"];
        let decided_ns = evidence["decided_ns"].as_u64()?;
        let silent_ns = evidence["silent_ns_by_plane"].as_array()?.iter().filter_map(Value::as_u64).min()?;
        let text = format!("h{observer}: {}", verdict["text"].as_str()?);
        Some(Self { observer, span_ns: decided_ns - silent_ns..decided_ns, text })
    }

    /// Whether the agent of `accused` itself reports that it did not run for most of the silence.
    fn is_stall_of(&self, agents: &Agents, accused: usize) -> bool {
        let overlap = |event: &Value| {
            let end_ns = event["monotonic_ns"].as_u64()?;
            let begin_ns = end_ns.saturating_sub(event["gap_ns"].as_u64()?);
            Some(end_ns.min(self.span_ns.end).saturating_sub(begin_ns.max(self.span_ns.start)))
        };
        let stalled_ns: u64 = events(agents, accused, "observer_stalled").iter().filter_map(overlap).sum();
        2 * stalled_ns >= self.span_ns.end - self.span_ns.start
    }
}

/// The last events of one kind that an agent remembers; none if it does not answer.
fn events(agents: &Agents, host: usize, kind: &str) -> Vec<Value> {
    let answer = agents.ask(host, "events", json!({ "since": 0, "kind": kind })).unwrap_or_default();
    answer["events"].as_array().cloned().unwrap_or_default()
}

pub(super) fn peers(status: &Value) -> impl Iterator<Item = &Value> {
    status["peers"].as_array().into_iter().flatten()
}

/// Waits until the agents of all [`VOTERS`] hear each other and may act.
pub(super) fn await_formed(ask: impl Fn(usize) -> Result<Value, String>) -> anyhow::Result<()> {
    let until = Instant::now() + FORM_LIMIT;
    loop {
        let missing = VOTERS.iter().find_map(|host| match ask(*host) {
            Ok(status) => not_formed(*host, &status),
            Err(why) => Some(why),
        });
        match missing {
            None => return Ok(()),
            Some(why) if Instant::now() >= until => {
                return Err(anyhow!("no cluster within {FORM_LIMIT:?}: {why}"));
            }
            Some(_) => std::thread::sleep(LOOK),
        }
    }
}

/// What the host still lacks.
fn not_formed(host: usize, status: &Value) -> Option<String> {
    if status["fenced"] == json!(true) {
        return Some(format!("h{host} is fenced"));
    }
    let view = status["view"]["members"].as_array().map_or(0, Vec::len);
    if status["policy"] == json!("majority") && view < VOTERS.len() {
        return Some(format!("h{host} is in a view of {view}"));
    }
    let wanted = |peer: &&Value| VOTERS.iter().any(|voter| peer["id"] == json!(voter));
    let down = peers(status).filter(wanted).find(|peer| peer["state"] != json!("up"))?;
    Some(format!("h{host} takes {} for {}", down["host"], down["state"]))
}
