// SPDX-License-Identifier: Apache-2.0
//! The results of a bench: `target/bench/NAME.json` and a table.
//!
//! A figure that could not be measured is included too, with `"met": null` and the reason.

use crate::{Error, Result};
use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

mod compared;

/// Longest time of a sample, ns; a longer one counts as this.
pub const MAX_SAMPLE_NS: u64 = 600_000_000_000;
/// Fewest samples for a 99th percentile; with fewer it would be the longest sample, or nearly.
pub const P99_LEAST: u64 = 300;
/// Significant digits that percentiles keep.
const DIGITS: u8 = 3;

/// Times of one kind, in ns.
#[derive(Debug, Clone)]
pub struct Samples(Histogram<u64>);

impl Default for Samples {
    fn default() -> Self {
        // The bounds are constants that the histogram accepts.
        let h = Histogram::new_with_max(MAX_SAMPLE_NS, DIGITS);
        Samples(h.unwrap_or_else(|e| unreachable!("{e}")))
    }
}

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all samples of another.
    pub fn absorb(&mut self, other: &Samples) {
        // Both have the bounds of `default`.
        let _ = self.0.add(&other.0);
    }

    /// Number of samples.
    pub fn n(&self) -> u64 {
        self.0.len()
    }

    /// Value that a share `p` (0 to 1) of them does not exceed, ns; 0 without samples.
    pub fn quantile(&self, p: f64) -> u64 {
        self.0.value_at_quantile(p)
    }

    /// Shortest, ns.
    pub fn min(&self) -> u64 {
        self.0.min()
    }

    /// Longest, ns.
    pub fn max(&self) -> u64 {
        self.0.max()
    }
}

/// The statistic of the samples that a figure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistic {
    /// Median.
    P50,
    /// 99th percentile.
    P99,
    /// Longest.
    Max,
}

impl Statistic {
    /// The statistic that `n` samples allow: the longest, if they are too few for a 99th percentile.
    #[must_use]
    pub fn of_so_many(self, n: u64) -> Self {
        if self == Statistic::P99 && n < P99_LEAST { Statistic::Max } else { self }
    }

    fn of(self, samples: &Samples) -> u64 {
        match self {
            Statistic::P50 => samples.quantile(0.5),
            Statistic::P99 => samples.quantile(0.99),
            Statistic::Max => samples.max(),
        }
    }

    /// Its name in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Statistic::P50 => "p50",
            Statistic::P99 => "p99",
            Statistic::Max => "max",
        }
    }
}

/// What a figure should be: its ratio to the baseline if it has one, else its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// At most.
    AtMost(f64),
    /// At least.
    AtLeast(f64),
    /// No further from 1 than this, that is, about equal to the baseline.
    Near(f64),
}

impl Goal {
    fn met(self, x: f64) -> bool {
        match self {
            Goal::AtMost(limit) => x <= limit,
            Goal::AtLeast(limit) => x >= limit,
            Goal::Near(off) => (x - 1.0).abs() <= off,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtMost(x) => write!(f, "<= {x}"),
            Goal::AtLeast(x) => write!(f, ">= {x}"),
            Goal::Near(off) => write!(f, "1 +- {off}"),
        }
    }
}

/// One line of the result. Its times are in the figure's unit.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figure {
    /// Its name, which stays the same from run to run.
    pub figure: String,
    /// The number itself; null if it was not measured.
    pub value: Option<f64>,
    /// `us`, `count`, ...
    pub unit: String,
    /// `p50`, ...
    pub statistic: String,
    /// What it is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// The baseline's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_value: Option<f64>,
    /// value / baseline_value; where rounds of both come in pairs, the median of the ratios of the pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Least and greatest ratio of the pairs of rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_spread: Option<[f64; 2]>,
    /// The goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<String>,
    /// Whether the goal is met; null if unmeasured or without a goal.
    pub met: Option<bool>,
    /// Why it was not measured, or a remark on how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Samples.
    pub n: u64,
    /// Its least and greatest value in the rounds of the run; differences within that range are chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<[f64; 2]>,
    /// Shortest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// 99th percentile, of at least [`P99_LEAST`] samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// Longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Least and greatest.
fn spread(rounds: impl IntoIterator<Item = f64>) -> Option<[f64; 2]> {
    rounds.into_iter().fold(None, |spread, value| {
        Some(spread.map_or([value; 2], |[least, greatest]: [f64; 2]| [least.min(value), greatest.max(value)]))
    })
}

impl Figure {
    /// A time, in microseconds. Without samples it is unmeasured.
    pub fn time(name: &str, statistic: Statistic, samples: &Samples) -> Self {
        if samples.n() == 0 {
            return Figure::unmeasured(name, "us", "no sample was taken");
        }
        let statistic = statistic.of_so_many(samples.n());
        Figure {
            figure: name.into(),
            value: Some(us(statistic.of(samples))),
            unit: "us".into(),
            statistic: statistic.name().into(),
            n: samples.n(),
            min: Some(us(samples.min())),
            p50: Some(us(samples.quantile(0.5))),
            p99: (samples.n() >= P99_LEAST).then(|| us(samples.quantile(0.99))),
            max: Some(us(samples.max())),
            ..Figure::default()
        }
    }

    /// A rate per second: the middle one of some rounds, which are in ascending order.
    pub fn rate(name: &str, rates: &[f64]) -> Self {
        let middle = rates.get(rates.len() / 2).copied();
        Figure {
            figure: name.into(),
            value: middle,
            unit: "per second".into(),
            statistic: "p50".into(),
            n: rates.len() as u64,
            min: rates.first().copied(),
            p50: middle,
            max: rates.last().copied(),
            ..Figure::default()
        }
    }

    /// Compares with another figure's value.
    #[must_use]
    pub fn beside(mut self, baseline: &str, of: &Figure) -> Self {
        self.baseline = Some(baseline.into());
        self.baseline_value = of.value;
        self.ratio = self.value.zip(of.value).map(|(value, base)| value / base);
        self
    }

    /// Sets the ratio from pairs of rounds of the figure and of its baseline: the middle one of the pairs'
    /// ratios, because what disturbs a pair disturbs both of its rounds. The baseline's value must be above 0.
    #[must_use]
    pub fn ratio_of_pairs(mut self, pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut ratios: Vec<f64> = pairs.into_iter().map(|(value, base)| value / base).collect();
        ratios.sort_by(f64::total_cmp);
        self.ratio = ratios.get(ratios.len() / 2).copied();
        self.ratio_spread = spread(ratios);
        self
    }

    /// Sets the spread from its value in each round of the run.
    #[must_use]
    pub fn spread_of(mut self, rounds: impl IntoIterator<Item = f64>) -> Self {
        self.spread = spread(rounds);
        self
    }

    /// A number of something, found in `n` tries.
    pub fn count(name: &str, value: u64, n: u64) -> Self {
        Figure {
            figure: name.into(),
            value: Some(value as f64),
            unit: "count".into(),
            statistic: "total".into(),
            n,
            ..Figure::default()
        }
    }

    /// A share, found in `n` cases.
    pub fn share(name: &str, share: f64, n: u64) -> Self {
        Figure {
            figure: name.into(),
            value: Some(share),
            unit: "share".into(),
            statistic: "total".into(),
            n,
            ..Figure::default()
        }
    }

    /// A figure that could not be measured.
    pub fn unmeasured(name: &str, unit: &str, why: impl Into<String>) -> Self {
        Figure { figure: name.into(), unit: unit.into(), why: Some(why.into()), ..Figure::default() }
    }

    /// Compares with a statistic of a baseline that was measured in the same run. If the baseline has no
    /// samples, the figure has no ratio, and says why.
    pub fn against(mut self, baseline: &str, statistic: Statistic, samples: &Samples) -> Self {
        self.baseline = Some(baseline.into());
        if samples.n() == 0 {
            self.why.get_or_insert(format!("the baseline {baseline} was not measured"));
            return self;
        }
        let base = us(statistic.of_so_many(samples.n()).of(samples));
        self.baseline_value = Some(base);
        self.ratio = self.value.filter(|_| base > 0.0).map(|v| v / base);
        self
    }

    /// Sets the goal: for the ratio if the figure has a baseline (even one that was not measured), else for
    /// the value.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal.to_string());
        let x = if self.baseline.is_some() { self.ratio } else { self.value };
        self.met = x.map(|x| goal.met(x));
        self
    }

    /// Marks the goal as not met, whatever the value, if something went wrong that the value does not show.
    pub fn unless(mut self, wrong: bool) -> Self {
        self.met = self.met.map(|met| met && !wrong);
        self
    }

    /// Adds a remark.
    pub fn remark(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }
}

/// The machine that a result is from.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// MiB.
    pub memory_mib: u64,
    /// Name of the system, from /etc/os-release.
    pub os: String,
    /// True if the processor reports that it is a virtual one.
    pub hypervisor: bool,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let release_of_kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let kib = value_of(&meminfo, "MemTotal", ':').and_then(|v| v.split(' ').next()?.parse::<u64>().ok());
        let flags = value_of(&cpuinfo, "flags", ':').unwrap_or_default();
        Machine {
            kernel: release_of_kernel.trim().into(),
            cpu: value_of(&cpuinfo, "model name", ':').unwrap_or("unknown").into(),
            cores: crate::sys::usable_cores().len(),
            memory_mib: kib.unwrap_or(0) / 1024,
            os: value_of(&release, "PRETTY_NAME", '=').unwrap_or("unknown").trim_matches('"').into(),
            hypervisor: flags.split(' ').any(|f| f == "hypervisor"),
        }
    }
}

fn value_of<'a>(text: &'a str, key: &str, separator: char) -> Option<&'a str> {
    text.lines().find_map(|l| {
        let (k, v) = l.split_once(separator)?;
        (k.trim() == key).then(|| v.trim())
    })
}

/// A bench's result.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    earlier: Option<compared::Earlier>,
    /// Where it ran.
    pub machine: Machine,
    /// What it found.
    pub figures: Vec<Figure>,
}

impl Report {
    /// An empty report for this machine, to be written to `NAME.json`.
    pub fn new(name: &str) -> Self {
        Report { name: name.into(), earlier: None, machine: Machine::here(), figures: Vec::new() }
    }

    /// Compares the report with an earlier one: with the file `earlier`, or with the file of the report's
    /// name in that folder. Call this before anything is measured, because the file may be the one that will
    /// be overwritten.
    ///
    /// # Errors
    /// The file cannot be read, or holds no figures. A folder without a file of that name is not an error: a
    /// message says so.
    pub fn compared_with(self, earlier: Option<&Path>) -> Result<Self> {
        let Some(path) = earlier else { return Ok(self) };
        let earlier = compared::Earlier::read(path, &self.name)?;
        if earlier.is_none() {
            println!("{} has no {}.json: nothing is compared with it", path.display(), self.name);
        }
        Ok(Report { earlier, ..self })
    }

    /// Adds a figure.
    pub fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Prints the report, writes it ([`Report::write`]), and prints what has changed since the report that it
    /// is compared with.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn conclude(&self) -> Result<()> {
        print!("\n{self}");
        println!("written to {}", self.write()?.display());
        if let Some(earlier) = &self.earlier {
            print!("\n{}", earlier.against(&self.figures));
        }
        Ok(())
    }

    /// Writes `$FIDE_BENCH_DIR/NAME.json` (default `target/bench` under the working directory), all or nothing.
    pub fn write(&self) -> Result<PathBuf> {
        let dir = std::env::var_os("FIDE_BENCH_DIR").map_or_else(|| PathBuf::from("target/bench"), PathBuf::from);
        let path = dir.join(format!("{}.json", self.name));
        let fresh = dir.join(format!("{}.json.new", self.name));
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::io("writing JSON", e))?;
        fs::create_dir_all(&dir)
            .and_then(|()| fs::write(&fresh, text + "\n"))
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|e| Error::io(format!("writing {}", path.display()), e))?;
        Ok(path)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.machine;
        let virt = if m.hypervisor { ", virtual" } else { "" };
        writeln!(
            f,
            "{} on {} ({} cores{virt}, {} MiB), Linux {}, {}",
            self.name, m.cpu, m.cores, m.memory_mib, m.kernel, m.os
        )?;
        let head = ["figure", "value", "stat", "n", "rounds", "min", "p99", "max", "baseline", "ratio", "goal", "met"];
        let rows: Vec<[String; 12]> = self.figures.iter().map(row).collect();
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(head).add_rows(rows);
        // Names to the left, numbers to the right.
        for (n, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if n == 0 { 0 } else { 2 }, 0));
            column.set_cell_alignment(if n == 0 { CellAlignment::Left } else { CellAlignment::Right });
        }
        writeln!(f, "{}", table.trim_fmt())?;
        for figure in &self.figures {
            if let Some(why) = &figure.why {
                writeln!(f, "{}: {why}", figure.figure)?;
            }
        }
        Ok(())
    }
}

fn row(figure: &Figure) -> [String; 12] {
    let number = |x: Option<f64>| x.map_or("-".into(), short);
    let baseline = match (&figure.baseline, figure.baseline_value) {
        (Some(name), Some(v)) => format!("{name} {}", short(v)),
        (Some(name), None) => name.clone(),
        _ => "-".into(),
    };
    let ratio = match (figure.ratio, figure.ratio_spread) {
        (Some(ratio), Some([least, greatest])) => format!("{ratio:.3} ({least:.3}..{greatest:.3})"),
        (Some(ratio), None) => format!("{ratio:.3}"),
        _ => "-".into(),
    };
    [
        figure.figure.clone(),
        format!("{} {}", number(figure.value), figure.unit),
        figure.statistic.clone(),
        figure.n.to_string(),
        figure.spread.map_or("-".into(), |[least, greatest]| format!("{}..{}", short(least), short(greatest))),
        number(figure.min),
        number(figure.p99),
        number(figure.max),
        baseline,
        ratio,
        figure.goal.clone().unwrap_or("-".into()),
        figure.met.map_or("-", |m| if m { "yes" } else { "NO" }).into(),
    ]
}

/// Formats about three digits, which is enough on a noisy machine.
fn short(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

#[cfg(test)]
mod tests;
