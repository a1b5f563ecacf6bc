// SPDX-License-Identifier: Apache-2.0
//! The revocation list: a text file, one serial number a line in hexadecimal, `#` begins a comment.

use std::collections::BTreeSet;
use std::fmt;

/// Certificates on the list. More are refused: replace the authority then.
pub const REVOKED_MAX: usize = 100_000;
/// Bytes of the file.
pub const REVOKED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes of a serial number (RFC 5280 §4.1.2.2).
pub const SERIAL_MAX: usize = 20;

/// A certificate's serial number without leading zeros.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(Vec<u8>);

/// Why a line or a list was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevokedError {
    #[error(
        "line {line} of the revocation list is no serial number; write 1 to {SERIAL_MAX} bytes in hexadecimal, as `status` \
         shows them"
    )]
    Line { line: usize },
    #[error("the revocation list does not end with a newline, so it may be cut off; end its last line")]
    Cut,
    #[error("the revocation list has more than {REVOKED_MAX} entries; replace the authority instead")]
    TooMany,
}

impl Serial {
    /// From the bytes of a certificate, with or without leading zeros.
    pub fn new(bytes: &[u8]) -> Serial {
        let zeros = bytes.iter().take_while(|b| **b == 0).count();
        Serial(bytes[zeros..].to_vec())
    }

    /// Reads hexadecimal digits, with colons between bytes or without.
    pub fn parse(text: &str) -> Option<Serial> {
        let digits: Vec<u8> = text
            .bytes()
            .filter(|b| *b != b':')
            .map(|b| (b as char).to_digit(16).map(|d| d as u8))
            .collect::<Option<_>>()?;
        if digits.is_empty() || digits.len() > 2 * SERIAL_MAX {
            return None;
        }
        // An odd number of digits lacks its leading zero.
        let (head, pairs) = digits.split_at(digits.len() % 2);
        Some(Serial::new(&head.iter().copied().chain(pairs.chunks(2).map(|d| d[0] << 4 | d[1])).collect::<Vec<_>>()))
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("00");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Reads a revocation list. Errors name the line.
pub fn parse(text: &str) -> Result<BTreeSet<Serial>, RevokedError> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(RevokedError::Cut);
    }
    let mut serials = BTreeSet::new();
    for (n, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if entry.is_empty() {
            continue;
        }
        serials.insert(Serial::parse(entry).ok_or(RevokedError::Line { line: n + 1 })?);
        if serials.len() > REVOKED_MAX {
            return Err(RevokedError::TooMany);
        }
    }
    Ok(serials)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn list_has_serials_and_comments() {
        let list = parse("# all\n00:0A:ff # host.a\n\n  aff\n0\n").unwrap();
        assert_eq!(list.iter().map(|s| s.to_string()).collect::<Vec<_>>(), ["00", "0aff"]);
        assert_eq!(parse("0a\nnot hex\n"), Err(RevokedError::Line { line: 2 }));
        assert_eq!(parse(&("f".repeat(41) + "\n")), Err(RevokedError::Line { line: 1 }));
        assert_eq!(parse("0a\n0b"), Err(RevokedError::Cut));
        assert_eq!(parse(":\n"), Err(RevokedError::Line { line: 1 }));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in prop_oneof![any::<String>(), "[0-9a-f:#\n ]{0,200}\n"]) {
            for serial in parse(&text).unwrap_or_default() {
                prop_assert_eq!(Serial::parse(&serial.to_string()), Some(serial));
            }
        }

        #[test]
        fn serial_is_read_back(bytes in prop::collection::vec(any::<u8>(), 0..=SERIAL_MAX)) {
            let serial = Serial::new(&bytes);
            prop_assert_eq!(Serial::parse(&serial.to_string()), Some(serial));
        }
    }
}
