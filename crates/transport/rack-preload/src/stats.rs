// SPDX-License-Identifier: Apache-2.0
//! What the library has done, for tests and for those who look for a reason.

use std::{
    env,
    ffi::OsString,
    fs::OpenOptions,
    io::{self, Write},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// A file that a line is appended to as the program ends, or [`STANDARD_ERROR`].
const PATH: &str = "FIDE_RACK_STATS";
/// Where standard error is a file, a second descriptor of it would have its own offset.
const STANDARD_ERROR: &str = "-";

static ATTACHED: AtomicU64 = AtomicU64::new(0);
static AT: OnceLock<Option<OsString>> = OnceLock::new();
/// What descriptor 2 was as the program began: it may be another file's by its end.
static ERRORS: OnceLock<Option<(u64, u64)>> = OnceLock::new();

fn errors() -> Option<(u64, u64)> {
    rustix::fs::fstat(io::stderr()).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

pub(crate) fn starts() {
    AT.get_or_init(|| env::var_os(PATH));
    ERRORS.get_or_init(errors);
}

pub(crate) fn attached() {
    ATTACHED.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn ends() {
    let Some(Some(path)) = AT.get() else { return };
    let line = format!("{} attached {}\n", std::process::id(), ATTACHED.load(Ordering::Relaxed));
    if path == STANDARD_ERROR {
        if errors().is_some() && ERRORS.get() == Some(&errors()) {
            let _ = io::stderr().write_all(line.as_bytes());
        }
        return;
    }
    let file = OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
