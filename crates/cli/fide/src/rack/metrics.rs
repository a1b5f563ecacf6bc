// SPDX-License-Identifier: Apache-2.0
//! `fide rack metrics`: a monitor's counts as Prometheus text.

use std::{fmt::Write, path::PathBuf, process::ExitCode};

use super::{
    place::candidates,
    view::{self, Link, Partition, Shown},
};
use crate::{exit::Done, say::show_text};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The monitor's socket; by default as `fide rack run` looks for it
    #[arg(long, value_name = "PATH")]
    monitor: Option<PathBuf>,
}

fn text(shown: &Shown) -> String {
    let counts = &shown.counts;
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP fide_rack_{name} {help}\n# TYPE fide_rack_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(out, "fide_rack_{name}{labels} {value}");
        }
    };
    let one = |value: u64| vec![(String::new(), value)];
    metric("asked_total", "counter", "Ends of connections that have asked for the other end.", &one(counts.asked));
    metric("paired_total", "counter", "Connections whose two ends were sent memory.", &one(counts.paired));
    let mut refused: Vec<_> =
        counts.refused.iter().map(|(why, count)| (format!("{{why=\"{why}\"}}"), *count)).collect();
    refused.sort_unstable();
    metric("refused_total", "counter", "Ends that stay with TCP, as the monitor refused.", &refused);
    metric("taken_back_total", "counter", "Questions that their program has taken back.", &one(counts.taken_back));
    let help = "Programs that were sent away: too many, or of a user that is not served.";
    metric("sent_away_total", "counter", help, &one(counts.sent_away));
    metric("programs", "gauge", "Programs that are connected to the monitor.", &one(counts.programs));
    metric("waiting", "gauge", "Ends whose other end has not asked.", &one(counts.waiting));
    if !shown.links.is_empty() {
        let of_link = |value: fn(&Link) -> u64| {
            shown.links.iter().map(|link| (format!("{{link={}}}", quoted(&link.name)), value(link))).collect::<Vec<_>>()
        };
        let of_partition = |value: fn(&Partition) -> u64| {
            let each = |link: &Link| {
                let name = quoted(&link.name);
                let label = |number| format!("{{link={name},partition=\"{number}\"}}");
                link.partitions.iter().enumerate().map(|(number, of)| (label(number), value(of))).collect::<Vec<_>>()
            };
            shown.links.iter().flat_map(each).collect::<Vec<_>>()
        };
        metric("link_up", "gauge", "Whether a link to another host stands.", &of_link(|link| link.is_up.into()));
        metric("link_rises_total", "counter", "How often a link has come to stand.", &of_link(|link| link.rises));
        let help = "Ends of this host that wait for those of the other one.";
        metric("link_waiting", "gauge", help, &of_link(|link| link.waiting as u64));
        let help = "Connections of a partition of a link.";
        metric("link_connections", "gauge", help, &of_partition(|of| of.connections as u64));
        let help = "Bytes that a partition has sent since its link stands.";
        metric("link_sent_bytes_total", "counter", help, &of_partition(|of| of.sent_bytes));
        let help = "Bytes that a partition has received since its link stands.";
        metric("link_received_bytes_total", "counter", help, &of_partition(|of| of.received_bytes));
    }
    metric("up_seconds", "gauge", "Time since the monitor began.", &one(shown.up_ms / 1000));
    out
}

/// As the value of a label.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (_, _, shown) = view::first(&candidates(arguments.monitor.as_deref()))?;
    show_text(&text(&shown))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_prometheus_text() {
        let counts = view::counts(&fide_rack::meet::seen::Counts { asked: 5, paired: 2, ..Default::default() });
        let shown = Shown {
            is_of_all: true,
            up_ms: 61_500,
            counts,
            programs: Vec::new(),
            paired: Vec::new(),
            single: Vec::new(),
            links: vec![Link {
                name: "to b".into(),
                is_up: true,
                why: None,
                rises: 3,
                waiting: 0,
                partitions: vec![Partition { connections: 2, sent_bytes: 70, received_bytes: 9 }],
            }],
        };
        let text = text(&shown);
        for line in [
            "fide_rack_link_up{link=\"to b\"} 1",
            "fide_rack_link_rises_total{link=\"to b\"} 3",
            "fide_rack_link_connections{link=\"to b\",partition=\"0\"} 2",
            "fide_rack_link_sent_bytes_total{link=\"to b\",partition=\"0\"} 70",
            "fide_rack_asked_total 5",
            "fide_rack_paired_total 2",
            "fide_rack_refused_total{why=\"full\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        assert!(text.lines().any(|line| line == "fide_rack_up_seconds 61"), "{text}");
    }
}
