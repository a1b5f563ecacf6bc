// SPDX-License-Identifier: Apache-2.0
//! `bench-agreement`: how fast members agree.
//!
//! | figure | what happens | compared with |
//! |---|---|---|
//! | `decisions_in_process` | 3 members of HSUC in one thread, messages handed over as values: 64-byte proposals, as many to an instance as fit | one to an instance |
#![forbid(unsafe_code)]

use std::{collections::VecDeque, process::ExitCode, time::Instant};

use clap::Parser;
use fide_agreement::{Agreement, Config, HostSet, Hsuc, Links, Message, batch};
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
struct Group {
    members: Vec<Hsuc>,
    wire: VecDeque<(u16, u16, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    /// Proposals that the last member was told as decided.
    decided: u64,
}

impl Group {
    fn new() -> anyhow::Result<Self> {
        let members = HostSet::first(MEMBERS.into());
        let member =
            |me| Hsuc::new(&Config { me, members, window: WINDOW, value_max: VALUE_MAX, links: Links::Reliable });
        let members = (1..=MEMBERS).map(member).collect::<Result<_, _>>()?;
        Ok(Self { members, wire: VecDeque::new(), spare: Vec::new(), decided: 0 })
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

fn rates(proposals: u64, together: u64) -> anyhow::Result<Vec<f64>> {
    let mut group = Group::new()?;
    group.run(proposals / 4, together)?;
    let mut rates = (0..RUNS).map(|_| group.run(proposals, together)).collect::<anyhow::Result<Vec<_>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

fn run(args: &Args) -> anyhow::Result<()> {
    let proposals = if args.quick { 20_000 } else { u64::from(args.proposals) };
    let mut report = Report::new("agreement");
    let single = rates(proposals / 8, 1)?;
    let batched = rates(proposals, 512)?;
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
