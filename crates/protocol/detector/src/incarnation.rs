// SPDX-License-Identifier: Apache-2.0
//! The number that tells one life of a host's agent from the next, and how it follows from the wall clock and
//! the host's disk. It is stored elsewhere: by `incarnation.rs` of the agent on a host, on a simulated disk
//! in the simulator.

/// 2100-01-01: a wall clock beyond that is wrong, and is not believed. A number taken from it could never be
/// taken back.
pub const BELIEVED_BEFORE_S: u64 = 4_102_444_800;

/// Why there is no next incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoIncarnation {
    /// Only the clock could tell how far earlier lives have come.
    #[error("the last incarnation is not known and the wall clock is beyond the year 2100; set the clock")]
    Clock,
    #[error("the highest incarnation was used; no higher one exists")]
    Last,
}

/// The next incarnation: the wall clock's seconds since 1970, which fit 32 bits until 2106; but above `last`,
/// which this host had before, and above the highest `generation` of views on its disk. `None`: the disk
/// holds no such number.
///
/// # Errors
/// [`NoIncarnation`].
pub fn next(last: Option<u32>, generation: Option<u32>, clock_s: u64) -> Result<u32, NoIncarnation> {
    let by_clock = if clock_s < BELIEVED_BEFORE_S { u32::try_from(clock_s).ok() } else { None };
    if last.is_none() && by_clock.is_none() {
        // The generation does not tell how far earlier lives have come.
        return Err(NoIncarnation::Clock);
    }
    let above = match last.max(generation) {
        None => 1,
        Some(highest) => highest.checked_add(1).ok_or(NoIncarnation::Last)?,
    };
    Ok(above.max(by_clock.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_incarnation_is_above_all_that_the_disk_holds() {
        assert_eq!(next(None, None, 1000), Ok(1000));
        assert_eq!(next(Some(1000), None, 1000), Ok(1001));
        assert_eq!(next(Some(1000), Some(8200), 1010), Ok(8201));
        assert_eq!(next(Some(8201), Some(8200), 9000), Ok(9000));
        assert_eq!(next(None, Some(8200), 1010), Ok(8201));
    }

    #[test]
    fn clock_beyond_2100_is_not_believed() {
        assert_eq!(next(None, Some(7), BELIEVED_BEFORE_S), Err(NoIncarnation::Clock));
        assert_eq!(next(Some(7), None, u64::MAX), Ok(8));
        assert_eq!(next(Some(7), Some(u32::MAX), 9), Err(NoIncarnation::Last));
    }
}
