// SPDX-License-Identifier: Apache-2.0
//! LLDP over real interfaces: it stays on one cable, unless a bridge is configured to forward it.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fide_discover::End;
use fide_discover::lldp::Role;
use fide_discover::probe::{Pace, Port, probe};
use fide_testbed::fabric::{Fabric, FabricSpec};
use fide_testbed::{Node, supported};

const PACE: Pace = Pace { wait: Duration::from_millis(600), period: Duration::from_millis(150), farewell: true };

fn port(node: &Node, port: &str, role: Role) -> Port {
    Port { at: End::new(node.name(), port), role, netns: Some(node.namespace_path()), limit: None }
}

/// The speakers heard at each port, in order.
fn heard(ports: &[Port]) -> Vec<Vec<String>> {
    let heard = probe(ports, PACE, &AtomicBool::new(false)).unwrap();
    let names = heard.into_iter().map(|heard| {
        assert_eq!((heard.refused, heard.unsent, heard.rate), (0, None, None), "a veth pair tells no speed");
        let mut names: Vec<String> = heard.frames.iter().map(|f| format!("{}:{}", f.node(), f.port_name())).collect();
        names.sort();
        names
    });
    names.collect()
}

fn run(node: &Node, line: &str) -> String {
    let mut words = line.split_whitespace();
    let out = node.command(words.next().unwrap()).args(words).output().unwrap();
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn root_lldp_stays_on_its_cable_unless_a_bridge_forwards_it() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let fabric = Fabric::build(FabricSpec::single_pair(3)).unwrap();
    let (one, other) = (fabric.switch("l1a").unwrap().node(), fabric.switch("l1b").unwrap().node());
    let hosts: Vec<&Node> = fabric.hosts().iter().map(|host| host.node()).collect();
    let addresses = || run(hosts[0], "ip maddr show dev p0") + &run(one, "ip maddr show dev h1");
    let before = addresses();

    let mut ports: Vec<Port> = hosts.iter().map(|host| port(host, "p0", Role::Host)).collect();
    assert_eq!(heard(&ports), [[""; 0]; 3], "bridges do not forward it");
    ports.extend(["h1", "h2", "h3"].map(|name| port(one, name, Role::Switch)));
    let expected = [["l1a:h1"], ["l1a:h2"], ["l1a:h3"], ["h1:p0"], ["h2:p0"], ["h3:p0"]];
    assert_eq!(heard(&ports), expected);
    assert_eq!(addresses(), before, "nothing is left of it");

    // A bridge that forwards it: bit 14 of its mask is for this address.
    run(other, "ip link set br0 type bridge group_fwd_mask 0x4000");
    for name in ["h1", "h2", "h3"] {
        run(other, &format!("ip link set {name} type bridge_slave mcast_flood on"));
    }
    let ports: Vec<Port> = hosts.iter().map(|host| port(host, "p1", Role::Host)).collect();
    assert_eq!(heard(&ports), [["h2:p1", "h3:p1"], ["h1:p1", "h3:p1"], ["h1:p1", "h2:p1"]]);

    // A port that is down reports that, and does not affect the others.
    run(hosts[2], "ip link set p1 down");
    let heard = probe(&ports, PACE, &AtomicBool::new(false)).unwrap();
    assert!(heard[2].unsent.is_some() && heard[2].frames.is_empty(), "{heard:?}");
    assert_eq!(heard[0].frames.len(), 1);
}
