// SPDX-License-Identifier: Apache-2.0
//! SETs per second over time, and each gap by its stages, as SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{
    gap::{Fault, Gap},
    outcome::Outcome,
    sample::Rate,
};
use crate::demo::plot::{
    Area, BLUE, Drawn, FAINT, GREEN, GREY, INK, ORANGE, RED, RULE, WIDTH, bold, line, text, written,
};

const LEFT: i32 = 230;
const RIGHT: i32 = 110;
const TOP: i32 = 74;
const CURVE: i32 = 240;
const ROW: i32 = 28;
const COLORS: [RGBColor; 5] = [RED, ORANGE, GREY, GREEN, BLUE];

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn width() -> i32 {
    WIDTH as i32 - LEFT - RIGHT
}

pub(super) fn draw(outcome: &Outcome) -> anyhow::Result<String> {
    let rows = i32::try_from(outcome.gaps.len()).unwrap_or(0);
    let height = TOP + CURVE + 160 + rows * ROW;
    written(
        |root| {
            root.fill(&WHITE)?;
            curve(root, outcome)?;
            gaps(root, &outcome.gaps, TOP + CURVE + 90)
        },
        height,
    )
}

fn curve(root: &Area<'_>, outcome: &Outcome) -> Drawn {
    let span_ns = outcome.ended_ns.saturating_sub(outcome.begun_ns).max(1);
    let x = |ns: u64| {
        let share = ns.saturating_sub(outcome.begun_ns) as f64 / span_ns as f64;
        LEFT + (share.min(1.0) * f64::from(width())) as i32
    };
    let most = outcome.rates.iter().map(Rate::per_second).fold(1.0, f64::max);
    let y = |rate: f64| TOP + CURVE - (rate / most * f64::from(CURVE)) as i32;
    bold(root, (16, 24), "SETs per second, all clients")?;
    for share in [0.0, 0.5, 1.0] {
        line(root, (LEFT, y(most * share)), (LEFT + width(), y(most * share)), RULE)?;
        text(root, (LEFT - 8, y(most * share)), 13, FAINT, HPos::Right, &format!("{:.0}", most * share))?;
    }
    for (gap, at) in outcome.gaps.iter().zip(0..) {
        // Words of neighbours stand at two heights.
        let above = if at % 2 == 0 { 14 } else { 28 };
        let from = x(gap.lost_ns);
        line(root, (from, TOP - above + 8), (from, TOP + CURVE), RED)?;
        let words = format!("h{} {}: {:.1} ms", gap.leader, gap.fault.name(), milliseconds(gap.total_ns()));
        text(root, (from, TOP - above), 12, RED, HPos::Center, &words)?;
    }
    // Where nobody led there is no rate, and nothing was executed.
    let mut points = vec![(LEFT, y(0.0))];
    for rate in &outcome.rates {
        if points.last().is_some_and(|last| x(rate.from_ns) > last.0 + 1) {
            points.extend(points.last().map(|last| (last.0, y(0.0))));
            points.push((x(rate.from_ns), y(0.0)));
        }
        points.extend([(x(rate.from_ns), y(rate.per_second())), (x(rate.to_ns), y(rate.per_second()))]);
    }
    root.draw(&PathElement::new(points, BLUE.stroke_width(1)))?;
    text(root, (LEFT, TOP + CURVE + 16), 13, FAINT, HPos::Center, "0")?;
    let end = format!("{:.1} s", span_ns as f64 / 1e9);
    text(root, (LEFT + width(), TOP + CURVE + 16), 13, FAINT, HPos::Center, &end)
}

/// The end of the axis on which a gap is drawn, ns: a silent host takes a timeout longer than a dead process.
fn longest(gaps: &[Gap], of: &Gap) -> u64 {
    let is_cut = |gap: &Gap| gap.fault == Fault::Cut;
    gaps.iter().filter(|gap| is_cut(gap) == is_cut(of)).map(Gap::total_ns).max().unwrap_or(1).max(1)
}

fn gaps(root: &Area<'_>, gaps: &[Gap], top: i32) -> Drawn {
    bold(root, (16, top - 36), "From the loss of the leader to the next acknowledged write")?;
    for ((name, color), at) in Gap::STAGES.iter().zip(COLORS).zip(0..) {
        let left = LEFT + at * 110;
        root.draw(&Rectangle::new([(left, top - 18), (left + 12, top - 6)], color.filled()))?;
        text(root, (left + 18, top - 12), 13, INK, HPos::Left, name)?;
    }
    for (gap, row) in gaps.iter().zip(0..) {
        let (y, longest) = (top + row * ROW, longest(gaps, gap));
        text(root, (LEFT - 8, y + ROW / 2), 13, INK, HPos::Right, &format!("{}, h{} leads", gap.what(), gap.next))?;
        let x = |ns: u64| LEFT + (ns as f64 / longest as f64 * f64::from(width())) as i32;
        let mut from = 0;
        for (stage, color) in gap.stages_ns().iter().zip(COLORS) {
            root.draw(&Rectangle::new([(x(from), y + 4), (x(from + stage), y + ROW - 4)], color.filled()))?;
            from += stage;
        }
        let total = format!("{:.2} ms", milliseconds(gap.total_ns()));
        text(root, (x(from) + 8, y + ROW / 2), 13, INK, HPos::Left, &total)?;
    }
    if gaps.iter().any(|gap| gap.fault == Fault::Cut) {
        let y = top + i32::try_from(gaps.len()).unwrap_or(0) * ROW + 18;
        text(
            root,
            (LEFT, y),
            12,
            FAINT,
            HPos::Left,
            "A host that is cut off has an axis of its own: its silence takes a timeout to notice.",
        )?;
    }
    Ok(())
}
