// SPDX-License-Identifier: Apache-2.0
//! Links that lose packets, at random and in bursts: how many messages are lost in the end, of those that may be, and what
//! that costs beside the least that is possible ([`crate::least`]).
//!
//! A message each millisecond over 16 Mbit/s, twice what they need; both ways lose. A deadline of 60 ms has time for several rounds over
//! a way of 5 ms. Over one of 15 ms it has time for one, if both ends take the two ways for even, and for none otherwise: there is
//! redundancy ahead alone.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fide_link_model::LinkSpec;
use fide_pace::loss::Gilbert;
use fide_pace_socket::{Config, Connection, Counts};
use fide_testbed::{
    Spec, Testbed,
    emulator::{self, Emulator},
    figures::{Figure, Goal, Report},
};

use crate::{
    carriers::{LEVEL, SILENCE, pair},
    found::figure,
    least,
};

/// A path, and what both ends take of it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Path {
    /// What its figures' names end with.
    suffix: &'static str,
    /// Of each way.
    delay: Duration,
    even_ways: bool,
    /// Repetitions that the deadline has time for.
    rounds: u32,
}

const PATHS: [Path; 3] = [
    Path { suffix: "", delay: Duration::from_millis(5), even_ways: false, rounds: 3 },
    Path { suffix: "_15ms", delay: Duration::from_millis(15), even_ways: true, rounds: 1 },
    // As the configuration comes.
    Path { suffix: "_15ms_ahead", delay: Duration::from_millis(15), even_ways: false, rounds: 0 },
];
const DEADLINE: Duration = Duration::from_millis(60);
const GAP: Duration = Duration::from_millis(1);
/// Messages before it is measured: by then a path is known.
const WARM: usize = 2000;
const MESSAGES: usize = 12_000;
const MESSAGES_QUICK: usize = 1000;
const RATES: [f64; 4] = [0.01, 0.03, BETWEEN, 0.1];
/// One row of it, for the smaller loss that is asked for, is enough.
const BETWEEN: f64 = 0.05;
/// Packets of a burst, on the average.
const BURST: f64 = 3.0;
const ASKED: [f64; 2] = [0.01, 0.001];

/// What was asked for.
#[derive(Debug, Clone, Copy)]
struct Row {
    path: Path,
    rate: f64,
    in_bursts: bool,
    asked: f64,
}

/// What a row has shown.
#[derive(Debug, Clone, Copy)]
struct Seen {
    messages: usize,
    /// Shares of messages: lost for good; sent again; coded packets.
    lost: f64,
    again: f64,
    coded: f64,
    /// Of all packets there that left in the same time.
    packets_lost: f64,
    /// Messages that the sender dropped, as they could not arrive in time; that were there when they expired; symbols that came
    /// again, or too late.
    dropped: u64,
    late: u64,
    too_late: u64,
    whole: Duration,
}

impl Row {
    fn losses(&self) -> Gilbert {
        // Alone: a packet after a lost one is lost as often as any.
        Gilbert::of(self.rate, if self.in_bursts { BURST } else { 1.0 / (1.0 - self.rate) })
    }

    fn name(&self) -> String {
        let kind = if self.in_bursts { "bursts" } else { "random" };
        format!("{kind}_{:.0}_asked_{}{}", self.rate * 100.0, self.asked, self.path.suffix)
    }

    /// Where a share of packets was lost. Of some thousand packets it differs by a third from the link's where few are lost, in bursts.
    fn least(&self, packets_lost: f64) -> f64 {
        let burst = if self.in_bursts { BURST } else { 1.0 / (1.0 - packets_lost) };
        let Path { delay, even_ways, rounds, .. } = self.path;
        // Whoever is never to deliver late cannot know the clocks better than by a round trip, unless both ways are even.
        let ways = if even_ways { 1 } else { 2 };
        // With more than one round the number makes no difference.
        #[allow(clippy::cast_possible_truncation, reason = "some tens")]
        let together = (DEADLINE - delay * ways).div_duration_f64(GAP) as usize;
        least::redundancy(Gilbert::of(packets_lost, burst), self.asked, together, rounds)
    }
}

fn rows(path: Path) -> impl Iterator<Item = Row> {
    let kinds = [false, true].into_iter().flat_map(|in_bursts| RATES.map(|rate| (in_bursts, rate)));
    let rows = kinds.flat_map(move |(in_bursts, rate)| ASKED.map(|asked| Row { path, rate, in_bursts, asked }));
    rows.filter(|row| row.rate != BETWEEN || row.asked == ASKED[1])
}

/// Adds the figures.
pub(crate) fn measure(report: &mut Report, is_quick: bool) {
    let messages = if is_quick { MESSAGES_QUICK } else { MESSAGES };
    PATHS.into_iter().for_each(|path| measure_path(report, path, messages));
}

fn measure_path(report: &mut Report, path: Path, messages: usize) {
    let mut worst: [Option<(f64, String)>; 2] = [None, None];
    let (mut missing, mut count) = (None, 0);
    for row in rows(path) {
        let seen = run(&row, messages).map_err(|why| format!("{why:#}"));
        say(&row, &seen);
        let (n, name) = (seen.as_ref().map_or(0, |seen| seen.messages), row.name());
        // Where the link loses no more than may be lost, nothing is needed, and there is nothing to compare with.
        let least =
            seen.as_ref().map_or(0.0, |seen| if row.rate > row.asked { row.least(seen.packets_lost) } else { 0.0 });
        let sent = seen.as_ref().map(|seen| seen.again + seen.coded).map_err(Clone::clone);
        let lost = seen.as_ref().map(|seen| seen.lost).map_err(Clone::clone);
        for (worst, ratio) in
            worst.iter_mut().zip([lost.as_ref().map(|lost| lost / row.asked), sent.as_ref().map(|sent| sent / least)])
        {
            if let Ok(ratio) = ratio
                && ratio.is_finite()
                && worst.as_ref().is_none_or(|(most, _)| ratio > *most)
            {
                *worst = Some((ratio, name.clone()));
            }
        }
        if let Err(why) = &seen {
            missing.get_or_insert_with(|| format!("{name}: {why}"));
        }
        count += n;
        report.add(figure(&format!("lost_{name}"), "share", n, lost));
        let sent = figure(&format!("redundancy_{name}"), "share", n, sent);
        report.add(if least > 0.0 { sent.beside("least", &figure("least", "share", 0, Ok(least))) } else { sent });
    }
    let of = |name: &str, worst: Option<(f64, String)>, limit: f64| -> Figure {
        let value = match (&missing, &worst) {
            (Some(why), _) => Err(why.clone()),
            (None, Some((ratio, _))) => Ok(*ratio),
            (None, None) => Err("no row has a least above nothing".to_owned()),
        };
        let figure = figure(name, "ratio", count, value).goal(Goal::AtMost(limit));
        match worst {
            Some((ratio, row)) => figure.remark(match &missing {
                Some(why) => format!("{why}; the worst of the others, {row}: {ratio:.2}"),
                None => format!("the worst row: {row}"),
            }),
            None => figure,
        }
    };
    let [lost, redundancy] = worst;
    let suffix = path.suffix;
    report.add(of(&format!("residual_loss_over_asked{suffix}"), lost, 1.0));
    report.add(of(&format!("redundancy_over_least{suffix}"), redundancy, 1.3));
}

fn say(row: &Row, seen: &Result<Seen, String>) {
    let name = row.name();
    let seen = match seen {
        Ok(seen) => seen,
        Err(why) => return println!("loss      {name:35} NOT MEASURED: {why}"),
    };
    println!(
        "loss      {name:35} {:5.2} % of packets; {:7.4} % of {} messages lost; again {:6.2} %, coded {:6.2} %, least {:6.2} % of messages; {} dropped by the sender, {} late, {} symbols came too late or twice; {:.1} s",
        seen.packets_lost * 100.0,
        seen.lost * 100.0,
        seen.messages,
        seen.again * 100.0,
        seen.coded * 100.0,
        row.least(seen.packets_lost) * 100.0,
        seen.dropped,
        seen.late,
        seen.too_late,
        seen.whole.as_secs_f64(),
    );
}

fn run(row: &Row, messages: usize) -> Result<Seen> {
    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) })?;
    let Path { delay, even_ways, .. } = row.path;
    #[allow(clippy::cast_possible_truncation, reason = "milliseconds")]
    let way = LinkSpec { losses: row.losses(), ..LinkSpec::of(delay.as_nanos() as u64) };
    let ways = [way.with_rate(16_000_000, 180_000), way];
    let emulator = Emulator::between(testbed.host(1), testbed.host(2), ways, 7)?;
    let to = SocketAddr::from((Emulator::address(1), 7000));
    #[allow(clippy::cast_possible_truncation, reason = "milliseconds")]
    let deadline_ns = DEADLINE.as_nanos() as u64;
    let config = Config { deadline_ns, residual_loss: row.asked, even_ways, ..Config::default() };
    let (sender, receiver) = pair(testbed.host(1), testbed.host(2), to, config)?;
    let (all, begun) = (WARM + messages, Instant::now());
    let (sent, came) = thread::scope(|scope| {
        let taker = scope.spawn(|| take(&receiver, all));
        (give(&sender, &emulator, all), taker.join())
    });
    let came = came.map_err(|_| anyhow::anyhow!("the receiving thread has ended by itself"))?;
    ensure!(
        sent.len() == 2,
        "the connection ended after {} messages: {:?}",
        came.iter().filter(|came| **came).count(),
        sender.counts(),
    );
    let of = |count: fn(&Counts) -> u64| count(&sent[1].0).saturating_sub(count(&sent[0].0)) as f64;
    let on_link = |count: fn(&emulator::Seen) -> u64| (count(&sent[1].1) - count(&sent[0].1)) as f64;
    let symbols = of(|counts| counts.sent.symbols);
    Ok(Seen {
        messages,
        lost: came[WARM..].iter().filter(|came| !**came).count() as f64 / messages as f64,
        again: of(|counts| counts.sent.again) / symbols,
        coded: of(|counts| counts.sent.redundancy) / symbols,
        dropped: sent[1].0.sent.dropped - sent[0].0.sent.dropped,
        late: receiver.counts().received.late,
        too_late: receiver.counts().received.repeated,
        packets_lost: on_link(|seen| seen.dropped) / on_link(|seen| seen.packets).max(1.0),
        whole: begun.elapsed(),
    })
}

/// What was sent, and what had come to the link, when it was warm, and in the end; less if the connection has ended.
fn give(sender: &Connection, link: &Emulator, all: usize) -> Vec<(Counts, emulator::Seen)> {
    let mut message = vec![0; LEVEL.message_len()];
    let (begun, mut counts) = (Instant::now(), Vec::new());
    for round in 0..all {
        if round == WARM {
            counts.push((sender.counts(), link.seen(0)));
        }
        let due = begun + GAP * u32::try_from(round).unwrap_or(u32::MAX);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        message[..8].copy_from_slice(&(round as u64).to_be_bytes());
        if sender.send(&message).is_err() {
            return counts;
        }
    }
    sender.finish(SILENCE);
    counts.push((sender.counts(), link.seen(0)));
    counts
}

/// Which messages came.
fn take(receiver: &Connection, all: usize) -> Vec<bool> {
    let mut came = vec![false; all];
    while let Ok(Some(message)) = receiver.recv_timeout(SILENCE) {
        let number = message.bytes.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes));
        receiver.recycle(message);
        let Some(place) = usize::try_from(number).ok().and_then(|number| came.get_mut(number)) else { continue };
        *place = true;
        if number + 1 == all as u64 {
            break;
        }
    }
    came
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_losses_that_they_name() {
        let rows: Vec<Row> = PATHS.into_iter().flat_map(rows).collect();
        assert_eq!(rows.len(), PATHS.len() * (RATES.len() * ASKED.len() - 1) * 2);
        for row in &rows {
            assert!((row.losses().rate() - row.rate).abs() < 1e-9, "{row:?}");
            let burst = if row.in_bursts { BURST } else { 1.0 / (1.0 - row.rate) };
            assert!((row.losses().burst() - burst).abs() < 1e-9, "{row:?}");
        }
        let names = [11, 13, 27, 41].map(|at| rows[at].name());
        let ends = ["5_asked_0.001", "10_asked_0.001", "10_asked_0.001_15ms", "10_asked_0.001_15ms_ahead"];
        assert!(names.iter().zip(ends).all(|(name, end)| *name == format!("bursts_{end}")), "{names:?}");
    }
}
