// SPDX-License-Identifier: Apache-2.0
//! The part of the page that is about one run.

use super::{findings, tables};
use crate::run::figures;
use crate::run::html::{Cell, Html, Table};
use crate::run::measures::{self, TIMES, meaning, title};
use crate::run::model::Run;
use crate::units::{count, date, duration, share, time_exact};
use fide_jitter_analysis::clocks::ClockMoves;
use fide_jitter_analysis::sample::FaultKind;
use fide_jitter_analysis::stats::Measure;
use fide_jitter_analysis::{Schedule, Stamp};

/// Most conditions that are shown of a log.
const CONDITIONS_MAX: usize = 200;

/// Writes a run, with headings of the level `h`.
pub(super) fn write(run: &Run, index: usize, h: &str, html: &mut Html) {
    cards(run, html);
    remarks(run, html);
    html.element(h, "Conditions");
    conditions(run, index, html);
    html.element(h, "Packets");
    packets(run, index, html);
    html.element(h, "Percentiles, up to the maximum");
    tables::percentiles(run, index, html);
    html.element(h, "Periodic disturbances");
    findings::families(run, index, html);
    html.element(h, "Who made packets late");
    findings::culprits(run, index, html);
    html.element(h, "The latest packets");
    findings::late(run, index, html);
    html.element(h, "How late the next packets may be");
    tables::bounds(run, index, html);
    html.element(h, "Successive differences");
    html.element("p", "Without jitter every dot would lie on the sending interval.");
    html.raw("<div class=\"two\">\n");
    for stamp in Stamp::ALL {
        figures::successive(run, index, stamp, html);
    }
    html.raw("</div>\n");
    html.element(h, "Times over time, and how they are spread");
    for measure in TIMES {
        html.put(format_args!("<h4>{}</h4>\n", title(measure)));
        html.element("p", &format!("{}.", meaning(measure, run)));
        html.raw("<div class=\"three\">\n");
        figures::measure(run, index, measure, html);
        html.raw("</div>\n");
    }
}

/// The few numbers that readers want first.
fn cards(run: &Run, html: &mut Html) {
    let stats = &run.stats;
    let round_trip = measures::of(run, Measure::RoundTrip).and_then(|m| m.summary.as_ref());
    let of = |ns: Option<i64>| ns.map_or("-".to_owned(), |ns| time_exact(ns as f64));
    let median = round_trip.and_then(|s| s.percentiles.iter().find(|p| p.0 == 0.5).or(s.percentiles.first()));
    let cards = [
        ("jitter of the round trip", of(round_trip.map(|s| s.jitter_ns))),
        ("median round trip", of(median.map(|p| p.1))),
        ("longest round trip", of(round_trip.map(|s| s.max_ns))),
        ("packets sent", count(stats.packets - stats.unsent)),
        ("lost", if stats.lost == 0 { "0".into() } else { format!("{} ({})", count(stats.lost), share(stats.loss)) }),
        ("sent late", count(stats.late.packets)),
    ];
    html.raw("<div class=\"cards\">\n");
    for (name, value) in cards {
        html.raw("<div>").element("b", &value).element("span", name).raw("</div>\n");
    }
    html.raw("</div>\n");
}

/// Remarks to read before anything else.
fn remarks(run: &Run, html: &mut Html) {
    let (stats, info) = (&run.stats, &run.info);
    let sent = stats.packets - stats.unsent;
    let mut all: Vec<String> = Vec::new();
    match stats.packets {
        0 => all.push("The log has no packet: there is nothing to analyse.".into()),
        1 => all.push("The log has one packet: its times are shown, but nothing can be concluded from them.".into()),
        _ if sent == 0 => all.push("No packet was sent.".into()),
        _ if stats.answered == 0 => all.push(format!(
            "No packet came back: {} sent, all lost. B is known to have received {}.",
            count(sent),
            count(stats.lost_after_b)
        )),
        n if n < 1000 => all.push(format!("Only {n} packets: rare outliers cannot have been seen.")),
        _ => {}
    }
    if let Some(ending) = info.isolation.get("log") {
        all.push(format!("The log is not whole: {ending}."));
    }
    if let Some(why) = info.isolation.get("ended") {
        all.push(format!("The run ended before its last packet: {why}."));
    }
    if !info.same_clock && stats.packets > 0 {
        all.push(
            "A and B have clocks of their own. Ping and pong alone are given above the run's own baseline; round trips are \
             exact."
                .into(),
        );
        all.extend(stats.clocks.as_ref().filter(|clocks| clocks.moves_total > 0).map(moves));
    }
    if stats.late.packets > 0 {
        all.push(format!(
            "{} packets ({}) were sent more than {} after they were due, the latest {} after.",
            count(stats.late.packets),
            share(stats.late.packets as f64 / sent.max(1) as f64),
            time_exact(stats.late.after_ns as f64),
            time_exact(stats.late.max_ns as f64)
        ));
    }
    if stats.faults_total > 0 {
        let left_out = stats.measures.iter().map(|m| m.impossible).max().unwrap_or(0);
        let words = "Clocks or counters misbehaved";
        all.push(format!(
            "{words}, {} times ({}); up to {} packets are left out of a measure for that.",
            count(stats.faults_total),
            faults(run),
            count(left_out)
        ));
    }
    let before = |m| stats.measure(m).map_or(0, |m| m.impossible);
    if info.same_clock && before(Measure::AToB).max(before(Measure::BToA)) > 0 {
        all.push(format!(
            "{} pings and {} pongs arrived before they were sent and are left out: A and B have clocks of their own, and \
             --same-machine was wrong.",
            count(before(Measure::AToB)),
            count(before(Measure::BToA))
        ));
    }
    if stats.pongs.len() > 1 {
        let rows: Vec<String> = stats.pongs[1..].iter().take(5).map(|r| count(r.row)).collect();
        all.push(format!("The pong restarted {} times, at row {}.", stats.pongs.len() - 1, rows.join(", ")));
    }
    if stats.unsent > 0 || stats.absent > 0 {
        all.push(format!(
            "{} packets were due and not sent; {} ids are not in the log.",
            count(stats.unsent),
            count(stats.absent)
        ));
    }
    if all.is_empty() {
        return;
    }
    html.raw("<ul class=\"remarks\">\n");
    all.iter().for_each(|words| {
        html.element("li", words);
    });
    html.raw("</ul>\n");
}

/// The moves of the clocks beyond their drift.
fn moves(clocks: &ClockMoves) -> String {
    let each = clocks.moves.iter().take(5).map(|one| {
        let by = format!("{}{}", if one.by_ns < 0 { "-" } else { "+" }, time_exact(one.by_ns.unsigned_abs() as f64));
        if one.until_row - one.row < 64 {
            format!("a step of {by} at row {}", count(one.until_row))
        } else {
            format!("a slew of {by} over rows {} to {}", count(one.row), count(one.until_row))
        }
    });
    let more = clocks.moves_total.saturating_sub(5);
    format!(
        "The hosts' clocks moved against each other beyond a drift of {:.1} millionths: {}{}. That is taken out of pings and pongs \
         and of what is periodic: it is no delay.",
        clocks.drift_ppm,
        each.collect::<Vec<_>>().join(", "),
        if more > 0 { format!(", and {} more", count(more)) } else { String::new() }
    )
}

/// Clock faults by kind.
fn faults(run: &Run) -> String {
    let kinds = [
        (FaultKind::Backwards, "went back"),
        (FaultKind::Wrapped, "wrapped"),
        (FaultKind::Jumped, "jumped"),
        (FaultKind::Order, "ids out of order"),
    ];
    let mut words = Vec::new();
    for (kind, name) in kinds {
        let of_kind = || run.stats.faults.iter().filter(|f| f.kind == kind);
        if let Some(first) = of_kind().next() {
            let at = if kind == FaultKind::Order { String::new() } else { format!(" at {}", first.stamp.name()) };
            words.push(format!("{name} {}, first in row {}{at}", count(of_kind().count() as u64), count(first.row)));
        }
    }
    if (run.stats.faults.len() as u64) < run.stats.faults_total {
        words.push(format!("of the first {}", count(run.stats.faults.len() as u64)));
    }
    words.join("; ")
}

/// The cores as text.
pub(super) fn cores(run: &Run) -> String {
    let core = |i: usize| run.info.cores[i].map_or("not pinned".to_owned(), |c| format!("core {c}"));
    Stamp::ALL.map(|s| format!("{} {}", s.name(), core(s.index()))).join(", ")
}

/// All conditions that were set or found when the run was measured.
pub(super) fn conditions_of(run: &Run) -> Vec<(String, String)> {
    let info = &run.info;
    let or_unknown = |s: &str| if s.is_empty() { "unknown".to_owned() } else { s.to_owned() };
    let schedule = match info.schedule {
        Schedule::Absolute => "absolute: packet id is due at start + id * interval",
        Schedule::Relative => "relative: due one interval after the last was sent",
    };
    let length = run.stats.packets as f64 * info.period_ns as f64;
    let started = if info.started_unix_ns == 0 { "unknown".into() } else { date(info.started_unix_ns) };
    let mut all = vec![
        ("method".into(), or_unknown(&info.method)),
        ("sending interval".into(), time_exact(info.period_ns as f64)),
        ("schedule".into(), schedule.into()),
        ("packet size".into(), format!("{} bytes", info.packet_bytes)),
        ("host A".into(), or_unknown(&info.host_a)),
        ("host B".into(), or_unknown(&info.host_b)),
        ("clocks".into(), if info.same_clock { "one for A and B" } else { "one each" }.into()),
        ("started".into(), started),
        ("packet 0 due".into(), format!("{} ns on A's clock", info.start_ns)),
        ("length".into(), duration(length)),
        ("cores".into(), cores(run)),
        ("measured by".into(), format!("version {}", or_unknown(&info.tool_version))),
    ];
    all.extend(info.isolation.iter().take(CONDITIONS_MAX).map(|(k, v)| (k.clone(), or_unknown(v))));
    all
}

fn conditions(run: &Run, index: usize, html: &mut Html) {
    html.put(format_args!("<dl class=\"conditions\" data-table=\"conditions-{index}\">\n"));
    for (name, value) in conditions_of(run) {
        html.raw("<div>").element("dt", &name).element("dd", &value).raw("</div>\n");
    }
    html.raw("</dl>\n");
    let more = run.info.isolation.len().saturating_sub(CONDITIONS_MAX);
    if run.info.isolation.is_empty() {
        html.element("p", "The log does not say how the cores were isolated.");
    } else if more > 0 {
        html.element("p", &format!("And {more} more, in the JSON."));
    }
}

fn packets(run: &Run, index: usize, html: &mut Html) {
    let stats = &run.stats;
    let sent = stats.packets - stats.unsent;
    let of_sent = |n: u64| if sent == 0 { Cell::none() } else { Cell::number(share(n as f64 / sent as f64)) };
    let mut table = Table::new(["", "packets", "of those sent", ""]);
    let late = format!(
        "counted from {} on; the latest by {}",
        time_exact(stats.late.after_ns as f64),
        time_exact(stats.late.max_ns as f64)
    );
    let lost =
        if stats.lost == 0 { String::new() } else { format!("B received {} of them", count(stats.lost_after_b)) };
    let rows = [
        ("sent", sent, of_sent(sent), String::new()),
        ("answered", stats.answered, of_sent(stats.answered), String::new()),
        ("lost", stats.lost, of_sent(stats.lost), lost),
        ("sent late", stats.late.packets, of_sent(stats.late.packets), late),
        ("due, not sent", stats.unsent, Cell::none(), String::new()),
        ("not in the log", stats.absent, Cell::none(), "ids between the first and the last".into()),
        ("clock faults", stats.faults_total, Cell::none(), faults(run)),
        ("restarts of the pong", stats.pongs.len().saturating_sub(1) as u64, Cell::none(), String::new()),
    ];
    for (name, n, of, words) in rows {
        table.row(vec![Cell::words(name), Cell::number(count(n)), of, Cell::words(words)]);
    }
    table.write(&format!("packets-{index}"), html);
}
