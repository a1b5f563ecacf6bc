// SPDX-License-Identifier: Apache-2.0
//! What a demo has started and made, and whether all of it is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use fide_testbed::retry_until;

/// All is gone within this.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two lists of a running demo's processes.
const LOOK: Duration = Duration::from_millis(50);
const NETNS: &str = "/run/netns";

/// A process. Numbers are used again, so its start is part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) id: u32,
    /// Clock ticks since the machine's start.
    started: u64,
    pub(crate) name: String,
}

/// From /proc/ID/stat.
struct Stat {
    process: Process,
    parent: u32,
    state: char,
}

fn stat(id: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name is in brackets and may contain anything.
    let (head, rest) = text.rsplit_once(") ")?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split(' ').collect();
    // The third field of proc(5) is the first one here.
    let started = fields.get(22 - 3)?.parse().ok()?;
    Some(Stat {
        process: Process { id, started, name },
        parent: fields.get(1)?.parse().ok()?,
        state: rest.chars().next()?,
    })
}

/// Names of what a demo makes contain this.
fn prefix(demo: u32) -> String {
    format!("fide-{demo}-")
}

/// A network namespace, as the kernel names it: device and inode.
fn namespace(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|of| (of.dev(), of.ino()))
}

/// The processes in the demo's namespaces, and all that descend from it.
pub(crate) fn processes_of(demo: u32) -> BTreeSet<Process> {
    let entries = |dir: &str| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names = entries(NETNS).filter_map(|name| name.into_string().ok()).filter(|name| name.contains(&prefix(demo)));
    let namespaces: BTreeSet<_> = names.filter_map(|name| namespace(&format!("{NETNS}/{name}"))).collect();
    let ids = entries("/proc").filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let all: BTreeMap<u32, Stat> = ids.filter_map(|id| Some((id, stat(id)?))).collect();
    let descends = |stat: &Stat| {
        let mut parent = stat.parent;
        while parent != demo {
            match all.get(&parent) {
                Some(next) => parent = next.parent,
                None => return false,
            }
        }
        true
    };
    let is_its = |id: u32| namespace(&format!("/proc/{id}/ns/net")).is_some_and(|it| namespaces.contains(&it));
    let its = all.iter().filter(|(id, stat)| **id != demo && (descends(stat) || is_its(**id)));
    its.map(|(_, stat)| stat.process.clone()).collect()
}

/// All that a running demo starts, until it has ended.
pub(crate) fn processes_until(demo: u32, ended: &AtomicBool) -> BTreeSet<Process> {
    let mut seen = BTreeSet::new();
    while !ended.load(Relaxed) {
        seen.append(&mut processes_of(demo));
        thread::sleep(LOOK);
    }
    seen
}

/// Waits until SIGSTOP has stopped a process.
pub(crate) fn await_stopped(id: u32) {
    let look = || stat(id).filter(|stat| stat.state == 'T').map(drop).ok_or("it runs".to_owned());
    retry_until("the stop", LIMIT, look).unwrap();
}

/// Nothing that the demo has made is there any more: namespaces, files, and the processes that it had started.
pub(crate) fn assert_all_gone(demo: u32, started: &BTreeSet<Process>) {
    for name in ["redis-server", "fide"] {
        assert!(started.iter().any(|process| process.name == name), "no {name} in the list of processes: {started:?}");
    }
    let left = || -> Vec<String> {
        let dirs = [PathBuf::from(NETNS), std::env::temp_dir()];
        let all = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let paths = all.map(|entry| entry.path().display().to_string()).filter(|path| path.contains(&prefix(demo)));
        // A zombie has ended: its parent has only not asked for its status yet.
        let runs = |it: &&Process| stat(it.id).is_some_and(|now| now.process.started == it.started && now.state != 'Z');
        paths.chain(started.iter().filter(runs).map(|process| format!("{process:?}"))).collect()
    };
    let gone = retry_until("the removal", LIMIT, || match left() {
        left if left.is_empty() => Ok(()),
        left => Err(left.join(", ")),
    });
    gone.unwrap();
}
