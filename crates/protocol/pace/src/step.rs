// SPDX-License-Identifier: Apache-2.0
//! The paces of all steps between two applications, and which step is the bottleneck (X-PACE §III, §IV-B).
//!
//! A *pace* is the time that a step takes for one message: a small pace is fast. Each step's pace is measured
//! where the step runs ([`Meter`]), carried forward in DATA packets and back in FEEDBACK packets, and all ends see
//! the same five. Steps that are measured for each packet, or in bytes a second, are converted by what messages have taken of late.

use crate::windowed::{Largest, Windowed};

/// How long a pace counts, unless the application says otherwise: as long as a system is expected to keep it (X-PACE §V-A3).
pub const WINDOW_NS: u64 = 2_000_000_000;

/// A step of the way from one application to the other, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Step {
    /// The application that sends.
    Send,
    /// This transport at the sender: from a message to its packets.
    Transmit,
    /// The slowest link of the network.
    Network,
    /// This transport at the receiver: from packets to messages.
    Receive,
    /// The application that receives.
    Deliver,
}

impl Step {
    pub const ALL: [Self; 5] = [Self::Send, Self::Transmit, Self::Network, Self::Receive, Self::Deliver];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Transmit => "transmit",
            Self::Network => "network",
            Self::Receive => "receive",
            Self::Deliver => "deliver",
        }
    }
}

/// The pace of each step in nanoseconds for each message; 0 where it is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Paces([u64; 5]);

impl Paces {
    #[must_use]
    pub fn get(&self, step: Step) -> u64 {
        self.0[step as usize]
    }

    pub fn set(&mut self, step: Step, ns: u64) {
        self.0[step as usize] = ns;
    }

    /// The slowest step; of several the last one (X-PACE §III-B). None: no pace is known.
    #[must_use]
    pub fn bottleneck(&self) -> Option<(Step, u64)> {
        let slowest = Step::ALL.into_iter().max_by_key(|step| self.get(*step))?;
        let pace = self.get(slowest);
        (pace > 0).then_some((slowest, pace))
    }

    /// The slowest of the steps behind this one, itself included: what is passed back to the step before it.
    #[must_use]
    pub fn backward(&self, from: Step) -> u64 {
        Step::ALL.into_iter().filter(|step| *step >= from).map(|step| self.get(step)).max().unwrap_or(0)
    }

    /// The slowest of the steps up to this one: what is passed on to the step behind it.
    #[must_use]
    pub fn forward(&self, to: Step) -> u64 {
        Step::ALL.into_iter().filter(|step| *step <= to).map(|step| self.get(step)).max().unwrap_or(0)
    }
}

/// What one turn of a step took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// The step's own work, without its waiting for another step.
    pub effective_ns: u64,
    /// From the beginning of one turn to the beginning of the next.
    pub total_ns: u64,
}

/// The share of the newest turn in the running mean: an eighth, as TCP smooths its round trips.
const SHARE: u64 = 8;
/// A turn that is longer than this, and than so many of the mean, was a pause: it counts as the longer of them in the mean, which would
/// take hundreds of turns of such a pace to forget it.
const PAUSE_NS: u64 = 4_000_000_000;
const PAUSE_TURNS: u64 = 16;

/// Measures one step, whose turns begin and end one after the other, with waits inside of them.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    effective: Windowed<Largest>,
    total: Windowed<Largest>,
    mean_effective_ns: u64,
    mean_total_ns: u64,
    /// When the last turn began, and what of it was waiting.
    begun_ns: Option<u64>,
    waited_ns: u64,
    /// When the step began to wait.
    waits_since_ns: Option<u64>,
    last: Pace,
}

impl Meter {
    /// `window_ns`: how long a turn counts.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        Self {
            effective: Windowed::new(window_ns),
            total: Windowed::new(window_ns),
            mean_effective_ns: 0,
            mean_total_ns: 0,
            begun_ns: None,
            waited_ns: 0,
            waits_since_ns: None,
            last: Pace::default(),
        }
    }

    /// A turn begins; the one before it ends. Returns what that one took.
    pub fn turn(&mut self, now_ns: u64) -> Option<Pace> {
        self.goes_on(now_ns);
        let begun_ns = self.begun_ns.replace(now_ns)?;
        let total_ns = now_ns.saturating_sub(begun_ns);
        let effective_ns = total_ns.saturating_sub(std::mem::take(&mut self.waited_ns));
        self.note(now_ns, Pace { effective_ns, total_ns });
        Some(self.last)
    }

    /// The step waits for another one.
    pub fn waits(&mut self, now_ns: u64) {
        self.waits_since_ns.get_or_insert(now_ns);
    }

    /// It waits no longer.
    pub fn goes_on(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.waits_since_ns.take() {
            self.waited_ns += now_ns.saturating_sub(since_ns);
        }
    }

    /// A turn that was measured elsewhere.
    pub fn note(&mut self, now_ns: u64, pace: Pace) {
        self.last = pace;
        self.effective.update(now_ns, Largest(pace.effective_ns));
        self.total.update(now_ns, Largest(pace.total_ns));
        let smooth = |mean: &mut u64, new: u64| {
            *mean = if *mean == 0 { new } else { mean.saturating_sub(*mean / SHARE).saturating_add(new / SHARE) };
        };
        let pause_ns = self.mean_effective_ns.saturating_mul(PAUSE_TURNS).max(PAUSE_NS);
        smooth(&mut self.mean_effective_ns, pace.effective_ns.min(pause_ns));
        smooth(&mut self.mean_total_ns, pace.total_ns);
    }

    /// The slowest turn of the window (X-PACE §IV-B1); zeros before the first.
    #[must_use]
    pub fn slowest(&self, now_ns: u64) -> Pace {
        let get = |filter: &Windowed<Largest>| filter.at(now_ns).map_or(0, |largest| largest.0);
        Pace { effective_ns: get(&self.effective), total_ns: get(&self.total) }
    }

    /// The running mean of the turns, in whose own work a long pause counts for less; zeros before the first.
    #[must_use]
    pub fn mean(&self) -> Pace {
        Pace { effective_ns: self.mean_effective_ns, total_ns: self.mean_total_ns }
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new(WINDOW_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn last_of_equal_steps_is_the_bottleneck() {
        let mut paces = Paces::default();
        assert_eq!(paces.bottleneck(), None);
        paces.set(Step::Transmit, 5);
        paces.set(Step::Receive, 5);
        assert_eq!(paces.bottleneck(), Some((Step::Receive, 5)));
        paces.set(Step::Send, 7);
        assert_eq!(paces.bottleneck(), Some((Step::Send, 7)));
    }

    proptest! {
        /// What is passed forward to the last step, and back to the first, is the bottleneck's pace.
        #[test]
        fn both_ends_learn_the_bottleneck(all in prop::array::uniform5(1_u64..1000)) {
            let mut paces = Paces::default();
            Step::ALL.into_iter().zip(all).for_each(|(step, pace)| paces.set(step, pace));
            let (_, slowest) = paces.bottleneck().unwrap();
            prop_assert_eq!(paces.backward(Step::Send), slowest);
            prop_assert_eq!(paces.forward(Step::Deliver), slowest);
        }
    }

    #[test]
    fn waiting_is_no_work() {
        let mut meter = Meter::default();
        assert_eq!(meter.turn(0), None);
        meter.waits(2 * MS);
        meter.waits(3 * MS);
        meter.goes_on(7 * MS);
        assert_eq!(meter.turn(10 * MS), Some(Pace { effective_ns: 5 * MS, total_ns: 10 * MS }));
        // A wait that lasts until the next turn.
        meter.waits(11 * MS);
        assert_eq!(meter.turn(15 * MS), Some(Pace { effective_ns: MS, total_ns: 5 * MS }));
        assert_eq!(meter.slowest(15 * MS), Pace { effective_ns: 5 * MS, total_ns: 10 * MS });
        assert_eq!(meter.slowest(15 * MS + WINDOW_NS), Pace { effective_ns: MS, total_ns: 5 * MS });
        assert_eq!(meter.slowest(16 * MS + WINDOW_NS), Pace::default(), "nothing is known any more");
    }
}
