// SPDX-License-Identifier: Apache-2.0
//! Names that say who created a namespace, and the sweep that removes namespaces whose creator is gone.
//!
//! `fide-<creator pid>-<creator start ticks>-<serial>-<node>`: once a pid is used again, its former owner
//! would look alive, so the name also has the start time (field 22 of `/proc/PID/stat`).

use crate::{Error, Result, tools, trace};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) const NETNS_DIR: &str = "/run/netns";
const PREFIX: &str = "fide-";
/// Most left-overs that one sweep removes; the rest waits for the next one.
const MAX_SWEPT: usize = 1024;

/// The common part of one testbed's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    pub(crate) serial: u32,
}

impl Owner {
    /// A new owner for this process.
    pub(crate) fn new() -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let start_ticks =
            start_ticks(pid).ok_or_else(|| Error::Unsupported("/proc/self/stat cannot be read: mount /proc".into()))?;
        Ok(Owner { pid, start_ticks, serial: SERIAL.fetch_add(1, Ordering::Relaxed) })
    }

    pub(crate) fn prefix(&self) -> String {
        format!("{PREFIX}{}-{}-{}", self.pid, self.start_ticks, self.serial)
    }

    pub(crate) fn namespace(&self, node: &str) -> String {
        format!("{}-{node}", self.prefix())
    }

    /// Where the testbed keeps configuration, sockets and logs.
    pub(crate) fn scratch(&self) -> PathBuf {
        std::env::temp_dir().join(self.prefix())
    }

    /// Parses the name of a namespace or scratch directory; `None` if it is not one of ours.
    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        Some(Owner {
            pid: parts.next()?.parse().ok()?,
            start_ticks: parts.next()?.parse().ok()?,
            serial: parts.next()?.parse().ok()?,
        })
    }

    fn creator_lives(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }
}

/// Start time of a process in clock ticks since boot; `None` if there is no such process.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may contain spaces and brackets, so the fields are counted from its closing bracket. A
    // zombie counts as gone: it creates nothing any more.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// What a sweep removed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Swept {
    /// Namespaces whose creator no longer runs.
    pub namespaces: Vec<String>,
    /// Processes that were still in them.
    pub killed: Vec<u32>,
    /// Scratch directories of such creators.
    pub directories: Vec<PathBuf>,
    /// Their instances of the kernel's trace, which slow down each system call.
    pub traces: Vec<PathBuf>,
}

impl Swept {
    /// True if there was nothing to do.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty() && self.directories.is_empty() && self.traces.is_empty()
    }
}

/// Removes the namespaces (and processes in them, scratch directories and traces) of testbeds whose creator no longer runs.
///
/// Never touches those of a living creator, nor anything without our prefix. One sweep removes at most 1024
/// left-overs of each kind.
pub fn sweep() -> Result<Swept> {
    let mut swept = Swept::default();
    for name in orphans(Path::new(NETNS_DIR)) {
        for pid in pids_in(&name)? {
            if let Some(p) = rustix::process::Pid::from_raw(pid as i32) {
                // It may have ended in between, which is what we want.
                let _ = rustix::process::kill_process(p, rustix::process::Signal::KILL);
                swept.killed.push(pid);
            }
        }
        match tools::batch("ip", &["netns", "del", &name], "") {
            Ok(()) => swept.namespaces.push(name),
            // Someone else swept it at the same time.
            Err(_) if !Path::new(NETNS_DIR).join(&name).exists() => {}
            Err(e) => return Err(e),
        }
    }
    let temp = std::env::temp_dir();
    for name in orphans(&temp) {
        let dir = temp.join(name);
        if fs::remove_dir_all(&dir).is_ok() {
            swept.directories.push(dir);
        }
    }
    let instances = Path::new(trace::MOUNTED).join("instances");
    for name in orphans(&instances) {
        let instance = instances.join(name);
        // What is in it is the kernel's.
        if fs::remove_dir(&instance).is_ok() {
            swept.traces.push(instance);
        }
    }
    Ok(swept)
}

fn orphans(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| Owner::parse(n).is_some_and(|o| !o.creator_lives()))
        .take(MAX_SWEPT)
        .collect()
}

/// Processes (not threads) whose network namespace is `name`.
pub(crate) fn pids_in(name: &str) -> Result<Vec<u32>> {
    let out = std::process::Command::new("ip")
        .args(["netns", "pids", name])
        .output()
        .map_err(|e| Error::io("running `ip netns pids`", e))?;
    Ok(String::from_utf8_lossy(&out.stdout).split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect())
}

#[cfg(test)]
mod tests;
