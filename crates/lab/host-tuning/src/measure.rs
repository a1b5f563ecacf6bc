// SPDX-License-Identifier: Apache-2.0
//! Measurements that take only seconds.
//!
//! A separate thread isolates itself as the agent's loop would (`fide_net::isolation`), until it ends. It
//! never spins for long: otherwise the kernel's fair server would take the core away for 50 ms, and the
//! measurement would show only that.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use fide_net::isolation::isolate;
use fide_net::pace::{SPIN_NS, YIELD_NS};
use fide_sys::clock::mono_ns;
use serde::Serialize;

use crate::{
    bound::{Bound, Here, Sample, WAKE_UP},
    doctor::{Host, MSR_SMI_COUNT},
    parse::{counts_table, steal_ticks},
};

/// How long each of the three parts takes.
pub const PART: Duration = Duration::from_millis(1000);
/// Time between two wake-ups: the default heartbeat period.
const PERIOD_NS: u64 = 1_000_000;
/// Longest gap between two readings of the clock that is not an interruption.
const DETOUR_NS: u64 = 1_000;

/// Times of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    pub n: u64,
    pub min_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl Figures {
    /// The figures of all of `times_ns`; zeroes if there are none.
    #[must_use]
    pub fn of(mut times_ns: Vec<u64>) -> Self {
        times_ns.sort_unstable();
        let at = |percent: usize| {
            let index = (times_ns.len() * percent).div_ceil(100).saturating_sub(1);
            times_ns.get(index).copied().unwrap_or(0)
        };
        Self { n: times_ns.len() as u64, min_ns: at(0), p50_ns: at(50), p99_ns: at(99), max_ns: at(100) }
    }
}

/// How often something interrupted the core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Number or label, then device or meaning.
    pub what: String,
    pub count: u64,
}

/// What was measured on one core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// How the measuring thread ran, for people.
    pub thread: String,
    pub length_ms: u64,
    /// How late a timer woke the thread, with the host's own settings.
    pub wake_up: Figures,
    /// The same with `/dev/cpu_dma_latency` held at 0, as the agent does; absent if it cannot be held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_up_held: Option<Figures>,
    /// The longest gap of each spin of 1 ms.
    pub gap: Figures,
    /// Gaps of more than 1 us.
    pub detour: Figures,
    /// Interrupts on the core meanwhile, the most frequent first.
    pub interrupts: Vec<Hit>,
    pub softirqs: Vec<Hit>,
    /// Time that the hypervisor took meanwhile, in steps of 10 ms; absent if it is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_ms: Option<u64>,
    /// System management interrupts meanwhile and since boot; absent if they cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smi: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smi_since_boot: Option<u64>,
}

impl Measured {
    /// The wake-ups that count for an agent, which holds C-states off if it can.
    #[must_use]
    pub fn as_agent(&self) -> &Figures {
        self.wake_up_held.as_ref().unwrap_or(&self.wake_up)
    }

    /// The bound that these wake-ups give; `None` if there are none.
    #[must_use]
    pub fn bound(&self, here: &Here, measured_at_s: u64) -> Option<Bound> {
        let figures = self.as_agent();
        let sample = Sample { min_ns: figures.min_ns, max_ns: figures.max_ns, count: figures.n };
        (figures.n > 0).then(|| Bound::of_sample(here, WAKE_UP, sample, measured_at_s))
    }
}

/// Measures on the host's core, for three times [`PART`] at most.
///
/// # Errors
/// If no thread can be started, or the core does not exist.
pub fn measure(host: &Host<'_>) -> io::Result<Measured> {
    let before = Counters::read(host);
    let start = Instant::now();
    let core = host.core;
    let run = thread::Builder::new().name("fide-doctor".to_owned()).spawn(move || on_core(core))?;
    let mut measured = run.join().map_err(|_| io::Error::other("the measuring thread panicked"))?;
    // The thread locked the memory that it could; only that would outlive it. SAFETY: no memory is handed
    // over.
    unsafe { libc::munlockall() };
    measured.length_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Counters::read(host).since(&before, &mut measured);
    Ok(measured)
}

fn on_core(core: usize) -> Measured {
    let isolation = isolate(core);
    let measures = isolation.measures().clone();
    let held = measures.c_states.held().then(wake_ups);
    drop(isolation);
    let wake_up = wake_ups();
    let (gap, detour) = spins();
    Measured {
        thread: match measures.priority.held() {
            true => format!("{}, {}", measures.core.text(), measures.priority.text()),
            false => format!("{}, no real-time priority: {}", measures.core.text(), measures.priority.text()),
        },
        wake_up,
        wake_up_held: held,
        gap,
        detour,
        ..Measured::default()
    }
}

/// Wakes once a period, by a schedule that does not drift. A wake-up that is more than a period late delays
/// the next ones, as it would delay heartbeats; the lateness of each is counted from when it was due.
fn wake_ups() -> Figures {
    let mut times = Vec::new();
    let start = mono_ns();
    let mut due = start;
    while due < start + PART.as_nanos() as u64 {
        due += PERIOD_NS;
        sleep_until(due);
        times.push(mono_ns().saturating_sub(due));
    }
    Figures::of(times)
}

fn sleep_until(due_ns: u64) {
    let due = libc::timespec {
        tv_sec: (due_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (due_ns % 1_000_000_000).cast_signed(),
    };
    // SAFETY: the point in time outlives the call. An interrupted sleep counts as early, which is 0 late.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const due, std::ptr::null_mut()) };
}

/// Reads the clock as fast as it can, for [`SPIN_NS`] at a time, as the loop does in busy mode. Time that is
/// missing between two readings was taken by something else.
fn spins() -> (Figures, Figures) {
    let (mut gaps, mut detours) = (Vec::new(), Vec::new());
    let end = mono_ns() + PART.as_nanos() as u64;
    let mut now = mono_ns();
    while now < end {
        let (spin_end, mut longest) = (now + SPIN_NS, 0);
        while now < spin_end {
            let next = mono_ns();
            let gap = next - now;
            longest = longest.max(gap);
            if gap > DETOUR_NS {
                detours.push(gap);
            }
            now = next;
        }
        gaps.push(longest);
        sleep_until(now + YIELD_NS);
        now = mono_ns();
    }
    (Figures::of(gaps), Figures::of(detours))
}

/// The kernel's counters for one core.
struct Counters {
    interrupts: Vec<(String, u64)>,
    softirqs: Vec<(String, u64)>,
    steal: Option<u64>,
    smi: Option<u64>,
}

impl Counters {
    fn read(host: &Host<'_>) -> Self {
        let table = |path: &str| {
            let lines = host.roots.proc(path).map(|text| counts_table(&text)).unwrap_or_default();
            let what = |label: &str, name: &str| format!("{label} {name}").trim().to_owned();
            lines.iter().map(|line| (what(&line.label, &line.name), line.on(host.core))).collect()
        };
        Self {
            interrupts: table("interrupts"),
            softirqs: table("softirqs"),
            steal: host.roots.proc("stat").ok().and_then(|stat| steal_ticks(&stat, host.core)),
            smi: host.roots.msr(host.core, MSR_SMI_COUNT).ok(),
        }
    }

    fn since(&self, before: &Self, measured: &mut Measured) {
        let minus = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        measured.interrupts = hits(&before.interrupts, &self.interrupts);
        measured.softirqs = hits(&before.softirqs, &self.softirqs);
        measured.steal_ms = minus(self.steal, before.steal).map(|ticks| ticks * 10);
        measured.smi = minus(self.smi, before.smi);
        measured.smi_since_boot = self.smi;
    }
}

fn hits(before: &[(String, u64)], after: &[(String, u64)]) -> Vec<Hit> {
    let mut hits: Vec<Hit> = after
        .iter()
        .filter_map(|(what, count)| {
            let then = before.iter().find(|(other, _)| other == what).map_or(0, |(_, count)| *count);
            (*count > then).then(|| Hit { what: what.clone(), count: count - then })
        })
        .collect();
    hits.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.what.cmp(&other.what)));
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Copy, roots::Roots};

    #[test]
    fn figures_of_a_sample() {
        assert_eq!(Figures::of(Vec::new()), Figures::default());
        let figures = Figures::of((1..=100).rev().collect());
        assert_eq!(figures, Figures { n: 100, min_ns: 1, p50_ns: 50, p99_ns: 99, max_ns: 100 });
    }

    #[test]
    fn hits_are_sorted_by_count() {
        let count = |what: &str, count| (what.to_owned(), count);
        let before = [count("a", 5), count("b", 5), count("c", 5)];
        let after = [count("a", 5), count("b", 7), count("c", 9), count("new", 2)];
        let hits: Vec<_> = hits(&before, &after).into_iter().map(|hit| (hit.what, hit.count)).collect();
        assert_eq!(hits, [count("c", 4), count("b", 2), count("new", 2)]);
    }

    #[test]
    fn a_measurement_of_a_core_is_complete_and_leaves_nothing() {
        let _alone = crate::ALONE.lock();
        let core = fide_net::isolation::default_core();
        let host = Host { roots: Roots::default(), machine: &Copy, core, interfaces: Vec::new(), drift_ppm: 200 };
        let measured = measure(&host).expect("measured");
        assert!(measured.wake_up.n > 0 && measured.gap.n > 0);
        assert!(measured.wake_up.p50_ns <= measured.wake_up.max_ns);
        let here = Here { kernel: "k".into(), boot_id: "b".into(), core, interface: None };
        let bound = measured.bound(&here, 7).expect("a bound");
        assert_eq!((bound.packets, bound.jitter_max_ns), (measured.as_agent().n, measured.as_agent().max_ns));
        let status = std::fs::read_to_string("/proc/self/status").expect("read");
        assert!(status.contains("VmLck:\t       0 kB"), "nothing stays locked");
    }

    #[test]
    fn nothing_measured_gives_no_bound() {
        let here = Here { kernel: "k".into(), boot_id: "b".into(), core: 0, interface: None };
        assert_eq!(Measured::default().bound(&here, 7), None);
    }
}
