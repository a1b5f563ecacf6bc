// SPDX-License-Identifier: Apache-2.0
//! What the two ends of a bench send each other.
//!
//! ```text
//!  probe    0, u64 its number, u64 when it was made by the sender's clock in us,
//!           i64 by how much the receiver's clock is ahead in us, u32 how sure that is,
//!           u32 how long the receiver is to work on it in us, filler
//!  ask      1, u32 its number, u8 whether of the whole run
//!  answer   2, u32 of which ask, a `Tally` as JSON
//! ```

use std::time::Duration;

use fide_pace_socket::Offset;
use serde::{Deserialize, Serialize};

/// Bytes of the shortest probe.
pub(super) const PROBE_LEN: usize = 33;
/// Longest work on a message.
pub(super) const WORK_MAX: Duration = Duration::from_secs(10);
const ASK_LEN: usize = 6;

/// A message of a bench.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Exchange {
    Probe(Probe),
    Ask { number: u32, of_all: bool },
    Answer { number: u32, tally: Tally },
}

/// A message that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) number: u64,
    /// By the clock of the end that made it, in microseconds.
    pub(super) made_us: u64,
    /// What that end knows of the other's clock. It gets feedback for its packets, so that it knows more than the other does.
    pub(super) clock: Offset,
    /// What the receiver's application is to take for it, in microseconds, a fifth more or less.
    pub(super) work_us: u32,
}

impl Probe {
    /// The work on it. The numbers spread it evenly between a fifth less and a fifth more, as X-PACE §V-B1 has it, and alike in each
    /// run.
    pub(super) fn work(&self) -> Duration {
        // Of the golden ratio: numbers that follow each other come to lie far apart.
        let spread = (self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as f64 / f64::from(u32::MAX);
        Duration::from_micros(self.work_us.into()).min(WORK_MAX).mul_f64(0.8 + 0.4 * spread)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (made_us, rest) = rest.split_first_chunk()?;
        let (ahead_us, rest) = rest.split_first_chunk()?;
        let (uncertainty_us, rest) = rest.split_first_chunk()?;
        let uncertainty_us = u32::from_be_bytes(*uncertainty_us);
        let work_us = u32::from_be_bytes(*rest.first_chunk()?);
        let clock = Offset { us: i64::from_be_bytes(*ahead_us), uncertainty_us: uncertainty_us.into() };
        Some(Self { number: u64::from_be_bytes(*number), made_us: u64::from_be_bytes(*made_us), clock, work_us })
    }

    /// Writes it to the front of a message.
    pub(super) fn write(&self, into: &mut [u8]) {
        let uncertainty_us = u32::try_from(self.clock.uncertainty_us).unwrap_or(u32::MAX);
        into[0] = 0;
        into[1..9].copy_from_slice(&self.number.to_be_bytes());
        into[9..17].copy_from_slice(&self.made_us.to_be_bytes());
        into[17..25].copy_from_slice(&self.clock.us.to_be_bytes());
        into[25..29].copy_from_slice(&uncertainty_us.to_be_bytes());
        into[29..PROBE_LEN].copy_from_slice(&self.work_us.to_be_bytes());
    }
}

impl Exchange {
    /// None: no bench sends that.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match kind {
            0 => Probe::read(rest).map(Self::Probe),
            1 => {
                let (number, rest) = rest.split_first_chunk()?;
                let of_all = *rest.first()? != 0;
                Some(Self::Ask { number: u32::from_be_bytes(*number), of_all })
            }
            2 => {
                let (number, rest) = rest.split_first_chunk()?;
                let tally = serde_json::from_slice(rest).ok()?;
                Some(Self::Answer { number: u32::from_be_bytes(*number), tally })
            }
            _ => None,
        }
    }
}

pub(super) fn ask(number: u32, of_all: bool) -> [u8; ASK_LEN] {
    let [a, b, c, d] = number.to_be_bytes();
    [1, a, b, c, d, of_all.into()]
}

pub(super) fn answer(number: u32, tally: &Tally) -> Vec<u8> {
    let mut bytes = [&[2], &number.to_be_bytes()[..]].concat();
    // A tally has nothing that JSON has no form for.
    let _ = serde_json::to_writer(&mut bytes, tally);
    bytes
}

/// What the end that takes messages has seen: since the ask before, or of the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Probes delivered, and probes before the last one of these that were not.
    pub(super) delivered: u64,
    pub(super) missing: u64,
    /// Messages that were here when they expired; only of the whole run.
    pub(super) late: u64,
    pub(super) delivery: Percentiles,
    /// Between two deliveries, whose probes follow each other.
    pub(super) between: Percentiles,
    /// By so much each delivery time may be wrong: the clocks of two hosts.
    pub(super) uncertainty_us: u64,
    /// From when the first of them was made until the last one came.
    pub(super) whole_us: u64,
}

/// Of some times, in microseconds; zeros of none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Percentiles {
    pub(super) p1_us: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) p999_us: u64,
    pub(super) longest_us: u64,
}

impl Percentiles {
    /// Sorts the times.
    pub(super) fn of(times_us: &mut [u32]) -> Self {
        times_us.sort_unstable();
        let at = |per_mille: usize| {
            let index = (times_us.len() * per_mille).div_ceil(1000).saturating_sub(1);
            times_us.get(index).copied().unwrap_or(0).into()
        };
        Self { p1_us: at(10), p50_us: at(500), p99_us: at(990), p999_us: at(999), longest_us: at(1000) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let mut bytes = [9; 40];
        let clock = Offset { us: -5, uncertainty_us: 70_000 };
        let probe = Probe { number: 7, made_us: 1_000_000_000_000, clock, work_us: 5000 };
        probe.write(&mut bytes);
        assert_eq!(Exchange::read(&bytes), Some(Exchange::Probe(probe)));
        assert_eq!(Exchange::read(&ask(3, true)), Some(Exchange::Ask { number: 3, of_all: true }));
        let tally = Tally { delivered: 5, delivery: Percentiles::of(&mut [1, 2]), ..Tally::default() };
        assert_eq!(Exchange::read(&answer(4, &tally)), Some(Exchange::Answer { number: 4, tally }));
        for cut in [&[][..], &[0; PROBE_LEN - 1], &[1; ASK_LEN - 1], &[2, 0, 0, 0, 0, b'{'], &[3; 30]] {
            assert_eq!(Exchange::read(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn work_is_a_fifth_more_or_less_than_was_asked_for() {
        let clock = Offset { us: 0, uncertainty_us: 0 };
        let each: Vec<f64> = (0..1000)
            .map(|number| Probe { number, made_us: 0, clock, work_us: 5000 }.work().as_secs_f64() * 1e3)
            .collect();
        assert!(each.iter().all(|ms| (4.0..=6.0).contains(ms)), "{each:?}");
        let mean = each.iter().sum::<f64>() / 1000.0;
        let beyond = each.iter().filter(|ms| **ms > 5.5).count();
        assert!((mean - 5.0).abs() < 0.02 && (230..270).contains(&beyond), "{mean} {beyond}");
        let longest = Probe { number: 1, made_us: 0, clock, work_us: u32::MAX };
        assert!(longest.work() <= WORK_MAX.mul_f64(1.2));
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut times: Vec<u32> = (1..=1000).rev().collect();
        let of = Percentiles::of(&mut times);
        assert_eq!((of.p1_us, of.p50_us, of.p99_us, of.p999_us, of.longest_us), (10, 500, 990, 999, 1000));
        let one = Percentiles::of(&mut [5]);
        assert_eq!((one.p1_us, one.longest_us), (5, 5));
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
    }
}
