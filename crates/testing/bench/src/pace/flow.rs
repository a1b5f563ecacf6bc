// SPDX-License-Identifier: Apache-2.0
//! One flow over an emulated link, as X-PACE §V-A2: an application that sends messages with their time as fast as it may, and one
//! that takes them. Both are on this machine, so one clock tells how long each was on its way.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use fide_pace_socket::now_ns;
use fide_testbed::Testbed;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::carriers::{Carrier, Receive, Send};

/// Messages of one run.
pub(crate) const ROUNDS: usize = 2000;
/// A run that takes longer is ended; what has not come is lost.
const LIMIT: Duration = Duration::from_secs(90);

/// Messages whose median shows whether delivery has settled: a tenth of a second of them at the paper's pace.
const WINDOW: usize = 20;
/// So many of these in a row: the first messages are delivered soon, too, as a queue is yet to come.
const IN_A_ROW: usize = 5;

/// Where the applications take time, and the sizes of TCP's buffers, §V-A3.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) send_work: Duration,
    pub(crate) receive_work: Duration,
    pub(crate) send_buffer: usize,
    pub(crate) receive_buffer: usize,
    /// Of the slowest step, for a packet; the mean where it varies.
    pub(crate) pace: Duration,
    /// Delivery without any queue, at the link's full rate.
    pub(crate) least: Duration,
}

/// What a run has shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    /// When each message that came was sent, since the first one, and how long it was on its way, ns.
    pub(crate) times: Vec<(u64, u64)>,
    /// Between two messages at the sender, ns.
    pub(crate) gaps: Vec<u64>,
    pub(crate) sent: usize,
    /// From the first message sent to the last that came.
    pub(crate) whole_ns: u64,
}

impl Run {
    /// The value that a share of delivery times, of messages sent after a time, does not exceed, ms.
    pub(crate) fn time_ms(&self, from_ns: u64, share: f64) -> f64 {
        let after = self.times.iter().filter(|(sent_ns, _)| *sent_ns >= from_ns);
        percentile_ms(after.map(|(_, time)| *time).collect(), share)
    }

    /// When delivery has settled, ms after the first message: from then on the median of each of some windows of [`WINDOW`]
    /// messages is no longer than a time, and so are nine in ten of all that follow. The whole run if that is never.
    pub(crate) fn settled_after_ms(&self, at_most_ns: u64) -> f64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        let windows: Vec<(u64, bool)> = times
            .chunks_exact(WINDOW)
            .map(|window| {
                let mut each: Vec<u64> = window.iter().map(|(_, time)| *time).collect();
                each.sort_unstable();
                (window[0].0, each[WINDOW / 2] <= at_most_ns)
            })
            .collect();
        let holds = |from: usize| {
            let after = &windows[from..];
            let good = after.iter().filter(|(_, is_good)| *is_good).count();
            after.len() >= IN_A_ROW && after[..IN_A_ROW].iter().all(|window| window.1) && good * 10 >= after.len() * 9
        };
        let from = (0..windows.len()).find(|from| holds(*from));
        from.map_or(self.whole_ns, |from| windows[from].0) as f64 / 1e6
    }

    pub(crate) fn gap_ms(&self, share: f64) -> f64 {
        percentile_ms(self.gaps.clone(), share)
    }
}

fn percentile_ms(mut values: Vec<u64>, share: f64) -> f64 {
    values.sort_unstable();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index")]
    let at = ((values.len() as f64 - 1.0) * share).round().max(0.0) as usize;
    values.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
}

/// A fifth more or less than a time.
pub(crate) fn about(work: Duration, random: &mut SmallRng) -> Duration {
    work.mul_f64(random.random_range(0.8..1.2))
}

/// Sends and takes messages from the first host of a testbed to the second one.
pub(crate) fn run(
    testbed: &Testbed,
    to: SocketAddr,
    carrier: Carrier,
    scenario: &Scenario,
    rounds: usize,
) -> Result<Run> {
    let (send, receive) = carrier.open(testbed.host(1), testbed.host(2), to, scenario)?;
    // Both begin here, so that a carrier that took long to open has its whole time.
    let (len, gap, begun) = (carrier.message_len(), carrier.told_gap(scenario), Instant::now());
    let taken = thread::scope(|scope| {
        let taker = scope.spawn(move || take(receive, scenario.receive_work, rounds));
        // The sender's end stays until all has come: what has not left would end with it.
        let (sent, _send) = give(send, scenario.send_work, gap, len, rounds, begun);
        (sent, taker.join())
    });
    let (sent, taken) = (taken.0, taken.1.map_err(|_| anyhow::anyhow!("the receiving thread has ended by itself"))?);
    let first_ns = sent.first().copied().unwrap_or(0);
    let last_ns = taken.iter().map(|(sent_ns, time)| sent_ns + time).max().unwrap_or(first_ns);
    Ok(Run {
        times: taken.iter().map(|(sent_ns, time)| (sent_ns.saturating_sub(first_ns), *time)).collect(),
        gaps: sent.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        sent: sent.len(),
        whole_ns: last_ns.saturating_sub(first_ns),
    })
}

/// When each message was sent. `gap`: the pace of a sender that is told one.
fn give(
    mut send: Send,
    work: Duration,
    gap: Option<Duration>,
    len: usize,
    rounds: usize,
    begun: Instant,
) -> (Vec<u64>, Send) {
    let mut random = SmallRng::seed_from_u64(1);
    let mut message = vec![0; len];
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds as u64 {
        if work > Duration::ZERO {
            thread::sleep(about(work, &mut random));
        } else if let Some(gap) = gap {
            let due = begun + gap * u32::try_from(round).unwrap_or(u32::MAX);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let now_ns = now_ns();
        message[..8].copy_from_slice(&now_ns.to_be_bytes());
        message[8..16].copy_from_slice(&round.to_be_bytes());
        if begun.elapsed() > LIMIT || !send(&message) {
            break;
        }
        times.push(now_ns);
    }
    (times, send)
}

/// When each message that came was sent, and how long it was on its way.
fn take(mut receive: Receive, work: Duration, rounds: usize) -> Vec<(u64, u64)> {
    let mut random = SmallRng::seed_from_u64(2);
    let mut message = vec![0; 2000];
    let mut times = Vec::with_capacity(rounds);
    while let Some(len) = receive(&mut message).filter(|len| *len >= 16) {
        let now_ns = now_ns();
        let word = |at: usize| u64::from_be_bytes(message[at..at + 8].first_chunk().copied().unwrap_or_default());
        times.push((word(0), now_ns.saturating_sub(word(0))));
        debug_assert!(len <= message.len());
        if word(8) + 1 == rounds as u64 {
            break;
        }
        if work > Duration::ZERO {
            thread::sleep(about(work, &mut random));
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages 5 ms apart with these delivery times, in windows.
    fn run(windows_ms: &[u64]) -> Run {
        let each = windows_ms.iter().flat_map(|ms| [*ms; WINDOW]);
        let times = (0..).zip(each).map(|(at, ms)| (at * 5_000_000, ms * 1_000_000)).collect();
        Run { times, whole_ns: 7_000_000_000, ..Run::default() }
    }

    #[test]
    fn delivery_has_settled_once_it_stays_so() {
        let mut windows = vec![16; 2];
        windows.extend([60, 40, 20]);
        windows.extend([16; 30]);
        let settled = |windows: &[u64]| run(windows).settled_after_ms(17_000_000);
        assert!((settled(&windows) - 500.0).abs() < 1e-9, "the first two are before the queue");
        // One pause of the machine later on.
        windows[20] = 90;
        assert!((settled(&windows) - 500.0).abs() < 1e-9);
        windows[20..30].fill(90);
        assert!((settled(&windows) - 3000.0).abs() < 1e-9);
        windows.truncate(32);
        assert!((settled(&windows) - 7000.0).abs() < 1e-9, "never");
        // One late message changes no median.
        let mut late = run(&[16; 6]);
        late.times[3].1 = 900_000_000;
        assert!(late.settled_after_ms(17_000_000).abs() < 1e-9);
    }
}
