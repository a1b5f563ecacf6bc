// SPDX-License-Identifier: Apache-2.0
//! What timeouts are made of, part by part, and what would make them shorter.

use std::fmt::Write;

use fide_agent_api::status::{JitterOf, KnownPeer, Status, TimeoutParts};
use fide_types::Time;

/// A line for each timeout that peers have, with the peers that have it; none where the configuration fixes them.
pub(crate) fn lines(status: &Status) -> Vec<String> {
    let mut groups: Vec<(String, String)> = Vec::new();
    for peer in &status.peers {
        let Some(says) = peer.known.as_ref().and_then(|known| says(known, status.heartbeat_us)) else { continue };
        match groups.iter_mut().find(|(_, other)| *other == says) {
            Some((names, _)) => {
                let _ = write!(names, ", {}", peer.host);
            }
            None => groups.push((peer.host.clone(), says)),
        }
    }
    groups.into_iter().map(|(names, says)| format!("timeout of {names}: {says}")).collect()
}

fn says(peer: &KnownPeer, heartbeat_us: u64) -> Option<String> {
    let us = |us: u64| Time::us(us).to_string();
    let TimeoutParts { periods, ways, jitters, jitter_ns, network_ns, jitter_of } = peer.timeout_parts?;
    let (jitter_us, network_us) = (jitter_ns / 1000, network_ns / 1000);
    let latency_us = peer.network.latency_min_ns / 1000;
    let heartbeats_us = periods * heartbeat_us;
    let times = |count: u64, what: &str| if count == 1 { what.to_owned() } else { format!("{count} {what}s") };
    let mut line = format!(
        "{} {} + {} {} + {} {}",
        times(periods, "period"),
        us(heartbeats_us),
        times(ways, "way"),
        us(ways * latency_us),
        times(jitters, "jitter"),
        us(jitters * jitter_us)
    );
    let in_force_us = peer.timeout_us;
    if in_force_us > heartbeats_us + ways * latency_us + jitters * jitter_us + 1 {
        let _ = write!(line, ", kept at {} by what was promised or asked for", us(in_force_us));
    }
    let _ = write!(line, ". A jitter is {}", us(jitter_us - network_us));
    line.push_str(match jitter_of {
        JitterOf::Least => {
            ", the least that is assumed for a shared core: a core of its own (isolcpus, see `fide doctor`) has far less"
        }
        JitterOf::Seen => ", half as much again as its heartbeats varied in the last 20 s: `fide jitter` finds the cause",
        JitterOf::Own => ", half as much again as this host's own loop was late: `fide doctor` finds the cause",
    });
    if network_us > 0 {
        let _ = write!(line, "; and {} of the network, as planned", us(network_us));
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::tests::{known, status, unknown};

    #[test]
    fn peers_of_one_timeout_share_a_line_and_each_part_is_named() {
        let parts = |jitter_of, network_ns| {
            let jitter_ns = 3_500_000 + network_ns;
            Some(TimeoutParts { periods: 3, ways: 2, jitters: 2, jitter_ns, network_ns, jitter_of })
        };
        let peer = |host: &str, timeout_us, timeout_parts| {
            known(host, |known| KnownPeer { timeout_us, timeout_parts, ..known })
        };
        let status = status(vec![
            peer("h2", 10_200, parts(JitterOf::Least, 0)),
            peer("h3", 10_200, parts(JitterOf::Least, 0)),
            peer("h4", 26_000, parts(JitterOf::Seen, 0)),
            peer("h5", 11_200, parts(JitterOf::Own, 500_000)),
            peer("h6", 10_200, None),
            unknown("h7"),
        ]);
        let lines = lines(&status);
        assert_eq!(lines.len(), 3, "{lines:#?}");
        let sum = "3 periods 3 ms + 2 ways 200 us + 2 jitters";
        assert!(
            lines[0].starts_with(&format!("timeout of h2, h3: {sum} 7 ms. A jitter is 3.5 ms, the least")),
            "{}",
            lines[0]
        );
        assert!(lines[1].starts_with(&format!("timeout of h4: {sum} 7 ms, kept at 26 ms by what")), "{}", lines[1]);
        assert!(lines[2].starts_with(&format!("timeout of h5: {sum} 8 ms. A jitter is 3.5 ms, half")), "{}", lines[2]);
        assert!(lines[2].ends_with("; and 500 us of the network, as planned"), "{}", lines[2]);
    }
}
