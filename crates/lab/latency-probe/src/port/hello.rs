// SPDX-License-Identifier: Apache-2.0
//! How two RDMA ports find each other: a packet over UDP, 24 bytes, little-endian.
//!
//! ```text
//!  0 magic "FDRH"     8 queue pair     16 nonce of who asks
//!  4 version 1       12 zero
//!  5 kind 1|2
//!  6 zero
//! ```
//!
//! The number of the queue pair is the only thing that a host cannot know about another: the RoCEv2 address
//! follows from the IP address, and the queue key is the same for all. Packets that are not of this form are
//! ignored.

/// Bytes of a hello.
pub(super) const HELLO: usize = 24;

const MAGIC: [u8; 4] = *b"FDRH";
const VERSION: u8 = 1;
/// Valid numbers of queue pairs: 0 and 1 are reserved for network management, and a number has 24 bits.
const QUEUE_PAIRS: std::ops::Range<u32> = 2..1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ask,
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) kind: Kind,
    /// Number of the queue pair of this packet's sender.
    pub(super) qpn: u32,
    /// An answer repeats the nonce of the question.
    pub(super) nonce: u64,
}

impl Hello {
    /// Reads a whole packet; `None` if it is not a hello.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO] = bytes.try_into().ok()?;
        let kind = match bytes[5] {
            1 => Kind::Ask,
            2 => Kind::Answer,
            _ => return None,
        };
        let hello = Self {
            kind,
            qpn: u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes")),
            nonce: u64::from_le_bytes(bytes[16..].try_into().expect("8 bytes")),
        };
        // Magic, version and zeroes are right if emitting the hello gives the same bytes.
        (hello.emit() == *bytes && QUEUE_PAIRS.contains(&hello.qpn)).then_some(hello)
    }

    pub(super) fn emit(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = match self.kind {
            Kind::Ask => 1,
            Kind::Answer => 2,
        };
        bytes[8..12].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[16..].copy_from_slice(&self.nonce.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(answer in any::<bool>(), qpn in QUEUE_PAIRS, nonce in any::<u64>()) {
            let hello = Hello { kind: if answer { Kind::Answer } else { Kind::Ask }, qpn, nonce };
            prop_assert_eq!(Hello::parse(&hello.emit()), Some(hello));
        }

        #[test]
        fn anything_may_arrive_and_what_is_read_is_what_came(
            bytes in proptest::collection::vec(any::<u8>(), 0..2 * HELLO),
        ) {
            if let Some(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(&hello.emit()[..], &bytes[..]);
            }
        }

        #[test]
        fn one_bit_elsewhere_than_in_the_fields_is_refused(at in 0..HELLO, bit in 0..8u8, qpn in QUEUE_PAIRS) {
            let hello = Hello { kind: Kind::Ask, qpn, nonce: 7 };
            let mut broken = hello.emit();
            broken[at] ^= 1u8 << bit;
            match Hello::parse(&broken) {
                None => {}
                Some(read) => {
                    prop_assert!((8..11).contains(&at) || at >= 16, "byte {}", at);
                    prop_assert_ne!(read, hello);
                }
            }
        }
    }

    #[test]
    fn other_lengths_and_numbers_are_refused() {
        let hello = Hello { kind: Kind::Answer, qpn: 17, nonce: 1 };
        let bytes = hello.emit();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&bytes[..HELLO - 1]), None);
        assert_eq!(Hello::parse(&[&bytes[..], &[0]].concat()), None);
        for qpn in [0, 1, 1 << 24, u32::MAX] {
            assert_eq!(Hello::parse(&Hello { qpn, ..hello }.emit()), None, "{qpn}");
        }
    }
}
