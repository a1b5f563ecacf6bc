// SPDX-License-Identifier: Apache-2.0
//! Tests what a program in a guest believes about its lease after the guest stood still, with each time
//! source (docs/internals/clocks.md).
//!
//! An emulated machine with Debian's kernel runs three agents over loopback, and a program that asks whether
//! it may act. The machine is suspended, its emulator is not run for a while, its clock is slewed and set,
//! and it is stopped by the monitor. Nothing is timed: a lease here is 3 s, and what happens takes longer or
//! does not matter.

use crate::machine::{Boot, Machine};
use crate::rdma::image::{copy, download, inside, libraries, pack};
use crate::run::{Step, target_dir};
use crate::{Outcome, setup};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limit for one guest, which takes less than a minute.
const LIMIT: Duration = Duration::from_secs(300);
/// The time sources of an emulated machine that are tested. kvm-clock would need KVM; acpi_pm wraps after 4.7
/// s, so it loses time when its host does not run it for longer than that.
const SOURCES: [&str; 2] = ["hpet", "tsc"];
const OTHERS_STOP: &str = "kill -STOP $(cat /run/h2/pid) $(cat /run/h3/pid)";
const OTHERS_GO_ON: &str = "kill -CONT $(cat /run/h2/pid) $(cat /run/h3/pid)";
/// Longer than the guest's lease of 3 s.
const STILL: Duration = Duration::from_secs(5);

pub(crate) fn test(sources: &[String]) -> Outcome {
    for packages in [setup::BUILD, setup::EMULATOR] {
        if !setup::prepare(packages, "the clocks of a guest cannot be tested") {
            return Err("packages are missing, see above".into());
        }
    }
    Step::cargo(&["build", "-p", "fide", "-p", "fide-client", "--bin", "fide", "--example", "lease_probe"])
        .run("build")?;
    let (kernel, initial) = image(&target_dir())?;
    for source in SOURCES.iter().filter(|source| sources.is_empty() || sources.iter().any(|s| s == *source)) {
        // The kernel trusts neither an emulated counter nor an emulated clock unless it is told to.
        let counter = if *source == "tsc" { "reliable" } else { "unstable" };
        let mut guest = Machine::start(&Boot {
            name: "guest",
            hidden: "PROBE stall",
            kernel: &kernel,
            initial: &initial,
            dir: &target_dir().join("clocks"),
            arguments: &[],
            append: &format!("tsc={counter} clocksource={source}"),
        })?;
        checks(&mut guest, source).map_err(|why| format!("time source {source}: {why}"))?;
        println!(
            "clocks: {source}: a suspension, a host without time, a slew and a set clock passed; a stop is as documented"
        );
    }
    Ok(())
}

fn checks(guest: &mut Machine, source: &str) -> Outcome {
    let until = Instant::now() + LIMIT;
    let said = guest.wait("CLOCKS READY", until)?;
    if !said.iter().any(|line| line.ends_with(&format!("source {source}"))) {
        return Err(format!("the kernel took another time source: {said:?}"));
    }
    guest.wait("PROBE acts", until)?;

    // Suspended to memory: only CLOCK_BOOTTIME shows it. The other hosts are stopped, so that they cannot
    // give a new lease before the first look.
    guest.order(&format!("sh {OTHERS_STOP}; echo deep > /sys/power/mem_sleep; echo mem > /sys/power/state"))?;
    sleep(STILL);
    guest.rest();
    guest.monitor("system_wakeup")?;
    first_look(&guest.wait("PROBE woke", until)?)?;
    guest.run_until(OTHERS_GO_ON, "PROBE acts", until)?;

    // The host does not run the emulator; the emulator's clocks go on.
    guest.run(OTHERS_STOP, until)?;
    guest.rest();
    guest.signal("STOP")?;
    sleep(STILL);
    guest.signal("CONT")?;
    first_look(&guest.wait("PROBE woke", until)?)?;
    guest.run_until(OTHERS_GO_ON, "PROBE acts", until)?;

    // A slew at the kernel's limit, a tenth, and a clock that is set.
    sleep(Duration::from_secs(1));
    guest.rest();
    let slew = "adjtimex -t 11000 > /dev/null; sleep 5; adjtimex -t 10000 > /dev/null";
    let said = guest.run_reading(&format!("{slew}; date -s 2033-03-03 > /dev/null; sleep 1"), until)?;
    if let Some(line) = said.iter().find(|line| line.contains("PROBE fenced") || line.contains("PROBE woke")) {
        return Err(format!("a slewed or a set clock was taken for one that stood still: {line}"));
    }

    // Stopped by the monitor while the others are gone for good: every clock of the guest stands still. It
    // believes in what was left of its lease, and in no more.
    guest.run(OTHERS_STOP, until)?;
    guest.monitor("stop")?;
    sleep(STILL);
    guest.rest();
    guest.monitor("cont")?;
    guest.order("ask stopped")?;
    let said = guest.wait("PROBE asked stopped", until)?;
    let left_us = left_us(said.last().map_or("", String::as_str))?;
    if left_us > 3_000_000 {
        return Err(format!("after a stop {left_us} us of a lease of 3 s were left"));
    }
    println!("clocks: {source}: after a stop that no clock shows, {left_us} us of the lease were believed to be left");
    if !said.iter().any(|line| line.contains("PROBE fenced")) {
        guest.wait("PROBE fenced", until)?;
    }
    sleep(Duration::from_secs(2));
    match guest.rest().iter().find(|line| line.contains("PROBE acts")) {
        Some(line) => Err(format!("it acts again though nobody hears it: {line}")),
        None => Ok(()),
    }
}

/// The first look after the machine stood still must find a fence, no matter which process ran first.
fn first_look(said: &[String]) -> Outcome {
    let woke = said.last().map_or("", String::as_str);
    match left_us(woke)? {
        0 => Ok(()),
        left => Err(format!("{left} us of a lease were left after the machine stood still: {woke}")),
    }
}

fn left_us(line: &str) -> Result<u128, String> {
    let field = line.split_whitespace().find_map(|word| word.strip_prefix("left_us="));
    field.and_then(|text| text.parse().ok()).ok_or_else(|| format!("no left_us in {line:?}"))
}

/// Makes the kernel and the initial file system.
fn image(target: &Path) -> Result<(PathBuf, PathBuf), String> {
    // The kernel is that of `make rdma`.
    let store = target.join("rdma");
    let unpacked = store.join("debian");
    let version = download(&store, &unpacked)?;
    let busybox = unpacked.join("bin/busybox");
    let dir = target.join("clocks");
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    for name in ["bin", "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(name)).map_err(|e| format!("{}: {e}", root.display()))?;
    }
    copy(&busybox, &root.join("bin/busybox"))?;
    for program in [target.join("debug/fide"), target.join("debug/examples/lease_probe")] {
        let to = root.join("bin").join(program.file_name().unwrap_or_default());
        Step::new("strip")
            .args(&["-o", &to.to_string_lossy(), &program.to_string_lossy()])
            .run("program of the guest")?;
        for library in libraries(&program)? {
            copy(&library, &inside(&root, &library))?;
        }
    }
    let init = root.join("init");
    fs::write(&init, include_str!("clocks/init.sh")).map_err(|e| format!("{}: {e}", init.display()))?;
    Step::new("chmod").args(&["755", &init.to_string_lossy()]).run("first program of the guest")?;
    let initial = dir.join("initial.cpio");
    pack(&busybox, &root, &initial)?;
    Ok((unpacked.join("boot").join(format!("vmlinuz-{version}")), initial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_lines_are_read() {
        assert_eq!(left_us("PROBE woke left_us=0 mono_ms=5"), Ok(0));
        assert!(first_look(&["PROBE woke left_us=12 mono_ms=5".to_owned()]).is_err());
        assert!(first_look(&[]).is_err());
    }
}
