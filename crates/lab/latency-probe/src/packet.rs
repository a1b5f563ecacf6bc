// SPDX-License-Identifier: Apache-2.0
//! A packet of the bench: 64 bytes, little-endian, and padding.
//!
//! ```text
//!  0 magic "FDPP"     8 run (random)    32 ts2 of B      56 incarnation of B
//!  4 version 1       16 id             40 ts3 of B      60 zero
//!  5 kind 1|2        24 ts1 of A       48 B's kernel    64 padding
//!  6 bytes in all
//! ```
//!
//! A packet that is not of this form, or is of another run, is ignored.

use fide_bpf::pingpong::{MAGIC, PING, PONG, VERSION};
use fide_jitter_analysis::MISSING;

/// Bytes of the header; also the length of the shortest packet.
pub const HEADER: usize = fide_bpf::pingpong::HEADER;

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ping,
    Pong,
}

/// The header, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    /// Length of the whole payload, so that the answer is as long as the ping even where only the header is
    /// passed on.
    pub packet_bytes: u16,
    /// Distinguishes runs: a late answer of the run before does not count.
    pub run: u64,
    pub id: u64,
    /// Time on A's CLOCK_MONOTONIC.
    pub ts1_ns: i64,
    /// Time on B's CLOCK_MONOTONIC, as are the next two; 0 in a ping.
    pub ts2_ns: i64,
    pub ts3_ns: i64,
    /// When B's kernel or card saw the ping; [`MISSING`] if it did not report it.
    pub kernel_ns: i64,
    /// Incarnation of B: it changes when B is started again.
    pub incarnation: u32,
}

impl Header {
    /// Reads a packet; `None` if it is not one of the bench's packets.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.get(..HEADER)?.try_into().ok()?;
        if bytes[..4] != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let kind = match bytes[5] {
            PING => Kind::Ping,
            PONG => Kind::Pong,
            _ => return None,
        };
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let kernel_ns = word(48).cast_signed();
        Some(Self {
            kind,
            packet_bytes: u16::from_le_bytes([bytes[6], bytes[7]]),
            run: word(8),
            id: word(16),
            ts1_ns: word(24).cast_signed(),
            ts2_ns: word(32).cast_signed(),
            ts3_ns: word(40).cast_signed(),
            kernel_ns: if kernel_ns == 0 { MISSING } else { kernel_ns },
            incarnation: u32::from_le_bytes(bytes[56..60].try_into().expect("4 bytes")),
        })
    }

    /// Writes it to the front of a packet.
    ///
    /// # Panics
    /// If the packet is shorter than [`HEADER`].
    pub fn emit(&self, packet: &mut [u8]) {
        let kernel_ns = if self.kernel_ns == MISSING { 0 } else { self.kernel_ns };
        packet[..4].copy_from_slice(&MAGIC);
        packet[4] = VERSION;
        packet[5] = match self.kind {
            Kind::Ping => PING,
            Kind::Pong => PONG,
        };
        packet[6..8].copy_from_slice(&self.packet_bytes.to_le_bytes());
        for (at, word) in [
            (8, self.run),
            (16, self.id),
            (24, self.ts1_ns.cast_unsigned()),
            (32, self.ts2_ns.cast_unsigned()),
            (40, self.ts3_ns.cast_unsigned()),
            (48, kernel_ns.cast_unsigned()),
        ] {
            packet[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        packet[56..60].copy_from_slice(&self.incarnation.to_le_bytes());
        packet[60..64].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            (run, id, incarnation, packet_bytes) in any::<(u64, u64, u32, u16)>(),
            (ts1_ns, ts2_ns, ts3_ns) in any::<(i64, i64, i64)>(),
            kernel_ns in prop_oneof![Just(MISSING), 1..i64::MAX],
            pong in any::<bool>(),
        ) {
            let kind = if pong { Kind::Pong } else { Kind::Ping };
            let header = Header { kind, packet_bytes, run, id, ts1_ns, ts2_ns, ts3_ns, kernel_ns, incarnation };
            let mut packet = [0xaa; HEADER + 10];
            header.emit(&mut packet);
            prop_assert_eq!(Header::parse(&packet), Some(header));
            prop_assert_eq!(Header::parse(&packet[..HEADER - 1]), None);
        }

        #[test]
        fn anything_may_arrive(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::parse(&bytes);
        }
    }

    #[test]
    fn other_versions_and_kinds_are_refused() {
        let mut packet = [0; HEADER];
        let header = Header {
            kind: Kind::Ping,
            packet_bytes: 64,
            run: 1,
            id: 2,
            ts1_ns: 3,
            ts2_ns: 0,
            ts3_ns: 0,
            kernel_ns: MISSING,
            incarnation: 0,
        };
        header.emit(&mut packet);
        for (at, value) in [(0, b'f'), (4, 2), (5, 0), (5, 3)] {
            let mut broken = packet;
            broken[at] = value;
            assert_eq!(Header::parse(&broken), None, "byte {at}");
        }
    }
}
