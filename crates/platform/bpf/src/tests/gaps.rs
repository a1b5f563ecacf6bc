// SPDX-License-Identifier: Apache-2.0
//! Gaps between heartbeats: what is counted, and in which bucket.

use std::{mem::MaybeUninit, os::fd::AsFd, os::fd::AsRawFd, time::Duration};

use fide_shm::gaps::{BUCKETS, FIRST_NS, LAST_NS, bucket, least_ns, most_ns};
use fide_types::HostId;
use libbpf_rs::{
    libbpf_sys,
    skel::{OpenSkel, SkelBuilder},
};
use proptest::{prelude::*, test_runner::TestRunner};

use super::rig::{Beat, INCARNATION, Rig, loaded};
use crate::{
    BpfError,
    intf::{ADMIT_DEAD, ADMIT_MONITOR, Admit, Gaps},
    skel::gaps_probe::GapsProbeSkelBuilder,
};

const TIMEOUT: Duration = Duration::from_secs(60);

fn gaps(rig: &Rig, host: HostId) -> Gaps {
    let mut gaps = Gaps::NONE;
    rig.receive.read_gaps(host, &mut gaps);
    gaps
}

#[test]
fn root_program_and_library_count_a_gap_in_the_same_bucket() {
    let mut storage = MaybeUninit::uninit();
    let fail = |error: libbpf_rs::Error| BpfError::load("gaps probe", &error);
    let open = GapsProbeSkelBuilder::default().open(&mut storage).expect("a program");
    let Some(skel) = loaded(open.load().map_err(fail)) else { return };
    let of = |mut ns: u64| {
        // SAFETY: zeroes are a valid value; options and argument outlive the call.
        unsafe {
            let mut options: libbpf_sys::bpf_test_run_opts = std::mem::zeroed();
            options.sz = size_of_val(&options) as u64;
            options.ctx_in = (&raw mut ns).cast();
            options.ctx_size_in = 8;
            let program = skel.progs.bucket_of.as_fd().as_raw_fd();
            assert_eq!(libbpf_sys::bpf_prog_test_run_opts(program, &raw mut options), 0);
            options.retval as usize
        }
    };
    for at in 0..BUCKETS {
        assert_eq!((of(least_ns(at)), of(most_ns(at))), (at, at));
    }
    let ns = prop_oneof![0..4 * FIRST_NS, 0..2 * LAST_NS, any::<u64>()];
    TestRunner::default()
        .run(&ns, |ns| {
            prop_assert_eq!(of(ns), bucket(ns), "{} ns", ns);
            Ok(())
        })
        .expect("the same bucket");
}

#[test]
fn root_gaps_are_between_fresh_heartbeats_of_whichever_plane() {
    let Some(rig) = Rig::new() else { return };
    rig.monitor(1, TIMEOUT);
    let mut expected = Gaps::NONE;
    let beats = [Beat::of(1, 1), Beat::of(1, 2).on(1), Beat::of(1, 3), Beat::of(1, 7), Beat::of(1, 5).on(1)];
    for (count, beat) in (0..).zip(beats) {
        rig.run(&beat.plain());
        let seen = gaps(&rig, 1);
        expected.arrived(INCARNATION, seen.last_ns);
        assert_eq!((&seen, seen.count()), (&expected, count));
        // The copy on the other plane is none, nor is one that was there before.
        rig.run(&Beat { plane: 1 - beat.plane, ..beat }.plain());
        rig.run(&beat.plain());
        assert_eq!(gaps(&rig, 1), expected);
    }
    assert_eq!(gaps(&rig, 2), Gaps::NONE, "of another peer");
}

#[test]
fn root_peer_that_is_not_monitored_and_a_new_incarnation_begin_anew() {
    let Some(rig) = Rig::new() else { return };
    let admit = |incarnation, flags| {
        let timeout_ns = u64::try_from(TIMEOUT.as_nanos()).expect("short");
        rig.receive.admit(1, Admit { incarnation, flags, timeout_ns });
    };
    let beat = |incarnation, seq| {
        rig.run(&Beat::of(1, seq).incarnation(incarnation).plain());
        gaps(&rig, 1).count()
    };
    admit(7, 0);
    assert_eq!((beat(7, 1), beat(7, 2), gaps(&rig, 1).last_ns), (0, 0, 0), "not monitored");
    admit(7, ADMIT_MONITOR);
    assert_eq!((beat(7, 3), beat(7, 4)), (0, 1));
    admit(7, 0);
    assert_eq!(beat(7, 5), 1);
    admit(7, ADMIT_MONITOR);
    assert_eq!((beat(7, 6), beat(7, 7)), (1, 2));
    admit(7, ADMIT_MONITOR | ADMIT_DEAD);
    let dead = gaps(&rig, 1);
    assert_eq!(beat(7, 8), 2);
    assert_eq!(gaps(&rig, 1), dead, "a dead one changes nothing");
    admit(8, ADMIT_MONITOR);
    assert_eq!((beat(8, 1), beat(8, 2)), (2, 3));
}

#[test]
fn root_longest_gap_and_when_it_was() {
    let Some(rig) = Rig::new() else { return };
    rig.monitor(1, TIMEOUT);
    for seq in 1..=3 {
        rig.run(&Beat::of(1, seq).plain());
    }
    let before = gaps(&rig, 1).last_ns;
    std::thread::sleep(Duration::from_millis(20));
    rig.run(&Beat::of(1, 4).plain());
    let seen = gaps(&rig, 1);
    assert!(seen.longest_ns >= 20_000_000);
    assert_eq!((seen.longest_ns, seen.longest_at_ns), (seen.last_ns - before, seen.last_ns));
}
