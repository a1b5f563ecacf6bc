// SPDX-License-Identifier: Apache-2.0
//! `bench-agreement`: how fast members agree.
//!
//! | figure | what happens |
//! |---|---|
//! | `decisions_in_process` | 3 members of HSUC in one thread, messages handed over as bytes: 64-byte proposals, as many to an instance as fit |
//! | `decisions_in_process_unbatched` | the same, one to an instance |
//! | `decisions_in_process_huc` | the same by HUC, each heartbeat at once |
//! | `sim_speed` | packets that the simulator delivers per second on one core, by seed |
#![forbid(unsafe_code)]

use std::{collections::VecDeque, process::ExitCode, time::Instant};

use clap::Parser;
use fide_agreement::{Agreement, HostSet, Hsuc, Huc, Links, Message, batch, hsuc, huc};
use fide_sim::cluster::{self, plan::Plan};
use fide_testbed::figures::{Figure, Goal, Report};

const MEMBERS: u16 = 3;
const WINDOW: u64 = 32;
const PROPOSAL: [u8; 64] = [7; 64];
const VALUE_MAX: usize = 16 << 10;
/// Repetitions, each measured by itself.
const RUNS: usize = 11;

/// Measures agreement and writes target/bench/agreement.json.
#[derive(Debug, Parser)]
struct Args {
    /// Proposals of each of the repetitions.
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(1000..=100_000_000))]
    proposals: u32,
    /// Everything briefly, to see that it works; no number to quote.
    #[arg(long)]
    quick: bool,
}

/// Members and the messages between them, in the order in which they were sent.
struct Group<A> {
    members: Vec<A>,
    wire: VecDeque<(u16, u16, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    /// Proposals that the last member was told as decided.
    decided: u64,
}

fn hsuc(me: u16) -> anyhow::Result<Hsuc> {
    let members = HostSet::first(MEMBERS.into());
    Ok(Hsuc::new(&hsuc::Setting { window: WINDOW, value_max: VALUE_MAX, links: Links::Reliable }, me, members)?)
}

fn huc(me: u16) -> anyhow::Result<Huc> {
    // Each member may fill as much as an instance of HSUC has.
    let value_max = VALUE_MAX * usize::from(MEMBERS);
    Ok(Huc::new(&huc::Setting { value_max }, me, HostSet::first(MEMBERS.into()))?)
}

impl<A: Agreement> Group<A> {
    fn new(member: fn(u16) -> anyhow::Result<A>) -> anyhow::Result<Self> {
        let members = (1..=MEMBERS).map(member).collect::<anyhow::Result<_>>()?;
        let mut group = Self { members, wire: VecDeque::new(), spare: Vec::new(), decided: 0 };
        (1..=MEMBERS).for_each(|member| group.drain(member));
        Ok(group)
    }

    /// Takes what follows from the last call at a member.
    fn drain(&mut self, member: u16) {
        let node = &mut self.members[usize::from(member) - 1];
        loop {
            let mut anything = false;
            while let Some(decision) = node.poll_decision() {
                anything = true;
                if member == MEMBERS {
                    self.decided += batch::values(decision.value).count() as u64;
                }
            }
            if let Some(message) = node.poll_broadcast() {
                anything = true;
                for receiver in (1..=MEMBERS).filter(|receiver| *receiver != member) {
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.clear();
                    message.write(&mut bytes);
                    self.wire.push_back((member, receiver, bytes));
                }
                node.broadcast_left();
            }
            while let Some((to, message)) = node.poll_transmit() {
                anything = true;
                for receiver in to.iter() {
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.clear();
                    message.write(&mut bytes);
                    self.wire.push_back((member, receiver, bytes));
                }
            }
            if !anything {
                return;
            }
        }
    }

    fn deliver(&mut self) -> anyhow::Result<bool> {
        let Some((from, to, bytes)) = self.wire.pop_front() else { return Ok(false) };
        self.members[usize::from(to) - 1].receive(from, &Message::read(&bytes)?)?;
        self.spare.push(bytes);
        self.drain(to);
        Ok(true)
    }

    /// Proposals decided by all per second, `together` of them offered at a time.
    fn run(&mut self, proposals: u64, together: u64) -> anyhow::Result<f64> {
        let (begun, until) = (Instant::now(), self.decided + proposals);
        let mut offered = 0;
        while self.decided < until {
            for _ in 0..together.min(proposals - offered) {
                if self.members[0].propose(&PROPOSAL).is_err() {
                    break;
                }
                offered += 1;
            }
            self.drain(1);
            for _ in 0..4 * MEMBERS {
                if !self.deliver()? {
                    break;
                }
            }
        }
        while self.deliver()? {}
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        Ok(proposals as f64 / begun.elapsed().as_secs_f64())
    }
}

fn rates<A: Agreement>(
    member: fn(u16) -> anyhow::Result<A>,
    proposals: u64,
    together: u64,
) -> anyhow::Result<Vec<f64>> {
    let mut group = Group::new(member)?;
    group.run(proposals / 4, together)?;
    let mut rates = (0..RUNS).map(|_| group.run(proposals, together)).collect::<anyhow::Result<Vec<_>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

/// Packets delivered per second, of so many seeds each time.
fn sim_speed(seeds: u64) -> anyhow::Result<Vec<f64>> {
    let mut rates = Vec::new();
    for run in 0..RUNS as u64 {
        let (begun, mut deliveries) = (Instant::now(), 0);
        for seed in run * seeds..(run + 1) * seeds {
            let stats = cluster::run(&Plan::of(seed), None);
            deliveries += stats.map_err(|failure| anyhow::anyhow!("seed {seed}: {}", failure.violation))?.deliveries;
        }
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        rates.push(deliveries as f64 / begun.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

fn run(args: &Args) -> anyhow::Result<()> {
    let proposals = if args.quick { 20_000 } else { u64::from(args.proposals) };
    let mut report = Report::new("agreement");
    let single = rates(hsuc, proposals / 8, 1)?;
    let batched = rates(hsuc, proposals, 512)?;
    let heartbeats = rates(huc, proposals, 512)?;
    let simulated = sim_speed(if args.quick { 5 } else { 200 })?;
    let (middle, last) = (RUNS / 2, RUNS - 1);
    let figure = |name: &str, rates: &[f64], goal: f64| {
        let figure = Figure {
            figure: name.into(),
            value: Some(rates[middle]),
            unit: "per second".into(),
            statistic: "p50".into(),
            n: RUNS as u64,
            min: Some(rates[0]),
            p50: Some(rates[middle]),
            max: Some(rates[last]),
            ..Figure::default()
        };
        figure.goal(Goal::AtLeast(goal))
    };
    report.add(
        figure("decisions_in_process", &batched, 2e6).remark("64-byte proposals, as many to an instance as fit 16 KiB"),
    );
    report.add(figure("decisions_in_process_unbatched", &single, 2e5).remark("one to an instance"));
    let of_huc = figure("decisions_in_process_huc", &heartbeats, 2e6);
    report.add(of_huc.remark("the leader proposes, the others say that they have nothing to say"));
    report.add(figure("sim_speed", &simulated, 2e6).remark("packets of detectors and groups, seeds as in `make sim`"));
    print!("\n{report}");
    println!("written to {}", report.write()?.display());
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench-agreement: {why:#}");
            ExitCode::FAILURE
        }
    }
}
