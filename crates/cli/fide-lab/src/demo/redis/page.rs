// SPDX-License-Identifier: Apache-2.0
//! The run as a self-contained HTML page.

use std::{fmt::Write, fs, path::Path};

use anyhow::Context;

use super::{chart, gap::Gap, outcome::Outcome};
use crate::demo::page::{STYLE, escaped, table};

/// Writes the page, and its drawing beside it.
pub(super) fn write(path: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let svg = chart::draw(outcome)?;
    for (path, text) in [(path.with_extension("svg"), &svg), (path.to_owned(), &html(outcome, &svg))] {
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn row(gap: &Gap) -> Vec<String> {
    let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
    let mut row = vec![gap.what(), format!("h{}", gap.next), ms(gap.total_ns())];
    row.extend(gap.stages_ns().map(ms));
    row.push(format!("{:.1} s", gap.back_ns.saturating_sub(gap.lost_ns) as f64 / 1e9));
    row
}

fn html(outcome: &Outcome, svg: &str) -> String {
    let machine = &outcome.machine;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>fide-lab demo redis</title>\n\
         <style>{STYLE}</style>\n<main>\n<h1>Redis, leader after leader lost</h1>\n\
         <p>{} redis-servers with the module (protocol {}), on {}, {} cores{}, Linux {}, {}</p>\n\
         <figure>{svg}</figure>\n",
        outcome.digests.len(),
        outcome.protocol,
        escaped(&machine.cpu),
        machine.cores,
        if machine.hypervisor { " in a virtual machine" } else { "" },
        escaped(&machine.kernel),
        escaped(&machine.os),
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<h2>Each gap, in milliseconds</h2>\n<p>detect: until the next leader's host knows of the loss. level: until it \
         has everything that was decided. lead: until its server takes writes. first write: until its first unit is \
         decided. client: until a client, which found it as with Sentinel, has an acknowledgement.</p>"
    );
    let mut head = vec!["the leader", "next", "gap"];
    head.extend(Gap::STAGES);
    head.push("back after");
    let rows: Vec<Vec<String>> = outcome.gaps.iter().map(row).collect();
    table(&mut out, &head, rows.iter().map(Vec::as_slice));
    let _ = writeln!(out, "<h2>What has to hold</h2>\n<table class=\"said\">");
    for check in outcome.checks() {
        let (class, word) = if check.held { ("ok", "held") } else { ("broken", "DID NOT HOLD") };
        let _ = writeln!(
            out,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td>{}</td></tr>",
            escaped(check.name),
            escaped(&check.seen)
        );
    }
    let _ = writeln!(
        out,
        "</table>\n<footer>Times are CLOCK_MONOTONIC of one machine, whose network namespaces play the hosts.</footer>\
         \n</main>\n</html>"
    );
    out
}
