// SPDX-License-Identifier: Apache-2.0
//! Regions of shared memory: sealed memfds and their mappings.

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{MemfdFlags, Mode, OFlags, SealFlags},
    io::Errno,
    mm::{MapFlags, ProtFlags},
};
use std::{os::fd::AsRawFd, ptr::NonNull};

/// Why a region could not be made or mapped.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// What was tried.
        call: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
    /// The file has another size than its layout.
    #[error(
        "shared memory of {actual} bytes where this version expects {expected}; agent and client are of different versions"
    )]
    Size {
        /// Size of the file.
        actual: u64,
        /// Size of the layout.
        expected: u64,
    },
    /// The file could be shrunk under us.
    #[error("shared memory that is not sealed against resizing is refused (it needs F_SEAL_SHRINK and F_SEAL_GROW)")]
    NotSealed,
    /// The content is not what it should be.
    #[error("not {what}: magic {actual:#018x} where {expected:#018x} is expected")]
    Magic {
        /// What was expected.
        what: &'static str,
        /// Found.
        actual: u64,
        /// Expected.
        expected: u64,
    },
    /// The content is of another version.
    #[error(
        "{what} of layout version {actual}, this program knows {expected}; use the client library that came with the agent"
    )]
    Version {
        /// What it is.
        what: &'static str,
        /// Found.
        actual: u32,
        /// Expected.
        expected: u32,
    },
    /// A ring in the region contradicts itself.
    #[error(transparent)]
    Ring(#[from] crate::spsc::Broken),
}

impl RegionError {
    fn system(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { call, errno }
    }
}

/// A shared mapping of a file; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory owned by this value; users reach it only through atomics or raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, shared; writable if asked for.
    ///
    /// # Errors
    /// What the kernel said, [`Errno::INVAL`] for a zero length among them.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> Result<Self, RegionError> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this program.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset) }
            .map_err(RegionError::system("mmap of shared memory"))?;
        let start = NonNull::new(start.cast()).ok_or(RegionError::System { call: "mmap", errno: Errno::NOMEM })?;
        Ok(Self { start, len })
    }

    /// Maps `len` bytes of no file, all of them 0, shared with the processes that this one forks.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub fn anonymous(len: usize) -> Result<Self, RegionError> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::SHARED) }
            .map_err(RegionError::system("mmap of anonymous memory"))?;
        let start = NonNull::new(start.cast()).ok_or(RegionError::System { call: "mmap", errno: Errno::NOMEM })?;
        Ok(Self { start, len })
    }

    /// First byte; page aligned.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of a mapping made here, and nobody holds a reference into it: they
        // all borrow from this value.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A type that may lie in shared memory.
///
/// # Safety
/// All fields are atomics or arrays of such, or padding; every bit pattern is valid; alignment at most 4096.
pub unsafe trait Shared: Sized {}

/// A memfd of exactly `size_of::<T>()` bytes, mapped for reading and writing.
pub struct Region<T: Shared> {
    fd: OwnedFd,
    mapping: Mapping,
    of: std::marker::PhantomData<T>,
}

impl<T: Shared> Region<T> {
    /// Makes a new, zeroed region, sealed against shrinking, growing and further seals, closed on exec.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn create(name: &str) -> Result<Self, RegionError> {
        const MFD_NOEXEC_SEAL: MemfdFlags = MemfdFlags::from_bits_retain(8);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create(name, flags | MFD_NOEXEC_SEAL) {
            // Kernels before 6.3 do not know the flag.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
            other => other,
        }
        .map_err(RegionError::system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, size_of::<T>() as u64).map_err(RegionError::system("ftruncate of a memfd"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(RegionError::system("sealing of a memfd"))?;
        Self::map(fd)
    }

    /// Maps a region made by [`Region::create`], of this process or another (a client, or the agent before
    /// this one); or memory of the kernel's that it lets be mapped, such as a BPF map, which has neither size
    /// nor holes.
    ///
    /// # Errors
    /// [`RegionError::Size`] or [`RegionError::NotSealed`] if it is not one, or what the kernel said.
    pub fn map(fd: OwnedFd) -> Result<Self, RegionError> {
        check::<T>(fd.as_fd())?;
        let mapping = Mapping::new(fd.as_fd(), 0, size_of::<T>(), true)?;
        Ok(Self { fd, mapping, of: std::marker::PhantomData })
    }

    /// The content.
    pub fn get(&self) -> &T {
        // SAFETY: the mapping has size_of::<T>() bytes (checked against the sealed file), is page aligned, lives as
        // long as `self`, and `T: Shared` is valid for every content that other processes may put there.
        unsafe { &*self.mapping.as_ptr().cast::<T>() }
    }

    /// Its descriptor; it is mapped here no more.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.fd
    }

    /// A second descriptor of the same memory, through which a receiver without this process's rights cannot write:
    /// the file is made mode 0444 and opened again for reading only. (The own user and root can always undo that.)
    ///
    /// # Errors
    /// What the kernel said; `/proc` must be mounted.
    pub fn read_only_fd(&self) -> Result<OwnedFd, RegionError> {
        let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        rustix::fs::fchmod(&self.fd, mode).map_err(RegionError::system("fchmod of a memfd"))?;
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(RegionError::system("opening a memfd again through /proc/self/fd"))
    }
}

impl<T: Shared> std::fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("fd", &self.fd).field("mapping", &self.mapping).finish()
    }
}

impl<T: Shared> std::fmt::Debug for ReadRegion<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadRegion").field("mapping", &self.mapping).finish()
    }
}

impl<T: Shared> AsFd for Region<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Memory that is mapped without its descriptor: for a program whose descriptors are not ours to take.
pub struct Mapped<T: Shared> {
    mapping: Mapping,
    of: std::marker::PhantomData<T>,
}

impl<T: Shared> Mapped<T> {
    /// New memory, all of it 0, which a process shares with those it forks and with nobody else.
    ///
    /// # Errors
    /// [`RegionError::System`]: the kernel has no memory.
    pub fn anonymous() -> Result<Self, RegionError> {
        Ok(Self { mapping: Mapping::anonymous(size_of::<T>())?, of: std::marker::PhantomData })
    }

    /// Maps a region for reading and writing; the descriptor is not needed afterwards.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        check::<T>(fd)?;
        Ok(Self { mapping: Mapping::new(fd, 0, size_of::<T>(), true)?, of: std::marker::PhantomData })
    }

    /// The content.
    pub fn get(&self) -> &T {
        // SAFETY: as in `Region::get`; anonymous memory has the size it was made with.
        unsafe { &*self.mapping.as_ptr().cast::<T>() }
    }
}

impl<T: Shared> std::fmt::Debug for Mapped<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapped").field("mapping", &self.mapping).finish()
    }
}

/// A region mapped for reading only.
pub struct ReadRegion<T: Shared> {
    mapping: Mapping,
    of: std::marker::PhantomData<T>,
}

impl<T: Shared> ReadRegion<T> {
    /// Maps a region for reading; the descriptor is not needed afterwards.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        check::<T>(fd)?;
        Ok(Self { mapping: Mapping::new(fd, 0, size_of::<T>(), false)?, of: std::marker::PhantomData })
    }

    /// The content.
    ///
    /// # Safety
    /// The caller only loads through it: the memory is mapped read-only, and a store faults.
    pub unsafe fn get(&self) -> &T {
        // SAFETY: as in `Region::get`; the caller only loads.
        unsafe { &*self.mapping.as_ptr().cast::<T>() }
    }
}

/// Bits of a mode that say what kind of file it is; none are set for an anonymous inode of the kernel.
const S_IFMT: u32 = 0o170_000;

fn check<T>(fd: BorrowedFd<'_>) -> Result<(), RegionError> {
    let stat = rustix::fs::fstat(fd).map_err(RegionError::system("fstat of shared memory"))?;
    if stat.st_mode & S_IFMT == 0 {
        // No file at all: mapping more of it than there is fails, and it cannot shrink.
        return Ok(());
    }
    let (actual, expected) = (stat.st_size as u64, size_of::<T>() as u64);
    if actual != expected {
        return Err(RegionError::Size { actual, expected });
    }
    // A file that is no memfd does not know seals at all.
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(RegionError::NotSealed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[repr(C)]
    struct Page([AtomicU64; 1024]);
    // SAFETY: only atomics.
    unsafe impl Shared for Page {}

    #[test]
    fn two_mappings_share_and_the_read_only_one_cannot_be_mapped_writable() {
        let region = Region::<Page>::create("test").unwrap();
        let read_only = region.read_only_fd().unwrap();
        let view = ReadRegion::<Page>::map(read_only.as_fd()).unwrap();
        region.get().0[1023].store(7, Ordering::Relaxed);
        // SAFETY: it only loads.
        assert_eq!(unsafe { view.get() }.0[1023].load(Ordering::Relaxed), 7);
        let refused = Mapping::new(read_only.as_fd(), 0, size_of::<Page>(), true).unwrap_err();
        assert!(matches!(refused, RegionError::System { errno: Errno::ACCESS, .. }), "{refused}");
        assert_eq!(rustix::fs::fstat(&region.fd).unwrap().st_mode & 0o777, 0o444);
    }

    #[test]
    fn memory_stays_mapped_without_its_descriptor() {
        let region = Region::<Page>::create("test").unwrap();
        let mapped = Mapped::<Page>::map(region.as_fd()).unwrap();
        region.get().0[7].store(7, Ordering::Relaxed);
        drop(region);
        assert_eq!(mapped.get().0[7].load(Ordering::Relaxed), 7);
        let anonymous = Mapped::<Page>::anonymous().unwrap();
        assert_eq!(anonymous.get().0[1023].swap(1, Ordering::Relaxed), 0);
        let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(matches!(Mapped::<Page>::map(unsealed.as_fd()), Err(RegionError::NotSealed)));
    }

    #[test]
    fn anonymous_inode_that_cannot_be_mapped_is_refused() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Region::<Page>::map(eventfd), Err(RegionError::System { .. })));
    }

    #[test]
    fn the_size_is_sealed() {
        let region = Region::<Page>::create("test").unwrap();
        assert_eq!(rustix::fs::ftruncate(&region.fd, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&region.fd, 1 << 20), Err(Errno::PERM));
    }

    #[test]
    fn wrong_sizes_and_unsealed_files_are_refused() {
        let small = rustix::fs::memfd_create("small", MemfdFlags::CLOEXEC).unwrap();
        let error = Region::<Page>::map(small).unwrap_err();
        assert!(error.to_string().contains("0 bytes where this version expects 8192"), "{error}");
        let unsealed = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(matches!(ReadRegion::<Page>::map(unsealed.as_fd()), Err(RegionError::NotSealed)));
    }
}
