// SPDX-License-Identifier: Apache-2.0
//! A control group for one test, in which `fide run` finds the rung that the test wants, and the test sees
//! what `fide run` leaves.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::common::{World, fide};

/// The mounts that `fide run` finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    V2,
    V1,
    Signals,
}

/// Moves the shell into the groups $DIRS, unmounts $HIDDEN for itself, becomes its arguments.
const ENTER: &str = r#"for dir in $DIRS; do echo $$ > $dir/cgroup.procs || exit 99; done
[ -z "$HIDDEN" ] && exec "$0" "$@"
exec unshare -m sh -c 'for at in $HIDDEN; do umount -l $at || exit 99; done; exec "$0" "$@"' "$0" "$@""#;

/// Mount points of control groups: (of version 2, of version 1's freezer).
fn mounts() -> (Vec<PathBuf>, Vec<PathBuf>) {
    let text = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let fields = || text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let at = |fields: Vec<&str>| PathBuf::from(fields[1]);
    let second = fields().filter(|f| f[2] == "cgroup2").map(at).collect();
    let first = fields().filter(|f| f[2] == "cgroup" && f[3].split(',').any(|word| word == "freezer")).map(at);
    (second, first.collect())
}

pub(crate) struct Place {
    dirs: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
}

impl Place {
    /// `None`, with the reason printed, if this machine does not have that rung.
    pub(crate) fn new(rung: Rung) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fide-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (second, first) = mounts();
        let (used, hidden) = match rung {
            Rung::V2 => (second, first),
            Rung::V1 => (first, second),
            Rung::Signals => (Vec::new(), [second, first].concat()),
        };
        if used.is_empty() && rung != Rung::Signals {
            println!("not tested: no control groups of {rung:?}");
            return None;
        }
        let dirs: Vec<PathBuf> = used.iter().take(1).map(|at| at.join(&name)).collect();
        for dir in &dirs {
            if let Err(error) = fs::create_dir(dir) {
                println!("not tested: {}: {error}", dir.display());
                return None;
            }
        }
        Some(Self { dirs, hidden })
    }

    /// All rungs with control groups that this machine has.
    pub(crate) fn with_groups() -> Vec<Self> {
        [Rung::V2, Rung::V1].into_iter().filter_map(Self::new).collect()
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dirs[0]
    }

    /// A program in this place, on a host.
    pub(crate) fn command(&self, world: &World, host: usize, words: &[&str]) -> Command {
        let list =
            |paths: &[PathBuf]| paths.iter().map(|path| path.to_str().expect("UTF-8")).collect::<Vec<_>>().join(" ");
        let mut command = world.bed.host(host).command("sh");
        command.args(["-c", ENTER]).args(words);
        command.env("DIRS", list(&self.dirs)).env("HIDDEN", list(&self.hidden));
        command.env("FIDE_SOCKET", world.agents.socket(host));
        command
    }

    /// `fide` in this place.
    pub(crate) fn fide(&self, world: &World, host: usize, arguments: &[&str]) -> Command {
        let program = fide();
        let mut words = vec![program.to_str().expect("UTF-8")];
        words.extend_from_slice(arguments);
        self.command(world, host, &words)
    }

    /// Control groups that programs have made here and left.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        self.dirs.iter().flat_map(|dir| groups_in(dir)).collect()
    }
}

pub(crate) fn groups_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn clear(dir: &Path) {
    for inner in groups_in(dir) {
        clear(&inner);
    }
    for _ in 0..500 {
        let _ = fs::write(dir.join("freezer.state"), "THAWED");
        let _ = fs::write(dir.join("cgroup.freeze"), "0");
        for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if fs::remove_dir(dir).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.dirs.iter().for_each(|dir| clear(dir));
    }
}
