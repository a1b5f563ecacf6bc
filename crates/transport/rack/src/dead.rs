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
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RawMode, fchmod, flock, fstat, open, openat, statat,
        unlinkat,
    },
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
    owner: u32,
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
        let is_new = match fs::DirBuilder::new().mode(0o755).create(path) {
            Ok(()) => true,
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => false,
            Err(why) => return Err(failed(why)),
        };
        let opened = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|why| failed(why.into()))?;
        if is_new {
            // Whatever this process' mask is: all programs look there.
            fchmod(&opened, Mode::from_raw_mode(0o755)).map_err(|why| failed(why.into()))?;
        }
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(Unfit::Used(path.to_owned())),
            Err(why) => return Err(failed(why.into())),
        }
        let stat = fstat(&opened).map_err(|why| failed(why.into()))?;
        if stat.st_mode & OTHERS_WRITE != 0 {
            return Err(Unfit::Writable(path.to_owned()));
        }
        let directory = Self { path: path.to_owned(), opened, owner: stat.st_uid };
        directory.empties().map_err(failed)?;
        Ok(directory)
    }

    /// Removes the files of all addresses, and no others.
    fn empties(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.opened)? {
            let entry = entry?;
            let is_ours = || {
                let stat = statat(&self.opened, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size == 0)
            };
            let address = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
            if let Some(address) = address.filter(|_| is_ours()) {
                self.is_up(address)?;
            }
        }
        Ok(())
    }

    /// Programs of all users believe it: it is root's, or at [`OF_HOST`]. Else only those of its owner do.
    #[must_use]
    pub fn is_believed_by_all(&self) -> bool {
        self.owner == 0 || self.path.as_os_str().as_bytes() == OF_HOST.to_bytes()
    }

    /// The host with an address is dead.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_dead(&self, address: IpAddr) -> io::Result<()> {
        // A pipe that its owner has made there is not waited for.
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
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
    use std::{ffi::CString, os::unix::fs::PermissionsExt};

    use rustix::fs::{CWD, mknodat};

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

    /// Whoever has the directory may do what they like there, and keep nobody from ending connections.
    #[test]
    fn what_lies_in_the_place_of_an_address_keeps_nobody_waiting() {
        let at = tempfile::tempdir().unwrap();
        let directory = Directory::open(at.path()).unwrap();
        mknodat(CWD, at.path().join("10.0.0.2"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::create_dir(at.path().join("10.0.0.3")).unwrap();
        std::os::unix::fs::symlink("elsewhere", at.path().join("10.0.0.4")).unwrap();
        for address in ["10.0.0.2", "10.0.0.3", "10.0.0.4"] {
            assert!(directory.is_dead(address.parse().unwrap()).is_err(), "{address}");
        }
        // It is moved, and is written to where it is.
        let moved = at.path().with_extension("moved");
        fs::rename(at.path(), &moved).unwrap();
        directory.is_dead("10.0.0.5".parse().unwrap()).unwrap();
        assert!(moved.join("10.0.0.5").exists());
        drop(directory);
        assert!(!moved.join("10.0.0.5").exists() && moved.join("10.0.0.3").exists());
        fs::rename(&moved, at.path()).unwrap();
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
        assert!(!Directory::open(at.path()).unwrap().is_believed_by_all());
        std::os::unix::fs::chown(at.path(), Some(0), None).unwrap();
        assert!(Directory::open(at.path()).unwrap().is_believed_by_all());
    }
}
