// SPDX-License-Identifier: Apache-2.0
//! Writes a file as a whole: a reader, and whoever has an older one, never sees a half of it.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, fchown},
    path::Path,
};

/// What a new file may be, before the umask.
const NEW_MODE: u32 = 0o666;

/// Puts `bytes` in the place of what `to` names, in one step. An older file keeps its mode, and stays as it
/// was on an error. A device or a pipe is written to.
///
/// # Errors
/// Those of making, writing and renaming a file.
pub(crate) fn replace(to: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link stays one.
    let target = fs::canonicalize(to).unwrap_or_else(|_| to.to_owned());
    let old = match fs::metadata(&target) {
        Ok(meta) if meta.is_file() => Some(meta),
        Err(error) if error.kind() == ErrorKind::NotFound && !target.is_symlink() => None,
        _ => return fs::write(to, bytes),
    };
    if old.is_some() {
        // Whoever may not write it may not replace it either.
        OpenOptions::new().write(true).open(&target)?;
    }
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // For its error, which names no file that nobody has heard of.
    fs::metadata(dir)?;
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(".fide-").permissions(Permissions::from_mode(NEW_MODE)).tempfile_in(dir);
    let file = match made {
        Ok(file) => file,
        // There is a file that may be written, in a directory that may not.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && old.is_some() => return fs::write(to, bytes),
        Err(error) => return Err(error.kind().into()),
    };
    if let Some(old) = old {
        // Root may; others own it already, or it becomes theirs.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        file.as_file().set_permissions(old.permissions())?;
    }
    file.as_file().write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(&target).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn older_file_is_replaced_where_a_link_leads_and_keeps_its_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        replace(&file, b"1").expect("made");
        assert_eq!(fs::read(&file).expect("read"), b"1");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("set");
        symlink("file", &link).expect("linked");
        replace(&link, b"22").expect("replaced");
        assert_eq!(fs::read(&file).expect("read"), b"22");
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&file).expect("there").mode() & 0o7777, 0o640);
        symlink("later", dir.path().join("dangling")).expect("linked");
        replace(&dir.path().join("dangling"), b"3").expect("made");
        assert_eq!(fs::read(dir.path().join("later")).expect("read"), b"3");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 4, "nothing is left behind");
    }

    #[test]
    fn what_is_no_file_is_written_to_and_stays() {
        replace(Path::new("/dev/null"), b"1").expect("taken");
        assert!(!fs::metadata("/dev/null").expect("there").is_file());
        let error = replace(Path::new("/dev/full"), b"1").expect_err("full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(replace(dir.path(), b"1").expect_err("a directory").kind(), ErrorKind::IsADirectory);
        let error = replace(&dir.path().join("none/file"), b"1").expect_err("no directory");
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    }
}
