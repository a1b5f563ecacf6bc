// SPDX-License-Identifier: Apache-2.0
//! An array map in our address space.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use libbpf_rs::libbpf_sys;

use crate::BpfError;

/// A mapped `BPF_MAP_TYPE_ARRAY` with values of type `T`, shared with programs that run on other
/// cores at the same time.
pub(crate) struct MappedArray<T> {
    fd: OwnedFd,
    base: NonNull<T>,
    entries: usize,
    bytes: usize,
    values: PhantomData<T>,
}

// SAFETY: the mapping is shared memory that belongs to the value; every access goes through
// volatile or atomic operations, so it may be used from whichever thread holds the value.
unsafe impl<T> Send for MappedArray<T> {}
// SAFETY: as above; concurrent access is what the map is for.
unsafe impl<T> Sync for MappedArray<T> {}

impl<T: Copy> MappedArray<T> {
    pub(crate) fn map(fd: OwnedFd, entries: usize, name: &'static str) -> Result<Self, BpfError> {
        check_layout(fd.as_fd(), size_of::<T>(), name)?;
        let page = rustix::param::page_size();
        let bytes = (size_of::<T>() * entries).next_multiple_of(page);
        // SAFETY: a fresh mapping of `bytes` bytes chosen by the kernel; the fd is a map of that size.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(BpfError::last("a BPF array could not be mapped"));
        }
        let base = NonNull::new(base.cast::<T>()).expect("mmap never returns null");
        Ok(Self { fd, base, entries, bytes, values: PhantomData })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// # Panics
    /// If `index` is out of range: indices come from checked host ids and slots.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "index {index} of a map with {} entries", self.entries);
        // SAFETY: in range of the mapping.
        unsafe { self.base.as_ptr().add(index) }
    }

    pub(crate) fn read(&self, index: usize) -> T {
        // SAFETY: in range and mapped; a torn value is possible and the caller's protocol deals with it.
        unsafe { self.at(index).read_volatile() }
    }

    pub(crate) fn write(&self, index: usize, value: T) {
        // SAFETY: in range and mapped writable.
        unsafe { self.at(index).write_volatile(value) };
        fence(Ordering::SeqCst);
    }

    /// # Safety
    /// `field` must point to an aligned `u64` inside this mapping.
    pub(crate) unsafe fn atomic(&self, field: *mut u64) -> &AtomicU64 {
        // SAFETY: the caller's promise; the mapping lives as long as `self`.
        unsafe { AtomicU64::from_ptr(field) }
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`, and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Refuses a map whose values have another size than this version's.
pub(crate) fn check_layout(fd: BorrowedFd<'_>, wanted: usize, map: &'static str) -> Result<(), BpfError> {
    // SAFETY: plain data that the kernel fills; zeroes are a valid value.
    let mut info: libbpf_sys::bpf_map_info = unsafe { std::mem::zeroed() };
    let mut len = u32::try_from(size_of_val(&info)).expect("small");
    // SAFETY: `info` is writable for `len` bytes.
    let result = unsafe { libbpf_sys::bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut info).cast(), &raw mut len) };
    if result != 0 {
        return Err(BpfError::Map {
            what: "a map did not report its layout",
            why: io::Error::from_raw_os_error(-result),
        });
    }
    let wanted = u32::try_from(wanted).expect("map values are small");
    if info.value_size != wanted {
        return Err(BpfError::Layout { map, found: info.value_size, wanted });
    }
    Ok(())
}
