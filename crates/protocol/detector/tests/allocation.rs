// SPDX-License-Identifier: Apache-2.0
//! Counts allocations: none after `Detector::new`.

use fide_detector::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fide_types::HostId;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system allocator, whose contract is the same; the counter is a
// constant-initialised thread local that does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|c| c.set(c.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn config(me: HostId, policy: Policy, trust: Trust) -> Config {
    let members = (1..=3)
        .map(|id| {
            let mut monitors = HostSet::first(3);
            monitors.remove(id);
            Member { id, name: format!("h{id}").parse().expect("a good name"), role: Role::Voter, monitors }
        })
        .collect();
    Config {
        me,
        incarnation: u32::from(me),
        members,
        planes: 2,
        heartbeat_ns: 1_000_000,
        trust,
        policy,
        timeout_ns: 5_000_000,
        stall_slack_ns: 1_000_000,
        drift_ppm: 200,
        piggyback_max: 1418,
        payload_max: 1472,
    }
}

fn drive(policy: Policy, trust: Trust) -> (u64, u64) {
    let mut hosts: Vec<Detector> =
        (1..=3).map(|me| Detector::new(config(me, policy, trust), 0).expect("a good configuration")).collect();
    let names: Vec<fide_wire::Name> = (0..64).map(|i| format!("p{i}").parse().expect("a good name")).collect();
    let mut buf = [0u8; fide_wire::PAYLOAD_MAX];
    let before = COUNT.with(Cell::get);
    let mut reported = 0;
    for turn in 0..2000u64 {
        let now = turn * 100_000;
        // h3 is silent for a while: a verdict, an exclusion, a restart.
        let silent = (800..1200).contains(&turn);
        for from in 0..3 {
            if from == 2 && silent {
                continue;
            }
            let slot = (turn % 64) as usize;
            let _ = hosts[from].join(now, names[slot]);
            let _ = hosts[from].piggyback(slot as u8, &[7; 300]);
            if turn % 7 == 0 {
                let _ = hosts[from].process_changed(now, slot as u8, ProcessState::Killed(9), now);
            }
            let target = Target { host: (from as u16 + 1) % 3 + 1, process: Some(names[slot]) };
            let _ = hosts[from].monitor(target, Wanted::default(), 0);
            hosts[from].tick(now);
            while let Some(transmit) = hosts[from].poll_transmit(now, &mut buf) {
                for plane in 0..2 {
                    fide_wire::set_plane(&mut buf, plane);
                    for to in (0..3).filter(|to| *to != from && !(*to == 2 && silent)) {
                        let _ = hosts[to].handle_packet(now, now, plane, &buf[..transmit.len]);
                    }
                }
            }
            while let Some(event) = hosts[from].poll_event() {
                reported += 1 + hosts[from].piggyback_bytes(&event).len() as u64 / 300;
                if let Event::Excluded { incarnation, .. } = event {
                    let _ = hosts[from].restart(now, incarnation + 10);
                }
            }
            let _ = hosts[from].poll_timeout();
        }
    }
    (COUNT.with(Cell::get) - before, reported)
}

#[test]
fn nothing_is_allocated_after_new() {
    for (policy, trust) in [(Policy::Majority, Trust::Lease), (Policy::Network, Trust::Network)] {
        let (allocations, reported) = drive(policy, trust);
        assert!(reported > 1000, "the run must do something: {reported}");
        assert_eq!(allocations, 0, "{policy:?} {trust:?}");
    }
}
