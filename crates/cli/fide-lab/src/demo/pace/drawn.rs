// SPDX-License-Identifier: Apache-2.0
//! Delivery times over time: as SVG, and for a terminal.

use std::fmt::Write;

use plotters::{prelude::*, style::text_anchor::HPos};

use super::{
    flows::OPTIMUM_NS,
    outcome::{Outcome, Run, delivery_ms},
};
use crate::demo::plot::{BLUE, FAINT, GREEN, INK, ORANGE, RULE, WIDTH, bold, line, text, written};

const LEFT: i32 = 90;
const RIGHT: i32 = 30;
const TOP: i32 = 74;
const HEIGHT: i32 = 360;
const COLORS: [RGBColor; 2] = [BLUE, ORANGE];
/// Size of the drawing for a terminal, in characters.
const COLUMNS: usize = 72;
const ROWS: usize = 14;
/// Marks of the two flows there, and of both in one place.
const MARKS: [char; 2] = ['o', 'x'];
const BOTH: char = '8';

/// The axis ends at a round time, which all but the longest few do not exceed.
fn axis_ms(runs: &[Run]) -> f64 {
    let most = runs.iter().filter_map(|run| delivery_ms(&run.messages, 0.999)).fold(OPTIMUM_NS as f64 / 1e6, f64::max);
    let decade = 10_f64.powf(most.log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .map(|part| part * decade)
        .into_iter()
        .find(|end| *end >= most)
        .unwrap_or(most)
}

pub(super) fn svg(outcome: &Outcome) -> anyhow::Result<String> {
    let end_ms = axis_ms(&outcome.runs);
    let span_ns = u64::from(outcome.seconds) * 1_000_000_000;
    let width = f64::from(WIDTH as i32 - LEFT - RIGHT);
    let x = |ns: u64| LEFT + (ns as f64 / span_ns as f64 * width).min(width) as i32;
    let y = |ms: f64| TOP + HEIGHT - ((ms / end_ms).min(1.0) * f64::from(HEIGHT)) as i32;
    written(
        |root| {
            root.fill(&WHITE)?;
            bold(root, (16, 24), "How long each message was on its way, ms")?;
            for part in 0..=4 {
                let ms = end_ms * f64::from(part) / 4.0;
                line(root, (LEFT, y(ms)), (WIDTH as i32 - RIGHT, y(ms)), RULE)?;
                text(root, (LEFT - 8, y(ms)), 13, FAINT, HPos::Right, &format!("{}", (ms * 10.0).round() / 10.0))?;
            }
            for (at, (run, color)) in (0..).zip(outcome.runs.iter().zip(COLORS)) {
                for (made_ns, time_ns) in &run.messages {
                    let place = (x(made_ns.saturating_sub(outcome.begun_ns)), y(*time_ns as f64 / 1e6));
                    root.draw(&Circle::new(place, 2, color.mix(0.6).filled()))?;
                }
                let left = LEFT + at * 290;
                root.draw(&Circle::new((left, 48), 4, color.filled()))?;
                let of = |share: f64| delivery_ms(&run.messages, share).unwrap_or(0.0);
                let words = format!("{}: p50 {:.1}, p99 {:.1} ms", run.name, of(0.5), of(0.99));
                text(root, (left + 10, 48), 13, INK, HPos::Left, &words)?;
            }
            let best_ms = OPTIMUM_NS as f64 / 1e6;
            line(root, (LEFT, y(best_ms)), (WIDTH as i32 - RIGHT, y(best_ms)), GREEN)?;
            text(root, (LEFT + 600, 48), 13, GREEN, HPos::Left, &format!("at best: {best_ms:.0} ms"))?;
            text(root, (LEFT, TOP + HEIGHT + 16), 13, FAINT, HPos::Center, "0")?;
            let end = format!("{} s", outcome.seconds);
            text(root, (WIDTH as i32 - RIGHT, TOP + HEIGHT + 16), 13, FAINT, HPos::Center, &end)
        },
        TOP + HEIGHT + 40,
    )
}

/// A mark for each place in which a message is.
pub(super) fn terminal(outcome: &Outcome) -> String {
    let end_ms = axis_ms(&outcome.runs);
    let span_ns = u64::from(outcome.seconds) * 1_000_000_000;
    let mut cells = [[' '; COLUMNS]; ROWS];
    for (run, mark) in outcome.runs.iter().zip(MARKS) {
        for (made_ns, time_ns) in &run.messages {
            let since = made_ns.saturating_sub(outcome.begun_ns) as f64 / span_ns as f64;
            let column = ((since * COLUMNS as f64) as usize).min(COLUMNS - 1);
            let row = ((*time_ns as f64 / 1e6 / end_ms * ROWS as f64) as usize).min(ROWS - 1);
            let cell = &mut cells[ROWS - 1 - row][column];
            *cell = if *cell == ' ' || *cell == mark { mark } else { BOTH };
        }
    }
    let mut out = String::new();
    for (at, row) in cells.iter().enumerate() {
        let label = if at == 0 { format!("{end_ms:.0} ms") } else { String::new() };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{label:>9} {}", row.iter().collect::<String>().trim_end());
    }
    let end = format!("{} s", outcome.seconds);
    let _ = writeln!(out, "{:>9} 0{end:>width$}", "0", width = COLUMNS - 1);
    let names: Vec<String> = outcome.runs.iter().zip(MARKS).map(|(run, mark)| format!("{mark} {}", run.name)).collect();
    let _ = writeln!(out, "{:>9} {}; {BOTH} both", "", names.join(", "));
    out
}

#[cfg(test)]
mod tests {
    use fide_testbed::figures::Machine;

    use super::*;

    fn outcome() -> Outcome {
        let run = |name: &str, times_ms: &[u64]| Run {
            name: name.to_owned(),
            sent: times_ms.len() as u64,
            messages: (0..).zip(times_ms).map(|(at, ms)| (100 + at * 500_000_000, ms * 1_000_000)).collect(),
        };
        Outcome {
            machine: Machine::here(),
            begun_ns: 100,
            seconds: 2,
            runs: vec![run("X-PACE", &[20, 21, 20]), run("TCP BBR", &[20, 55, 75])],
        }
    }

    #[test]
    fn both_flows_are_where_their_times_are() {
        let outcome = outcome();
        assert_eq!(axis_ms(&outcome.runs), 80.0);
        let drawing = terminal(&outcome);
        let lines: Vec<&str> = drawing.lines().collect();
        assert!(lines[0].starts_with("    80 ms") && lines[0].ends_with('x'), "{drawing}");
        let level = lines.iter().find(|line| line.contains('o')).unwrap();
        assert!(level.contains(BOTH) && level.matches('o').count() == 2, "{drawing}");
        assert!(drawing.contains("o X-PACE, x TCP BBR; 8 both"), "{drawing}");
    }

    #[test]
    fn drawing_has_a_dot_for_each_message() {
        let svg = svg(&outcome()).unwrap();
        assert_eq!(svg.matches("r=\"2\"").count(), 6, "{svg}");
        assert!(svg.contains("TCP BBR: p50 55.0, p99 75.0 ms") && svg.contains("at best: 20 ms"));
    }
}
