// SPDX-License-Identifier: Apache-2.0
//! Control groups: one is made for a program, frozen, emptied and removed.
//!
//! A control group may outlive every process that would remove it: a pid namespace that ends takes `fide run`
//! and its warden along. The next `fide run` in the same place removes it ([`Places::sweep`]). A lock on the
//! group's directory shows whether a process still holds it.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};

use super::outside;
use crate::say::say;

/// Prefix of the names of all groups that are made here.
const PREFIX: &str = "fide-run-";
/// Other users cannot read the directory: a user that may read it could lock it, and so prevent every sweep.
/// Files in it can still be opened by name: a program that runs as another user reads its limits there.
const MODE: u32 = 0o711;
/// How long a group is emptied before it is left as it is: a large process takes a while to die.
const EMPTY_LIMIT: Duration = Duration::from_secs(10);
/// Between two passes.
const EMPTY_LOOK: Duration = Duration::from_millis(2);
/// Passes of one kill.
const KILL_PASSES_MAX: usize = 8;
/// Passes without freezing, in version 1. Later passes freeze first, because frozen processes do not fork;
/// but if this process is killed between freeze and thaw, it leaves processes that cannot die.
const UNFROZEN_PASSES: usize = 4;
/// Checks whether all processes of a group are frozen; a process that waits for its disk takes a while.
const FROZEN_LOOKS_MAX: usize = 20;
/// Nested groups that are visited in one pass.
const NESTED_MAX: usize = 1024;
/// Other groups that one sweep visits.
const SWEEP_MAX: usize = 256;
/// Attempts to make a group that a sweep removes before the program is in it.
const MAKE_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V2,
    V1,
}

/// Where a group may be made, the best first.
#[derive(Debug)]
pub(super) struct Places {
    /// The directory that a group of each version would have.
    dirs: Vec<(Version, PathBuf)>,
    /// Why a better place is missing.
    missing: String,
}

impl Places {
    /// Places for the program `pid`. Process ids of pid namespaces that share control groups collide, so a
    /// random number is added.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{PREFIX}{pid}-{:016x}", u64::from_ne_bytes(random));
        let mut places = Self { dirs: Vec::new(), missing: String::new() };
        for (version, parent) in [(Version::V2, parent_v2()), (Version::V1, parent_v1())] {
            match parent {
                Ok(parent) => places.dirs.push((version, parent.join(&name))),
                Err(error) => places.missing.push_str(&format!("{}: {error}; ", version.name())),
            }
        }
        Ok(places)
    }

    pub(super) fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.dirs.iter().map(|(_, dir)| dir.as_path())
    }

    /// Removes groups in the same place that no process holds any more, with their processes, and empty
    /// groups of earlier versions.
    pub(super) fn sweep(&self) {
        for parent in self.dirs().filter_map(Path::parent) {
            let entries = fs::read_dir(parent).into_iter().flatten().flatten();
            let of_run = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
            for entry in of_run.take(SWEEP_MAX) {
                let dir = entry.path();
                let has_lock = is_locked_by_its_holder(&entry.file_name().to_string_lossy());
                if !is_populated(&dir) {
                    // The program may have left its group, and still be held.
                    if !has_lock || is_orphan(&dir) {
                        let _ = remove_tree(&dir);
                    }
                } else if has_lock && is_orphan(&dir) {
                    say!(
                        "fide: control group {} is what a killed `fide run` left; what is in it is killed",
                        dir.display()
                    );
                    end(&dir);
                }
            }
        }
    }

    /// Makes the best available group with the process `pid` in it, or says why there is none.
    pub(super) fn make(&self, pid: u32) -> Result<Group, String> {
        let mut missing = self.missing.clone();
        for (version, dir) in &self.dirs {
            let mut made = Group::make(*version, dir, pid);
            for _ in 1..MAKE_MAX {
                // A concurrent sweep came between the group's creation and its lock, or checked the lock just
                // then.
                match &made {
                    Err(error) if is_gone(error) || error.kind() == io::ErrorKind::WouldBlock => {
                        std::thread::sleep(EMPTY_LOOK);
                        made = Group::make(*version, dir, pid);
                    }
                    _ => break,
                }
            }
            match made {
                Ok(group) => return Ok(group),
                Err(error) => missing.push_str(&format!("{}: {error}; ", version.name())),
            }
        }
        Err(missing)
    }
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Self::V2 => "cgroup v2",
            Self::V1 => "cgroup v1 freezer",
        }
    }

    /// The path of a process in the hierarchy of this version.
    fn path_of(self, pid: &str) -> io::Result<PathBuf> {
        match self {
            Self::V2 => path_of(pid, str::is_empty),
            Self::V1 => path_of(pid, is_freezer),
        }
    }
}

/// A control group with a program in it. The descriptors are open before they are needed: stopping is one system call.
#[derive(Debug)]
pub(super) struct Group {
    version: Version,
    dir: PathBuf,
    /// Its path in its hierarchy, as /proc/PID/cgroup of its processes shows it.
    path: PathBuf,
    /// `cgroup.freeze`, or `freezer.state`.
    freeze: File,
    /// `cgroup.kill` of version 2.
    kill: Option<File>,
    /// Made here: it is removed with this value, with all its processes.
    own: bool,
    /// The directory, locked while a process holds the program. Locked before a process is in it.
    held: Option<File>,
    /// All processes in it were killed.
    killed: AtomicBool,
}

impl Group {
    fn make(version: Version, dir: &Path, pid: u32) -> io::Result<Self> {
        DirBuilder::new().mode(MODE).create(dir)?;
        let made = Self::open(version, dir.to_owned(), PathBuf::new(), true);
        let mut group = made.inspect_err(|_| drop(fs::remove_dir(dir)))?;
        group.held = Some(hold(dir)?);
        fs::write(dir.join("cgroup.procs"), pid.to_string())?;
        group.path = version.path_of(&pid.to_string())?;
        Ok(group)
    }

    /// The version 2 group of a unit with main process `pid`: the group that systemd has `reported`, since
    /// systemd may put that process into a nested group (DelegateSubgroup=); otherwise the process' own
    /// group.
    pub(super) fn of_unit(pid: u32, reported: Option<&str>) -> io::Result<Self> {
        let of_process = Version::V2.path_of(&pid.to_string())?;
        let path = match reported {
            Some(reported) => PathBuf::from(reported.trim_start_matches('/')),
            None => of_process.clone(),
        };
        if path.as_os_str().is_empty() {
            return Err(io::Error::other("the unit has no group of its own"));
        }
        if !of_process.starts_with(&path) {
            return Err(io::Error::other(format!(
                "process {pid} is in /{}, not in the unit's control group /{}",
                of_process.display(),
                path.display()
            )));
        }
        Self::open(Version::V2, mount(|kind, _| kind == "cgroup2")?.join(&path), path, false)
    }

    fn open(version: Version, dir: PathBuf, path: PathBuf, own: bool) -> io::Result<Self> {
        let write = |name: &str| File::options().write(true).open(dir.join(name));
        let (freeze, kill) = match version {
            Version::V2 => (write("cgroup.freeze")?, Some(write("cgroup.kill")?)),
            Version::V1 => (write("freezer.state")?, None),
        };
        Ok(Self { version, dir, path, freeze, kill, own, held: None, killed: AtomicBool::new(false) })
    }

    /// The rung, as text.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.version.name(), self.dir.display())
    }

    /// How to continue its processes by hand, as text.
    pub(super) fn remedy(&self) -> String {
        match self.version {
            Version::V2 => format!("echo 0 > {}/cgroup.freeze", self.dir.display()),
            Version::V1 => format!("echo THAWED > {}/freezer.state", self.dir.display()),
        }
    }

    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    /// Whether this process is in it, or in a nested group.
    pub(super) fn holds_this(&self) -> bool {
        match self.version {
            Version::V2 => parent_v2(),
            Version::V1 => parent_v1(),
        }
        .is_ok_and(|own| own.starts_with(&self.dir))
    }

    /// Begins to freeze or thaw it. Allocates nothing.
    pub(super) fn freeze(&self, frozen: bool) -> io::Result<()> {
        let word: &[u8] = match (self.version, frozen) {
            (Version::V2, true) => b"1",
            (Version::V2, false) => b"0",
            (Version::V1, true) => b"FROZEN",
            (Version::V1, false) => b"THAWED",
        };
        rustix::io::pwrite(&self.freeze, word, 0).map(drop).map_err(Into::into)
    }

    /// Whether none of its processes runs any more.
    pub(super) fn is_frozen(&self) -> bool {
        match self.version {
            Version::V2 => {
                fs::read_to_string(self.dir.join("cgroup.events")).is_ok_and(|text| text.contains("frozen 1"))
            }
            Version::V1 => fs::read_to_string(self.dir.join("freezer.state")).is_ok_and(|text| text.trim() == "FROZEN"),
        }
    }

    /// Kills all its processes, without waiting for their ends.
    pub(super) fn kill(&self) -> io::Result<()> {
        self.killed.store(true, Ordering::SeqCst);
        if let Some(kill) = &self.kill {
            // The kernel reaches processes that fork meanwhile.
            return Ok(rustix::io::pwrite(kill, b"1", 0).map(drop)?);
        }
        for pass in 0..KILL_PASSES_MAX {
            kill_pass(&self.dir, pass >= UNFROZEN_PASSES);
            std::thread::sleep(EMPTY_LOOK);
            if !is_populated(&self.dir) {
                break;
            }
        }
        Ok(())
    }

    /// Whether a process is in it, or in a nested group. A process that is gone counts as in it.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        let has = |of: &str| self.version.path_of(of).map_or(true, |path| path.starts_with(&self.path));
        // In version 1 a thread that has ended is shown at the root, also the first thread of a process that
        // still runs.
        has(&pid.to_string()) || outside::live_threads(pid).all(|thread| has(&thread))
    }

    /// Whether a process is in the same group as this process. A process that is gone counts as such.
    pub(super) fn is_beside(&self, pid: Pid) -> bool {
        let Ok(own) = self.version.path_of("self") else { return true };
        self.version.path_of(&pid.to_string()).map_or(true, |path| path == own)
    }

    /// All processes in it and in nested groups.
    pub(super) fn pids(&self) -> Vec<Pid> {
        tree(&self.dir).iter().flat_map(|dir| pids_in(dir)).collect()
    }
}

/// Takes the lock that shows that a group's program is held.
fn hold(dir: &Path) -> io::Result<File> {
    let held = File::open(dir)?;
    flock(&held, FlockOperation::NonBlockingLockShared)?;
    Ok(held)
}

/// Whether groups with this name are locked by their holders: all but groups of earlier versions, whose names
/// end in a process id.
fn is_locked_by_its_holder(name: &str) -> bool {
    name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).is_some_and(|(_, random)| random.len() == 16)
}

/// Whether no `fide run` and no warden lives to hold the program.
fn is_orphan(dir: &Path) -> bool {
    File::open(dir).is_ok_and(|dir| flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok())
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.own {
            return end(&self.dir);
        }
        if self.killed.load(Ordering::SeqCst) {
            // A unit's group: the next start of the unit may use the same group, and must not begin frozen.
            let until = Instant::now() + EMPTY_LIMIT;
            while is_populated(&self.dir) && Instant::now() < until {
                std::thread::sleep(EMPTY_LOOK);
            }
            let _ = self.freeze(false);
        }
    }
}

/// Kills all processes in a group until none is left, and removes it. Reports a failure.
pub(super) fn end(dir: &Path) {
    let until = Instant::now() + EMPTY_LIMIT;
    for pass in 0usize.. {
        if is_populated(dir) {
            kill_pass(dir, pass >= UNFROZEN_PASSES);
        }
        match remove_tree(dir) {
            Ok(()) => return,
            Err(error) if is_gone(&error) => return,
            Err(error) if Instant::now() >= until => {
                let left: Vec<String> =
                    tree(dir).iter().flat_map(|dir| pids_in(dir)).map(|pid| pid.to_string()).collect();
                say!(
                    "fide: control group {} stays: {error}. In it are the processes [{}], which SIGKILL does not end",
                    dir.display(),
                    left.join(", ")
                );
                return;
            }
            // A process in it is still dying.
            Err(_) => std::thread::sleep(EMPTY_LOOK),
        }
    }
}

/// Sends SIGKILL to all processes in a group and in nested groups, frozen or not.
fn kill_pass(dir: &Path, freezes: bool) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let state = dir.join("freezer.state");
    if freezes {
        let _ = fs::write(&state, "FROZEN");
    }
    for _ in 0..if freezes { FROZEN_LOOKS_MAX } else { 0 } {
        match fs::read_to_string(&state) {
            Ok(text) if text.trim() != "FROZEN" => std::thread::sleep(Duration::from_micros(100)),
            _ => break,
        }
    }
    let tree = tree(dir);
    for pid in tree.iter().flat_map(|dir| pids_in(dir)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    // A frozen process of version 1 dies when it is thawed, before its next instruction.
    for dir in tree.iter().rev() {
        let _ = fs::write(dir.join("freezer.state"), "THAWED");
    }
}

/// A group and its nested groups, each after its own nested groups. If there are more than [`NESTED_MAX`],
/// the first of them and their parents: once they are removed, the next pass has room.
fn tree(dir: &Path) -> Vec<PathBuf> {
    fn visit(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if found.len() >= NESTED_MAX {
                break;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                visit(&entry.path(), found);
            }
        }
        found.push(dir.to_owned());
    }
    let mut found = Vec::new();
    visit(dir, &mut found);
    found
}

fn pids_in(dir: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Whether a process may be in it or in a nested group.
fn is_populated(dir: &Path) -> bool {
    if let Ok(events) = fs::read_to_string(dir.join("cgroup.events")) {
        return events.contains("populated 1");
    }
    // Version 1. Process ids of another pid namespace read as 0.
    let tree = tree(dir);
    let holds = |dir: &PathBuf| fs::read_to_string(dir.join("cgroup.procs")).is_ok_and(|text| !text.is_empty());
    tree.len() >= NESTED_MAX || tree.iter().any(holds)
}

/// Removes an empty group and its nested groups, as many as one pass visits.
fn remove_tree(dir: &Path) -> io::Result<()> {
    // If a nested group is left, the removal of the group itself fails.
    tree(dir).iter().filter(|inner| *inner != dir).for_each(|inner| drop(fs::remove_dir(inner)));
    fs::remove_dir(dir)
}

/// Whether the error says that another process has removed the group.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// The mount point of the first file system that `is` picks from /proc/self/mounts.
fn mount(is: impl Fn(&str, &str) -> bool) -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let mut found = fields.filter(|(_, kind, options)| is(kind, options)).map(|(at, _, _)| PathBuf::from(at));
    found.next().ok_or_else(|| io::Error::other("not mounted"))
}

/// The path of a process within the hierarchy that `is` picks from its /proc/PID/cgroup.
fn path_of(pid: &str, is: impl Fn(&str) -> bool) -> io::Result<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let mut paths = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        is(controllers).then(|| PathBuf::from(path.trim_start_matches('/')))
    });
    paths.next().ok_or_else(|| io::Error::other("not in that hierarchy"))
}

/// This process' own group, in which groups for programs are made.
fn parent_v2() -> io::Result<PathBuf> {
    Ok(mount(|kind, _| kind == "cgroup2")?.join(Version::V2.path_of("self")?))
}

fn parent_v1() -> io::Result<PathBuf> {
    Ok(mount(|kind, options| kind == "cgroup" && is_freezer(options))?.join(Version::V1.path_of("self")?))
}

/// Whether a list of controllers or mount options is of version 1's freezer.
fn is_freezer(list: &str) -> bool {
    list.split(',').any(|word| word == "freezer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_equal_pids_do_not_collide() {
        let names = |places: &Places| places.dirs().map(Path::to_owned).collect::<Vec<_>>();
        let (one, other) = (Places::of(2).expect("random"), Places::of(2).expect("random"));
        assert!(names(&one).iter().all(|dir| !names(&other).contains(dir)));
    }

    #[test]
    fn groups_within_are_removed_from_the_innermost() {
        let scratch = tempfile::tempdir().expect("a directory");
        let dir = scratch.path().join("group");
        fs::create_dir_all(dir.join("a/b")).expect("made");
        fs::create_dir_all(dir.join("c")).expect("made");
        assert_eq!(tree(&dir).last(), Some(&dir));
        remove_tree(&dir).expect("removed");
        assert!(!dir.exists());
        assert!(is_gone(&remove_tree(&dir).expect_err("nothing there")));
    }

    #[test]
    fn more_groups_than_one_pass_sees_are_removed_by_several() {
        let scratch = tempfile::tempdir().expect("a directory");
        let dir = scratch.path().join("group");
        for number in 0..NESTED_MAX * 3 / 4 {
            fs::create_dir_all(dir.join(format!("{number}/inner"))).expect("made");
        }
        assert!((NESTED_MAX..NESTED_MAX + 2).contains(&tree(&dir).len()) && is_populated(&dir), "not all is seen");
        let passes = (1..10).find(|_| remove_tree(&dir).is_ok());
        assert!(passes.is_some_and(|passes| passes > 1));
    }
}
