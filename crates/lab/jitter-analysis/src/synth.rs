// SPDX-License-Identifier: Apache-2.0
//! Made-up runs with known disturbances, against which the analysis is tested.
//!
//! Each of the four stamps is taken by a server of its own that serves packets in order. A packet that is due
//! at a server waits until the previous packet is served and neither a disturbance nor a stall has the core.
//! Serving then takes a base time, a lognormal tail, and sometimes an outlier, which also keeps the server
//! busy. Once a packet is served, it is due at the next stamp's server.

use crate::sample::{MISSING, RunInfo, Sample, Samples, Schedule, Stamp};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, LogNormal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::f64::consts::TAU;

/// Something that takes a core for `duration_ns` every `period_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// The stamp that the disturbance delays.
    pub stamp: Stamp,
    /// T, ns.
    pub period_ns: f64,
    /// D, ns.
    pub duration_ns: f64,
    /// When the first window begins, ns after the run's start.
    pub phase_ns: f64,
    /// Each window begins later by up to this, evenly spread, ns. Must be below T - D.
    pub start_jitter_ns: f64,
    /// The period swings by this many millionths.
    pub drift_ppm: f64,
    /// Length of one swing of the period, ns.
    pub drift_cycle_ns: f64,
    /// Share of the windows that are left out.
    pub skipped: f64,
}

impl Disturbance {
    /// A disturbance without jitter, drift or skipped windows.
    pub fn new(stamp: Stamp, period_ns: f64, duration_ns: f64) -> Self {
        Disturbance {
            stamp,
            period_ns,
            duration_ns,
            phase_ns: 0.0,
            start_jitter_ns: 0.0,
            drift_ppm: 0.0,
            drift_cycle_ns: 3e11,
            skipped: 0.0,
        }
    }

    /// When window `k` would begin without jitter, ns.
    fn start(&self, k: u64) -> f64 {
        let even = self.phase_ns + k as f64 * self.period_ns;
        let swing = self.drift_ppm * 1e-6 * self.drift_cycle_ns / TAU;
        even + swing * (1.0 - (TAU * even / self.drift_cycle_ns).cos())
    }
}

/// Everything else that delays packets, by [`Stamp::index`] where it is an array. Times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Shortest time to serve a packet.
    pub base_ns: [f64; 4],
    /// Median of the lognormal part.
    pub tail_ns: [f64; 4],
    /// Sigma of the lognormal part.
    pub tail_sigma: f64,
    /// Share of packets that are random outliers.
    pub outliers: [f64; 4],
    /// An outlier is later by a time that is uniformly distributed between these.
    pub outlier_ns: (f64, f64),
    /// This share of the outliers has a Pareto tail instead (shape 1.2, from the lower end, 100 ms at most).
    pub heavy: f64,
    /// Stalls per second, at random times, of each server.
    pub stalls_per_s: f64,
    /// Range of a stall's length.
    pub stall_ns: (f64, f64),
    /// Bursts per second, at random times: for as long as a stall lasts, 30% of the packets are outliers.
    pub bursts_per_s: f64,
    /// Share of pings, and of pongs, that are lost.
    pub loss: f64,
}

impl Noise {
    /// A few microseconds of jitter with a lognormal tail, and nothing else.
    pub fn quiet() -> Self {
        Noise {
            base_ns: [300.0, 5000.0, 800.0, 5000.0],
            tail_ns: [700.0, 1500.0, 200.0, 1500.0],
            tail_sigma: 0.7,
            outliers: [0.0; 4],
            outlier_ns: (50_000.0, 500_000.0),
            heavy: 0.0,
            stalls_per_s: 0.0,
            stall_ns: (5e6, 5e7),
            bursts_per_s: 0.0,
            loss: 0.0,
        }
    }

    /// As on a shared host: 1% of outliers of 50 to 500 us, a stall of 5 to 50 ms every 20 s, a little loss.
    pub fn busy() -> Self {
        Noise { outliers: [0.01, 0.01, 0.001, 0.01], stalls_per_s: 0.05, loss: 1e-3, ..Noise::quiet() }
    }
}

/// The description of a run to make up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Sending interval, ns.
    pub period_ns: u64,
    /// When packets are due.
    pub schedule: Schedule,
    /// Number of packets.
    pub packets: u64,
    /// Periodic disturbances of the packets.
    pub disturbances: Vec<Disturbance>,
    /// Everything else that delays them.
    pub noise: Noise,
    /// B's clock against A's: offset in ns and drift in millionths; None if both have the same clock.
    pub clock: Option<(i64, f64)>,
    /// Seed of all randomness.
    pub seed: u64,
}

/// A made-up run.
#[derive(Debug, Clone, PartialEq)]
pub struct Synthetic {
    /// Its description.
    pub info: RunInfo,
    /// Its packets.
    pub samples: Samples,
    /// By disturbance: number of packets that it delayed.
    pub hits: Vec<u64>,
    /// By disturbance: number of windows in which it delayed a packet.
    pub windows_hit: Vec<u64>,
}

/// A disturbance as it advances from window to window.
struct Windows {
    what: Disturbance,
    index: usize,
    next: u64,
    from: f64,
    to: f64,
    counted: bool,
}

impl Windows {
    fn advance(&mut self, rng: &mut ChaCha8Rng) {
        let jitter = rng.random::<f64>() * self.what.start_jitter_ns;
        self.from = self.what.start(self.next) + jitter;
        let skip = self.what.skipped > 0.0 && rng.random::<f64>() < self.what.skipped;
        self.to = self.from + if skip { 0.0 } else { self.what.duration_ns };
        self.next += 1;
        self.counted = false;
    }
}

/// Intervals at random times, each of random length.
struct Random {
    gap: Option<Exp<f64>>,
    length: (f64, f64),
    from: f64,
    to: f64,
}

impl Random {
    fn new(per_s: f64, length: (f64, f64), rng: &mut ChaCha8Rng) -> Self {
        let gap = Exp::new(per_s / 1e9).ok().filter(|_| per_s > 0.0);
        let mut r = Random { gap, length, from: f64::INFINITY, to: f64::NEG_INFINITY };
        r.advance(0.0, rng);
        r
    }

    fn advance(&mut self, after: f64, rng: &mut ChaCha8Rng) {
        if let Some(gap) = self.gap {
            self.from = after + gap.sample(rng);
            self.to = self.from + between(self.length, rng);
        }
    }

    /// The end of the interval that contains `t`, if any.
    fn end(&mut self, t: f64, rng: &mut ChaCha8Rng) -> Option<f64> {
        while self.to <= t && self.gap.is_some() {
            self.advance(self.to, rng);
        }
        (self.from <= t).then_some(self.to)
    }
}

fn between((low, high): (f64, f64), rng: &mut ChaCha8Rng) -> f64 {
    low + rng.random::<f64>() * (high - low)
}

/// Takes one of the four stamps.
struct Server {
    index: usize,
    free: f64,
    windows: Vec<Windows>,
    stalls: Random,
    bursts: Random,
    tail: Option<LogNormal<f64>>,
    rng: ChaCha8Rng,
}

impl Server {
    fn new(stamp: Stamp, scenario: &Scenario) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(scenario.seed);
        rng.set_stream(stamp.index() as u64 + 1);
        let noise = &scenario.noise;
        let of_stamp = scenario.disturbances.iter().enumerate().filter(|(_, d)| d.stamp == stamp);
        let mut windows: Vec<Windows> = of_stamp
            .map(|(index, &what)| Windows { what, index, next: 0, from: 0.0, to: 0.0, counted: false })
            .collect();
        windows.iter_mut().for_each(|w| w.advance(&mut rng));
        Server {
            index: stamp.index(),
            free: f64::NEG_INFINITY,
            windows,
            stalls: Random::new(noise.stalls_per_s, noise.stall_ns, &mut rng),
            bursts: Random::new(noise.bursts_per_s, noise.stall_ns, &mut rng),
            tail: LogNormal::new(noise.tail_ns[stamp.index()].max(1e-3).ln(), noise.tail_sigma).ok(),
            rng,
        }
    }

    /// When a packet that is due at `due` is served.
    fn serve(&mut self, due: f64, noise: &Noise, hits: &mut [u64], windows_hit: &mut [u64]) -> f64 {
        let mut t = due.max(self.free);
        loop {
            let before = t;
            for w in &mut self.windows {
                while w.to <= t {
                    w.advance(&mut self.rng);
                }
                if w.from <= t {
                    t = w.to;
                    hits[w.index] += 1;
                    windows_hit[w.index] += u64::from(!w.counted);
                    w.counted = true;
                } else if w.counted && due < w.to && due >= w.from {
                    hits[w.index] += 1;
                }
            }
            t = t.max(self.stalls.end(t, &mut self.rng).unwrap_or(t));
            if t == before {
                break;
            }
        }
        let rng = &mut self.rng;
        t += noise.base_ns[self.index] + self.tail.map_or(0.0, |tail| tail.sample(rng));
        let burst = self.bursts.end(t, rng).is_some() && rng.random::<f64>() < 0.3;
        if burst || rng.random::<f64>() < noise.outliers[self.index] {
            t += if rng.random::<f64>() < noise.heavy {
                (noise.outlier_ns.0 * (1.0 - rng.random::<f64>()).powf(-1.0 / 1.2)).min(1e8)
            } else {
                between(noise.outlier_ns, rng)
            };
        }
        // Most of the base time is spent on the way, so the next packet in line is served at once.
        self.free = t - noise.base_ns[self.index] * 0.9;
        t
    }
}

/// When packet 0 of a made-up run is due, on A's clock, ns.
const START_NS: i64 = 1_000_000_000_000;

/// Makes up a run. The same scenario gives the same run.
pub fn synthesize(scenario: &Scenario) -> Synthetic {
    let Scenario { period_ns, schedule, packets, noise, clock, .. } = scenario;
    let info = RunInfo {
        method: "synthetic".into(),
        period_ns: *period_ns,
        schedule: *schedule,
        start_ns: START_NS,
        packet_bytes: 1024,
        host_a: "a".into(),
        host_b: "b".into(),
        same_clock: clock.is_none(),
        isolation: BTreeMap::from([("seed".into(), scenario.seed.to_string())]),
        tool_version: env!("CARGO_PKG_VERSION").into(),
        ..RunInfo::default()
    };
    let mut servers = Stamp::ALL.map(|s| Server::new(s, scenario));
    let mut rng = ChaCha8Rng::seed_from_u64(scenario.seed);
    let mut samples = Samples::new();
    let mut hits = vec![0; scenario.disturbances.len()];
    let mut windows_hit = hits.clone();
    let (offset, drift) = clock.unwrap_or((0, 0.0));
    let mut sent = 0.0;
    for id in 0..*packets {
        let mut due = id as f64 * *period_ns as f64;
        if *schedule == Schedule::Relative && id > 0 {
            due = sent + *period_ns as f64;
        }
        let lost = [false, rng.random::<f64>() < noise.loss, false, rng.random::<f64>() < noise.loss];
        let mut ts = [MISSING; 4];
        for (i, server) in servers.iter_mut().enumerate() {
            if lost[i] {
                break;
            }
            due = server.serve(due, noise, &mut hits, &mut windows_hit);
            ts[i] = START_NS + due as i64;
            if i == 0 {
                sent = due;
            }
            if i == 1 || i == 2 {
                ts[i] += offset + (due * drift * 1e-6) as i64;
            }
        }
        samples.push(&Sample::new(id, ts), *period_ns);
    }
    Synthetic { info, samples, hits, windows_hit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(schedule: Schedule, disturbances: Vec<Disturbance>) -> Scenario {
        let noise = Noise { tail_ns: [0.0; 4], base_ns: [0.0, 5000.0, 0.0, 5000.0], ..Noise::quiet() };
        Scenario { period_ns: 1_000_000, schedule, packets: 2000, disturbances, noise, clock: None, seed: 1 }
    }

    #[test]
    fn an_absolute_schedule_makes_an_arrow() {
        let d = Disturbance { phase_ns: 500_000.0, ..Disturbance::new(Stamp::Ts1, 10_010_000.0, 200_000.0) };
        let run = synthesize(&scenario(Schedule::Absolute, vec![d]));
        let late = |id: u64| run.samples.stamps(Stamp::Ts1)[id as usize] - run.info.due_ns(id).unwrap();
        let delays: Vec<i64> = (0..2000).map(late).filter(|&d| d > 100).collect();
        // Every tenth packet meets a window that begins 10 us later, so it is 10 us earlier in it.
        assert_eq!(delays.len() as u64, run.hits[0]);
        assert!(delays.len() >= 20);
        assert!(delays.windows(2).all(|w| w[1] - w[0] == 10_000 || w[1] < w[0]), "{delays:?}");
    }

    #[test]
    fn a_relative_schedule_makes_an_offset() {
        let run =
            synthesize(&scenario(Schedule::Relative, vec![Disturbance::new(Stamp::Ts1, 10_010_000.0, 200_000.0)]));
        let ts1 = run.samples.stamps(Stamp::Ts1);
        let delays: Vec<i64> = ts1.windows(2).map(|w| w[1] - w[0] - 1_000_000).filter(|&d| d > 100).collect();
        assert!(delays.len() > 10 && delays[1..].iter().all(|d| (d - delays[1]).abs() <= 2), "{delays:?}");
    }

    #[test]
    fn packets_queue_while_the_receiver_is_stalled() {
        let noise = Noise { stalls_per_s: 20.0, ..Noise::quiet() };
        let run = synthesize(&Scenario { noise, period_ns: 200_000, ..scenario(Schedule::Absolute, vec![]) });
        let (ts1, ts2) = (run.samples.stamps(Stamp::Ts1), run.samples.stamps(Stamp::Ts2));
        let waited = ts1.iter().zip(ts2).filter(|(a, b)| *b - *a > 1_000_000).count();
        assert!(waited >= 20, "{waited}");
        assert_eq!(run, synthesize(&Scenario { noise, period_ns: 200_000, ..scenario(Schedule::Absolute, vec![]) }));
    }
}
