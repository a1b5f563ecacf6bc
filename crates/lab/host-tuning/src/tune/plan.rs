// SPDX-License-Identifier: Apache-2.0
//! Plans what would be changed on a host, and why.

mod network;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Form, Target};
use crate::{
    doctor::{Host, irqs},
    parse::{Cpus, chosen, kernel_version},
    roots::{Roots, Unread},
};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The condition it is for.
    pub id: &'static str,
    pub target: Target,
    /// The present value, for people.
    pub from: String,
    /// The wanted values: the first one that the kernel accepts is used.
    pub to: Vec<String>,
    pub why: String,
}

impl Change {
    fn new(id: &'static str, target: Target, now: &str, to: Vec<String>, why: impl Into<String>) -> Self {
        let from = target.show(now);
        Self { id, target, from, to, why: why.into() }
    }

    /// The most wanted value, for people.
    #[must_use]
    pub fn shown_to(&self) -> String {
        self.to.first().map(|to| self.target.show(to)).unwrap_or_default()
    }
}

/// Something that stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    pub id: &'static str,
    pub why: String,
}

/// The changes to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub changes: Vec<Change>,
    pub left: Vec<Left>,
}

/// Options for a plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Conditions to leave alone.
    pub skip: Vec<String>,
    /// Take the core away from other control groups too.
    pub cpusets: bool,
}

type Planned = Result<(), Box<dyn std::error::Error>>;

type Step<'a> = fn(&mut Planner<'a>) -> Planned;

struct Planner<'a> {
    host: &'a Host<'a>,
    options: &'a Options,
    /// Cores that are left to others.
    others: Cpus,
    plan: Plan,
}

/// Plans all changes that this host allows at run time and that are not made yet.
#[must_use]
pub fn plan(host: &Host<'_>, options: &Options) -> Plan {
    let mut planner = Planner { host, options, others: host.others().unwrap_or_default(), plan: Plan::default() };
    planner.all();
    let skipped = |id: &str| options.skip.iter().any(|skip| skip == id);
    let mut plan = planner.plan;
    plan.changes.retain(|change| !skipped(change.id));
    plan.left.retain(|left| !skipped(left.id));
    plan
}

impl<'a> Planner<'a> {
    fn all(&mut self) {
        let steps: [(&'static str, Step<'a>); 11] = [
            ("irq-affinity", Self::irqs),
            ("default-irq-affinity", Self::default_irqs),
            ("workqueues", Self::workqueues),
            ("soft-watchdog", Self::soft_watchdog),
            ("nmi-watchdog", Self::words),
            ("governor", Self::governors),
            ("transparent-huge-pages", Self::transparent_huge_pages),
            ("netdev-budget", Self::netdev_budget),
            ("coalescing", Self::interfaces),
            ("cpusets", Self::cpusets),
            ("c-states", Self::c_states),
        ];
        for (id, step) in steps {
            if let Err(why) = step(self) {
                self.left(id, why.to_string());
            }
        }
    }

    fn left(&mut self, id: &'static str, why: impl Into<String>) {
        self.plan.left.push(Left { id, why: why.into() });
    }

    /// Plans `wanted` for a file, unless the file has that value already.
    fn file(&mut self, id: &'static str, path: PathBuf, form: Form, wanted: &str, why: &str) -> Planned {
        let now = crate::roots::read(&path)?;
        let target = Target::File { path, form };
        if !target.same(&now, wanted) {
            self.plan.changes.push(Change::new(id, target, &now, vec![wanted.to_owned()], why));
        }
        Ok(())
    }

    /// Removes the core from a mask or list. If that would leave none of the other cores, the mask or list
    /// becomes all others.
    fn without_core(&mut self, id: &'static str, path: PathBuf, form: Form, why: &str) -> Planned {
        let now = crate::roots::read(&path)?;
        let cpus = if form == Form::List { Cpus::from_list(&now)? } else { Cpus::from_mask(&now)? };
        if !cpus.holds(self.host.core) {
            return Ok(());
        }
        let rest = cpus.without(self.host.core);
        let wanted = if rest.and(&self.others).is_empty() { self.others.clone() } else { rest };
        if wanted.is_empty() {
            return Err(format!("core {} is the only one", self.host.core).into());
        }
        let wanted = if form == Form::List { wanted.to_string() } else { wanted.mask() };
        self.file(id, path, form, &wanted, why)
    }

    fn irqs(&mut self) -> Planned {
        let (irqs, unread) = irqs(self.host)?;
        for irq in irqs {
            let path = self.host.roots.proc.join(format!("irq/{}/smp_affinity", irq.number));
            let why = format!("interrupt {} ({}) may run on the loop's core", irq.number, irq.name);
            self.without_core("irq-affinity", path, Form::Mask, &why)?;
        }
        for unread in unread {
            self.left("irq-affinity", unread.to_string());
        }
        if self.runs("irqbalance") {
            let core = self.host.core;
            let why =
                format!("irqbalance runs and moves interrupts back; set IRQBALANCE_BANNED_CPULIST={core} or stop it");
            self.left("irq-affinity", why);
        }
        Ok(())
    }

    fn runs(&self, program: &str) -> bool {
        let proc = &self.host.roots.proc;
        let pids = Roots::list(proc).unwrap_or_default().into_iter();
        pids.filter(|name| name.parse::<u32>().is_ok())
            .any(|pid| crate::roots::read(&proc.join(pid).join("comm")).is_ok_and(|comm| comm == program))
    }

    fn default_irqs(&mut self) -> Planned {
        let path = self.host.roots.proc.join("irq/default_smp_affinity");
        self.without_core("default-irq-affinity", path, Form::Mask, "so that interrupts of new devices stay away")
    }

    fn workqueues(&mut self) -> Planned {
        let path = self.host.roots.sys.join("devices/virtual/workqueue/cpumask");
        self.without_core("workqueues", path, Form::Mask, "deferred work of drivers runs on the other cores as well")
    }

    fn soft_watchdog(&mut self) -> Planned {
        let path = self.host.roots.proc.join("sys/kernel/watchdog_cpumask");
        self.without_core("soft-watchdog", path, Form::List, "its timer and thread interrupt the loop every 4 s")
    }

    /// Files that hold one word.
    fn words(&mut self) -> Planned {
        let (proc, sys) = (self.host.roots.proc.clone(), self.host.roots.sys.clone());
        let words: [(&'static str, PathBuf, &str, &str); 3] = [
            ("nmi-watchdog", proc.join("sys/kernel/nmi_watchdog"), "0", "its interrupts cannot be masked"),
            (
                "rcu-stall",
                sys.join("module/rcupdate/parameters/rcu_cpu_stall_suppress"),
                "1",
                "its reports interrupt every core",
            ),
            ("numa-balancing", proc.join("sys/kernel/numa_balancing"), "0", "it makes page faults on purpose"),
        ];
        for (id, path, wanted, why) in words {
            self.optional(id, path, Form::Text, wanted, why);
        }
        let path = sys.join("kernel/debug/sched/preempt");
        if let Ok(now) = crate::roots::read(&path)
            && chosen(&now) != "full"
            && now.contains("full")
        {
            let why = "a thread that became ready need not wait for the kernel's work of another";
            self.optional("preemption", path, Form::Choice, "full", why);
        }
        Ok(())
    }

    /// What this kernel may not have at all.
    fn optional(&mut self, id: &'static str, path: PathBuf, form: Form, wanted: &str, why: &str) {
        if path.exists()
            && let Err(error) = self.file(id, path, form, wanted, why)
        {
            self.left(id, error.to_string());
        }
    }

    fn governors(&mut self) -> Planned {
        let dir = self.host.roots.sys.join("devices/system/cpu/cpufreq");
        let policies = match Roots::list(&dir) {
            Ok(policies) => policies,
            Err(unread) if unread.missing() => return Ok(()),
            Err(unread) => return Err(unread.into()),
        };
        for policy in policies.iter().filter(|name| name.starts_with("policy")) {
            let file = |name: &str| dir.join(policy).join(name);
            let available = crate::roots::read(&file("scaling_available_governors"))?;
            if !available.split_whitespace().any(|governor| governor == "performance") {
                self.left("governor", format!("{policy} offers only: {available}"));
                continue;
            }
            let why = "a low clock is left only after the work has begun; costs power while idle";
            self.file("governor", file("scaling_governor"), Form::Text, "performance", why)?;
        }
        Ok(())
    }

    fn transparent_huge_pages(&mut self) -> Planned {
        let dir = self.host.roots.sys.join("kernel/mm/transparent_hugepage");
        for name in ["enabled", "defrag"] {
            let path = dir.join(name);
            if crate::roots::read(&path).is_ok_and(|now| chosen(&now) == "always") {
                let why = "only who asks for huge pages pays for them; programs that ask keep theirs";
                self.optional("transparent-huge-pages", path, Form::Choice, "madvise", why);
            }
        }
        Ok(())
    }

    fn c_states(&mut self) -> Planned {
        self.left("c-states", "/dev/cpu_dma_latency is held by the agent while it runs; there is nothing to set");
        self.left("rt-throttling", "sched_rt_runtime_us is never touched: without it a busy thread can hang a kernel");
        Ok(())
    }

    /// Control groups of version 2 that could put tasks on the core.
    fn cpusets(&mut self) -> Planned {
        if !self.options.cpusets {
            self.left(
                "cpusets",
                "asked for with --cpusets only: it confines every program, also the one that asks, to the other cores",
            );
            return Ok(());
        }
        let dir = self.host.roots.sys.join("fs/cgroup");
        let controllers = match crate::roots::read(&dir.join("cgroup.controllers")) {
            Ok(controllers) => controllers,
            Err(Unread { .. }) => return Err("only control groups of version 2 can be restored exactly".into()),
        };
        if !controllers.split_whitespace().any(|controller| controller == "cpuset") {
            return Err("the cpuset controller is not in the tree of control groups of version 2".into());
        }
        // Older kernels lose a program's own choice of cores when its cpuset changes.
        if kernel_version(&self.host.roots.kernel()?).is_none_or(|version| version < (6, 2)) {
            return Err("kernels before 6.2 forget the affinity of threads when their cpuset changes".into());
        }
        // The agent's own slice keeps the core.
        for group in Roots::list(&dir)?.into_iter().filter(|name| !name.starts_with("fide")) {
            let group = dir.join(group);
            let path = group.join("cpuset.cpus");
            let Ok(now) = crate::roots::read(&path) else { continue };
            if holds_fide(&group, 3) {
                let why = "holds the agent; give it a slice of its own (Slice=fide.slice in its unit)";
                self.left("cpusets", format!("{}: {why}", group.display()));
                continue;
            }
            let why = "tasks of this group may run on the loop's core";
            if now.is_empty() {
                let others = self.others.to_string();
                self.file("cpusets", path, Form::List, &others, why)?;
            } else {
                self.without_core("cpusets", path, Form::List, why)?;
            }
        }
        Ok(())
    }
}

/// Whether the agent's group is this one or below it.
fn holds_fide(group: &Path, depth: usize) -> bool {
    let named = group.file_name().is_some_and(|name| name.to_string_lossy().starts_with("fide"));
    let below = || {
        let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| path.is_dir() && holds_fide(&path, depth - 1))
    };
    named || (depth > 0 && below())
}
