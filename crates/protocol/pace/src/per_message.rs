// SPDX-License-Identifier: Apache-2.0
//! What a message takes as a rule: packets, and bytes on a link. The paces of all steps are for one message by these, whether a step is
//! measured for each message, for each packet, or in bytes a second (X-PACE §IV-B).

/// Messages of which the mean is taken: those of before count half.
const MESSAGES: u64 = 128;
/// A whole message, in the parts that its symbols are.
const WHOLE: u64 = 1 << 32;

/// The mean over recent messages of one direction, at its sender or at its receiver. A symbol is a part of a message; what is sent again,
/// and redundancy, takes packets and bytes and is no further part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PerMessage {
    /// Messages, in parts.
    parts: u64,
    packets: u64,
    bytes: u64,
}

impl PerMessage {
    /// A packet with a symbol or redundancy, of so many bytes on a link.
    pub(crate) fn packet(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }

    /// It carries a symbol for the first time: `part` bytes of a message of `len`.
    pub(crate) fn part(&mut self, part: u64, len: u64) {
        self.parts += (WHOLE * part.min(len)).checked_div(len).unwrap_or(WHOLE);
        if self.parts >= MESSAGES * WHOLE {
            *self = Self { parts: self.parts / 2, packets: self.packets / 2, bytes: self.bytes / 2 };
        }
    }

    fn of(&self, count: u64) -> Option<u64> {
        let count = u128::from(count) * u128::from(WHOLE);
        count.checked_div(self.parts.into()).map(|mean| u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Bytes on a link of a message; none before the first symbol.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.of(self.bytes)
    }

    /// The time of a message, of a step that takes this for each packet; that of one packet before the first symbol.
    pub(crate) fn packets_ns(&self, packet_ns: u64) -> u64 {
        self.of(self.packets.saturating_mul(packet_ns)).unwrap_or(packet_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_many_packets_and_one_of_a_part_of_a_packet() {
        let mut per_message = PerMessage::default();
        assert_eq!((per_message.bytes(), per_message.packets_ns(7)), (None, 7));
        // A message of three packets; then one of them again, and redundancy.
        for part in [1100, 1100, 800] {
            per_message.packet(1200);
            per_message.part(part, 3000);
        }
        assert_eq!((per_message.bytes(), per_message.packets_ns(7)), (Some(3600), 21));
        (0..2).for_each(|_| per_message.packet(1200));
        assert_eq!((per_message.bytes(), per_message.packets_ns(7)), (Some(6000), 35));
    }

    #[test]
    fn messages_of_before_are_forgotten() {
        let mut per_message = PerMessage::default();
        let mut message = |packets: u64| {
            for _ in 0..packets {
                per_message.packet(1000);
                per_message.part(10, 10 * packets);
            }
            (per_message.bytes().unwrap(), per_message.packets_ns(1000))
        };
        (0..1000).for_each(|_| _ = message(20));
        let is_near = |of: u64, expected: u64| of.abs_diff(expected) <= expected / 100;
        let (bytes, ns) = message(20);
        assert!(is_near(bytes, 20_000) && is_near(ns, 20_000), "{bytes} bytes, {ns} ns");
        let (bytes, ns) = (0..MESSAGES * 8).map(|_| message(1)).last().unwrap();
        assert!(is_near(bytes, 1000) && is_near(ns, 1000), "{bytes} bytes, {ns} ns");
    }

    #[test]
    fn empty_messages_are_messages() {
        let mut per_message = PerMessage::default();
        for _ in 0..1000 {
            per_message.packet(80);
            per_message.part(0, 0);
        }
        assert_eq!((per_message.bytes(), per_message.packets_ns(7)), (Some(80), 7));
    }
}
