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

/// Bytes with the unit that fits.
fn bytes(bytes: f64) -> String {
    match bytes {
        size if size < 1e3 => format!("{size:.0} B"),
        size if size < 1e6 => format!("{:.1} kB", size / 1e3),
        size if size < 1e9 => format!("{:.1} MB", size / 1e6),
        size => format!("{:.2} GB", size / 1e9),
    }
}

/// What connections have carried to the server and to the client: a second, where there is a view before. None: it is not to be seen.
#[derive(Default)]
struct Carried(Option<[f64; 2]>);

impl Carried {
    fn of(screen: &Screen, line: &Line, before: Option<&Screen>) -> Self {
        match before {
            Some(_) => Self(screen.per_s(line, before)),
            None => Self(line.carried.map(|carried| carried.map(|bytes| bytes as f64))),
        }
    }

    fn add(&mut self, other: Self) {
        if let Some([there, back]) = other.0 {
            let [there_before, back_before] = self.0.unwrap_or_default();
            self.0 = Some([there + there_before, back + back_before]);
        }
    }

    fn columns(&self, is_rate: bool) -> [String; 2] {
        let unit = if is_rate { "/s" } else { "" };
        self.0.map_or_else(|| ["-", "-"].map(str::to_owned), |carried| carried.map(|size| bytes(size) + unit))
    }
}

/// A line for each pair of programs, and reason.
fn grouped(screen: &Screen, before: Option<&Screen>) -> String {
    let mut groups: BTreeMap<(String, Over, &str), (usize, Carried)> = BTreeMap::new();
    for line in &screen.lines {
        let (count, carried) = groups.entry((programs(screen, line), line.over, line.why.as_str())).or_default();
        *count += 1;
        carried.add(Carried::of(screen, line, before));
    }
    let row = |((programs, over, why), (count, carried)): (&(String, Over, &str), &(usize, Carried))| {
        let [there, back] = carried.columns(before.is_some());
        vec![programs.clone(), count.to_string(), over.name().to_owned(), there, back, (*why).to_owned()]
    };
    let rows: Vec<_> = groups.iter().map(row).collect();
    columns(&["programs", "connections", "over", "there", "back", "why"], &[0, 2, 5], &rows)
}

fn each(screen: &Screen, before: Option<&Screen>) -> String {
    let row = |line: &Line| {
        let end = line.end.as_ref();
        let ends = end.map_or_else(String::new, |end| format!("{} → {}", end.local, end.peer));
        let [there, back] = Carried::of(screen, line, before).columns(before.is_some());
        let (over, why) = (line.over.name().to_owned(), line.why.clone());
        vec![programs(screen, line), ends, over, age(line.age_ms), there, back, why]
    };
    let rows: Vec<_> = screen.lines.iter().map(row).collect();
    columns(&["programs", "ends", "over", "for", "there", "back", "why"], &[0, 1, 2, 6], &rows)
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
        over(Over::Memory) + over(Over::Given) + over(Over::Link),
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
    for link in &screen.shown.links {
        let _ = match &link.why {
            Some(why) => write!(out, "\nlink {}: does not stand: {why}", link.name),
            None => {
                let sum = |of: fn(&super::view::Partition) -> u64| link.partitions.iter().map(of).sum::<u64>();
                let connections = sum(|of| of.connections as u64);
                let [sent, received] =
                    [sum(|of| of.sent_bytes), sum(|of| of.received_bytes)].map(|of| bytes(of as f64));
                write!(out, "\nlink {}: {connections} connections, {sent} sent, {received} received", link.name)
            }
        };
    }
    if !screen.shown.is_of_all {
        out.push_str("\nthe connections of this user's programs:");
    }
    out.push('\n');
    if screen.lines.is_empty() {
        out.push_str("no program has asked for a connection that stands; start programs with `fide rack run`");
    } else {
        out.push_str(&if is_each { each(screen, before) } else { grouped(screen, before) });
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_connections_are_summed_and_what_is_not_seen_is_left_out() {
        let mut sum = Carried::default();
        assert_eq!(sum.columns(true), ["-", "-"]);
        for carried in [Carried(Some([1500.0, 0.0])), Carried(None), Carried(Some([500.0, 2.5e9]))] {
            sum.add(carried);
        }
        assert_eq!(sum.columns(true), ["2.0 kB/s", "2.50 GB/s"]);
        assert_eq!(sum.columns(false)[0], "2.0 kB");
    }
}
