// SPDX-License-Identifier: Apache-2.0
//! The id of a stream's entry, with all spellings that Redis takes where it reads ids until a word is none
//! (`streamParseStrictIDOrReply` and `string2ull` of Redis 7.0): also `5` for `5-0`, a sign, spaces and zeros in front, and
//! negative numbers behind a space, which wrap around as C's `strtoull` does.

/// Longest id that Redis reads, bytes.
const LEN_MAX: usize = 127;

/// Milliseconds and sequence number. None: Redis takes this word for no id.
pub(super) fn parse(word: &[u8]) -> Option<(u64, u64)> {
    if word.len() > LEN_MAX {
        return None;
    }
    // A string of C ends there.
    let text = word.split(|byte| *byte == 0).next()?;
    match text.iter().position(|byte| *byte == b'-') {
        Some(at) => Some((number(&text[..at])?, number(&text[at + 1..])?)),
        None if text == b"+" => None,
        None => Some((number(text)?, 0)),
    }
}

fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    // As Redis itself writes numbers: these may not be negative.
    if let Ok(number) = text.parse::<i64>()
        && number.to_string() == text
    {
        return u64::try_from(number).ok();
    }
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_redis_reads_them() {
        for (word, id) in [
            (&b"5-1"[..], Some((5, 1))),
            (b"5", Some((5, 0))),
            (b"0-0", Some((0, 0))),
            (b"+5-1", Some((5, 1))),
            (b" 5-\t1", Some((5, 1))),
            (b"005-01", Some((5, 1))),
            (b"18446744073709551615-18446744073709551615", Some((u64::MAX, u64::MAX))),
            (b"5- -1", Some((5, u64::MAX))),
            (b"5\0anything", Some((5, 0))),
            (b"18446744073709551616", None),
            (b"5--1", None),
            (b"-", None),
            (b"+", None),
            (b"-1", None),
            (b"5-", None),
            (b"5-*", None),
            (b"", None),
            (b"0x5", None),
            (b"5 ", None),
            (b"FORCE", None),
        ] {
            assert_eq!(parse(word), id, "{}", String::from_utf8_lossy(word));
        }
        assert_eq!(parse(&[b'0'; LEN_MAX]), Some((0, 0)));
        assert_eq!(parse(&[b'0'; LEN_MAX + 1]), None);
    }
}
