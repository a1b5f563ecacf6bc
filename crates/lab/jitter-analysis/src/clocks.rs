// SPDX-License-Identifier: Apache-2.0
//! How two hosts' clocks moved against each other during a run, and the stamps corrected for that.
//!
//! Let B's clock be ahead of A's by `o`. By their stamps, a ping takes `p + o` and a pong `q - o`. Half of
//! the difference is `o`, except for half of `p - q`, which cannot be known; the sum does not depend on
//! clocks. A packet whose sum is among the shortest was delayed by nothing, so half of its difference *is*
//! the offset, and a clock that moves makes one way shorter by as much as it makes the other longer. No delay
//! does that. Between such packets, the offset is interpolated; if it jumped in between, a packet belongs to
//! the side on which neither of its ways is shorter than the shortest.
//!
//! The movements found are taken out of B's stamps, so that all stamps are on A's clock. Otherwise, after a
//! step, all packets would be late until the baseline has followed it, and this would look like a disturbance
//! whose period is the sending interval.

use crate::baseline::middle;
use crate::sample::{JUMP_NS, MISSING, RunInfo, Samples, Stamp};
use serde::{Deserialize, Serialize};

/// The share of packets, those with the shortest round trips, from which the offset is taken.
const SHORTEST: f64 = 0.2;
/// Minimum number of such packets (anchors); fewer are not enough.
const ANCHORS_MIN: usize = 32;
/// Anchors to either side in the running median.
const REACH: usize = 4;
/// A smaller movement of the clocks between anchors is no jump, and a smaller movement is not reported, ns.
const MOVE_MIN_NS: i64 = 20_000;
/// Number of anchors over which the rate of the clocks is measured.
const RATE_ANCHORS: usize = 64;
/// Jumps at most this many packets apart are one movement.
const SAME_MOVE_ROWS: u64 = 64;
/// Slews are searched for in stretches of this length, ns, or of a sixteenth of the run if that is shorter.
const STRETCH_NS: f64 = 1e9;
/// Maximum number of movements kept one by one; further ones are only counted.
const MOVES_MAX: usize = 256;

/// One movement of B's clock against A's, beyond the run's usual drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Row of the last packet before it.
    pub row: u64,
    /// Row of the first packet after it. The movement is a step if this is the next row, and a slew if it is
    /// far away.
    pub until_row: u64,
    /// How much further ahead B's clock is after it, ns.
    pub by_ns: i64,
}

/// How two clocks moved during a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockMoves {
    /// How much faster than A's clock B's usually runs, millionths.
    pub drift_ppm: f64,
    /// The first [`MOVES_MAX`] movements beyond that, in the order of packets.
    pub moves: Vec<Move>,
    /// Number of all movements.
    pub moves_total: u64,
}

/// The stamps of a run on one clock.
#[derive(Debug)]
pub struct Aligned<'a> {
    samples: &'a Samples,
    /// `ts2` and `ts3` on A's clock, except for a constant.
    at_b: Option<[Vec<i64>; 2]>,
    /// The movements that were taken out. None if both ends have one clock, or if too few packets came back
    /// to tell.
    pub moves: Option<ClockMoves>,
}

impl<'a> Aligned<'a> {
    /// Takes the movements of B's clock out of a run. At most 2^32 packets are examined.
    pub fn of(info: &RunInfo, samples: &'a Samples) -> Self {
        let as_it_is = Aligned { samples, at_b: None, moves: None };
        if info.same_clock {
            return as_it_is;
        }
        let anchors = anchors(samples);
        if anchors.len() < ANCHORS_MIN {
            return as_it_is;
        }
        let track = Track::of(samples, &anchors);
        let moves = track.moves(info);
        Aligned { samples, at_b: Some(track.take_out(samples)), moves: Some(moves) }
    }

    /// Packet numbers.
    pub fn ids(&self) -> &'a [u64] {
        self.samples.ids()
    }

    /// All stamps of one kind, ns or [`MISSING`].
    pub fn stamps(&self, stamp: Stamp) -> &[i64] {
        match (&self.at_b, stamp) {
            (Some([ts2, _]), Stamp::Ts2) => ts2,
            (Some([_, ts3]), Stamp::Ts3) => ts3,
            _ => self.samples.stamps(stamp),
        }
    }

    /// How many packets.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// True without packets.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

/// The times of one packet's two ways by its stamps, ns: there and back, if known.
fn ways(samples: &Samples, row: usize) -> (Option<i64>, Option<i64>) {
    let [ts1, ts2, ts3, ts4] = Stamp::ALL.map(|stamp| samples.stamps(stamp)[row]);
    let way = |from: i64, to: i64| (from != MISSING && to != MISSING).then(|| to.checked_sub(from)).flatten();
    (way(ts1, ts2), way(ts3, ts4))
}

/// A packet that nothing has delayed, and the clock offset that follows from it.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    row: usize,
    offset: i64,
    /// Length of both ways together, ns.
    both: i64,
}

fn anchors(samples: &Samples) -> Vec<Anchor> {
    let rows = samples.len().min(u32::MAX as usize);
    let mut all: Vec<Anchor> = (0..rows)
        .filter_map(|row| {
            let (Some(there), Some(back)) = ways(samples, row) else { return None };
            let both = there.checked_add(back).filter(|both| (0..=JUMP_NS).contains(both))?;
            let offset = i64::try_from((i128::from(there) - i128::from(back)) / 2).ok()?;
            Some(Anchor { row, offset, both })
        })
        .collect();
    let mut both: Vec<i64> = all.iter().map(|anchor| anchor.both).collect();
    let longest = middle(&mut both, SHORTEST);
    all.retain(|anchor| anchor.both <= longest);
    all
}

/// The offset along a run.
struct Track {
    /// Row and offset of each anchor, smoothed.
    points: Vec<(usize, i64)>,
    /// By anchor: true if the clocks jumped between it and the previous anchor, or if B is a new process.
    jumps: Vec<bool>,
    /// By how much the clocks usually move from one row to the next, ns.
    drift: f64,
    /// The shortest ways, ns: there, back.
    shortest: (i64, i64),
    tolerance: i64,
}

impl Track {
    fn of(samples: &Samples, anchors: &[Anchor]) -> Track {
        let spread = {
            let least = anchors.iter().map(|anchor| anchor.both).min().unwrap_or(0);
            anchors.iter().map(|anchor| anchor.both).max().unwrap_or(0) - least
        };
        let tolerance = MOVE_MIN_NS.max(2 * spread);
        let apart = |from: &Anchor, to: &Anchor| (to.row - from.row) as f64;
        let mut rates: Vec<i64> = anchors
            .windows(RATE_ANCHORS.min(anchors.len() - 1) + 1)
            .map(|some| {
                let (from, to) = (&some[0], &some[some.len() - 1]);
                // In millionths of a nanosecond per row.
                ((to.offset.saturating_sub(from.offset)) as f64 / apart(from, to) * 1e6) as i64
            })
            .collect();
        let drift = middle(&mut rates, 0.5) as f64 / 1e6;
        let mut restarts = samples.restarts().iter().map(|restart| restart.row).peekable();
        let mut jumps = vec![true; anchors.len()];
        for at in 1..anchors.len() {
            let (from, to) = (&anchors[at - 1], &anchors[at]);
            let mut another = false;
            while restarts.next_if(|&row| row <= to.row as u64).is_some_and(|row| row > from.row as u64) {
                another = true;
            }
            let moved = to.offset.saturating_sub(from.offset) as f64 - drift * apart(from, to);
            jumps[at] = another || moved.abs() > tolerance as f64;
        }
        let points = smooth(anchors, &jumps);
        let mut shortest = (i64::MAX, i64::MAX);
        for (anchor, (row, offset)) in anchors.iter().zip(&points) {
            if let (Some(there), Some(back)) = ways(samples, anchor.row) {
                debug_assert_eq!(anchor.row, *row);
                shortest.0 = shortest.0.min(there.saturating_sub(*offset));
                shortest.1 = shortest.1.min(back.saturating_add(*offset));
            }
        }
        Track { points, jumps, drift, shortest, tolerance }
    }

    /// Whether a packet with these ways can have been sent at this offset.
    fn fits(&self, (there, back): (Option<i64>, Option<i64>), offset: i64) -> bool {
        let slack = self.tolerance / 2;
        there.is_none_or(|there| there.saturating_sub(offset) >= self.shortest.0.saturating_sub(slack))
            && back.is_none_or(|back| back.saturating_add(offset) >= self.shortest.1.saturating_sub(slack))
    }

    /// The offset nearest to a guess at which neither of these ways is shorter than the shortest.
    fn nearest(&self, (there, back): (Option<i64>, Option<i64>), guess: i64) -> i64 {
        let most = there.map_or(guess, |there| there.saturating_sub(self.shortest.0));
        let least = back.map_or(guess, |back| self.shortest.1.saturating_sub(back));
        guess.min(most).max(least.min(most))
    }

    /// B's stamps minus the offset.
    fn take_out(&self, samples: &Samples) -> [Vec<i64>; 2] {
        let [mut ts2, mut ts3] = [Stamp::Ts2, Stamp::Ts3].map(|stamp| samples.stamps(stamp).to_vec());
        let mut next = 0;
        for row in 0..samples.len() {
            while next < self.points.len() && self.points[next].0 <= row {
                next += 1;
            }
            let drifted = |(from, offset): (usize, i64)| {
                let rows = row as f64 - from as f64;
                offset.saturating_add((self.drift * rows) as i64)
            };
            let offset = match (next.checked_sub(1).map(|at| self.points[at]), self.points.get(next)) {
                (Some((at, offset)), _) if at == row => offset,
                (Some(before), Some(&after)) if !self.jumps[next] => {
                    let share = (row - before.0) as f64 / (after.0 - before.0) as f64;
                    before.1.saturating_add((after.1.saturating_sub(before.1) as f64 * share) as i64)
                }
                (Some(before), Some(&after)) => {
                    let ways = ways(samples, row);
                    let (early, late) = (drifted(before), drifted(after));
                    match (self.fits(ways, early), self.fits(ways, late)) {
                        (true, false) => early,
                        (false, true) => late,
                        // In the middle of a fast slew.
                        (false, false) => {
                            let share = (row - before.0) as f64 / (after.0 - before.0) as f64;
                            self.nearest(ways, early.saturating_add((late.saturating_sub(early) as f64 * share) as i64))
                        }
                        (true, true) if row - before.0 <= after.0 - row => early,
                        (true, true) => late,
                    }
                }
                (Some(only), None) | (None, Some(&only)) => drifted(only),
                (None, None) => 0,
            };
            for ts in [&mut ts2[row], &mut ts3[row]] {
                if *ts != MISSING {
                    *ts = ts.saturating_sub(offset);
                }
            }
        }
        [ts2, ts3]
    }

    /// The movements beyond the usual drift: jumps, of which those close to each other count as one, and
    /// stretches with another rate.
    fn moves(&self, info: &RunInfo) -> ClockMoves {
        let rows = |from: usize, to: usize| (self.points[to].0 - self.points[from].0) as f64;
        let beyond = |from: usize, to: usize| {
            (self.points[to].1.saturating_sub(self.points[from].1) as f64 - self.drift * rows(from, to)) as i64
        };
        let period = (info.period_ns as f64).max(1.0);
        let whole = self.points.last().map_or(0, |last| last.0 - self.points[0].0) as f64;
        let stretch = (STRETCH_NS / period).min(whole / 16.0).max(1.0);
        let mut all: Vec<Move> = Vec::new();
        let mut add = |from: usize, to: usize| {
            let (row, until_row) = (self.points[from].0 as u64, self.points[to].0 as u64);
            let by_ns = beyond(from, to);
            match all.last_mut() {
                Some(last) if row <= last.until_row + SAME_MOVE_ROWS && (last.by_ns > 0) == (by_ns > 0) => {
                    last.until_row = until_row;
                    last.by_ns = last.by_ns.saturating_add(by_ns);
                }
                _ => all.push(Move { row, until_row, by_ns }),
            }
        };
        let mut from = 0;
        for at in 1..self.points.len() {
            if self.jumps[at] {
                if beyond(from, at - 1).abs() > self.tolerance {
                    add(from, at - 1);
                }
                add(at - 1, at);
                from = at;
            } else if rows(from, at) >= stretch {
                if beyond(from, at).abs() > self.tolerance {
                    add(from, at);
                }
                from = at;
            }
        }
        let moves_total = all.len() as u64;
        all.truncate(MOVES_MAX);
        ClockMoves { drift_ppm: self.drift / period * 1e6, moves: all, moves_total }
    }
}

/// Running medians of the offsets, not across jumps, with the same number of anchors to either side.
fn smooth(anchors: &[Anchor], jumps: &[bool]) -> Vec<(usize, i64)> {
    let mut from = 0;
    let mut points = Vec::with_capacity(anchors.len());
    let mut near = Vec::with_capacity(2 * REACH + 1);
    while from < anchors.len() {
        let to = (from + 1..anchors.len()).find(|&at| jumps[at]).unwrap_or(anchors.len());
        for at in from..to {
            let reach = REACH.min(at - from).min(to - 1 - at);
            near.clear();
            near.extend(anchors[at - reach..=at + reach].iter().map(|anchor| anchor.offset));
            points.push((anchors[at].row, middle(&mut near, 0.5)));
        }
        from = to;
    }
    points
}

#[cfg(test)]
mod tests;
