// SPDX-License-Identifier: Apache-2.0
//! hashicorp/memberlist as a baseline: its measured settings, and the death of one of its processes.

use crate::Args;
use crate::trials::{NOTICE_LIMIT_NS, Subject};
use anyhow::Context;
use fide_sys::clock::mono_ns;
use fide_testbed::baseline::{Fastest, Knobs, Memberlist, find_fastest};
use fide_testbed::figures::{Figure, Report};
use fide_testbed::{Spec, Testbed, find_binary};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// memberlist's DefaultLANConfig.
pub(crate) const LAN: &str = "memberlist_lan";
/// The fastest setting that suspected no member under load.
pub(crate) const SAFE: &str = "memberlist_safe";
/// The fastest setting that declared no member dead under load, although it suspected some: a second
/// comparison.
pub(crate) const NO_FALSE_DEATH: &str = "memberlist_no_false_death";
/// The setting of `--quick`, taken without a search.
const QUICK_PROBE_MS: u32 = 100;
const OBSERVER: usize = 1;
const VICTIM_HOST: usize = 3;
const PLANE: usize = 0;
const READY_LIMIT: Duration = Duration::from_secs(15);
/// A fresh cluster has gossiped its joins by then.
const SETTLE: Duration = Duration::from_secs(1);

/// A setting and how often it is tried.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The setting, or why there is none.
    pub(crate) knobs: Result<Knobs, String>,
    pub(crate) trials: u32,
}

/// The measured settings of memberlist.
pub(crate) struct Settings {
    pub(crate) bed: Testbed,
    pub(crate) all: Vec<Setting>,
}

impl Settings {
    /// Searches for the fast settings, unless memberlist is left out.
    pub(crate) fn find(args: &Args, report: &mut Report) -> anyhow::Result<Settings> {
        let bed = Testbed::build(Spec::hosts(3))?;
        let fast = |ms: Option<u32>| match ms {
            Some(ms) => Ok(Knobs::at_probe_interval(ms)),
            None => Err("no setting that was tried is this safe".to_string()),
        };
        let stretch = Duration::from_secs(args.stretch_s.into());
        let (lan, safe, no_death) = if args.no_memberlist {
            let left_out = || Err("left out as asked".to_string());
            (left_out(), left_out(), left_out())
        } else if args.quick {
            let quick = || Err("left out by --quick".to_string());
            (quick(), fast(Some(QUICK_PROBE_MS)), quick())
        } else {
            match find_fastest(&bed, stretch, |line| eprintln!("{line}")) {
                Ok(found) => {
                    add_search(report, &found);
                    let no_death = match found.no_death_ms == found.no_suspicion_ms {
                        true => Err(format!("the same setting as {SAFE}")),
                        false => fast(found.no_death_ms),
                    };
                    (Ok(Knobs::LAN), fast(found.no_suspicion_ms), no_death)
                }
                Err(e) => (Err(e.to_string()), Err(e.to_string()), Err(e.to_string())),
            }
        };
        let all = vec![
            Setting { name: LAN, knobs: lan, trials: args.lan_trials },
            Setting { name: SAFE, knobs: safe, trials: args.list_trials },
            Setting { name: NO_FALSE_DEATH, knobs: no_death, trials: args.list_trials },
        ];
        Ok(Settings { bed, all })
    }
}

/// The settings that the search found, and its observations.
fn add_search(report: &mut Report, found: &Fastest) {
    let seen: Vec<_> = found
        .tried
        .iter()
        .map(|(ms, s, a)| format!("{ms} ms, {s} s: {} suspicions, {} deaths", a.suspicions, a.deaths))
        .collect();
    let n = found.tried.len() as u64;
    for (name, ms) in [(SAFE, found.no_suspicion_ms), (NO_FALSE_DEATH, found.no_death_ms)] {
        let name = format!("{name}_probe_interval");
        report.add(match ms {
            Some(ms) => {
                let mut figure = Figure::count(&name, ms.into(), n).remark(seen.join("; "));
                figure.unit = "ms".into();
                figure.statistic = "search".into();
                figure
            }
            None => Figure::unmeasured(&name, "ms", seen.join("; ")),
        });
    }
}

/// Kills one process of a cluster. The cluster lives for one trial, so that it is no load for the others.
pub(crate) struct Kill<'a> {
    pub(crate) bed: &'a Testbed,
    pub(crate) name: &'static str,
    pub(crate) knobs: Knobs,
}

impl Subject for Kill<'_> {
    fn name(&self) -> String {
        self.name.into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let mut cluster = Cluster::start(self.bed, self.knobs)?;
        std::thread::sleep(SETTLE);
        let victim = self.bed.host(VICTIM_HOST).name();
        let killed = mono_ns();
        cluster.members[VICTIM_HOST - 1].kill()?;
        let dead_ns = cluster.await_event("dead", victim, Duration::from_nanos(NOTICE_LIMIT_NS))?;
        Ok(dead_ns.saturating_sub(killed))
    }
}

/// Cuts a host off.
pub(crate) struct Silence<'a> {
    pub(crate) bed: &'a Testbed,
    pub(crate) name: &'static str,
    pub(crate) knobs: Knobs,
}

impl Subject for Silence<'_> {
    fn name(&self) -> String {
        self.name.into()
    }

    fn trial(&mut self) -> anyhow::Result<u64> {
        let mut list = Memberlist::start(self.bed, self.knobs)?;
        std::thread::sleep(SETTLE);
        Ok(list.silence(self.bed, VICTIM_HOST)?)
    }
}

/// A member on every host; only the observer's output is read. Killed when dropped.
struct Cluster {
    members: Vec<Child>,
    events: Receiver<Value>,
}

impl Cluster {
    fn start(bed: &Testbed, knobs: Knobs) -> anyhow::Result<Cluster> {
        let program = find_binary("memberlist-node")?;
        let (tx, events) = channel();
        let mut cluster = Cluster { members: Vec::new(), events };
        for host in bed.hosts() {
            let mut command = host.command(&program);
            command
                .args(["-role", "watch", "-name", host.name(), "-bind", &host.address(PLANE).to_string()])
                .args(flags(&knobs))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if host.index() != OBSERVER {
                command.args(["-join", &bed.host(OBSERVER).address(PLANE).to_string()]);
                cluster.members.push(command.spawn()?);
                cluster.await_event("alive", host.name(), READY_LIMIT)?;
                continue;
            }
            let mut child = command.stdout(Stdio::piped()).spawn()?;
            let out = child.stdout.take().context("a pipe that was asked for")?;
            cluster.members.push(child);
            let tx = tx.clone();
            std::thread::Builder::new().name("memberlist".into()).spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let Ok(event) = serde_json::from_str(&line) else { continue };
                    if tx.send(event).is_err() {
                        return;
                    }
                }
            })?;
            cluster.await_event("ready", host.name(), READY_LIMIT)?;
        }
        Ok(cluster)
    }

    /// Waits for an event about a node at the observer; returns its CLOCK_MONOTONIC time, ns.
    fn await_event(&self, kind: &str, node: &str, limit: Duration) -> anyhow::Result<u64> {
        let start = Instant::now();
        loop {
            match self.events.recv_timeout(limit.saturating_sub(start.elapsed())) {
                Ok(e) if e["event"] == kind && e["node"] == node => {
                    return e["ns"].as_u64().context("an event without its time");
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => anyhow::bail!("memberlist did not say {kind} of {node}"),
                Err(RecvTimeoutError::Disconnected) => {
                    anyhow::bail!("memberlist ended before it said {kind} of {node}")
                }
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.members {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn flags(knobs: &Knobs) -> Vec<String> {
    let mut flags = vec!["-config".to_string(), "lan".into()];
    let times = [
        ("-probe-interval", knobs.probe_interval_ms),
        ("-probe-timeout", knobs.probe_timeout_ms),
        ("-gossip-interval", knobs.gossip_interval_ms),
    ];
    for (flag, ms) in times {
        flags.extend(ms.into_iter().flat_map(|ms| [flag.to_string(), format!("{ms}ms")]));
    }
    flags.extend(knobs.suspicion_mult.into_iter().flat_map(|m| ["-suspicion-mult".to_string(), m.to_string()]));
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_the_lan_setting_is_passed() {
        assert_eq!(flags(&Knobs::LAN), ["-config", "lan"]);
        let all = flags(&Knobs::at_probe_interval(100)).join(" ");
        let fast = "-probe-interval 100ms -probe-timeout 50ms -gossip-interval 20ms -suspicion-mult 1";
        assert_eq!(all, format!("-config lan {fast}"));
    }
}
