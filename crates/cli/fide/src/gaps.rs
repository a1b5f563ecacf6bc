// SPDX-License-Identifier: Apache-2.0
//! How close heartbeat gaps came to a peer's timeout, and so to a false suspicion.

use fide_agent_api::status::{GapsInShort, PeerStatus, Status};
use fide_types::Time;

/// A line for each peer that has sent two heartbeats.
pub(crate) fn lines(status: &Status) -> impl Iterator<Item = String> {
    status.peers.iter().filter_map(says)
}

fn says(peer: &PeerStatus) -> Option<String> {
    let (host, known) = (&peer.host, peer.known.as_ref()?);
    let GapsInShort { count, longest_us, p50_us, p999_us, .. } = known.gaps?;
    let ago_us = known.gaps?.longest_ago_us?;
    let timeout_us = Some(known.timeout_us).filter(|us| *us > 0)?;
    let us = |us: u64| Time::us(us).to_string();
    // A timeout can shrink after the gap.
    let of_timeout = match longest_us.checked_sub(timeout_us) {
        Some(1..) => {
            "is longer than the present timeout (the timeout was longer then, or this host itself had stalled)"
                .to_owned()
        }
        _ => format!("was {:.0} % of the timeout", 100.0 * longest_us as f64 / timeout_us as f64),
    };
    Some(format!(
        "heartbeats of {host}: the longest gap, {}, {of_timeout}, {} s ago; of {count}, half are within {}, 99.9 % within {}",
        us(longest_us),
        ago_us / 1_000_000,
        us(p50_us),
        us(p999_us),
    ))
}

#[cfg(test)]
mod tests {
    use fide_agent_api::status::KnownPeer;

    use super::*;
    use crate::ask::tests::{known, status, unknown};

    #[test]
    fn longest_gap_is_printed_as_a_share_of_the_timeout() {
        let gaps = GapsInShort {
            count: 1200,
            p50_us: 1015,
            p99_us: 1215,
            p999_us: 2047,
            p9999_us: 5100,
            longest_us: 5100,
            longest_ago_us: Some(42_700_000),
        };
        let none = GapsInShort { count: 0, longest_us: 0, longest_ago_us: None, ..gaps };
        let peer = |host: &str, gaps| known(host, |known| KnownPeer { timeout_us: 10_200, gaps: Some(gaps), ..known });
        let status = status(vec![peer("h2", gaps), peer("h3", none), unknown("h4")]);
        let lines: Vec<String> = lines(&status).collect();
        let of_h2 = "heartbeats of h2: the longest gap, 5.1 ms, was 50 % of the timeout, 42 s ago; of 1200, half are within 1.015 ms, \
                     99.9 % within 2.047 ms";
        assert_eq!(lines, [of_h2]);
    }
}
