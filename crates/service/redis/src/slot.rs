// SPDX-License-Identifier: Apache-2.0
//! Slots of keys, as Redis Cluster has them, for clients that understand `-MOVED`.

/// How many slots there are.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: of the part between the first `{` and the next `}`, if there is one that is not empty.
#[must_use]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key).unwrap_or(key)) % SLOTS
}

fn tag_of(key: &[u8]) -> Option<&[u8]> {
    let begin = key.iter().position(|byte| *byte == b'{')? + 1;
    let len = key[begin..].iter().position(|byte| *byte == b'}')?;
    (len > 0).then(|| &key[begin..begin + len])
}

/// CRC16 of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(
            sum ^ u16::from(*byte) << 8,
            |sum, _| {
                if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ POLYNOMIAL }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the specification of Redis Cluster, and from CLUSTER KEYSLOT.
    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in
            [(&b"somekey"[..], 11_058), (b"foo", 12_182), (b"", 0), (b"foo{hash_tag}", 2515), (b"bar{hash_tag}", 2515)]
        {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        for whole in [&b"foo{}{bar}"[..], b"foo{bar"] {
            assert_eq!(slot_of(whole), crc16(whole) % SLOTS);
        }
    }
}
