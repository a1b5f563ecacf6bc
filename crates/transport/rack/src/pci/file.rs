// SPDX-License-Identifier: Apache-2.0
//! The file of a window, and its mapping.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
};

use fide_shm::region::{Mapping, RegionError};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use super::{
    PART_MIN,
    cut::{Guard, NoGuard, WINDOWS_MAX},
};
use crate::window::WORD;

/// Flags of a line of `resource`, as in the kernel's `ioport.h`.
const IS_IO: u64 = 0x100;
const IS_MEMORY: u64 = 0x200;
/// Bytes of the longest file that is no device's. All of it may come to be in memory: a process that locks its memory has all of it at once.
const LEN_MAX: u64 = 64 << 20;
/// The longest file of sysfs that is read, in bytes.
const SYSFS_MAX: u64 = 4096;

/// Why a window is not opened.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    #[error("{path}: there is no such file: the device is not there, or was removed, or has no such BAR (`ls {dir}`)", path = .path.display(), dir = dir(.path).display())]
    Missing { path: PathBuf },
    #[error("{path}: {why}: give this user the right to read and write it, or run as root", path = .path.display())]
    Permission { path: PathBuf, why: io::Error },
    #[error("{path}: {what}: name the file resourceN, or resourceN_wc, of a BAR of memory: line N, from 0 on, of {resource} has 2 as the third last digit", path = .path.display(), resource = dir(.path).join("resource").display())]
    NotMemory { path: PathBuf, what: &'static str },
    #[error("{path}: the device is not enabled, and cannot be: {why}: write 1 to it as root", path = .enable.display())]
    NotEnabled { enable: PathBuf, why: io::Error },
    #[error("{path} has {len} bytes: a window takes a multiple of {unit}, and {least} at least", path = .path.display())]
    Length { path: PathBuf, len: u64, unit: usize, least: usize },
    #[error("{path} has {len} bytes: a window that is no device's takes {LEN_MAX} at most", path = .path.display())]
    Long { path: PathBuf, len: u64 },
    #[error("{path}: no room for all of its {len} bytes: {why}; remove something else there", path = .path.display())]
    NoRoom { path: PathBuf, len: u64, why: io::Error },
    #[error("{path}: {call}: {why}; if the kernel is locked down, or a driver has the device, unbind the driver, or start the kernel without lockdown", path = .path.display())]
    Mapping { path: PathBuf, call: &'static str, why: io::Error },
    #[error("the outbound memory has {outbound} bytes, and the inbound one {inbound}: make them equal")]
    Differ { outbound: usize, inbound: usize },
    #[error("this process has {WINDOWS_MAX} memories of windows already: drop one first")]
    TooMany,
    #[error("no handler of SIGBUS: {0}")]
    Handler(io::Error),
    #[error("{path}: {why}", path = .path.display())]
    System { path: PathBuf, why: io::Error },
}

/// That the file of a device lies in.
fn dir(path: &Path) -> &Path {
    path.parent().filter(|dir| *dir != "").unwrap_or_else(|| Path::new("."))
}

/// A mapping of a whole file.
#[derive(Debug)]
pub(super) struct Memory {
    /// Before the mapping, so that it is dropped before.
    guard: Guard,
    mapping: Mapping,
    words: usize,
    /// None: it has no path.
    path: Option<PathBuf>,
    /// Of the file: its device, and its number there.
    identity: (u64, u64),
}

impl Memory {
    /// The file of a device, or of memory. `parts`: of equal length that it has to have.
    pub(super) fn open(path: &Path, parts: usize) -> Result<Self, PciError> {
        let owned = || path.to_owned();
        let bar = Bar::of(path);
        if let Some(bar) = &bar {
            bar.check(path)?;
        }
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => PciError::Missing { path: owned() },
            io::ErrorKind::PermissionDenied => PciError::Permission { path: owned(), why },
            io::ErrorKind::IsADirectory => PciError::NotMemory { path: owned(), what: "a directory" },
            _ => PciError::System { path: owned(), why },
        })?;
        if let Some(bar) = &bar {
            bar.enable()?;
        }
        Self::map(&file, Some(owned()), parts, if bar.is_some() { u64::MAX } else { LEN_MAX })
    }

    /// A file that is open for reading and writing.
    pub(super) fn of_file(file: File, parts: usize) -> Result<Self, PciError> {
        Self::map(&file, None, parts, u64::MAX)
    }

    fn map(file: &File, path: Option<PathBuf>, parts: usize, most: u64) -> Result<Self, PciError> {
        let shown = || path.clone().unwrap_or_else(|| "(a file)".into());
        let metadata = file.metadata().map_err(|why| PciError::System { path: shown(), why })?;
        if !metadata.is_file() {
            return Err(PciError::NotMemory { path: shown(), what: "neither a file of a BAR nor one of memory" });
        }
        // It may be whatever somebody has made of it.
        if metadata.len() > most {
            return Err(PciError::Long { path: shown(), len: metadata.len() });
        }
        let (unit, least) = (parts * WORD, parts * PART_MIN);
        let len = usize::try_from(metadata.len()).ok().filter(|len| len.is_multiple_of(unit) && *len >= least);
        let Some(len) = len else {
            return Err(PciError::Length { path: shown(), len: metadata.len(), unit, least });
        };
        // Else an access to one of its pages could end in SIGBUS. Some file systems cannot.
        let takes = || fallocate(file, FallocateFlags::KEEP_SIZE, 0, metadata.len());
        if most == LEN_MAX
            && let Err(why @ (Errno::NOSPC | Errno::DQUOT)) = takes()
        {
            return Err(PciError::NoRoom { path: shown(), len: metadata.len(), why: why.into() });
        }
        let mapping = Mapping::new(file.as_fd(), 0, len, true).map_err(|why| match why {
            RegionError::System { call, errno } => PciError::Mapping { path: shown(), call, why: errno.into() },
            other => PciError::Mapping { path: shown(), call: "mmap", why: io::Error::other(other) },
        })?;
        // SAFETY: the whole mapping, which only `words` gives away, as atomics that may have any value. It is a later field than the guard,
        // and so dropped after it.
        let guard = unsafe { Guard::new(mapping.as_ptr(), len) }.map_err(|why| match why {
            NoGuard::Full => PciError::TooMany,
            NoGuard::Handler(why) => PciError::Handler(why),
        })?;
        Ok(Self { guard, mapping, words: len / WORD, path, identity: identity(&metadata) })
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.words * WORD
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, begins with a page, and lives as long as `self`. Words of device memory are read and
        // written by the instructions of a `u64`: no other operation is made on them. If the memory goes away, an access finds zeros
        // (`cut`), so that each is valid at any time.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().cast::<AtomicU64>(), self.words) }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.guard.is_cut()
    }

    /// Whether its path leads to the file that is mapped, as long as it was. If not, it is cut: who opens a file that has grown has its
    /// halves elsewhere. Where that cannot be seen, as without the right to search a directory, it is taken to be there.
    pub(super) fn is_current(&self) -> bool {
        let Some(path) = &self.path else { return !self.is_cut() };
        let is_there = match fs::metadata(path) {
            Ok(now) => identity(&now) == self.identity && now.len() == self.len() as u64,
            Err(why) => !matches!(Errno::from_io_error(&why), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)),
        };
        if !is_there {
            self.guard.cut();
        }
        is_there && !self.is_cut()
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A base address register of a PCI device, as sysfs shows it.
struct Bar {
    dir: PathBuf,
    number: usize,
}

impl Bar {
    /// None: the file is not one of sysfs.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_prefix("resource")?;
        let number = name.strip_suffix("_wc").unwrap_or(name).parse().ok()?;
        let dir = dir(path).to_owned();
        ["resource", "enable"].iter().all(|name| dir.join(name).exists()).then_some(Self { dir, number })
    }

    /// Whether it is one of memory.
    fn check(&self, path: &Path) -> Result<(), PciError> {
        let resource = self.dir.join("resource");
        let lines = read(&resource).map_err(|why| PciError::System { path: resource, why })?;
        let refused = |what| Err(PciError::NotMemory { path: path.to_owned(), what });
        // Begin, end and flags.
        let flags = lines.lines().nth(self.number).and_then(|line| {
            let flags = line.split_whitespace().nth(2)?.strip_prefix("0x")?;
            u64::from_str_radix(flags, 16).ok()
        });
        match flags {
            Some(flags) if flags & IS_IO != 0 => refused("a BAR of ports, and not of memory"),
            Some(flags) if flags & IS_MEMORY == 0 => refused("the device has no such BAR"),
            None => refused("`resource` has no such line"),
            Some(_) => Ok(()),
        }
    }

    /// Has the device answer, if it does not: nobody else has enabled it.
    fn enable(&self) -> Result<(), PciError> {
        let enable = self.dir.join("enable");
        let is_off = read(&enable).is_ok_and(|count| count.trim() == "0");
        match is_off.then(|| fs::write(&enable, "1")) {
            Some(Err(why)) => Err(PciError::NotEnabled { enable, why }),
            _ => Ok(()),
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(File::open(path)?, SYSFS_MAX), &mut text)?;
    Ok(text)
}
