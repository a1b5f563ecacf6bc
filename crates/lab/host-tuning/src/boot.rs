// SPDX-License-Identifier: Apache-2.0
//! Writes out, for the operator, the settings that only a boot can change. They are never applied.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::doctor::{Host, JIFFY_NS_USUAL, budget_wanted_us};

/// One parameter of the kernel's command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parameter {
    pub text: String,
    pub why: &'static str,
    /// Whether it is in force now.
    pub now: bool,
}

/// All parameters and files for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Boot {
    pub parameters: Vec<Parameter>,
    /// Name and text of each file.
    pub files: Vec<(&'static str, String)>,
}

/// Writes out the settings with which a host should boot if its loop runs on `host.core`.
///
/// # Errors
/// If the kernel does not say which cores there are, or `host.core` is the only one.
pub fn boot(host: &Host<'_>) -> Result<Boot, Box<dyn std::error::Error>> {
    let (core, others) = (host.core, host.others()?);
    if others.is_empty() {
        return Err(format!("core {core} is the only one: nothing can be kept off it").into());
    }
    // If it cannot be read, the parameters are given anyway.
    let cmdline = host.roots.proc("cmdline").unwrap_or_default();
    let parameter = |text: String, why| {
        let now = cmdline.split_whitespace().any(|word| word == text);
        Parameter { text, why, now }
    };
    let parameters = vec![
        parameter(format!("isolcpus=managed_irq,domain,{core}"), "no ordinary task and no card's interrupt on it"),
        parameter(format!("nohz_full={core}"), "no tick while the loop runs alone"),
        parameter(format!("rcu_nocbs={core}"), "RCU callbacks on other cores"),
        parameter(format!("irqaffinity={others}"), "interrupts on other cores from the start"),
        parameter(format!("kthread_cpus={others}"), "kernel threads on other cores"),
        parameter("nowatchdog".to_owned(), "no lockup watchdogs"),
        parameter("rcupdate.rcu_cpu_stall_suppress=1".to_owned(), "no RCU stall reports"),
        parameter("processor.max_cstate=1".to_owned(), "no deep idle states, also before the agent runs"),
        parameter("intel_idle.max_cstate=0".to_owned(), "the same with Intel's own driver"),
        parameter("preempt=full".to_owned(), "the kernel gives way to the loop"),
        parameter("transparent_hugepage=madvise".to_owned(), "no compaction for pages that nobody asked for"),
        parameter("skew_tick=1".to_owned(), "ticks of different cores do not meet at the same locks"),
    ];
    let line = parameters.iter().map(|parameter| parameter.text.as_str()).collect::<Vec<_>>().join(" ");
    let tick_ns = host.machine.tick_ns().unwrap_or(JIFFY_NS_USUAL);
    let files = vec![
        (
            "grub.d/fide.cfg",
            format!(
                "# To /etc/default/grub.d, then update-grub and reboot. If the agent's core changes, this file has to change too.\n\
                 GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {line}\"\n"
            ),
        ),
        ("tuned/fide/tuned.conf", tuned(core, budget_wanted_us(tick_ns), &line)),
    ];
    Ok(Boot { parameters, files })
}

fn tuned(core: usize, budget_us: u64, line: &str) -> String {
    format!(
        "# To /etc/tuned/fide/tuned.conf, then `tuned-adm profile fide` and reboot. Use it instead of `fide tune`, not together with it.\n\
         [main]\n\
         summary=Keeps core {core} free for the agent of Fide\n\
         \n\
         [cpu]\n\
         governor=performance\n\
         \n\
         [vm]\n\
         transparent_hugepages=madvise\n\
         \n\
         [sysctl]\n\
         kernel.nmi_watchdog=0\n\
         kernel.numa_balancing=0\n\
         net.core.netdev_budget_usecs={budget_us}\n\
         \n\
         [irqbalance]\n\
         banned_cpus={core}\n\
         \n\
         [bootloader]\n\
         cmdline_fide=+{line}\n"
    )
}

/// Writes the files below `dir`.
///
/// # Errors
/// The path, and the error there.
pub fn write(boot: &Boot, dir: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut paths = Vec::new();
    for (name, text) in &boot.files {
        let path = dir.join(name);
        let done = fs::create_dir_all(path.parent().unwrap_or(dir)).and_then(|()| fs::write(&path, text));
        done.map_err(|error| (path.clone(), error))?;
        paths.push(path);
    }
    Ok(paths)
}
