// SPDX-License-Identifier: Apache-2.0
//! The silence timer. Nothing here says how late it may be, only that it is never early.

use std::time::Duration;

use fide_types::HostId;

use super::rig::{Beat, INCARNATION, Rig};
use crate::intf::{ADMIT_DEAD, ADMIT_MONITOR, Admit, WAKE_SILENCE, Wake};

const TIMEOUT: Duration = Duration::from_millis(30);
/// As long as a test that has to do something before the timer runs out may be kept from running.
const LONG: Duration = Duration::from_millis(600);
/// Timeouts after which a second record would have come.
const QUIET: Duration = Duration::from_millis(120);
/// Bound of what a silent host's impostor sends.
const FORGERIES_MAX: usize = 20_000;

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("short")
}

fn is_silence_of(wake: &Wake, host: HostId, rx_ns: u64, timeout: Duration) {
    assert_eq!((wake.kind, wake.subject, wake.cookie), (WAKE_SILENCE, u32::from(host), rx_ns));
    assert!(wake.ns >= rx_ns + ns(timeout), "{} ns early", rx_ns + ns(timeout) - wake.ns);
}

#[test]
fn root_silence_is_reported_once_and_never_early() {
    let Some(mut rig) = Rig::new() else { return };
    for host in [1, 5] {
        rig.monitor(host, TIMEOUT);
        for seq in 1..=3 {
            rig.run(&Beat::of(host, seq).on(u8::from(seq == 3)).plain());
        }
        let last_ns = rig.slot(host, 1).rx_ns;
        let wake = rig.wait();
        is_silence_of(&wake, host, last_ns, TIMEOUT);
        std::thread::sleep(QUIET);
        assert!(rig.wakes().is_empty(), "once");
    }
    assert_eq!(rig.receive.stats().timer_fired, 2);
    // Heard again, it is watched again.
    rig.run(&Beat::of(1, 4).plain());
    let last_ns = rig.slot(1, 0).rx_ns;
    is_silence_of(&rig.wait(), 1, last_ns, TIMEOUT);
}

#[test]
fn root_heartbeats_hold_the_timer_off() {
    let Some(mut rig) = Rig::new() else { return };
    rig.monitor(1, Duration::from_secs(10));
    for seq in 1..=200 {
        rig.run(&Beat::of(1, seq).plain());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(rig.wakes().is_empty());
    assert_eq!(rig.receive.stats().timer_fired, 0);
}

/// A death must not be hidden by whoever can send packets.
#[test]
fn root_forged_replayed_and_stale_heartbeats_do_not_hide_a_silence() {
    let Some(mut rig) = Rig::new() else { return };
    type Forgery = fn(u64) -> Vec<u8>;
    let forgeries: [(&str, Forgery); 4] = [
        ("forged", |turn| {
            let mut payload = Beat::of(1, 1000 + turn).plain();
            payload[16] ^= 1;
            payload
        }),
        ("replayed", |_| Beat::of(1, 100).plain()),
        ("old", |turn| Beat::of(1, 1 + turn % 30).plain()),
        ("of an older incarnation", |turn| Beat::of(1, 1000 + turn).incarnation(INCARNATION - 1).plain()),
    ];
    for (round, (what, forgery)) in (1u32..).zip(forgeries) {
        let incarnation = INCARNATION + round;
        let flags = ADMIT_MONITOR;
        rig.receive.admit(1, Admit { incarnation, flags, timeout_ns: ns(TIMEOUT) });
        rig.run(&Beat::of(1, 100).incarnation(incarnation).plain());
        let last_ns = rig.slot(1, 0).rx_ns;
        let mut reported = None;
        for turn in 0..FORGERIES_MAX as u64 {
            let mut payload = forgery(turn);
            // Replays are the true packets of this incarnation.
            if payload[24..28] == INCARNATION.to_le_bytes() && payload[16..24] == Beat::of(1, 100).plain()[16..24] {
                payload = Beat::of(1, 100).incarnation(incarnation).plain();
            }
            rig.run(&payload);
            reported = rig.wakes().into_iter().map(|(wake, _)| wake).find(|wake| wake.kind == WAKE_SILENCE);
            if reported.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let wake = reported.unwrap_or_else(|| panic!("heartbeats that are {what} hid a silence"));
        is_silence_of(&wake, 1, last_ns, TIMEOUT);
        assert_eq!(rig.slot(1, 0).rx_ns, last_ns, "{what}");
    }
}

#[test]
fn root_a_raised_timeout_is_honoured_by_a_timer_under_way() {
    let Some(mut rig) = Rig::new() else { return };
    rig.monitor(1, LONG);
    rig.run(&Beat::of(1, 1).plain());
    let last_ns = rig.slot(1, 0).rx_ns;
    rig.monitor(1, LONG * 2);
    is_silence_of(&rig.wait(), 1, last_ns, LONG * 2);
    std::thread::sleep(QUIET);
    assert!(rig.wakes().is_empty(), "once");
}

#[test]
fn root_unwatched_silence_is_not_reported() {
    let Some(mut rig) = Rig::new() else { return };
    // Never monitored; monitored no more; declared dead meanwhile.
    rig.run(&Beat::of(1, 1).plain());
    for host in [2, 4] {
        rig.monitor(host, LONG);
        rig.run(&Beat::of(host, 1).plain());
    }
    rig.receive.admit(2, Admit { incarnation: INCARNATION, flags: 0, timeout_ns: ns(LONG) });
    rig.receive.admit(4, Admit { incarnation: INCARNATION, flags: ADMIT_MONITOR | ADMIT_DEAD, timeout_ns: ns(LONG) });
    std::thread::sleep(LONG + QUIET);
    assert!(rig.wakes().is_empty());
    assert_eq!(rig.receive.stats().timer_fired, 0);
}
