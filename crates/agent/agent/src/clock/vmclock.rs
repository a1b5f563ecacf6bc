// SPDX-License-Identifier: Apache-2.0
//! The hypervisor's report about its own doing: a page that it shares with the guest (VMClock,
//! `/dev/vmclock0` since Linux 6.13). A number there changes whenever the processor's counter was
//! disrupted, as by a live migration or when a snapshot is resumed.
//!
//! ```text
//!  0 u32 "VCLK", u32 size, u16 version, u8 counter, u8 kind of time, u32 sequence
//! 16 u64 disruption marker
//! ```

use std::{
    fs::File,
    os::fd::AsRawFd,
    path::Path,
    ptr,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

/// Where the kernel shows it.
pub(super) const DEVICE: &str = "/dev/vmclock0";
/// "VCLK", little endian.
const MAGIC: u32 = 0x4b4c_4356;
const MARKER_AT: usize = 16;
/// The kernel lets exactly one page be mapped; what is read of it lies at its beginning.
const PAGE_BYTES: usize = 4096;

/// The page, for as long as the process runs.
#[derive(Debug)]
pub(super) struct VmClock {
    page: NonNull<u8>,
}

// SAFETY: the page is mapped read-only, is never unmapped, and is only read by atomic loads.
unsafe impl Send for VmClock {}
// SAFETY: the same.
unsafe impl Sync for VmClock {}

impl VmClock {
    /// Maps it; `None` where there is none, or it is something else.
    #[must_use]
    pub(super) fn open(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        // SAFETY: a new mapping at an address that the kernel chooses; the descriptor is open, and the result
        // is checked.
        let page =
            unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        let page = (page != libc::MAP_FAILED).then(|| NonNull::new(page.cast::<u8>())).flatten()?;
        let found = Self { page };
        // SAFETY: a page is aligned to more than 4 bytes; nothing is written through the mapping.
        let magic = u32::from_le(unsafe { page.cast::<u32>().as_ptr().read_volatile() });
        (magic == MAGIC).then_some(found)
    }

    /// Another number than before: the machine is, or was, another one.
    #[must_use]
    pub(super) fn marker(&self) -> u64 {
        // SAFETY: within the page and aligned to 8 bytes; an atomic load, as the hypervisor writes it at any
        // time.
        let marker = unsafe { self.page.add(MARKER_AT).cast::<AtomicU64>().as_ref() };
        u64::from_le(marker.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt};

    use super::*;

    /// A page as the kernel's header (`vmclock-abi.h`) lays it out.
    fn page(magic: &[u8; 4], marker: u64) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        page[..4].copy_from_slice(magic);
        page[4..8].copy_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
        page[8..10].copy_from_slice(&1u16.to_le_bytes());
        // The processor's counter, UTC, one update so far.
        (page[10], page[11], page[12]) = (1, 0, 2);
        page[MARKER_AT..MARKER_AT + 8].copy_from_slice(&marker.to_le_bytes());
        // What follows is not the marker.
        page[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        page
    }

    #[test]
    fn marker_is_read_as_the_hypervisor_writes_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("vmclock0");
        fs::write(&path, page(b"VCLK", 0x0102_0304_0506_0708)).expect("written");
        let clock = VmClock::open(&path).expect("one");
        assert_eq!(clock.marker(), 0x0102_0304_0506_0708);
        let hypervisor = fs::OpenOptions::new().write(true).open(&path).expect("open");
        hypervisor.write_all_at(&7u64.to_le_bytes(), MARKER_AT as u64).expect("written");
        assert_eq!(clock.marker(), 7);
    }

    #[test]
    fn other_pages_are_not_taken_for_a_vmclock() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("vmclock0");
        assert!(VmClock::open(&path).is_none());
        fs::write(&path, page(b"VCLX", 1)).expect("written");
        assert!(VmClock::open(&path).is_none());
    }
}
