// SPDX-License-Identifier: Apache-2.0
//! Whether what is known of descriptors is this process'.
//!
//! The child of a `vfork` has the memory of its parent, and closes descriptors before it begins another program: those are its own.

use std::sync::atomic::{AtomicU32, Ordering};

static OWN: AtomicU32 = AtomicU32::new(0);

/// This process has begun, or is the child of a fork.
pub(crate) fn starts() {
    OWN.store(std::process::id(), Ordering::Relaxed);
}

/// In the child of a `vfork`: whether a descriptor is still what its parent has there.
pub(crate) fn is_parents(fd: i32) -> bool {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, OWN.load(Ordering::Relaxed), std::process::id(), KCMP_FILE, fd, fd) == 0 }
}

pub(crate) fn is_own() -> bool {
    OWN.load(Ordering::Relaxed) == std::process::id()
}
