// SPDX-License-Identifier: Apache-2.0
//! Queues of strict priority: made, completed, audited, and what was there put back.

use super::common::{LIMIT, PORT, drain, group, inbox, open, outbox, range, root_or_skip, run, tree};
use fide_switch::linux::Linux;
use fide_switch::{Drift, Driver, DriverError, Lanes, Rule};
use fide_testbed::fabric::{Fabric, FabricSpec, LinkFloodSpec, Switch};
use fide_testbed::retry_until;
use std::net::UdpSocket;
use std::time::Duration;

const CS7: u8 = 56 << 2;
const EF: u8 = 46 << 2;
const AF41: u8 = 34 << 2;

/// Without counters and times, which differ from call to call.
fn queues(switch: &Switch, port: &str) -> String {
    ["qdisc show dev", "class show dev"]
        .iter()
        .map(|what| run(switch, &format!("tc {what} {port}")))
        .chain([run(switch, &format!("tc filter show dev {port}"))])
        .collect()
}

fn packets(switch: &Switch, port: &str, class: &str) -> u64 {
    let text = run(switch, &format!("tc -s class show dev {port}"));
    let of_class = text.split_once(&format!("htb {class} ")).unwrap_or_else(|| panic!("no {class}: {text}")).1;
    of_class.split_once(" pkt").unwrap().0.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn root_port_limits_of_any_origin_are_reported() {
    root_or_skip!();
    let fabric = Fabric::build(FabricSpec::single_pair(4).limited(10)).unwrap();
    let switch = fabric.switch("l1a").unwrap();
    run(switch, "tc qdisc del dev h2 root");
    run(switch, "tc qdisc replace dev h3 root tbf rate 3mbit burst 10k latency 10ms");
    run(switch, "ip link set h4 txqueuelen 50");
    let mut driver = open(switch);
    let limits = |driver: &mut dyn Driver| -> Vec<Option<u64>> {
        let all = driver.egress().unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["h1", "h2", "h3", "h4"]);
        let queues: Vec<_> = all.values().map(|port| port.queue_packets).collect();
        assert_eq!(queues, [Some(1000), Some(1000), Some(1000), Some(50)]);
        all.values().map(|port| port.limit_bps).collect()
    };
    assert_eq!(limits(&mut *driver), [Some(10_000_000), None, Some(3_000_000), Some(10_000_000)]);
    run(switch, "tc qdisc del dev h3 root");
    driver.prepare(&Lanes::default()).unwrap();
    assert_eq!(limits(&mut *driver), [None; 4], "queues that only choose limit nothing");
    driver.prepare(&Lanes { rate_bps: Some(7_000_000), ..Lanes::default() }).unwrap();
    assert_eq!(limits(&mut *driver), [Some(7_000_000); 4]);
}

#[test]
fn root_lanes_get_own_queues_and_the_former_ones_come_back() {
    root_or_skip!();
    for spec in [FabricSpec::single_pair(2), FabricSpec::single_pair(2).limited(10)] {
        let fabric = Fabric::build(spec).unwrap();
        let switch = fabric.switch("l1a").unwrap();
        let before = queues(switch, "h2");
        let mut driver = open(switch);
        let lanes = Lanes { rate_bps: Some(10_000_000), ..Lanes::default() };
        driver.prepare(&lanes).unwrap();
        let made = queues(switch, "h2");
        driver.prepare(&lanes).unwrap();
        assert_eq!(queues(switch, "h2"), made, "a second call changes nothing");
        assert_eq!(driver.audit(&[]).unwrap(), []);
        driver.install(&[Rule::new(group(0, 1), ["h2"])]).unwrap().complete().unwrap();

        for (tos, class) in [(CS7, "f1de:10"), (EF, "f1de:11"), (AF41, "f1de:ff"), (0, "f1de:ff")] {
            let counts = || ["f1de:10", "f1de:11", "f1de:ff"].map(|c| packets(switch, "h2", c));
            let before = counts();
            let host = fabric.host(1);
            let outbox = host.run_in(|| UdpSocket::bind((host.address(0), 0))).unwrap().unwrap();
            rustix::net::sockopt::set_ip_tos(&outbox, tos).unwrap();
            outbox.send_to(b"x", (group(0, 1), 7000)).unwrap();
            // With the rest goes what the bridge itself asks about groups, at times of its own.
            let grown: Vec<_> = counts().iter().zip(before).map(|(now, before)| now - before).collect();
            let lanes = [u64::from(class == "f1de:10"), u64::from(class == "f1de:11")];
            assert_eq!(grown[..2], lanes, "tos {tos:#x}");
            assert!(grown[2] >= u64::from(class == "f1de:ff"), "tos {tos:#x}");
        }

        // Each part that goes is found, and made again.
        for (break_it, why) in [
            ("tc filter del dev h2 parent f1de: prio 1", "no filter"),
            ("tc class change dev h2 parent f1de:1 classid f1de:11 htb rate 1kbit ceil 5mbit prio 1", "class f1de:11"),
            ("tc qdisc replace dev h2 root pfifo_fast", "pfifo_fast"),
            ("tc filter add dev h2 parent f1de: prio 1 protocol ip u32 match ip tos 0 0xfc flowid f1de:10", "DSCP 0"),
        ] {
            run(switch, break_it);
            let found = driver.repair(&[Rule::new(group(0, 1), ["h2"])]).unwrap().found;
            assert!(
                matches!(&found[..], [Drift::Priority { port, why: w }] if port == "h2" && w.contains(why)),
                "{break_it}: {found:?}"
            );
            assert_eq!(driver.audit(&[Rule::new(group(0, 1), ["h2"])]).unwrap(), []);
        }
        driver.restore().unwrap();
        assert_eq!(queues(switch, "h2"), before);
    }
}

#[test]
fn root_next_driver_finds_the_queues_as_they_were_left() {
    root_or_skip!();
    let fabric = Fabric::build(FabricSpec::single_pair(2)).unwrap();
    let switch = fabric.switch("l1a").unwrap();
    let before = queues(switch, "h2");
    let rules = [Rule::new(group(0, 1), ["h2"])];
    let mut first = open(switch);
    first.prepare(&Lanes::default()).unwrap();
    first.install(&rules).unwrap().complete().unwrap();
    let made = queues(switch, "h2");
    drop(first);
    let mut second = open(switch);
    second.prepare(&Lanes::default()).unwrap();
    assert_eq!((queues(switch, "h2"), second.audit(&rules).unwrap()), (made, vec![]));
    // What was there before the first one, it knows nothing of: the kernel's default.
    second.restore().unwrap();
    second.restore().unwrap();
    assert_eq!((queues(switch, "h2"), second.audit(&[]).unwrap()), (before, vec![]));
}

#[test]
fn root_queue_that_could_not_be_restored_is_left_alone() {
    root_or_skip!();
    let fabric = Fabric::build(FabricSpec::single_pair(2)).unwrap();
    let switch = fabric.switch("l1a").unwrap();
    run(switch, "tc qdisc add dev h2 root tbf rate 1mbit burst 10k latency 10ms");
    let mut driver = Linux::open(Some(&switch.node().namespace_path()), "br0", range()).unwrap();
    let why = driver.prepare(&Lanes::default()).unwrap_err();
    assert!(matches!(why, DriverError::Unsupported { .. }), "{why}");
    assert!(why.to_string().contains("`tbf`") && why.to_string().contains("tc qdisc del dev h2 root"), "{why}");
    assert!(queues(switch, "h2").contains("tbf"));
    // What was made at other ports goes.
    driver.restore().unwrap();
    assert!(!queues(switch, "h1").contains("htb"));
}

#[test]
fn root_lanes_pass_a_flood_while_best_effort_waits() {
    root_or_skip!();
    const PACKETS: u32 = 100;
    let fabric = Fabric::build(FabricSpec::two_tier(2, 2, 1)).unwrap();
    let lanes = Lanes { rate_bps: Some(10_000_000), ..Lanes::default() };
    let groups = [(CS7, 1), (EF, 2), (0, 3)].map(|(tos, n)| (tos, group(0, n)));
    let tree = tree(&fabric, 0);
    for (switch, rule) in &tree {
        let mut driver = open(fabric.switch(switch).unwrap());
        driver.prepare(&lanes).unwrap();
        driver
            .install(&groups.map(|(_, group)| Rule { group, ports: rule.ports.clone() }))
            .unwrap()
            .complete()
            .unwrap();
    }
    let ends =
        [inbox(&fabric, 2, 0, groups[0].1), inbox(&fabric, 2, 0, groups[1].1), inbox(&fabric, 2, 0, groups[2].1)];
    let sources = groups.map(|(tos, group)| {
        let outbox = outbox(&fabric, 1, 0);
        rustix::net::sockopt::set_ip_tos(&outbox, tos).unwrap();
        (outbox, group)
    });
    let spec = LinkFloodSpec { rate_mbit: 30, duration_ns: 30_000_000_000, max_packets: 200_000 };
    let flood = fabric.flood_links(spec).unwrap();
    // Until the queues are long: each holds more than what passes while the lanes are tried.
    retry_until("a backlog at every switch port", LIMIT, || {
        let short = tree.iter().any(|(s, _)| {
            let text = run(fabric.switch(s).unwrap(), "tc -s qdisc show");
            text.lines()
                .filter_map(|l| l.split_once("backlog ")?.1.split_once("b ")?.1.split_once('p')?.0.parse().ok())
                .filter(|n: &u32| *n > 300)
                .count()
                < 2
        });
        if short { Err("the queues are short".into()) } else { Ok(()) }
    })
    .unwrap();
    for n in 0..PACKETS {
        for (outbox, group) in &sources {
            outbox.send_to(&n.to_ne_bytes(), (*group, PORT)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut got = [vec![], vec![], vec![]];
    retry_until("both lanes", LIMIT, || {
        got.iter_mut().zip(&ends).for_each(|(got, end)| got.extend(drain(end)));
        let done = got[..2].iter().all(|g| g.len() >= PACKETS as usize);
        if done { Ok(()) } else { Err(format!("{:?}", got.each_ref().map(Vec::len))) }
    })
    .unwrap();
    flood.stop();
    got.iter_mut().for_each(|g| g.sort_unstable());
    let all: Vec<u32> = (0..PACKETS).collect();
    assert_eq!((&got[0], &got[1]), (&all, &all));
    assert!(got[2].len() < PACKETS as usize, "best effort waited for nothing: {}", got[2].len());
}
