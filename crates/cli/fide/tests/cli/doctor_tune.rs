// SPDX-License-Identifier: Apache-2.0
//! `fide doctor` and `fide tune`, on a copy of a host and, as root, on this one.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use fide_host_tuning::doctor;
use serde_json::Value;
use tempfile::TempDir;

fn fide(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide"));
    command.args(arguments);
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("fide runs");
    assert!(output.status.code().is_some(), "{output:?}");
    output
}

fn json(command: &mut Command) -> (Value, i32) {
    let output = run(command);
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (value, output.status.code().expect("an exit code"))
}

/// A copy of a host with many interrupts.
fn copy() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    };
    for irq in 0..400 {
        put(&format!("proc/irq/{irq}/smp_affinity"), "0000000f\n");
        put(&format!("proc/irq/{irq}/effective_affinity"), "00000002\n");
        put(&format!("proc/irq/{irq}/device{irq}/x"), "");
    }
    put("proc/irq/default_smp_affinity", "f\n");
    put("proc/sys/kernel/random/boot_id", "boot-1\n");
    put("proc/sys/kernel/nmi_watchdog", "1\n");
    put("proc/sys/kernel/sched_rt_runtime_us", "-1\n");
    put("proc/sys/kernel/sched_rt_period_us", "1000000\n");
    put("sys/devices/system/cpu/online", "0-3\n");
    put("sys/devices/virtual/workqueue/cpumask", "f\n");
    dir
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("listed") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files.insert(path.clone(), fs::read(path).expect("read"));
            }
        }
    }
    files
}

/// `fide tune` on a copy, or on this host.
fn tune(root: Option<&Path>, state: &Path, what: &[&str]) -> Command {
    let mut command = fide(&["tune"]);
    command.args(what).arg("--state-dir").arg(state);
    if let Some(root) = root {
        command.args(["--core", "3", "--root"]).arg(root);
    }
    command
}

/// A state directory that a failing test keeps if it still holds former values.
struct State(TempDir, Option<PathBuf>);

impl State {
    fn new(root: Option<&Path>) -> Self {
        Self(tempfile::tempdir().expect("a directory"), root.map(Path::to_owned))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let undone = tune(self.1.as_deref(), self.path(), &["--undo", "--force"]).output();
        if !undone.is_ok_and(|output| output.status.success()) {
            self.0.disable_cleanup(true);
            println!("not all is restored: `fide tune --undo --state-dir {}`", self.path().display());
        }
    }
}

/// Starts an apply, kills it after a time that differs from round to round, and undoes it. Returns
/// whether it was killed in the middle.
fn killed_and_undone(root: Option<&Path>, round: u32) -> bool {
    let state = State::new(root);
    let mut child =
        tune(root, state.path(), &["--apply"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("fide runs");
    // Waits for the first line of the journal, so that most of the kills meet a change.
    let journal = state.path().join("tune-undo.jsonl");
    while !journal.exists() && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_micros(50));
    }
    std::thread::sleep(Duration::from_micros(u64::from(round * 1777 % 23_000)));
    child.kill().expect("killed, or ended");
    let cut_off = !child.wait().expect("a child").success();
    let (undone, code) = json(tune(root, state.path(), &["--undo", "--json"]).stderr(Stdio::inherit()));
    assert_eq!((code, &undone["complete"]), (0, &Value::Bool(true)), "round {round}: {undone:#}");
    cut_off
}

#[test]
fn killed_apply_is_undone() {
    let copy = copy();
    let before = files(copy.path());
    let mut killed = 0;
    for round in 0..20 {
        killed += u32::from(killed_and_undone(Some(copy.path()), round));
        assert_eq!(files(copy.path()), before, "round {round}");
    }
    assert!(killed > 0, "none was killed in the middle");
}

#[test]
fn killed_undo_is_continued() {
    let copy = copy();
    let before = files(copy.path());
    let state = tempfile::tempdir().expect("a directory");
    let undo = || tune(Some(copy.path()), state.path(), &["--undo"]);
    assert!(run(&mut tune(Some(copy.path()), state.path(), &["--apply"])).status.success());
    assert_ne!(files(copy.path()), before);
    for round in 0..10 {
        let mut child = undo().stdout(Stdio::null()).spawn().expect("fide runs");
        std::thread::sleep(Duration::from_micros(round * 900));
        child.kill().expect("killed, or ended");
        child.wait().expect("a child");
    }
    assert!(run(&mut undo()).status.success());
    assert_eq!(files(copy.path()), before);
    let nothing = run(&mut undo());
    assert!(nothing.status.success());
    assert!(String::from_utf8_lossy(&nothing.stdout).contains("nothing to undo"), "{nothing:?}");
}

#[test]
fn faults_have_the_right_exit_code() {
    let copy = copy();
    let root = copy.path().to_str().expect("text");
    for (arguments, code, words) in [
        (&["tune"][..], 2, "--plan"),
        (&["tune", "--plan", "--apply"], 2, "cannot be used with"),
        (&["tune", "--plan", "--skip", "nonsense"], 2, "irq-affinity"),
        (&["tune", "--plan", "--root", root, "--core", "7"], 2, "0-3"),
        (&["doctor", "--no-measure", "--root", root, "--core", "3", "--interface", "eth7"], 2, "eth7"),
        (&["doctor", "--root", "/nowhere"], 3, "is this a Linux host?"),
        (&["doctor", "--config", "/nowhere/fide.toml"], 2, "/nowhere/fide.toml"),
        (&["tune", "--boot", "--root", "/nowhere"], 1, "not there"),
    ] {
        let output = run(&mut fide(arguments));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(words), "{arguments:?}: {output:?}");
    }
}

#[test]
fn named_file_without_an_end_is_not_read_to_its_end() {
    let copy = copy();
    let root = copy.path().to_str().expect("text");
    let output = run(&mut fide(&["doctor", "--root", root, "--core", "3", "--bound-file", "/dev/zero"]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("BOUND none: /dev/zero: the file is too long"), "{output:?}");
    let state = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink("/dev/zero", state.path().join("tune-undo.jsonl")).expect("linked");
    for what in ["--undo", "--apply"] {
        let output = run(&mut tune(Some(copy.path()), state.path(), &[what]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && said.contains("tune-undo.jsonl: the file is too long"),
            "{output:?}"
        );
    }
}

#[test]
fn a_doctor_of_a_copy_has_all_conditions() {
    let copy = copy();
    let root = copy.path().to_str().expect("text");
    let (report, code) = json(&mut fide(&["doctor", "--json", "--root", root, "--core", "3"]));
    assert_eq!(report["drift"]["ppm"], 200, "{}", report["drift"]);
    assert_eq!(code, 1, "something is bad");
    all_conditions(&report);
    let text = run(&mut fide(&["doctor", "--root", root, "--core", "3"]));
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let bad = text.find("\nBAD\n").expect("bad ones");
    assert!(bad < text.find("\nUNKNOWN\n").expect("unknown ones"), "bad ones come first");
    assert!(text.contains("no limit (-1)"), "{text}");
}

#[test]
fn boot_settings_are_printed_and_not_applied() {
    let copy = copy();
    let (root, out) = (copy.path().to_str().expect("text"), tempfile::tempdir().expect("a directory"));
    let before = files(copy.path());
    let dir = out.path().to_str().expect("text");
    let output = run(&mut fide(&["tune", "--boot", "--root", root, "--core", "3", "--boot-dir", dir]));
    assert!(output.status.success(), "{output:?}");
    let grub = fs::read_to_string(out.path().join("grub.d/fide.cfg")).expect("written");
    assert!(grub.contains("isolcpus=managed_irq,domain,3 nohz_full=3 rcu_nocbs=3 irqaffinity=0-2"), "{grub}");
    let tuned = fs::read_to_string(out.path().join("tuned/fide/tuned.conf")).expect("written");
    assert!(tuned.contains("[bootloader]") && !tuned.contains("sched_rt_runtime"), "{tuned}");
    assert_eq!(files(copy.path()), before);
}

fn all_conditions(report: &Value) {
    let conditions = report["conditions"].as_array().expect("a list");
    for id in doctor::ids() {
        let condition = conditions.iter().find(|condition| condition["id"] == id);
        let condition = condition.unwrap_or_else(|| panic!("{id} is missing"));
        for key in ["group", "title", "verdict", "found", "wanted", "cost", "how", "change"] {
            let text = condition[key].as_str().unwrap_or_else(|| panic!("{id} has no {key}"));
            assert!(!text.is_empty() && !text.contains('{'), "{id}: {key} is {text:?}");
        }
    }
}

/// Runs the doctor on this host, always on the same interfaces and without an agent: other tests run here
/// too.
struct Looker {
    dir: TempDir,
    interfaces: Vec<String>,
    /// There is only one host, and some of these tests change it.
    _alone: MutexGuard<'static, ()>,
}

impl Looker {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root may tune a host");
            return None;
        }
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let dir = tempfile::tempdir().expect("a directory");
        let mut looker = Self { dir, interfaces: Vec::new(), _alone: alone };
        let interfaces = looker.look(&["--no-measure"])["host"]["interfaces"].take();
        looker.interfaces = serde_json::from_value(interfaces).expect("a list");
        Some(looker)
    }

    fn look(&self, more: &[&str]) -> Value {
        let mut command = fide(&["doctor", "--json"]);
        command.args(more).arg("--bound-file").arg(self.dir.path().join("bound.toml"));
        command.arg("--socket").arg(self.dir.path().join("no.sock"));
        for interface in &self.interfaces {
            command.arg("--interface").arg(interface);
        }
        let (mut report, _) = json(&mut command);
        all_conditions(&report);
        // Kernel threads are not tuned, and other programs make the kernel start and stop some.
        let conditions = report["conditions"].as_array_mut().expect("a list");
        conditions.retain(|condition| condition["id"] != "kernel-threads");
        report
    }

    /// Settings that only a change of the host may change.
    fn settings(&self) -> Value {
        self.look(&["--no-measure"])
    }
}

#[test]
fn root_tune_and_undo_leave_the_doctor_as_it_was() {
    let Some(looker) = Looker::new() else { return };
    let state = State::new(None);
    let before = looker.settings();
    assert_eq!(before, looker.settings(), "two looks are equal");
    let (applied, _) = json(&mut tune(None, state.path(), &["--apply", "--json"]));
    let changed = applied["changes"].as_array().expect("a list").iter();
    let changed = changed.filter(|change| change["outcome"] == "applied").count();
    let during = looker.settings();
    let (undone, code) = json(&mut tune(None, state.path(), &["--undo", "--json"]));
    assert_eq!((code, &undone["complete"]), (0, &Value::Bool(true)), "{undone:#}");
    assert_eq!(looker.settings(), before);
    println!("{changed} changes were made and restored");
    assert_eq!(changed > 0, during != before, "what is changed is seen");
}

#[test]
fn root_killed_tune_is_undone() {
    let Some(looker) = Looker::new() else { return };
    let before = looker.settings();
    let killed = (0..8).filter(|round| killed_and_undone(None, *round)).count();
    assert_eq!(looker.settings(), before, "after {killed} kills");
    println!("{killed} of 8 were killed in the middle");
}

#[test]
fn root_measured_bound_is_read_back() {
    let Some(looker) = Looker::new() else { return };
    let report = looker.look(&[]);
    let measured = &report["measured"];
    assert!(measured["core"]["wake_up"]["n"].as_u64() > Some(0), "{measured:#}");
    assert_eq!(measured["bound"]["state"], "held");
    let again = looker.settings();
    assert_eq!(again["measured"]["core"], Value::Null);
    assert_eq!(again["measured"]["bound"]["bound"], measured["bound"]["bound"]);
    for key in ["version", "host", "summary", "conditions", "rungs"] {
        assert_eq!(again[key], report[key], "only what is measured differs");
    }
}
