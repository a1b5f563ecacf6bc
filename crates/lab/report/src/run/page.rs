// SPDX-License-Identifier: Apache-2.0
//! The page.

mod compare;
mod findings;
mod run;
mod tables;

use crate::run::html::Html;
use crate::run::model::Report;
use crate::text::Text;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// The four stamps, and how to read the parts of the page that are not explained where they stand.
const NOTES: [(&str, &str); 6] = [
    (
        "ts1, ts2, ts3, ts4",
        "Host A takes ts1 just before it sends a packet, B takes ts2 when it has received it and ts3 just before it answers, \
         A takes ts4 when it has received the answer.",
    ),
    ("Jitter", "The longest time minus the shortest, over all packets, not only up to some percentile."),
    (
        "Dots",
        "Of many packets side by side, the slowest and the fastest are drawn, so that no extreme is \
         missing; the band behind them holds 98% of all. Where an axis is shaded it is logarithmic, so that a few far packets do not flatten the rest.",
    ),
    (
        "1 - F",
        "The share of packets that took longer. At the right end is the maximum, at the height of one packet in all.",
    ),
    (
        "Violation probability",
        "X-Lane's metric: P1 <= s^2 / (l - avg)^2 for one packet above the limit l, 1 - (1 - P1)^N for one among N. It takes \
         latencies to be independent and identically distributed. It is a rough bound, useful to \
         compare runs: it is large for every run with a tail.",
    ),
    (
        "Extreme-value bound",
        "Peaks over a threshold, fitted by a generalized Pareto distribution, and continued to packets not seen yet. If no \
         threshold fits, the reason is given instead of a bound.",
    ),
];

/// The report on these runs: a whole HTML page that needs nothing else.
pub fn render<'a>(report: impl Into<Report<'a>>) -> String {
    let Report { runs, disturbances } = report.into();
    let mut html = Html::default();
    let title = match runs {
        [] => "Jitter report".to_owned(),
        [run] => format!("Jitter report: {}", run.name),
        runs => format!("Jitter report: {} runs", runs.len()),
    };
    // The page must not load anything, whatever is in a log.
    html.raw(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n",
    );
    html.element("title", &title);
    html.put(format_args!("<style>\n{STYLE}</style></head>\n<body><main>\n"));
    html.element("h1", &title);
    match runs {
        [] => {
            html.element("p class=\"remark\"", "There is no run to report on.");
        }
        [run] => run::write(run, 0, "h2", &mut html),
        runs => {
            html.raw("<nav><ol>\n");
            for (i, run) in runs.iter().enumerate() {
                html.put(format_args!("<li><a href=\"#run{i}\">{}</a></li>\n", Text(&run.name)));
            }
            html.raw("</ol></nav>\n");
            if let Some(disturbances) = disturbances {
                findings::disturbances(disturbances, runs, &mut html);
            }
            compare::write(runs, &mut html);
            for (i, run) in runs.iter().enumerate() {
                html.put(format_args!("<section class=\"run\" id=\"run{i}\">\n"));
                html.element("h2", &format!("{}. {}", i + 1, run.name));
                run::write(run, i, "h3", &mut html);
                html.raw("</section>\n");
            }
        }
    }
    html.raw("<section id=\"notes\">\n").element("h2", "How to read this").raw("<dl>\n");
    for (term, words) in NOTES {
        html.element("dt", term).element("dd", words);
    }
    html.raw("</dl></section>\n</main>\n<div id=\"tip\" hidden></div>\n");
    html.put(format_args!("<script>\n{SCRIPT}</script>\n</body></html>\n"));
    html.0
}
