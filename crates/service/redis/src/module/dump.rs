// SPDX-License-Identifier: Apache-2.0
//! Which dumps a server has Redis write for its disk ([`super::disk`]).

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Instant,
};

/// A dump that Redis' child writes.
pub(super) struct Dump {
    pub(super) position: u64,
    /// What belongs to the data and is not in the dump.
    pub(super) beside: Vec<u8>,
    /// The file before, to tell another one from it.
    pub(super) before: Option<u64>,
}

/// A dump whose file belongs to the log, and is read for its checksum.
pub(super) struct Summed {
    pub(super) file: fs::File,
    pub(super) sum: u32,
    pub(super) dump: Dump,
}

/// What this server does for its disk.
#[derive(Default)]
pub(super) struct Dumps {
    /// The file of Redis' dumps.
    pub(super) path: PathBuf,
    pub(super) dump: Option<Dump>,
    pub(super) summed: Option<Summed>,
    pub(super) tried: Option<Instant>,
    pub(super) has_failed: bool,
    /// This server has begun to get its data back.
    pub(super) has_recovered: bool,
}

pub(super) fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|file| file.ino())
}

impl Dumps {
    pub(super) fn set_path(&mut self, path: PathBuf) {
        self.path = path;
    }
}
