// SPDX-License-Identifier: Apache-2.0
//! Descriptors that an epoll set of the kernel's has, or that have other numbers, from before they were connections: those are not
//! followed.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::table::FDS_MAX;

static BEFORE: [AtomicU8; FDS_MAX / 8] = [const { AtomicU8::new(0) }; FDS_MAX / 8];

fn at(fd: i32) -> Option<(&'static AtomicU8, u8)> {
    let fd = usize::try_from(fd).ok()?;
    Some((BEFORE.get(fd / 8)?, 1 << (fd % 8)))
}

pub(crate) fn sets(fd: i32) {
    if let Some((word, bit)) = at(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

pub(crate) fn has(fd: i32) -> bool {
    at(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// The descriptor is closed.
pub(crate) fn clears(fd: i32) {
    if let Some((word, bit)) = at(fd)
        && word.load(Ordering::Relaxed) & bit != 0
    {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}
