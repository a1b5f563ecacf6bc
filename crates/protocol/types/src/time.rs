// SPDX-License-Identifier: Apache-2.0
//! Times as people read them: the same everywhere, whatever the field that holds them counts in.

use core::{fmt, time::Duration};

/// A time in the unit that fits, exact to the microsecond: `950 ns`, `63.2 us`, `10.2 ms`, `2.5 s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(u64);

impl Time {
    /// Of nanoseconds.
    #[must_use]
    pub const fn ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Of microseconds.
    #[must_use]
    pub const fn us(us: u64) -> Self {
        Self(us.saturating_mul(1000))
    }
}

impl From<Duration> for Time {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit_ns, unit, digits) = match self.0 {
            0..1_000 => (1, "ns", 0),
            1_000..1_000_000 => (1_000, "us", 3),
            1_000_000..1_000_000_000 => (1_000_000, "ms", 3),
            _ => (1_000_000_000, "s", 6),
        };
        let (whole, mut rest, mut digits) = (self.0 / unit_ns, self.0 % unit_ns, digits);
        // Nanoseconds are left out where milliseconds are counted, and above.
        rest /= unit_ns / 10u64.pow(digits);
        while digits > 0 && rest.is_multiple_of(10) {
            rest /= 10;
            digits -= 1;
        }
        match digits {
            0 => write!(f, "{whole} {unit}"),
            _ => write!(f, "{whole}.{rest:0width$} {unit}", width = digits as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::string::ToString;

    use super::*;

    #[test]
    fn times_are_said_in_the_unit_that_fits() {
        for (ns, said) in [
            (0, "0 ns"),
            (950, "950 ns"),
            (1_000, "1 us"),
            (63_200, "63.2 us"),
            (10_200_000, "10.2 ms"),
            (1_000_001, "1 ms"),
            (12_345_678, "12.345 ms"),
            (2_500_000_000, "2.5 s"),
            (93_000_000_000, "93 s"),
            (1_000_001_000, "1.000001 s"),
            (u64::MAX, "18446744073.709551 s"),
        ] {
            assert_eq!(Time::ns(ns).to_string(), said);
        }
        assert_eq!(Time::us(10_200), Time::ns(10_200_000));
        assert_eq!(Time::from(Duration::from_millis(5)).to_string(), "5 ms");
    }
}
