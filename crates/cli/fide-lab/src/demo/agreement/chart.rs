// SPDX-License-Identifier: Apache-2.0
//! Decisions over time, and each gap by its stages, as SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{Gap, Outcome};
use crate::demo::plot::{
    Area, BLUE, Drawn, FAINT, GREEN, GREY, INK, ORANGE, RED, RULE, WIDTH, bold, line, text, written,
};

const LEFT: i32 = 90;
const RIGHT: i32 = 130;
const TOP: i32 = 60;
const CURVE: i32 = 220;
const ROW: i32 = 26;
/// Length of the time that each point of the curve stands for.
const BIN_NS: u64 = 5_000_000;
const COLORS: [RGBColor; 4] = [RED, ORANGE, GREY, GREEN];

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn draw(outcome: &Outcome) -> anyhow::Result<String> {
    let rows = i32::try_from(outcome.gaps.len()).unwrap_or(0);
    let height = TOP + CURVE + 110 + rows * ROW;
    written(
        |root| {
            curve(root, outcome)?;
            gaps(root, &outcome.gaps, TOP + CURVE + 70)
        },
        height,
    )
}

fn curve(root: &Area<'_>, outcome: &Outcome) -> Drawn {
    let span_ns = outcome.ended_ns.saturating_sub(outcome.begun_ns).max(1);
    let width = WIDTH as i32 - LEFT - RIGHT;
    let x = |ns: u64| LEFT + (ns.saturating_sub(outcome.begun_ns) as f64 / span_ns as f64 * f64::from(width)) as i32;
    let mut bins = vec![0_u64; (span_ns / BIN_NS + 1) as usize];
    for (ns, count) in &outcome.counted {
        let bin = ns.saturating_sub(outcome.begun_ns) / BIN_NS;
        if let Some(bin) = bins.get_mut(bin as usize) {
            *bin += u64::from(*count);
        }
    }
    let rate = |count: u64| count as f64 * 1e9 / BIN_NS as f64;
    let most = bins.iter().map(|count| rate(*count)).fold(1.0, f64::max);
    let y = |rate: f64| TOP + CURVE - (rate / most * f64::from(CURVE)) as i32;
    bold(root, (LEFT, 24), "Requests counted per second; each time the leader is killed")?;
    for share in [0.0, 0.5, 1.0] {
        line(root, (LEFT, y(most * share)), (LEFT + width, y(most * share)), RULE)?;
        text(root, (LEFT - 8, y(most * share)), 13, FAINT, HPos::Right, &format!("{:.0}", most * share))?;
    }
    for gap in &outcome.gaps {
        line(root, (x(gap.killed_ns), TOP - 6), (x(gap.killed_ns), TOP + CURVE), RED)?;
        text(root, (x(gap.killed_ns), TOP - 16), 13, RED, HPos::Center, &format!("h{} killed", gap.leader))?;
    }
    let points = (0..).zip(&bins).map(|(bin, count)| (x(outcome.begun_ns + bin * BIN_NS), y(rate(*count))));
    root.draw(&PathElement::new(points.collect::<Vec<_>>(), BLUE.stroke_width(2)))?;
    let end = format!("{:.1} s", span_ns as f64 / 1e9);
    text(root, (LEFT, TOP + CURVE + 16), 13, FAINT, HPos::Center, "0")?;
    text(root, (LEFT + width, TOP + CURVE + 16), 13, FAINT, HPos::Center, &end)
}

fn gaps(root: &Area<'_>, gaps: &[Gap], top: i32) -> Drawn {
    let longest = gaps.iter().map(Gap::total_ns).max().unwrap_or(1).max(1);
    let width = f64::from(WIDTH as i32 - LEFT - RIGHT);
    bold(root, (LEFT, top - 22), "From the kill to the next decision")?;
    for ((name, color), at) in Gap::STAGES.iter().zip(COLORS).zip(0..) {
        let left = LEFT + 330 + at * 110;
        root.draw(&Rectangle::new([(left, top - 28), (left + 12, top - 16)], color.filled()))?;
        text(root, (left + 18, top - 22), 13, INK, HPos::Left, name)?;
    }
    for (gap, row) in gaps.iter().zip(0..) {
        let y = top + row * ROW;
        text(root, (LEFT - 8, y + ROW / 2), 13, INK, HPos::Right, &format!("h{} to h{}", gap.leader, gap.next))?;
        let mut from = 0;
        for (stage, color) in gap.stages_ns().iter().zip(COLORS) {
            let x = |ns: u64| LEFT + (ns as f64 / longest as f64 * width) as i32;
            root.draw(&Rectangle::new([(x(from), y + 4), (x(from + stage), y + ROW - 4)], color.filled()))?;
            from += stage;
        }
        let end = LEFT + (from as f64 / longest as f64 * width) as i32 + 8;
        text(root, (end, y + ROW / 2), 13, INK, HPos::Left, &format!("{:.2} ms", milliseconds(gap.total_ns())))?;
    }
    Ok(())
}
