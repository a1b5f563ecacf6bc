// SPDX-License-Identifier: Apache-2.0
//! Times of waits.

use std::time::{Duration, Instant};

use libc::{c_int, timespec};

pub(crate) fn timespec_of(left: Duration) -> timespec {
    timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
}

/// The time of a wait; an error if it is none.
///
/// # Safety
/// It is null, or there.
pub(crate) unsafe fn duration(timeout: *const timespec) -> Result<Option<Duration>, c_int> {
    // SAFETY: the caller's.
    let Some(timeout) = (unsafe { timeout.as_ref() }) else { return Ok(None) };
    let nanos = u32::try_from(timeout.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000).ok_or(libc::EINVAL)?;
    Ok(Some(Duration::new(u64::try_from(timeout.tv_sec).map_err(|_| libc::EINVAL)?, nanos)))
}

pub(crate) fn until(within: Option<Duration>) -> Option<Instant> {
    within.and_then(|within| Instant::now().checked_add(within))
}
