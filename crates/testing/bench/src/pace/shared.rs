// SPDX-License-Identifier: Apache-2.0
//! One link that flows share: X-PACE among itself, and beside TCP with BBR or CUBIC as the kernel has them.
//!
//! 20 Mbit/s, 20 ms there and back, a buffer of one bandwidth-delay product. Flows begin half a second apart, each with as much
//! to send as it may, and only what comes after the start counts.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::Result;
use fide_link_model::LinkSpec;
use fide_pace_socket::{Config, Connection};
use fide_testbed::{
    Host, Spec, Stops, Testbed,
    emulator::Emulator,
    figures::{Figure, Goal, Report},
};
use rustix::net::sockopt;

use crate::{
    carriers::{LEVEL, PACKET, pair},
    found::figure,
};

const RATE: u64 = 20_000_000;
const ONE_WAY_NS: u64 = 10_000_000;
/// One bandwidth-delay product.
const BUFFER: u64 = RATE / 8 * 2 * ONE_WAY_NS / 1_000_000_000;
/// Between the beginnings of two flows.
const APART: Duration = Duration::from_millis(500);
/// Before it counts.
const WARM: Duration = Duration::from_secs(10);
/// The same for ten flows, which take longer to come to equal rates.
const WARM_MANY: Duration = Duration::from_secs(30);
const STEADY: Duration = Duration::from_secs(20);
/// What each of two flows should have of its half.
const SHARE: f64 = 0.333;
/// A receiver looks so often whether it is to end.
const LOOK: Duration = Duration::from_millis(200);
/// Bytes of a TCP packet on the link, and of its data.
const TCP_PACKET: [u64; 2] = [1500, 1448];
/// What a TCP sender writes at once.
const WRITE: usize = 16_384;

/// One that has a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Party {
    Pace,
    Tcp(&'static str),
}

enum Flow {
    Pace(Box<(Connection, Connection)>),
    Tcp(TcpStream, TcpStream),
}

impl Flow {
    fn open(party: Party, here: &Host, there: &Host, to: SocketAddr) -> Result<Self> {
        let Party::Tcp(congestion) = party else {
            let (sender, receiver) = pair(here, there, to, Config::default())?;
            return Ok(Self::Pace(Box::new((sender, receiver))));
        };
        let listener = there.run_in(|| TcpListener::bind(to))??;
        let sender = here.run_in(|| TcpStream::connect(to))??;
        let (receiver, _) = listener.accept()?;
        sockopt::set_tcp_congestion(&sender, congestion)?;
        receiver.set_read_timeout(Some(LOOK))?;
        // A full buffer must not hold up the end.
        sender.set_write_timeout(Some(LOOK))?;
        Ok(Self::Tcp(sender, receiver))
    }

    fn give(&self, is_over: &AtomicBool) {
        let bytes = vec![0; WRITE];
        while !is_over.load(Ordering::Relaxed) {
            match self {
                Self::Pace(ends) if ends.0.send(&bytes[..LEVEL.message_len()]).is_err() => return,
                Self::Pace(..) => {}
                // It writes as much as there is room for, or nothing within a time.
                Self::Tcp(sender, _) => _ = (&*sender).write(&bytes),
            }
        }
    }

    /// Adds what comes, in bytes on the link.
    fn take(&self, is_over: &AtomicBool, came: &AtomicU64) {
        let mut buffer = vec![0; 1 << 16];
        while !is_over.load(Ordering::Relaxed) {
            let bytes = match self {
                Self::Pace(ends) => match ends.1.recv_timeout(LOOK) {
                    Ok(Some(message)) => {
                        ends.1.recycle(message);
                        PACKET as u64
                    }
                    Ok(None) => 0,
                    Err(_) => return,
                },
                Self::Tcp(_, receiver) => {
                    let read = (&*receiver).read(&mut buffer).unwrap_or(0);
                    read as u64 * TCP_PACKET[0] / TCP_PACKET[1]
                }
            };
            came.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Mbit/s on the link of each party.
fn share(parties: &[Party], warm: Duration, steady: Duration) -> Result<Vec<f64>> {
    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) })?;
    let way = LinkSpec::of(ONE_WAY_NS);
    let ways = [way.with_rate(RATE, BUFFER), way];
    let emulator = Emulator::between(testbed.host(1), testbed.host(2), ways, 7)?;
    let flows: Vec<Flow> = parties
        .iter()
        .zip(7000..)
        .map(|(party, port)| {
            let to = SocketAddr::from((Emulator::address(1), port));
            Flow::open(*party, testbed.host(1), testbed.host(2), to)
        })
        .collect::<Result<_>>()?;
    let came: Vec<AtomicU64> = flows.iter().map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let is_over = &stop;
    let now = || came.iter().map(|came| came.load(Ordering::Relaxed)).collect::<Vec<u64>>();
    let (before, after) = thread::scope(|scope| {
        let _ends = Stops(is_over);
        for (flow, came) in flows.iter().zip(&came) {
            scope.spawn(move || flow.take(is_over, came));
            scope.spawn(move || flow.give(is_over));
            thread::sleep(APART);
        }
        thread::sleep(warm);
        emulator.take_longest_queue_ns(0);
        let before = now();
        thread::sleep(steady);
        (before, now())
    });
    let rate = |bytes: u64| bytes as f64 * 8.0 / 1e6 / steady.as_secs_f64();
    let rates: Vec<f64> = after.iter().zip(&before).map(|(after, before)| rate(after - before)).collect();
    let (queue_ns, dropped) = emulator.take_longest_queue_ns(0);
    let names = parties.iter().zip(&rates).map(|(party, rate)| match party {
        Party::Pace => format!("X-PACE {rate:.2}"),
        Party::Tcp(congestion) => format!("{congestion} {rate:.2}"),
    });
    println!(
        "shared    {} Mbit/s; longest queue {:.1} ms, {dropped} dropped",
        names.collect::<Vec<_>>().join(", "),
        queue_ns as f64 / 1e6
    );
    Ok(rates)
}

/// Jain's: 1 if all have the same, 1/n if one has all.
fn fairness(rates: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (rates.iter().sum(), rates.iter().map(|rate| rate * rate).sum());
    sum * sum / (rates.len() as f64 * squares)
}

/// What the one that has least has of an even share.
fn least_share(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(f64::INFINITY, f64::min) * rates.len() as f64 / rates.iter().sum::<f64>()
}

/// Adds the figures.
pub(crate) fn measure(report: &mut Report, is_quick: bool) {
    let run = |parties: &[Party], warm: Duration| -> Result<Vec<f64>, String> {
        let (warm, steady) = if is_quick { (WARM / 5, STEADY / 10) } else { (warm, STEADY) };
        share(parties, warm, steady).map_err(|why| {
            println!("shared    {parties:?} NOT MEASURED: {why:#}");
            format!("{why:#}")
        })
    };
    let each = |rates: &[f64]| {
        let each = rates.iter().map(|rate| format!("{rate:.2}")).collect::<Vec<_>>().join(", ");
        format!("Mbit/s, in the order in which they began: {each}")
    };
    let add = |report: &mut Report, figure: Figure, rates: &Result<Vec<f64>, String>| {
        report.add(match rates {
            Ok(rates) => figure.remark(each(rates)),
            Err(_) => figure,
        });
    };
    let (two, ten) = (run(&[Party::Pace; 2], WARM), run(&[Party::Pace; 10], WARM_MANY));
    let of = |rates: &Result<Vec<f64>, String>| rates.as_ref().map(|rates| fairness(rates)).map_err(Clone::clone);
    add(report, figure("fairness_2", "index", 2, of(&two)), &two);
    add(report, figure("fairness_10", "index", 10, of(&ten)), &ten);
    let both = of(&two).and_then(|two| Ok(two.min(of(&ten)?)));
    report.add(figure("fairness", "index", 12, both).goal(Goal::AtLeast(0.95)));
    for (name, congestion) in [("share_beside_bbr", "bbr"), ("share_beside_cubic", "cubic")] {
        let rates = run(&[Party::Tcp(congestion), Party::Pace], WARM);
        let least = rates.as_ref().map(|rates| least_share(rates)).map_err(Clone::clone);
        add(report, figure(name, "share", 2, least).goal(Goal::AtLeast(SHARE)), &rates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_and_shares_are_those_of_the_textbook() {
        assert!((fairness(&[3.0, 3.0]) - 1.0).abs() < 1e-12 && (fairness(&[4.0, 0.0]) - 0.5).abs() < 1e-12);
        assert!((least_share(&[15.0, 5.0]) - 0.5).abs() < 1e-12);
        assert!(fairness(&[0.0, 0.0]).is_nan(), "nothing came");
    }

    #[test]
    fn buffer_is_one_bandwidth_delay_product() {
        assert_eq!(BUFFER, 50_000);
    }
}
