// SPDX-License-Identifier: Apache-2.0
//! Files that are replaced as a whole, and never readable by others for a moment.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::{Error, Result};

/// The permissions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// 0600.
    Owner,
    /// 0644; the directory still keeps others out.
    All,
}

/// Makes `dir` with mode 0700, or checks that nobody else can use it.
pub(super) fn private_dir(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(()),
        Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
        Err(why) => return Err(Error::io("making", dir)(why)),
    }
    let meta = std::fs::metadata(dir).map_err(Error::io("looking at", dir))?;
    if !meta.is_dir() {
        return Err(Error::content(dir, "is no directory; name one"));
    }
    match meta.permissions().mode() & 0o077 {
        0 => Ok(()),
        _ => Err(Error::Open { path: dir.to_owned(), mode: meta.permissions().mode() & 0o777 }),
    }
}

/// Puts `text` to `path`: whole and on disk, or not at all. Without `overwrite` only where nothing is.
pub(super) fn write(path: &Path, text: &str, access: Access, overwrite: bool) -> Result<()> {
    let dir = path.parent().ok_or_else(|| Error::content(path, "has no directory"))?;
    // Made with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(Error::io("writing in", dir))?;
    let failed = || Error::io("writing", path);
    file.write_all(text.as_bytes()).map_err(failed())?;
    if access == Access::All {
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(failed())?;
    }
    file.as_file().sync_all().map_err(failed())?;
    match overwrite {
        true => file.persist(path).map_err(|e| failed()(e.error))?,
        false => file.persist_noclobber(path).map_err(|e| match e.error.kind() {
            ErrorKind::AlreadyExists => Error::Exists { path: path.to_owned() },
            _ => failed()(e.error),
        })?,
    };
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed())
}

/// Reads a file of at most `max` bytes.
pub(super) fn read(path: &Path, max: u64, hint: &'static str) -> Result<String> {
    let meta = std::fs::metadata(path).map_err(|why| match why.kind() {
        ErrorKind::NotFound => Error::Missing { path: path.to_owned(), hint },
        _ => Error::io("reading", path)(why),
    })?;
    if meta.len() > max {
        return Err(Error::content(path, format!("has {} bytes, at most {max} are read", meta.len())));
    }
    std::fs::read_to_string(path).map_err(Error::io("reading", path))
}
