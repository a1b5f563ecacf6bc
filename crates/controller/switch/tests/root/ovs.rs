// SPDX-License-Identifier: Apache-2.0
//! The OpenFlow switch's driver, against Open vSwitch.

use super::common::{
    LIMIT, PORT, QUIET, change_ports, drain, group, hears, inbox, open, outbox, ports, range, refused, root_or_skip,
    run,
};
use fide_switch::ovs::Ovs;
use fide_switch::{Drift, DriverError, Lanes, Rate, Repaired, Rule};
use fide_testbed::fabric::{Cut, Fabric, FabricSpec, Switch, ovs_supported};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;

fn pair(hosts: usize) -> Fabric {
    Fabric::build(FabricSpec::single_pair(hosts).on_ovs()).unwrap()
}

fn database(switch: &Switch) -> String {
    switch.ovs_target().unwrap().replace("br0.mgmt", "db.sock")
}

/// A table with room for this many flows, which refuses more.
fn limit_flows(switch: &Switch, flows: usize) {
    let table = format!("-- --id=@t create Flow_Table flow_limit={flows} overflow_policy=refuse");
    run(switch, &format!("ovs-vsctl --db={} {table} -- set bridge br0 flow_tables:0=@t", database(switch)));
}

fn flows(switch: &Switch) -> usize {
    ofctl(switch, "dump-flows").lines().filter(|line| line.contains("actions")).count()
}

fn ofctl(switch: &Switch, line: &str) -> String {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    run(switch, &format!("ovs-ofctl -O OpenFlow13 --names {verb} {} {rest}", switch.ovs_target().unwrap()))
}

#[test]
fn root_rules_forward_until_removed_and_other_flows_stay() {
    root_or_skip!(ovs_supported());
    let fabric = pair(4);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    assert!(driver.describe().starts_with("OpenFlow switch unix:"));
    let names: Vec<_> = driver.ports().unwrap().into_iter().map(|p| (p.name, p.carrier)).collect();
    assert_eq!(names, ["h1", "h2", "h3", "h4"].map(|n| (n.to_string(), true)));
    ofctl(switch, "add-flow priority=5,ip,nw_dst=239.99.0.1,actions=output:h2");
    ofctl(switch, "add-group group_id=9,type=all,bucket=output:h1");

    let rules = [Rule::new(group(0, 1), ["h2", "h3"]), Rule::new(group(0, 2), ["h4"])];
    driver.install(&rules).unwrap().complete().unwrap();
    driver.install(&rules).unwrap().complete().unwrap();
    assert_eq!(driver.audit(&rules).unwrap(), []);
    hears(&fabric, 0, group(0, 1), 5, &[2, 3]);
    hears(&fabric, 0, group(0, 2), 5, &[4]);
    driver.install(&[Rule::new(group(0, 1), ["h3", "h4"])]).unwrap().complete().unwrap();
    std::thread::sleep(QUIET);
    hears(&fabric, 0, group(0, 1), 5, &[3, 4]);
    driver.remove(&[group(0, 1), group(0, 9)]).unwrap();
    std::thread::sleep(QUIET);
    hears(&fabric, 0, group(0, 1), 5, &[]);
    hears(&fabric, 0, group(0, 2), 5, &[4]);
    driver.restore().unwrap();
    std::thread::sleep(QUIET);
    hears(&fabric, 0, group(0, 2), 5, &[]);
    hears(&fabric, 0, "239.99.0.1".parse().unwrap(), 5, &[2]);
    assert!(ofctl(switch, "dump-groups").contains("group_id=9,"));
}

#[test]
fn root_drift_is_found_and_put_right() {
    root_or_skip!(ovs_supported());
    let fabric = pair(4);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    driver.prepare(&Lanes::default()).unwrap();
    let wanted = [1, 2, 3, 4].map(|n| Rule::new(group(0, n), ["h2", "h3"]));
    driver.install(&wanted).unwrap().complete().unwrap();
    let rate = Rate { packets_per_s: 1000, burst_packets: 100 };
    driver.meter(group(0, 4), Some(rate)).unwrap();
    assert_eq!(driver.audit(&wanted).unwrap(), []);

    let id = |n| u32::from(group(0, n));
    // Port 3 is removed, port 4 is added; a group is deleted, with its flow; a flow leads elsewhere; an
    // unwanted group is added.
    ofctl(switch, &format!("mod-group group_id={},type=all,bucket=output:h2,bucket=output:h4", id(1)));
    ofctl(switch, &format!("del-groups group_id={}", id(2)));
    ofctl(switch, "add-flow priority=1000,ip,nw_dst=239.71.0.3,actions=output:h2");
    ofctl(switch, &format!("add-group group_id={},type=all,bucket=output:h1", id(7)));
    ofctl(switch, "mod-meter meter=5,pktps,burst,band=type=drop,rate=5,burst_size=5");
    run(switch, "tc qdisc del dev h3 root");
    let found = driver.repair(&wanted).unwrap().found;
    assert!(matches!(&found[0], Drift::Priority { port, .. } if port == "h3"), "{found:?}");
    let changed = |n, missing: &[&str], extra: &[&str]| Drift::Ports {
        group: group(0, n),
        missing: ports(missing),
        extra: ports(extra),
    };
    let groups = [
        changed(1, &["h3"], &["h4"]),
        Drift::Missing { group: group(0, 2) },
        changed(3, &["h2", "h3"], &[]),
        Drift::Extra { group: group(0, 7) },
    ];
    assert_eq!(found[1..5], groups);
    assert!(matches!(&found[5..], [Drift::Meter { why, .. }] if why.contains("5 packets")), "{found:?}");
    assert_eq!(driver.audit(&wanted).unwrap(), []);
    std::thread::sleep(QUIET);
    for rule in &wanted {
        hears(&fabric, 0, rule.group, 5, &[2, 3]);
    }
}

#[test]
fn root_change_of_ports_loses_no_packet_at_the_others() {
    root_or_skip!(ovs_supported());
    change_ports(&pair(4));
}

#[test]
fn root_meter_drops_the_excess_until_it_is_removed() {
    root_or_skip!(ovs_supported());
    let fabric = pair(2);
    let mut driver = open(fabric.switch("l1a").unwrap());
    let group = group(0, 1);
    let rate = Some(Rate { packets_per_s: 1, burst_packets: 5 });
    let why = driver.meter(group, rate).unwrap_err().to_string();
    assert!(why.contains("install it first"), "{why}");
    let rule = [Rule::new(group, ["h2"])];
    driver.install(&rule).unwrap().complete().unwrap();
    let (inbox, outbox) = (inbox(&fabric, 2, 0, group), outbox(&fabric, 1, 0));
    let through = || {
        // By cached decisions until these have been looked through.
        std::thread::sleep(QUIET);
        for n in 0..100u32 {
            outbox.send_to(&n.to_ne_bytes(), (group, PORT)).unwrap();
        }
        std::thread::sleep(QUIET);
        drain(&inbox).len()
    };
    assert_eq!(through(), 100);
    driver.meter(group, rate).unwrap();
    // Installing again does not lose the limit.
    driver.install(&rule).unwrap().complete().unwrap();
    let some = through();
    assert!((1..50).contains(&some), "{some} of 100 with a burst of 5");
    driver.meter(group, None).unwrap();
    assert_eq!(through(), 100);
}

#[test]
fn root_refusal_names_rule_reason_and_progress_and_can_be_completed() {
    root_or_skip!(ovs_supported());
    let fabric = pair(3);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    let rules = [Rule::new(group(0, 1), ["h9"]), Rule::new(group(0, 2), ["h2"])];
    let why = refused(driver.as_mut(), &rules).to_string();
    assert!(why.contains("rule 239.71.0.1 -> {h9}: there is no port `h9`; the switch has h1, h2, h3"), "{why}");
    assert_eq!(driver.audit(&rules).unwrap(), [Drift::Missing { group: group(0, 1) }]);
    driver.remove(&[group(0, 2)]).unwrap();

    // A table with room for two flows, then for more.
    limit_flows(switch, 2);
    let rules = [1, 2, 3].map(|n| Rule::new(group(0, n), ["h2", "h3"]));
    let why = refused(driver.as_mut(), &rules);
    let DriverError::Refused { what, refusal, applied } = &why else { panic!("{why}") };
    assert_eq!(what, "rule 239.71.0.3 -> {h2, h3}");
    assert!(refusal.said.contains("TABLE_FULL"), "{why}");
    assert_eq!(applied, "nothing");
    assert_eq!(driver.audit(&rules).unwrap(), [Drift::Missing { group: group(0, 3) }]);
    limit_flows(switch, 100);
    driver.install(&rules).unwrap().complete().unwrap();
    assert_eq!(driver.audit(&rules).unwrap(), []);

    let db = database(switch);
    // A port that goes away is found, and what named it is refused until it is back.
    run(switch, &format!("ovs-vsctl --db={db} del-port br0 h3"));
    let found = driver.audit(&rules).unwrap();
    assert!(found.iter().all(|d| matches!(d, Drift::Ports { missing, .. } if *missing == ports(&["h3"]))), "{found:?}");
    let refused = driver.install(&rules).unwrap().refused;
    assert!(
        refused.iter().all(|(_, why)| matches!(why, DriverError::NoPort { .. })) && refused.len() == 3,
        "{refused:?}"
    );
    run(switch, &format!("ovs-vsctl --db={db} add-port br0 h3"));
    driver.install(&rules).unwrap().complete().unwrap();
    assert_eq!(driver.audit(&rules).unwrap(), []);

    let gone = Ovs::open("unix:/nonexistent/br0.mgmt", None, range()).err().unwrap().to_string();
    assert!(gone.contains("cannot open OpenFlow switch unix:/nonexistent") && gone.contains("OpenFlow13"), "{gone}");
}

/// A rule is refused for one of its ports: its other ports are installed. During a change the former ports
/// stay too; a repair removes them.
#[test]
fn root_refused_rule_gets_all_possible_ports() {
    root_or_skip!(ovs_supported());
    let fabric = pair(4);
    let mut driver = open(fabric.switch("l1a").unwrap());
    driver.install(&[Rule::new(group(0, 1), ["h3"])]).unwrap().complete().unwrap();
    let wanted = [Rule::new(group(0, 1), ["h0", "h2", "h4"]), Rule::new(group(0, 2), ["h2"])];
    refused(driver.as_mut(), &wanted);
    std::thread::sleep(QUIET);
    hears(&fabric, 0, group(0, 1), 5, &[2, 3, 4]);
    hears(&fabric, 0, group(0, 2), 5, &[2]);
    let Repaired { found, refused, left } = driver.repair(&wanted).unwrap();
    let changed = Drift::Ports { group: group(0, 1), missing: ports(&["h0"]), extra: ports(&["h3"]) };
    assert_eq!(found, std::slice::from_ref(&changed));
    assert!(
        matches!(&refused[..], [(what, DriverError::NoPort { port, .. })] if *what == changed && port == "h0"),
        "{refused:?}"
    );
    let missing = Drift::Ports { group: group(0, 1), missing: ports(&["h0"]), extra: ports(&[]) };
    assert_eq!(driver.audit(&wanted).unwrap(), [missing]);
    assert_eq!(driver.audit(&wanted).unwrap(), left);
    std::thread::sleep(QUIET);
    hears(&fabric, 0, group(0, 1), 5, &[2, 4]);
}

/// Many that are refused, each for a port that is not there, take one bundle.
#[test]
fn root_many_refused_rules_hold_up_no_other() {
    const RULES: usize = 2000;
    root_or_skip!(ovs_supported());
    let fabric = pair(3);
    let mut driver = open(fabric.switch("l1a").unwrap());
    let rule = |n: usize| {
        Rule::new(
            group((n / 256) as u8, (n % 256) as u8),
            if n.is_multiple_of(2) { ["h2", "h9"] } else { ["h2", "h3"] },
        )
    };
    let wanted: Vec<Rule> = (0..RULES).map(rule).collect();
    let refused = driver.install(&wanted).unwrap().refused;
    assert_eq!(refused.len(), RULES / 2);
    let Repaired { found, refused, .. } = driver.repair(&wanted).unwrap();
    assert_eq!((found.len(), refused.len()), (RULES / 2, RULES / 2));
    std::thread::sleep(QUIET);
    hears(&fabric, 0, group(7, 1), 5, &[2, 3]);
    hears(&fabric, 0, group(7, 2), 5, &[2]);
}

/// A full table refuses what would need room, and nothing else; once there is room, all comes.
#[test]
fn root_rules_that_a_full_table_refuses_hold_up_no_other() {
    root_or_skip!(ovs_supported());
    let fabric = pair(3);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    let nth = |n: usize| group((n / 256) as u8, (n % 256) as u8);
    let there: Vec<Rule> = (1000..1020).map(|n| Rule::new(nth(n), ["h2"])).collect();
    driver.install(&there).unwrap().complete().unwrap();
    limit_flows(switch, flows(switch));
    // Of some a half is there.
    for n in (0..600).step_by(200) {
        ofctl(switch, &format!("add-group group_id={},type=all,bucket=output:h2", u32::from(nth(n))));
    }
    let mut wanted: Vec<Rule> = (0..600).map(|n| Rule::new(nth(n), ["h2"])).collect();
    wanted.extend((1000..1020).map(|n| Rule::new(nth(n), ["h3"])));
    let refused = driver.install(&wanted).unwrap().refused;
    assert_eq!(refused.len(), 600);
    assert!(refused.iter().all(|(group, _)| *group < nth(600)), "{refused:?}");
    let all = |text: &str| refused.iter().filter(|(_, why)| why.to_string().contains(text)).count();
    let (alone, with_others) = (all("TABLE_FULL"), all("not tried by itself yet"));
    assert!(alone > 0 && with_others > 0 && alone + with_others == 600, "{alone} {with_others}");
    assert_eq!(driver.repair(&wanted).unwrap().refused.len(), 600);
    limit_flows(switch, 2000);
    let Repaired { refused, left, .. } = driver.repair(&wanted).unwrap();
    assert!(refused.is_empty() && left.is_empty(), "{refused:?}");
    assert_eq!(driver.audit(&wanted).unwrap(), []);
}

#[test]
fn root_last_rule_of_a_group_counts() {
    root_or_skip!(ovs_supported());
    let fabric = pair(3);
    let mut driver = open(fabric.switch("l1a").unwrap());
    driver.install(&[Rule::new(group(0, 1), ["h3"])]).unwrap().complete().unwrap();
    let twice = [Rule::new(group(0, 1), ["h9"]), Rule::new(group(0, 1), ["h2"]), Rule::new(group(0, 1), ["h3"])];
    driver.install(&twice).unwrap().complete().unwrap();
    assert_eq!(driver.audit(&twice[2..]).unwrap(), []);
}

/// A limit that is deleted takes its flow along.
#[test]
fn root_rule_comes_back_together_with_its_limit() {
    root_or_skip!(ovs_supported());
    let fabric = pair(3);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    let wanted = [1, 2].map(|n| Rule::new(group(0, n), ["h2"]));
    driver.install(&wanted).unwrap().complete().unwrap();
    driver.meter(group(0, 1), Some(Rate { packets_per_s: 1000, burst_packets: 100 })).unwrap();
    ofctl(switch, "del-meters");
    let Repaired { found, refused, left } = driver.repair(&wanted).unwrap();
    assert!(!found.is_empty() && refused.is_empty() && left.is_empty(), "{found:?} {refused:?}");
    assert_eq!(driver.audit(&wanted).unwrap(), []);
    // Nor is one said to be right whose rule is refused.
    ofctl(switch, "del-meters");
    limit_flows(switch, flows(switch));
    let Repaired { found, refused, left } = driver.repair(&wanted).unwrap();
    assert!(refused.len() == 2 && found.len() == 2 && left.len() == 2, "{found:?} {refused:?} {left:?}");
    assert!(refused.iter().any(|(drift, _)| matches!(drift, Drift::Meter { .. })), "{refused:?}");
}

/// What is said to be in force is.
#[test]
fn root_twice_refused_rule_reports_the_part_in_force() {
    root_or_skip!(ovs_supported());
    let fabric = pair(3);
    let switch = fabric.switch("l1a").unwrap();
    let mut driver = open(switch);
    limit_flows(switch, flows(switch));
    let why = refused(driver.as_mut(), &[Rule::new(group(0, 1), ["h2", "h9"])]).to_string();
    assert!(why.contains("TABLE_FULL") && why.ends_with("in force of it: nothing"), "{why}");
}

#[test]
fn root_cut_cable_is_reported_at_once() {
    root_or_skip!(ovs_supported());
    let fabric = pair(2);
    let mut driver = open(fabric.switch("l1a").unwrap());
    let mut watch = driver.watch().unwrap();
    fabric.cut_link(fabric.link("h2", "l1a").unwrap(), Cut::Carrier).unwrap();
    poll(&mut [PollFd::new(&watch.as_fd(), PollFlags::IN)], Some(&Timespec::try_from(LIMIT).unwrap())).unwrap();
    let changes = watch.changes().unwrap();
    assert_eq!(changes.iter().map(|c| (c.port.as_str(), c.carrier)).collect::<Vec<_>>(), [("h2", false)]);
}
