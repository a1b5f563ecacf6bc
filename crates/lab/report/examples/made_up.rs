// SPDX-License-Identifier: Apache-2.0
//! A report on made-up runs: `made_up [packets] [out.html]`. Prints how long each step took and how much
//! memory the whole needed. From ten million packets on, it makes one run; below that, two runs and one with
//! clocks that differ.

use fide_jitter_analysis::synth::{Disturbance, Noise, Scenario, synthesize};
use fide_jitter_analysis::{RunStats, Schedule, Stamp, StatsOptions};
use fide_report::run::{Blame, CulpritTotal, FamilyText, LatePacket, Run, UNKNOWN, render, to_json};
use std::time::Instant;

/// From this number of packets on, only one run is made.
const ONE_FROM: u64 = 10_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let packets: u64 = args.next().map_or(Ok(100_000), |n| n.parse())?;
    let out = args.next().unwrap_or_else(|| "report.html".into());
    let arrow = Disturbance { phase_ns: 3e5, ..Disturbance::new(Stamp::Ts2, 1.000_05e9, 2e5) };
    let offset = Disturbance::new(Stamp::Ts1, 0.5e9 + 30_000.0, 1.5e5);
    let quiet = Scenario {
        period_ns: 996_000,
        schedule: Schedule::Absolute,
        packets,
        disturbances: vec![arrow, offset],
        noise: Noise::quiet(),
        clock: None,
        seed: 1,
    };
    let busy = Scenario { noise: Noise::busy(), seed: 2, ..quiet.clone() };
    let apart = Scenario { clock: Some((5_000_000_000, 12.0)), schedule: Schedule::Relative, seed: 3, ..quiet.clone() };
    let mut scenarios = vec![("quiet <b>host</b>", quiet), ("busy host", busy), ("two clocks", apart)];
    if packets >= ONE_FROM {
        scenarios.drain(..1);
        scenarios.truncate(1);
    }
    let mut runs = Vec::new();
    for (name, scenario) in scenarios {
        let start = Instant::now();
        let made = synthesize(&scenario);
        println!("{name}: made up in {:.2} s", start.elapsed().as_secs_f64());
        let start = Instant::now();
        let stats = RunStats::of(&made.info, &made.samples, &StatsOptions::default());
        println!("{name}: statistics in {:.2} s", start.elapsed().as_secs_f64());
        runs.push(Run::new(name, made.info, stats));
    }
    tell(&mut runs[0]);
    let start = Instant::now();
    let page = render(&runs);
    println!("page: {} bytes in {:.2} s", page.len(), start.elapsed().as_secs_f64());
    let start = Instant::now();
    let json = serde_json::to_string(&to_json(&runs))?;
    println!("json: {} bytes in {:.2} s", json.len(), start.elapsed().as_secs_f64());
    std::fs::write(&out, page)?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    println!("{}", status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or("VmHWM unknown"));
    Ok(())
}

/// Adds findings that an analysis might have made.
fn tell(run: &mut Run) {
    run.families = Some(vec![FamilyText {
        kind: "ts2-arrow".into(),
        place: "ts2, receive at B".into(),
        period_ns: 1.000_05e9,
        period_error: 2e-6,
        duration_ns: 2e5,
        duration_at_least: false,
        hits: 41,
        confidence: 0.9997,
        sentence:
            "Something takes the receiving core of host B for 200 us once in 1.00005 s; each hit packet meets it 50 us \
                   later than the one before, which is why the outliers fall from 200 us to nothing."
                .into(),
        alternatives_ns: vec![500_025_000.0],
    }]);
    let culprit = |kind: &str, name: &str, packets, share, worst_ns| CulpritTotal {
        kind: kind.into(),
        name: name.into(),
        packets,
        share,
        worst_ns,
    };
    run.culprits = Some(vec![
        culprit("thread", "kworker/1:2", 41, 0.62, 201_300),
        culprit("interrupt", "24: virtio0-input.0", 12, 0.18, 18_400),
        culprit("softirq", "timer", 4, 0.06, 9_100),
        culprit(UNKNOWN, UNKNOWN, 9, 0.14, 22_000),
    ]);
    let blame = Blame { kind: "thread".into(), name: "kworker/1:2".into(), cpu: Some(1), ns: 199_800 };
    run.late = Some(vec![
        LatePacket {
            id: 60_214,
            at_ns: Some(59_973_144_000),
            place: "ts2".into(),
            late_ns: 201_300,
            blame: vec![blame],
        },
        LatePacket { id: 17, at_ns: Some(16_932_000), place: "ts4".into(), late_ns: 22_000, blame: Vec::new() },
    ]);
}
