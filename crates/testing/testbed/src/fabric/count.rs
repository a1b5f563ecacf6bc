// SPDX-License-Identifier: Apache-2.0
//! Counts the packets and bytes on each link.

use super::{End, Fabric};
use crate::{Error, Result};

/// Packets and bytes of one end of a link since it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCounters {
    /// Place in the specification's links.
    pub link: usize,
    /// Which end.
    pub end: End,
    /// Packets sent into the link here.
    pub tx_packets: u64,
    /// Bytes sent into the link here.
    pub tx_bytes: u64,
    /// Packets that came out of the link here.
    pub rx_packets: u64,
    /// Bytes that came out of the link here.
    pub rx_bytes: u64,
}

impl Fabric {
    /// Counters of both ends of every link, in order of the links.
    pub fn counters(&self) -> Result<Vec<LinkCounters>> {
        let mut all = Vec::new();
        let nodes = self.hosts.iter().map(|h| h.node()).chain(self.switches.iter().map(|s| s.node()));
        for node in nodes {
            // The thread's own view; /proc/net shows that of the process's first thread.
            let table = node
                .run_in(|| std::fs::read_to_string("/proc/thread-self/net/dev"))?
                .map_err(|e| Error::io("reading /proc/thread-self/net/dev", e))?;
            for (link, spec) in self.spec.links.iter().enumerate() {
                for end in [&spec.a, &spec.b].into_iter().filter(|e| e.node == node.name()) {
                    let c = parse(&table, &end.port)
                        .ok_or_else(|| Error::Spec(format!("{} has no interface {} any more", end.node, end.port)))?;
                    let [rx_bytes, rx_packets, tx_bytes, tx_packets] = c;
                    all.push(LinkCounters { link, end: end.clone(), tx_packets, tx_bytes, rx_packets, rx_bytes });
                }
            }
        }
        all.sort_by_key(|c| c.link);
        Ok(all)
    }
}

/// Received bytes and packets, sent bytes and packets of an interface in /proc/net/dev.
fn parse(table: &str, port: &str) -> Option<[u64; 4]> {
    let line = table.lines().find_map(|l| l.trim().strip_prefix(port)?.strip_prefix(':'))?;
    let fields: Vec<u64> = line.split_ascii_whitespace().map_while(|f| f.parse().ok()).collect();
    Some([*fields.first()?, *fields.get(1)?, *fields.get(8)?, *fields.get(9)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_table_is_read() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets\n  h10: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n\
                     h1: 10 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n";
        assert_eq!(parse(table, "h1"), Some([10, 2, 30, 4]));
        assert_eq!(parse(table, "h2"), None);
    }
}
