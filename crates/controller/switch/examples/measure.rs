// SPDX-License-Identifier: Apache-2.0
//! How long an install of ten rules takes on a bridge and on Open vSwitch, and how soon a cut cable is
//! reported.
//!
//! Run as root: `cargo run --release -p fide-switch --example measure`. Everything is in namespaces of its
//! own.

use fide_switch::{Driver, GroupRange, Rule, linux::Linux, ovs::Ovs};
use fide_sys::clock::mono_ns;
use fide_testbed::fabric::{Cut, Fabric, FabricSpec, SwitchKind, ovs_supported};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

const ROUNDS: usize = 20;
const RULES: u8 = 10;
type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    measure(SwitchKind::Bridge)?;
    match ovs_supported() {
        Ok(()) => measure(SwitchKind::Ovs),
        Err(why) => {
            println!("ovs: not measured: {why}");
            Ok(())
        }
    }
}

fn measure(kind: SwitchKind) -> Result<(), Failure> {
    let spec = FabricSpec::single_pair(8);
    let fabric = Fabric::build(if kind == SwitchKind::Ovs { spec.on_ovs() } else { spec })?;
    let switch = fabric.switch("l1a")?;
    let netns = switch.node().namespace_path();
    let range = GroupRange::new(Ipv4Addr::new(239, 71, 0, 0), 16)?;
    let mut driver: Box<dyn Driver> = match switch.ovs_target() {
        None => Box::new(Linux::open(Some(&netns), "br0", range)?),
        Some(target) => Box::new(Ovs::open(&target, Some(&netns), range)?),
    };
    let rules = |from: usize| -> Vec<Rule> {
        let ports = move |n: u8| (0..3).map(move |i| format!("h{}", (from + usize::from(n) + i) % 8 + 1));
        (1..=RULES).map(|n| Rule::new(Ipv4Addr::new(239, 71, 0, n), ports(n))).collect()
    };
    let (mut new, mut changed, mut same, mut reported) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        for (times, rules) in [(&mut new, rules(0)), (&mut changed, rules(1)), (&mut same, rules(1))] {
            let start = mono_ns();
            driver.install(&rules)?.complete()?;
            times.push(mono_ns() - start);
        }
        driver.remove(&rules(0).iter().map(|r| r.group).collect::<Vec<_>>())?;
    }
    let mut watch = driver.watch()?;
    let link = fabric.link("h2", "l1a")?;
    let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
    for _ in 0..ROUNDS {
        reported.push(std::thread::scope(|scope| -> Result<u64, Failure> {
            let waiter = scope.spawn(|| -> Result<u64, fide_switch::DriverError> {
                loop {
                    let _ = poll(&mut [PollFd::new(&watch.as_fd(), PollFlags::IN)], Some(&limit));
                    if watch.changes()?.iter().any(|c| !c.carrier) {
                        return Ok(mono_ns());
                    }
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            let (before, _) = fabric.cut_link(link, Cut::Carrier)?;
            let at = waiter.join().map_err(|_| "the waiter panicked")??;
            Ok(at - before)
        })?);
        fabric.restore_link(link)?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        watch.changes()?;
    }
    for (what, times) in [
        ("install of 10 new rules", new),
        ("change of 3 ports in 10 rules", changed),
        ("install of 10 rules that are there", same),
        ("cut to carrier change reported", reported),
    ] {
        print(&format!("{kind:?}: {what}"), times);
    }
    Ok(())
}

fn print(what: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let us = |ns: u64| ns as f64 / 1000.0;
    let (least, middle, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    println!("{what}: median {:.0} us, {:.0} to {:.0} us, n = {}", us(middle), us(least), us(most), times.len());
}
