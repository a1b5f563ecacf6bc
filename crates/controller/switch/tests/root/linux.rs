// SPDX-License-Identifier: Apache-2.0
//! The bridge's driver: what is installed forwards, drift is found and put right, refusals say what and why.

use super::common::{LIMIT, QUIET, change_ports, group, hears, open, ports, range, refused, root_or_skip, run};
use fide_switch::linux::Linux;
use fide_switch::{Drift, DriverError, Lanes, Rate, Repaired, Rule};
use fide_testbed::fabric::{Cut, Fabric, FabricSpec, Switch};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoBridgePort, InfoPortData, InfoPortKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

fn pair(hosts: usize) -> Fabric {
    Fabric::build(FabricSpec::single_pair(hosts)).unwrap()
}

#[test]
fn root_rules_forward_until_removed_and_other_entries_stay() {
    root_or_skip!();
    let fabric = pair(4);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    assert!(driver.describe().contains("bridge br0 in /run/netns/"), "{}", driver.describe());
    run(switch, "bridge mdb add dev br0 port h2 grp 239.99.0.1 permanent");

    let rules = [Rule::new(group(0, 1), ["h2", "h3"]), Rule::new(group(0, 2), ["h4"])];
    driver.install(&rules).unwrap().complete().unwrap();
    driver.install(&rules).unwrap().complete().unwrap();
    assert_eq!(driver.audit(&rules).unwrap(), []);
    hears(&fabric, 0, group(0, 1), 5, &[2, 3]);
    hears(&fabric, 0, group(0, 2), 5, &[4]);

    driver.install(&[Rule::new(group(0, 1), ["h3", "h4"])]).unwrap().complete().unwrap();
    hears(&fabric, 0, group(0, 1), 5, &[3, 4]);
    driver.remove(&[group(0, 1), group(0, 9)]).unwrap();
    hears(&fabric, 0, group(0, 1), 5, &[]);
    hears(&fabric, 0, group(0, 2), 5, &[4]);

    let outside = "239.99.0.1".parse().unwrap();
    assert!(matches!(driver.remove(&[outside]), Err(DriverError::Range(_))));
    assert!(matches!(driver.install(&[Rule::new(outside, ["h3"])]), Err(DriverError::Range(_))));
    assert!(matches!(
        driver.meter(group(0, 2), Some(Rate { packets_per_s: 1, burst_packets: 1 })),
        Err(DriverError::Unsupported { .. })
    ));
    driver.restore().unwrap();
    hears(&fabric, 0, group(0, 2), 5, &[]);
    hears(&fabric, 0, outside, 5, &[2]);
}

#[test]
fn root_drift_is_found_and_put_right() {
    root_or_skip!();
    let fabric = pair(4);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    driver.prepare(&Lanes::default()).unwrap();
    let wanted = [Rule::new(group(0, 1), ["h2", "h3"]), Rule::new(group(0, 2), ["h4"])];
    driver.install(&wanted).unwrap().complete().unwrap();

    run(switch, "bridge mdb del dev br0 port h2 grp 239.71.0.1 permanent");
    run(switch, "bridge mdb add dev br0 port h4 grp 239.71.0.1 temp");
    run(switch, "bridge mdb del dev br0 port h4 grp 239.71.0.2 permanent");
    run(switch, "bridge mdb add dev br0 port h3 grp 239.71.0.3 permanent");
    run(switch, "tc qdisc del dev h3 root");
    run(switch, "ip link set br0 type bridge mcast_querier 0");
    let found = driver.repair(&wanted).unwrap().found;
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(matches!(&found[0], Drift::Inert { why } if why.contains("no querier")));
    assert!(matches!(&found[1], Drift::Priority { port, .. } if port == "h3"));
    let changed = Drift::Ports { group: group(0, 1), missing: ports(&["h2"]), extra: ports(&["h4 (learned)"]) };
    let rest = [changed, Drift::Missing { group: group(0, 2) }, Drift::Extra { group: group(0, 3) }];
    assert_eq!(found[2..], rest);
    assert_eq!(driver.audit(&wanted).unwrap(), []);
    hears(&fabric, 0, group(0, 1), 5, &[2, 3]);
    hears(&fabric, 0, group(0, 2), 5, &[4]);
}

/// A meddler deletes a rule again and again, at any moment of a repair: each time is reported.
#[test]
fn root_every_repaired_difference_is_reported() {
    const TIMES: usize = 300;
    root_or_skip!();
    let fabric = pair(2);
    let switch = fabric.switch("l1a").unwrap();
    let wanted = [Rule::new(group(0, 1), ["h2"])];
    let (mut driver, mut other) = (open(switch), open(switch));
    driver.install(&wanted).unwrap().complete().unwrap();
    std::thread::scope(|scope| {
        let meddler = scope.spawn(|| {
            for _ in 0..TIMES {
                while !other.audit(&wanted).unwrap().is_empty() {}
                other.remove(&[group(0, 1)]).unwrap();
            }
        });
        let mut reported = 0;
        while !meddler.is_finished() {
            reported += driver.repair(&wanted).unwrap().found.len();
        }
        meddler.join().unwrap();
        reported += driver.repair(&wanted).unwrap().found.len();
        assert_eq!(reported, TIMES);
    });
}

#[test]
fn root_change_of_ports_loses_no_packet_at_the_others() {
    root_or_skip!();
    change_ports(&pair(4));
}

#[test]
fn root_refusal_names_rule_reason_and_progress_and_can_be_completed() {
    root_or_skip!();
    let fabric = pair(4);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);

    // A port that does not exist.
    let rules = [Rule::new(group(0, 1), ["h0", "h2"]), Rule::new(group(0, 2), ["h2"])];
    let why = refused(driver.as_mut(), &rules).to_string();
    assert!(why.contains("rule 239.71.0.1 -> {h0, h2}: there is no port `h0`; the switch has h1, h2, h3, h4"), "{why}");
    assert!(why.contains("in force of it: h2"), "{why}");
    assert_eq!(driver.audit(&rules).unwrap(), [drift(group(0, 1), &["h0"], &[])]);

    // A limit of the kernel's, then without it.
    let rules = [Rule::new(group(0, 3), ["h2", "h3"]), Rule::new(group(0, 4), ["h3", "h4"])];
    set_max_groups(switch, "h3", 1);
    let why = refused(driver.as_mut(), &rules);
    let DriverError::Refused { what, refusal, applied } = &why else { panic!("{why}") };
    assert_eq!(what, "rule 239.71.0.4 -> {h3, h4}: adding port h3");
    assert!(refusal.errno != 0 && refusal.said.contains("mcast_max_groups=1"), "{why}");
    assert_eq!(applied, "h4");
    set_max_groups(switch, "h3", 0);
    driver.install(&rules).unwrap().complete().unwrap();

    // A full table: refused, and what forwarded before still does.
    run(switch, "ip link set br0 type bridge mcast_hash_max 1");
    let mut fill = (5..=255).map(|n| driver.install(&[Rule::new(group(0, n), ["h2"])]));
    let why = fill.find_map(|installed| installed.unwrap().complete().err()).expect("the table is full at last");
    drop(fill);
    assert!(matches!(why, DriverError::Refused { .. }), "{why}");
    run(switch, "ip link set br0 type bridge mcast_hash_max 4096 mcast_snooping 1");

    // A port that goes away in the middle, and comes back.
    let rules = [Rule::new(group(0, 1), ["h2", "h3", "h4"]), Rule::new(group(0, 2), ["h2", "h3"])];
    run(switch, "ip link set h3 nomaster");
    let installed = driver.install(&rules).unwrap();
    assert!(
        installed.refused.iter().all(|(_, why)| why.to_string().contains("there is no port `h3`")),
        "{installed:?}"
    );
    assert_eq!(installed.refused.len(), 2);
    run(switch, "ip link set h3 master br0");
    run(
        switch,
        "ip link set h3 type bridge_slave flood off mcast_flood off bcast_flood off learning off mcast_router 0",
    );
    driver.install(&rules).unwrap().complete().unwrap();
    assert_eq!(
        Linux::open(Some(&switch.node().namespace_path()), "br8", range()).err().unwrap().to_string(),
        "cannot open bridge br8: no interface has that name; the bridges are: br0"
    );
}

fn drift(group: Ipv4Addr, missing: &[&str], extra: &[&str]) -> Drift {
    Drift::Ports { group, missing: ports(missing), extra: ports(extra) }
}

/// A rule is refused for one of its ports: its other ports are installed. During a change the former ports
/// stay too; a repair removes them.
#[test]
fn root_refused_rule_gets_all_possible_ports() {
    root_or_skip!();
    let fabric = pair(4);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    driver.install(&[Rule::new(group(0, 1), ["h3"])]).unwrap().complete().unwrap();
    let wanted = [Rule::new(group(0, 1), ["h0", "h2", "h4"])];
    refused(driver.as_mut(), &wanted);
    hears(&fabric, 0, group(0, 1), 5, &[2, 3, 4]);
    run(switch, "bridge mdb del dev br0 port h4 grp 239.71.0.1 permanent");
    run(switch, "bridge mdb add dev br0 port h3 grp 239.71.0.2 permanent");
    let Repaired { found, refused, left } = driver.repair(&wanted).unwrap();
    let changed = drift(group(0, 1), &["h0", "h4"], &["h3"]);
    assert_eq!(found, [changed.clone(), Drift::Extra { group: group(0, 2) }]);
    assert!(
        matches!(&refused[..], [(what, DriverError::NoPort { port, .. })] if *what == changed && port == "h0"),
        "{refused:?}"
    );
    assert_eq!(driver.audit(&wanted).unwrap(), [drift(group(0, 1), &["h0"], &[])]);
    assert_eq!(driver.audit(&wanted).unwrap(), left);
    hears(&fabric, 0, group(0, 1), 5, &[2, 4]);
    // The same is refused in the same words, and of a group that comes twice the last rule counts.
    let again = refused[0].1.to_string().replace("in force of it: h2, h4", "");
    assert!(driver.repair(&wanted).unwrap().refused[0].1.to_string().starts_with(&again), "{again}");
    let twice = [Rule::new(group(0, 1), ["h9"]), Rule::new(group(0, 1), ["h2", "h3"])];
    driver.install(&twice).unwrap().complete().unwrap();
    assert_eq!(driver.audit(&twice[1..]).unwrap(), []);
}

/// The limit of multicast groups at a port, for which this iproute2 may have no word; 0 is none.
fn set_max_groups(switch: &Switch, port: &str, limit: u32) {
    let index: u32 = run(switch, &format!("ip -o link show {port}")).split(':').next().unwrap().parse().unwrap();
    let mut link = LinkMessage::default();
    link.header.index = index;
    let data = LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::MulticastMaxGroups(limit)]));
    link.attributes = vec![LinkAttribute::LinkInfo(vec![LinkInfo::PortKind(InfoPortKind::Bridge), data])];
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::NewLink(link));
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let answer = switch.node().run_in(|| {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        socket.recv_from_full()
    });
    let (answer, _) = answer.unwrap().unwrap();
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).unwrap();
    assert!(matches!(&answer.payload, NetlinkPayload::Error(e) if e.code.is_none()), "{answer:?}");
}

#[test]
fn root_cut_cable_is_reported_at_once() {
    root_or_skip!();
    let fabric = pair(3);
    let switch = fabric.switch("l1b").unwrap();
    let mut driver = open(switch);
    let mut watch = driver.watch().unwrap();
    assert_eq!(watch.changes().unwrap(), []);
    let link = fabric.link("h2", "l1b").unwrap();
    let limit = Timespec::try_from(LIMIT).unwrap();
    let mut next = |carrier: bool| {
        loop {
            poll(&mut [PollFd::new(&watch.as_fd(), PollFlags::IN)], Some(&limit)).unwrap();
            let changes = watch.changes().unwrap();
            if let Some(change) = changes.iter().find(|c| c.port == "h2") {
                assert_eq!((change.carrier, changes.len()), (carrier, 1));
                return;
            }
        }
    };
    fabric.cut_link(link, Cut::Carrier).unwrap();
    next(false);
    assert!(driver.ports().unwrap().iter().all(|p| p.carrier == (p.name != "h2")));
    fabric.restore_link(link).unwrap();
    next(true);
    // One that keeps its carrier is not a change.
    fabric.cut_link(link, Cut::Silent).unwrap();
    std::thread::sleep(QUIET);
    assert_eq!(watch.changes().unwrap(), []);
    // A port that is taken away has none.
    run(switch, "ip link set h3 nomaster");
    std::thread::sleep(QUIET);
    let gone = watch.changes().unwrap();
    assert_eq!(gone.iter().map(|c| (c.port.as_str(), c.carrier)).collect::<Vec<_>>(), [("h3", false)]);
}

#[test]
fn root_changes_that_the_kernel_had_to_drop_are_found_all_the_same() {
    root_or_skip!();
    let fabric = pair(3);
    let switch = fabric.switch("l1a").unwrap();
    let mut watch = open(switch).watch().unwrap();
    // Far more than a socket holds, and then the one that counts.
    let noise: String = (0..2000).map(|n| format!("link set h3 mtu {}\n", 1400 + n % 100)).collect();
    let file = fabric.scratch().join("noise");
    std::fs::write(&file, noise).unwrap();
    run(switch, &format!("ip -batch {}", file.display()));
    fabric.cut_link(fabric.link("h2", "l1a").unwrap(), Cut::Carrier).unwrap();
    // What is left in the socket is from before the loss, or the loss.
    let mut seen = Vec::new();
    while seen.is_empty() {
        poll(&mut [PollFd::new(&watch.as_fd(), PollFlags::IN)], Some(&Timespec::try_from(LIMIT).unwrap())).unwrap();
        seen = watch.changes().unwrap();
    }
    assert_eq!(seen.iter().map(|c| (c.port.as_str(), c.carrier)).collect::<Vec<_>>(), [("h2", false)]);
}
