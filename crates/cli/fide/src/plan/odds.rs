// SPDX-License-Identifier: Apache-2.0
//! `fide plan --odds`: FiDe App. C and the last column of Table 3; or the same for the trees of a file.

use std::process::ExitCode;

use fide_planner::odds::{Rates, tcp_errors};
use fide_report::{
    plan::Figures,
    text::clean,
    units::{long_time, probability, years},
};
use serde_json::json;

use crate::columns::columns;
use crate::exit::Done;
use crate::say::{show, show_text};

/// Heights of Table 3, with the published years between critical compound failures.
const PUBLISHED: [(u32, f64); 3] = [(1, 22.7), (2, 11.3), (3, 6.0)];
/// Number of processes in Table 3.
const PROCESSES: u32 = 2;
/// The shortest period of FiDe's evaluation.
const PERIOD_NS: u64 = 20_000;
/// Where the computed and the published figures differ, and why.
const NOTES: [&str; 2] = [
    "height 1: the published 22.7 is 1 / 0.044, rounded before it was inverted",
    "the published closed formula, (max(H-2, 0) p_cr + max(H-1, 0) p_tr) n p_g, gives 0 for height 1; its derivation and all \
     published figures fit (max(H-2, 0) p_cr + min(H, 2) p_tr) n p_g, which is used here",
];

/// The published times between two errors that TCP lets through: the shortest and the longest.
const TCP_PUBLISHED: [&str; 2] = ["320 s", "2.3 days"];

pub(super) fn published(as_json: bool) -> Done {
    let rates = Rates::default();
    let tcp = tcp_errors(PERIOD_NS);
    let of = |height| rates.fat_tree(PROCESSES, height);
    if as_json {
        let heights: Vec<_> = PUBLISHED
            .iter()
            .map(|(height, published)| {
                let p = of(*height);
                json!({ "height": height, "probability_per_year": p, "years_between": 1.0 / p,
                        "published_years_between": published })
            })
            .collect();
        show!(
            "{:#}",
            json!({ "format": "fide-plan-odds", "version": 1, "processes": PROCESSES, "rates": rates, "heights": heights,
                    "tcp": { "period_ns": PERIOD_NS, "soonest_s": tcp.soonest_s, "latest_s": tcp.latest_s,
                             "published": TCP_PUBLISHED },
                    "notes": NOTES })
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    show!("All trees of {PROCESSES} processes in a fat tree fail together (FiDe App. C, Table 3); two trees\n")?;
    let rows: Vec<Vec<String>> = PUBLISHED
        .iter()
        .map(|(height, published)| {
            let p = of(*height);
            let notes = if *height == 1 { "[1] [2]" } else { "" };
            vec![height.to_string(), probability(p), years(1.0 / p), format!("{published} years"), notes.to_owned()]
        })
        .collect();
    show_text(&columns(&["height", "per year", "once in", "published", ""], &[0, 4], &rows))?;
    show!(
        "\nTCP lets an error through, at one packet every {} us: once in {} to {} (published: {} to {})\n",
        PERIOD_NS / 1000,
        long_time(tcp.soonest_s),
        long_time(tcp.latest_s),
        TCP_PUBLISHED[0],
        TCP_PUBLISHED[1]
    )?;
    show!(
        "p_tr = {}, p_cr = {} per year, p_g = {} (Gill et al., SIGCOMM 2011)",
        rates.trunk_per_year,
        rates.core_per_year,
        rates.group
    )?;
    show!("[1] {}", NOTES[0])?;
    show!("[2] {}", NOTES[1])?;
    Ok(ExitCode::SUCCESS)
}

/// The odds of a file's requests, as text.
pub(super) fn of_plan(rates: &Rates, figures: &Figures) -> String {
    let rows: Vec<Vec<String>> = figures
        .requests
        .iter()
        .map(|request| {
            let cables = request.trees.iter().map(|tree| tree.links.len()).min().unwrap_or(0);
            vec![
                clean(&request.name),
                request.trees.len().to_string(),
                cables.to_string(),
                probability(request.odds.probability_per_year),
                request.odds.years_between.map_or("never".to_owned(), years),
            ]
        })
        .collect();
    format!(
        "\nall trees of a request fail together, at most (FiDe App. C; trunk {} and core {} per year, in groups {})\n{}",
        rates.trunk_per_year,
        rates.core_per_year,
        rates.group,
        columns(&["request", "trees", "cables of the smallest", "per year", "once in"], &[0], &rows)
    )
}
