// SPDX-License-Identifier: Apache-2.0
//! How near the timeout of a peer has come to a false suspicion.

use fide_types::Time;
use serde_json::Value;

/// A line for each peer that has sent two heartbeats.
pub(crate) fn lines(status: &Value) -> impl Iterator<Item = String> {
    status["peers"].as_array().into_iter().flatten().filter_map(says)
}

fn says(peer: &Value) -> Option<String> {
    let number = |name: &str| peer["gaps"][name].as_u64();
    let (count, longest_us, ago_us) = (number("count")?, number("longest_us")?, number("longest_ago_us")?);
    let timeout_us = peer["timeout_us"].as_u64().filter(|us| *us > 0)?;
    let (us, host) = (|us: u64| Time::us(us).to_string(), peer["host"].as_str()?);
    // Timeouts fall again.
    let of_timeout = match longest_us.checked_sub(timeout_us) {
        Some(1..) => {
            "is longer than the present timeout (it was longer then, or this host had stood still itself)".to_owned()
        }
        _ => format!("was {:.0} % of the timeout", 100.0 * longest_us as f64 / timeout_us as f64),
    };
    Some(format!(
        "heartbeats of {host}: the longest gap, {}, {of_timeout}, {} s ago; of {count}, half are within {}, 99.9 % within {}",
        us(longest_us),
        ago_us / 1_000_000,
        us(number("p50_us")?),
        us(number("p999_us")?),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn longest_gap_is_told_as_a_part_of_the_timeout() {
        let gaps = json!({
            "count": 1200, "p50_us": 1015, "p99_us": 1215, "p999_us": 2047, "p9999_us": 5100, "longest_us": 5100,
            "longest_ago_us": 42_700_000,
        });
        let none = json!({ "count": 0, "longest_us": 0, "longest_ago_us": null });
        let status = json!({ "peers": [
            { "host": "h2", "timeout_us": 10_200, "gaps": gaps },
            { "host": "h3", "timeout_us": 10_200, "gaps": none },
            { "host": "h4", "state": "unknown" },
        ] });
        let lines: Vec<String> = lines(&status).collect();
        let of_h2 = "heartbeats of h2: the longest gap, 5.1 ms, was 50 % of the timeout, 42 s ago; of 1200, half are within 1.015 ms, \
                     99.9 % within 2.047 ms";
        assert_eq!(lines, [of_h2]);
    }
}
