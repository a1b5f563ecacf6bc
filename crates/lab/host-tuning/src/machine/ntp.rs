// SPDX-License-Identifier: Apache-2.0
//! The rate of this host's clock, as NTP has found it (adjtimex).

use std::io;

/// Tick of an uncorrected clock, microseconds (USER_HZ = 100).
const TICK_US: i64 = 10_000;

/// By how much the kernel corrects its clock, and so by how much the uncorrected clock is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockRate {
    /// Parts per million, either way.
    pub off_ppm: u64,
    /// Whether the clock is kept in step with others.
    pub synchronized: bool,
}

impl ClockRate {
    /// From what adjtimex says: `freq` in ppm with 16 binary places, `tick` in microseconds.
    #[must_use]
    pub fn of(freq: i64, tick: i64, synchronized: bool) -> Self {
        let off = freq.saturating_add((tick - TICK_US) * (100 << 16));
        // Rounded up, so that a value a little beyond a limit counts as beyond it.
        let off_ppm = off.unsigned_abs().div_ceil(1 << 16);
        Self { off_ppm, synchronized }
    }

    /// Reads this host's rate, without changing anything.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read() -> io::Result<Self> {
        // SAFETY: all zero is a valid timex, and asks for no change.
        let mut timex: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: `timex` is writable and outlives the call.
        match unsafe { libc::adjtimex(&raw mut timex) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(Self::of(timex.freq, timex.tick, timex.status & libc::STA_UNSYNC == 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_follows_the_correction() {
        assert_eq!(ClockRate::of(0, 10_000, true).off_ppm, 0);
        assert_eq!(ClockRate::of(-137 << 16, 10_000, true).off_ppm, 137);
        assert_eq!(ClockRate::of(1, 10_000, true).off_ppm, 1);
        assert_eq!(ClockRate::of(-(100 << 16) - 1, 10_000, true).off_ppm, 101);
        assert_eq!(ClockRate::of(100 << 16, 10_001, true).off_ppm, 200, "chrony uses both");
        assert_eq!(ClockRate::of(-500 << 16, 9_000, false).off_ppm, 100_500);
    }

    #[test]
    fn this_host_says_its_rate() {
        assert!(ClockRate::read().is_ok());
    }
}
