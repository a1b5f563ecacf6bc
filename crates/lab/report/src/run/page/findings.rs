// SPDX-License-Identifier: Apache-2.0
//! Disturbances, culprits and the latest packets of a run.

use crate::run::html::{Cell, Html, Table};
use crate::run::measures;
use crate::run::model::{Blame, CulpritTotal, Disturbance, FamilyText, Run, UNKNOWN};
use crate::text::Text;
use crate::units::{count, duration, share, time_exact, time_to};
use fide_jitter_analysis::stats::Measure;

/// Most rows of each table; the rest is in the JSON.
const ROWS_MAX: usize = 50;
/// Packets that are listed from the plot, if nobody looked for the latest ones.
const FROM_PLOT: usize = 10;

/// Writes the families in words and numbers.
pub(super) fn families(run: &Run, index: usize, html: &mut Html) {
    let Some(families) = &run.families else {
        html.element("p", "Not analysed.");
        return;
    };
    if families.is_empty() {
        html.element("p", "None found: nothing here is more periodic than it would be by chance.");
        return;
    }
    html.put(format_args!("<div class=\"families\" data-table=\"families-{index}\">\n"));
    for family in families.iter().take(ROWS_MAX) {
        write_family(family, html);
    }
    html.raw("</div>\n");
    rest(families.len(), html);
}

fn write_family(family: &FamilyText, html: &mut Html) {
    html.raw("<article>\n");
    html.put(format_args!("<h4>{} <small>at {}</small></h4>\n", Text(&family.kind), Text(&family.place)));
    if !family.sentence.is_empty() {
        html.element("p", &family.sentence);
    }
    let at_least = if family.duration_at_least { "at least " } else { "" };
    let numbers = [
        ("period", precise(family.period_ns, family.period_error)),
        ("takes", format!("{at_least}{}", time_exact(family.duration_ns))),
        ("packets hit", count(family.hits)),
        ("confidence", share(family.confidence)),
    ];
    html.raw("<dl>\n");
    for (name, value) in numbers {
        html.raw("<div>").element("dt", name).element("dd", &value).raw("</div>\n");
    }
    html.raw("</dl>\n");
    other_periods(&family.alternatives_ns, html);
    html.raw("</article>\n");
}

/// Writes the disturbances behind all runs.
pub(super) fn disturbances(all: &[Disturbance], runs: &[Run], html: &mut Html) {
    html.raw("<section id=\"disturbances\">\n").element("h2", "One cause, several patterns");
    if all.is_empty() {
        html.element("p", "No disturbance was found that explains what the runs show.");
    } else {
        html.element("p", "The disturbances that all runs together show, the clearest first. In theory, a disturbance need not show in a run whose packets always miss it.");
    }
    for (n, one) in all.iter().take(ROWS_MAX).enumerate() {
        html.element("p", &one.sentence);
        let mut table = Table::new(["run", "sending interval", "shows as", "by theory", "packets late"]);
        for (run, shows) in runs.iter().zip(&one.shows) {
            let words = |kind: &Option<String>, none: &str| Cell::words(kind.as_deref().unwrap_or(none));
            table.row(vec![
                Cell::words(&run.name),
                Cell::time(run.info.period_ns as f64),
                words(&shows.kind, "not at all"),
                words(&shows.expected, "need not show"),
                Cell::number(count(shows.packets)),
            ]);
        }
        table.write(&format!("disturbance-{n}"), html);
        other_periods(&one.alternatives_ns, html);
    }
    html.raw("</section>\n");
    rest(all.len(), html);
}

fn other_periods(alternatives_ns: &[f64], html: &mut Html) {
    if !alternatives_ns.is_empty() {
        let others: Vec<String> = alternatives_ns.iter().take(ROWS_MAX).map(|ns| time_to(*ns, 6)).collect();
        html.element("p", &format!("A period of {} would fit as well.", others.join(", ")));
    }
}

/// A time with as many digits as are certain, and its error.
fn precise(ns: f64, error: f64) -> String {
    if error.is_nan() || error <= 0.0 || error >= 1.0 {
        return time_exact(ns);
    }
    let digits = (1.0 - error.log10()).ceil() as i32;
    format!("{} +- {}", time_to(ns, digits.clamp(3, 9)), time_to(ns * error, 2))
}

/// Totals per culprit.
pub(super) fn culprits(run: &Run, index: usize, html: &mut Html) {
    let Some(culprits) = &run.culprits else {
        let why = run
            .info
            .isolation
            .get("culprits")
            .map_or("not recorded: the log does not say what else ran", String::as_str);
        html.element("p", &format!("No culprit is known: {why}."));
        return;
    };
    let late: u64 = culprits.iter().map(|c| c.packets).sum();
    if late == 0 {
        html.element("p", "No packet was late.");
        return;
    }
    let mut table = Table::new(["", "kind", "late packets", "share", "worst"]);
    let mut row = |c: &CulpritTotal| {
        let name = if c.name.is_empty() { &c.kind } else { &c.name };
        table.row(vec![
            Cell::words(name),
            Cell::words(&c.kind),
            Cell::number(count(c.packets)),
            Cell::number(share(c.share)),
            if c.packets == 0 { Cell::none() } else { Cell::time(c.worst_ns as f64) },
        ]);
    };
    let known: Vec<&CulpritTotal> = culprits.iter().filter(|c| c.kind != UNKNOWN).collect();
    known.iter().take(ROWS_MAX).for_each(|c| row(c));
    // This row is always there, even if it is empty.
    let nothing = CulpritTotal { kind: UNKNOWN.into(), name: UNKNOWN.into(), ..CulpritTotal::default() };
    let unknown: Vec<&CulpritTotal> = culprits.iter().filter(|c| c.kind == UNKNOWN).collect();
    if unknown.is_empty() {
        row(&nothing);
    }
    unknown.iter().take(ROWS_MAX).for_each(|c| row(c));
    table.write(&format!("culprits-{index}"), html);
    rest(known.len(), html);
}

/// The latest packets and their culprits.
pub(super) fn late(run: &Run, index: usize, html: &mut Html) {
    let Some(late) = &run.late else { return from_plot(run, index, html) };
    if late.is_empty() {
        html.element("p", "No packet was late.");
        return;
    }
    let mut table = Table::new(["packet", "in the run", "delayed at", "late by", "what ran then"]);
    for packet in late.iter().take(ROWS_MAX) {
        let blame: Vec<String> = packet.blame.iter().take(5).map(blamed).collect();
        table.row(vec![
            Cell::number(count(packet.id)),
            packet.at_ns.map_or(Cell::none(), |ns| Cell::number(moment(ns))),
            Cell::words(&packet.place),
            Cell::time(packet.late_ns as f64),
            Cell::words(if blame.is_empty() { UNKNOWN.to_owned() } else { blame.join("; ") }),
        ]);
    }
    table.write(&format!("late-{index}"), html);
    rest(late.len(), html);
}

fn blamed(blame: &Blame) -> String {
    let name = if blame.name.is_empty() { String::new() } else { format!(" {}", blame.name) };
    let core = blame.cpu.map_or(String::new(), |cpu| format!(" on core {cpu}"));
    let ns = if blame.ns > 0 { format!(", {}", time_exact(blame.ns as f64)) } else { String::new() };
    format!("{}{name}{core}{ns}", blame.kind)
}

/// `12.345 s`, even late in a long run.
fn moment(ns: i64) -> String {
    let s = ns as f64 / 1e9;
    if s.abs() < 1000.0 { format!("{s:.3} s") } else { format!("{s:.3} s ({})", duration(ns as f64)) }
}

fn from_plot(run: &Run, index: usize, html: &mut Html) {
    let Some(stats) = measures::of(run, Measure::RoundTrip) else {
        html.element("p", &format!("None: {}.", measures::why_none(run, Measure::RoundTrip)));
        return;
    };
    let mut points = stats.points.clone();
    points.sort_by_key(|p| (std::cmp::Reverse(p.ns), p.id));
    html.element(
        "p",
        "Causes were not looked for. These are the longest round trips, at most one for each place in the plot:",
    );
    let mut table = Table::new(["packet", "in the run", "round trip"]);
    for point in points.iter().take(FROM_PLOT) {
        let at = i64::try_from(u128::from(point.id) * u128::from(run.info.period_ns)).ok();
        table.row(vec![
            Cell::number(count(point.id)),
            at.map_or(Cell::none(), |ns| Cell::number(moment(ns))),
            Cell::time(point.ns as f64),
        ]);
    }
    table.write(&format!("late-{index}"), html);
}

fn rest(all: usize, html: &mut Html) {
    if all > ROWS_MAX {
        html.element("p", &format!("And {} more, in the JSON.", all - ROWS_MAX));
    }
}
