// SPDX-License-Identifier: Apache-2.0
//! Writes a file as a whole: a reader sees the old content or the new, never half of it.

use std::{
    fs::{self, Metadata, OpenOptions, Permissions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, fchown},
    path::Path,
};

use tempfile::NamedTempFile;

/// Mode of a new file, before the umask.
const NEW_MODE: u32 = 0o666;

/// Replaces the file at `to` by one with the content `bytes`, in one step. The new file has the mode, owner
/// and group of the old one; on an error, the old one stays as it was. A file that cannot be replaced but can
/// be written (a device, a pipe, a file with several names, another owner's file, a file that is a mount
/// point) is written in place.
///
/// # Errors
/// The errors of making, writing and renaming a file.
pub(crate) fn replace(to: &Path, bytes: &[u8]) -> io::Result<()> {
    // A symbolic link stays a link.
    let target = fs::canonicalize(to).unwrap_or_else(|_| to.to_owned());
    let old = match fs::metadata(to) {
        Ok(meta) if is_replaceable(&target, &meta) => Some(meta),
        Err(error) if error.kind() == ErrorKind::NotFound && !target.is_symlink() => None,
        _ => return fs::write(to, bytes),
    };
    if old.is_some() {
        // A user that may not write the file may not replace it either.
        OpenOptions::new().write(true).open(&target)?;
    }
    match begun_anew(&target, old.as_ref()) {
        Ok(mut file) => {
            file.write_all(bytes)?;
            file.as_file().sync_all()?;
            match file.persist(&target) {
                // The file is a mount point, or belongs to another user in a directory like /tmp.
                Err(_) if old.is_some() => fs::write(to, bytes),
                done => done.map(drop).map_err(|error| error.error),
            }
        }
        // The directory accepts no new file, or none with this owner.
        Err(error) if old.is_some() && error.kind() != ErrorKind::StorageFull => fs::write(to, bytes),
        Err(error) => Err(error),
    }
}

/// Whether `target` is the regular file that was found, and its only name.
fn is_replaceable(target: &Path, found: &Metadata) -> bool {
    let is_same = |meta: Metadata| meta.is_file() && (meta.dev(), meta.ino()) == (found.dev(), found.ino());
    fs::symlink_metadata(target).is_ok_and(is_same) && found.nlink() == 1
}

/// Makes a temporary file beside `target`, with the mode, owner and group of the old one.
fn begun_anew(target: &Path, old: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Called for its error, which does not name the temporary file.
    fs::metadata(dir)?;
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(".fide-").permissions(Permissions::from_mode(NEW_MODE)).tempfile_in(dir);
    let file = made.map_err(|error| io::Error::from(error.kind()))?;
    if let Some(old) = old {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.as_file().set_permissions(old.permissions())?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        os::{fd::AsRawFd, unix::fs::symlink},
    };

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

    /// An unlinked file behind a descriptor, and a file with a second name.
    #[test]
    fn file_that_a_rename_would_split_is_written_to() {
        let mut unlinked = tempfile::tempfile().expect("a file");
        let path = format!("/proc/self/fd/{}", unlinked.as_raw_fd());
        replace(Path::new(&path), b"1").expect("written");
        let mut text = String::new();
        unlinked.read_to_string(&mut text).expect("read");
        assert_eq!(text, "1");
        let dir = tempfile::tempdir().expect("a directory");
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        fs::write(&one, b"older").expect("written");
        fs::hard_link(&one, &other).expect("linked");
        replace(&one, b"2").expect("written");
        assert_eq!(fs::read(&other).expect("read"), b"2");
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
