// SPDX-License-Identifier: Apache-2.0
//! A self-contained HTML page.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::{
    plot,
    results::{DEATHS_HEAD, Expectation, Results},
};

pub(super) const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; color: #222b33; background: #eef1f3; margin: 0; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 32px 0 8px; }
p { margin: 4px 0 12px; max-width: 50em; }
figure { margin: 16px 0; background: #fff; border-radius: 8px; padding: 8px; box-shadow: 0 1px 3px #0002; }
figure svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; background: #fff; border-radius: 8px; box-shadow: 0 1px 3px #0002; width: 100%; }
th, td { text-align: right; padding: 4px 12px; border-top: 1px solid #e3e7ea; font-variant-numeric: tabular-nums; }
tr:first-child th { border-top: 0; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
table.said td, table.said th { text-align: left; }
.ok { color: #1c824a; font-weight: 600; } .broken { color: #b82a2a; font-weight: 600; }
footer { color: #6f7b84; font-size: 13px; margin-top: 32px; }
";

/// Writes the page, and each drawing beside it.
pub(super) fn write(path: &Path, results: &Results) -> anyhow::Result<()> {
    let mut drawings: Vec<(&str, String)> = vec![("deaths", plot::deaths(&results.deaths)?)];
    if !results.silences.is_empty() {
        drawings.push(("silences", plot::silences(&results.silences)?));
    }
    if let Some(timeline) = &results.timeline {
        drawings.push(("timeline", plot::timeline(timeline)?));
    }
    for (name, svg) in &drawings {
        let beside: PathBuf = path.with_file_name(format!("{name}.svg"));
        fs::write(&beside, svg).with_context(|| format!("writing {}", beside.display()))?;
    }
    fs::write(path, html(results, &drawings)).with_context(|| format!("writing {}", path.display()))
}

fn html(results: &Results, drawings: &[(&str, String)]) -> String {
    let machine = &results.machine;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>fide-lab demo</title>\n<style>{STYLE}</style>\n\
         <main>\n<h1>fide-lab demo</h1>\n<p>{}, {} cores{}, Linux {}, {}</p>\n",
        escaped(&machine.cpu),
        machine.cores,
        if machine.hypervisor { " in a virtual machine" } else { "" },
        escaped(&machine.kernel),
        escaped(&machine.os),
    );
    let broken = results.broken().count();
    // Writing to a string cannot fail.
    let _ = match broken {
        0 => writeln!(out, "<p class=\"ok\">All {} expectations held.</p>", results.expectations.len()),
        _ => writeln!(
            out,
            "<p class=\"broken\">{broken} of {} expectations did not hold.</p>",
            results.expectations.len()
        ),
    };
    for (_, svg) in drawings {
        let _ = writeln!(out, "<figure>{svg}</figure>");
    }
    let _ = writeln!(
        out,
        "<h2>A process dies</h2>\n<p>pidfd runs on the host of the dying process; Fide and TCP FIN notify another host. \
         All three watch the same death.</p>"
    );
    table(&mut out, &DEATHS_HEAD, Results::rows(&results.deaths).iter().map(<[String; 8]>::as_slice));
    if !results.silences.is_empty() {
        let _ = writeln!(
            out,
            "<h2>A host falls silent</h2>\n<p>Beyond the timeout can be a little below zero: the timeout counts from the \
             last heartbeat, which is up to one heartbeat older than the event.</p>"
        );
        let mut head = DEATHS_HEAD;
        head[..2].copy_from_slice(&["how", "time"]);
        table(&mut out, &head[..7], Results::rows(&results.silences).iter().map(|row| &row[..7]));
    }
    let _ = writeln!(out, "<h2>Being right</h2>\n<table class=\"said\">");
    for Expectation { expected, held, seen } in &results.expectations {
        let (class, word) = if *held { ("ok", "held") } else { ("broken", "DID NOT HOLD") };
        let _ = writeln!(
            out,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td>{}</td></tr>",
            escaped(expected),
            escaped(seen)
        );
    }
    for note in &results.notes {
        let _ = writeln!(out, "<tr><td>note</td><td colspan=\"2\">{}</td></tr>", escaped(note));
    }
    let _ = writeln!(out, "</table>\n<h2>Setup</h2>\n<table class=\"said\">");
    for (name, value) in &results.setup {
        let _ = writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), shown(value));
    }
    let _ = writeln!(
        out,
        "</table>\n<footer>Times are CLOCK_MONOTONIC of one machine, whose network namespaces play the hosts.</footer>\
         \n</main>\n</html>"
    );
    out
}

/// A setting as text.
fn shown(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(parts) => {
            let parts: Vec<String> =
                parts.iter().map(|(name, part)| format!("{}: {}", escaped(name), shown(part))).collect();
            parts.join("<br>")
        }
        serde_json::Value::Array(parts) => parts.iter().map(shown).collect::<Vec<_>>().join("; "),
        serde_json::Value::String(text) => escaped(text),
        other => other.to_string(),
    }
}

pub(super) fn table<'a>(out: &mut String, head: &[&str], rows: impl Iterator<Item = &'a [String]>) {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
    };
    let _ = writeln!(out, "<table>\n<tr>{}</tr>", cells("th", &mut head.iter().copied()));
    for row in rows {
        let _ = writeln!(out, "<tr>{}</tr>", cells("td", &mut row.iter().map(String::as_str)));
    }
    out.push_str("</table>\n");
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
