// SPDX-License-Identifier: Apache-2.0

use std::{fs, os::unix::fs::PermissionsExt};

use super::*;
use crate::{
    doctor::conditions,
    machine::Copy,
    made_up::{MadeUp, Tree},
};
use journal::{FILE, Lock};

/// A made-up host and its state directory.
struct Rig {
    tree: Tree,
    machine: MadeUp,
    state: tempfile::TempDir,
}

const BOOT: &str = "boot-1";

impl Rig {
    fn new() -> Self {
        let tree = Tree::bad();
        // A plain file keeps what is written; the kernel's file would keep its brackets.
        tree.put("sys/kernel/mm/transparent_hugepage/enabled", "always\n");
        tree.put("sys/kernel/debug/sched/preempt", "none of full\n");
        Self { tree, machine: MadeUp::bad(), state: tempfile::tempdir().expect("a directory") }
    }

    fn host(&self) -> Host<'_> {
        self.tree.host(&self.machine)
    }

    fn plan(&self) -> Plan {
        plan(&self.host(), &Options::default())
    }

    fn lock(&self) -> Lock {
        Lock::take(self.state.path()).expect("a lock")
    }

    fn apply(&self) -> Vec<Outcome> {
        let lock = self.lock();
        let mut journal = Journal::open(&lock, BOOT, 3).expect("a journal");
        apply(&self.host(), &self.plan(), &mut journal).expect("applied")
    }

    fn undo(&self, boot: &str, force: bool) -> Undone {
        undo(&self.machine, &self.lock(), boot, force).expect("undone")
    }

    fn journal(&self) -> Vec<u8> {
        fs::read(self.state.path().join(FILE)).expect("a journal")
    }

    /// Everything that a tune could change, without white space at the ends.
    fn state(&self) -> (Vec<(String, String)>, String, String) {
        let files = self.tree.all().into_iter().map(|(path, text)| (path, text.trim().to_owned())).collect();
        let (coalesce, qdisc) = (self.machine.coalesce.borrow(), self.machine.qdisc.borrow());
        (files, coalesce.to_string(), qdisc.to_string())
    }

    fn doctor(&self) -> String {
        serde_json::to_string_pretty(&conditions(&self.host())).expect("JSON")
    }
}

#[test]
fn the_plan_of_a_host_out_of_the_box() {
    let rig = Rig::new();
    let plan = rig.plan();
    let changes: Vec<_> =
        plan.changes.iter().map(|change| (change.id, change.from.as_str(), change.shown_to())).collect();
    let is = |id, from, to: &str| (id, from, to.to_owned());
    assert_eq!(
        changes,
        [
            is("irq-affinity", "8", "7"),
            is("irq-affinity", "0000000f", "7"),
            is("default-irq-affinity", "f", "7"),
            is("workqueues", "f", "7"),
            is("soft-watchdog", "0-3", "0-2"),
            is("nmi-watchdog", "1", "0"),
            is("rcu-stall", "0", "1"),
            is("numa-balancing", "1", "0"),
            is("preemption", "none of full", "full"),
            is("governor", "powersave", "performance"),
            is("transparent-huge-pages", "always", "madvise"),
            is("netdev-budget", "8000", "2000"),
            is(
                "coalescing",
                "receive 50 us or 64 frames, send 50 us or 64 frames, adaptive",
                "receive 0 us or 1 frames, send 50 us or 64 frames"
            ),
            is("queue-steering", "0000000c", "4"),
            is("queue-steering", "f", "7"),
            is("qdisc", "fq_codel (the kernel's default)", "pfifo_fast"),
        ]
    );
    assert!(plan.left.iter().any(|left| left.id == "cpusets"));
    let skipped = super::plan(&rig.host(), &Options { skip: vec!["qdisc".into()], ..Options::default() });
    assert_eq!(skipped.changes.len(), plan.changes.len() - 1);
}

#[test]
fn no_plan_touches_the_real_time_limit() {
    let cpusets = Options { cpusets: true, ..Options::default() };
    for tree in [Tree::good(), Tree::bad(), Tree::empty()] {
        for runtime in ["-1", "0", "950000", "1000000"] {
            tree.put("proc/sys/kernel/sched_rt_runtime_us", runtime);
            for options in [&Options::default(), &cpusets] {
                let plan = plan(&tree.host(&MadeUp::bad()), options);
                for change in &plan.changes {
                    assert!(!change.target.to_string().contains("sched_rt"), "{change:?}");
                    assert!(!change.to.iter().any(|to| to.trim() == "-1"), "{change:?}");
                }
            }
        }
    }
}

#[test]
fn a_good_host_needs_no_change() {
    let tree = Tree::good();
    assert_eq!(plan(&tree.host(&MadeUp::good()), &Options::default()).changes, []);
}

#[test]
fn undo_restores_former_values() {
    let rig = Rig::new();
    let (before, doctor) = (rig.state(), rig.doctor());
    let outcomes = rig.apply();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Applied), "{outcomes:?}");
    assert_ne!(rig.state(), before);
    assert_eq!(rig.plan().changes, [], "there is nothing left to do");
    let undone = rig.undo(BOOT, false);
    assert!(undone.complete() && undone.journal && undone.restored.len() == outcomes.len(), "{undone:?}");
    assert_eq!(rig.state(), before);
    assert_eq!(rig.doctor(), doctor);
    assert_eq!(rig.tree.get("proc/irq/25/smp_affinity"), "0000000f\n", "to the byte");
    assert!(!rig.state.path().join(FILE).exists());
    let again = rig.undo(BOOT, false);
    assert!(again.complete() && !again.journal, "nothing to undo is no fault");
}

#[test]
fn an_interrupt_goes_back_by_way_of_where_it_was() {
    let rig = Rig::new();
    rig.apply();
    let contents = rig.lock().read().expect("read").expect("a journal");
    let ways: Vec<_> = contents.entries.iter().take(2).map(|entry| entry.by_way_of.as_deref()).collect();
    assert_eq!(ways, [None, Some("00000002\n")], "of one core there is only one way");
    // A crash between the two writes of the way back must not look like a change by somebody else.
    rig.tree.put("proc/irq/25/smp_affinity", "00000002\n");
    assert!(rig.undo(BOOT, false).complete());
    assert_eq!(rig.tree.get("proc/irq/25/smp_affinity"), "0000000f\n");
}

#[test]
fn a_second_apply_keeps_the_first_values() {
    let rig = Rig::new();
    let before = rig.state();
    rig.apply();
    // Somebody sets other values, which the second tune changes again.
    rig.tree.put("proc/sys/kernel/watchdog_cpumask", "1-3\n");
    rig.machine.coalesce.replace(crate::machine::Coalesce::of(7, 7, true));
    let outcomes = rig.apply();
    assert_eq!(outcomes.len(), 2);
    assert!(rig.undo(BOOT, false).complete());
    assert_eq!(rig.state(), before);
}

#[test]
fn values_changed_by_others_are_left_alone_and_reported() {
    let rig = Rig::new();
    let before = rig.state();
    rig.apply();
    rig.tree.put("proc/sys/net/core/netdev_budget_usecs", "5000\n");
    rig.tree.put("proc/sys/kernel/nmi_watchdog", "1\n");
    let undone = rig.undo(BOOT, false);
    let left: Vec<_> = undone.restored.iter().filter(|(.., what)| matches!(what, Restored::LeftAlone { .. })).collect();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].3, Restored::LeftAlone { found: "5000".into(), set: "2000".into() });
    assert!(undone.restored.iter().any(|(id, .., what)| id == "nmi-watchdog" && *what == Restored::Already));
    assert!(!undone.complete());
    assert_eq!(rig.tree.get("proc/sys/net/core/netdev_budget_usecs"), "5000\n");
    assert!(rig.undo(BOOT, true).complete(), "unless it is forced");
    assert_eq!(rig.state(), before);
}

#[test]
fn missing_settings_need_no_undo() {
    let rig = Rig::new();
    rig.apply();
    rig.tree.take("proc/irq/24/smp_affinity");
    let undone = rig.undo(BOOT, false);
    assert!(undone.complete());
    assert!(undone.restored.iter().any(|(.., what)| *what == Restored::Gone));
}

#[test]
fn a_reboot_makes_a_journal_void() {
    let rig = Rig::new();
    rig.apply();
    let after = rig.state();
    let undone = rig.undo("boot-2", false);
    assert!(undone.void && undone.complete() && undone.restored.is_empty());
    assert_eq!(rig.state(), after, "nothing is touched");
    assert!(!rig.state.path().join(FILE).exists());
    // A journal that was left behind is replaced by the next apply.
    rig.tree.put("proc/sys/kernel/nmi_watchdog", "1\n");
    rig.apply();
    let lock = rig.lock();
    drop(Journal::open(&lock, "boot-2", 3).expect("a journal"));
    assert_eq!(lock.read().expect("read").expect("a journal").entries, []);
}

/// A journal that is cut off anywhere: every change whose first line is still there is restored, and a line
/// that is cut off is named.
#[test]
fn a_journal_cut_at_every_byte() {
    let rig = Rig::new();
    let before = rig.state();
    rig.apply();
    let (path, lines) = (rig.state.path().join(FILE), rig.journal());
    let entries = parse_all(&lines);
    for len in 0..=lines.len() {
        fs::write(&path, &lines[..len]).expect("cut");
        let undone = rig.undo(BOOT, false);
        assert!(undone.complete(), "{len}: {undone:?}");
        let complete = lines[..len].iter().filter(|byte| **byte == b'\n').count();
        let cut_off = len == 0 || lines[len - 1] != b'\n' && lines.get(len) != Some(&b'\n');
        let damaged = vec![(complete + 1, "it is cut off".to_owned())];
        assert_eq!(undone.damaged, if cut_off { damaged } else { vec![] }, "{len}");
        // The first line is the head; then there are two for each change.
        let begun = complete.saturating_sub(1).div_ceil(2);
        assert!(undone.restored.len() >= begun, "{len}: {} of {begun}", undone.restored.len());
        for entry in &entries[..undone.restored.len()] {
            let now = entry.target.read(&rig.machine).expect("a value");
            assert!(entry.target.same(&now, &entry.before), "{len}: {now} is not {}", entry.before);
        }
        if undone.restored.len() == entries.len() {
            assert_eq!(rig.state(), before, "{len}");
        }
        for entry in &entries {
            entry.target.write(&rig.machine, &entry.to[0]).expect("changed again");
        }
    }
}

#[test]
fn interrupted_apply_is_continued() {
    let whole = {
        let rig = Rig::new();
        rig.apply();
        rig.journal().len()
    };
    for len in (0..whole).step_by(97).chain([whole - 1]) {
        let rig = Rig::new();
        let before = rig.state();
        rig.apply();
        let (path, lines) = (rig.state.path().join(FILE), rig.journal());
        fs::write(&path, &lines[..len]).expect("cut");
        // A change that is not in the journal was not made either.
        let lock = rig.lock();
        let kept = lock.read().expect("read").expect("a journal").entries;
        for (index, change) in Rig::new().plan().changes.iter().enumerate().skip(kept.len()) {
            let entry = &parse_all(&lines)[index];
            entry.target.write(&rig.machine, &entry.before).expect("as it was");
            assert_eq!(entry.id, change.id);
        }
        match Journal::open(&lock, BOOT, 3) {
            Ok(mut journal) => {
                apply(&rig.host(), &rig.plan(), &mut journal).expect("applied");
                drop(lock);
                let contents = rig.lock().read().expect("read").expect("a journal");
                assert_eq!(contents.damaged, [], "{len}: the cut line is gone");
                assert!(rig.undo(BOOT, false).complete());
                assert_eq!(rig.state(), before, "{len}");
            }
            Err(error) => assert!(error.to_string().contains("line 1 is damaged"), "{len}: {error}"),
        }
    }
}

fn parse_all(lines: &[u8]) -> Vec<journal::Entry> {
    lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[test]
fn a_damaged_line_in_the_middle_stops_the_next_apply_but_not_the_undo() {
    let rig = Rig::new();
    rig.apply();
    let path = rig.state.path().join(FILE);
    let text = String::from_utf8(rig.journal()).expect("text");
    let mut lines: Vec<&str> = text.lines().collect();
    lines[3] = "garbage";
    fs::write(&path, lines.join("\n") + "\n").expect("written");
    let error = Journal::open(&rig.lock(), BOOT, 3).expect_err("refused").to_string();
    assert!(error.contains("line 4") && error.contains("--undo"), "{error}");
    let undone = rig.undo(BOOT, false);
    assert_eq!((undone.damaged.len(), undone.damaged[0].0), (1, 4));
    assert_eq!(undone.restored.len(), lines.len() / 2 - 1, "all but the one of that line");
}

#[test]
fn a_journal_of_another_version_is_not_touched() {
    let rig = Rig::new();
    fs::write(rig.state.path().join(FILE), "{\"fide_tune_undo\":9,\"boot_id\":\"boot-1\",\"core\":3}\n")
        .expect("written");
    let error = undo(&rig.machine, &rig.lock(), BOOT, true).expect_err("refused").to_string();
    assert!(error.contains("version 9"), "{error}");
}

/// Everybody who may read a file may lock it.
#[test]
fn lock_is_for_its_owner_alone() {
    let rig = Rig::new();
    let path = rig.state.path().join("tune.lock");
    let mode = || fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
    drop(rig.lock());
    assert_eq!(mode(), 0o600);
    // The lock file of an earlier version.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
    drop(rig.lock());
    assert_eq!(mode(), 0o600);
}

#[test]
fn two_at_once_are_refused() {
    let rig = Rig::new();
    let _lock = rig.lock();
    assert!(matches!(Lock::take(rig.state.path()), Err(JournalError::Busy(_))));
}

#[test]
fn a_refusal_is_said_and_the_rest_is_done() {
    let rig = Rig::new();
    let plan = rig.plan();
    // The file does not exist any more.
    rig.tree.take("proc/irq/24/smp_affinity");
    // A copy has no card.
    let host = Host { machine: &Copy, ..rig.host() };
    let lock = rig.lock();
    let mut journal = Journal::open(&lock, BOOT, 3).expect("a journal");
    let outcomes = apply(&host, &plan, &mut journal).expect("applied");
    let refused: Vec<_> = plan
        .changes
        .iter()
        .zip(&outcomes)
        .filter(|(_, outcome)| matches!(outcome, Outcome::Refused(_)))
        .map(|(change, _)| change.id)
        .collect();
    assert_eq!(refused, ["irq-affinity", "coalescing", "qdisc"]);
    let contents = lock.read().expect("read").expect("a journal");
    assert_eq!(contents.entries.len(), outcomes.len() - 3);
}

#[test]
fn control_groups_of_version_2_only_when_asked_for() {
    let rig = Rig::new();
    let cpusets = |tree: &Tree| {
        let plan = plan(&tree.host(&rig.machine), &Options { cpusets: true, ..Options::default() });
        let ids = |change: &&Change| change.id == "cpusets";
        let changes: Vec<_> = plan.changes.iter().filter(ids).map(|c| (c.from.clone(), c.shown_to())).collect();
        (changes, plan.left.iter().filter(|left| left.id == "cpusets").map(|left| left.why.clone()).collect::<Vec<_>>())
    };
    assert!(cpusets(&rig.tree).1[0].contains("version 2"));
    rig.tree.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu\n");
    rig.tree.put("sys/fs/cgroup/user.slice/cpuset.cpus", "\n");
    rig.tree.put("sys/fs/cgroup/a.slice/cpuset.cpus", "2-3\n");
    rig.tree.put("sys/fs/cgroup/fide.slice/cpuset.cpus", "\n");
    rig.tree.put("sys/fs/cgroup/system.slice/cpuset.cpus", "\n");
    rig.tree.put("sys/fs/cgroup/system.slice/fide-agent.service/cgroup.procs", "");
    let (changes, left) = cpusets(&rig.tree);
    let is = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(changes, [is("2-3", "2"), is("nothing", "0-2")]);
    assert!(left.len() == 1 && left[0].contains("system.slice"), "{left:?}");
    rig.tree.put("proc/sys/kernel/osrelease", "6.1.0\n");
    assert!(cpusets(&rig.tree).1[0].contains("6.2"));
}
