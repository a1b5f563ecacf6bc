// SPDX-License-Identifier: Apache-2.0
//! What could serve static programs, which the library does not see: calls that seccomp notifies to another process, and
//! BPF that redirects from socket to socket, beside kernel TCP and a Unix socket. `statics/statics.c`, a static program
//! itself, measures it in a network namespace and a control group of its own, and says how the ends of a redirected
//! connection differ from TCP's.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use fide_testbed::figures::{Figure, Report};

use super::pairs;

/// The first includes the others.
const SOURCES: [(&str, &str); 2] =
    [("statics.c", include_str!("statics/statics.c")), ("ends.h", include_str!("statics/ends.h"))];

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Much {
    pub(crate) rounds: usize,
    /// Calls and round trips of a round.
    pub(crate) trips: usize,
    /// Of a stream in a round.
    pub(crate) stream_ms: usize,
}

impl Much {
    pub(crate) fn new(is_quick: bool) -> Self {
        let (rounds, trips, stream_ms) = if is_quick { (1, 500, 50) } else { (5, 4000, 300) };
        Self { rounds, trips, stream_ms }
    }
}

/// What the program says.
#[derive(Debug, Default, PartialEq)]
struct Said {
    /// By name, of each round: microseconds or Gbit/s.
    values: BTreeMap<String, Vec<f64>>,
    /// What a program sees of an end, by the name of the test: over TCP, and redirected.
    ends: Vec<(String, Option<String>, Option<String>)>,
    /// Why nothing was redirected.
    unmeasured: Option<String>,
}

impl Said {
    fn line(&mut self, line: &str) -> Result<()> {
        let (kind, rest) = line.split_once(' ').context("a line of one word")?;
        let (name, rest) = rest.split_once(' ').context("a name without a value")?;
        let mut value = |name: String, value: f64| self.values.entry(name).or_default().push(value);
        match kind {
            "time" => {
                let (p50, p99) = rest.split_once(' ').context("a time without its p99")?;
                value(name.into(), p50.parse::<f64>()? / 1e3);
                value(format!("{name}_p99"), p99.parse::<f64>()? / 1e3);
            }
            "rate" => value(name.into(), rest.parse()?),
            "end" => {
                let (carrier, seen) = rest.split_once(' ').context("an end without a result")?;
                if !self.ends.iter().any(|(of, ..)| of == name) {
                    self.ends.push((name.into(), None, None));
                }
                let (_, tcp, redirected) = self.ends.iter_mut().find(|(of, ..)| of == name).context("just added")?;
                *(if carrier == "tcp" { tcp } else { redirected }) = Some(seen.into());
            }
            "unmeasured" => self.unmeasured = Some(rest.into()),
            _ => bail!("no such kind of line: {kind}"),
        }
        Ok(())
    }

    fn of(&self, name: &str) -> &[f64] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// The middle one of the rounds.
    fn figure(&self, name: &str, of: &str, unit: &str) -> Figure {
        let mut sorted = self.of(of).to_vec();
        if sorted.is_empty() {
            return Figure::unmeasured(name, unit, self.unmeasured.as_deref().unwrap_or("the program did not say it"));
        }
        sorted.sort_by(f64::total_cmp);
        Figure { unit: unit.into(), ..Figure::rate(name, &sorted) }.spread_of(sorted)
    }

    fn beside(&self, name: &str, of: &str, tcp: &str, unit: &str) -> Figure {
        let figure = self.figure(name, of, unit);
        if figure.value.is_none() {
            return figure;
        }
        figure.beside("TCP", &self.figure(tcp, tcp, unit)).ratio_of_pairs(pairs(self.of(of), self.of(tcp)))
    }

    /// The tests whose ends are not as with TCP.
    fn wrong(&self) -> Vec<&str> {
        self.ends.iter().filter(|(_, tcp, redirected)| tcp != redirected).map(|(name, ..)| name.as_str()).collect()
    }
}

fn said(much: Much, cores: [usize; 2]) -> Result<Said> {
    ensure!(rustix::process::geteuid().is_root(), "it takes root");
    let folder = tempfile::tempdir()?;
    let (source, program) = (folder.path().join(SOURCES[0].0), folder.path().join("statics"));
    for (name, text) in SOURCES {
        std::fs::write(folder.path().join(name), text)?;
    }
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-static", "-pthread", "-w", "-o"]).arg(&program).arg(&source);
    let compiled = cc.output().context("cc, which compiles a static program")?;
    let why = String::from_utf8_lossy(&compiled.stderr);
    ensure!(compiled.status.success(), "cc: {}", why.lines().next().unwrap_or_default());
    let words = [much.rounds, much.trips, much.stream_ms, cores[0], cores[1]].map(|word| word.to_string());
    let mut child = Command::new(&program).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut said = Said::default();
    for line in BufReader::new(child.stdout.take().context("its output")?).lines() {
        let line = line?;
        said.line(&line).with_context(|| format!("its line {line:?}"))?;
    }
    let status = child.wait()?;
    ensure!(status.success(), "the static program: {status}");
    Ok(said)
}

const TIMES: [(&str, &str, &str); 10] = [
    ("static_rtt8_redirected_vs_tcp", "rtt8_redirected", "rtt8_tcp"),
    ("static_rtt8_redirected_p99_vs_tcp", "rtt8_redirected_p99", "rtt8_tcp_p99"),
    ("static_rtt8_one_core_redirected_vs_tcp", "rtt8_one_core_redirected", "rtt8_one_core_tcp"),
    ("static_rtt8_unix_vs_tcp", "rtt8_unix", "rtt8_tcp"),
    ("static_notified_call_vs_tcp", "notified_two_cores", "rtt8_tcp"),
    ("static_notified_call_p99_vs_tcp", "notified_two_cores_p99", "rtt8_tcp_p99"),
    ("static_notified_sync_call_vs_tcp", "notified_two_cores_sync", "rtt8_tcp"),
    ("static_notified_one_core_call_vs_tcp", "notified_one_core", "rtt8_one_core_tcp"),
    ("static_notified_one_core_sync_call_vs_tcp", "notified_one_core_sync", "rtt8_one_core_tcp"),
    ("static_bare_call_vs_tcp", "bare_call", "rtt8_tcp"),
];
/// Those of `cpu` are of a second of CPU time of both ends.
const RATES: [(&str, &str, &str); 6] = [
    ("static_stream64k_redirected_vs_tcp", "stream64k_redirected", "stream64k_tcp"),
    ("static_messages2k_redirected_vs_tcp", "messages2k_redirected", "messages2k_tcp"),
    ("static_stream64k_redirected_cpu_vs_tcp", "cpu_stream64k_redirected", "cpu_stream64k_tcp"),
    ("static_messages2k_redirected_cpu_vs_tcp", "cpu_messages2k_redirected", "cpu_messages2k_tcp"),
    ("static_stream64k_unix_vs_tcp", "stream64k_unix", "stream64k_tcp"),
    ("static_messages2k_unix_vs_tcp", "messages2k_unix", "messages2k_tcp"),
];
const ENDS: &str = "static_redirected_ends_wrong";

/// Adds its figures; where it cannot be measured they say why.
pub(crate) fn measure(report: &mut Report, much: Much, cores: [usize; 2]) {
    eprintln!("static programs: notified calls, redirected sockets");
    let said = said(much, cores).unwrap_or_else(|why| {
        eprintln!("bench-rack: static programs: {why:#}");
        Said { unmeasured: Some(format!("{why:#}")), ..Said::default() }
    });
    for (of, unit) in [(TIMES.as_slice(), "us"), (RATES.as_slice(), "Gbit/s")] {
        of.iter().for_each(|(name, ours, tcp)| report.add(said.beside(name, ours, tcp, unit)));
    }
    let tests = said.ends.iter().filter(|(_, _, redirected)| redirected.is_some()).count();
    report.add(if tests == 0 {
        Figure::unmeasured(ENDS, "count", said.unmeasured.as_deref().unwrap_or("the program did not say it"))
    } else {
        let wrong = said.wrong();
        Figure::count(ENDS, wrong.len() as u64, tests as u64).remark(wrong.join(", "))
    });
    for (name, tcp, redirected) in &said.ends {
        let text = |seen: &Option<String>| seen.clone().unwrap_or_else(|| "unmeasured".into());
        println!("{name}: TCP {}; redirected {}", text(tcp), text(redirected));
    }
}

#[cfg(test)]
mod tests;
