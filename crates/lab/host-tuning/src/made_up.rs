// SPDX-License-Identifier: Apache-2.0
//! Made-up hosts, for tests.

use std::{cell::RefCell, collections::BTreeMap, fs, io, path::Path};

use fide_bpf::XdpFacts;
use tempfile::TempDir;

use crate::{
    doctor::Host,
    machine::{Channels, ClockRate, Coalesce, Machine, Qdisc},
    roots::Roots,
};

/// A tree of files like a kernel's.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Four cores, two of them isolated, with all settings as FiDe and X-Lane want them for core 3.
    pub(crate) fn good() -> Self {
        let tree = Self::empty();
        for (path, text) in GOOD {
            tree.put(path, text);
        }
        fs::create_dir_all(tree.0.path().join("sys/devices/system/cpu/cpu3/cpuidle")).expect("made");
        tree.put("dev/cpu_dma_latency", "");
        let msr = [&[0; 0x34], 0u64.to_ne_bytes().as_slice()].concat();
        fs::create_dir_all(tree.0.path().join("dev/cpu/3")).expect("made");
        fs::write(tree.0.path().join("dev/cpu/3/msr"), msr).expect("written");
        tree
    }

    /// The same machine as it comes out of the box.
    pub(crate) fn bad() -> Self {
        let tree = Self::good();
        for (path, text) in BAD {
            tree.put(path, text);
        }
        fs::remove_file(tree.0.path().join("dev/cpu_dma_latency")).expect("removed");
        let msr = [&[0; 0x34], 7u64.to_ne_bytes().as_slice()].concat();
        fs::write(tree.0.path().join("dev/cpu/3/msr"), msr).expect("written");
        tree
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }

    pub(crate) fn take(&self, path: &str) {
        fs::remove_file(self.0.path().join(path)).expect("removed");
    }

    pub(crate) fn get(&self, path: &str) -> String {
        fs::read_to_string(self.0.path().join(path)).expect("read")
    }

    /// Every file except those of `dev`, and its content.
    pub(crate) fn all(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        collect(self.0.path(), self.0.path(), &mut files);
        files.retain(|path, _| !path.starts_with("dev/"));
        files
    }

    pub(crate) fn host<'a>(&self, machine: &'a dyn Machine) -> Host<'a> {
        Host {
            roots: Roots::under(self.0.path()),
            machine,
            core: 3,
            interfaces: vec!["eth0".to_owned()],
            drift_ppm: 200,
        }
    }
}

fn collect(root: &Path, dir: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
            files.insert(name, String::from_utf8_lossy(&fs::read(&path).expect("read")).into_owned());
        }
    }
}

const GOOD: &[(&str, &str)] = &[
    ("proc/cmdline", "quiet isolcpus=2-3 nohz_full=2-3 rcu_nocbs=2-3 preempt=full\n"),
    ("proc/cpuinfo", "vendor_id : GenuineIntel\nflags\t\t: fpu tsc msr\n"),
    ("proc/stat", "cpu 1 2 3 4 5 6 7 0 0 0\ncpu3 1 2 3 4 5 6 7 0 0 0\n"),
    ("proc/swaps", "Filename Type Size Used Priority\n"),
    (
        "proc/interrupts",
        "      CPU0 CPU1 CPU2 CPU3\n 24: 1 0 0 0 PCI-MSIX nvme0q0\n 25: 9 9 0 0 PCI-MSIX eth0-rx-0\nLOC: 1 1 1 1 Local timer\n",
    ),
    ("proc/irq/default_smp_affinity", "3\n"),
    ("proc/irq/9/smp_affinity", "f\n"),
    ("proc/irq/24/smp_affinity", "1\n"),
    ("proc/irq/24/effective_affinity", "1\n"),
    ("proc/irq/24/nvme0q0/x", ""),
    ("proc/irq/25/smp_affinity", "00000003\n"),
    ("proc/irq/25/effective_affinity", "1\n"),
    ("proc/2/status", "Name:\tkthreadd\nPPid:\t0\nCpus_allowed_list:\t0-1\n"),
    ("proc/15/status", "Name:\tmigration/3\nPPid:\t2\nCpus_allowed_list:\t3\n"),
    ("proc/16/status", "Name:\tkworker/u8:0\nPPid:\t2\nCpus_allowed_list:\t0-3\n"),
    ("proc/self/status", "Name:\tfide\nPPid:\t1\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-3\n"),
    ("proc/self/limits", "Limit Soft\nMax locked memory 65536 65536 bytes\nMax realtime priority 0 0\n"),
    ("proc/sys/kernel/osrelease", "6.18.0\n"),
    ("proc/sys/kernel/random/boot_id", "boot-1\n"),
    ("proc/sys/kernel/nmi_watchdog", "0\n"),
    ("proc/sys/kernel/soft_watchdog", "1\n"),
    ("proc/sys/kernel/watchdog", "1\n"),
    ("proc/sys/kernel/watchdog_cpumask", "0-1\n"),
    ("proc/sys/kernel/numa_balancing", "0\n"),
    ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
    ("proc/sys/kernel/sched_rt_period_us", "1000000\n"),
    ("proc/sys/vm/nr_hugepages", "8\n"),
    ("proc/sys/net/core/netdev_budget", "300\n"),
    ("proc/sys/net/core/netdev_budget_usecs", "2000\n"),
    ("proc/sys/net/core/busy_poll", "0\n"),
    ("proc/sys/net/core/busy_read", "0\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/isolated", "2-3\n"),
    ("sys/devices/system/cpu/nohz_full", "2-3\n"),
    ("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n"),
    ("sys/devices/system/cpu/cpuidle/current_governor", "menu\n"),
    ("sys/devices/system/cpu/cpu3/cpuidle/state0/name", "POLL\n"),
    ("sys/devices/system/cpu/cpu3/cpuidle/state0/latency", "0\n"),
    ("sys/devices/system/cpu/cpu3/cpuidle/state0/disable", "0\n"),
    ("sys/devices/system/cpu/cpu3/cpuidle/state1/name", "C6\n"),
    ("sys/devices/system/cpu/cpu3/cpuidle/state1/latency", "133\n"),
    ("sys/devices/system/cpu/cpu3/cpuidle/state1/disable", "1\n"),
    ("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpufreq/policy3/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpufreq/policy3/scaling_available_governors", "performance powersave\n"),
    ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "3\n"),
    ("sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI\n"),
    ("sys/devices/system/cpu/vulnerabilities/mds", "Not affected\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("sys/devices/system/node/online", "0-1\n"),
    ("sys/devices/system/node/node0/cpulist", "0-1\n"),
    ("sys/devices/system/node/node1/cpulist", "2-3\n"),
    ("sys/devices/virtual/workqueue/cpumask", "3\n"),
    ("sys/module/rcupdate/parameters/rcu_cpu_stall_suppress", "1\n"),
    ("sys/module/rcupdate/parameters/rcu_cpu_stall_timeout", "21\n"),
    ("sys/kernel/debug/sched/preempt", "none voluntary (full) lazy\n"),
    ("sys/kernel/debug/sched/fair_server/cpu3/runtime", "50000000\n"),
    ("sys/kernel/debug/sched/fair_server/cpu3/period", "1000000000\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never\n"),
    ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
    ("sys/class/net/eth0/flags", "0x1003\n"),
    ("sys/class/net/lo/flags", "0x9\n"),
    ("sys/class/net/eth1/flags", "0x1002\n"),
    ("sys/class/net/eth0/ifindex", "2\n"),
    ("sys/class/net/eth0/device/numa_node", "1\n"),
    ("sys/class/net/eth0/queues/rx-0/rps_cpus", "00000000\n"),
    ("sys/class/net/eth0/queues/rx-1/rps_cpus", "00000000\n"),
    ("sys/class/net/eth0/queues/tx-0/xps_cpus", "7\n"),
    ("sys/class/net/eth0/queues/tx-1/xps_cpus", "8\n"),
];

/// The files that differ. Bracketed choices are written as the one word that writing them leaves in a plain
/// file.
const BAD: &[(&str, &str)] = &[
    ("proc/cmdline", "quiet\n"),
    ("proc/cpuinfo", "vendor_id : GenuineIntel\nflags\t\t: fpu tsc hypervisor\n"),
    ("proc/stat", "cpu3 1 2 3 4 5 6 7 99 0 0\n"),
    ("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"),
    ("proc/irq/default_smp_affinity", "f\n"),
    ("proc/irq/24/smp_affinity", "8\n"),
    ("proc/irq/24/effective_affinity", "8\n"),
    ("proc/irq/25/smp_affinity", "0000000f\n"),
    ("proc/irq/25/effective_affinity", "00000002\n"),
    ("proc/2/status", "Name:\tkthreadd\nPPid:\t0\nCpus_allowed_list:\t0-3\n"),
    ("proc/self/status", "Name:\tfide\nPPid:\t1\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-2\n"),
    ("proc/sys/kernel/nmi_watchdog", "1\n"),
    ("proc/sys/kernel/watchdog_cpumask", "0-3\n"),
    ("proc/sys/kernel/numa_balancing", "1\n"),
    ("proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
    ("proc/sys/vm/nr_hugepages", "0\n"),
    ("proc/sys/net/core/netdev_budget_usecs", "8000\n"),
    ("proc/sys/net/core/busy_poll", "50\n"),
    ("sys/devices/system/cpu/isolated", "\n"),
    ("sys/devices/system/cpu/nohz_full", "(null)\n"),
    ("sys/devices/system/cpu/cpu3/cpuidle/state1/disable", "0\n"),
    ("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave\n"),
    ("sys/devices/system/cpu/cpufreq/policy3/scaling_governor", "powersave\n"),
    ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "1,3\n"),
    ("sys/devices/system/cpu/vulnerabilities/mds", "Mitigation: Clear CPU buffers; SMT vulnerable\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
    ("sys/devices/virtual/workqueue/cpumask", "f\n"),
    ("sys/module/rcupdate/parameters/rcu_cpu_stall_suppress", "0\n"),
    ("sys/kernel/debug/sched/preempt", "(none) voluntary full lazy\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n"),
    ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n"),
    ("sys/class/net/eth0/device/numa_node", "0\n"),
    ("sys/class/net/eth0/queues/rx-1/rps_cpus", "0000000c\n"),
    ("sys/class/net/eth0/queues/tx-0/xps_cpus", "f\n"),
];

/// A made-up card and network stack.
pub(crate) struct MadeUp {
    pub(crate) coalesce: RefCell<Coalesce>,
    pub(crate) qdisc: RefCell<Qdisc>,
    pub(crate) queues: u32,
    pub(crate) features: u64,
    pub(crate) tick_ns: u64,
    pub(crate) off_ppm: u64,
}

impl MadeUp {
    pub(crate) fn good() -> Self {
        Self {
            coalesce: RefCell::new(Coalesce::of(0, 1, false)),
            qdisc: RefCell::new(Qdisc { kind: "pfifo_fast".into(), by_default: true }),
            queues: 2,
            features: 0xf,
            tick_ns: 10_000_000,
            off_ppm: 12,
        }
    }

    pub(crate) fn bad() -> Self {
        Self {
            coalesce: RefCell::new(Coalesce::of(50, 64, true)),
            qdisc: RefCell::new(Qdisc { kind: "fq_codel".into(), by_default: true }),
            queues: 1,
            features: 0,
            tick_ns: 1_000_000,
            off_ppm: 431,
        }
    }
}

impl Machine for MadeUp {
    fn coalesce(&self, _: &str) -> io::Result<Coalesce> {
        Ok(self.coalesce.borrow().clone())
    }

    fn set_coalesce(&self, _: &str, wanted: &Coalesce) -> io::Result<()> {
        self.coalesce.replace(wanted.clone());
        Ok(())
    }

    fn channels(&self, _: &str) -> io::Result<Channels> {
        Ok(Channels { combined_max: 2, combined: self.queues, ..Channels::default() })
    }

    fn driver(&self, _: &str) -> io::Result<String> {
        Ok("made_up".to_owned())
    }

    fn xdp(&self, _: &str) -> io::Result<XdpFacts> {
        Ok(XdpFacts { attached: None, features: self.features })
    }

    fn qdisc(&self, _: &str) -> io::Result<Qdisc> {
        Ok(self.qdisc.borrow().clone())
    }

    fn set_qdisc(&self, _: &str, kind: Option<&str>) -> io::Result<()> {
        self.qdisc.replace(match kind {
            Some(kind) => Qdisc { kind: kind.to_owned(), by_default: false },
            None => Qdisc { kind: "fq_codel".to_owned(), by_default: true },
        });
        Ok(())
    }

    fn tick_ns(&self) -> io::Result<u64> {
        Ok(self.tick_ns)
    }

    fn clock_rate(&self) -> io::Result<ClockRate> {
        Ok(ClockRate { off_ppm: self.off_ppm, synchronized: true })
    }
}
