// SPDX-License-Identifier: Apache-2.0
//! The loop's clocks: which clock leases and timeouts are counted on, and whether that clock stood still
//! (docs/internals/clocks.md).
//!
//! The detector counts on CLOCK_MONOTONIC_RAW. The kernel's stamps, the times in programs' events and the
//! loop's waits are on CLOCK_MONOTONIC, and converted here. Each look asks two witnesses whether the
//! machine stood still without that clock: CLOCK_BOOTTIME, which counts suspensions, and the processor's
//! counter, which goes on while some hypervisors stop a guest and its kernel's clock.

mod vmclock;

use std::{fs, path::Path, sync::OnceLock};

use fide_detector::Event;
use fide_host_tuning::machine::ClockRate;
use fide_sys::clock::{self, ASLEEP_NOISE_NS, FOREVER_NS, Lease};
use serde::{Deserialize, Serialize};
use vmclock::VmClock;

/// Names the kernel's time source.
const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Names the time sources that the kernel considers good enough.
const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
/// Attempts at one look, for a loop that loses its core in between.
const LOOKS_MAX: usize = 3;
/// A look that took longer than this does not measure the distance between two clocks.
const LOOK_NS: u64 = 20_000;
/// If every look takes longer (on a hypervisor that traps every reading of a clock), the distance is taken
/// from a long look once the last measurement is older than this. At the kernel's slewing limit the old
/// distance is then off by a tenth of this time.
const RENEW_NS: u64 = 100_000_000;
/// How much the counter and the clock may differ from one look to the next, apart from their rates.
const EXCESS_NS: u64 = 100_000;
/// How much their rates may differ, parts per million: far more than crystals do.
const RATE_PPM: u64 = 200;
/// How long the counter is compared with the clock, twice, before it is trusted.
const CALIBRATION_NS: u64 = 200_000_000;
/// Comparisons that may disagree before the counter is given up.
const CALIBRATIONS_MAX: u32 = 16;
/// How much the counters of several processors may differ.
const COUNTERS_APART_NS: u64 = 1_000_000;
/// How much faster than the other clock a slewed one may run at most, as one part of this many: the kernel
/// allows NTP daemons a tenth (`tick`), and 500 ppm more.
const SLEW_PART: u64 = 9;

/// One look: a reading of each clock, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    pub mono_ns: u64,
    pub boot_ns: u64,
    pub mono_after_ns: u64,
    pub tsc: u64,
    pub raw_ns: u64,
    pub tsc_after: u64,
    pub mono_last_ns: u64,
    /// The hypervisor's disruption marker (module `vmclock`), if there is one.
    pub marker: Option<u64>,
}

/// Mapped before the loop begins.
static VMCLOCK: OnceLock<Option<VmClock>> = OnceLock::new();

/// A moment on both clocks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// CLOCK_MONOTONIC, which clients use.
    pub mono_ns: u64,
    /// CLOCK_MONOTONIC_RAW, which the detector uses.
    pub raw_ns: u64,
}

/// The loop's source of time.
pub trait Clocks {
    fn now(&mut self) -> Now;

    /// Reads all clocks. Also whether the readings belong together.
    fn look(&mut self) -> (Look, bool);
}

/// The clocks of this host; no system call (vDSO).
pub struct HostClocks;

impl Clocks for HostClocks {
    fn now(&mut self) -> Now {
        Now { mono_ns: clock::mono_ns(), raw_ns: clock::raw_ns() }
    }

    fn look(&mut self) -> (Look, bool) {
        narrow(Look::now)
    }
}

/// Whether this machine's hypervisor reports that it has moved the machine.
#[must_use]
pub fn hypervisor_reports_moves() -> bool {
    VMCLOCK.get().is_some_and(Option::is_some)
}

impl Look {
    /// Reads all clocks; no system call (vDSO).
    #[must_use]
    pub fn now() -> Self {
        Self {
            mono_ns: clock::mono_ns(),
            boot_ns: clock::boot_ns(),
            mono_after_ns: clock::mono_ns(),
            tsc: clock::tsc(),
            raw_ns: clock::raw_ns(),
            tsc_after: clock::tsc(),
            mono_last_ns: clock::mono_ns(),
            marker: VMCLOCK.get().and_then(|vmclock| Some(vmclock.as_ref()?.marker())),
        }
    }

    /// The time from the first reading to the last.
    fn took_ns(&self) -> u64 {
        self.mono_last_ns.saturating_sub(self.mono_ns)
    }

    /// Whether its readings belong together.
    fn is_narrow(&self) -> bool {
        // At any rate of a counter between 0.5 and 5 GHz.
        self.took_ns() <= LOOK_NS && self.tsc_after.saturating_sub(self.tsc) <= LOOK_NS * 2
    }

    /// How long the machine was suspended at least.
    fn asleep_ns(&self) -> u64 {
        self.boot_ns.saturating_sub(self.mono_after_ns)
    }
}

/// Why the clock may have stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The machine was suspended for this long.
    Suspended { ns: u64 },
    /// The processor's counter went on for this long while the clock stood.
    Stopped { ns: u64 },
    /// The counter went back, or runs at another rate, or the hypervisor reports it: this is another
    /// processor than before.
    Moved,
}

impl Doubt {
    /// How long the clock stood still, as far as is known.
    #[must_use]
    pub fn gap_ns(self) -> u64 {
        match self {
            Self::Suspended { ns } | Self::Stopped { ns } => ns,
            Self::Moved => 0,
        }
    }
}

/// The processor's counter as a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Witness {
    /// It would prove nothing: see [`Stand::witness`].
    Absent,
    /// Being compared with the clock; the first of two results, and how many were discarded.
    Calibrating {
        since: Option<Point>,
        first: Option<Rate>,
        tries: u32,
    },
    Trusted {
        rate: Rate,
        last: Point,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Point {
    raw_ns: u64,
    /// Read before and after the clock.
    tsc: (u64, u64),
}

/// A number of cycles, and the nanoseconds that they took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Rate {
    cycles: u64,
    ns: u64,
}

impl Rate {
    fn ns_of(self, cycles: u64) -> u64 {
        u64::try_from(u128::from(cycles) * u128::from(self.ns) / u128::from(self.cycles.max(1))).unwrap_or(u64::MAX)
    }

    fn cycles_of(self, ns: u64) -> u64 {
        u64::try_from(u128::from(ns) * u128::from(self.cycles) / u128::from(self.ns.max(1))).unwrap_or(u64::MAX)
    }

    /// Whether both rates are the same, within what crystals differ by.
    fn agrees(self, other: Self) -> bool {
        let ns = other.ns_of(self.cycles);
        self.cycles != 0 && ns.abs_diff(self.ns) <= self.ns / 1_000_000 * RATE_PPM / 2
    }
}

impl Witness {
    const NEW: Self = Self::Calibrating { since: None, first: None, tries: 0 };

    /// One narrow look. Returns a doubt if the clock may not have advanced.
    fn look(&mut self, now: Point) -> Option<Doubt> {
        match *self {
            Self::Absent => None,
            Self::Calibrating { since: None, first, tries } => {
                *self = Self::Calibrating { since: Some(now), first, tries };
                None
            }
            Self::Calibrating { since: Some(since), first, tries } => {
                let ns = now.raw_ns.saturating_sub(since.raw_ns);
                if ns < CALIBRATION_NS {
                    return None;
                }
                let rate = Rate { cycles: now.tsc.0.saturating_sub(since.tsc.0), ns };
                *self = match first {
                    None => Self::Calibrating { since: Some(now), first: Some(rate), tries },
                    Some(first) if first.agrees(rate) => Self::Trusted { rate, last: now },
                    Some(_) if tries + 1 >= CALIBRATIONS_MAX => Self::Absent,
                    Some(_) => Self::Calibrating { since: Some(now), first: None, tries: tries + 1 },
                };
                None
            }
            Self::Trusted { rate, last } => {
                let passed_ns = now.raw_ns.saturating_sub(last.raw_ns);
                let allowed_ns = EXCESS_NS + passed_ns / 1_000_000 * RATE_PPM;
                *self = Self::Trusted { rate, last: now };
                let at_least = now.tsc.0.checked_sub(last.tsc.1).map(|cycles| rate.ns_of(cycles));
                let at_most_ns = rate.ns_of(now.tsc.1.saturating_sub(last.tsc.0));
                let doubt = match at_least {
                    Some(ns) if ns > passed_ns + allowed_ns => Some(Doubt::Stopped { ns: ns - passed_ns }),
                    _ if at_most_ns + allowed_ns < passed_ns => Some(Doubt::Moved),
                    Some(_) => None,
                    // The brackets overlap, or the counter went back by no more than processors differ.
                    None if rate.ns_of(last.tsc.1 - now.tsc.0) <= COUNTERS_APART_NS => None,
                    None => Some(Doubt::Moved),
                };
                if doubt.is_some() {
                    *self = Self::NEW;
                }
                doubt
            }
        }
    }
}

/// The loop's knowledge of its clocks. The next agent takes it over, so that nothing between two looks is
/// missed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Clock {
    mono_ns: u64,
    raw_ns: u64,
    /// `raw_ns` was read at most this long after `mono_ns`.
    apart_ns: u64,
    asleep_ns: u64,
    witness: Witness,
    marker: Option<u64>,
    pub doubts: Doubts,
}

/// How often the machine stood still, and for how long, since this agent's loop began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubts {
    pub suspended: u64,
    pub suspended_ns: u64,
    pub stopped: u64,
    pub stopped_ns: u64,
    pub moved: u64,
}

impl Clock {
    /// With the processor's counter as a witness, or without it.
    #[must_use]
    pub fn new(look: &Look, with_counter: bool) -> Self {
        Self {
            mono_ns: look.mono_after_ns,
            raw_ns: look.raw_ns,
            apart_ns: look.took_ns(),
            asleep_ns: look.asleep_ns(),
            witness: if with_counter { Witness::NEW } else { Witness::Absent },
            marker: look.marker,
            doubts: Doubts::default(),
        }
    }

    /// With the counter if the kernel's time source calls for it.
    #[must_use]
    pub fn begin() -> Self {
        VMCLOCK.get_or_init(|| VmClock::open(Path::new(vmclock::DEVICE)));
        Self::new(&narrow(Look::now).0, Stand::read().counts)
    }

    /// Takes one look. `is_narrow`: its readings belong together. A doubt has to be acted upon before
    /// anything else.
    pub fn looked(&mut self, look: &Look, is_narrow: bool) -> Option<Doubt> {
        if is_narrow || look.raw_ns.saturating_sub(self.raw_ns) >= RENEW_NS {
            (self.mono_ns, self.raw_ns, self.apart_ns) = (look.mono_after_ns, look.raw_ns, look.took_ns());
        }
        let now = Point { raw_ns: look.raw_ns, tsc: (look.tsc, look.tsc_after) };
        // A torn look is not compared; the next one is compared with the last whole one.
        let mut stopped = if is_narrow { self.witness.look(now) } else { None };
        if self.marker.is_some() && look.marker.is_some() && self.marker != look.marker {
            // Whatever the clocks show, they were put back.
            stopped = stopped.or(Some(Doubt::Moved));
            if self.witness != Witness::Absent {
                self.witness = Witness::NEW;
            }
        }
        self.marker = look.marker.or(self.marker);
        let asleep_ns = look.asleep_ns();
        let suspended = asleep_ns > self.asleep_ns + ASLEEP_NOISE_NS;
        let doubt = if suspended { Some(Doubt::Suspended { ns: asleep_ns - self.asleep_ns }) } else { stopped };
        match doubt {
            Some(Doubt::Suspended { ns }) => {
                self.asleep_ns = asleep_ns;
                self.doubts.suspended += 1;
                self.doubts.suspended_ns += ns;
            }
            Some(Doubt::Stopped { ns }) => {
                self.doubts.stopped += 1;
                self.doubts.stopped_ns += ns;
            }
            Some(Doubt::Moved) => self.doubts.moved += 1,
            None => {}
        }
        doubt
    }

    /// Converts a time of the detector to CLOCK_MONOTONIC. 0 and "never" stay what they are.
    #[must_use]
    pub fn mono_of(&self, raw_ns: u64) -> u64 {
        match raw_ns {
            0 | FOREVER_NS => raw_ns,
            _ if raw_ns >= self.raw_ns => self.mono_ns.saturating_add(raw_ns - self.raw_ns),
            _ => self.mono_ns.saturating_sub(self.raw_ns - raw_ns).max(1),
        }
    }

    /// As [`Clock::mono_of`], but never too early on CLOCK_MONOTONIC, however that clock is slewed.
    #[must_use]
    pub fn mono_after(&self, raw_ns: u64) -> u64 {
        let ahead_ns = raw_ns.saturating_sub(self.raw_ns);
        self.mono_of(raw_ns).saturating_add(ahead_ns / (SLEW_PART - 1)).saturating_add(self.apart_ns)
    }

    /// Converts a stamp of the kernel to the detector's clock, never too early, because promises to others
    /// count from there. The stamp's age may have been counted by a clock that runs a tenth too fast.
    #[must_use]
    pub fn stamp(&self, mono_ns: u64, now_raw_ns: u64) -> u64 {
        let raw_ns = if mono_ns >= self.mono_ns {
            let since_ns = mono_ns - self.mono_ns;
            self.raw_ns.saturating_add(since_ns).saturating_add(since_ns / (SLEW_PART - 1))
        } else {
            let age_ns = self.mono_ns - mono_ns;
            self.raw_ns.saturating_sub(age_ns - age_ns / SLEW_PART)
        };
        raw_ns.clamp(1, now_raw_ns.max(1))
    }

    /// A lease that ends at `until_raw_ns`, as it is stored in shared memory.
    #[must_use]
    pub fn lease(&self, until_raw_ns: u64) -> Lease {
        if until_raw_ns == 0 {
            return Lease { asleep_ns: self.asleep_ns, ..Lease::default() };
        }
        let (tsc_from, tsc_until) = match self.witness {
            Witness::Trusted { rate, last } if self.is_recent(last) => {
                let left_ns = until_raw_ns.saturating_sub(last.raw_ns);
                let from = last.tsc.0.saturating_sub(rate.cycles_of(COUNTERS_APART_NS));
                // From the earlier of both readings, so that it is never too late. At least 1, because 0
                // would mean that there is no witness.
                (from, last.tsc.0.saturating_add(rate.cycles_of(left_ns)).max(1))
            }
            // Extrapolated from an old look, the bound would drift with the rates' difference, and end
            // leases.
            Witness::Absent | Witness::Calibrating { .. } | Witness::Trusted { .. } => (0, 0),
        };
        Lease { until_raw_ns, asleep_ns: self.asleep_ns, tsc_from, tsc_until }
    }

    /// Whether the counter was read recently; it is not if every look takes too long.
    fn is_recent(&self, last: Point) -> bool {
        self.raw_ns.saturating_sub(last.raw_ns) < RENEW_NS
    }

    /// The warning about a machine whose clocks take this long to read.
    #[must_use]
    pub fn slow_says(&self) -> Option<String> {
        (self.apart_ns > LOOK_NS).then(|| {
            format!(
                "reading this machine's clocks takes {} us: what lies between two of them is known that well only, and the processor's \
                 counter is no witness of a machine that stood still (docs/internals/clocks.md); another time source may help, see \
                 /sys/devices/system/clocksource",
                self.apart_ns / 1000
            )
        })
    }

    /// Whether the processor's counter is trusted, as `fide status` shows it.
    #[must_use]
    pub fn counter(&self) -> &'static str {
        match self.witness {
            Witness::Absent => "absent",
            Witness::Calibrating { .. } if self.apart_ns > LOOK_NS => "no",
            Witness::Calibrating { .. } => "calibrating",
            Witness::Trusted { last, .. } if self.is_recent(last) => "trusted",
            Witness::Trusted { .. } => "no",
        }
    }

    /// Converts an event's times to CLOCK_MONOTONIC, which programs use.
    #[must_use]
    pub fn on_monotonic(&self, event: Event) -> Event {
        match event {
            Event::Verdict(mut verdict) => {
                verdict.evidence.decided_ns = self.mono_of(verdict.evidence.decided_ns);
                verdict.evidence.last_rx_ns = verdict.evidence.last_rx_ns.map(|rx_ns| self.mono_of(rx_ns));
                Event::Verdict(verdict)
            }
            Event::Piggyback { host, slot, incarnation, pb_seq, seq, rx_ns, len, buffer } => {
                let rx_ns = self.mono_of(rx_ns);
                Event::Piggyback { host, slot, incarnation, pb_seq, seq, rx_ns, len, buffer }
            }
            Event::Fenced { lease_until_ns } => Event::Fenced { lease_until_ns: self.mono_of(lease_until_ns) },
            Event::Unfenced { lease_until_ns } => Event::Unfenced { lease_until_ns: self.mono_of(lease_until_ns) },
            other => other,
        }
    }
}

/// Takes a look whose readings belong together, if possible; else the one that took the shortest. Also
/// whether they do. The suspension time is always from the last look.
fn narrow(mut look: impl FnMut() -> Look) -> (Look, bool) {
    let mut best = look();
    for _ in 1..LOOKS_MAX {
        if best.is_narrow() {
            break;
        }
        let next = look();
        let (asleep_ns, marker) = (next.asleep_ns().max(best.asleep_ns()), next.marker);
        if next.took_ns() <= best.took_ns() {
            best = next;
        }
        (best.boot_ns, best.marker) = (best.boot_ns.max(best.mono_after_ns + asleep_ns), marker);
    }
    (best, best.is_narrow())
}

/// Which clocks this host relies on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stand {
    /// The kernel's time source; empty if it does not say.
    pub source: String,
    /// Whether the processor's counter is a witness beside it.
    pub counts: bool,
    /// Why it is, or is not.
    pub witness: &'static str,
}

impl Stand {
    /// As the kernel reports them.
    #[must_use]
    pub fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self::of(text(SOURCE).trim(), &text(SOURCES))
    }

    fn of(source: &str, available: &str) -> Self {
        let (counts, witness) = if source == "tsc" {
            (false, "the kernel's clock is the processor's counter itself")
        } else if !cfg!(target_arch = "x86_64") {
            (false, "this kind of processor has no counter beside the kernel's clock")
        } else if available.split_whitespace().any(|name| name == "tsc") {
            (true, "the processor's counter goes on where a hypervisor stops only the kernel's clock")
        } else {
            (false, "the kernel holds the processor's counter for unsteady")
        };
        Self { source: source.to_owned(), counts, witness }
    }
}

/// The warning about the configured drift, if NTP has found this host's clock to be off by more.
#[must_use]
pub fn drift_says(drift_ppm: u32, rate: ClockRate) -> Option<String> {
    (rate.off_ppm * 2 > u64::from(drift_ppm)).then(|| {
        format!(
            "NTP corrects this host's clock by {} ppm, and another host's may be as wrong the other way: leases are safe with \
             drift_ppm = {} or more in [cluster], it is {drift_ppm} (if NTP is just correcting a large offset, this passes)",
            rate.off_ppm,
            rate.off_ppm * 2
        )
    })
}

#[cfg(test)]
mod tests;
