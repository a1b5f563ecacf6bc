// SPDX-License-Identifier: Apache-2.0
//! The measurements of a soak so far, in a file that the next run continues.

use anyhow::{Context, ensure};
use fide_bench::heard::Heard;
use fide_shm::gaps::{Gaps, bucket, least_ns};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

/// Layout of the file.
const SCHEMA: u32 = 2;
/// Shares of the gaps that are printed, and their names.
const QUANTILES: [(&str, f64); 7] = [
    ("p50", 0.5),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("p99.999", 0.999_99),
    ("p99.9999", 0.999_999),
    ("p99.99999", 0.999_999_9),
];

/// Conditions that must not change between the runs of one soak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conditions {
    pub(crate) hosts: usize,
    pub(crate) heartbeat_us: u32,
    /// `uname -r`.
    pub(crate) kernel: String,
    /// Length and time of the agent's program, so that two builds are not added up.
    pub(crate) agent: String,
}

/// A histogram of gaps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tail {
    longest_ns: u64,
    sum_ns: u64,
    /// Count of each non-empty bucket, by its shortest gap, ns.
    buckets: BTreeMap<u64, u64>,
}

impl Tail {
    fn of(gaps: &Gaps) -> Self {
        let filled = gaps.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Tail {
            longest_ns: gaps.longest_ns,
            sum_ns: gaps.sum_ns,
            buckets: filled.map(|(at, count)| (least_ns(at), *count)).collect(),
        }
    }

    pub(crate) fn gaps(&self) -> Gaps {
        let mut gaps = Gaps { longest_ns: self.longest_ns, sum_ns: self.sum_ns, ..Gaps::NONE };
        self.buckets.iter().for_each(|(ns, count)| gaps.counts[bucket(*ns)] += count);
        gaps
    }
}

/// All runs of a soak together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    schema: u32,
    pub(crate) conditions: Conditions,
    pub(crate) runs: u32,
    /// Heartbeats received: each ends a gap.
    pub(crate) heartbeats: u64,
    /// Verdicts although no process died.
    pub(crate) false_verdicts: u64,
    /// Intervals that an agent did not report, whatever was in them.
    pub(crate) intervals_lost: u64,
    /// Suspicions that an agent withheld because it had stalled itself: gaps longer than the timeout that led
    /// to no verdict.
    pub(crate) suspicions_withheld: u64,
    pub(crate) steal_ticks: u64,
    pub(crate) span_ns: u64,
    pub(crate) span_without_steal_ns: u64,
    pub(crate) all: Tail,
    pub(crate) without_steal: Tail,
}

impl State {
    pub(crate) fn new(conditions: Conditions) -> Self {
        State {
            schema: SCHEMA,
            conditions,
            runs: 0,
            heartbeats: 0,
            false_verdicts: 0,
            intervals_lost: 0,
            suspicions_withheld: 0,
            steal_ticks: 0,
            span_ns: 0,
            span_without_steal_ns: 0,
            all: Tail::default(),
            without_steal: Tail::default(),
        }
    }

    /// Loads the measurements of earlier runs, or begins without any.
    ///
    /// # Errors
    /// The file is no such state, or was measured under other conditions.
    pub(crate) fn resume(path: &Path, conditions: Conditions) -> anyhow::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(State::new(conditions)),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let hint = || format!("{} cannot be gone on with; --fresh begins anew", path.display());
        let state: State = serde_json::from_str(&text).with_context(hint)?;
        ensure!(state.schema == SCHEMA, "it has layout {}, this program {SCHEMA}; {}", state.schema, hint());
        let (then, now) = (&state.conditions, &conditions);
        ensure!(then == now, "it is of {then:?}, and this run has {now:?}; {}", hint());
        Ok(state)
    }

    /// Adds the gaps that were heard.
    pub(crate) fn add(&mut self, heard: &Heard) {
        let sum = |tail: &mut Tail, more: &Gaps| {
            let mut gaps = tail.gaps();
            gaps.absorb(more);
            *tail = Tail::of(&gaps);
        };
        sum(&mut self.all, &heard.all);
        sum(&mut self.without_steal, &heard.without_steal);
        self.heartbeats += heard.all.count();
        self.false_verdicts += heard.verdicts;
        self.suspicions_withheld += heard.withheld;
        self.steal_ticks += heard.steal_ticks;
        self.span_ns += heard.span_ns;
        self.span_without_steal_ns += heard.span_without_steal_ns;
    }

    /// Stores the state atomically and durably, even if the host loses its power right after.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn store(&self, path: &Path) -> anyhow::Result<()> {
        let fresh = path.with_extension("json.new");
        let dir = path.parent().context("a file has a folder")?;
        fs::create_dir_all(dir)?;
        let mut file = File::create(&fresh)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        File::open(dir)?.sync_all()?;
        Ok(())
    }

    /// The share of heartbeats that were received, of those that would have been sent if no host had left out
    /// any.
    fn came(&self) -> f64 {
        let Conditions { hosts, heartbeat_us, .. } = &self.conditions;
        let due = self.span_ns as f64 / 1000.0 / f64::from(*heartbeat_us) * (hosts * (hosts - 1)) as f64;
        self.heartbeats as f64 / due.max(1.0)
    }

    /// The state as text.
    pub(crate) fn text(&self) -> String {
        let Conditions { hosts, heartbeat_us, kernel, .. } = &self.conditions;
        let hours = self.span_ns as f64 / 3.6e12;
        let kept = 100.0 * self.span_without_steal_ns as f64 / self.span_ns.max(1) as f64;
        let mut out = format!(
            "{} heartbeats of {heartbeat_us} us between {hosts} hosts ({:.0} % of those due), {hours:.2} h in {} {}, Linux {kernel}\n\
             false verdicts: {}; intervals that an agent did not tell of: {}; suspicions withheld by an agent that had stood still itself: {}\n\
             stolen by the hypervisor: {:.2} s; {kept:.0} % of the time is free of it\n\n{:<12}{:>14}{:>16}\n",
            self.heartbeats,
            100.0 * self.came(),
            self.runs,
            if self.runs == 1 { "run" } else { "runs" },
            self.false_verdicts,
            self.intervals_lost,
            self.suspicions_withheld,
            self.steal_ticks as f64 / 100.0,
            "gaps, us",
            "all",
            "without steal"
        );
        let (all, without) = (self.all.gaps(), self.without_steal.gaps());
        let us = |ns: u64| ns as f64 / 1000.0;
        let mut row = |name: &str, [all, without]: [f64; 2]| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:<12}{all:>14.1}{without:>16.1}");
        };
        for (name, share) in QUANTILES {
            row(name, [&all, &without].map(|gaps| us(gaps.quantile_ns(share))));
        }
        row("max", [&all, &without].map(|gaps| us(gaps.longest_ns)));
        let _ = writeln!(out, "{:<12}{:>14}{:>16}", "count", all.count(), without.count());
        out
    }

    /// The state as JSON; times in us.
    pub(crate) fn json(&self) -> serde_json::Value {
        let tail = |tail: &Tail| {
            let gaps = tail.gaps();
            let mut of: serde_json::Map<String, serde_json::Value> = QUANTILES
                .iter()
                .map(|(name, share)| ((*name).into(), (gaps.quantile_ns(*share) as f64 / 1000.0).into()))
                .collect();
            of.insert("max".into(), (gaps.longest_ns as f64 / 1000.0).into());
            of.insert("count".into(), gaps.count().into());
            of
        };
        serde_json::json!({
            "schema": SCHEMA,
            "conditions": self.conditions,
            "runs": self.runs,
            "heartbeats": self.heartbeats,
            "came_of_due": self.came(),
            "false_verdicts": self.false_verdicts,
            "intervals_lost": self.intervals_lost,
            "suspicions_withheld": self.suspicions_withheld,
            "stolen_s": self.steal_ticks as f64 / 100.0,
            "span_s": self.span_ns as f64 / 1e9,
            "span_without_steal_s": self.span_without_steal_ns as f64 / 1e9,
            "gaps_us": tail(&self.all),
            "gaps_without_steal_us": tail(&self.without_steal),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions() -> Conditions {
        Conditions { hosts: 3, heartbeat_us: 100, kernel: "6.18".into(), agent: "1 byte".into() }
    }

    fn heard(gap_ns: u64, count: u64) -> Heard {
        let mut all = Gaps::NONE;
        (0..=count).for_each(|n| all.arrived(1, 1 + n * gap_ns));
        Heard { all, without_steal: all, span_ns: gap_ns * count, ..Heard::default() }
    }

    #[test]
    fn interrupted_soak_goes_on_where_it_stopped() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("soak/state.json");
        let mut first = State::resume(&path, conditions()).expect("nothing yet");
        first.runs += 1;
        first.add(&heard(100_000, 1000));
        first.add(&Heard { verdicts: 1, steal_ticks: 3, ..heard(5_000_000, 1) });
        first.store(&path).expect("stored");
        // A partly written file of a killed run does not matter.
        fs::write(path.with_extension("json.new"), "{\"schema").expect("written");
        let mut second = State::resume(&path, conditions()).expect("as it was");
        assert_eq!(second, first);
        second.runs += 1;
        second.add(&heard(100_000, 1000));
        second.store(&path).expect("stored");
        let third = State::resume(&path, conditions()).expect("as it was");
        assert_eq!((third.runs, third.heartbeats, third.false_verdicts, third.steal_ticks), (2, 2001, 1, 3));
        let mut gaps = heard(100_000, 2000).all;
        gaps.absorb(&heard(5_000_000, 1).all);
        let sum = third.all.gaps();
        assert_eq!((sum.counts, sum.sum_ns, sum.longest_ns), (gaps.counts, gaps.sum_ns, 5_000_000));
    }

    #[test]
    fn state_of_other_conditions_or_of_nothing_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state.json");
        State::new(conditions()).store(&path).expect("stored");
        let slower = Conditions { heartbeat_us: 1000, ..conditions() };
        let why = State::resume(&path, slower).expect_err("another period").to_string();
        assert!(why.contains("--fresh"), "{why}");
        fs::write(&path, "{}").expect("written");
        assert!(State::resume(&path, conditions()).is_err());
    }

    #[test]
    fn tail_is_printed_to_seven_nines() {
        let mut state = State::new(conditions());
        state.add(&heard(100_000, 1000));
        state.add(&heard(3_000_000, 1));
        let (text, json) = (state.text(), state.json());
        assert!(text.contains("p99.99999 ") && text.contains("max                 3000.0"), "{text}");
        assert!(text.contains("false verdicts: 0; "), "{text}");
        assert_eq!((&json["heartbeats"], &json["gaps_us"]["max"]), (&1001.into(), &3000.0.into()));
        assert_eq!(json["gaps_us"]["p50"].as_f64().map(|us| (98.0..108.0).contains(&us)), Some(true), "{json}");
    }
}
