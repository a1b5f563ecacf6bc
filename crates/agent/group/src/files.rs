// SPDX-License-Identifier: Apache-2.0
//! Files that are there, whole, after a power cut.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

/// Stores a file in place of one that may be there, by way of `new`; stored when this returns.
pub(crate) fn replace(path: &Path, new: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(new)?;
    file.write_all(content)?;
    file.sync_all()?;
    rename(new, path)
}

/// Renames a file that is stored; its new name is stored when this returns.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_dir(to.parent().unwrap_or(Path::new(".")))
}

/// Stores which files a folder has.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}
