// SPDX-License-Identifier: Apache-2.0
//! The loop's core: what else runs on it, and how fast it wakes (X-Lane §4.3.1).

use std::io;

use super::{By, Effect, Finding, Group, Host, Judged, Kind, Roots};
use crate::{
    condition::How,
    parse::{Cpus, boot_parameter, steal_ticks},
};

const fn kind(id: &'static str, title: &'static str, wanted: &'static str, how: How) -> Kind {
    Kind { id, group: Group::Core, title, wanted, cost: "", how, change: "" }
}

pub(super) const ALL: &[(Kind, By)] = &[
    (
        Kind {
            cost: "ordinary tasks preempt the loop; core isolation and XDP made over 90% of FiDe's jitter reduction",
            change: "isolcpus=managed_irq,domain,{core}",
            ..kind("isolated-core", "isolated core", "core {core} in isolcpus", How::Boot)
        },
        By::Host(isolated),
    ),
    (
        Kind {
            cost: "a timer interrupt at every tick, each 1.5 to 50 us (X-Lane), where one a second would do",
            change: "nohz_full={core}",
            ..kind("nohz-full", "ticks stop when one task runs", "core {core} in nohz_full", How::Boot)
        },
        By::Host(nohz_full),
    ),
    (
        Kind {
            cost: "RCU callbacks run on the core at times nobody chose",
            change: "rcu_nocbs={core}",
            ..kind("rcu-nocbs", "RCU callbacks elsewhere", "core {core} in rcu_nocbs", How::Boot)
        },
        By::Host(rcu_nocbs),
    ),
    (
        Kind {
            cost: "the more ticks, the more interruptions of 1.5 to 50 us (X-Lane); time limits of the kernel's \
                   network code count in ticks",
            change: "a kernel built with CONFIG_HZ=100, or nohz_full",
            ..kind("timer-tick", "timer ticks", "at most 100 a second, or none on core {core}", How::NotHere)
        },
        By::Host(tick),
    ),
    (
        Kind {
            cost: "waking from a deep state takes its exit latency: a periodic sender was 52 us late (p50), and 16 us \
                   with states held off",
            change: "held off by the agent while it runs; for good: processor.max_cstate=1 intel_idle.max_cstate=0, \
                     or cpuidle.off=1",
            ..kind("c-states", "C-states", "none that takes over 1 us to leave", How::Agent)
        },
        By::Host(c_states),
    ),
    (
        Kind {
            cost: "the agent cannot keep cores awake: wake-ups about three times later (p50 52 us instead of 16)",
            change: "run the agent with write access to /dev/cpu_dma_latency",
            ..kind("cpu-dma-latency", "wake-up latency request", "/dev/cpu_dma_latency can be held at 0", How::Operator)
        },
        By::Host(dma_latency),
    ),
    (
        Kind {
            cost: "the first work after a pause runs at a low clock, and changing it takes tens of microseconds",
            change: "performance in scaling_governor of every policy",
            ..kind("governor", "frequency governor", "performance", How::Tune)
        },
        By::Host(governor),
    ),
    (
        Kind {
            cost: "a busy sibling takes a share of the core's units and caches, unseen by the scheduler's figures",
            change: "nosmt, or keep core {core}'s siblings off line",
            ..kind("smt", "SMT siblings", "none of core {core} on line", How::Boot)
        },
        By::Host(smt),
    ),
    (
        Kind {
            cost: "each reading of another clock leaves the processor: a microsecond and more, several a packet",
            change: "clocksource=tsc, if the kernel does not find the TSC unstable",
            ..kind("clock-source", "clock source", "tsc, or another read without a system call", How::Boot)
        },
        By::Host(clock_source),
    ),
    (
        Kind {
            cost: "the hypervisor takes the core away without a trace but steal time; no bound is better than its",
            change: "a host of its own, or virtual cores pinned to physical ones",
            ..kind("hypervisor", "hypervisor and steal", "none", How::NotHere)
        },
        By::Host(hypervisor),
    ),
    (
        Kind {
            cost: "the firmware stops all cores for up to milliseconds (X-Lane)",
            change: "disable core throttling, legacy USB and error polling in the firmware's settings",
            ..kind("smi", "system management interrupts", "none since boot", How::Firmware)
        },
        By::Host(smi),
    ),
];

fn isolated(host: &Host<'_>) -> Judged {
    let list = host.roots.sys("devices/system/cpu/isolated")?;
    let isolated = Cpus::from_list(&list)?;
    Ok(Finding::good_if(
        isolated.holds(host.core),
        if list.is_empty() { "no core is isolated".to_owned() } else { format!("isolated: {list}") },
    ))
}

fn nohz_full(host: &Host<'_>) -> Judged {
    match host.roots.sys("devices/system/cpu/nohz_full") {
        Ok(list) => Ok(Finding::good_if(
            Cpus::from_list(&list)?.holds(host.core),
            if list.is_empty() || list == "(null)" { "none".to_owned() } else { format!("nohz_full: {list}") },
        )),
        // Since a file that every kernel has is there, the absence of this one means something.
        Err(unread) if unread.missing() && host.online().is_ok() => {
            Ok(Finding::new(Effect::Bad, "this kernel was built without NO_HZ_FULL")
                .but(How::NotHere, "a kernel built with CONFIG_NO_HZ_FULL"))
        }
        Err(unread) => Err(unread.into()),
    }
}

fn rcu_nocbs(host: &Host<'_>) -> Judged {
    let cmdline = host.roots.proc("cmdline")?;
    for key in ["rcu_nocbs", "nohz_full"] {
        if let Some(list) = boot_parameter(&cmdline, key) {
            // The kernel's command line also allows the words `all` and `N`.
            let holds = list == "all" || Cpus::from_list(list)?.holds(host.core);
            if holds || key == "rcu_nocbs" {
                return Ok(Finding::good_if(holds, format!("{key}={list}")));
            }
        }
    }
    Ok(Finding::new(Effect::Bad, "no rcu_nocbs on the kernel's command line"))
}

fn tick(host: &Host<'_>) -> Judged {
    let hz = 1_000_000_000 / host.machine.tick_ns()?.max(1);
    let stopped = host
        .roots
        .sys("devices/system/cpu/nohz_full")
        .is_ok_and(|list| Cpus::from_list(&list).is_ok_and(|cpus| cpus.holds(host.core)));
    let note = if stopped { ", but one on core while a single task runs" } else { "" };
    Ok(Finding::good_if(stopped || hz <= 100, format!("{hz} a second{note}")))
}

/// Longest exit latency that does not matter.
const LATENCY_MAX_US: u64 = 1;

fn c_states(host: &Host<'_>) -> Judged {
    let driver = host.roots.sys("devices/system/cpu/cpuidle/current_driver");
    let dir = host.core_dir("cpuidle");
    let states = match Roots::list(&dir) {
        Ok(states) => states,
        Err(unread) if unread.missing() && host.online().is_ok() => {
            return Ok(Finding::new(Effect::Good, "no idle states are used"));
        }
        Err(unread) => return Err(unread.into()),
    };
    let mut deepest: Option<(u64, String)> = None;
    for state in states.iter().filter(|name| name.starts_with("state")) {
        let file = |name| host.core_file(&format!("cpuidle/{state}/{name}"));
        if file("disable")? == "1" {
            continue;
        }
        let text = file("latency")?;
        let latency_us = text.parse::<u64>().map_err(|_| format!("latency of {state}: {text:?} is no number"))?;
        if deepest.as_ref().is_none_or(|(deepest_us, _)| *deepest_us <= latency_us) {
            deepest = Some((latency_us, file("name")?));
        }
    }
    let governor = host.roots.sys("devices/system/cpu/cpuidle/current_governor");
    let by = format!(
        "driver {}, governor {}",
        driver.as_deref().unwrap_or("unknown"),
        governor.as_deref().unwrap_or("unknown")
    );
    Ok(match deepest {
        None => Finding::new(Effect::Good, format!("no state is enabled; {by}")),
        Some((us, name)) => {
            Finding::good_if(us <= LATENCY_MAX_US, format!("deepest is {name}, {us} us to leave; {by}"))
        }
    })
}

fn dma_latency(host: &Host<'_>) -> Judged {
    let path = host.roots.dev.join("cpu_dma_latency");
    // Opening the file requests nothing yet.
    Ok(match std::fs::File::options().write(true).open(&path) {
        Ok(_) => Finding::new(Effect::Good, "can be held; the agent does while it runs"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::new(Effect::Bad, format!("{} is not there", path.display()))
        }
        Err(error) => Finding::unknown(format!("{}: {error}", path.display())),
    })
}

fn governor(host: &Host<'_>) -> Judged {
    match host.core_file("cpufreq/scaling_governor") {
        Ok(governor) => Ok(Finding::good_if(governor == "performance", governor)),
        Err(unread) if unread.missing() && host.online().is_ok() => {
            Ok(Finding::not_applicable("no frequency scaling is offered to this kernel"))
        }
        Err(unread) => Err(unread.into()),
    }
}

fn smt(host: &Host<'_>) -> Judged {
    let siblings = Cpus::from_list(&host.core_file("topology/thread_siblings_list")?)?.without(host.core);
    Ok(match siblings.is_empty() {
        true => Finding::new(Effect::Good, "none"),
        false => Finding::new(Effect::Bad, format!("core {} shares its units with {siblings}", host.core)),
    })
}

fn clock_source(host: &Host<'_>) -> Judged {
    let source = host.roots.sys("devices/system/clocksource/clocksource0/current_clocksource")?;
    let fast = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "timebase", "tod"];
    Ok(Finding::good_if(fast.contains(&source.as_str()), source))
}

fn hypervisor(host: &Host<'_>) -> Judged {
    let cpu = host.roots.proc("cpuinfo")?;
    let flags = cpu.lines().find(|line| line.starts_with("flags"));
    let kind = host.roots.sys("hypervisor/type").ok();
    let guest = match flags {
        Some(_) => crate::parse::is_guest(&cpu),
        // Other architectures have no such flag.
        None if kind.is_some() => true,
        None => return Ok(Finding::unknown("this processor does not say whether it is virtual")),
    };
    if !guest && kind.is_none() {
        return Ok(Finding::new(Effect::Good, "none"));
    }
    let steal = match steal_ticks(&host.roots.proc("stat")?, host.core) {
        Some(0) => "no time of the core was stolen since boot",
        Some(_) => "time of the core was stolen since boot",
        None => "the kernel does not count stolen time",
    };
    let kind = kind.map_or_else(|| "a virtual machine".to_owned(), |kind| format!("a virtual machine of {kind}"));
    Ok(Finding::new(Effect::Bad, format!("{kind}; {steal}")))
}

/// `MSR_SMI_COUNT` of Intel's processors.
pub(crate) const MSR_SMI_COUNT: u64 = 0x34;

fn smi(host: &Host<'_>) -> Judged {
    let cpu = host.roots.proc("cpuinfo")?;
    if !cpu.contains("GenuineIntel") {
        return Ok(Finding::unknown("only processors of Intel count them"));
    }
    match host.roots.msr(host.core, MSR_SMI_COUNT) {
        Ok(0) => Ok(Finding::new(Effect::Good, "none since boot")),
        Ok(_) => Ok(Finding::new(Effect::Bad, "there were some since boot")),
        Err(unread) if unread.missing() => {
            Ok(Finding::unknown(format!("{unread}; `modprobe msr` makes it, where the kernel has it")))
        }
        Err(unread) => Ok(Finding::unknown(unread)),
    }
}
