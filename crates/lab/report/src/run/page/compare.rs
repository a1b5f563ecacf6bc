// SPDX-License-Identifier: Apache-2.0
//! Several runs side by side.

use super::run::conditions_of;
use crate::run::figures;
use crate::run::html::{Cell, Html, Table};
use crate::run::measures::{self, TIMES, relative, title};
use crate::run::model::{Run, UNKNOWN};
use crate::run::plot::swatch;
use crate::text::Text;
use crate::units::{count, percentile, share, time_in_column};
use fide_jitter_analysis::stats::{Measure, PERCENTILES, Summary};
use std::collections::BTreeSet;

/// Most lines in one plot that can still be told apart.
const OVERLAY_MAX: usize = 24;

/// Writes the comparison.
pub(super) fn write(runs: &[Run], html: &mut Html) {
    html.raw("<section id=\"compare\">\n").element("h2", "Side by side");
    numbers(runs, html);
    differing(runs, html);
    html.raw("<ul class=\"legend\" id=\"legend\">\n");
    for (i, run) in runs.iter().take(OVERLAY_MAX).enumerate() {
        html.put(format_args!("<li data-run=\"{i}\">{} {}. {}</li>\n", swatch(i), i + 1, Text(&run.name)));
    }
    html.raw("</ul>\n");
    if runs.len() > OVERLAY_MAX {
        html.element("p", &format!("Of {} runs the first {OVERLAY_MAX} are drawn.", runs.len()));
    }
    let drawn = &runs[..runs.len().min(OVERLAY_MAX)];
    for measure in TIMES {
        html.put(format_args!("<h4>{}</h4>\n<div class=\"two\">\n", title(measure)));
        figures::overlay(drawn, measure, html);
        html.raw("</div>\n");
    }
    html.raw("</section>\n");
}

fn of(run: &Run, measure: Measure) -> Option<&Summary> {
    measures::of(run, measure).and_then(|m| m.summary.as_ref())
}

/// A row with a number for each run.
type Row = (String, Box<dyn Fn(&Run) -> Cell>);

fn row(name: impl Into<String>, of: impl Fn(&Run) -> Cell + 'static) -> Row {
    (name.into(), Box::new(of))
}

/// Writes a column per run, so that there is room for names, on paper too.
fn numbers(runs: &[Run], html: &mut Html) {
    let mut rows: Vec<Row> = vec![
        row("method", |run| Cell::number(&run.info.method)),
        row("sending interval", |run| Cell::time(run.info.period_ns as f64)),
        row("sent", |run| Cell::number(count(run.stats.packets - run.stats.unsent))),
        row("lost", |run| {
            let lost = format!("{} ({})", count(run.stats.lost), share(run.stats.loss));
            Cell::number(if run.stats.lost == 0 { "0".into() } else { lost })
        }),
        row("sent late", |run| Cell::number(count(run.stats.late.packets))),
        row("clock faults", |run| Cell::number(count(run.stats.faults_total))),
        row("restarts of the pong", |run| Cell::number(count(run.stats.pongs.len().saturating_sub(1) as u64))),
    ];
    for p in PERCENTILES.into_iter().filter(|p| *p == 0.0 || *p >= 0.5).chain([1.0]) {
        let cell = move |run: &Run| {
            let found = of(run, Measure::RoundTrip).and_then(|s| s.percentiles.iter().find(|q| q.0 == p).copied());
            found.map_or(Cell::none(), |p| Cell::time(p.1 as f64))
        };
        if runs.iter().any(|run| of(run, Measure::RoundTrip).is_some_and(|s| s.percentiles.iter().any(|q| q.0 == p))) {
            rows.push(row(format!("round trip {}", percentile(p)), cell));
        }
    }
    rows.push(row("round trip jitter", |run| {
        of(run, Measure::RoundTrip).map_or(Cell::none(), |s| Cell::time(s.jitter_ns as f64))
    }));
    for measure in [Measure::AToB, Measure::AtB, Measure::BToA, Measure::SendLateness] {
        rows.push(row(format!("{} max", title(measure)), move |run| {
            let star = if relative(measure, run) { " *" } else { "" };
            of(run, measure)
                .map_or(Cell::none(), |s| Cell::number(format!("{}{star}", time_in_column(s.max_ns as f64))))
        }));
    }
    rows.push(row("round trip bound", |run| {
        match measures::of(run, Measure::RoundTrip).and_then(|m| m.tail.as_ref()) {
            Some(Ok(bound)) => Cell::time(bound.level_ns),
            _ => Cell::number("none"),
        }
    }));
    rows.push(row("violation probability", |run| {
        let violation = measures::of(run, Measure::RoundTrip).and_then(|m| m.violation);
        violation.map_or(Cell::none(), |v| Cell::number(share(v.any)))
    }));
    rows.push(row("periodic disturbances", |run| {
        run.families.as_ref().map_or(Cell::number("not analysed"), |f| Cell::number(f.len().to_string()))
    }));
    rows.push(row("worst culprit", |run| {
        let known = run.culprits.iter().flatten().filter(|c| c.kind != UNKNOWN && c.packets > 0);
        let worst = known.max_by_key(|c| (c.packets, c.worst_ns));
        let none = if run.culprits.is_some() { "none known" } else { "not recorded" };
        worst.map_or(Cell::number(none), |c| Cell::number(format!("{} {}", c.kind, c.name)))
    }));
    let heads = runs.iter().enumerate().map(|(i, run)| format!("{}. {}", i + 1, run.name));
    let mut table = Table::new([String::new()].into_iter().chain(heads));
    for (name, cell) in rows {
        table.row([Cell::words(name)].into_iter().chain(runs.iter().map(cell)).collect());
    }
    table.write("compare", html);
    if runs.iter().any(|run| !run.info.same_clock) {
        html.element("p", "* above the run's own baseline, because the clocks of A and B differ.");
    }
}

/// Conditions that are not the same in all runs.
fn differing(runs: &[Run], html: &mut Html) {
    let of: Vec<Vec<(String, String)>> = runs.iter().map(conditions_of).collect();
    let mut seen = BTreeSet::new();
    let names: Vec<&String> = of.iter().flatten().map(|c| &c.0).filter(|name| seen.insert(*name)).collect();
    let value = |i: usize, name: &str| of[i].iter().find(|c| c.0 == name).map_or("", |c| c.1.as_str());
    // These differ in any case, and mean nothing.
    let plain = ["started", "packet 0 due"];
    let differ =
        |name: &&&String| !plain.contains(&name.as_str()) && (1..runs.len()).any(|i| value(i, name) != value(0, name));
    let differing: Vec<&&String> = names.iter().filter(differ).collect();
    if differing.is_empty() {
        html.element("p", "All runs were made under the same recorded conditions.");
        return;
    }
    html.element("h3", "Conditions that differ");
    let mut table = Table::new(["".to_owned()].into_iter().chain((0..runs.len()).map(|i| format!("{}.", i + 1))));
    for name in differing {
        let mut cells = vec![Cell::words(name.as_str())];
        cells.extend((0..runs.len()).map(|i| Cell::words(value(i, name))));
        table.row(cells);
    }
    table.write("conditions", html);
}
