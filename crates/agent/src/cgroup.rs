// SPDX-License-Identifier: Apache-2.0
//! The control group of the service that an agent belongs to.
//!
//! systemd ends, counts and restarts a service by its control group. An agent that was started from a shell, to take over from
//! one that is a service, belongs to the shell's session; so it moves.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Moves this process into the control group of another one, as systemd names it.
///
/// # Errors
/// The kernel's; `NotFound` where no hierarchy of systemd's is mounted.
pub fn join(pid: u32) -> io::Result<()> {
    let read = |pid: &str| fs::read_to_string(format!("/proc/{pid}/cgroup"));
    let (theirs, ours) = (read(&pid.to_string())?, read("self")?);
    if group(&theirs) == group(&ours) {
        return Ok(());
    }
    let missing = || io::Error::new(io::ErrorKind::NotFound, "no control group of systemd's is mounted");
    let (named, path) = group(&theirs).ok_or_else(missing)?;
    let file = files(named, path).into_iter().find(|file| file.exists()).ok_or_else(missing)?;
    fs::write(file, std::process::id().to_string())
}

/// Whether it is in systemd's own hierarchy of version 1, and its path.
fn group(text: &str) -> Option<(bool, &str)> {
    let of = |controllers: &str| text.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(controllers));
    match of("name=systemd:") {
        Some(path) => Some((true, path)),
        None => of(":").map(|path| (false, path)),
    }
}

fn files(named: bool, path: &str) -> Vec<PathBuf> {
    let roots: &[&str] =
        if named { &["/sys/fs/cgroup/systemd"] } else { &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] };
    let path = path.trim_start_matches('/');
    roots.iter().map(|root| Path::new(root).join(path).join("cgroup.procs")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_service_is_found_in_either_version() {
        let two = "0::/system.slice/fide-agent.service\n";
        assert_eq!(group(two), Some((false, "/system.slice/fide-agent.service")));
        let one = "12:cpu,cpuacct:/\n1:name=systemd:/system.slice/fide-agent.service\n0::/system.slice/other\n";
        assert_eq!(group(one), Some((true, "/system.slice/fide-agent.service")));
        assert_eq!(group("3:cpu:/x\n"), None);
        let files = files(false, "/system.slice/fide-agent.service");
        assert_eq!(files[0], Path::new("/sys/fs/cgroup/system.slice/fide-agent.service/cgroup.procs"));
    }

    #[test]
    fn nobody_moves_within_one_group() {
        join(std::process::id()).expect("it is there already");
        assert!(join(u32::MAX).is_err(), "there is no such process");
    }
}
