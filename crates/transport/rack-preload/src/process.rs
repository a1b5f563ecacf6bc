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

pub(crate) fn is_own() -> bool {
    OWN.load(Ordering::Relaxed) == std::process::id()
}
