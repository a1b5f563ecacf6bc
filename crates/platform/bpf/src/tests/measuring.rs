// SPDX-License-Identifier: Apache-2.0
//! What the jitter bench receives with, and who ran meanwhile.

use std::{
    mem::offset_of,
    time::{Duration, Instant},
};

use fide_shm::bpf_ring::BpfRing;
use zerocopy::FromBytes;

use super::{
    layout::{btf_of, c_layout},
    rig::{LIMIT, PORT, XDP_DROP, XDP_PASS, frame, loaded, run},
};
use crate::{
    culprits::{self, Culprit, Recorder, kind},
    pingpong::{Config, HEADER, Mode, PingPong, SLOTS, Slot, State},
};

const XDP_TX: u32 = 3;

fn payload(kind: u8, id: u64, len: usize) -> Vec<u8> {
    let mut payload = vec![0xee; len];
    payload[..HEADER].fill(0);
    payload[..4].copy_from_slice(b"FDPP");
    (payload[4], payload[5]) = (1, kind);
    payload[16..24].copy_from_slice(&id.to_le_bytes());
    payload
}

#[test]
fn root_both_sides_of_the_ping_pong_have_one_layout() {
    let Some(program) = loaded(PingPong::load(PORT, Mode::Slot, 1)) else { return };
    let btf = btf_of(program.program());
    let names = |fields: &[(&str, usize)]| fields.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect::<Vec<_>>();
    let config = [
        ("port", offset_of!(Config, port)),
        ("mode", offset_of!(Config, mode)),
        ("incarnation", offset_of!(Config, incarnation)),
    ];
    assert_eq!(c_layout(&btf, "fide_pp_config"), (size_of::<Config>(), names(&config)));
    let slot = [
        ("sequence", offset_of!(Slot, sequence)),
        ("rx_ns", offset_of!(Slot, rx_ns)),
        ("header", offset_of!(Slot, header)),
    ];
    assert_eq!(c_layout(&btf, "fide_pp_slot"), (size_of::<Slot>(), names(&slot)));
    let state = [
        ("head", offset_of!(State, head)),
        ("reflected", offset_of!(State, reflected)),
        ("malformed", offset_of!(State, malformed)),
    ];
    assert_eq!(c_layout(&btf, "fide_pp_state"), (size_of::<State>(), names(&state)));
}

#[test]
fn root_packets_come_out_of_slots_in_order_and_what_is_lost_is_counted() {
    let Some(mut program) = loaded(PingPong::load(PORT, Mode::Slot, 1)) else { return };
    let put = |program: &PingPong, id: u64| assert_eq!(run(program.program(), &frame(&payload(1, id, 1024))), XDP_DROP);
    assert_eq!(program.take(), None);
    for id in 0..100 {
        put(&program, id);
    }
    let id = |arrived: crate::pingpong::Arrived| u64::from_le_bytes(arrived.header[16..24].try_into().expect("8"));
    let taken: Vec<u64> = std::iter::from_fn(|| program.take()).map(id).collect();
    assert_eq!(taken, (0..100).collect::<Vec<_>>());
    for id in 100..100 + SLOTS as u64 + 10 {
        put(&program, id);
    }
    let taken: Vec<u64> = std::iter::from_fn(|| program.take()).map(id).collect();
    assert!(taken.windows(2).all(|pair| pair[1] == pair[0] + 1) && taken.last() == Some(&(109 + SLOTS as u64)));
    assert_eq!(taken.len() as u64 + program.overwritten(), SLOTS as u64 + 10, "every packet is taken or counted");
}

#[test]
fn root_what_is_not_the_benchs_passes_and_what_is_broken_is_counted() {
    let Some(mut program) = loaded(PingPong::load(PORT, Mode::Slot, 1)) else { return };
    let good = payload(1, 0, HEADER);
    let mut other_port = frame(&good);
    other_port[37] ^= 1;
    assert_eq!(run(program.program(), &other_port), XDP_PASS);
    for broken in [&good[..HEADER - 1], &good[..1], &[b"XXXX", &good[4..]].concat()[..], &{
        let mut other = good.clone();
        other[4] = 2;
        other
    }] {
        assert_eq!(run(program.program(), &frame(broken)), XDP_DROP);
    }
    assert_eq!((program.malformed(), program.take()), (4, None));
}

#[test]
fn root_a_reflected_ping_is_a_stamped_pong_and_pongs_are_not_reflected() {
    let Some(program) = loaded(PingPong::load(PORT, Mode::Reflect, 77)) else { return };
    assert_eq!(run(program.program(), &frame(&payload(1, 5, 1024))), XDP_TX);
    assert_eq!(run(program.program(), &frame(&payload(2, 5, 1024))), XDP_DROP);
    assert_eq!((program.reflected(), program.malformed()), (1, 0));
}

#[test]
fn root_a_thread_that_takes_a_core_is_recorded() {
    let settings = culprits::Settings { cpus: vec![0], least_ns: 100_000, own_threads: Vec::new() };
    let Some(recorder) = loaded(Recorder::attach(&settings)) else { return };
    let mut ring = BpfRing::map(recorder.records_fd(), culprits::RING_BYTES).expect("ring");
    let busy = std::thread::Builder::new().name("culprit".to_owned()).spawn(|| {
        // SAFETY: the set outlives the call and holds one core that exists.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
        }
        std::thread::sleep(Duration::from_millis(1));
        let until = Instant::now() + Duration::from_millis(3);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
    });
    let thread = busy.expect("a thread").join().expect("no panic");
    let mut found = Vec::new();
    let until = Instant::now() + LIMIT;
    while !found.iter().any(|c: &Culprit| c.kind == kind::THREAD && c.id == thread) {
        assert!(Instant::now() < until, "the thread is not among {} records", found.len());
        ring.drain(usize::MAX, |bytes| found.push(Culprit::read_from_bytes(bytes).expect("whole"))).expect("ring");
        std::thread::sleep(Duration::from_millis(1));
    }
    let own: Vec<&Culprit> = found.iter().filter(|c| c.kind == kind::THREAD && c.id == thread).collect();
    assert!(own.iter().all(|c| c.cpu == 0 && c.name.starts_with(b"culprit\0")), "{own:?}");
    assert!(found.iter().all(|c| c.cpu == 0 && c.end_ns - c.start_ns >= 100_000 && c.kind <= kind::LATE));
    let (recorded, lost) = recorder.counts();
    assert!(recorded >= found.len() as u64 && lost == 0);
}

/// So many that their interrupt takes longer than [`BEHIND_US`] and what counts as late.
const TIMERS: usize = 800;
/// More run out one after the other, a microsecond apart, while that interrupt is under way: theirs comes
/// late, however idle or busy the core was before.
const BEHIND_US: i64 = 20;
/// From the end of a timer to its record, where a hypervisor takes the core away in between.
const RECORDED_NS: u64 = 50_000_000;

#[test]
fn root_a_timer_whose_interrupt_comes_late_is_recorded() {
    let settings = culprits::Settings { cpus: vec![0], least_ns: 1_000, own_threads: Vec::new() };
    let Some(recorder) = loaded(Recorder::attach(&settings)) else { return };
    let mut ring = BpfRing::map(recorder.records_fd(), culprits::RING_BYTES).expect("ring");
    // Armed on core 0, they run out there.
    let armed = std::thread::spawn(move || {
        // SAFETY: the set outlives the call and holds one core that exists.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
        }
        let clock = rustix::time::TimerfdClockId::Monotonic;
        let timers: Vec<_> = (0..TIMERS + usize::try_from(BEHIND_US).expect("few"))
            .map(|_| rustix::time::timerfd_create(clock, rustix::time::TimerfdFlags::CLOEXEC).expect("a timer"))
            .collect();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // Some milliseconds before the next second, so that the last one is in the same.
        let at = rustix::time::Timespec { tv_sec: now.tv_sec + 1, tv_nsec: now.tv_nsec.min(990_000_000) };
        let behind_us = std::iter::repeat_n(0, TIMERS).chain(1..=BEHIND_US);
        for (timer, behind_us) in timers.iter().zip(behind_us) {
            let at = rustix::time::Timespec { tv_nsec: at.tv_nsec + behind_us * 1_000, ..at };
            let never = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            let once = rustix::time::Itimerspec { it_interval: never, it_value: at };
            rustix::time::timerfd_settime(timer, rustix::time::TimerfdTimerFlags::ABSTIME, &once).expect("armed");
        }
        std::thread::sleep(Duration::from_millis(1500));
        at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs()
    });
    let due_ns = armed.join().expect("no panic");
    let mut found = Vec::new();
    ring.drain(usize::MAX, |bytes| found.push(Culprit::read_from_bytes(bytes).expect("whole"))).expect("ring");
    let late: Vec<&Culprit> =
        found.iter().filter(|c| c.kind == kind::LATE && c.start_ns.abs_diff(due_ns) < RECORDED_NS).collect();
    assert!(late.iter().all(|c| c.cpu == 0 && c.end_ns - c.start_ns >= 20_000));
    assert!(!late.is_empty(), "none among {} records, due at {due_ns}", found.len());
}
