// SPDX-License-Identifier: Apache-2.0
//! Percentiles and bounds of a run.

use crate::run::figures::{self, VIOLATION_PACKETS};
use crate::run::html::{Cell, Html, Table};
use crate::run::measures::{self, ORDER, TIMES, relative, title, why_none};
use crate::run::model::Run;
use crate::run::plot::swatch;
use crate::units::{count, percentile, share, time_exact};
use fide_jitter_analysis::stats::{Measure, PERCENTILES, violation};

/// Percentiles of every measure.
pub(super) fn percentiles(run: &Run, index: usize, html: &mut Html) {
    // Only the percentiles for which some measure has enough packets; the first and the last are always
    // there.
    let of = |measure| measures::of(run, measure).and_then(|m| m.summary.as_ref());
    let known =
        |p: &f64| ORDER.iter().filter_map(|m| of(*m)).any(|s| s.percentiles.iter().any(|(share, _)| share == p));
    let shares: Vec<f64> = PERCENTILES.into_iter().filter(known).collect();
    let mut heads = vec![String::new()];
    heads.extend(shares.iter().map(|p| percentile(*p)));
    heads.extend(["max", "jitter", "jitter / mean", "mean", "std. dev.", "packets", "left out"].map(String::from));
    let mut table = Table::new(heads);
    let mut none = Reasons::default();
    for measure in ORDER {
        let (Some(stats), Some(summary)) = (measures::of(run, measure), of(measure)) else {
            none.add(measure, why_none(run, measure));
            continue;
        };
        let name = if relative(measure, run) { format!("{} *", title(measure)) } else { title(measure) };
        let mut cells = vec![Cell::words(name)];
        cells.extend(shares.iter().map(|p| {
            summary.percentiles.iter().find(|(share, _)| share == p).map_or(Cell::none(), |p| Cell::time(p.1 as f64))
        }));
        let relative_jitter = summary.relative_jitter.filter(|_| !relative(measure, run));
        cells.extend([
            Cell::time(summary.max_ns as f64),
            Cell::time(summary.jitter_ns as f64),
            relative_jitter.map_or(Cell::none(), |r| Cell::number(format!("{r:.2}"))),
            Cell::time(summary.mean_ns),
            Cell::time(summary.std_ns),
            Cell::number(count(summary.n)),
            Cell::number(count(stats.impossible)),
        ]);
        table.row(cells);
    }
    if !table.is_empty() {
        table.write(&format!("percentiles-{index}"), html);
        html.element("p", "Percentiles that cannot be told from the maximum with this many packets are left out.");
    }
    if ORDER.iter().any(|m| relative(*m, run) && measures::of(run, *m).is_some()) {
        html.element("p", "* above the run's own baseline, because the clocks of A and B differ: see below.");
    }
    none.write("Nothing for", html);
}

/// Why measures have no numbers: each reason once, with all its measures.
#[derive(Default)]
struct Reasons(Vec<(String, Vec<String>)>);

impl Reasons {
    fn add(&mut self, measure: Measure, why: String) {
        match self.0.iter_mut().find(|r| r.0 == why) {
            Some((_, of)) => of.push(title(measure)),
            None => self.0.push((why, vec![title(measure)])),
        }
    }

    fn write(&self, what: &str, html: &mut Html) {
        let words = self.0.iter().map(|(why, of)| format!("{what} {}: {why}.", of.join("; ")));
        list(&words.collect::<Vec<_>>(), html);
    }
}

fn list(words: &[String], html: &mut Html) {
    if words.is_empty() {
        return;
    }
    html.raw("<ul class=\"small\">\n");
    for words in words {
        html.element("li", words);
    }
    html.raw("</ul>\n");
}

/// The extreme-value bound and X-Lane's metric.
pub(super) fn bounds(run: &Run, index: usize, html: &mut Html) {
    let mut table = Table::new([
        "",
        "bound",
        "confidence interval",
        "exceeded by",
        "among the next",
        "from peaks above",
        "separate peaks",
        "shape",
        "ends at",
        "fit",
    ]);
    let mut assumptions: Vec<String> = Vec::new();
    let mut refused = Reasons::default();
    // The lateness of sending is not a latency, and has no bound.
    for measure in TIMES.into_iter().filter(|m| *m != Measure::SendLateness) {
        let Some(stats) = measures::of(run, measure) else {
            refused.add(measure, why_none(run, measure));
            continue;
        };
        match &stats.tail {
            None => {}
            Some(Err(why)) => refused.add(measure, why.to_string()),
            Some(Ok(bound)) => {
                let (low, high) = bound.interval_ns;
                let name = if relative(measure, run) { format!("{} *", title(measure)) } else { title(measure) };
                table.row(vec![
                    Cell::words(name),
                    Cell::time(bound.level_ns),
                    Cell::number(format!(
                        "{} to {} ({})",
                        time_exact(low),
                        time_exact(high),
                        share(bound.options.confidence)
                    )),
                    Cell::number(share(bound.options.risk)),
                    Cell::number(format!("{} packets", count(bound.options.packets))),
                    Cell::time(bound.threshold_ns as f64),
                    Cell::number(format!(
                        "{} of {} packets",
                        count(bound.clusters as u64),
                        count(bound.exceedances as u64)
                    )),
                    Cell::number(format!("{:.2}", bound.shape)),
                    bound.end_ns.map_or(Cell::number("no end"), Cell::time),
                    Cell::number(format!("{:.2}", bound.fit)),
                ]);
                for words in &bound.assumptions {
                    if !assumptions.contains(words) {
                        assumptions.push(words.clone());
                    }
                }
            }
        }
    }
    if !table.is_empty() {
        html.element(
            "p",
            "Extreme-value bounds: one of the next packets exceeds the bound with the probability under \"exceeded by\". If:",
        );
        list(&assumptions, html);
        table.write(&format!("bounds-{index}"), html);
    }
    refused.write("No bound for", html);
    violations(run, index, html);
}

fn violations(run: &Run, index: usize, html: &mut Html) {
    let mut heads = vec!["".to_owned(), "limit".to_owned(), "one packet".to_owned()];
    heads.extend(VIOLATION_PACKETS.iter().map(|n| format!("any of {}", count(*n))));
    let mut table = Table::new(heads);
    for measure in TIMES {
        let Some(stats) = measures::of(run, measure) else { continue };
        let (Some(summary), Some(v)) = (&stats.summary, &stats.violation) else { continue };
        let mut cells = vec![Cell::words(title(measure)), Cell::time(v.limit_ns), Cell::number(share(v.one))];
        let any = |n: u64| violation(summary.mean_ns, summary.std_ns.powi(2), v.limit_ns, n).any;
        cells.extend(VIOLATION_PACKETS.iter().map(|n| Cell::number(share(any(*n)))));
        table.row(cells);
    }
    if table.is_empty() && measures::of(run, Measure::RoundTrip).is_none() {
        return;
    }
    html.element(
        "p",
        "X-Lane's violation probability, at most: that a packet takes longer than ten times the 99th percentile (table), or \
         than any other limit (plot).",
    );
    table.write(&format!("violation-{index}"), html);
    html.raw("<ul class=\"legend\">\n");
    for (look, n) in VIOLATION_PACKETS.iter().enumerate() {
        html.put(format_args!("<li>{} next {} packets</li>\n", swatch(look), count(*n)));
    }
    html.raw("</ul>\n<div class=\"two\">\n");
    figures::violations(run, index, html);
    html.raw("</div>\n");
}
