// SPDX-License-Identifier: Apache-2.0
use super::*;

const MS: u64 = 1_000_000;

/// A machine with planted clocks: the test sets what each of them counts.
#[derive(Clone, Copy)]
struct Machine {
    raw_ns: u64,
    mono_ns: u64,
    asleep_ns: u64,
    /// At 3 GHz.
    tsc: u64,
}

impl Machine {
    fn new() -> Self {
        Self { raw_ns: 50_000 * MS, mono_ns: 50_001 * MS, asleep_ns: 9 * MS, tsc: 777_000 }
    }

    /// Everything counts on, the slewed clocks by `ppm` faster.
    fn runs(&mut self, ns: u64, ppm: i64) {
        self.raw_ns += ns;
        self.mono_ns = (self.mono_ns + ns).checked_add_signed(ns as i64 / 1_000_000 * ppm).unwrap();
        self.tsc += 3 * ns;
    }

    fn look(&self) -> Look {
        Look {
            mono_ns: self.mono_ns,
            boot_ns: self.mono_ns + self.asleep_ns + 30,
            mono_after_ns: self.mono_ns + 60,
            tsc: self.tsc,
            raw_ns: self.raw_ns,
            tsc_after: self.tsc + 90,
            mono_last_ns: self.mono_ns + 120,
            marker: None,
        }
    }

    /// As [`Look::now`] on a machine where reading a clock takes `each_ns`, the counter nothing.
    fn slow_look(&mut self, each_ns: u64, ppm: i64) -> Look {
        let mut read = |clock: fn(&Machine) -> u64| {
            self.runs(each_ns, ppm);
            clock(self)
        };
        Look {
            mono_ns: read(|machine| machine.mono_ns),
            boot_ns: read(|machine| machine.mono_ns + machine.asleep_ns),
            mono_after_ns: read(|machine| machine.mono_ns),
            tsc: read(|machine| machine.tsc),
            raw_ns: read(|machine| machine.raw_ns),
            tsc_after: read(|machine| machine.tsc),
            mono_last_ns: read(|machine| machine.mono_ns),
            marker: None,
        }
    }

    /// A clock that trusts the counter.
    fn clock(&mut self) -> Clock {
        let mut clock = Clock::new(&self.look(), true);
        for _ in 0..500 {
            self.runs(MS, 0);
            assert_eq!(clock.looked(&self.look(), true), None);
        }
        assert_eq!(clock.counter(), "trusted");
        clock
    }
}

#[test]
fn steady_machine_raises_no_doubt_under_any_slew() {
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    for ppm in [0, 500, -500, 83_333, -83_333] {
        for step in 0..1000 {
            machine.runs(step % 7 * MS, ppm);
            assert_eq!(clock.looked(&machine.look(), true), None, "{ppm} {step}");
        }
    }
    assert_eq!(clock.doubts, Doubts::default());
}

#[test]
fn suspension_is_a_doubt_once() {
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    machine.runs(MS, 0);
    machine.asleep_ns += 3_000 * MS;
    let before = clock.lease(machine.raw_ns + 60 * MS);
    let Some(Doubt::Suspended { ns }) = clock.looked(&machine.look(), true) else { panic!("not seen") };
    assert!(ns.abs_diff(3_000 * MS) < 1000, "{ns}");
    assert_eq!(clock.looked(&machine.look(), true), None);
    assert_eq!(clock.doubts.suspended, 1);
    // The lease of before is over for its readers, and stays so; one that is given now is not.
    let clocks = |tsc| fide_sys::clock::Clocks {
        mono_ns: machine.mono_ns,
        boot_ns: machine.mono_ns + machine.asleep_ns,
        raw_ns: machine.raw_ns,
        tsc,
    };
    assert_eq!(before.left_ns(&clocks(machine.tsc)), 0);
    assert_ne!(clock.lease(machine.raw_ns + 60 * MS).left_ns(&clocks(machine.tsc)), 0);
}

#[test]
fn stopped_guest_is_found_by_its_counter() {
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    machine.runs(MS, 0);
    machine.tsc += 3 * 500 * MS;
    let Some(Doubt::Stopped { ns }) = clock.looked(&machine.look(), true) else { panic!("not seen") };
    assert!(ns.abs_diff(500 * MS) < MS, "{ns}");
    assert_eq!(clock.counter(), "calibrating", "perhaps on another processor");
    assert_eq!(clock.lease(machine.raw_ns + MS).tsc_until, 0);
    for _ in 0..500 {
        machine.runs(MS, 0);
        assert_eq!(clock.looked(&machine.look(), true), None);
    }
    assert_eq!(clock.counter(), "trusted");
}

#[test]
fn stop_between_two_readings_of_a_look_is_found_by_the_next() {
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    machine.runs(MS, 0);
    let torn = Look { tsc_after: machine.tsc + 3 * 500 * MS, ..machine.look() };
    assert_eq!(clock.looked(&torn, false), None);
    machine.tsc += 3 * 500 * MS;
    machine.runs(MS, 0);
    assert!(matches!(clock.looked(&machine.look(), true), Some(Doubt::Stopped { .. })));
    // A loop that only lost its core there finds nothing.
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    let mut torn = machine.look();
    machine.runs(40 * MS, 0);
    torn.tsc_after = machine.tsc;
    assert_eq!(clock.looked(&torn, false), None);
    machine.runs(MS, 0);
    assert_eq!(clock.looked(&machine.look(), true), None);
}

#[test]
fn counter_that_goes_back_or_at_another_rate_is_a_doubt() {
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    machine.runs(MS, 0);
    machine.tsc = 5;
    assert_eq!(clock.looked(&machine.look(), true), Some(Doubt::Moved));
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    machine.raw_ns += 10 * MS;
    machine.tsc += 2 * 10 * MS;
    assert_eq!(clock.looked(&machine.look(), true), Some(Doubt::Moved), "a slower processor");
    assert_eq!(clock.doubts.moved, 1);
}

#[test]
fn counter_that_never_agrees_is_given_up() {
    let mut machine = Machine::new();
    let mut clock = Clock::new(&machine.look(), true);
    for step in 0..10_000u64 {
        machine.runs(MS, 0);
        machine.tsc += step * step % 900_001;
        assert_eq!(clock.looked(&machine.look(), true), None, "{step}");
    }
    assert_eq!(clock.counter(), "absent");
    assert_eq!(clock.lease(machine.raw_ns + MS).tsc_until, 0);
}

#[test]
fn lease_with_a_witness_ends_for_readers_when_it_ends() {
    let mut machine = Machine::new();
    let clock = machine.clock();
    let lease = clock.lease(machine.raw_ns + 60 * MS);
    let left = |machine: &Machine| {
        lease.left_ns(&fide_sys::clock::Clocks {
            mono_ns: machine.mono_ns,
            boot_ns: machine.mono_ns + machine.asleep_ns,
            raw_ns: machine.raw_ns,
            tsc: machine.tsc,
        })
    };
    machine.runs(59 * MS, 0);
    assert_eq!(left(&machine), MS);
    machine.tsc += 3 * 2 * MS;
    assert_eq!(left(&machine), 0, "the guest was stopped for 2 ms");
    assert_eq!(clock.lease(0).until_raw_ns, 0);
    let forever = clock.lease(FOREVER_NS);
    assert_eq!((forever.until_raw_ns, forever.tsc_until), (FOREVER_NS, u64::MAX));
}

#[test]
fn stamps_are_never_taken_for_older_than_they_are() {
    for ppm in [0, 500, -500, 83_333, 100_000, -100_000] {
        for age_ms in [0, 1, 20, 400] {
            let mut machine = Machine::new();
            let (stamped_mono_ns, stamped_raw_ns) = (machine.mono_ns, machine.raw_ns);
            machine.runs(age_ms * MS, ppm);
            let clock = Clock::new(&machine.look(), false);
            let raw_ns = clock.stamp(stamped_mono_ns, machine.raw_ns);
            assert!(raw_ns >= stamped_raw_ns.min(machine.raw_ns - 100), "{ppm} {age_ms}: {raw_ns} {stamped_raw_ns}");
            assert!(raw_ns - stamped_raw_ns.min(raw_ns) <= age_ms * MS / 4, "{ppm} {age_ms}");
            // Made after the look.
            machine.runs(age_ms * MS, ppm);
            let raw_ns = clock.stamp(machine.mono_ns, u64::MAX);
            assert!(raw_ns + 100 >= machine.raw_ns, "{ppm} {age_ms}");
            assert_eq!(clock.stamp(machine.mono_ns, 7), 7, "nothing arrives later than now");
        }
    }
}

#[test]
fn times_go_there_and_back() {
    let machine = Machine::new();
    let clock = Clock::new(&machine.look(), false);
    assert_eq!((clock.mono_of(0), clock.mono_of(FOREVER_NS)), (0, FOREVER_NS));
    for raw_ns in [machine.raw_ns - 5 * MS, machine.raw_ns, machine.raw_ns + 5 * MS] {
        assert_eq!(clock.mono_of(raw_ns), raw_ns + machine.mono_ns - machine.raw_ns + 60);
    }
    assert_eq!(clock.mono_of(1), machine.mono_ns + 60 + 1 - machine.raw_ns);
    assert!(clock.mono_after(machine.raw_ns + 80 * MS) >= clock.mono_of(machine.raw_ns + 80 * MS) + 10 * MS);
    let past = machine.raw_ns - MS;
    assert_eq!(clock.mono_after(past), clock.mono_of(past) + machine.look().took_ns(), "by what the look leaves open");
}

#[test]
fn counter_is_a_witness_only_beside_another_clock() {
    assert!(!Stand::of("tsc", "tsc kvm-clock").counts);
    assert!(!Stand::of("kvm-clock", "kvm-clock acpi_pm").counts, "unsteady");
    assert_eq!(Stand::of("kvm-clock", "kvm-clock tsc acpi_pm").counts, cfg!(target_arch = "x86_64"));
    assert!(!Stand::of("", "").counts);
}

#[test]
fn wide_looks_are_tried_again() {
    let machine = Machine::new();
    let wide = Look { mono_last_ns: machine.mono_ns + MS, ..machine.look() };
    let mut looks = [wide, machine.look()].into_iter();
    assert_eq!(narrow(|| looks.next().unwrap()), (machine.look(), true));
    let mut asked = 0;
    let look = || {
        asked += 1;
        wide
    };
    assert_eq!(narrow(look), (wide, false));
    assert_eq!(asked, LOOKS_MAX);
    // The last one is as good as any.
    let mut looks = [wide, wide, machine.look()].into_iter();
    assert_eq!(narrow(|| looks.next().unwrap()), (machine.look(), true));
    // No look is narrow: the shortest counts, with the suspension that any of them shows.
    let slept = Look { boot_ns: wide.boot_ns + 50 * MS, mono_last_ns: wide.mono_last_ns + MS, ..wide };
    let mut looks = [slept, wide, slept].into_iter();
    let (best, is_narrow) = narrow(|| looks.next().unwrap());
    assert_eq!((best.took_ns(), is_narrow), (MS, false));
    assert!(best.asleep_ns() >= machine.asleep_ns + 40 * MS);
}

#[test]
fn slow_clocks_stay_together_under_any_slew() {
    for (each_ns, ppm) in [(10_000, 500), (10_000, -500), (30_000, 83_333), (200_000, -83_333)] {
        let mut machine = Machine::new();
        let mut clock = Clock::new(&machine.slow_look(each_ns, ppm), true);
        assert!(clock.slow_says().is_some_and(|says| says.contains("takes") && says.contains("time source")));
        let mut worst_ns = 0;
        for _ in 0..5_000 {
            machine.runs(MS, ppm);
            let (look, is_narrow) = narrow(|| machine.slow_look(each_ns, ppm));
            assert!(!is_narrow);
            assert_eq!(clock.looked(&look, is_narrow), None, "{each_ns} {ppm}");
            worst_ns = worst_ns.max(clock.mono_of(machine.raw_ns).abs_diff(machine.mono_ns));
            // A promise to others counts from no time before the packet came, and no view is settled too
            // early.
            assert!(clock.stamp(machine.mono_ns, u64::MAX) >= machine.raw_ns, "{each_ns} {ppm}");
            let in_future = machine.raw_ns + 5 * MS;
            let mut later = machine;
            later.runs(5 * MS, ppm);
            assert!(clock.mono_after(in_future) >= later.mono_ns, "{each_ns} {ppm}");
        }
        // The duration of a look, and how far the clock is slewed until the next.
        assert!(worst_ns <= 7 * each_ns + 105 * MS / 1_000_000 * ppm.unsigned_abs(), "{each_ns} {ppm}: {worst_ns}");
        assert_eq!((clock.counter(), clock.doubts), ("no", Doubts::default()));
    }
    assert_eq!(Clock::new(&Machine::new().look(), true).slow_says(), None);
}

#[test]
fn one_torn_look_moves_no_clock() {
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    let before = clock.clone();
    machine.runs(MS, 0);
    let torn = Look { raw_ns: machine.raw_ns + 40 * MS, mono_last_ns: machine.mono_ns + 40 * MS, ..machine.look() };
    assert_eq!(clock.looked(&torn, false), None);
    assert_eq!((clock.mono_ns, clock.raw_ns), (before.mono_ns, before.raw_ns));
}

#[test]
fn drift_below_the_ntp_offset_is_warned_of() {
    let off = |ppm: i64| ClockRate::of(ppm << 16, 10_000, true);
    assert_eq!(drift_says(200, off(99)), None);
    let says = drift_says(200, off(-137)).expect("too little");
    assert!(says.contains("137 ppm") && says.contains("drift_ppm = 274"), "{says}");
}

#[test]
fn live_migration_is_a_doubt_if_the_hypervisor_reports_it() {
    let mut machine = Machine::new();
    let said = |machine: &Machine, marker| Look { marker: Some(marker), ..machine.look() };
    let mut clock = Clock::new(&said(&machine, 41), false);
    for (marker, doubt) in [(41, None), (42, Some(Doubt::Moved)), (42, None), (41, Some(Doubt::Moved)), (41, None)] {
        machine.runs(MS, 0);
        assert_eq!(clock.looked(&said(&machine, marker), true), doubt, "{marker}");
    }
    // Also in a look that took long, and once more only after another move.
    machine.runs(MS, 0);
    assert_eq!(clock.looked(&said(&machine, 43), false), Some(Doubt::Moved));
    assert_eq!((clock.doubts.moved, clock.counter()), (3, "absent"));
    // Another agent takes over: it has this clock, and the same page.
    let mut next = clock.clone();
    assert_eq!(next.looked(&said(&machine, 44), true), Some(Doubt::Moved));
    assert_eq!(clock.looked(&machine.look(), true), None, "an agent that cannot read the page knows nothing");
    // The last of three looks shows where the machine is.
    let wide = Look { mono_last_ns: machine.mono_ns + MS, ..said(&machine, 43) };
    let mut looks =
        [wide, Look { mono_last_ns: wide.mono_last_ns + 1, ..wide }, Look { marker: Some(45), ..wide }].into_iter();
    assert_eq!(narrow(|| looks.next().unwrap()).0.marker, Some(45));
}

#[test]
fn clocks_that_become_slow_do_not_fence() {
    let mut machine = Machine::new();
    let mut clock = machine.clock();
    let until_ns = |machine: &Machine| machine.raw_ns + 63 * MS;
    let left_ns = |clock: &Clock, machine: &Machine| {
        let reader = fide_sys::clock::Clocks {
            mono_ns: machine.mono_ns,
            boot_ns: machine.mono_ns + machine.asleep_ns,
            raw_ns: machine.raw_ns,
            tsc: machine.tsc,
        };
        clock.lease(until_ns(machine)).left_ns(&reader)
    };
    let mut seen = std::collections::BTreeSet::new();
    // For three hours: 10 ppm come to a lease's length after 105 minutes.
    for _ in 0..3 * 3600 * 10 {
        machine.runs(100 * MS, 0);
        // A crystal that got warm: 10 ppm faster than when it was compared with the clock.
        machine.tsc += 3 * 1000;
        let slow = Look { mono_last_ns: machine.mono_ns + 50_000, ..machine.look() };
        assert_eq!(clock.looked(&slow, false), None);
        assert_ne!(left_ns(&clock, &machine), 0, "at {} s", machine.raw_ns / 1000 / MS);
        seen.insert(clock.counter());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["no"], "status says that it is no witness");
    // It is one again once a look is narrow.
    machine.runs(MS, 0);
    assert_eq!(clock.looked(&machine.look(), true), None);
    assert_eq!(clock.counter(), "trusted");
    assert_ne!(clock.lease(until_ns(&machine)).tsc_until, 0);
    assert_ne!(left_ns(&clock, &machine), 0);
}
