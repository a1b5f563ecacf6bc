// SPDX-License-Identifier: Apache-2.0
//! A survey as a file of the planner.

use std::fmt::Write;

use fide_planner::topology::CableSpec;

use crate::figures::{Figure, Given, Source};
use crate::survey::Survey;

#[cfg(test)]
mod tests;

/// The survey in the format of [`fide_planner::file`], with a comment that names the source of each figure.
#[must_use]
pub fn write(survey: &Survey, given: &Given) -> String {
    let mut s = String::from("# What was discovered by `fide controller discover`.\n");
    for odd in &survey.odd {
        // A comment ends with its line; text from others contains no line ends.
        let _ = writeln!(s, "# odd: {odd}");
    }
    let usual = CableSpec::default();
    s += "\n[cables]\n";
    let mut key = |key: &str, figure: Figure, what: &str| {
        let _ = writeln!(s, "{key} = {} # {}{what}", figure.value, figure.source);
    };
    let unless = ", where a cable's ports tell none";
    key("bandwidth_bps", Figure::or(None, given.bandwidth_bps, usual.bandwidth_bps), unless);
    key("queue_bytes", Figure::or(None, given.queue_bytes, usual.queue_bytes), unless);
    survey.latencies.named().into_iter().for_each(|(name, figure)| key(name, figure, ""));
    for host in &survey.hosts {
        let _ = writeln!(s, "\n[[host]]\nname = \"{host}\"");
    }
    for switch in &survey.switches {
        let _ = writeln!(s, "\n[[switch]]\nname = \"{switch}\"");
    }
    for cable in &survey.cables {
        let (a, b) = (&cable.a, &cable.b);
        let _ = writeln!(s, "\n[[cable]]\na = \"{}\"\na_port = \"{}\"", a.node, a.port);
        let _ = writeln!(s, "b = \"{}\"\nb_port = \"{}\"", b.node, b.port);
        for (name, figure) in [("bandwidth_bps", cable.bandwidth_bps), ("queue_bytes", cable.queue_bytes)] {
            if ![Source::Given, Source::Assumed].contains(&figure.source) {
                let _ = writeln!(s, "{name} = {} # {}", figure.value, figure.source);
            }
        }
    }
    s
}
