// SPDX-License-Identifier: Apache-2.0
//! Times for people.

use std::time::Duration;

/// Units of a time that a person gives. The other units of humantime are refused: somebody may take "1m" for a
/// millisecond.
const TIME_UNITS: [&str; 4] = ["ns", "us", "ms", "s"];

/// "250us", "1.5ms", "2s".
pub fn duration(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    humantime::parse_duration(text).ok().filter(|_| TIME_UNITS.contains(&unit))
}

/// A time with the unit that fits.
pub fn time(ns: f64) -> String {
    match ns.abs() {
        size if size < 1e3 => format!("{ns:.0} ns"),
        size if size < 1e6 => format!("{:.1} us", ns / 1e3),
        size if size < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// A sending interval: 1000 us and 1001 us are not the same.
pub fn interval(ns: u64) -> String {
    format!("{} us", ns as f64 / 1e3)
}
