// SPDX-License-Identifier: Apache-2.0
//! What a message costs its sender beside TCP, and how much goes through, over a veth pair without an emulated link: each end is
//! a process of its own on a core of its own, and its CPU time is that of all its threads, with what the kernel did in them.
//!
//! The same rate for all: a message of 1,200 bytes every 100 us. TCP writes each by itself (`TCP_NODELAY`). X-PACE encrypts and
//! authenticates what it sends, and TCP does not, so TCP with TLS is there too.

mod code;
mod side;

use std::{
    io::Write,
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use fide_pace_socket::new_secret;
use fide_testbed::{
    Host, Lines, Spec, Testbed, end_within,
    figures::{Figure, Goal, Report},
    sys::usable_cores,
};
use serde::{Deserialize, Serialize};

use side::By;
pub(crate) use side::{Side, run as side_main};

use crate::found::figure;

/// Bytes of a message.
const MESSAGE: usize = 1200;
/// Messages a second where both have the same rate.
const RATE: u64 = 10_000;
const SECONDS: u64 = 3;
/// Rounds of both, in turns.
const ROUNDS: usize = 5;
/// A side that has not ended so long after its time has failed.
const LIMIT: Duration = Duration::from_secs(20);

/// What a side has counted; it prints it as its last line.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Done {
    messages: u64,
    cpu_ns: u64,
    /// Of the sender: from its first message to its last; of the receiver too.
    whole_ns: u64,
    /// X-PACE's sender: the slowest step in the end, and its time for a packet.
    slowest: Option<(String, u64)>,
}

/// Sender and receiver of X-PACE, TCP and TLS at the rate, and of the same as fast as may be.
type Round = [[Done; 2]; 6];
const NAMES: [&str; 6] =
    ["X-PACE, 10,000 a second", "TCP, 10,000 a second", "TLS, 10,000 a second", "X-PACE", "TCP", "TLS"];

/// A side that is killed if nobody has seen its end.
struct Process {
    child: Child,
    lines: Lines,
}

impl Process {
    fn start(host: &Host, side: &Side) -> Result<Self> {
        let program = std::env::current_exe().context("where this program is")?;
        let mut command = host.command(program);
        command.arg("side").arg(serde_json::to_string(side)?);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().context("starting a side")?;
        let lines = Lines::of(child.stdout.take().context("its output")?).within(LIMIT);
        Ok(Self { child, lines })
    }

    fn done(mut self) -> Result<Done> {
        let line = self.lines.read()?.context("a side has ended without a result")?;
        let done = serde_json::from_str(&line).with_context(|| format!("a side said {line:?}"))?;
        let status = end_within(&mut self.child, LIMIT)?;
        ensure!(status.success(), "a side has ended with {status}");
        Ok(done)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sender and receiver.
fn run(testbed: &Testbed, by: By, rate: u64, seconds: u64) -> Result<[Done; 2]> {
    let cores = usable_cores();
    ensure!(cores.len() >= 2, "each side needs a core of its own, and this machine gives {}", cores.len());
    let (to, key) = ((testbed.host(2).address(0), 7000).into(), new_secret());
    let made = rcgen::generate_simple_self_signed([side::NAME.to_owned()])?;
    let side = |is_sender: bool| Side {
        is_sender,
        by,
        to,
        certificate: made.cert.der().to_vec(),
        private: if is_sender { Vec::new() } else { made.signing_key.serialize_der() },
        key: if is_sender { key.for_clients().to_text() } else { key.to_text() },
        rate,
        seconds,
        core: cores[usize::from(!is_sender)],
    };
    let mut receiver = Process::start(testbed.host(2), &side(false))?;
    let ready = receiver.lines.read()?;
    ensure!(ready.as_deref() == Some(side::READY), "the receiving side said {ready:?}");
    let sender = Process::start(testbed.host(1), &side(true))?.done()?;
    Ok([sender, receiver.done()?])
}

/// Adds the figures.
pub(crate) fn measure(report: &mut Report, is_quick: bool) {
    code::measure(report, is_quick);
    let (rounds, seconds) = if is_quick { (1, 1) } else { (ROUNDS, SECONDS) };
    let measured = || -> Result<Vec<Round>> {
        // Links as hosts have them: what the kernel can send and receive as one, it does.
        let testbed = Testbed::build(Spec { planes: 1, offloads: true, ..Spec::hosts(2) })?;
        (0..rounds)
            .map(|_| {
                let run = |by, rate| run(&testbed, by, rate, seconds);
                Ok([
                    run(By::Ours, RATE)?,
                    run(By::Tcp, RATE)?,
                    run(By::Tls, RATE)?,
                    run(By::Ours, 0)?,
                    run(By::Tcp, 0)?,
                    run(By::Tls, 0)?,
                ])
            })
            .collect()
    };
    let found = measured().map_err(|why| format!("{why:#}"));
    let mut out = std::io::stdout().lock();
    match &found {
        Ok(found) => found.iter().for_each(|round| say(&mut out, round)),
        Err(why) => _ = writeln!(out, "cost      NOT MEASURED: {why}"),
    }
    drop(out);
    let n = found.as_ref().map_or(0, |found| found.iter().map(|round| round[0][0].messages).sum::<u64>());
    #[allow(clippy::cast_possible_truncation, reason = "a count")]
    let of = |name: &str, unit: &str, value: &dyn Fn(&Round) -> f64| -> Figure {
        let middle = found.as_ref().map_err(Clone::clone).map(|found| {
            let mut values: Vec<f64> = found.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        });
        let figure = figure(name, unit, n as usize, middle);
        figure.spread_of(found.iter().flatten().map(value))
    };
    let pairs = |of: [usize; 2], value: fn(&[Done; 2]) -> f64| {
        found.iter().flatten().map(move |round| (value(&round[of[0]]), value(&round[of[1]]))).collect::<Vec<_>>()
    };
    let tcp = of("tcp", "us", &|round| cpu_us(&round[1]));
    let vs = of("cpu_vs_tcp", "us", &|round| cpu_us(&round[0]));
    report.add(vs.beside("TCP", &tcp).ratio_of_pairs(pairs([0, 1], cpu_us)).goal(Goal::AtMost(1.0)));
    let tls = of("tls", "us", &|round| cpu_us(&round[2]));
    let vs = of("cpu_vs_tls", "us", &|round| cpu_us(&round[0]));
    report.add(vs.beside("TCP with TLS", &tls).ratio_of_pairs(pairs([0, 2], cpu_us)));
    report.add(of("goodput_gbps", "Gbit/s", &|round| gbps(&round[3])).goal(Goal::AtLeast(1.0)));
    for (name, other, index) in [("goodput_vs_tcp", "TCP", 4), ("goodput_vs_tls", "TCP with TLS", 5)] {
        let beside = of(other, "Gbit/s", &|round| gbps(&round[index]));
        let vs = of(name, "Gbit/s", &|round| gbps(&round[3]));
        report.add(vs.beside(other, &beside).ratio_of_pairs(pairs([3, index], gbps)));
    }
}

fn say(out: &mut impl Write, round: &Round) {
    for (name, sides) in NAMES.iter().zip(round) {
        let [sender, receiver] = sides;
        let slowest = sender.slowest.as_ref();
        let slowest =
            slowest.map_or(String::new(), |(step, ns)| format!("; slowest step: {step}, {:.1} us", *ns as f64 / 1e3));
        // Nobody else writes there.
        let _ = writeln!(
            out,
            "cost      {name:24} sent {:8} in {:5.2} s, {:6.2} us of CPU each; {:8} came, {:6.2} us each; {:5.2} Gbit/s{slowest}",
            sender.messages,
            sender.whole_ns as f64 / 1e9,
            cpu_us(sides),
            receiver.messages,
            receiver.cpu_ns as f64 / 1000.0 / receiver.messages.max(1) as f64,
            gbps(sides),
        );
    }
}

/// At the sender, for each message.
fn cpu_us(sides: &[Done; 2]) -> f64 {
    sides[0].cpu_ns as f64 / 1000.0 / sides[0].messages as f64
}

/// What came, while it came.
fn gbps(sides: &[Done; 2]) -> f64 {
    (sides[1].messages as usize * MESSAGE * 8) as f64 / sides[1].whole_ns as f64
}
