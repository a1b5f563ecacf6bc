// SPDX-License-Identifier: Apache-2.0
//! Tests of fabrics: only packets with a rule are forwarded, every cut stops the packets that cross it, and
//! nothing of a fabric is left behind.

use fide_testbed::fabric::{Cut, Fabric, FabricSpec, LinkFloodSpec, SwitchKind, ThreeTier, ovs_supported};
use fide_testbed::{Lines, retry_until, supported};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_secs(20);
/// How long to go on listening after the expected packets, for a packet that should not come.
const QUIET: Duration = Duration::from_millis(60);

macro_rules! root_or_skip {
    ($($also:expr)?) => {
        if let Err(why) = supported()$(.and_then(|()| $also))? {
            println!("skipped: {why}");
            return;
        }
    };
}

fn group(plane: usize) -> Ipv4Addr {
    Ipv4Addr::new(239, 71, plane as u8, 1)
}

/// The tree of h1 on a plane through switches `a` and first, or `b` and second ones.
fn tree(fabric: &Fabric, plane: usize) -> BTreeMap<String, std::collections::BTreeSet<String>> {
    let ends = [["a", "1"], ["b", "2"]][plane];
    fabric.spec().tree(1, plane, |s| ends.iter().any(|e| s.ends_with(e)))
}

/// Installs a tree by the systems' own tools.
fn install(fabric: &Fabric, plane: usize) {
    let group = group(plane);
    for (name, ports) in tree(fabric, plane) {
        let switch = fabric.switch(&name).unwrap();
        let run = |words: String| {
            let mut words = words.split(' ');
            let out = switch.node().command(words.next().unwrap()).args(words).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        match switch.ovs_target() {
            None => ports.iter().for_each(|p| run(format!("bridge mdb add dev br0 port {p} grp {group} permanent"))),
            Some(target) => {
                let out: Vec<_> = ports.iter().map(|p| format!("output:{p}")).collect();
                let flow = format!("ip,nw_dst={group},actions={}", out.join(","));
                run(format!("ovs-ofctl -O OpenFlow13 --names add-flow {target} {flow}"));
            }
        }
    }
}

struct Members {
    inboxes: Vec<(usize, UdpSocket)>,
    outbox: UdpSocket,
    group: Ipv4Addr,
    next: u32,
}

impl Members {
    /// Makes all hosts members, so that the switches alone decide which hosts get a packet. h1 sends.
    fn join(fabric: &Fabric, plane: usize) -> Members {
        let group = group(plane);
        let inboxes = fabric.hosts().iter().map(|host| {
            let inbox = host.run_in(|| {
                let s = UdpSocket::bind((group, PORT))?;
                s.join_multicast_v4(&group, &host.address(plane))?;
                Ok::<_, std::io::Error>(s)
            });
            (host.index(), inbox.unwrap().unwrap())
        });
        let inboxes = inboxes.collect();
        let source = (fabric.host(1).address(plane), 0);
        let outbox = fabric.host(1).run_in(|| UdpSocket::bind(source)).unwrap().unwrap();
        outbox.set_multicast_loop_v4(false).unwrap();
        Members { inboxes, outbox, group, next: 0 }
    }

    /// Sends numbered packets, and asserts that `hosts` get them, each exactly once, and that the others get
    /// none.
    #[track_caller]
    fn hears(&mut self, packets: u32, hosts: &[usize], what: &str) {
        assert_eq!(self.heard(packets, hosts), hosts, "{what}");
    }

    /// Sends numbered packets. Returns the hosts that got them, each packet exactly once; other hosts got
    /// none of them. The hosts in `awaited` have as long as they need, the others only a moment.
    fn heard(&mut self, packets: u32, awaited: &[usize]) -> Vec<usize> {
        let numbers: Vec<u32> = (self.next..self.next + packets).collect();
        self.next += packets;
        for n in &numbers {
            // A link without carrier may refuse.
            let _ = self.outbox.send_to(&n.to_ne_bytes(), (self.group, PORT));
        }
        let mut all = vec![Vec::new(); self.inboxes.len()];
        let mut look = || {
            for (got, (_, inbox)) in all.iter_mut().zip(&self.inboxes) {
                let mut packet = [0u8; 4];
                inbox.set_nonblocking(true).unwrap();
                while inbox.recv(&mut packet).is_ok() {
                    got.push(u32::from_ne_bytes(packet));
                }
            }
            let mut here = all.iter().zip(&self.inboxes).filter(|(_, (host, _))| awaited.contains(host));
            here.all(|(got, _)| got.len() >= numbers.len())
        };
        // The caller reports what is missing.
        let _ = retry_until("the packets", LIMIT, || if look() { Ok(()) } else { Err("some are missing".to_owned()) });
        std::thread::sleep(QUIET);
        look();
        let mut who = Vec::new();
        for ((host, _), mut got) in self.inboxes.iter().zip(all) {
            if !got.is_empty() {
                // A sender that moves to another core may overtake itself.
                got.sort_unstable();
                assert_eq!(got, numbers, "h{host}");
                who.push(*host);
            }
        }
        who
    }
}

/// Installs both trees of h1. Then cuts each link in turn, in both ways: that must stop the packets that
/// cross it, and no others.
fn try_fabric(spec: FabricSpec, cuts: usize) {
    let fabric = Fabric::build(spec).unwrap();
    let all: Vec<usize> = (2..=fabric.hosts().len()).collect();
    for plane in 0..2 {
        let mut members = Members::join(&fabric, plane);
        members.hears(3, &[], "nothing is forwarded before there is a rule");
        install(&fabric, plane);
        members.hears(20, &all, &format!("on plane {plane}"));
    }
    // 23 packets per plane, and packets that hosts and bridges send by themselves.
    for c in fabric.counters().unwrap() {
        assert!(c.tx_packets < 150, "something circulates: {c:?}");
    }
    let mut members = [0, 1].map(|p| Members::join(&fabric, p));
    let links = fabric.spec().links.len();
    for link in (0..links).step_by(links.div_ceil(cuts)) {
        for how in [Cut::Carrier, Cut::Silent] {
            let (before, after) = fabric.cut_link(link, how).unwrap();
            assert!(before < after);
            for (plane, members) in members.iter_mut().enumerate() {
                members.hears(2, &beyond(&fabric, plane, link), &format!("{how:?} of {link} on plane {plane}"));
            }
            fabric.restore_link(link).unwrap();
            for members in &mut members {
                await_heard(members, &all);
            }
        }
    }
}

/// Waits until hosts hear again: a carrier that came back is reported a moment later.
fn await_heard(members: &mut Members, by: &[usize]) {
    retry_until("a restored link", LIMIT, || {
        let who = members.heard(1, &[]);
        if who == by { Ok(()) } else { Err(format!("only {who:?}")) }
    })
    .unwrap();
}

/// The hosts that still hear h1 on a plane without `link`.
fn beyond(fabric: &Fabric, plane: usize, link: usize) -> Vec<usize> {
    let mut spec = fabric.spec().clone();
    let gone = spec.links.remove(link);
    let full = tree(fabric, plane);
    // Along the tree from h1's switch, not over the link.
    let mut reached = Vec::new();
    let mut queue: Vec<String> = spec
        .links
        .iter()
        .filter(|l| l.a.node == "h1" && l.a.port == format!("p{plane}"))
        .map(|l| l.b.node.clone())
        .collect();
    while let Some(node) = queue.pop() {
        if let Some(host) = node.strip_prefix('h') {
            reached.push(host.parse().unwrap());
        }
        for port in full.get(&node).into_iter().flatten() {
            let cut = (gone.a.node == node && gone.a.port == *port) || (gone.b.node == node && gone.b.port == *port);
            if !cut {
                queue.push(port.clone());
            }
        }
    }
    reached.sort();
    reached
}

#[test]
fn root_two_tiers_forward_along_installed_trees_only_and_every_link_can_be_cut() {
    root_or_skip!();
    try_fabric(FabricSpec::two_tier(4, 2, 2), 100);
}

#[test]
fn root_three_tiers_forward_along_installed_trees_only() {
    root_or_skip!();
    let shape = ThreeTier { hosts: 4, pods: 2, edge_pairs: 1, aggregation: 2, cores: 2 };
    try_fabric(FabricSpec::three_tier(shape), 7);
}

#[test]
fn root_a_fabric_of_bridges_and_open_vswitches_forwards_and_is_cut_alike() {
    root_or_skip!(ovs_supported());
    let mut spec = FabricSpec::two_tier(3, 2, 2);
    for s in spec.switches.iter_mut().filter(|s| ["l1a", "s1", "l1b"].contains(&s.name.as_str())) {
        s.kind = SwitchKind::Ovs;
    }
    try_fabric(spec, 100);
}

#[test]
fn root_a_switch_fails_as_a_whole_and_comes_back() {
    root_or_skip!();
    let fabric = Fabric::build(FabricSpec::single_pair(3).managed()).unwrap();
    (0..2).for_each(|p| install(&fabric, p));
    let mut members = [0, 1].map(|p| Members::join(&fabric, p));
    for how in [Cut::Carrier, Cut::Silent] {
        fabric.cut_switch("l1b", how).unwrap();
        members[0].hears(2, &[2, 3], "the other switch");
        members[1].hears(2, &[], "the one that fails");
        let link = fabric.host(2).command("ip").args(["link", "show", "p1"]).output().unwrap();
        let carrier = String::from_utf8_lossy(&link.stdout).contains("LOWER_UP");
        assert_eq!(carrier, how == Cut::Silent);
        fabric.restore_switch("l1b").unwrap();
        await_heard(&mut members[1], &[2, 3]);
    }
    assert!(fabric.cut_switch("l9", Cut::Silent).unwrap_err().to_string().contains("there are l1a, l1b"));
    assert!(fabric.cut_link(6, Cut::Silent).unwrap_err().to_string().contains("there are 6"));

    // The management network is separate: hosts and controller reach each other while the fabric is cut.
    fabric.cut_switch("l1a", Cut::Carrier).unwrap();
    let inbox = fabric.controller().unwrap().run_in(|| UdpSocket::bind("10.71.0.254:7000")).unwrap().unwrap();
    inbox.set_read_timeout(Some(LIMIT)).unwrap();
    let outbox = fabric.host(3).run_in(|| UdpSocket::bind("10.71.0.3:0")).unwrap().unwrap();
    outbox.send_to(b"x", "10.71.0.254:7000").unwrap();
    assert_eq!(inbox.recv(&mut [0; 2]).unwrap(), 1);
}

#[test]
fn root_a_flood_loads_every_link_in_both_directions_and_dies_at_the_next_node() {
    root_or_skip!();
    let fabric = Fabric::build(FabricSpec::two_tier(2, 1, 2).limited(10)).unwrap();
    let before = fabric.counters().unwrap();
    let ends = before.len() as u64;
    let spec = LinkFloodSpec { rate_mbit: 20, duration_ns: 60_000_000_000, max_packets: ends * 40 };
    let report = fabric.flood_links(spec).unwrap().wait();
    assert_eq!(report.packets + report.refused, ends * 40);
    // Frames in the queues still leave at 10 Mbit/s.
    retry_until("every link to be loaded", LIMIT, || {
        let after = fabric.counters().unwrap();
        let moved: Vec<_> = before.iter().zip(&after).map(|(b, a)| a.tx_packets - b.tx_packets).collect();
        assert!(moved.iter().all(|m| *m <= 60), "frames went on: {moved:?}");
        if moved.iter().all(|m| *m >= 20) { Ok(()) } else { Err(format!("{moved:?}")) }
    })
    .unwrap();
    assert!(fabric.flood_links(LinkFloodSpec { rate_mbit: 0, ..spec }).is_err());
    assert!(fabric.flood_links(LinkFloodSpec { duration_ns: u64::MAX, ..spec }).is_err());
}

fn left_over(prefix: &str) -> Vec<String> {
    [std::path::Path::new("/run/netns"), &std::env::temp_dir()]
        .iter()
        .flat_map(|d| std::fs::read_dir(d).into_iter().flatten().flatten())
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| n.starts_with(prefix))
        .collect()
}

/// Pids whose command line names the scratch directory: the processes of its switches.
fn processes_of(prefix: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok());
    let pids = all.filter(|n| n.parse::<u32>().is_ok());
    pids.filter(|p| {
        let line = std::fs::read_to_string(format!("/proc/{p}/cmdline")).unwrap_or_default();
        line.starts_with("ovs") && line.contains(prefix)
    })
    .collect()
}

/// Not a test, but the creator that the next test kills.
#[test]
fn root_helper_fabric_creator() {
    if std::env::var_os("FIDE_TESTBED_CREATOR").is_none() {
        return;
    }
    let mut spec = FabricSpec::single_pair(2).managed();
    if ovs_supported().is_ok() {
        spec.switches[1].kind = SwitchKind::Ovs;
    }
    let fabric = Fabric::build(spec).unwrap();
    println!("\nbuilt {}", fabric.scratch().file_name().unwrap().to_str().unwrap());
    let _ = fabric.host(1).command("sleep").arg("60").spawn().unwrap().wait();
}

#[test]
fn root_dropped_or_orphaned_fabric_leaves_nothing() {
    root_or_skip!();
    let fabric = Fabric::build(FabricSpec::two_tier(2, 1, 1)).unwrap();
    let prefix = fabric.scratch().file_name().unwrap().to_str().unwrap().to_string();
    assert!(left_over(&prefix).len() > 5);
    drop(fabric);
    assert_eq!(left_over(&prefix), Vec::<String>::new());

    let mut creator = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "root_fabric::root_helper_fabric_creator", "--nocapture"])
        .env("FIDE_TESTBED_CREATOR", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Lines::of(creator.stdout.take().unwrap());
    let prefix = lines.find_map(|l| l.strip_prefix("built ").map(String::from)).expect("the creator builds");
    assert_eq!(processes_of(&prefix).len(), if ovs_supported().is_ok() { 2 } else { 0 });
    creator.kill().unwrap();
    creator.wait().unwrap();
    retry_until("the reaper", LIMIT, || {
        let left = (left_over(&prefix), processes_of(&prefix));
        if left.0.is_empty() && left.1.is_empty() { Ok(()) } else { Err(format!("still there: {left:?}")) }
    })
    .unwrap();
}
