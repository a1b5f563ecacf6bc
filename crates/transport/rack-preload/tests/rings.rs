// SPDX-License-Identifier: Apache-2.0
//! A program that reads a connection by a ring of io_uring, under the library.

mod under;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use fide_rack::meet::monitor::Monitor;

const READ: &str = "the ring has read 9: by a ring\n";

struct Host {
    directory: tempfile::TempDir,
    _monitor: Monitor,
    program: PathBuf,
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("rings");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/rings.c");
        let compiled = Command::new("cc").args(["-Wall", "-Werror", "-o"]).arg(&program).arg(source).status().unwrap();
        assert!(compiled.success());
        let monitor = Monitor::start(&directory.path().join(under::MONITOR)).unwrap();
        Self { directory, _monitor: monitor, program }
    }

    /// What it printed, and whether its ends went over to memory.
    fn runs(&self, arguments: &[&str], rule: Option<&str>) -> (String, bool) {
        let stats = self.directory.path().join(under::STATS);
        let _ = fs::remove_file(&stats);
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        under::sets(&mut command, self.directory.path());
        if let Some(rule) = rule {
            command.env("FIDE_RACK_IO_URING", rule);
        }
        let mut child = command.spawn().unwrap();
        let printed = child.stdout.take().unwrap();
        let printed = under::ends(child, printed);
        (printed, !fs::read_to_string(stats).unwrap().ends_with("attached 0\n"))
    }
}

/// A kernel may give none to anybody.
fn has_rings(host: &Host) -> bool {
    let output = Command::new(&host.program).args(["before", "1"]).output().unwrap();
    let has = String::from_utf8_lossy(&output.stdout).contains("made");
    if !has {
        eprintln!("this kernel gives no io_uring");
    }
    has
}

fn goes_over(host: &Host, how: &str, rule: &str, prints: &str) {
    // On a host that has much else to do the memory comes late.
    for warm in ["30", "150", "1000"] {
        let (printed, is_over_memory) = host.runs(&[how, warm], Some(rule));
        assert_eq!(printed, prints);
        if is_over_memory {
            return;
        }
    }
    panic!("its connection did not go over memory");
}

#[test]
fn program_that_makes_a_ring_keeps_to_tcp() {
    let host = Host::new();
    if has_rings(&host) {
        let (printed, is_over_memory) = host.runs(&["before", "100"], None);
        assert_eq!((printed.as_str(), is_over_memory), (&*format!("ring: made\n{READ}"), false));
    }
}

#[test]
fn program_with_memory_gets_no_ring_and_reads_all_the_same() {
    let host = Host::new();
    // On a host that has much else to do the memory comes late.
    for warm in ["30", "150", "1000"] {
        let (printed, is_over_memory) = host.runs(&["after", warm], None);
        if is_over_memory {
            assert_eq!(printed, "ring: Function not implemented\nread 9: by a ring\n");
            return;
        }
        assert!(!has_rings(&host) || printed == format!("ring: made\n{READ}"), "{printed}");
    }
    panic!("its connection did not go over memory");
}

#[test]
fn program_whose_rings_are_refused_has_memory() {
    let host = Host::new();
    goes_over(&host, "before", "refuse", "ring: Function not implemented\nread 9: by a ring\n");
}

#[test]
fn program_whose_rings_are_for_files_has_both() {
    let host = Host::new();
    if has_rings(&host) {
        goes_over(&host, "files", "files", "ring: made\nread 9: by a ring\n");
    }
}
