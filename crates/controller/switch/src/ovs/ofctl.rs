// SPDX-License-Identifier: Apache-2.0
//! `ovs-ofctl`: its input and its output.

use crate::{DriverError, GroupRange, Rate, Refusal};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// Seconds for one call.
const LIMIT_S: &str = "10";
/// Of our flows: above what a switch does by default (0), with room above.
const PRIORITY: u32 = 1000;
/// Mark of our flows, for people who list them; groups are distinguished by their addresses.
const COOKIE: &str = "0xf1de000000000000";

/// A flow for a multicast group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) group: Ipv4Addr,
    /// The OpenFlow group that it leads to, if it does nothing else.
    pub(super) leads_to: Option<u32>,
    pub(super) meter: Option<u32>,
}

/// Adds or replaces the flow that leads to a group.
pub(super) fn flow_line(group: Ipv4Addr, meter: Option<u32>) -> String {
    let meter = meter.map_or(String::new(), |m| format!("meter:{m},"));
    let id = u32::from(group);
    format!("flow add cookie={COOKIE},priority={PRIORITY},ip,nw_dst={group},actions={meter}group:{id}")
}

pub(super) fn delete_flow_line(group: Ipv4Addr) -> String {
    format!("flow delete_strict priority={PRIORITY},ip,nw_dst={group}")
}

/// The way to one switch.
#[derive(Debug)]
pub(super) struct Ofctl {
    target: String,
}

impl Ofctl {
    pub(super) fn new(target: &str) -> Ofctl {
        Ofctl { target: target.into() }
    }

    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// Whether the switch itself has said that, in OpenFlow: one that does not answer says nothing.
    pub(super) fn is_answer(&self, said: &(impl ToString + ?Sized)) -> bool {
        said.to_string().replace(&self.target, "").contains("OFP")
    }

    fn run(&self, verb: &str, args: &[&str], input: &str) -> Result<String, DriverError> {
        let what = format!("ovs-ofctl {verb} {} {}", self.target, args.join(" "));
        let start = |e: std::io::Error| DriverError::Tool {
            what: what.clone(),
            why: match e.kind() {
                ErrorKind::NotFound => "it is not installed (Debian: openvswitch-common)".into(),
                _ => e.to_string(),
            },
        };
        let mut child = Command::new("ovs-ofctl")
            .args(["-O", "OpenFlow13", "--no-names", "--timeout", LIMIT_S, verb, &self.target])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that fails early closes its stdin; its status tells, not this write.
            let _ = stdin.write_all(input.as_bytes());
        }
        let out = child.wait_with_output().map_err(start)?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&out.stderr).trim().replace('\n', "; ");
        Err(DriverError::refused(what, Refusal { errno: 0, said }))
    }

    /// Numbers by name; not the bridge's own.
    pub(super) fn ports(&self) -> Result<BTreeMap<String, u32>, DriverError> {
        Ok(parse_ports(&self.run("dump-ports-desc", &[], "")?))
    }

    /// Ports' numbers by OpenFlow group.
    pub(super) fn groups(&self) -> Result<BTreeMap<u32, Vec<u32>>, DriverError> {
        Ok(self.run("dump-groups", &[], "")?.lines().filter_map(parse_group).collect())
    }

    /// Flows for single groups of a range, of our priority.
    pub(super) fn flows(&self, range: GroupRange) -> Result<Vec<Flow>, DriverError> {
        let (network, prefix) = range.parts();
        let text = self.run("dump-flows", &[&format!("ip,nw_dst={network}/{prefix}")], "")?;
        Ok(text.lines().filter_map(parse_flow).filter(|f| range.contains(f.group)).collect())
    }

    pub(super) fn meters(&self) -> Result<BTreeMap<u32, Rate>, DriverError> {
        Ok(parse_meters(&self.run("dump-meters", &[], "")?))
    }

    /// Carries out all lines, or none.
    pub(super) fn bundle(&self, lines: &[String]) -> Result<(), DriverError> {
        self.run("bundle", &["-"], &(lines.join("\n") + "\n")).map(drop)
    }

    /// Adds or changes a meter.
    pub(super) fn set_meter(&self, id: u32, rate: Rate) -> Result<(), DriverError> {
        let Rate { packets_per_s, burst_packets } = rate;
        let meter = format!("meter={id},pktps,burst,band=type=drop,rate={packets_per_s},burst_size={burst_packets}");
        let verb = if self.meters()?.contains_key(&id) { "mod-meter" } else { "add-meter" };
        self.run(verb, &[&meter], "").map(drop)
    }

    pub(super) fn delete_meter(&self, id: u32) -> Result<(), DriverError> {
        self.run("del-meters", &[&format!("meter={id}")], "").map(drop)
    }
}

/// ` 1(h1): addr:12:3d:...`
fn parse_ports(text: &str) -> BTreeMap<String, u32> {
    let port = |line: &str| {
        let (number, rest) = line.trim_start().split_once('(')?;
        let (name, _) = rest.split_once("): addr:")?;
        Some((name.to_string(), number.parse().ok()?))
    };
    text.lines().filter_map(port).collect()
}

/// ` group_id=7,type=all,bucket=actions=output:1,bucket=actions=output:2`; a bucket may have a number and a
/// weight.
fn parse_group(line: &str) -> Option<(u32, Vec<u32>)> {
    let rest = line.trim_start().strip_prefix("group_id=")?;
    let (id, rest) = rest.split_once(',')?;
    let id = id.parse().ok()?;
    // A group of another type is not ours: it counts as having no ports, and so differs.
    if !rest.starts_with("type=all") {
        return Some((id, Vec::new()));
    }
    let number = |p: &str| p.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    Some((id, rest.split("output:").skip(1).filter_map(number).collect()))
}

/// ` cookie=0x.., duration=1s, table=0, .., priority=1000,ip,nw_dst=239.71.0.1 actions=meter:1,group:7`
fn parse_flow(line: &str) -> Option<Flow> {
    let (matched, actions) = line.split_once(" actions=")?;
    let (_, matched) = matched.rsplit_once("priority=")?;
    let matched = matched.strip_prefix(&format!("{PRIORITY},ip,nw_dst="))?;
    let mut flow = Flow { group: matched.trim().parse().ok()?, leads_to: None, meter: None };
    let mut others = false;
    for action in actions.trim().split(',') {
        match action.split_once(':') {
            Some(("group", id)) if flow.leads_to.is_none() => flow.leads_to = id.parse().ok(),
            Some(("meter", id)) => flow.meter = id.parse().ok(),
            _ => others = true,
        }
    }
    if others {
        flow.leads_to = None;
    }
    Some(flow)
}

/// `meter=1 pktps burst bands=`, then `type=drop rate=100 burst_size=10`.
fn parse_meters(text: &str) -> BTreeMap<u32, Rate> {
    let number = |words: &str, name: &str| -> Option<u32> {
        words.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let mut meters = BTreeMap::new();
    let mut id = None;
    for line in text.lines() {
        if line.trim_start().starts_with("meter=") {
            id = if line.contains("pktps") { number(line, "meter") } else { None };
        } else if let (Some(id), Some(packets_per_s)) = (id, number(line, "rate")) {
            let burst_packets = number(line, "burst_size").unwrap_or_default();
            meters.insert(id, Rate { packets_per_s, burst_packets });
        }
    }
    meters
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 71, 0, 1);

    #[test]
    fn ports_are_read_without_the_bridges_own() {
        let text = "OFPST_PORT_DESC reply (OF1.3) (xid=0x2):\n 1(h1): addr:12:3d:c6:1c:b0:0a\n     config:     0\n \
                    12(s_1): addr:ae:40:b2:36:9f:c9\n LOCAL(br0): addr:d2:60:77:bd:80:4a\n";
        assert_eq!(parse_ports(text), BTreeMap::from([("h1".into(), 1), ("s_1".into(), 12)]));
    }

    #[test]
    fn groups_are_read_and_one_that_is_no_list_of_ports_has_none() {
        let all = " group_id=4014407681,type=all,bucket=actions=output:1,bucket=bucket_id:1,actions=output:22";
        assert_eq!(parse_group(all), Some((u32::from(GROUP), vec![1, 22])));
        assert_eq!(parse_group(" group_id=3,type=select,bucket=actions=output:1"), Some((3, vec![])));
        assert_eq!(parse_group(" group_id=3,type=all"), Some((3, vec![])));
        assert_eq!(parse_group("OFPST_GROUP_DESC reply (OF1.3) (xid=0x2):"), None);
    }

    #[test]
    fn flows_are_read_and_one_that_does_more_leads_nowhere() {
        let line = |actions: &str| {
            format!(
                " cookie=0xf1de000000000000, duration=0.051s, table=0, n_packets=0, n_bytes=0, \
                 priority=1000,ip,nw_dst=239.71.0.1 actions={actions}"
            )
        };
        let id = u32::from(GROUP);
        let flow = |leads_to, meter| Some(Flow { group: GROUP, leads_to, meter });
        assert_eq!(parse_flow(&line("group:4014407681")), flow(Some(id), None));
        assert_eq!(parse_flow(&line("meter:2,group:4014407681")), flow(Some(id), Some(2)));
        assert_eq!(parse_flow(&line("output:3,group:4014407681")), flow(None, None));
        assert_eq!(parse_flow(&line("drop")), flow(None, None));
        assert_eq!(parse_flow(&line("group:1").replace("1000", "5")), None);
        assert_eq!(parse_flow("OFPST_FLOW reply (OF1.3) (xid=0x2):"), None);
    }

    #[test]
    fn meters_are_read_and_those_in_other_units_are_none_of_ours() {
        let text = "OFPST_METER_CONFIG reply (OF1.3) (xid=0x2):\nmeter=1 pktps burst bands=\ntype=drop rate=100 \
                    burst_size=10\n\nmeter=2 kbps bands=\ntype=drop rate=5\n";
        let rate = Rate { packets_per_s: 100, burst_packets: 10 };
        assert_eq!(parse_meters(text), BTreeMap::from([(1, rate)]));
    }
}
