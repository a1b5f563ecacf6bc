// SPDX-License-Identifier: Apache-2.0
//! What the scheduler grants the loop.

use super::{By, Effect, Finding, Group, Host, Judged, Kind};
use crate::{
    condition::How,
    parse::{Cpus, chosen, kernel_version, soft_limit},
};

const fn kind(id: &'static str, title: &'static str, wanted: &'static str, how: How) -> Kind {
    Kind { id, group: Group::Scheduler, title, wanted, cost: "", how, change: "" }
}

pub(super) const ALL: &[(Kind, By)] = &[
    (
        Kind {
            cost: "the loop runs on another core than it is judged for",
            change: "a cpuset, AllowedCPUs= or container setting that holds core {core}",
            ..kind("core-allowed", "the core may be used", "core {core} allowed to this process", How::Operator)
        },
        By::Host(allowed),
    ),
    (
        Kind {
            cost: "a FIFO thread that never sleeps is stopped for the rest of each period (usually 50 ms in a second); \
                   the loop sleeps long before. Without a limit (-1) such a thread can hang the kernel",
            change: "sysctl kernel.sched_rt_runtime_us=950000; fide never sets -1",
            ..kind("rt-throttling", "real-time throttling", "a limit below its period, not -1", How::Operator)
        },
        By::Host(throttling),
    ),
    (
        Kind {
            cost: "on a core with ordinary tasks a thread that never sleeps loses 50 ms in every second; spinning 1 ms \
                   and sleeping 100 us, as the loop does, kept the worst gap at 3.3 ms",
            change: "isolcpus=domain,{core}: then there are no ordinary tasks to serve",
            ..kind("fair-server", "fair server", "none, or no ordinary tasks on core {core}", How::Boot)
        },
        By::Host(fair_server),
    ),
    (
        Kind {
            cost: "a thread that became ready waits until whoever is in the kernel leaves it: milliseconds",
            change: "full in /sys/kernel/debug/sched/preempt; at boot: preempt=full; best a PREEMPT_RT kernel",
            ..kind("preemption", "preemption of the kernel", "full, or rt", How::Tune)
        },
        By::Host(preemption),
    ),
    (
        Kind {
            cost: "the loop runs as an ordinary thread: 20 ms of jitter are to be counted with, not 3.5 ms",
            change: "AmbientCapabilities=CAP_SYS_NICE or LimitRTPRIO=99 in the agent's unit",
            ..kind("rtprio-limit", "real-time priority", "CAP_SYS_NICE, or a limit of at least 80", How::Operator)
        },
        By::Host(rtprio),
    ),
];

fn allowed(host: &Host<'_>) -> Judged {
    let status = host.roots.proc("self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus = Cpus::from_list(list.ok_or("/proc/self/status has no Cpus_allowed_list")?)?;
    Ok(Finding::good_if(cpus.holds(host.core), format!("cores {cpus}")))
}

fn throttling(host: &Host<'_>) -> Judged {
    let runtime = host.roots.proc("sys/kernel/sched_rt_runtime_us")?;
    let period = host.roots.proc("sys/kernel/sched_rt_period_us")?;
    let found = format!("{runtime} of {period} us");
    match (runtime.parse::<i64>(), period.parse::<i64>()) {
        (Ok(-1), _) => Ok(Finding::new(Effect::Bad, "no limit (-1)")),
        (Ok(0), _) => Ok(Finding::new(Effect::Bad, "no real-time thread may run (0)")),
        (Ok(runtime), Ok(period)) => Ok(Finding::good_if(runtime < period, found)),
        _ => Ok(Finding::unknown(format!("{found}: no numbers"))),
    }
}

/// First kernel with the fair server.
const FAIR_SERVER: (u32, u32) = (6, 12);

fn fair_server(host: &Host<'_>) -> Judged {
    let kernel = host.roots.kernel()?;
    if kernel_version(&kernel).is_some_and(|version| version < FAIR_SERVER) {
        return Ok(Finding::not_applicable(format!("kernel {kernel} has none")));
    }
    let isolated = host.roots.sys("devices/system/cpu/isolated").ok().and_then(|list| Cpus::from_list(&list).ok());
    let isolated = isolated.is_some_and(|cpus| cpus.holds(host.core));
    let file = |name: &str| host.roots.sys(format!("kernel/debug/sched/fair_server/cpu{}/{name}", host.core));
    let found = match (file("runtime"), file("period")) {
        (Ok(runtime), Ok(period)) if runtime == "0" || period == "0" => return Ok(Finding::new(Effect::Good, "off")),
        (Ok(runtime), Ok(period)) => format!("{runtime} of {period} ns"),
        (Err(unread), _) | (_, Err(unread)) if !isolated => {
            return Ok(Finding::unknown(format!("{unread} (debugfs); kernels since 6.12 have one of 50 ms a second")));
        }
        _ => "there may be one".to_owned(),
    };
    let note = if isolated { "; the core is isolated" } else { "; the core has ordinary tasks" };
    Ok(Finding::good_if(isolated, format!("{found}{note}")))
}

/// Bit numbers of `linux/capability.h`.
pub(super) const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_NICE: u32 = 23;

/// Whether this process has a capability.
pub(super) fn capable(host: &Host<'_>, capability: u32) -> Result<bool, Box<dyn std::error::Error>> {
    let status = host.roots.proc("self/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).ok_or("/proc/self/status has no CapEff")?;
    Ok(u64::from_str_radix(set.trim(), 16)? >> capability & 1 == 1)
}

fn rtprio(host: &Host<'_>) -> Judged {
    if capable(host, CAP_SYS_NICE)? {
        return Ok(Finding::new(Effect::Good, "CAP_SYS_NICE"));
    }
    let limits = host.roots.proc("self/limits")?;
    let limit = soft_limit(&limits, "Max realtime priority").ok_or("/proc/self/limits has no Max realtime priority")?;
    let wanted = u64::from(fide_net::isolation::LOOP_PRIORITY.unsigned_abs());
    Ok(match limit {
        None => Finding::new(Effect::Good, "no limit"),
        Some(limit) => Finding::good_if(limit >= wanted, format!("limit {limit}, without CAP_SYS_NICE")),
    })
}

/// How the kernel preempts itself, taken from the most reliable source that there is.
fn preemption(host: &Host<'_>) -> Judged {
    const RIGHT: [&str; 2] = ["full", "rt"];
    let judge = |model: &str, from: &str| Finding::good_if(RIGHT.contains(&model), format!("{model}, says {from}"));
    let at_boot = |finding: Finding| finding.but(How::Boot, "preempt=full; now: mount debugfs, then `fide tune`");
    if host.roots.sys("kernel/realtime").is_ok_and(|realtime| realtime == "1") {
        return Ok(judge("rt", "/sys/kernel/realtime"));
    }
    if let Ok(list) = host.roots.sys("kernel/debug/sched/preempt") {
        return Ok(judge(chosen(&list), "debugfs"));
    }
    if let Some(model) = host.boot_parameter("preempt")? {
        return Ok(at_boot(judge(&model, "the kernel's command line")));
    }
    for (key, model) in [
        ("CONFIG_PREEMPT_RT", "rt"),
        ("CONFIG_PREEMPT", "full"),
        ("CONFIG_PREEMPT_LAZY", "lazy"),
        ("CONFIG_PREEMPT_VOLUNTARY", "voluntary"),
        ("CONFIG_PREEMPT_NONE", "none"),
    ] {
        if host.roots.built_with(key)? {
            return Ok(at_boot(judge(model, "the kernel's configuration")));
        }
    }
    Ok(Finding::unknown("neither debugfs, command line nor configuration of the kernel say it"))
}
