// SPDX-License-Identifier: Apache-2.0
//! A bench for people.

use std::fmt::Write;

use super::{Part, Percentiles, Whole};

fn ms(us: u64) -> String {
    format!("{:.2}", us as f64 / 1e3)
}

fn mbit(bytes_per_s: Option<u64>) -> String {
    bytes_per_s.map_or("?".to_owned(), |rate| format!("{:.2}", rate as f64 * 8.0 / 1e6))
}

/// One part on one line.
pub(super) fn part(part: &Part) -> String {
    let tally = &part.tally;
    let all = tally.delivered + tally.missing;
    format!(
        "{:>6.1} s  {:>6} messages, {} lost; delivery p50 {} p99 {} ms; slowest {}; network {} Mbit/s, round trip {} ms",
        part.at_s,
        all,
        tally.missing,
        ms(tally.delivery.p50_us),
        ms(tally.delivery.p99_us),
        part.bottleneck.unwrap_or("?"),
        mbit(part.network_bytes_per_s),
        part.round_trip_us.map_or("?".to_owned(), ms),
    )
}

fn percentiles(of: &Percentiles) -> String {
    format!(
        "p1 {}, p50 {}, p99 {}, p99.9 {}, longest {} ms",
        ms(of.p1_us),
        ms(of.p50_us),
        ms(of.p99_us),
        ms(of.p999_us),
        ms(of.longest_us)
    )
}

/// The whole run.
pub(super) fn whole(of: &Whole) -> String {
    let share = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let per_second = of.sent as f64 / of.seconds.max(1e-9);
    let refused = if of.refused > 0 { format!(", {} found no room", of.refused) } else { String::new() };
    let mut slowest: Vec<(f64, &String)> =
        of.bottleneck.iter().map(|(step, share)| (share.as_f64().unwrap_or(0.0), step)).collect();
    slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
    let slowest: Vec<String> = slowest.iter().map(|(share, step)| format!("{step} {:.0} %", share * 100.0)).collect();
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<18}{text}");
    };
    line(
        "sent",
        &format!(
            "{} messages of {} bytes in {:.1} s, {per_second:.1} a second, {:.2} Mbit/s{refused}",
            of.sent,
            of.size,
            of.seconds,
            per_second * f64::from(of.size) * 8.0 / 1e6
        ),
    );
    line(
        "delivered",
        &format!("{}; {} lost ({:.2} %), {} of them late", of.delivered, of.lost, share(of.lost, of.sent), of.late),
    );
    line("delivery", &percentiles(&of.delivery));
    line("", &format!("each by at most {} ms more or less: the two hosts' clocks", ms(of.uncertainty_us)));
    line("between sendings", &percentiles(&of.between_sent));
    line("between deliveries", &format!(" {}", percentiles(&of.between_delivered)));
    let seconds = |us: u64| us as f64 / 1e6;
    let over = of.optimum.whole_over_optimum.zip(of.optimum.optimum_us).map_or(String::new(), |(over, optimum_us)| {
        format!(", {over:.3} of the {:.2} s that the {} takes at least", seconds(optimum_us), of.optimum.of)
    });
    line("first to last", &format!("{:.2} s{over}", seconds(of.whole_us)));
    line("slowest step", &if slowest.is_empty() { "unknown".to_owned() } else { slowest.join(", ") });
    line(
        "network",
        &format!(
            "{} Mbit/s, round trip {} ms, shortest {} ms; {} of {} packets lost; {} of redundancy, {} sent again",
            mbit(of.network_bytes_per_s),
            of.round_trip_us.map_or("?".to_owned(), ms),
            of.shortest_us.map_or("?".to_owned(), ms),
            of.lost_packets,
            of.packets,
            of.redundancy,
            of.again
        ),
    );
    out.truncate(out.trim_end().len());
    out
}
