// SPDX-License-Identifier: Apache-2.0
//! Programs under the library.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// In a directory of the test: where the monitor listens, and what the programs say as they end.
pub(crate) const MONITOR: &str = "rack.sock";
pub(crate) const STATS: &str = "stats";

/// It lies beside this test or one level up.
fn library() -> PathBuf {
    const NAME: &str = "libfide_rack_preload.so";
    let program = std::env::current_exe().unwrap();
    let deps = program.parent().unwrap();
    let places = [deps.join(NAME), deps.with_file_name(NAME)];
    places.into_iter().find(|path| path.exists()).expect("cargo builds the library before the tests of its package")
}

/// Waits until it ends, and what it printed.
pub(crate) fn ends(mut child: Child, mut printed: impl Read + Send + 'static) -> String {
    let reads = thread::spawn(move || {
        let mut all = String::new();
        printed.read_to_string(&mut all).map(|_| all)
    });
    let until = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it does not end; it has printed {:?}", reads.join());
        }
        thread::sleep(Duration::from_millis(2));
    }
    reads.join().unwrap().unwrap()
}

/// The command's program gets the library.
pub(crate) fn sets(command: &mut Command, directory: &Path) {
    command
        .env("LD_PRELOAD", library())
        .env("FIDE_RACK_MONITOR", directory.join(MONITOR))
        .env("FIDE_RACK_STATS", directory.join(STATS));
}

/// Waits until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
