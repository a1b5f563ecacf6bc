// SPDX-License-Identifier: Apache-2.0
//! Times between packets at paces below a millisecond: packets leave one by one there, never in bursts. Beside them those of
//! a bare socket whose sender sleeps by a timer, over the same link: what the machine allows.
//!
//! A packet's time is when it enters the link. The link's thread has to be woken to see it, for both senders alike.
//!
//! At paces below 50 us packets leave in groups by design, as a thread is not woken for each of them; no such pace is here.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use fide_link_model::LinkSpec;
use fide_testbed::{
    Spec, Stops, Testbed,
    emulator::Emulator,
    figures::{Goal, Report},
};

use crate::{
    carriers::{BARE, Carrier, LEVEL, PACKET},
    flow::Scenario,
    found::figure,
};

/// Times of a packet on the link.
const PACES_US: [u64; 3] = [200, 500, 900];
/// Of each way.
const DELAY: Duration = Duration::from_millis(5);
/// Until the pace is known, two filter windows, and what is measured then.
const WARM: Duration = Duration::from_secs(4);
const STEADY: Duration = Duration::from_secs(4);
/// A packet with a message has so many bytes on the link at least: others are not paced like these.
const WITH_MESSAGE: usize = PACKET * 9 / 10;
/// The first hundredth of gaps is no shorter than this share of the pace, or some packets leave in bursts.
const LEAST: f64 = 0.5;
const NONE: Duration = Duration::ZERO;

/// Gaps in microseconds: 1st, 50th and 99th percentile, and the longest.
#[derive(Debug, Clone, Copy)]
struct Gaps {
    count: usize,
    us: [f64; 4],
}

impl Gaps {
    /// `times`: of packets and their bytes.
    fn of(times: &[(u64, usize)]) -> Result<Self> {
        let times: Vec<u64> =
            times.iter().filter(|(_, bytes)| *bytes >= WITH_MESSAGE).map(|(at_ns, _)| *at_ns).collect();
        let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        ensure!(gaps.len() >= 100, "{} packets with a message entered the link", times.len());
        gaps.sort_unstable();
        let last = gaps.len() - 1;
        Ok(Self {
            count: gaps.len(),
            us: [last / 100, last / 2, last * 99 / 100, last].map(|at| gaps[at] as f64 / 1e3),
        })
    }

    fn words(&self) -> String {
        let [p1, p50, p99, longest] = self.us;
        format!("p1 {p1:.0}, p50 {p50:.0}, p99 {p99:.0}, longest {longest:.0} us")
    }
}

/// Adds the figures.
pub(crate) fn measure(report: &mut Report, is_quick: bool) {
    let [warm, steady] = [WARM, STEADY].map(|time| if is_quick { time / 4 } else { time });
    for pace_us in PACES_US {
        let [ours, bare] = [LEVEL, BARE].map(|carrier| {
            let found = run(carrier, pace_us, warm, steady).map_err(|why| format!("{why:#}"));
            let words = found.as_ref().map_or_else(|why| format!("NOT MEASURED: {why}"), Gaps::words);
            println!("gaps      at a pace of {pace_us} us, {:17} {words}", carrier.name());
            found
        });
        let both =
            ours.as_ref().map_err(Clone::clone).and_then(|ours| Ok((ours, bare.as_ref().map_err(Clone::clone)?)));
        let n = ours.as_ref().map_or(0, |ours| ours.count);
        let said = both.as_ref().map(|(ours, bare)| {
            format!("{}; a bare sender's {}. Below 50 us packets leave in groups by design", ours.words(), bare.words())
        });
        let over = |gap: usize, of: f64| ours.as_ref().map(|ours| ours.us[gap] / of).map_err(Clone::clone);
        let least =
            figure(&format!("gaps_least_{pace_us}us"), "ratio", n, over(0, pace_us as f64)).goal(Goal::AtLeast(LEAST));
        report.add(match said {
            Ok(said) => least.remark(said),
            Err(_) => least,
        });
        for (name, gap) in [("most", 2), ("longest", 3)] {
            let vs = both.as_ref().map(|(ours, bare)| ours.us[gap] / bare.us[gap]).map_err(Clone::clone);
            report.add(figure(&format!("gaps_{name}_{pace_us}us_vs_bare"), "ratio", n, vs));
        }
    }
}

fn run(carrier: Carrier, pace_us: u64, warm: Duration, steady: Duration) -> Result<Gaps> {
    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) })?;
    #[allow(clippy::cast_possible_truncation, reason = "milliseconds")]
    let way = LinkSpec::of(DELAY.as_nanos() as u64);
    let there = way.with_rate(PACKET as u64 * 8_000_000 / pace_us, 180_000);
    let emulator = Emulator::between(testbed.host(1), testbed.host(2), [there, way], 7)?;
    let pace = Duration::from_micros(pace_us);
    let scenario = Scenario {
        name: "gaps",
        send_work: NONE,
        receive_work: NONE,
        send_buffer: 0,
        receive_buffer: 0,
        pace,
        least: DELAY + pace,
    };
    let to = SocketAddr::from((Emulator::address(1), 7000));
    let (mut send, mut receive) = carrier.open(testbed.host(1), testbed.host(2), to, &scenario)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &is_over;
        let _ends = Stops(stop);
        scope.spawn(move || {
            let mut message = vec![0; 2 * PACKET];
            // It ends with the sender, a while later.
            while !stop.load(Ordering::Relaxed) && receive(&mut message).is_some() {}
        });
        scope.spawn(move || {
            let message = vec![0; carrier.message_len()];
            while !stop.load(Ordering::Relaxed) && send(&message) {}
        });
        thread::sleep(warm);
        emulator.note_times(0);
        thread::sleep(steady);
    });
    Gaps::of(&emulator.take_times(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_between_packets_with_messages() {
        let mut times: Vec<(u64, usize)> = (0..1001).map(|at| (at * 200_000, PACKET)).collect();
        times[500].0 += 50_000;
        times.insert(3, (410_000, 60));
        let gaps = Gaps::of(&times).expect("enough");
        assert_eq!((gaps.count, gaps.us), (1000, [200.0, 200.0, 200.0, 250.0]));
        assert!(Gaps::of(&times[..50]).is_err());
    }
}
