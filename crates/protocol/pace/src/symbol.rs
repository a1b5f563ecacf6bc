// SPDX-License-Identifier: Apache-2.0
//! A symbol: a message, or a part of one, with its description. One packet carries one symbol; what is lost,
//! sent again, and protected by redundancy is a symbol as a whole.
//!
//! ```text
//!  0 u32 number of the message (its lowest 32 bits)
//!  4 u32 bytes of the message
//!  8 u32 where this part begins
//! 12 u32 when the message expires, in microseconds of the sender's clock (the lowest 32 bits)
//! 16     the part
//! ```
//!
//! Numbers are big-endian.

/// Bytes before a symbol's part of its message.
pub const DESCRIPTION_LEN: usize = 16;

/// Longest message.
pub const MESSAGE_MAX: usize = 4 << 20;

/// Longest symbol: no datagram takes more.
pub const SYMBOL_MAX: usize = 1500;

/// What a symbol is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// The lowest 32 bits of the message's number.
    pub message: u32,
    /// Bytes of the whole message.
    pub len: u32,
    /// Where this part begins in it.
    pub offset: u32,
    /// When the message expires, by the sender's clock: the lowest 32 bits.
    pub expires_us: u32,
}

impl Description {
    #[must_use]
    pub fn write(&self) -> [u8; DESCRIPTION_LEN] {
        let mut bytes = [0; DESCRIPTION_LEN];
        let numbers = [self.message, self.len, self.offset, self.expires_us];
        for (place, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// Reads a symbol: its description, and its part of the message. None: it is none.
    #[must_use]
    pub fn read(symbol: &[u8]) -> Option<(Self, &[u8])> {
        let (head, part) = symbol.split_first_chunk::<DESCRIPTION_LEN>()?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let description = Self { message: word(0), len: word(4), offset: word(8), expires_us: word(12) };
        let end = usize::try_from(description.offset).ok()?.checked_add(part.len())?;
        let len = usize::try_from(description.len).ok()?;
        // Only an empty message has an empty part.
        let is_part = end <= len && len <= MESSAGE_MAX && (!part.is_empty() || len == 0);
        is_part.then_some((description, part))
    }

    /// Whether the message ends with this part.
    #[must_use]
    pub fn is_last(&self, part: &[u8]) -> bool {
        self.offset as usize + part.len() == self.len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn description_is_read_as_written(
            message: u32, expires_us: u32, part in prop::collection::vec(any::<u8>(), 1..40), before in 0_u32..100, after in 0_u32..100
        ) {
            let len = before + u32::try_from(part.len()).unwrap() + after;
            let description = Description { message, len, offset: before, expires_us };
            let symbol = [&description.write()[..], &part].concat();
            prop_assert_eq!(Description::read(&symbol), Some((description, &part[..])));
            prop_assert_eq!(description.is_last(&part), after == 0);
        }

        #[test]
        fn whatever_is_read_is_a_part_of_its_message(symbol in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some((description, part)) = Description::read(&symbol) {
                prop_assert!(description.offset as usize + part.len() <= description.len as usize);
                prop_assert!(description.len as usize <= MESSAGE_MAX);
            }
        }
    }

    #[test]
    fn part_outside_of_its_message_is_none() {
        let of = |len, offset, part: &[u8]| {
            let description = Description { message: 1, len, offset, expires_us: 2 };
            Description::read(&[&description.write()[..], part].concat()).is_some()
        };
        assert!(of(3, 0, b"abc") && of(3, 2, b"c") && of(0, 0, b""));
        assert!(!of(3, 1, b"abc") && !of(3, u32::MAX, b"c") && !of(3, 3, b"") && !of(u32::MAX, 0, b"a"));
    }
}
