// SPDX-License-Identifier: Apache-2.0
//! Disturbances of known period and length are planted; are they found, and are they found to be what they are?

use fide_jitter::families::{Families, Family, FamilyOptions, Shape, find_families};
use fide_jitter::{CulpritKind, Schedule, Stamp};
use fide_pingpong::port::Method;
use fide_testbed::Testbed;

use crate::plant::{PLANTED_BY, Plant};
use crate::run::{Cores, How, measure};

/// Most that a recovered period may be off, as a share.
pub const PERIOD_OFF: f64 = 0.001;
/// Most that a recovered duration may be off, as a share.
pub const DURATION_OFF: f64 = 0.2;
/// Packets that a run is long enough to have hit, about.
const HITS: u64 = 45;
/// Windows that a run has at least.
const WINDOWS_MIN: u64 = 24;

/// Periods (ms) and durations (us) that are planted: no small multiples of any sending interval.
pub const PLANTED: [(f64, f64); 12] = [
    (3.618, 50.0),
    (3.618, 150.0),
    (7.382, 100.0),
    (12.618, 200.0),
    (12.618, 600.0),
    (25.382, 300.0),
    (50.618, 500.0),
    (50.618, 1000.0),
    (100.382, 800.0),
    (200.618, 1500.0),
    (500.618, 1500.0),
    (2000.382, 2000.0),
];
/// Sending intervals, us.
pub const SENDING_US: [u64; 4] = [999, 1000, 1001, 200];

/// One planted disturbance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The sender's core, or the answering one's.
    pub at_sender: bool,
    pub schedule: Schedule,
    pub sending_ns: u64,
    pub period_ns: u64,
    pub duration_ns: u64,
}

impl Case {
    /// All of them: every planted one at every sending interval; every second at the sender, of these every second on a
    /// relative schedule.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let cases = PLANTED.iter().enumerate().flat_map(|(at, (period_ms, duration_us))| {
            SENDING_US.iter().enumerate().map(move |(interval, sending_us)| {
                let at_sender = (at + interval) % 2 == 1;
                let relative = at_sender && at % 4 < 2;
                Self {
                    at_sender,
                    schedule: if relative { Schedule::Relative } else { Schedule::Absolute },
                    sending_ns: sending_us * 1000,
                    period_ns: (period_ms * 1e6) as u64,
                    duration_ns: (duration_us * 1e3) as u64,
                }
            })
        });
        cases.collect()
    }

    /// How many packets hit it often enough.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let hits_per_window = self.duration_ns as f64 / self.sending_ns as f64;
        let windows = (HITS as f64 / hits_per_window.min(1.0)).max(WINDOWS_MIN as f64);
        (windows * self.period_ns as f64 / self.sending_ns as f64) as u64
    }
}

/// What became of one.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub case: Case,
    /// It keeps an absolute schedule, ns.
    pub period_ns: f64,
    /// The median time for which the scheduler gave it the core: what it spins for, and being switched to and from, ns.
    pub duration_ns: f64,
    pub windows: usize,
    /// All that the analysis tells.
    pub found: Families,
}

impl Outcome {
    /// The family that is the planted one, if there is.
    #[must_use]
    pub fn recovered(&self) -> Option<&Family> {
        self.found.families.iter().find(|family| {
            (family.period_ns / self.period_ns - 1.0).abs() <= PERIOD_OFF
                && self.duration_fits(family)
                && self.kind_fits(family)
        })
    }

    /// D is told within its bounds; where the sending interval cannot tell it, the range must hold it.
    fn duration_fits(&self, family: &Family) -> bool {
        if family.duration_known {
            return (family.duration_ns / self.duration_ns - 1.0).abs() <= DURATION_OFF;
        }
        let (low, high) = family.duration_range_ns;
        low * (1.0 - DURATION_OFF) <= self.duration_ns && self.duration_ns <= high * (1.0 + DURATION_OFF)
    }

    fn kind_fits(&self, family: &Family) -> bool {
        let stamp = if self.case.at_sender { Stamp::Ts1 } else { Stamp::Ts2 };
        let expected = fide_jitter::families::expected_shape(
            &fide_jitter::synth::Disturbance::new(stamp, self.period_ns, self.duration_ns),
            self.case.schedule,
            self.case.sending_ns as f64,
            self.case.packets(),
        );
        family.stamp == stamp && expected.is_none_or(|shape: Shape| family.shape == shape)
    }
}

/// Plants, measures and analyses.
///
/// # Errors
/// What keeps it from being planted or measured.
pub fn run(bed: &Testbed, cores: Cores, case: Case) -> anyhow::Result<Outcome> {
    let how = How {
        method: Method::Udp,
        schedule: case.schedule,
        period_ns: case.sending_ns,
        packets: case.packets(),
        record: true,
    };
    let plant = Plant::thread(if case.at_sender { cores.a } else { cores.b }, case.period_ns, case.duration_ns)?;
    let measured = measure(bed, cores, how)?;
    let windows = plant.stop();
    let of_plant = |event: &&fide_jitter::Event| {
        event.kind == CulpritKind::Thread
            && measured.names.get(event.name as usize).is_some_and(|name| name == PLANTED_BY)
    };
    let mut lengths: Vec<i64> =
        measured.events.iter().filter(of_plant).map(|event| event.end_ns - event.start_ns).collect();
    lengths.sort_unstable();
    anyhow::ensure!(!lengths.is_empty(), "what was planted was not recorded: {:?}", measured.info.isolation);
    Ok(Outcome {
        case,
        period_ns: case.period_ns as f64,
        duration_ns: lengths[lengths.len() / 2] as f64,
        windows: windows.len(),
        found: find_families(&measured.info, &measured.samples, &FamilyOptions::default()),
    })
}
