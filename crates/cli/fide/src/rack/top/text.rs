// SPDX-License-Identifier: Apache-2.0
//! A view for people.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use super::{Line, Over, Screen};
use crate::columns::columns;

fn age(ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(ms / 1000)).to_string()
}

fn programs(screen: &Screen, line: &Line) -> String {
    let client = screen.name(line.client);
    line.server.map_or(client.clone(), |server| format!("{client} → {}", screen.name(server)))
}

/// A line for each pair of programs, and reason.
fn grouped(screen: &Screen) -> String {
    let mut groups: BTreeMap<(String, Over, &str), usize> = BTreeMap::new();
    for line in &screen.lines {
        *groups.entry((programs(screen, line), line.over, line.why.as_str())).or_default() += 1;
    }
    let row = |((programs, over, why), count): (&(String, Over, &str), &usize)| {
        vec![programs.clone(), count.to_string(), over.name().to_owned(), (*why).to_owned()]
    };
    let rows: Vec<_> = groups.iter().map(row).collect();
    columns(&["programs", "connections", "over", "why"], &[0, 2, 3], &rows)
}

fn each(screen: &Screen) -> String {
    let row = |line: &Line| {
        let end = line.end.as_ref();
        let ends = end.map_or_else(String::new, |end| format!("{} → {}", end.local, end.peer));
        vec![programs(screen, line), ends, line.over.name().to_owned(), age(line.age_ms), line.why.clone()]
    };
    let rows: Vec<_> = screen.lines.iter().map(row).collect();
    columns(&["programs", "ends", "over", "for", "why"], &[0, 1, 2, 4], &rows)
}

/// All of it, without a line end.
pub(super) fn text(screen: &Screen, before: Option<&Screen>, is_each: bool) -> String {
    let (counts, greeting) = (&screen.shown.counts, &screen.greeting);
    let over = |over: Over| screen.lines.iter().filter(|line| line.over == over).count();
    let mut out = format!(
        "monitor {} (process {}, {}): {} programs; {} connections over memory, {} over TCP",
        screen.path.display(),
        greeting.pid,
        age(screen.shown.up_ms),
        counts.programs,
        over(Over::Memory) + over(Over::Given),
        over(Over::Tcp),
    );
    let refused: u64 = counts.refused.values().sum();
    let per_s = screen.paired_per_s(before).map_or_else(String::new, |rate| format!(" ({rate:.0}/s)"));
    // Writing to a string cannot fail.
    let _ = write!(out, "\nsince it began: {} connections paired{per_s}, {refused} ends refused", counts.paired);
    if counts.sent_away > 0 {
        let _ = write!(out, ", {} programs sent away", counts.sent_away);
    }
    if counts.forgotten > 0 {
        let _ = write!(out, ", {} connections forgotten: there are more than are shown", counts.forgotten);
    }
    if !screen.shown.is_of_all {
        out.push_str("\nthe connections of this user's programs:");
    }
    out.push('\n');
    if screen.lines.is_empty() {
        out.push_str("no program has asked for a connection that stands; start programs with `fide rack run`");
    } else {
        out.push_str(&if is_each { each(screen) } else { grouped(screen) });
    }
    out.truncate(out.trim_end().len());
    out
}
