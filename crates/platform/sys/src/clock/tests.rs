// SPDX-License-Identifier: Apache-2.0
use super::*;

const MS: u64 = 1_000_000;
/// Cycles of a counter of 2 GHz.
const fn cycles(ns: u64) -> u64 {
    2 * ns
}

/// A machine that has been up for 100 s and suspended for 7 s, whose clock is slewed by 20 ppm.
fn now() -> Clocks {
    Clocks { mono_ns: 100_002_000_000, boot_ns: 107_002_000_000, raw_ns: 100_000_000_000, tsc: 200_000_000_000 }
}

/// 60 ms, counted by all.
fn lease() -> Lease {
    Lease {
        until_raw_ns: now().raw_ns + 60 * MS,
        asleep_ns: now().asleep_ns(),
        tsc_from: now().tsc - cycles(MS),
        tsc_until: now().tsc + cycles(60 * MS),
    }
}

/// After all clocks advanced.
fn after(ns: u64) -> Clocks {
    let Clocks { mono_ns, boot_ns, raw_ns, tsc } = now();
    Clocks { mono_ns: mono_ns + ns, boot_ns: boot_ns + ns, raw_ns: raw_ns + ns, tsc: tsc + cycles(ns) }
}

#[test]
fn lease_ends_when_its_time_has_passed() {
    assert_eq!(lease().left_ns(&now()), 60 * MS);
    assert_eq!(lease().left_ns(&after(59 * MS)), MS);
    assert_eq!(lease().left_ns(&after(60 * MS)), 0);
    assert_eq!(Lease::default().left_ns(&Clocks::default()), 0, "nobody has given one");
    assert_eq!(Lease::FOREVER.left_ns(&after(u64::MAX / 4)), FOREVER_NS);
}

#[test]
fn slewed_clock_moves_no_lease() {
    // chrony slews by 83,333 ppm at most, ntpd by 500; both clocks that are slewed advance alike.
    for ppm in [-100_000i64, -83_333, -500, 500, 83_333, 100_000] {
        let slew = |ns: u64| ns.checked_add_signed(59 * MS as i64 / 1_000_000 * ppm).unwrap();
        let clocks = after(59 * MS);
        let clocks = Clocks { mono_ns: slew(clocks.mono_ns), boot_ns: slew(clocks.boot_ns), ..clocks };
        assert_eq!(lease().left_ns(&clocks), MS, "{ppm}");
    }
}

#[test]
fn suspension_fences_before_the_agent_runs() {
    // Suspended for 2 s after 1 ms: only the clock that counts suspensions shows it.
    let clocks = Clocks { boot_ns: after(MS).boot_ns + 2_000 * MS, ..after(MS) };
    let clocks = Clocks { tsc: now().tsc + cycles(MS), ..clocks };
    assert_eq!(lease().left_ns(&clocks), 0);
    // However long the lease was: a suspension is a doubt, not a number.
    let long = Lease { until_raw_ns: now().raw_ns + 3_600_000 * MS, tsc_until: 0, ..lease() };
    assert_eq!(long.left_ns(&clocks), 0);
    let forever = Lease { until_raw_ns: FOREVER_NS, ..long };
    assert_eq!(forever.left_ns(&clocks), 0);
}

#[test]
fn stopped_guest_whose_counter_went_on_is_fenced() {
    // kvm-clock and all clocks of the kernel stop with the machine; the counter does not.
    let clocks = Clocks { tsc: now().tsc + cycles(5_000 * MS), ..after(MS) };
    assert_eq!(lease().left_ns(&clocks), 0);
    // A stop that leaves some of the lease is no doubt, but counts.
    let short = Clocks { tsc: now().tsc + cycles(61 * MS), ..after(MS) };
    assert_eq!(lease().left_ns(&short), 0);
}

#[test]
fn counter_that_went_back_is_fenced() {
    // A suspension to memory resets it, a migration may.
    assert_eq!(lease().left_ns(&Clocks { tsc: 5, ..after(MS) }), 0);
    // Processors disagree by little.
    assert_ne!(lease().left_ns(&Clocks { tsc: now().tsc - cycles(MS / 2), ..after(MS) }), 0);
    let without = Lease { tsc_from: 0, tsc_until: 0, ..lease() };
    assert_ne!(without.left_ns(&Clocks { tsc: 5, ..after(MS) }), 0, "no witness");
}

#[test]
fn reader_that_lost_its_core_between_two_clocks_looks_again() {
    let off_core = Clocks { boot_ns: now().boot_ns + 40 * MS, ..now() };
    let mut looks = [off_core, now()].into_iter();
    assert_eq!(lease().left_by_ns(|_| looks.next().expect("two looks")), 60 * MS);
    let mut looks = 0;
    let left = lease().left_by_ns(|tsc| {
        looks += 1;
        assert!(tsc);
        off_core
    });
    assert_eq!((left, looks), (0, LOOKS_MAX), "at the bound it is a doubt");
}

#[test]
fn clocks_are_read_in_order_and_the_namespace_is_known() {
    let (first, second) = (Clocks::read(true), Clocks::read(false));
    assert!(second.mono_ns >= first.mono_ns && second.raw_ns >= first.raw_ns && second.boot_ns >= first.boot_ns);
    assert_eq!(second.tsc, 0);
    assert!(first.boot_ns >= first.mono_ns);
    assert_eq!(time_namespace(), time_namespace());
}
