// SPDX-License-Identifier: Apache-2.0
//! Figures with the unit that fits, and text that is safe to show.

/// Longest text of a file that is shown, characters.
pub const TEXT_MAX: usize = 80;
/// A year, in days.
const YEAR_DAYS: f64 = 365.25;

/// A time of whole nanoseconds: `950 ns`, `12.3 us`, `1.05 ms`, `2.5 s`.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", digits(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", digits(ns as f64 / 1e6)),
        _ => format!("{} s", digits(ns as f64 / 1e9)),
    }
}

/// A longer time, of seconds: seconds, minutes, hours, days, years.
#[must_use]
pub fn long_time(seconds: f64) -> String {
    let days = seconds / 86_400.0;
    if !seconds.is_finite() {
        "never".to_owned()
    } else if seconds < 600.0 {
        format!("{} s", digits(seconds))
    } else if seconds < 7200.0 {
        format!("{} min", digits(seconds / 60.0))
    } else if days < 2.0 {
        format!("{} h", digits(seconds / 3600.0))
    } else if days < YEAR_DAYS {
        format!("{} days", digits(days))
    } else {
        years(days / YEAR_DAYS)
    }
}

/// `22.6 years`; `never` if there is no end to them.
#[must_use]
pub fn years(years: f64) -> String {
    if !years.is_finite() {
        "never".to_owned()
    } else if years < 1000.0 {
        match digits(years) {
            one if one == "1" => "1 year".to_owned(),
            many => format!("{many} years"),
        }
    } else {
        format!("{years:.2e} years")
    }
}

/// Bits per second.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn rate(bps: u64) -> String {
    match bps {
        0..1_000 => format!("{bps} bit/s"),
        1_000..1_000_000 => format!("{} kbit/s", digits(bps as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} Mbit/s", digits(bps as f64 / 1e6)),
        _ => format!("{} Gbit/s", digits(bps as f64 / 1e9)),
    }
}

/// A share as percent.
#[must_use]
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.1 { "<0.1%".to_owned() } else { format!("{}%", digits(percent)) }
}

/// A probability.
#[must_use]
pub fn probability(p: f64) -> String {
    if p == 0.0 || p >= 1e-3 { format!("{}", (p * 1e4).round() / 1e4) } else { format!("{p:.1e}") }
}

/// Three digits, without zeros at the end.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// A character that does no harm on a terminal or in XML.
pub(crate) fn safe(c: char) -> char {
    match c {
        '\n' | '\t' => ' ',
        // What turns the direction of the text around it, and what XML has no place for.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{fffe}' | '\u{ffff}' => {
            '\u{fffd}'
        }
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// A string of a file on one line: no control characters, nothing that turns the direction of text, not too long.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut out: String = text.chars().take(TEXT_MAX).map(safe).collect();
    if text.chars().nth(TEXT_MAX).is_some() {
        out.push_str("...");
    }
    out
}

/// `1 tree`, `2 trees`.
#[must_use]
pub fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
