// SPDX-License-Identifier: Apache-2.0
//! Reads files with keys, which nobody but their owner may read.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::bounded;

/// Why a key file was not read.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It could not be read.
    #[error("key file {path}: {why}")]
    Read { path: PathBuf, why: io::Error },
    /// Others may read or write it.
    #[error(
        "key file {path} has mode {mode:04o}; whoever reads it can forge a death, so make it 0400: chmod 0400 {path}"
    )]
    Mode { path: PathBuf, mode: u32 },
}

/// The text of a file of at most `max` bytes that only its owner can read.
///
/// # Errors
/// [`KeyFileError`].
pub fn read_text(path: &Path, max: u64) -> Result<String, KeyFileError> {
    let read = |why| KeyFileError::Read { path: path.to_owned(), why };
    let mode = std::fs::metadata(path).map_err(read)?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Mode { path: path.to_owned(), mode });
    }
    bounded::read_text(path, max).map_err(read)
}
