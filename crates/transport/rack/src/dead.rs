// SPDX-License-Identifier: Apache-2.0
//! Addresses of hosts that are declared dead: a directory with an empty file for each, named as the address is written.
//!
//! `fide rack hangup` ends the sockets of connections to a dead host, whose programs then see `ECONNABORTED`, as the kernel has no other error
//! for that. The library of `fide rack run` looks here whether the host is dead, and says `ETIMEDOUT` instead, which programs know from TCP.
//!
//! A file is made before the sockets are ended, and removed once the host is up again. It says nothing but the error of a call that has failed
//! anyway; all the same nobody is believed but who could end the program as well: [`is_dead`].

use std::{
    ffi::CStr,
    fmt, fs,
    io::{self, Write},
    net::IpAddr,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FlockOperation, Mode, OFlags, RawMode, flock, fstat, open, openat, statat, unlinkat},
    io::Errno,
};

/// The directory of a host, as `packaging/fide-hangup.service` has it made. Only root can make one there.
pub const OF_HOST: &CStr = c"/run/fide-hangup";
/// Others may write there.
const OTHERS_WRITE: RawMode = 0o022;
/// Bytes of the longest address, and a 0 behind it.
const NAME_MAX: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len() + 1;

/// The name of an address' file; an IPv4 address that is mapped into IPv6 has that of the former.
struct Name([u8; NAME_MAX]);

impl Name {
    fn of(address: IpAddr) -> Self {
        let mut bytes = [0; NAME_MAX];
        // The buffer has room for each address.
        let _ = write!(&mut bytes[..NAME_MAX - 1], "{}", address.to_canonical());
        Self(bytes)
    }

    fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Whether a directory says that the host with an address is dead. One is believed that nobody may write to but root, its user, or at
/// [`OF_HOST`] whoever root has given it to. Allocates nothing.
#[must_use]
pub fn is_dead(directory: &CStr, address: IpAddr) -> bool {
    let looks = || -> Result<bool, Errno> {
        let opened = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&opened)?;
        let own = rustix::process::geteuid().as_raw();
        let is_trusted = directory == OF_HOST || stat.st_uid == 0 || stat.st_uid == own;
        if !is_trusted || stat.st_mode & OTHERS_WRITE != 0 {
            return Ok(false);
        }
        statat(&opened, Name::of(address).as_c(), AtFlags::SYMLINK_NOFOLLOW).map(|_| true)
    };
    looks().unwrap_or(false)
}

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("{}: {why}", .path.display())]
    Io { path: PathBuf, why: io::Error },
    #[error("{} is used by another `fide rack hangup`: name another one", .0.display())]
    Used(PathBuf),
    #[error("{} may be written to by others than its owner: chmod go-w it, or name another one", .0.display())]
    Writable(PathBuf),
}

/// The directory, as the one program has it that says who is dead. Dropped, its files are removed.
pub struct Directory {
    path: PathBuf,
    opened: OwnedFd,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Directory").field(&self.path).finish()
    }
}

impl Directory {
    /// Makes the directory, if there is none, and removes the files of addresses that a former program has left there.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn open(path: &Path) -> Result<Self, Unfit> {
        let failed = |why| Unfit::Io { path: path.to_owned(), why };
        match fs::DirBuilder::new().mode(0o755).create(path) {
            // Whatever this process' mask is: all programs look there.
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed)?,
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err(failed(why)),
        }
        let opened = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|why| failed(why.into()))?;
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Unfit::Used(path.to_owned())),
            Err(why) => return Err(failed(why.into())),
        }
        if fs::metadata(path).map_err(failed)?.mode() & OTHERS_WRITE != 0 {
            return Err(Unfit::Writable(path.to_owned()));
        }
        let directory = Self { path: path.to_owned(), opened };
        directory.empties().map_err(failed)?;
        Ok(directory)
    }

    /// Removes the files of all addresses, and no others.
    fn empties(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let address = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(address) =
                address.filter(|_| entry.metadata().is_ok_and(|file| file.is_file() && file.len() == 0))
            {
                self.is_up(address)?;
            }
        }
        Ok(())
    }

    /// The host with an address is dead.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_dead(&self, address: IpAddr) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.opened, Name::of(address).as_c(), flags, Mode::RUSR | Mode::RGRP | Mode::ROTH)?;
        Ok(())
    }

    /// It is up again.
    ///
    /// # Errors
    /// The kernel's. That it was not dead is none.
    pub fn is_up(&self, address: IpAddr) -> io::Result<()> {
        match unlinkat(&self.opened, Name::of(address).as_c(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => Ok(done?),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = self.empties();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn addresses_are_dead_until_they_are_up_or_the_program_ends() {
        let at = tempfile::tempdir().unwrap();
        let path = at.path().join("dead");
        let as_c = CString::new(path.to_str().unwrap()).unwrap();
        let says = |address: &str| is_dead(&as_c, address.parse().unwrap());
        assert!(!says("10.0.0.2"), "there is no directory");
        let directory = Directory::open(&path).unwrap();
        for address in ["10.0.0.2", "fd00::2"] {
            directory.is_dead(address.parse().unwrap()).unwrap();
            directory.is_dead(address.parse().unwrap()).unwrap();
        }
        assert!(says("10.0.0.2") && says("::ffff:10.0.0.2") && says("fd00::2") && !says("10.0.0.22"));
        assert!(matches!(Directory::open(&path), Err(Unfit::Used(_))));
        directory.is_up("10.0.0.2".parse().unwrap()).unwrap();
        directory.is_up("10.0.0.3".parse().unwrap()).unwrap();
        assert!(!says("10.0.0.2") && says("fd00::2"));
        // What is not of this program stays.
        fs::write(path.join("10.0.0.4"), "x").unwrap();
        fs::write(path.join("note"), "").unwrap();
        drop(directory);
        assert!(!says("fd00::2") && says("10.0.0.4") && path.join("note").exists());
        // One that was killed has left this.
        fs::write(path.join("10.0.0.5"), "").unwrap();
        let _directory = Directory::open(&path).unwrap();
        assert!(!says("10.0.0.5"));
    }

    #[test]
    fn directory_that_others_may_write_to_is_not_believed() {
        let at = tempfile::tempdir().unwrap();
        let as_c = CString::new(at.path().to_str().unwrap()).unwrap();
        fs::write(at.path().join("10.0.0.2"), "").unwrap();
        for (mode, is_believed) in [(0o755, true), (0o775, false), (0o777, false), (0o700, true)] {
            fs::set_permissions(at.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_dead(&as_c, "10.0.0.2".parse().unwrap()), is_believed, "{mode:o}");
            assert_eq!(Directory::open(at.path()).is_ok(), is_believed, "{mode:o}");
            fs::write(at.path().join("10.0.0.2"), "").unwrap();
        }
    }

    /// Root may give a directory to any user.
    #[test]
    fn root_directory_of_another_user_is_not_believed() {
        let at = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(at.path(), Some(54_321), None).is_err() {
            return;
        }
        let as_c = CString::new(at.path().to_str().unwrap()).unwrap();
        fs::write(at.path().join("10.0.0.2"), "").unwrap();
        assert!(!is_dead(&as_c, "10.0.0.2".parse().unwrap()));
    }
}
