// SPDX-License-Identifier: Apache-2.0
//! The cluster's key file.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use fide_sys::key_file;
use fide_wire::Key;

/// Length of a key.
const KEY_BYTES: usize = 16;
/// Longest key file that is read.
const FILE_MAX: u64 = 1 << 16;

/// Why a key file was refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It could not be read, or others may read it.
    #[error(transparent)]
    File(#[from] key_file::KeyFileError),
    /// It could not be created.
    #[error("key file {path} cannot be made: {why}")]
    Write { path: PathBuf, why: io::Error },
    /// Not a key.
    #[error("key file {path}: {why}")]
    Content { path: PathBuf, why: fide_wire::KeyError },
}

/// Reads a key of 32 hexadecimal digits from a file that only its owner can read.
///
/// # Errors
/// [`KeyFileError`].
pub fn load(path: &Path) -> Result<Key, KeyFileError> {
    let text = key_file::read_text(path, FILE_MAX)?;
    text.parse().map_err(|why| KeyFileError::Content { path: path.to_owned(), why })
}

/// Creates a key of 32 hexadecimal digits from the kernel's random source, in a new file that only its
/// owner can read. An existing file stays, because its key may be in use.
///
/// # Errors
/// [`KeyFileError::Write`].
pub fn make(path: &Path) -> Result<(), KeyFileError> {
    let fail = |why: io::Error| KeyFileError::Write { path: path.to_owned(), why };
    let mut key = [0u8; KEY_BYTES];
    let mut filled = 0;
    while filled < key.len() {
        match rustix::rand::getrandom(&mut key[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(bytes) => filled += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(fail(errno.into())),
        }
    }
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).chain(["\n".to_owned()]).collect();
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(path).map_err(fail)?;
    let written = file.write_all(digits.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a key would be taken for a damaged one.
        let _ = fs::remove_file(path);
    }
    written.map_err(fail)
}

/// When a file last changed, and which file it is.
pub type Stamp = (i64, i64, u64);

/// When a file last changed, including its mode, to notice a new key.
#[must_use]
pub fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ctime(), metadata.ctime_nsec(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(mode: u32, text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("cluster.key");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode");
        (dir, path)
    }

    #[test]
    fn stamp_changes_with_the_mode_alone() {
        let (_dir, path) = write(0o440, "000102030405060708090a0b0c0d0e0f");
        assert!(load(&path).is_err());
        let refused = stamp(&path);
        assert!(refused.is_some() && stamp(&path) == refused);
        let modified = fs::metadata(&path).expect("it is there").modified().expect("a time");
        // File times advance by ticks of the kernel's clock.
        let changed = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("mode");
            stamp(&path) != refused
        });
        assert!(changed && load(&path).is_ok(), "it is looked at again");
        assert_eq!(fs::metadata(&path).expect("it is there").modified().expect("a time"), modified);
    }

    #[test]
    fn private_key_is_read() {
        let (_dir, path) = write(0o400, "000102030405060708090a0b0c0d0e0f\n");
        assert_eq!(load(&path).expect("good").0, std::array::from_fn(|i| u8::try_from(i).expect("small")));
    }

    #[test]
    fn readable_and_short_keys_are_refused_with_the_remedy() {
        let (_dir, path) = write(0o440, "000102030405060708090a0b0c0d0e0f");
        assert!(load(&path).expect_err("mode").to_string().contains("chmod 0400"));
        let (_dir, path) = write(0o400, "abc");
        assert!(load(&path).expect_err("short").to_string().contains("32 hexadecimal digits"));
    }
}
