// SPDX-License-Identifier: Apache-2.0
//! What stops a program, lets it go on, and kills it: the best of three rungs.
//!
//! | rung | reaches |
//! |---|---|
//! | cgroup v2 (`cgroup.freeze`, `cgroup.kill`) | the program and all that it started |
//! | cgroup v1 freezer | the same |
//! | signals | the program alone, not what it started |
//!
//! The descriptors are opened before they are needed: stopping is one system call.

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::process::{Signal, pidfd_send_signal};

/// Attempts to remove a control group whose last process has just ended.
const REMOVALS_MAX: usize = 50;

/// The program's control group.
#[derive(Debug)]
struct Group {
    dir: PathBuf,
    /// `cgroup.freeze`, or `freezer.state`.
    freeze: File,
    /// What is written there to stop and to let go on.
    words: [&'static [u8]; 2],
    /// `cgroup.kill` of version 2.
    kill: Option<File>,
    /// Made here: goes with this.
    own: bool,
}

/// Stops one program.
#[derive(Debug)]
pub(super) struct Stopper {
    pidfd: OwnedFd,
    group: Option<Group>,
    /// Why there is no better rung.
    missing: String,
}

impl Stopper {
    /// Puts a process that has started nothing yet into a control group of its own, where that is to be had.
    pub(super) fn around(pid: u32, pidfd: OwnedFd) -> Self {
        let name = format!("fide-run-{pid}");
        let mut missing = String::new();
        for (version, find) in [("cgroup v2", v2 as Find), ("cgroup v1 freezer", v1 as Find)] {
            match find(&name).and_then(|group| group.take_in(pid)) {
                Ok(group) => return Self { pidfd, group: Some(group), missing },
                Err(error) => missing.push_str(&format!("{version}: {error}; ")),
            }
        }
        Self { pidfd, group: None, missing }
    }

    /// A running process: its unit's control group, which holds nothing else, if it has one of version 2.
    pub(super) fn of(pidfd: OwnedFd, unit_of: Option<u32>) -> Self {
        let group = unit_of.ok_or_else(|| io::Error::other("a process of a group that is not its own")).and_then(unit);
        match group {
            Ok(group) => Self { pidfd, group: Some(group), missing: String::new() },
            Err(error) => Self { pidfd, group: None, missing: format!("cgroup: {error}; ") },
        }
    }

    pub(super) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Where the program's processes are, if a group of their own was made for them.
    pub(super) fn own_dir(&self) -> Option<&Path> {
        self.group.as_ref().filter(|group| group.own).map(|group| group.dir.as_path())
    }

    /// The rung, for people.
    pub(super) fn rung(&self) -> String {
        match &self.group {
            Some(group) if group.kill.is_some() => format!("cgroup v2 {}", group.dir.display()),
            Some(group) => format!("cgroup v1 freezer {}", group.dir.display()),
            None => {
                format!("SIGSTOP to the program alone, not to what it starts ({})", self.missing.trim_end_matches("; "))
            }
        }
    }

    /// Stops it. Allocates nothing.
    pub(super) fn stop(&self) -> io::Result<()> {
        match &self.group {
            Some(group) => group.write(0),
            None => self.signal(Signal::STOP),
        }
    }

    /// Lets it go on.
    pub(super) fn go_on(&self) -> io::Result<()> {
        match &self.group {
            Some(group) => group.write(1),
            None => self.signal(Signal::CONT),
        }
    }

    /// Kills it, and all that it started where there is a group of its own. Fine if it has ended.
    pub(super) fn kill(&self) -> io::Result<()> {
        match &self.group {
            Some(Group { kill: Some(kill), own: true, .. }) => rustix::io::pwrite(kill, b"1", 0).map(drop)?,
            Some(group) if group.own => {
                for pid in fs::read_to_string(group.dir.join("cgroup.procs"))?.lines() {
                    if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                        let _ = rustix::process::kill_process(pid, Signal::KILL);
                    }
                }
                self.signal(Signal::KILL)?;
                // A frozen process of version 1 dies when it goes on, before its next instruction.
                group.write(1)?;
            }
            _ => self.signal(Signal::KILL)?,
        }
        Ok(())
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            // It has just ended, which the next look finds.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

type Find = fn(&str) -> io::Result<Group>;

impl Group {
    fn write(&self, word: usize) -> io::Result<()> {
        rustix::io::pwrite(&self.freeze, self.words[word], 0).map(drop).map_err(Into::into)
    }

    fn take_in(self, pid: u32) -> io::Result<Self> {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string())?;
        Ok(self)
    }

    fn open(dir: PathBuf, own: bool, version: u8) -> io::Result<Self> {
        let write = |name: &str| File::options().write(true).open(dir.join(name));
        let opened = if version == 2 {
            write("cgroup.freeze").and_then(|freeze| Ok((freeze, [&b"1"[..], b"0"], Some(write("cgroup.kill")?))))
        } else {
            write("freezer.state").map(|freeze| (freeze, [&b"FROZEN"[..], b"THAWED"], None))
        };
        match opened {
            Ok((freeze, words, kill)) => Ok(Self { dir, freeze, words, kill, own }),
            Err(error) => {
                if own {
                    let _ = fs::remove_dir(&dir);
                }
                Err(error)
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.own {
            remove(&self.dir);
        }
    }
}

/// Removes an empty control group; one that the program's children still live in stays with them.
pub(super) fn remove(dir: &Path) {
    for _ in 0..REMOVALS_MAX {
        match fs::remove_dir(dir) {
            // Somebody is dying in it.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            _ => return,
        }
    }
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

fn v2(name: &str) -> io::Result<Group> {
    let dir = mount(|kind, _| kind == "cgroup2")?.join(path_of("self", str::is_empty)?).join(name);
    fs::create_dir(&dir)?;
    Group::open(dir, true, 2)
}

fn v1(name: &str) -> io::Result<Group> {
    let is_freezer = |list: &str| list.split(',').any(|word| word == "freezer");
    let dir =
        mount(|kind, options| kind == "cgroup" && is_freezer(options))?.join(path_of("self", is_freezer)?).join(name);
    fs::create_dir(&dir)?;
    Group::open(dir, true, 1)
}

/// The group of a systemd unit's main process.
fn unit(pid: u32) -> io::Result<Group> {
    let path = path_of(&pid.to_string(), str::is_empty)?;
    if path.as_os_str().is_empty() {
        return Err(io::Error::other("the unit has no group of its own"));
    }
    Group::open(mount(|kind, _| kind == "cgroup2")?.join(path), false, 2)
}
