// SPDX-License-Identifier: Apache-2.0
//! Fabrics with drivers to their switches, and hosts that send and count.

use fide_switch::linux::Linux;
use fide_switch::ovs::Ovs;
use fide_switch::{Driver, DriverError, GroupRange, Rule};
use fide_testbed::fabric::{Fabric, Switch, SwitchKind};
use fide_testbed::retry_until;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const PORT: u16 = 7000;
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Pauses after the last packet sent: for expected packets, and for a packet that should not come.
pub(crate) const QUIET: Duration = Duration::from_millis(60);

macro_rules! root_or_skip {
    ($($also:expr)?) => {
        if let Err(why) = fide_testbed::supported()$(.and_then(|()| $also))? {
            println!("skipped: {why}");
            return;
        }
    };
}
pub(crate) use root_or_skip;

pub(crate) fn range() -> GroupRange {
    GroupRange::new(Ipv4Addr::new(239, 71, 0, 0), 16).unwrap()
}

pub(crate) fn group(tree: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(239, 71, tree, n)
}

pub(crate) fn open(switch: &Switch) -> Box<dyn Driver> {
    let netns = switch.node().namespace_path();
    match switch.kind() {
        SwitchKind::Bridge => Box::new(Linux::open(Some(&netns), "br0", range()).unwrap()),
        SwitchKind::Ovs => Box::new(Ovs::open(&switch.ovs_target().unwrap(), Some(&netns), range()).unwrap()),
    }
}

/// The rules of h1's tree on a plane through switches `a` and first, or `b` and second ones; by switch.
pub(crate) fn tree(fabric: &Fabric, plane: usize) -> Vec<(String, Rule)> {
    let ends = [["a", "1"], ["b", "2"]][plane];
    let tree = fabric.spec().tree(1, plane, |s| ends.iter().any(|e| s.ends_with(e)));
    tree.into_iter().map(|(switch, ports)| (switch, Rule { group: group(plane as u8, 1), ports })).collect()
}

/// The output of a system's tool on a switch.
pub(crate) fn run(switch: &Switch, line: &str) -> String {
    let mut words = line.split_whitespace();
    let out = switch.node().command(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

pub(crate) fn ports(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| n.to_string()).collect()
}

pub(crate) fn inbox(fabric: &Fabric, host: usize, plane: usize, group: Ipv4Addr) -> UdpSocket {
    let host = fabric.host(host);
    let open = || {
        let s = UdpSocket::bind((group, PORT))?;
        s.join_multicast_v4(&group, &host.address(plane))?;
        s.set_nonblocking(true)?;
        Ok::<_, std::io::Error>(s)
    };
    // A process that another test starts at this moment still holds the socket that was here before, until it
    // executes.
    retry_until("an inbox", LIMIT, || host.run_in(open).unwrap().map_err(|e| e.to_string())).unwrap()
}

pub(crate) fn outbox(fabric: &Fabric, host: usize, plane: usize) -> UdpSocket {
    let host = fabric.host(host);
    let s = host.run_in(|| UdpSocket::bind((host.address(plane), 0))).unwrap().unwrap();
    s.set_multicast_loop_v4(false).unwrap();
    s
}

/// Numbers received so far, sorted: a sender that moves to another core may overtake itself.
pub(crate) fn drain(inbox: &UdpSocket) -> Vec<u32> {
    let mut got = Vec::new();
    let mut packet = [0u8; 4];
    while inbox.recv(&mut packet).is_ok() {
        got.push(u32::from_ne_bytes(packet));
    }
    got.sort_unstable();
    got
}

/// Sends `0..packets` from h1: these hosts get all of them, each once, and the others none.
#[track_caller]
pub(crate) fn hears(fabric: &Fabric, plane: usize, group: Ipv4Addr, packets: u32, hosts: &[usize]) {
    assert_eq!(heard(fabric, plane, group, packets, hosts), hosts);
}

/// Sends `0..packets` from h1. Returns the hosts that got all of them, each once; the others got none.
/// `awaited`: they have as long as they need, the others a moment.
pub(crate) fn heard(fabric: &Fabric, plane: usize, group: Ipv4Addr, packets: u32, awaited: &[usize]) -> Vec<usize> {
    let inboxes: Vec<_> = fabric.hosts().iter().map(|h| (h.index(), inbox(fabric, h.index(), plane, group))).collect();
    let outbox = outbox(fabric, 1, plane);
    for n in 0..packets {
        // A link without carrier may refuse.
        let _ = outbox.send_to(&n.to_ne_bytes(), (group, PORT));
    }
    let mut all = vec![Vec::new(); inboxes.len()];
    let mut look = || {
        all.iter_mut().zip(&inboxes).for_each(|(got, (_, inbox))| got.extend(drain(inbox)));
        let mut here = all.iter().zip(&inboxes).filter(|(_, (host, _))| awaited.contains(host));
        here.all(|(got, _)| got.len() >= packets as usize)
    };
    // A packet that does not come is reported by the caller.
    let _ = retry_until("the packets", LIMIT, || if look() { Ok(()) } else { Err("some are missing".to_owned()) });
    std::thread::sleep(QUIET);
    look();
    let mut who = Vec::new();
    for ((host, _), mut got) in inboxes.iter().zip(all) {
        got.sort_unstable();
        if !got.is_empty() {
            assert_eq!(got, (0..packets).collect::<Vec<_>>(), "h{host}");
            who.push(*host);
        }
    }
    who
}

/// Why one of these rules, and no other, is refused.
#[track_caller]
pub(crate) fn refused(driver: &mut dyn Driver, rules: &[Rule]) -> DriverError {
    let mut refused = driver.install(rules).unwrap().refused;
    assert_eq!(refused.len(), 1, "{refused:?}");
    refused.remove(0).1
}

/// Changes a group's ports 200 times, while h1 sends every millisecond: h2, which is in every set, loses
/// nothing.
pub(crate) fn change_ports(fabric: &Fabric) {
    const CHANGES: usize = 200;
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    let group = group(0, 1);
    let sets = [["h2", "h3"], ["h2", "h4"]];
    driver.install(&[Rule::new(group, sets[0])]).unwrap().complete().unwrap();
    let (stays, comes) = (inbox(fabric, 2, 0, group), inbox(fabric, 4, 0, group));
    let outbox = outbox(fabric, 1, 0);
    let stop = AtomicBool::new(false);
    let (sent, mut got) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut n = 0u32;
            while !stop.load(Ordering::Relaxed) {
                outbox.send_to(&n.to_ne_bytes(), (group, PORT)).unwrap();
                n += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            n
        });
        let mut got = Vec::new();
        for turn in 1..=CHANGES {
            driver.install(&[Rule::new(group, sets[turn % 2])]).unwrap().complete().unwrap();
            got.extend(drain(&stays));
            // A few packets between changes.
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        stop.store(true, Ordering::Relaxed);
        (sender.join().unwrap(), got)
    });
    std::thread::sleep(QUIET);
    got.extend(drain(&stays));
    got.sort_unstable();
    let lost: Vec<u32> = (0..sent).filter(|n| got.binary_search(n).is_err()).collect();
    assert_eq!((lost, got.len()), (vec![], sent as usize), "h2 was in every set");
    let now_and_then = drain(&comes).len();
    assert!(now_and_then > 0 && now_and_then < sent as usize, "h4 was in half of them: {now_and_then} of {sent}");
}
