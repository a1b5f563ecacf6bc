// SPDX-License-Identifier: Apache-2.0
//! Tests every method between two hosts on a switch, with real packets.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use fide_jitter_analysis::{MISSING, Schedule};
use fide_latency_probe::{
    PORT,
    pages::Pages,
    ping::{self, Measured, Plan, PlanError, Progress},
    pong::{self, Answered, Reflector},
    port::{self, Method, PortError},
};
use fide_sys::interface::{self, Interface};
use fide_testbed::{Spec, Stops, Testbed, retry_until, supported};

const PACKETS: u64 = 200;

fn bed() -> Option<Testbed> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    Some(Testbed::build(Spec::hosts(2)).expect("testbed"))
}

fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 70, 1, host)
}

fn here(host: u8) -> Interface {
    interface::by_address(address(host)).expect("there")
}

fn plan() -> Plan {
    Plan {
        packets: PACKETS,
        period_ns: 1_000_000,
        packet_bytes: 1024,
        schedule: Schedule::Absolute,
        run: 0x1234,
        spin: false,
    }
}

/// Runs a ping at host 1 against a pong at host 2.
fn run(bed: &Testbed, a: Method, b: Method, plan: Plan) -> (Measured, Answered) {
    run_seen(bed, a, b, plan, &Progress::default())
}

/// The same, with a progress that another thread can read.
fn run_seen(bed: &Testbed, a: Method, b: Method, plan: Plan, progress: &Progress) -> (Measured, Answered) {
    let stop = AtomicBool::new(false);
    let up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let pong = scope.spawn(|| {
            bed.host(2)
                .run_in(|| {
                    if b == Method::Reflect {
                        let reflector = Reflector::attach(&here(2), PORT, 9, true).expect("attached");
                        up.store(true, Ordering::Release);
                        while !stop.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        return reflector.answered();
                    }
                    let mut port = port::open(b, &here(2), Some(address(1)), PORT).expect("pong's port");
                    up.store(true, Ordering::Release);
                    pong::answer(port.as_mut(), 9, &stop).expect("answered")
                })
                .expect("entered")
        });
        let measured = bed
            .host(1)
            .run_in(|| {
                while !up.load(Ordering::Acquire) {
                    assert!(!pong.is_finished(), "pong failed");
                    std::thread::sleep(Duration::from_millis(1));
                }
                let mut port = port::open(a, &here(1), Some(address(2)), PORT).expect("ping's port");
                ping::run(port.as_mut(), plan, Pages::Usual, progress).expect("a good plan")
            })
            .expect("entered");
        drop(stops);
        (measured, pong.join().expect("no panic"))
    })
}

fn whole(measured: &Measured, what: &str) {
    assert_eq!(measured.samples.len() as u64, PACKETS, "{what}");
    let answered = measured.samples.iter().filter(|sample| !sample.lost()).count() as u64;
    // A busy machine may drop some; the method works if nearly all come back.
    assert!(answered >= PACKETS * 9 / 10, "{what}: {answered} of {PACKETS} answered, {measured:?}");
    for sample in measured.samples.iter().filter(|sample| !sample.lost()) {
        let [ts1, ts2, ts3, ts4] = sample.ts;
        assert!(ts1 <= ts2 && ts2 <= ts3 && ts3 <= ts4, "{what}: {sample:?}");
        let due = measured.start_ns + sample.id * 1_000_000;
        assert!(ts1 >= due.cast_signed(), "{what}: packet {} was sent before it was due", sample.id);
    }
    assert_eq!((measured.ended.as_deref(), measured.ignored), (None, 0), "{what}");
}

#[test]
fn root_every_method_measures_and_they_understand_each_other() {
    let Some(bed) = bed() else { return };
    for (a, b) in [
        (Method::Udp, Method::Udp),
        (Method::UdpPoll, Method::Udp),
        (Method::Packet, Method::Packet),
        (Method::Slot, Method::Slot),
        (Method::Xsk, Method::Xsk),
        (Method::Udp, Method::Reflect),
        (Method::Slot, Method::Reflect),
        (Method::Packet, Method::Udp),
        (Method::Udp, Method::Xsk),
    ] {
        let (measured, answered) = run(&bed, a, b, plan());
        let what = format!("{a} to {b}");
        whole(&measured, &what);
        assert!(answered.pings >= PACKETS * 9 / 10, "{what}: {answered:?}");
        assert_eq!(measured.restarts, [(measured.restarts[0].0, 9)], "{what}");
        // At B and back at A the kernel saw the packet after it was sent, and before the thread that was
        // waiting for it.
        for (at, sent, received) in [(1, 0, 1), (3, 2, 3)] {
            let stamped = measured.samples.iter().filter(|sample| sample.hw[at] != MISSING);
            let right = stamped.filter(|s| s.ts[sent] <= s.hw[at] && s.hw[at] <= s.ts[received]).count() as u64;
            assert!(right >= PACKETS * 9 / 10, "{what}: {right} with the kernel's stamp {}", at + 1);
        }
    }
}

#[test]
fn root_a_relative_schedule_sends_one_period_after_the_last_send() {
    let Some(bed) = bed() else { return };
    let (measured, _) = run(&bed, Method::Udp, Method::Udp, Plan { schedule: Schedule::Relative, ..plan() });
    let apart = measured.samples.windows(2).all(|pair| pair[1].ts[0] - pair[0].ts[0] >= 1_000_000);
    assert!(apart, "{:?}", measured.samples);
}

#[test]
fn root_huge_pages_are_taken_or_said_to_be_missing() {
    let Some(bed) = bed() else { return };
    let free = std::fs::read_to_string("/proc/meminfo")
        .expect("read")
        .lines()
        .find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let found = bed
        .host(1)
        .run_in(|| port::open_on(Pages::Huge, Method::Xsk, &here(1), None, PORT).expect("a port").name())
        .expect("entered");
    assert!(
        found.contains(if free >= 2 { ", huge pages" } else { ", usual pages (no 2 huge ones are free" }),
        "{found}"
    );
}

#[test]
fn root_impossible_methods_are_reported() {
    let Some(bed) = bed() else { return };
    let failed = |method, peer: Option<Ipv4Addr>, name: &str| {
        bed.host(1)
            .run_in(|| {
                let interface = Interface { name: name.to_owned(), ..here(1) };
                port::open(method, &interface, peer, PORT).err().expect("refused").to_string()
            })
            .expect("entered")
    };
    let nobody = Ipv4Addr::new(10, 70, 1, 99);
    let text = failed(Method::Packet, Some(nobody), "p0");
    assert!(text.contains("10.70.1.99") && text.contains("p0") && text.contains("ping"), "{text}");
    // veth cannot do zero-copy.
    let text = failed(Method::XskZeroCopy, Some(address(2)), "p0");
    assert!(text.contains("af-xdp-zc"), "{text}");
    assert!(matches!(
        bed.host(1).run_in(|| port::open(Method::Reflect, &here(1), None, PORT).err()).expect("entered"),
        Some(PortError::ReflectSends)
    ));
}

#[test]
#[cfg(not(feature = "rdma"))]
fn a_program_without_rdma_says_how_to_build_it() {
    let here = interface::by_address(Ipv4Addr::LOCALHOST).expect("loopback");
    let text = port::open(Method::RdmaUd, &here, None, PORT).err().expect("refused").to_string();
    assert!(text.contains("rdma-ud") && text.contains("--features rdma"), "{text}");
}

#[test]
fn root_lost_interface_ends_the_run_and_keeps_the_measurement() {
    let Some(bed) = bed() else { return };
    let plan = Plan { packets: 100_000, ..plan() };
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let down = scope.spawn(|| {
            let answered = || match progress.answered.load(Ordering::Relaxed) {
                few @ 0..=20 => Err(format!("{few} answers")),
                _ => Ok(()),
            };
            retry_until("answers", Duration::from_secs(20), answered).expect("it measures");
            assert!(bed.host(1).command("ip").args(["link", "set", "p0", "down"]).status().expect("ip").success());
        });
        let (measured, _) = run_seen(&bed, Method::Packet, Method::Udp, plan, &progress);
        down.join().expect("down");
        assert!(measured.ended.is_some(), "it ended by itself");
        assert!(measured.samples.iter().filter(|sample| !sample.lost()).count() > 10, "{:?}", measured.ended);
        assert!((measured.samples.len() as u64) < plan.packets);
    });
}

#[test]
fn impossible_plan_is_refused() {
    assert_eq!(Plan { period_ns: 19_999, ..plan() }.check(), Err(PlanError::Period { period_ns: 19_999 }));
    assert_eq!(Plan { packet_bytes: 63, ..plan() }.check(), Err(PlanError::Size { packet_bytes: 63 }));
    assert_eq!(Plan { packet_bytes: 1473, ..plan() }.check(), Err(PlanError::Size { packet_bytes: 1473 }));
    assert_eq!(Plan { packets: 0, ..plan() }.check(), Err(PlanError::Packets { packets: 0 }));
    assert_eq!(Plan { packets: u64::MAX, ..plan() }.check(), Err(PlanError::Packets { packets: u64::MAX }));
    assert_eq!(plan().check(), Ok(()));
}
