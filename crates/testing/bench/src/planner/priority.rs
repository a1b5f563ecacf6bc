// SPDX-License-Identifier: Apache-2.0
//! A heartbeat over two hops while every link is flooded beyond its rate: in the lane, and outside of it.

use crate::Args;
use anyhow::{Context, anyhow};
use fide_switch::linux::Linux;
use fide_switch::{Driver, GroupRange, Lanes, Rule};
use fide_sys::clock::mono_ns;
use fide_testbed::fabric::{Fabric, FabricSpec, LinkFloodSpec};
use fide_testbed::figures::{Figure, Goal, Report, Samples, Statistic};
use fide_testbed::{LOAD_MAX_NS, MAX_FLOOD_PACKETS};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Rate of every port; best effort sends more.
const RATE_MBIT: u32 = 10;
const FLOOD_MBIT: u32 = 12;
const PERIOD: Duration = Duration::from_millis(2);
const PORT: u16 = 7499;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 71, 0, 1);
/// Type of service of the lane (DSCP CS7), and of all other traffic.
const LANE_TOS: i32 = 0xe0;
const BEST_EFFORT_TOS: i32 = 0;
/// The sender, and the receiver at the other pair of leaves.
const FROM: usize = 1;
const TO: usize = 3;
/// Longest time that a beat may be under way.
const LATE: Duration = Duration::from_secs(8);

pub(crate) fn run(args: &Args, report: &mut Report) {
    if let Err(error) = measure(args, report) {
        for name in ["priority_under_flood", "no_priority_under_flood"] {
            report.add(Figure::unmeasured(name, "us", format!("{error:#}")));
        }
    }
}

fn measure(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let beats: u32 = if args.quick { 200 } else { 3_000 };
    eprintln!("{beats} beats idle, flooded in the lane, and flooded without it, three times each");
    let fabric = Fabric::build(FabricSpec::two_tier(4, 2, 2))?;
    let range = GroupRange::new(Ipv4Addr::new(239, 71, 0, 0), 16)?;
    let lanes = Lanes { rate_bps: Some(u64::from(RATE_MBIT) * 1_000_000), ..Lanes::default() };
    let mut drivers = Vec::new();
    for switch in fabric.switches() {
        let mut driver = Linux::open(Some(&switch.node().namespace_path()), "br0", range)?;
        driver.prepare(&lanes)?;
        drivers.push((switch.name().to_owned(), driver));
    }
    let through = fabric.switches().iter().find(|s| s.name().starts_with('s')).context("no spine")?.name().to_owned();
    for (switch, ports) in fabric.spec().tree(FROM, 0, |switch| switch == through || switch.starts_with("l")) {
        let (_, driver) = drivers.iter_mut().find(|(name, _)| *name == switch).context("no such switch")?;
        driver.install(&[Rule { group: GROUP, ports }])?.complete()?;
    }
    let (mut idle, mut lane, mut without) = (Samples::default(), Samples::default(), Samples::default());
    let mut lost = [0_u64; 3];
    for _ in 0..3 {
        lost[0] += beat(&fabric, LANE_TOS, beats / 3, &mut idle)?;
        let flood = fabric.flood_links(LinkFloodSpec {
            rate_mbit: FLOOD_MBIT,
            duration_ns: LOAD_MAX_NS,
            max_packets: MAX_FLOOD_PACKETS,
        })?;
        // Until the queues are full.
        std::thread::sleep(Duration::from_secs(2));
        lost[1] += beat(&fabric, LANE_TOS, beats / 3, &mut lane)?;
        lost[2] += beat(&fabric, BEST_EFFORT_TOS, beats / 3, &mut without)?;
        flood.stop();
        std::thread::sleep(Duration::from_secs(2));
    }
    let remark =
        format!("of {beats} beats {} were lost in the lane, {} without it, {} idle", lost[1], lost[2], lost[0]);
    report.add(
        Figure::time("priority_under_flood", Statistic::P99, &lane)
            .against("idle", Statistic::P99, &idle)
            .goal(Goal::AtMost(3.0))
            .remark(remark),
    );
    report.add(Figure::time("no_priority_under_flood", Statistic::P99, &without).against(
        "idle",
        Statistic::P99,
        &idle,
    ));
    Ok(())
}

/// Sends beats from one host to the other; returns how many did not arrive.
fn beat(fabric: &Fabric, tos: i32, beats: u32, samples: &mut Samples) -> anyhow::Result<u64> {
    let (from, to) = (fabric.host(FROM), fabric.host(TO));
    let (from_address, to_address) = (from.address(0), to.address(0));
    let receiver = to.run_in(|| -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddrV4::new(GROUP, PORT))?;
        socket.join_multicast_v4(&GROUP, &to_address)?;
        socket.set_read_timeout(Some(LATE))?;
        Ok(socket)
    })??;
    let sender = from.run_in(|| -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind(SocketAddrV4::new(from_address, 0))?;
        rustix::net::sockopt::set_ip_multicast_if(socket.as_fd(), &from_address)?;
        rustix::net::sockopt::set_ip_tos(socket.as_fd(), u8::try_from(tos).expect("one byte"))?;
        socket.connect(SocketAddrV4::new(GROUP, PORT))?;
        Ok(socket)
    })??;
    debug_assert!(sender.as_raw_fd() != receiver.as_raw_fd());
    let got = std::thread::scope(|scope| -> anyhow::Result<u64> {
        let reading = scope.spawn(|| {
            let mut got = 0;
            let mut bytes = [0; 64];
            while let Ok(len) = receiver.recv(&mut bytes) {
                let now = mono_ns();
                let Some(stamp) = bytes[..len].first_chunk::<8>() else { continue };
                match u64::from_le_bytes(*stamp) {
                    // The end.
                    0 => break,
                    sent => {
                        samples.add(now.saturating_sub(sent));
                        got += 1;
                    }
                }
            }
            got
        });
        for _ in 0..beats {
            sender.send(&mono_ns().to_le_bytes()).context("sending a beat")?;
            std::thread::sleep(PERIOD);
        }
        // The final packets may be lost too; the receiver then stops by itself.
        for _ in 0..3 {
            let _ = sender.send(&0_u64.to_le_bytes());
        }
        reading.join().map_err(|_| anyhow!("the receiver has panicked"))
    })?;
    Ok(u64::from(beats).saturating_sub(got))
}
