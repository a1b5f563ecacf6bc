// SPDX-License-Identifier: Apache-2.0
//! Tests the method rdma-ud between two emulated hosts, each with a kernel that turns a network interface
//! into an RDMA card.
//!
//! Two hosts and not two namespaces, because that kernel's software card serves the first namespace only.
//! Kernel and busybox are Debian's, unpacked below the target directory and not installed. Nothing here is
//! timed: an emulated processor says nothing about real times.

mod guest;
pub(crate) mod image;

use crate::run::{Step, target_dir};
use crate::{Outcome, setup};
use guest::Guest;
use std::fs;
use std::time::{Duration, Instant};

/// Time limit for everything after the build, which takes about a minute.
const LIMIT: Duration = Duration::from_secs(600);
/// The checks that host 1 has to report as passed, see `init.sh`.
const CHECKS: [&str; 8] = [
    "no_card",
    "nobody_answers",
    "measures",
    "log_names_method",
    "longer_than_the_mtu",
    "ignores_what_is_no_hello",
    "finds_a_restarted_pong",
    "one_host",
];

pub(crate) fn test() -> Outcome {
    for packages in [setup::BUILD, setup::RDMA, setup::EMULATOR] {
        if !setup::prepare(packages, "rdma-ud cannot be tested") {
            return Err("packages are missing, see above".into());
        }
    }
    Step::cargo(&["build", "-p", "fide", "--features", "rdma"]).run("build")?;
    let image = image::make(&target_dir())?;
    let until = Instant::now() + LIMIT;
    // An abstract socket, without a file.
    let wire = format!("fide-rdma-{}", std::process::id());
    // Host 2 holds the end of the wire that has to exist first. Each emulator ends when its `Guest` is
    // dropped.
    let _pong = Guest::start(&image, 2, &wire)?;
    while !fs::read_to_string("/proc/net/unix").is_ok_and(|sockets| sockets.contains(&wire)) {
        if Instant::now() > until {
            return Err("host 2's emulator made no network".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut ping = Guest::start(&image, 1, &wire)?;
    let mut passed = Vec::new();
    while let Some(line) = ping.line(until)? {
        match line.strip_prefix("CHECK ") {
            Some("END") => return verdict(&passed),
            Some(check) => passed.extend(check.strip_prefix("PASS ").map(str::to_owned)),
            None => {}
        }
    }
    Err("host 1 ended before its checks did, see above".into())
}

fn verdict(passed: &[String]) -> Outcome {
    let failed: Vec<&str> = CHECKS.into_iter().filter(|check| !passed.iter().any(|p| p == check)).collect();
    if failed.is_empty() && passed.len() == CHECKS.len() {
        println!("rdma: {} checks passed", CHECKS.len());
        return Ok(());
    }
    Err(format!("failed: {}; see host 1's lines above", failed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_to_pass() {
        let all: Vec<String> = CHECKS.iter().map(ToString::to_string).collect();
        assert_eq!(verdict(&all), Ok(()));
        assert!(verdict(&all[1..]).is_err_and(|why| why.contains("no_card")));
        assert!(verdict(&[]).is_err());
    }

    #[test]
    fn script_makes_the_requested_checks() {
        let script = include_str!("rdma/init.sh");
        let made: Vec<&str> = script
            .lines()
            .filter_map(|line| line.strip_prefix("check "))
            .filter_map(|rest| rest.split_whitespace().next())
            .collect();
        assert_eq!(made, CHECKS);
    }
}
