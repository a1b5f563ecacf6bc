// SPDX-License-Identifier: Apache-2.0
//! Memory: "we found paging to be another source of jitter" (FiDe §5), and which node it is on (X-Lane §4.3.3).

use super::{
    By, Effect, Finding, Group, Host, Judged, Kind,
    scheduler::{CAP_IPC_LOCK, capable},
};
use crate::{
    condition::How,
    parse::{Cpus, chosen, soft_limit},
};

const fn kind(id: &'static str, title: &'static str, wanted: &'static str, how: How) -> Kind {
    Kind { id, group: Group::Memory, title, wanted, cost: "", how, change: "" }
}

pub(super) const ALL: &[(Kind, By)] = &[
    (
        Kind {
            cost: "the loop's pages may be taken away; a page fault in a heartbeat costs microseconds, from disk \
                   milliseconds",
            change: "AmbientCapabilities=CAP_IPC_LOCK or LimitMEMLOCK=infinity in the agent's unit",
            ..kind("memlock-limit", "locked memory", "CAP_IPC_LOCK, or a limit of at least 64 MiB", How::Operator)
        },
        By::Host(memlock),
    ),
    (
        Kind {
            cost: "the kernel compacts memory for huge pages that nobody asked for, and flushes the TLBs of every core",
            change: "madvise in /sys/kernel/mm/transparent_hugepage/enabled and defrag",
            ..kind("transparent-huge-pages", "transparent huge pages", "madvise or never", How::Tune)
        },
        By::Host(transparent),
    ),
    (
        Kind {
            cost: "FiDe keeps its buffers in huge pages (§5); the agent here locks ordinary ones, which leaves TLB misses",
            change: "sysctl vm.nr_hugepages=N, for programs that ask for them",
            ..kind("huge-pages", "reserved huge pages", "some, for programs that use them", How::Operator)
        },
        By::Host(reserved),
    ),
    (
        Kind {
            cost: "watched processes page from disk, and the kernel's reclaim runs wherever it likes",
            change: "swapoff -a",
            ..kind("swap", "swap", "none", How::Operator)
        },
        By::Host(swap),
    ),
    (
        Kind {
            cost: "pages are unmapped to see who touches them: page faults in the loop, locked memory or not",
            change: "kernel.numa_balancing=0",
            ..kind("numa-balancing", "NUMA balancing", "off", How::Tune)
        },
        By::Host(numa_balancing),
    ),
    (
        Kind {
            cost: "each packet crosses the link between two nodes, and waits for what else does (X-Lane §4.3.3)",
            change: "--core on the interface's node, or a card on the core's",
            ..kind("nic-numa", "NUMA node of the card", "that of core {core}", How::Operator)
        },
        By::Interface(node),
    ),
];

fn memlock(host: &Host<'_>) -> Judged {
    if capable(host, CAP_IPC_LOCK)? {
        return Ok(Finding::new(Effect::Good, "CAP_IPC_LOCK"));
    }
    let limits = host.roots.proc("self/limits")?;
    let limit = soft_limit(&limits, "Max locked memory").ok_or("/proc/self/limits has no Max locked memory")?;
    Ok(match limit {
        None => Finding::new(Effect::Good, "no limit"),
        Some(limit) => Finding::good_if(limit >= 64 << 20, format!("{} KiB, without CAP_IPC_LOCK", limit / 1024)),
    })
}

fn transparent(host: &Host<'_>) -> Judged {
    let file = |name: &str| host.roots.sys(format!("kernel/mm/transparent_hugepage/{name}"));
    let (enabled, defrag) = match (file("enabled"), file("defrag")) {
        (Err(unread), _) if unread.missing() && host.online().is_ok() => {
            return Ok(Finding::not_applicable("this kernel was built without them"));
        }
        (enabled, defrag) => (enabled?, defrag?),
    };
    let (enabled, defrag) = (chosen(&enabled), chosen(&defrag));
    Ok(Finding::good_if(enabled != "always" && defrag != "always", format!("enabled {enabled}, defrag {defrag}")))
}

fn reserved(host: &Host<'_>) -> Judged {
    let count = host.roots.proc("sys/vm/nr_hugepages")?;
    Ok(match count.as_str() {
        "0" => Finding::not_applicable("none; the agent does not use any"),
        _ => Finding::new(Effect::Good, count),
    })
}

fn swap(host: &Host<'_>) -> Judged {
    let table = host.roots.proc("swaps")?;
    let names: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    Ok(Finding::good_if(names.is_empty(), if names.is_empty() { "none".to_owned() } else { names.join(", ") }))
}

fn numa_balancing(host: &Host<'_>) -> Judged {
    match host.roots.proc("sys/kernel/numa_balancing") {
        Ok(on) => Ok(Finding::good_if(on == "0", if on == "0" { "off" } else { "on" })),
        Err(unread) if unread.missing() && host.roots.proc("sys/kernel/osrelease").is_ok() => {
            Ok(Finding::not_applicable("this kernel was built without it"))
        }
        Err(unread) => Err(unread.into()),
    }
}

fn node(host: &Host<'_>, interface: &str) -> Judged {
    // Every interface has an index.
    host.interface_file(interface, "ifindex")?;
    let nodes = match host.roots.sys("devices/system/node/online") {
        Ok(list) => Cpus::from_list(&list)?,
        Err(unread) if unread.missing() => return Ok(Finding::not_applicable("this host has one node")),
        Err(unread) => return Err(unread.into()),
    };
    if nodes.len() <= 1 {
        return Ok(Finding::not_applicable("this host has one node"));
    }
    let node = match host.interface_file(interface, "device/numa_node") {
        Ok(node) => node,
        Err(unread) if unread.missing() => return Ok(Finding::not_applicable("no card behind it")),
        Err(unread) => return Err(unread.into()),
    };
    if node == "-1" {
        return Ok(Finding::unknown("the firmware does not say on which node the card is"));
    }
    let cpus = Cpus::from_list(&host.roots.sys(format!("devices/system/node/node{node}/cpulist"))?)?;
    Ok(Finding::good_if(cpus.holds(host.core), format!("node {node}, with cores {cpus}")))
}
