// SPDX-License-Identifier: Apache-2.0
//! The run as text, for a terminal.

use std::fmt::Write;

use super::{gap::Gap, outcome::Outcome, sample::Rate};

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Size of the drawing, characters.
const COLUMNS: usize = 72;
const ROWS: usize = 5;

/// SETs per second between two times (CLOCK_MONOTONIC, ns). Time without a rate counts as time without SETs.
pub(super) fn rate(of: &[Rate], from_ns: u64, to_ns: u64) -> f64 {
    let within = |rate: &Rate| rate.to_ns.min(to_ns).saturating_sub(rate.from_ns.max(from_ns));
    let sets: f64 = of.iter().map(|rate| rate.per_second() * within(rate) as f64 / 1e9).sum();
    sets * 1e9 / to_ns.saturating_sub(from_ns).max(1) as f64
}

/// What a server does, for people.
pub(super) fn mode(mode: &str) -> &str {
    match mode {
        "leader" => "leads",
        "following" => "follows",
        "joining" | "syncing" | "starting" => "comes back",
        "taking_over" => "takes over",
        other => other,
    }
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A gap by its stages, on one line.
pub(super) fn stages(gap: &Gap) -> String {
    let stages: Vec<String> =
        Gap::STAGES.iter().zip(gap.stages_ns()).map(|(name, ns)| format!("{name} {:.2}", milliseconds(ns))).collect();
    format!(
        "h{} acknowledges a write {:.2} ms later (ms: {})",
        gap.next,
        milliseconds(gap.total_ns()),
        stages.join(", ")
    )
}

/// A character for each value, by its share of the greatest.
pub(super) fn sparks(of: &[f64]) -> String {
    let most = of.iter().copied().fold(1.0, f64::max);
    of.iter().map(|value| BLOCKS[((value / most * 8.0).round() as usize).clamp(1, 8)]).collect()
}

/// The rate over time; below it, what happened to leaders.
pub(super) fn drawing(outcome: &Outcome) -> String {
    let span_ns = outcome.ended_ns.saturating_sub(outcome.begun_ns).max(1);
    let column = |ns: u64| {
        let share = ns.saturating_sub(outcome.begun_ns) as f64 / span_ns as f64;
        ((share * COLUMNS as f64) as usize).min(COLUMNS - 1)
    };
    let width_ns = span_ns / COLUMNS as u64;
    let in_column = |at: u64| {
        let from_ns = outcome.begun_ns + at * width_ns;
        rate(&outcome.rates, from_ns, from_ns + width_ns)
    };
    let means: Vec<f64> = (0..COLUMNS as u64).map(in_column).collect();
    let most = means.iter().copied().fold(1.0, f64::max);
    let mut out = String::new();
    for row in (0..ROWS).rev() {
        let line: String = means
            .iter()
            .map(|value| {
                let eighths = (value / most * (ROWS * 8) as f64).round() as usize;
                BLOCKS[eighths.saturating_sub(row * 8).min(8)]
            })
            .collect();
        let label = if row + 1 == ROWS { format!("{most:.0}") } else { String::new() };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{label:>9} {}", line.trim_end());
    }
    let mut marks = vec![' '; COLUMNS];
    for gap in &outcome.gaps {
        marks[column(gap.lost_ns)] = '^';
    }
    let marks: String = marks.into_iter().collect();
    let _ = writeln!(out, "{:>9} {}", "SET/s", marks.trim_end());
    let end = format!("{:.1} s", span_ns as f64 / 1e9);
    let _ = writeln!(out, "{:>10}{end:>COLUMNS$}", "");
    out
}

/// The gaps, a row for each.
pub(super) fn table(gaps: &[Gap]) -> String {
    let mut out = format!("{:<34}{:>10}", "the leader", "gap, ms");
    Gap::STAGES.iter().for_each(|name| {
        let _ = write!(out, "{name:>13}");
    });
    out.push('\n');
    for gap in gaps {
        let _ = write!(out, "{:<34}{:>10.2}", gap.what(), milliseconds(gap.total_ns()));
        for ns in gap.stages_ns() {
            let _ = write!(out, "{:>13.2}", milliseconds(ns));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_counts_time_without_samples_as_idle() {
        let rates = [
            Rate { from_ns: 0, to_ns: 1_000_000_000, sets: 100 },
            Rate { from_ns: 2_000_000_000, to_ns: 3_000_000_000, sets: 200 },
        ];
        assert_eq!(rate(&rates, 0, 1_000_000_000), 100.0);
        assert_eq!(rate(&rates, 1_000_000_000, 2_000_000_000), 0.0);
        assert_eq!(rate(&rates, 500_000_000, 2_500_000_000), 75.0);
    }

    #[test]
    fn sparks_grow_with_their_values() {
        assert_eq!(sparks(&[0.0, 50.0, 100.0]), "▁▄█");
        assert_eq!(sparks(&[]), "");
    }
}
