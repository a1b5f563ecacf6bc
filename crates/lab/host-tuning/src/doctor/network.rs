// SPDX-License-Identifier: Apache-2.0
//! The path between the card and the loop (X-Lane §4.3.3, FiDe §3.2).

use std::io;

use fide_bpf::XdpFacts;

use super::{By, Effect, Finding, Group, Host, Judged, Kind, Roots};
use crate::{
    condition::How,
    parse::{Cpus, kernel_version},
    roots::Unread,
};

const fn kind(id: &'static str, title: &'static str, wanted: &'static str, how: How) -> Kind {
    Kind { id, group: Group::Network, title, wanted, cost: "", how, change: "" }
}

pub(super) const ALL: &[(Kind, By)] = &[
    (
        Kind {
            cost: "a softirq that drains a flood holds a core so long before anything else runs: 8 ms as Linux ships, \
                   3.5 ms of jitter measured on a shared core",
            change: "net.core.netdev_budget_usecs: 2000, or two ticks where that is longer",
            ..kind("netdev-budget", "time of a network softirq", "at most 2 ms", How::Tune)
        },
        By::Host(budget),
    ),
    (
        Kind {
            cost: "every program that waits for a socket spins on the card's queue instead, and holds it",
            change: "sysctl net.core.busy_poll=0 net.core.busy_read=0",
            ..kind("busy-poll", "busy polling of sockets", "off, system-wide", How::Operator)
        },
        By::Host(busy_poll),
    ),
    (
        Kind {
            cost: "the card waits for more packets or for its time before it interrupts: up to the time set, each packet",
            change: "ethtool -C {if} adaptive-rx off adaptive-tx off rx-usecs 0 rx-frames 1",
            ..kind("coalescing", "interrupt coalescing", "off", How::Tune)
        },
        By::Interface(coalescing),
    ),
    (
        Kind {
            cost: "packets of others are processed on the core, or queue before heartbeats",
            change: "rps_cpus without core {core}; with several send queues, the last for core {core} alone (xps_cpus)",
            ..kind("queue-steering", "queue steering", "no packets of others steered to core {core}", How::Tune)
        },
        By::Interface(steering),
    ),
    (
        Kind {
            cost: "heartbeats wait behind bulk traffic in the one queue; FiDe keeps a queue for its own (§3.2)",
            change: "ethtool -L {if} combined N; ethtool -N {if} flow-type udp4 dst-port PORT action N-1",
            ..kind("queues", "receive queues", "at least two, one for heartbeats", How::Operator)
        },
        By::Interface(receive_queues),
    ),
    (
        Kind {
            cost: "the kernel makes a socket buffer first; without XDP at all a blocked receiver was notified after 39 us \
                   (p50), with it after 6",
            change: "a card whose driver runs XDP",
            ..kind("xdp", "XDP", "native, in the driver", How::NotHere)
        },
        By::Interface(xdp),
    ),
    (
        Kind {
            cost: "what is sent over UDP waits behind bulk traffic: 99 ms at 10 Mbit/s, 14 us with a class of its own; \
                   raw frames (AF_PACKET) skip it",
            change: "tc qdisc replace dev {if} root pfifo_fast",
            ..kind("qdisc", "queueing discipline", "one with strict priorities, or none", How::Tune)
        },
        By::Interface(qdisc),
    ),
];

/// A tick at 250 Hz, used if the tick is not known.
pub(crate) const JIFFY_NS_USUAL: u64 = 4_000_000;

/// The wanted time of a softirq: two ticks, because newer kernels refuse less; and at least 2 ms, because
/// less than that costs throughput.
pub(crate) fn budget_wanted_us(tick_ns: u64) -> u64 {
    (2 * tick_ns / 1000).max(BUDGET_US)
}

const BUDGET_US: u64 = 2000;

fn budget(host: &Host<'_>) -> Judged {
    let text = host.roots.proc("sys/net/core/netdev_budget_usecs")?;
    let us: u64 = text.parse().map_err(|_| format!("netdev_budget_usecs {text:?} is no number"))?;
    let packets = host.roots.proc("sys/net/core/netdev_budget")?;
    let shortest = budget_wanted_us(host.machine.tick_ns().unwrap_or(JIFFY_NS_USUAL));
    let finding = Finding::good_if(us <= BUDGET_US, format!("{us} us or {packets} packets"));
    Ok(match us <= shortest {
        true => finding.but(How::NotHere, "two ticks are the least that can be set: a kernel with CONFIG_HZ=1000"),
        false => finding,
    })
}

fn busy_poll(host: &Host<'_>) -> Judged {
    let (poll, read) = (host.roots.proc("sys/net/core/busy_poll")?, host.roots.proc("sys/net/core/busy_read")?);
    Ok(Finding::good_if(poll == "0" && read == "0", format!("poll {poll} us, read {read} us")))
}

/// Whether a driver's answer means that it does not support this.
fn unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

fn coalescing(host: &Host<'_>, interface: &str) -> Judged {
    match host.machine.coalesce(interface) {
        Ok(coalesce) => Ok(Finding::good_if(coalesce.off(), coalesce.to_string())),
        Err(error) if unsupported(&error) => Ok(Finding::not_applicable("the driver has none")),
        Err(error) => Ok(Finding::unknown(error)),
    }
}

/// Steering files of an interface, `rps_cpus` or `xps_cpus`, with their content. Files that the kernel does
/// not offer (if there is only one queue) are left out.
pub(crate) fn queues(
    host: &Host<'_>,
    interface: &str,
    file: &str,
) -> Result<Vec<(String, Cpus)>, Box<dyn std::error::Error>> {
    let prefix = if file == "rps_cpus" { "rx-" } else { "tx-" };
    let dir = host.roots.sys.join(format!("class/net/{interface}/queues"));
    let mut queues = Vec::new();
    for queue in Roots::list(&dir)?.into_iter().filter(|queue| queue.starts_with(prefix)) {
        let path = format!("class/net/{interface}/queues/{queue}/{file}");
        match host.roots.sys(&path) {
            Ok(mask) => queues.push((path, Cpus::from_mask(&mask)?)),
            Err(Unread { source, .. }) if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)) => {}
            Err(unread) => return Err(unread.into()),
        }
    }
    Ok(queues)
}

fn steering(host: &Host<'_>, interface: &str) -> Judged {
    let (rps, xps) = (queues(host, interface, "rps_cpus")?, queues(host, interface, "xps_cpus")?);
    let to_core = rps.iter().filter(|(_, cpus)| cpus.holds(host.core)).count();
    let receive = match to_core {
        0 => "no receive queue to the core by RPS".to_owned(),
        count => format!("{count} of {} receive queues to the core by RPS", rps.len()),
    };
    let own: Vec<_> = xps.iter().filter(|(_, cpus)| cpus.holds(host.core)).collect();
    let (send_good, send) = match (xps.len(), own.as_slice()) {
        (0 | 1, _) => (true, "one send queue".to_owned()),
        (_, [(_, cpus)]) if cpus.len() == 1 => (true, "a send queue of its own by XPS".to_owned()),
        (count, _) => (false, format!("none of {count} send queues for the core alone by XPS")),
    };
    Ok(Finding::good_if(to_core == 0 && send_good, format!("{receive}; {send}")))
}

fn receive_queues(host: &Host<'_>, interface: &str) -> Judged {
    if let Ok(channels) = host.machine.channels(interface) {
        let found = format!("{} of {}", channels.receiving(), channels.receiving_max());
        let finding = Finding::good_if(channels.receiving() > 1, found);
        return Ok(match channels.receiving_max() {
            0 | 1 => finding.but(How::NotHere, "a card with several queues"),
            _ => finding,
        });
    }
    let dir = host.roots.sys.join(format!("class/net/{interface}/queues"));
    let count = Roots::list(&dir)?.iter().filter(|queue| queue.starts_with("rx-")).count();
    Ok(Finding::good_if(count > 1, format!("{count}; the driver does not say how many it could have"))
        .but(How::NotHere, "a card with several queues"))
}

/// First kernel whose drivers report their XDP features.
const XDP_FEATURES: (u32, u32) = (6, 3);

fn xdp(host: &Host<'_>, interface: &str) -> Judged {
    let facts = match host.machine.xdp(interface) {
        Ok(facts) => facts,
        Err(error) => return Ok(Finding::unknown(error)),
    };
    let driver = host.machine.driver(interface).unwrap_or_else(|_| "unknown".to_owned());
    if facts.features & XdpFacts::BASIC != 0 {
        let copies = if facts.features & XdpFacts::ZERO_COPY != 0 { ", AF_XDP without copies" } else { "" };
        return Ok(Finding::new(Effect::Good, format!("driver {driver} runs it{copies}")));
    }
    if kernel_version(&host.roots.kernel()?).is_none_or(|version| version < XDP_FEATURES) {
        return Ok(Finding::unknown("kernels before 6.3 do not tell; the agent tries"));
    }
    Ok(Finding::new(Effect::Bad, format!("driver {driver} does not run it; generic is left")))
}

/// Whether packets of priority 7 overtake the others in this queueing discipline.
pub(crate) fn has_priorities(kind: &str) -> bool {
    matches!(kind, "pfifo_fast" | "prio" | "noqueue" | "htb" | "hfsc" | "ets" | "mqprio" | "taprio")
}

fn qdisc(host: &Host<'_>, interface: &str) -> Judged {
    let qdisc = match host.machine.qdisc(interface) {
        Ok(qdisc) => qdisc,
        Err(error) => return Ok(Finding::unknown(error)),
    };
    let finding = Finding::good_if(has_priorities(&qdisc.kind), qdisc.to_string());
    Ok(match (qdisc.kind.as_str(), qdisc.by_default) {
        ("mq", _) => Finding::new(Effect::Unknown, format!("{qdisc}: one for each queue, of whatever kind"))
            .but(How::Operator, "sysctl net.core.default_qdisc=pfifo_fast before {if} comes up"),
        (_, false) => finding.but(How::Operator, "somebody chose it; a class for priority 7 in it"),
        (_, true) => finding,
    })
}
