// SPDX-License-Identifier: Apache-2.0
//! The results of the demo, as a table and as JSON.

use std::fmt::Write;

use fide_testbed::figures::{Figure, Machine};
use serde::Serialize;
use serde_json::{Value, json};

/// Version of the JSON's layout; only new keys are added.
const SCHEMA: u32 = 1;
/// The watcher that the others are compared with.
pub(super) const TCP_FIN: &str = "tcp_fin";
pub(super) const PIDFD: &str = "pidfd";
pub(super) const FIDE: &str = "fide";

/// Times of one kind, ns; negative only for differences. Trials without a time are counted, with the last
/// reason.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    pub(super) watcher: &'static str,
    pub(super) ns: Vec<i64>,
    pub(super) failed: u32,
    pub(super) why: Option<String>,
}

/// Series of one kind of event.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// Prefix of the names of its figures.
    pub(super) key: String,
    pub(super) title: String,
    pub(super) series: Vec<Series>,
}

/// A condition that must hold.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Expectation {
    pub(super) expected: String,
    pub(super) held: bool,
    pub(super) seen: String,
}

/// What happened around one silent host, ns from the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timeline {
    pub(super) timeout_ns: i64,
    pub(super) lease_out_ns: i64,
    /// When the programs on h1 and h2 were notified.
    pub(super) notified_ns: [Option<i64>; 2],
    pub(super) restored_ns: i64,
    pub(super) rejoined_ns: i64,
    /// When h3 was up again for h1 and for h2.
    pub(super) up_ns: [Option<i64>; 2],
}

/// All results.
pub(super) struct Results {
    pub(super) machine: Machine,
    /// Names and values of the setup.
    pub(super) setup: Vec<(String, Value)>,
    pub(super) deaths: Vec<Group>,
    pub(super) silences: Vec<Group>,
    pub(super) counts: Vec<Figure>,
    pub(super) expectations: Vec<Expectation>,
    /// Notes about effects that are not faults.
    pub(super) notes: Vec<String>,
    pub(super) timeline: Option<Timeline>,
}

impl Series {
    pub(super) fn new(watcher: &'static str) -> Self {
        Self { watcher, ..Self::default() }
    }

    pub(super) fn add(&mut self, outcome: Result<i64, String>) {
        match outcome {
            Ok(ns) => self.ns.push(ns),
            Err(why) => {
                self.failed += 1;
                self.why = Some(why);
            }
        }
    }

    pub(super) fn trials(&self) -> usize {
        self.ns.len() + self.failed as usize
    }

    /// The time that a share `p` (0 to 1) of the trials does not exceed.
    pub(super) fn quantile(&self, p: f64) -> Option<i64> {
        let mut sorted = self.ns.clone();
        sorted.sort_unstable();
        let rank = (p * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied()
    }

    fn figure(&self, name: &str, baseline: Option<&Series>) -> Figure {
        let us = |p| self.quantile(p).map(|ns| ns as f64 / 1000.0);
        let mut figure = Figure {
            figure: name.to_owned(),
            value: us(0.5),
            unit: "us".to_owned(),
            statistic: "p50".to_owned(),
            n: self.ns.len() as u64,
            min: us(0.0),
            p50: us(0.5),
            p99: us(0.99),
            max: us(1.0),
            ..Figure::default()
        };
        if let Some(baseline) = baseline.filter(|baseline| baseline.watcher != self.watcher) {
            figure.baseline = Some(baseline.watcher.to_owned());
            figure.baseline_value = baseline.quantile(0.5).map(|ns| ns as f64 / 1000.0);
            figure.ratio = figure.value.zip(figure.baseline_value).map(|(value, base)| value / base);
        }
        if let Some(why) = &self.why {
            figure.why = Some(format!("{} of {} trials failed, the last one: {why}", self.failed, self.trials()));
        }
        figure
    }
}

impl Group {
    pub(super) fn of(&self, watcher: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.watcher == watcher)
    }

    /// Medians, for the final line of a group.
    pub(super) fn summary(&self) -> String {
        let medians: Vec<String> = self
            .series
            .iter()
            .map(|series| {
                let failed = if series.failed > 0 { format!(" ({} FAILED)", series.failed) } else { String::new() };
                format!("{} {}{failed}", label(series.watcher), series.quantile(0.5).map_or("-".to_owned(), time))
            })
            .collect();
        format!("n {:>3}   p50: {}", self.series.first().map_or(0, Series::trials), medians.join("   "))
    }
}

/// A watcher's name for people.
pub(super) fn label(watcher: &str) -> &str {
    match watcher {
        FIDE => "Fide",
        TCP_FIN => "TCP FIN",
        "since_cut" => "since the event",
        "over_timeout" => "beyond the timeout",
        "fenced_before" => "fenced earlier by",
        "back" => "healed to back",
        other => other,
    }
}

/// A time with about three digits, and its unit.
pub(super) fn time(ns: i64) -> String {
    let (x, unit) = match ns.abs() {
        0..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match x.abs() {
        a if a >= 99.95 || unit == "us" && a >= 9.95 => 0,
        a if a >= 9.995 => 1,
        _ => 2,
    };
    format!("{x:.digits$} {unit}")
}

impl Results {
    pub(super) fn expect(&mut self, expected: &str, held: bool, seen: impl Into<String>) {
        let expectation = Expectation { expected: expected.to_owned(), held, seen: seen.into() };
        super::say::line(&format!("  {} {}: {}", mark(held), expectation.expected, expectation.seen));
        self.expectations.push(expectation);
    }

    pub(super) fn note(&mut self, note: String) {
        super::say::line(&format!("  note {note}"));
        self.notes.push(note);
    }

    /// Expectations that did not hold.
    pub(super) fn broken(&self) -> impl Iterator<Item = &Expectation> {
        self.expectations.iter().filter(|expectation| !expectation.held)
    }

    fn figures(&self) -> Vec<Value> {
        let series = self.deaths.iter().chain(&self.silences).flat_map(|group| {
            let baseline = group.of(TCP_FIN);
            group.series.iter().map(move |series| {
                let figure = series.figure(&format!("{}_{}", group.key, series.watcher), baseline);
                let mut value = json!(figure);
                value["trials"] = json!(series.trials());
                value["failed"] = json!(series.failed);
                value
            })
        });
        series.chain(self.counts.iter().map(|figure| json!(figure))).collect()
    }

    pub(super) fn to_json(&self, page: &str) -> Value {
        let setup: serde_json::Map<String, Value> = self.setup.iter().cloned().collect();
        json!({
            "schema": SCHEMA,
            "machine": self.machine,
            "setup": setup,
            "figures": self.figures(),
            "expectations": self.expectations,
            "notes": self.notes,
            "held": self.broken().next().is_none(),
            "page": page,
        })
    }

    /// The rows that the table and the page show.
    pub(super) fn rows(groups: &[Group]) -> Vec<[String; 8]> {
        let mut rows = Vec::new();
        for group in groups {
            let baseline = group.of(TCP_FIN).and_then(|series| series.quantile(0.5));
            for (index, series) in group.series.iter().enumerate() {
                let cell = |p| series.quantile(p).map_or("-".to_owned(), time);
                let ratio = series
                    .quantile(0.5)
                    .zip(baseline)
                    .filter(|(_, base)| *base > 0)
                    .map_or("-".to_owned(), |(own, base)| format!("{:.2}", own as f64 / base as f64));
                rows.push([
                    if index == 0 { group.title.clone() } else { String::new() },
                    label(series.watcher).to_owned(),
                    series.trials().to_string(),
                    series.failed.to_string(),
                    cell(0.5),
                    cell(0.99),
                    cell(1.0),
                    ratio,
                ]);
            }
        }
        rows
    }

    /// Everything as aligned text.
    pub(super) fn table(&self) -> String {
        let mut out = String::new();
        let head = DEATHS_HEAD;
        write_table(&mut out, &head, &Self::rows(&self.deaths));
        if !self.silences.is_empty() {
            out.push('\n');
            let head: Vec<&str> = head[..7].to_vec();
            let mut head: [&str; 7] = head.try_into().expect("seven");
            head[..2].copy_from_slice(&["a host falls silent", "time"]);
            let rows: Vec<[String; 7]> = Self::rows(&self.silences)
                .into_iter()
                .map(|row| row[..7].to_vec().try_into().expect("seven"))
                .collect();
            write_table(&mut out, &head, &rows);
        }
        out.push('\n');
        for series in self.deaths.iter().chain(&self.silences).flat_map(|group| &group.series) {
            if let Some(why) = &series.why {
                // Writing to a string cannot fail.
                let _ = writeln!(out, "{}: {} failed, the last one: {why}", label(series.watcher), series.failed);
            }
        }
        for expectation in &self.expectations {
            let _ = writeln!(out, "{} {}: {}", mark(expectation.held), expectation.expected, expectation.seen);
        }
        for note in &self.notes {
            let _ = writeln!(out, "note {note}");
        }
        out
    }
}

pub(super) const DEATHS_HEAD: [&str; 8] =
    ["a process dies", "watcher", "trials", "failed", "p50", "p99", "max", "p50 / TCP FIN"];

fn mark(held: bool) -> &'static str {
    if held { "ok  " } else { "FAIL" }
}

fn write_table<const N: usize>(out: &mut String, head: &[&str; N], rows: &[[String; N]]) {
    let width: Vec<usize> =
        (0..N).map(|i| rows.iter().map(|row| row[i].len()).chain([head[i].len()]).max().unwrap_or(0)).collect();
    let mut line = |cells: Vec<&str>| {
        for (i, (cell, width)) in cells.iter().zip(&width).enumerate() {
            let _ = match i {
                0 | 1 => write!(out, "{cell:<width$}  "),
                _ => write!(out, "{cell:>width$}  "),
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    };
    line(head.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
}

#[cfg(test)]
mod tests;
