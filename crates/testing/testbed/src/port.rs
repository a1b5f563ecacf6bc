// SPDX-License-Identifier: Apache-2.0
//! The settings of every switch port, whatever the topology: it ignores IGMP, and has a queue of strict
//! priority.

use crate::Result;
use crate::tools::retry_until;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

/// How long the ports of a new switch may take until they forward.
const FORWARDING_LIMIT: Duration = Duration::from_secs(10);
/// DSCP CS7 and EF in their place in the TOS byte.
const LANE_TOS: [&str; 2] = ["0xe0", "0xb8"];

/// Waits until all ports of bridge `br0` forward. A carrier is reported some time after the link is up, and
/// until then a port drops what it gets.
pub(crate) fn await_forwarding(ns: &str, ports: usize) -> Result<()> {
    retry_until("a new switch", FORWARDING_LIMIT, || {
        let out = Command::new("bridge").args(["-n", ns, "link"]).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let up = text.lines().filter(|l| l.contains("LOWER_UP") && l.contains("state forwarding"));
        if up.count() == ports {
            return Ok(());
        }
        Err(format!("not all of {ports} ports forward:\n{text}"))
    })
}

/// Lines for `tc -batch`: drops membership reports and queries at a port, because only the trees decide which
/// hosts receive.
pub(crate) fn deaf_to_igmp(port: &str) -> String {
    // Classic BPF on the Ethernet frame: IPv4 (0x0800 at 12) and IGMP (2 at 23) is dropped (2), the rest goes on (0).
    const DROP_IGMP: &str = "6,40 0 0 12,21 0 3 2048,48 0 0 23,21 0 1 2,6 0 0 2,6 0 0 0";
    format!("qdisc add dev {port} clsact\nfilter add dev {port} ingress protocol all bpf da bytecode \"{DROP_IGMP}\"\n")
}

/// Lines for `tc -batch`: packets that host `from` has sent do not leave this port. (The host is known by the
/// last byte of its MAC address.) The port must have a clsact qdisc; the filter's preference is the host's
/// number.
pub(crate) fn drop_from_host(port: &str, from: usize) -> String {
    /// TC_ACT_UNSPEC: the next filters decide.
    const GO_ON: u32 = u32::MAX;
    format!(
        "filter add dev {port} egress pref {from} protocol all bpf da bytecode \"4,48 0 0 11,21 0 1 {from},6 0 0 2,6 0 0 {GO_ON}\"\n"
    )
}

/// Lines for `tc -batch`: an HTB qdisc whose first classes are served first and may use the whole rate; class
/// 20 gets the rest. `lanes` 1: DSCP CS7 and EF share class 10. `lanes` 2: CS7 has class 10, and EF class 11
/// after it.
///
/// A class within its own `rate` goes before those that borrow, whatever their `prio`. So only the first lane
/// is given the whole rate (two such lanes would send twice the rate), and the others get so little that they
/// always borrow, in order of `prio`.
pub(crate) fn queue_script(port: &str, rate_mbit: u32, lanes: usize) -> String {
    let mut s = format!(
        "qdisc add dev {port} root handle 1: htb default 20\n\
         class add dev {port} parent 1: classid 1:1 htb rate {rate_mbit}mbit quantum 1514\n"
    );
    let mut class = |id: usize, rate: &str, prio: usize| {
        let _ = writeln!(
            s,
            "class add dev {port} parent 1:1 classid 1:{id} htb rate {rate} ceil {rate_mbit}mbit prio {prio} quantum 1514"
        );
    };
    class(10, &format!("{rate_mbit}mbit"), 0);
    for lane in 1..lanes {
        class(10 + lane, "1kbit", lane);
    }
    class(20, if lanes == 1 { "100kbit" } else { "1kbit" }, 7);
    for (i, tos) in LANE_TOS.iter().enumerate() {
        let lane = i.min(lanes - 1);
        let _ = writeln!(
            s,
            "filter add dev {port} parent 1: protocol ip prio 1 u32 match ip tos {tos} 0xfc flowid 1:1{lane}"
        );
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_priority_codepoints_reach_the_first_class_or_one_each() {
        let s = queue_script("h1", 10, 1);
        assert_eq!(s.matches("flowid 1:10").count(), 2);
        assert!(s.contains("match ip tos 0xe0 0xfc") && s.contains("match ip tos 0xb8 0xfc"));
        let s = queue_script("h1", 10, 2);
        assert!(s.contains("tos 0xe0 0xfc flowid 1:10") && s.contains("tos 0xb8 0xfc flowid 1:11"));
        assert!(s.contains("classid 1:11 htb rate 1kbit ceil 10mbit prio 1"));
    }
}
