// SPDX-License-Identifier: Apache-2.0
//! Programs of Python that are both ends of their connections, under the library, and the same without it: they see the same.

mod under;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use fide_rack::meet::monitor::Monitor;

/// What it printed, and how many ends went over to memory.
fn runs(name: &str, warm: &str, under: Option<&Path>) -> (String, u64) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/alone.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(name).env("WARM", warm).stdin(Stdio::null()).stdout(Stdio::piped());
    let stats = under.map(|directory| {
        under::sets(&mut command, directory);
        directory.join(under::STATS)
    });
    let _ = stats.as_ref().map(fs::remove_file);
    let mut child = command.spawn().unwrap();
    let printed = child.stdout.take().unwrap();
    let printed = under::ends(child, printed);
    let told = stats.map(|stats| fs::read_to_string(stats).unwrap_or_default()).unwrap_or_default();
    (printed, told.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

/// So many ends use memory at least.
fn is_the_same(name: &str, ends: u64) {
    let directory = tempfile::tempdir().unwrap();
    let _monitor = Monitor::start(&directory.path().join(under::MONITOR)).unwrap();
    let (plain, _) = runs(name, "1", None);
    assert!(!plain.is_empty());
    // On a host that has much else to do the memory comes late.
    for warm in ["30", "150", "1000"] {
        let (printed, attached) = runs(name, warm, Some(directory.path()));
        assert_eq!(printed, plain, "{name}");
        if attached >= ends {
            return;
        }
    }
    panic!("{name}: its connections did not go over memory");
}

#[test]
fn connection_that_is_tried_again_is_the_same() {
    is_the_same("retries", 2);
}

#[test]
fn waits_for_room_are_interrupted_the_same() {
    is_the_same("interrupts", 2);
}

#[test]
fn resets_are_the_same() {
    is_the_same("resets", 14);
}

#[test]
fn urgent_bytes_are_the_same() {
    is_the_same("urgent", 2);
}
