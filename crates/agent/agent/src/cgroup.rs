// SPDX-License-Identifier: Apache-2.0
//! The control groups of the service that an agent belongs to.
//!
//! systemd ends, counts and restarts a service by its control group. An agent that was started from a
//! shell, to take over from a service's agent, belongs to the shell's session; so it moves.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Moves this process into the control groups of another one, in each hierarchy that systemd may look at and
/// that is mounted here.
///
/// # Errors
/// The kernel's; `NotFound` where no hierarchy of systemd's is mounted.
pub fn join(pid: u32) -> io::Result<()> {
    let read = |pid: &str| fs::read_to_string(format!("/proc/{pid}/cgroup"));
    let (theirs, ours) = (read(&pid.to_string())?, read("self")?);
    if groups(&theirs).eq(groups(&ours)) {
        return Ok(());
    }
    let mounted: Vec<PathBuf> = groups(&theirs).filter_map(|(version, path)| file(version, path)).collect();
    if mounted.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no control group of systemd's is mounted"));
    }
    mounted.iter().try_for_each(|file| fs::write(file, std::process::id().to_string()))
}

/// A hierarchy by which systemd finds a service's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// systemd's own hierarchy of version 1. A container shows its host's in `/proc`, mounted or not.
    Named,
    Two,
}

/// The process' paths in them.
fn groups(text: &str) -> impl Iterator<Item = (Version, &str)> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.filter_map(|(_, group)| match group.strip_prefix("name=systemd:") {
        Some(path) => Some((Version::Named, path)),
        None => group.strip_prefix(':').map(|path| (Version::Two, path)),
    })
}

/// The file that a process is written to, if that hierarchy is mounted where systemd has it.
fn file(version: Version, path: &str) -> Option<PathBuf> {
    files(version, path).into_iter().find(|file| file.exists())
}

fn files(version: Version, path: &str) -> Vec<PathBuf> {
    let roots: &[&str] = match version {
        Version::Named => &["/sys/fs/cgroup/systemd"],
        Version::Two => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
    };
    let path = path.trim_start_matches('/');
    roots.iter().map(|root| Path::new(root).join(path).join("cgroup.procs")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_a_service_is_found_in_either_version() {
        let all = |text| groups(text).collect::<Vec<_>>();
        let path = "/system.slice/fide-agent.service";
        let two = "0::/system.slice/fide-agent.service\n";
        assert_eq!(all(two), [(Version::Two, path)]);
        let both = "12:cpu,cpuacct:/\n1:name=systemd:/system.slice/fide-agent.service\n0::/system.slice/other\n";
        assert_eq!(all(both), [(Version::Named, path), (Version::Two, "/system.slice/other")]);
        assert_eq!(all("3:cpu:/x\n"), []);
        assert_eq!(
            files(Version::Two, path)[0],
            Path::new("/sys/fs/cgroup/system.slice/fide-agent.service/cgroup.procs")
        );
    }

    /// As in a container on a host with both: only version 2 is mounted, and the process moves only there.
    #[test]
    fn unmounted_hierarchy_hides_no_other() {
        let theirs = "1:name=systemd:/\n0::/fide.slice/fide-agent.service\n";
        let ours = "1:name=systemd:/\n0::/\n";
        assert!(!groups(theirs).eq(groups(ours)));
    }

    #[test]
    fn nobody_moves_within_one_group() {
        join(std::process::id()).expect("it is there already");
        assert!(join(u32::MAX).is_err(), "there is no such process");
    }
}
