// SPDX-License-Identifier: Apache-2.0
//! Numbers for people, with the unit that fits.
//!
//! Digits are significant digits. Zeros at the end are left out, except in columns. [`time`] has three
//! digits, [`time_exact`] four.

use time::OffsetDateTime;

/// A year, in days.
const YEAR_DAYS: f64 = 365.25;
/// Units of time, by their length in ns.
const UNITS: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")];

/// For columns of numbers: four digits, with zeros at the end.
pub(crate) fn time_in_column(ns: f64) -> String {
    let (number, unit) = match time_exact(ns).split_once(' ') {
        Some((number, unit)) => (number.to_owned(), unit.to_owned()),
        None => return time_exact(ns),
    };
    let digits = number.chars().filter(char::is_ascii_digit).count();
    let zeros = 4usize.saturating_sub(digits);
    // There is nothing below a ns.
    if unit == "ns" || zeros == 0 {
        return format!("{number} {unit}");
    }
    let point = if number.contains('.') { "" } else { "." };
    format!("{number}{point}{} {unit}", "0".repeat(zeros))
}

/// Up to `digits` significant digits, no zeros at the end.
fn significant(x: f64, digits: i32) -> String {
    let whole = if x == 0.0 { 1 } else { x.abs().log10().floor() as i32 + 1 };
    let text = format!("{x:.*}", (digits - whole).clamp(0, 9) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `4.21 us`, `-150 us`, `1.5 ms`, with `digits` significant digits.
pub(crate) fn time_to(ns: f64, digits: i32) -> String {
    if !ns.is_finite() {
        return "unbounded".into();
    }
    for (unit, name) in UNITS {
        // Takes the larger unit as soon as the digits round up to it.
        if ns.abs() >= unit * (1.0 - 0.5 * 10f64.powi(-digits)) {
            return format!("{} {name}", significant(ns / unit, digits));
        }
    }
    if ns == 0.0 { "0".into() } else { format!("{} ns", significant(ns, 2)) }
}

/// A time with four digits.
pub(crate) fn time_exact(ns: f64) -> String {
    time_to(ns, 4)
}

/// A time of whole nanoseconds, with three digits: `950 ns`, `12.3 us`, `1.05 ms`, `2.5 s`.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn time(ns: u64) -> String {
    time_to(ns as f64, 3)
}

/// A difference of times, with its sign.
pub(crate) fn deviation(ns: f64) -> String {
    if ns > 0.0 { format!("+{}", time_to(ns, 3)) } else { time_to(ns, 3) }
}

/// `2 h 46 min`, for how long a run took.
pub(crate) fn duration(ns: f64) -> String {
    let s = (ns / 1e9).round();
    match s {
        ..120.0 => time_to(ns, 3),
        ..7200.0 => format!("{} min {} s", (s / 60.0).floor(), s % 60.0),
        _ => format!("{} h {} min", (s / 3600.0).floor(), (s / 60.0).floor() % 60.0),
    }
}

/// A longer time, of seconds: seconds, minutes, hours, days, years.
#[must_use]
pub fn long_time(seconds: f64) -> String {
    let days = seconds / 86_400.0;
    if !seconds.is_finite() {
        "never".to_owned()
    } else if seconds < 600.0 {
        format!("{} s", significant(seconds, 3))
    } else if seconds < 7200.0 {
        format!("{} min", significant(seconds / 60.0, 3))
    } else if days < 2.0 {
        format!("{} h", significant(seconds / 3600.0, 3))
    } else if days < YEAR_DAYS {
        format!("{} days", significant(days, 3))
    } else {
        years(days / YEAR_DAYS)
    }
}

/// `22.6 years`; `never` if the number is infinite.
#[must_use]
pub fn years(years: f64) -> String {
    if !years.is_finite() {
        "never".to_owned()
    } else if years < 1000.0 {
        match significant(years, 3) {
            one if one == "1" => "1 year".to_owned(),
            many => format!("{many} years"),
        }
    } else {
        format!("{years:.2e} years")
    }
}

/// `10,000,000`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1 tree`, `2 trees`.
#[must_use]
pub fn count_of(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// `2.5M`, for marks of an axis.
pub(crate) fn short_count(n: f64) -> String {
    let (x, suffix) = match n.abs() {
        1e9.. => (n / 1e9, "G"),
        1e6.. => (n / 1e6, "M"),
        1e4.. => (n / 1e3, "k"),
        _ => (n, ""),
    };
    format!("{}{suffix}", significant(x, 4))
}

/// `12.5%`, `0.0031%`, and below that `2.1e-7`.
#[must_use]
pub fn share(x: f64) -> String {
    match x {
        x if !x.is_finite() => "unknown".into(),
        0.0 => "0%".into(),
        x if x.abs() < 1e-5 => format!("{x:.1e}"),
        // A share below 1 must not look like 100%.
        x if x < 1.0 && x > 0.99999 => ">99.999%".into(),
        x if x < 1.0 && x > 0.9995 => format!("{}%", significant(x * 100.0, 5)),
        x => format!("{}%", significant(x * 100.0, 3)),
    }
}

/// Bits per second.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn rate(bps: u64) -> String {
    match bps {
        0..1_000 => format!("{bps} bit/s"),
        1_000..1_000_000 => format!("{} kbit/s", significant(bps as f64 / 1e3, 3)),
        1_000_000..1_000_000_000 => format!("{} Mbit/s", significant(bps as f64 / 1e6, 3)),
        _ => format!("{} Gbit/s", significant(bps as f64 / 1e9, 3)),
    }
}

/// A probability.
#[must_use]
pub fn probability(p: f64) -> String {
    if p == 0.0 || p >= 1e-3 { format!("{}", (p * 1e4).round() / 1e4) } else { format!("{p:.1e}") }
}

/// `p99.9`; `min` and `max` for 0 and 1.
pub(crate) fn percentile(share: f64) -> String {
    match share {
        0.0 => "min".into(),
        1.0 => "max".into(),
        _ => format!("p{}", significant(share * 100.0, 8)),
    }
}

/// `2024-04-12 09:30:00 UTC`.
pub(crate) fn date(unix_ns: i64) -> String {
    // Times of 64 bits in ns span the years 1677 to 2262, all of which `time` has.
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix_ns)).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC", u8::from(month))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_fits() {
        let all = [0.0, 0.4, 999.0, 1000.0, 4213.0, 999_999.0, 150_300.0, -150_000.0, 1.5e6, 2e9, 5e12];
        let words = ["0", "0.4 ns", "999 ns", "1 us", "4.213 us", "1 ms", "150.3 us", "-150 us", "1.5 ms", "2 s"];
        assert!(all.iter().zip(words).all(|(ns, words)| time_exact(*ns) == words), "{:?}", all.map(time_exact));
        assert_eq!((time_exact(5e12).as_str(), time_exact(f64::INFINITY).as_str()), ("5000 s", "unbounded"));
        assert_eq!((deviation(2e5).as_str(), deviation(-2e5).as_str()), ("+200 us", "-200 us"));
        assert_eq!([1000.0, 205e3, 12.5e6, 340.0].map(time_in_column), ["1.000 us", "205.0 us", "12.50 ms", "340 ns"]);
        assert_eq!([1e9, 600e9, 1e13].map(duration), ["1 s", "10 min 0 s", "2 h 46 min"]);
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!([0, 999, 1000, 10_000_000].map(count), ["0", "999", "1,000", "10,000,000"]);
        assert_eq!([0.0, 2500.0, 2.5e6, 50_000.0].map(short_count), ["0", "2500", "2.5M", "50k"]);
        assert_eq!([0.0, 1.0, 0.125, 0.000_031, 2.1e-7].map(share), ["0%", "100%", "12.5%", "0.0031%", "2.1e-7"]);
        assert_eq!([0.999_999_9, 0.9996].map(share), [">99.999%", "99.96%"]);
        assert_eq!([0.0, 0.5, 0.999_999, 1.0].map(percentile), ["min", "p50", "p99.9999", "max"]);
    }

    #[test]
    fn plans_have_times_rates_and_odds() {
        assert_eq!([0, 950, 12_345, 1_050_000, 999_999].map(time), ["0", "950 ns", "12.3 us", "1.05 ms", "1 ms"]);
        assert_eq!([950, 1_600_000, 10_000_000_000].map(rate), ["950 bit/s", "1.6 Mbit/s", "10 Gbit/s"]);
        assert_eq!(
            [320.0, 3600.0, 90_000.0, 200_000.0, 63_115_200.0, f64::INFINITY].map(long_time),
            ["320 s", "60 min", "25 h", "2.31 days", "2 years", "never"]
        );
        assert_eq!([1.0, 22.6, 12_345.0].map(years), ["1 year", "22.6 years", "1.23e4 years"]);
        assert_eq!([0.0, 0.0441, 2.1e-7].map(probability), ["0", "0.0441", "2.1e-7"]);
        assert_eq!((count_of(1, "tree").as_str(), count_of(2, "tree").as_str()), ("1 tree", "2 trees"));
    }

    #[test]
    fn dates() {
        let all = [0, -1, 951_782_400_000_000_000, 1_712_914_200_000_000_000].map(date);
        assert_eq!(
            all,
            [
                "1970-01-01 00:00:00 UTC",
                "1969-12-31 23:59:59 UTC",
                "2000-02-29 00:00:00 UTC",
                "2024-04-12 09:30:00 UTC"
            ]
        );
        assert_eq!([i64::MIN, i64::MAX].map(date), ["1677-09-21 00:12:43 UTC", "2262-04-11 23:47:16 UTC"]);
    }
}
