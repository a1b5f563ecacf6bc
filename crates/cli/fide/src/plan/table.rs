// SPDX-License-Identifier: Apache-2.0
//! A plan as text.

use std::fmt::Write;

use fide_report::{
    plan::{Figures, Plan, RequestFigures},
    text::clean,
    units::{count_of, rate, share, time},
};

use crate::columns::columns;

/// How many links are printed, the fullest first.
const LINKS_SHOWN: usize = 8;
/// How many refused requests are printed.
const REFUSED_SHOWN: usize = 100;

/// Requests, what was refused, and the fullest links.
pub(super) fn text(plan: &Plan<'_>, figures: &Figures, only: &[String]) -> String {
    let topology = plan.planner.topology();
    let hosts = topology.hosts().count();
    let switches = topology.nodes().len() - hosts;
    let mut out = format!(
        "{}, {} switch{}, {}\n\n",
        count_of(hosts, "host"),
        switches,
        if switches == 1 { "" } else { "es" },
        count_of(topology.cables().len(), "cable")
    );
    if figures.requests.is_empty() {
        out += "no request was granted\n";
    } else {
        let rows: Vec<Vec<String>> = figures.requests.iter().map(row).collect();
        out += &columns(
            &["request", "from", "to", "bytes", "period", "trees", "found", "latency", "jitter", "timeout"],
            &[0, 6],
            &rows,
        );
        if figures.requests.iter().any(|request| request.proved_cheapest) {
            out += "* no cheaper trees exist: all were searched\n";
        }
    }
    let refused: Vec<_> =
        plan.refused.iter().filter(|refused| only.is_empty() || only.contains(&refused.request.name)).collect();
    // Writing to a string cannot fail.
    if !refused.is_empty() {
        let _ = writeln!(out, "\nrefused: {}", count_of(refused.len(), "request"));
    }
    for refused in refused.iter().take(REFUSED_SHOWN) {
        let _ = writeln!(out, "  {}: {}", clean(&refused.request.name), refused.why);
    }
    if refused.len() > REFUSED_SHOWN {
        let _ = writeln!(out, "  and {} more; --json has all", refused.len() - REFUSED_SHOWN);
    }
    let fullest = figures.fullest(LINKS_SHOWN);
    if !fullest.is_empty() {
        let rows: Vec<Vec<String>> = fullest
            .iter()
            .map(|link| {
                vec![
                    link.link.clone(),
                    link.trees.to_string(),
                    rate(link.lane_bps),
                    share(link.lane_share()),
                    format!("{} B", link.backlog_bytes),
                    share(link.backlog_share()),
                    time(link.delay_max_ns),
                ]
            })
            .collect();
        let _ = writeln!(out, "\nfullest of {}", count_of(figures.links.len(), "link"));
        out += &columns(&["link", "trees", "lane", "of allowed", "waiting", "of allowed", "longest"], &[0], &rows);
    }
    out
}

fn row(of: &RequestFigures) -> Vec<String> {
    let found = match serde_json::to_value(of.method) {
        Ok(serde_json::Value::String(name)) => name.replace('_', "-"),
        _ => "-".to_owned(),
    };
    vec![
        clean(&of.name),
        of.sender.clone(),
        match &of.receivers[..] {
            [one] => one.host.clone(),
            all => count_of(all.len(), "host"),
        },
        of.size_max_bytes.to_string(),
        time(of.period_min_ns),
        of.trees.len().to_string(),
        format!("{found}{}", if of.proved_cheapest { "*" } else { "" }),
        format!("{} .. {}", time(of.overall.latency_min_ns), time(of.overall.latency_max_ns)),
        time(of.overall.jitter_max_ns),
        time(of.overall.timeout_ns),
    ]
}
