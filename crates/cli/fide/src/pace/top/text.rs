// SPDX-License-Identifier: Apache-2.0
//! A view of connections for people.

use std::fmt::Write;

use fide_cli::units::time;
use fide_pace_socket::{Paces, Snapshot, Step};

use super::{Change, View};

const NOTHING: &str = "no program of this user shows a connection of X-PACE; `fide pace` commands do, and others \
                                  that are started with FIDE_PACE_SHOW=1";

/// An endpoint that has not written for so long stands still.
const STILL_NS: u64 = 2_000_000_000;

/// Bits a second, with the unit that fits.
fn rate(bytes_per_s: u64) -> String {
    match bytes_per_s as f64 * 8.0 {
        bits if bits < 1e6 => format!("{:.0} kbit/s", bits / 1e3),
        bits if bits < 1e9 => format!("{:.2} Mbit/s", bits / 1e6),
        bits => format!("{:.2} Gbit/s", bits / 1e9),
    }
}

/// The five steps, the slowest one in brackets.
fn steps(paces: &Paces) -> String {
    let slowest = paces.bottleneck().map(|(step, _)| step);
    let says = |step: Step| {
        let pace = match paces.get(step) {
            0 => "-".to_owned(),
            ns => time(ns as f64),
        };
        let (open, close) = if slowest == Some(step) { ('[', ']') } else { (' ', ' ') };
        format!("{open}{} {pace}{close}", step.name())
    };
    Step::ALL.map(|step| format!("{:<19}", says(step))).concat().trim_end().to_owned()
}

fn path(change: &Change<'_>) -> String {
    let Snapshot { network_bytes_per_s, round_trip_us, shortest_us, .. } = *change.now;
    let network = network_bytes_per_s.map_or("rate unknown".to_owned(), rate);
    let us = |us: u64| time(us as f64 * 1e3);
    let trip = round_trip_us.zip(shortest_us).map_or("round trip unknown".to_owned(), |(mean, shortest)| {
        format!("round trip {}, queue {}", us(mean), us(mean.saturating_sub(shortest)))
    });
    let loss = change.loss().map_or("loss unknown".to_owned(), |loss| format!("loss {:.2} %", loss * 100.0));
    let departures = if change.now.written_ahead_ns > 0 { ", times kept by the kernel" } else { "" };
    format!("{network}, {trip}, {loss}, {} bytes under way{departures}", change.now.in_flight_bytes)
}

/// What the two ways take, and the other end's clock, by which they are known.
fn clocks(now: &Snapshot) -> Option<String> {
    let (ahead_us, uncertainty_us) = now.clock_ahead_us.zip(now.clock_uncertainty_us)?;
    let us = |us: u64| time(us as f64 * 1e3);
    let way = |name: &str, mean: Option<u64>| mean.map_or(String::new(), |mean| format!("{name} {}, ", us(mean)));
    let (there, here) = (way("there", now.one_way_us), way("here", now.one_way_here_us));
    let side = if ahead_us < 0 { "behind" } else { "ahead" };
    let (clock, unsure) = (us(ahead_us.unsigned_abs()), us(uncertainty_us));
    let gains = now.drift_ppm;
    Some(format!(
        "{there}{here}each by at most {unsure} more or less; the clock there is {clock} {side}, and gains {gains} us a second"
    ))
}

/// A count, and how often a second it grows.
fn count(change: &Change<'_>, of: impl Fn(&Snapshot) -> u64) -> String {
    match change.per_second(&of) {
        Some(per_second) => format!("{} ({per_second:.0}/s)", of(change.now)),
        None => of(change.now).to_string(),
    }
}

fn sent(change: &Change<'_>) -> String {
    format!(
        "{} messages, {} dropped as too late, {} waiting; {} packets of redundancy, {} again",
        count(change, |of| of.counts.sent.messages),
        count(change, |of| of.counts.sent.dropped),
        change.now.waiting_to_leave,
        count(change, |of| of.counts.sent.redundancy),
        count(change, |of| of.counts.sent.again),
    )
}

fn received(change: &Change<'_>) -> String {
    format!(
        "{} messages, {} lost, {} of them late, {} waiting; {} packets restored",
        count(change, |of| of.counts.received.delivered),
        count(change, |of| of.counts.received.lost),
        change.now.counts.received.late,
        change.now.waiting_here,
        count(change, |of| of.counts.received.restored),
    )
}

/// A connection: both directions, as far as something went there.
fn connection(out: &mut String, change: &Change<'_>) {
    let now = change.now;
    let mut line = |name: &str, text: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {name:<9}{text}");
    };
    let has_received = now.counts.received.delivered + now.counts.received.lost > 0;
    if now.counts.sent.messages > 0 || !has_received {
        line("out", &steps(&now.there));
        line("sent", &format!(" {}", sent(change)));
    }
    if has_received {
        line("in", &steps(&now.back));
        line("received", &format!(" {}", received(change)));
    }
    line("path", &format!(" {}", path(change)));
    if let Some(clocks) = clocks(now) {
        line("ways", &format!(" {clocks}"));
    }
}

/// All connections, without a line end.
pub(super) fn text(view: &View, before: Option<&View>) -> String {
    let mut out = String::new();
    for endpoint in &view.shown.endpoints {
        for shown in &endpoint.shown {
            let change = Change::new(endpoint, shown.id, &shown.snapshot, before);
            let over = if shown.snapshot.is_over { ", over" } else { "" };
            let still_ns = view.at_ns.saturating_sub(endpoint.written_ns);
            let still = if still_ns > STILL_NS {
                format!(", has stood still for {} s", still_ns / 1_000_000_000)
            } else {
                String::new()
            };
            let _ = writeln!(
                out,
                "{} ({}), {} to {}{over}{still}",
                endpoint.program, endpoint.pid, endpoint.local, shown.peer
            );
            connection(&mut out, &change);
        }
        let more = endpoint.connections.saturating_sub(endpoint.shown.len() as u64);
        if endpoint.shown.is_empty() || more > 0 {
            let _ = writeln!(
                out,
                "{} ({}) at {}: {more} {}connections",
                endpoint.program,
                endpoint.pid,
                endpoint.local,
                if endpoint.shown.is_empty() { "" } else { "more " }
            );
        }
    }
    for pid in &view.shown.of_other_versions {
        let _ =
            writeln!(out, "process {pid} has endpoints of another version of Fide; use the `fide` that came with it");
    }
    if out.is_empty() {
        out.push_str(NOTHING);
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_step_stands_in_brackets() {
        let mut paces = Paces::default();
        paces.set(Step::Send, 12_000);
        paces.set(Step::Network, 5_000_000);
        assert_eq!(
            steps(&paces).split_whitespace().collect::<Vec<_>>().join(" "),
            "send 12.0 us transmit - [network 5.00 ms] receive - deliver -"
        );
        assert_eq!(steps(&Paces::default()).matches('[').count(), 0);
    }

    #[test]
    fn ways_are_shown_with_what_is_unsure() {
        let now = Snapshot {
            clock_ahead_us: Some(-2000),
            clock_uncertainty_us: Some(15),
            drift_ppm: 7,
            ..Snapshot::default()
        };
        let unsure = "each by at most 15.0 us more or less; the clock there is 2.00 ms behind, and gains 7 us a second";
        assert_eq!(clocks(&now).unwrap(), unsure);
        let now = Snapshot { one_way_us: Some(18_000), one_way_here_us: Some(15_000), ..now };
        assert_eq!(clocks(&now).unwrap(), format!("there 18.00 ms, here 15.00 ms, {unsure}"));
        assert_eq!(clocks(&Snapshot::default()), None);
    }

    #[test]
    fn losses_and_rates_are_since_the_view_before() {
        let before = Snapshot { lost_packets: 10, came_packets: 90, ..Snapshot::default() };
        let now = Snapshot { lost_packets: 11, came_packets: 139, ..Snapshot::default() };
        let change = Change { now: &now, before: Some((0.5, &before)) };
        assert_eq!(change.loss(), Some(0.02));
        assert_eq!(change.per_second(|of| of.came_packets), Some(98.0));
        let first = Change { now: &before, before: None };
        assert_eq!((first.loss(), first.per_second(|of| of.came_packets)), (Some(0.1), None));
        assert_eq!(Change { now: &Snapshot::default(), before: None }.loss(), None);
        assert!(path(&change).contains("loss 2.00 %"), "{}", path(&change));
        assert!(path(&change).ends_with("under way"), "{}", path(&change));
        let by_kernel = Snapshot { written_ahead_ns: 1, ..now };
        assert!(path(&Change { now: &by_kernel, before: None }).ends_with("under way, times kept by the kernel"));
    }
}
