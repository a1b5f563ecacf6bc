// SPDX-License-Identifier: Apache-2.0
//! `fide doctor`.

use std::{
    fmt::Write,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use fide_agent_api::protocol::Op;
use fide_host_tuning::{
    bound::{self, Bound, BoundError, DEFAULT_FILE, Here, WAKE_UP},
    condition::{Condition, Effect},
    doctor::{Summary, conditions},
    measure::{Figures, Hit, Measured, measure},
    rungs::{Rung, probe},
};
use serde_json::{Value, json};

use fide_cli::call::ask;

use crate::{
    ask::{SocketArguments, differs, read},
    columns::columns,
    exit::{Done, Failure, UNHEALTHY, UNSUPPORTED},
    host::HostArguments,
    say::{show, show_text},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    host: HostArguments,
    #[command(flatten)]
    socket: SocketArguments,
    /// Only inspect. Without this option, it also measures for about 3 s and writes down the bound that this
    /// host holds
    #[arg(long)]
    no_measure: bool,
    /// File that holds the bound
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    bound_file: PathBuf,
    /// Print JSON; everything that changes from run to run is below `measured`
    #[arg(long)]
    json: bool,
}

/// The findings.
struct Report {
    core: usize,
    interfaces: Vec<String>,
    /// `drift_ppm`, and where it comes from.
    drift: (u32, &'static str),
    here: Here,
    conditions: Vec<Condition>,
    rungs: Vec<Rung>,
    /// Rungs of the agent that runs here.
    agent: Option<Value>,
    /// Hosts whose configuration differs from this host's, for people and for programs.
    differs: (Vec<String>, Value),
    measured: Option<Measured>,
    bound: Result<Bound, String>,
    bound_state: &'static str,
    /// Why the bound could not be written down.
    not_written: Option<String>,
}

/// Version of the JSON.
const VERSION: u32 = 1;

pub(crate) fn run(arguments: &Arguments) -> Done {
    let (mut host, planes) = arguments.host.host()?;
    let copy = arguments.host.is_copy();
    let agent = if copy { None } else { ask(&arguments.socket.path(), Op::Status {}).ok() };
    let status = agent.as_ref().map(read).transpose()?;
    // The running agent's value counts, unless the caller names a configuration.
    let of_agent = status.as_ref().and_then(|status| Some(status.clock.as_ref()?.drift_ppm));
    let drift_of = match of_agent {
        _ if arguments.host.has_config() => "the configuration",
        Some(drift_ppm) => {
            host.drift_ppm = drift_ppm;
            "the agent that runs here"
        }
        None => "the default: no agent answers, and no --config is given",
    };
    let drift = (host.drift_ppm, drift_of);
    let conditions = conditions(&host);
    if host.roots.kernel().is_err() && host.online().is_err() {
        let proc = host.roots.proc.display();
        return Err(Failure::new(
            UNSUPPORTED,
            anyhow::anyhow!("{proc} and its like cannot be read here: is this a Linux host?"),
        ));
    }
    let here = Here {
        kernel: host.roots.kernel().unwrap_or_default(),
        boot_id: host.roots.boot_id().unwrap_or_default(),
        core: host.core,
        interface: None,
    };
    let rungs = if copy { Vec::new() } else { probe(&host, &planes) };
    let mut measured = None;
    let mut not_written = None;
    if !copy && !arguments.no_measure {
        let figures = measure(&host).context("nothing could be measured")?;
        not_written = write_bound(arguments, &here, &figures).err().map(|error| error.to_string());
        measured = Some(figures);
    }
    let bound = bound::read(&arguments.bound_file, &here);
    let report = Report {
        core: host.core,
        interfaces: host.interfaces,
        drift,
        conditions,
        rungs,
        differs: status.as_ref().map(|status| (differs(status).collect(), json!(status.differs))).unwrap_or_default(),
        agent: agent.map(|mut status| status["rungs"].take()),
        measured,
        bound_state: bound.as_ref().map_or_else(BoundError::name, |_| "held"),
        bound: bound.map_err(|error| error.to_string()),
        not_written,
        here,
    };
    if arguments.json {
        show!("{:#}", report.json())?;
    } else {
        show_text(&report.text())?;
    }
    let bad = Summary::of(&report.conditions).bad > 0 || !report.differs.0.is_empty();
    Ok(ExitCode::from(if bad { UNHEALTHY } else { 0 }))
}

/// A bound that is valid here and was measured with packets is worth more than one from wake-ups, so it is
/// kept.
fn write_bound(arguments: &Arguments, here: &Here, measured: &Measured) -> Result<(), BoundError> {
    if bound::read(&arguments.bound_file, here).is_ok_and(|bound| bound.method != WAKE_UP) {
        return Ok(());
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match measured.bound(here, now_s) {
        Some(bound) => bound::write(&arguments.bound_file, &bound),
        None => Ok(()),
    }
}

fn us(ns: u64) -> String {
    format!("{:.1}", Duration::from_nanos(ns).as_secs_f64() * 1e6)
}

impl Report {
    fn json(&self) -> Value {
        let bound = match &self.bound {
            Ok(bound) => json!({ "state": self.bound_state, "bound": bound, "not_written": self.not_written }),
            Err(why) => json!({ "state": self.bound_state, "why": why, "not_written": self.not_written }),
        };
        json!({
            "version": VERSION,
            "host": {
                "kernel": self.here.kernel, "boot_id": self.here.boot_id, "core": self.core,
                "interfaces": self.interfaces,
            },
            "summary": Summary::of(&self.conditions),
            "drift": { "ppm": self.drift.0, "of": self.drift.1 },
            "conditions": self.conditions,
            "rungs": self.rungs,
            "agent_rungs": self.agent,
            "differs": self.differs.1,
            "measured": { "core": self.measured, "bound": bound },
        })
    }

    fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let summary = Summary::of(&self.conditions);
        let _ = writeln!(
            out,
            "core {}, interfaces {}, kernel {}: {} bad, {} unknown, {} good, {} not applicable",
            self.core,
            if self.interfaces.is_empty() { "none".to_owned() } else { self.interfaces.join(", ") },
            self.here.kernel,
            summary.bad,
            summary.unknown,
            summary.good,
            summary.not_applicable
        );
        let _ = writeln!(out, "clocks are judged by drift_ppm {}, from {}", self.drift.0, self.drift.1);
        for line in &self.differs.0 {
            let _ = writeln!(out, "{line}");
        }
        for (verdict, head) in [
            (Effect::Bad, "BAD"),
            (Effect::Unknown, "UNKNOWN"),
            (Effect::Good, "GOOD"),
            (Effect::NotApplicable, "NOT APPLICABLE"),
        ] {
            self.conditions_text(&mut out, verdict, head);
        }
        self.rungs_text(&mut out);
        self.measured_text(&mut out);
        out
    }

    /// Laid out by hand: a list with lines of detail between its entries is no table.
    fn conditions_text(&self, out: &mut String, verdict: Effect, head: &str) {
        let mut group = None;
        for condition in self.conditions.iter().filter(|condition| condition.verdict == verdict) {
            if group.is_none() {
                let _ = writeln!(out, "\n{head}");
            }
            let shown = if group == Some(condition.group) { String::new() } else { condition.group.to_string() };
            group = Some(condition.group);
            let about = condition.interface.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let title = format!("{}{about}", condition.title);
            let _ = writeln!(out, "  {shown:<11} {title:<34} {}", condition.found);
            if verdict == Effect::Bad {
                let _ = writeln!(out, "{:15}wanted: {}", "", condition.wanted);
                let _ = writeln!(out, "{:15}costs:  {}", "", condition.cost);
                let _ = writeln!(out, "{:15}change: {}: {}", "", condition.how, condition.change);
            }
        }
    }

    fn rungs_text(&self, out: &mut String) {
        if !self.rungs.is_empty() {
            let _ = writeln!(out, "\nRUNGS that an agent would use");
        }
        for rung in &self.rungs {
            let about = rung.interface.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
            let why = rung.fell_back.as_ref().map(|why| format!("  because {why}")).unwrap_or_default();
            let _ = writeln!(out, "  {:<46} {}{why}", format!("{}{about}", rung.ladder), rung.used);
        }
    }

    fn measured_text(&self, out: &mut String) {
        if let Some(measured) = &self.measured {
            let _ = writeln!(out, "\nMEASURED in {} ms ({})", measured.length_ms, measured.thread);
            let row = |what: &str, figures: &Figures| {
                let Figures { n, p50_ns, p99_ns, max_ns, .. } = *figures;
                vec![format!("  {what}"), n.to_string(), us(p50_ns), us(p99_ns), us(max_ns)]
            };
            let held = match &measured.wake_up_held {
                Some(figures) => row("the same with cpu_dma_latency held at 0", figures),
                None => row("the same with cpu_dma_latency held: not here", &Figures::default()),
            };
            let rows = [
                row("timer wake-up, late", &measured.wake_up),
                held,
                row("longest gap in a spin of 1 ms", &measured.gap),
                row("each gap over 1 us", &measured.detour),
            ];
            out.push_str(&columns(&["", "n", "p50 us", "p99 us", "max us"], &[0], &rows));
            let hits = |hits: &[Hit]| {
                let hits: Vec<_> = hits.iter().map(|hit| format!("{} {}", hit.count, hit.what)).collect();
                if hits.is_empty() { "none".to_owned() } else { hits.join(", ") }
            };
            let or_unknown = |count: Option<u64>, unit| count.map_or("unknown".to_owned(), |n| format!("{n}{unit}"));
            let _ = writeln!(out, "  interrupts on the core: {}", hits(&measured.interrupts));
            let _ = writeln!(out, "  softirqs on the core: {}", hits(&measured.softirqs));
            let _ = writeln!(
                out,
                "  stolen by the hypervisor: {}; system management interrupts: {}",
                or_unknown(measured.steal_ms, " ms"),
                or_unknown(measured.smi, "")
            );
        }
        match &self.bound {
            Ok(bound) => {
                let _ = writeln!(
                    out,
                    "\nBOUND jitter of at most {} us, by {} {}s; with confidence {} later ones exceed it in at \
                     most {:.4}% of cases",
                    us(bound.jitter_max_ns),
                    bound.packets,
                    if bound.method == WAKE_UP { "wake-up" } else { "packet" },
                    bound.confidence,
                    bound.exceedance() * 100.0
                );
            }
            Err(why) => {
                let _ = writeln!(out, "\nBOUND none: {why}");
            }
        }
        if let Some(why) = &self.not_written {
            let _ = writeln!(out, "  the bound just measured was not written down: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_packets_outlives_a_measurement_of_wake_ups() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bound.toml");
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            doctor: Arguments,
        }
        let only: Only = clap::Parser::parse_from(["doctor", "--bound-file", path.to_str().expect("text")]);
        let here = Here { kernel: "k".into(), boot_id: "b".into(), core: 0, interface: None };
        let figures = Figures { n: 10, min_ns: 1, p50_ns: 2, p99_ns: 3, max_ns: 4 };
        let measured = Measured { wake_up: figures, ..Measured::default() };
        write_bound(&only.doctor, &here, &measured).expect("written");
        assert_eq!(bound::read(&path, &here).expect("a bound").method, WAKE_UP);
        let sample = bound::Sample { min_ns: 5, max_ns: 9, count: 100 };
        bound::write(&path, &Bound::of_sample(&here, "xdp", sample, 7)).expect("written");
        write_bound(&only.doctor, &here, &measured).expect("kept");
        assert_eq!(bound::read(&path, &here).expect("a bound").method, "xdp");
    }
}
