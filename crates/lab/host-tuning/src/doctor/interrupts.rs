// SPDX-License-Identifier: Apache-2.0
//! Everything that interrupts the loop's core (X-Lane §4.3.2).

use std::fs;

use super::{By, Effect, Finding, Group, Host, Judged, Kind, Roots};
use crate::{
    condition::How,
    parse::{Counts, Cpus, counts_table},
    roots::Unread,
};

const fn kind(id: &'static str, title: &'static str, wanted: &'static str, how: How) -> Kind {
    Kind { id, group: Group::Interrupts, title, wanted, cost: "", how, change: "" }
}

pub(super) const ALL: &[(Kind, By)] = &[
    (
        Kind {
            cost: "each takes the core for microseconds, and the softirqs after it for as long as netdev_budget_usecs",
            change: "smp_affinity of each without core {core}; those that refuse: irqaffinity={others} and \
                     isolcpus=managed_irq,{core} at boot",
            ..kind("irq-affinity", "interrupt affinity", "no device's interrupt on core {core}", How::Tune)
        },
        By::Host(affinity),
    ),
    (
        Kind {
            cost: "devices that come later interrupt the core",
            change: "/proc/irq/default_smp_affinity without core {core}",
            ..kind("default-irq-affinity", "affinity of new interrupts", "without core {core}", How::Tune)
        },
        By::Host(default_affinity),
    ),
    (
        Kind {
            cost: "an interrupt that nothing can mask, on every core, every few seconds",
            change: "kernel.nmi_watchdog=0; at boot: nowatchdog",
            ..kind("nmi-watchdog", "NMI watchdog", "off", How::Tune)
        },
        By::Host(nmi_watchdog),
    ),
    (
        Kind {
            cost: "a timer every 4 s and a kernel thread above every real-time priority to answer it",
            change: "kernel.watchdog_cpumask without core {core}; at boot: nosoftlockup",
            ..kind("soft-watchdog", "soft lockup watchdog", "not on core {core}", How::Tune)
        },
        By::Host(soft_watchdog),
    ),
    (
        Kind {
            cost: "a loop that masks interrupts is reported from interrupts of its own, with a stack dump of every core",
            change: "rcupdate.rcu_cpu_stall_suppress=1",
            ..kind("rcu-stall", "RCU stall warnings", "suppressed", How::Tune)
        },
        By::Host(rcu_stall),
    ),
    (
        Kind {
            cost: "deferred work of any driver runs on the core",
            change: "/sys/devices/virtual/workqueue/cpumask without core {core}",
            ..kind("workqueues", "unbound workqueues", "not on core {core}", How::Tune)
        },
        By::Host(workqueues),
    ),
    (
        Kind {
            cost: "compaction, reclaim, journals and the like take turns on the core",
            change: "isolcpus=domain,{core} or kthread_cpus={others}; now: `taskset -pc {others} PID` for each",
            ..kind("kernel-threads", "kernel threads", "none that is free to roam may run on core {core}", How::Boot)
        },
        By::Host(kernel_threads),
    ),
];

/// One interrupt that a device uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Irq {
    pub(crate) number: String,
    /// Names of the devices that use it.
    pub(crate) name: String,
    /// Cores it may run on.
    pub(crate) allowed: Cpus,
}

/// The interrupts that devices use, and errors for those that could not be read.
pub(crate) fn irqs(host: &Host<'_>) -> Result<(Vec<Irq>, Vec<Unread>), Box<dyn std::error::Error>> {
    let dir = host.roots.proc.join("irq");
    // Without the table, the names are only those of the handlers.
    let table = host.roots.proc("interrupts").map(|text| counts_table(&text)).unwrap_or_default();
    let (mut irqs, mut unread) = (Vec::new(), Vec::new());
    for number in Roots::list(&dir)?.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        let mut handlers = Roots::list(&dir.join(&number))?;
        handlers.retain(|name| fs::metadata(dir.join(&number).join(name)).is_ok_and(|file| file.is_dir()));
        let line: Option<&Counts> = table.iter().find(|line| line.label == number);
        let name = match (handlers.is_empty(), line) {
            (false, _) => handlers.join(", "),
            (true, Some(line)) => line.name.clone(),
            // No device uses it.
            (true, None) => continue,
        };
        match host.roots.proc(format!("irq/{number}/smp_affinity")) {
            Ok(mask) => irqs.push(Irq { number, name, allowed: Cpus::from_mask(&mask)? }),
            Err(error) => unread.push(error),
        }
    }
    Ok((irqs, unread))
}

fn affinity(host: &Host<'_>) -> Judged {
    let (irqs, mut unread) = irqs(host)?;
    let here: Vec<String> = irqs
        .iter()
        .filter(|irq| irq.allowed.holds(host.core))
        .map(|irq| format!("{} {}", irq.number, irq.name))
        .collect();
    if here.is_empty() {
        return match unread.pop() {
            Some(unread) => Err(unread.into()),
            None => Ok(Finding::new(Effect::Good, format!("none of {}", irqs.len()))),
        };
    }
    Ok(Finding::new(Effect::Bad, format!("{} of {}: {}", here.len(), irqs.len(), here.join(", "))))
}

fn default_affinity(host: &Host<'_>) -> Judged {
    let cpus = Cpus::from_mask(&host.roots.proc("irq/default_smp_affinity")?)?;
    Ok(Finding::good_if(!cpus.holds(host.core), format!("cores {cpus}")))
}

fn nmi_watchdog(host: &Host<'_>) -> Judged {
    let on = host.roots.proc("sys/kernel/nmi_watchdog")?;
    Ok(Finding::good_if(on == "0", if on == "0" { "off" } else { "on" }))
}

fn soft_watchdog(host: &Host<'_>) -> Judged {
    if host.roots.proc("sys/kernel/soft_watchdog")? == "0" || host.roots.proc("sys/kernel/watchdog")? == "0" {
        return Ok(Finding::new(Effect::Good, "off"));
    }
    let cpus = Cpus::from_list(&host.roots.proc("sys/kernel/watchdog_cpumask")?)?;
    Ok(Finding::good_if(!cpus.holds(host.core), format!("on cores {cpus}")))
}

fn rcu_stall(host: &Host<'_>) -> Judged {
    let suppressed = host.roots.sys("module/rcupdate/parameters/rcu_cpu_stall_suppress")?;
    let timeout = host.roots.sys("module/rcupdate/parameters/rcu_cpu_stall_timeout")?;
    Ok(match suppressed.as_str() {
        "1" => Finding::new(Effect::Good, "suppressed"),
        _ => Finding::new(Effect::Bad, format!("after {timeout} s")),
    })
}

fn workqueues(host: &Host<'_>) -> Judged {
    let cpus = Cpus::from_mask(&host.roots.sys("devices/virtual/workqueue/cpumask")?)?;
    Ok(Finding::good_if(!cpus.holds(host.core), format!("on cores {cpus}")))
}

/// How many names of a list are printed at most.
const NAMES_MAX: usize = 12;

fn kernel_threads(host: &Host<'_>) -> Judged {
    let mut here = Vec::new();
    for pid in Roots::list(&host.roots.proc)?.into_iter().filter(|name| name.parse::<u32>().is_ok()) {
        // The process may have ended since.
        let Ok(status) = host.roots.proc(format!("{pid}/status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let kernels = field("PPid:") == Some("2") || pid == "2";
        let (Some(name), Some(cpus)) = (field("Name:"), field("Cpus_allowed_list:")) else { continue };
        // Workers come and go; the mask of the workqueues decides where they run.
        if !kernels || name.starts_with("kworker") || name.starts_with("pool_workqueue") {
            continue;
        }
        let cpus = Cpus::from_list(cpus)?;
        if cpus.len() > 1 && cpus.holds(host.core) {
            here.push(name.to_owned());
        }
    }
    here.sort();
    here.dedup();
    if !host.roots.proc.join("2").exists() {
        return Ok(Finding::unknown("the kernel's threads are not seen from this pid namespace"));
    }
    let more = here.len().saturating_sub(NAMES_MAX);
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    let count = here.len();
    here.truncate(NAMES_MAX);
    Ok(match count {
        0 => Finding::new(Effect::Good, "none"),
        _ => Finding::new(Effect::Bad, format!("{count}: {}{and}", here.join(", "))),
    })
}
