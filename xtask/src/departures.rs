// SPDX-License-Identifier: Apache-2.0
//! Tests that the kernel keeps the times of X-PACE's packets where an interface has the queue `fq`, which the kernels of
//! machines without it cannot show: in a guest with Debian's kernel.
//!
//! Whether packets were held is read from the queue's own counters. Nothing is timed: an emulated processor says nothing
//! about real times.

use crate::machine::Initial;
use crate::run::{Step, target_dir};
use crate::{Outcome, setup};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Limit for the guest in seconds; it ends itself after less.
const LIMIT_S: &str = "300";
const MODULES: [&str; 3] = ["veth", "sch_fq", "sch_tbf"];
/// The checks that the guest has to report as passed, see `init.sh`.
const CHECKS: [&str; 5] = ["fq_delivers", "fq_holds_packets", "fq_is_named", "other_queues_deliver", "timer_is_named"];
/// Of iproute2: those of busybox know neither namespaces nor queues.
const TOOLS: [(&str, [&str; 3]); 2] =
    [("ip", ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"]), ("tc", ["/usr/sbin/tc", "/sbin/tc", "/usr/bin/tc"])];

pub(crate) fn test() -> Outcome {
    for packages in [setup::BUILD, setup::EMULATOR] {
        if !setup::prepare(packages, "departure times cannot be tested") {
            return Err("packages are missing, see above".into());
        }
    }
    Step::cargo(&["build", "-p", "fide", "--release"]).run("build")?;
    let (kernel, initial) = image(&target_dir())?;
    // The emulator ends with this process, however this process ends, and after its time, also if the guest's kernel hangs.
    let mut emulator = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "timeout", LIMIT_S, "setpriv", "--pdeathsig", "KILL"])
        .args(["qemu-system-x86_64", "-accel", "tcg,thread=multi"])
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-smp", "2", "-m", "512"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initial)
        .args(["-append", "console=ttyS0 panic=-1 quiet tsc=unstable clocksource=hpet"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("qemu-system-x86_64 did not start: {e}"))?;
    let (mut passed, mut ended) = (Vec::new(), false);
    for line in
        emulator.stdout.take().into_iter().flat_map(|out| BufReader::new(out).split(b'\n')).map_while(Result::ok)
    {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        println!("guest: {line}");
        ended |= line == "CHECK END";
        passed.extend(line.strip_prefix("CHECK PASS ").map(str::to_owned));
    }
    let _ = emulator.wait();
    let failed: Vec<&str> = CHECKS.into_iter().filter(|check| !passed.iter().any(|p| p == check)).collect();
    if ended && failed.is_empty() {
        println!("departures: {} checks passed", CHECKS.len());
        return Ok(());
    }
    Err(format!("failed: {}; see the guest's lines above", failed.join(", ")))
}

/// Makes the kernel and the initial file system.
fn image(target: &Path) -> Result<(PathBuf, PathBuf), String> {
    let mut tools = Vec::new();
    for (name, paths) in TOOLS {
        let tool = paths.iter().map(PathBuf::from).find(|path| path.exists());
        let tool = tool.ok_or_else(|| format!("there is no `{name}`: install iproute2"))?;
        tools.push((tool, format!("sbin/{name}")));
    }
    let init = include_str!("departures/init.sh");
    let initial = Initial { programs: &["fide"], tools: &tools, modules: &MODULES, init };
    initial.make(&target.join("departures"))
}
