// SPDX-License-Identifier: Apache-2.0
//! Answers of another server on their way to a client: only their ends are looked for.
//!
//! An answer may be as long and as deeply nested as a script makes it. It is received in parts, and each part is looked
//! at once.

use crate::resp::RespError;

/// Longest answer that is passed on to a client, bytes.
pub const ANSWER_MAX: usize = 512 << 20;
/// Digits of the longest length or count, with its sign.
const NUMBER_MAX: usize = 20;

/// Where in a value the scanner is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum At {
    #[default]
    Type,
    /// In the first line of a value of this type.
    Line(u8),
    /// In the content of a string, and in the end of its line: so many bytes are left.
    Content(usize),
}

/// Finds the end of a value (RESP2 or RESP3), in whatever parts it comes. It keeps no part of the value.
#[derive(Debug, Default)]
pub struct Scanner {
    at: At,
    /// Values that have begun to come, or have yet to, besides the one that is looked at.
    open: u64,
    /// The length or count in the line, as far as it has come.
    number: Vec<u8>,
    /// The last byte of the line was the first one of its end.
    is_ending: bool,
}

impl Scanner {
    /// Looks at the next bytes. How many of them belong to the value, and whether that is its end; the next call looks
    /// at the value after it.
    ///
    /// # Errors
    /// [`RespError`]: nothing after this can be read.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<(usize, bool), RespError> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.at {
                At::Type => {
                    let kind = rest[0];
                    if !b"+:,#(-_$=!*~>%|".contains(&kind) {
                        return Err(RespError::Type(kind));
                    }
                    at += 1;
                    (self.at, self.is_ending) = (At::Line(kind), false);
                    self.number.clear();
                }
                At::Line(kind) => {
                    let (len, is_end) = self.line(rest);
                    at += len;
                    self.note_number(kind, &rest[..len])?;
                    if is_end && self.end_line(kind)? {
                        return Ok((at, true));
                    }
                }
                At::Content(left) => {
                    let len = left.min(rest.len());
                    at += len;
                    self.at = At::Content(left - len);
                    if left == len && self.end_value() {
                        return Ok((at, true));
                    }
                }
            }
        }
        Ok((at, false))
    }

    /// How many bytes belong to the line, and whether its end is among them.
    fn line(&mut self, bytes: &[u8]) -> (usize, bool) {
        for (at, byte) in bytes.iter().enumerate() {
            if self.is_ending && *byte == b'\n' {
                return (at + 1, true);
            }
            self.is_ending = *byte == b'\r';
        }
        (bytes.len(), false)
    }

    fn note_number(&mut self, kind: u8, line: &[u8]) -> Result<(), RespError> {
        if !b"$=!*~>%|".contains(&kind) {
            return Ok(());
        }
        let digits = line.iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n'));
        self.number.extend(digits.take(NUMBER_MAX + 1));
        if self.number.len() > NUMBER_MAX { Err(self.no_number()) } else { Ok(()) }
    }

    fn no_number(&self) -> RespError {
        RespError::Number(String::from_utf8_lossy(&self.number).into_owned())
    }

    /// The first line has come. Whether that is the end of the whole value.
    fn end_line(&mut self, kind: u8) -> Result<bool, RespError> {
        let count = if b"$=!*~>%|".contains(&kind) {
            let text = std::str::from_utf8(&self.number).ok();
            text.and_then(|text| text.parse::<i64>().ok()).ok_or_else(|| self.no_number())?
        } else {
            0
        };
        let Ok(count) = u64::try_from(count) else { return Ok(self.end_value()) };
        match kind {
            b'$' | b'=' | b'!' => {
                let len = usize::try_from(count).ok().and_then(|len| len.checked_add(2));
                self.at = At::Content(len.ok_or_else(|| self.no_number())?);
                return Ok(false);
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                // Attributes stand before the value that they describe.
                let values = count.checked_mul(if matches!(kind, b'%' | b'|') { 2 } else { 1 });
                let values = values.and_then(|values| values.checked_add(u64::from(kind == b'|')));
                let open = values.and_then(|values| self.open.checked_add(values));
                self.open = open.ok_or_else(|| self.no_number())?;
            }
            _ => {}
        }
        Ok(self.end_value())
    }

    /// A value has come, but for those in it. Whether it is the last one.
    fn end_value(&mut self) -> bool {
        self.at = At::Type;
        let is_last = self.open == 0;
        self.open = self.open.saturating_sub(1);
        is_last
    }
}

/// What has come of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// It is not whole yet.
    Open,
    Whole(Vec<u8>),
    /// It has ended, was longer than the limit, and is dropped.
    TooLong,
}

/// An answer that comes in parts.
#[derive(Debug)]
pub struct Incoming {
    scanner: Scanner,
    bytes: Vec<u8>,
    len_max: usize,
    is_too_long: bool,
}

impl Default for Incoming {
    fn default() -> Self {
        Self::with_max(ANSWER_MAX)
    }
}

impl Incoming {
    /// For answers of so many bytes at most.
    #[must_use]
    pub fn with_max(len_max: usize) -> Self {
        Self { scanner: Scanner::default(), bytes: Vec::new(), len_max, is_too_long: false }
    }

    /// Takes bytes, as far as they belong to the present answer. How many do, and what has come of it.
    ///
    /// # Errors
    /// [`RespError`]: nothing after this can be read.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, Part), RespError> {
        let (len, is_end) = self.scanner.scan(bytes)?;
        self.is_too_long |= self.bytes.len() + len > self.len_max;
        if self.is_too_long {
            self.bytes = Vec::new();
        } else {
            self.bytes.extend_from_slice(&bytes[..len]);
        }
        Ok((
            len,
            match is_end {
                false => Part::Open,
                true if std::mem::take(&mut self.is_too_long) => Part::TooLong,
                true => Part::Whole(std::mem::take(&mut self.bytes)),
            },
        ))
    }
}

/// The text of an answer that is an error, its code first.
#[must_use]
pub fn error_of(answer: &[u8]) -> Option<&[u8]> {
    answer.strip_prefix(b"-")?.strip_suffix(b"\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Value, command};
    use proptest::prelude::*;

    /// The answers in these bytes, which come in parts of such lengths in turn.
    fn answers_of(bytes: &[u8], parts: &[usize], len_max: usize) -> Result<Vec<Option<Vec<u8>>>, RespError> {
        let (mut incoming, mut answers, mut rest) = (Incoming::with_max(len_max), Vec::new(), bytes);
        for len in parts.iter().copied().cycle().map(|len| len.max(1)) {
            if rest.is_empty() {
                break;
            }
            let (mut part, after) = rest.split_at(len.min(rest.len()));
            while !part.is_empty() {
                let (len, answer) = incoming.take(part)?;
                match answer {
                    Part::Open => {}
                    Part::Whole(answer) => answers.push(Some(answer)),
                    Part::TooLong => answers.push(None),
                }
                part = &part[len..];
            }
            rest = after;
        }
        Ok(answers)
    }

    #[test]
    fn answer_as_deep_and_long_as_a_script_makes_it_has_an_end() {
        let deep = [b"*1\r\n".repeat(10_000), b"*0\r\n".to_vec()].concat();
        let long = [b"+".to_vec(), vec![b'x'; 300_000], b"\r\n".to_vec()].concat();
        let both = [deep.clone(), long.clone(), b":1\r\n".to_vec()].concat();
        for part in [1, 7, 65_536] {
            let answers = answers_of(&both, &[part], ANSWER_MAX).unwrap();
            assert_eq!(answers, [Some(deep.clone()), Some(long.clone()), Some(b":1\r\n".to_vec())]);
        }
    }

    #[test]
    fn answer_beyond_the_limit_is_dropped_and_the_next_one_is_not() {
        let bytes = b"$30\r\n012345678901234567890123456789\r\n:1\r\n*2\r\n:1\r\n:2\r\n";
        for part in 1..bytes.len() {
            let answers = answers_of(bytes, &[part], 12).unwrap();
            assert_eq!(answers, [None, Some(b":1\r\n".to_vec()), Some(b"*2\r\n:1\r\n:2\r\n".to_vec())]);
        }
    }

    #[test]
    fn bytes_that_are_no_answer_are_named() {
        let error = |bytes: &[u8]| answers_of(bytes, &[1], ANSWER_MAX).unwrap_err();
        assert_eq!(error(b"?\r\n"), RespError::Type(b'?'));
        assert_eq!(error(b"$x\r\n"), RespError::Number("x".into()));
        assert!(matches!(error(&[b"*".to_vec(), vec![b'1'; 100]].concat()), RespError::Number(_)));
        assert!(matches!(error(b"%9223372036854775807\r\n*9223372036854775807\r\n"), RespError::Number(_)));
        assert!(matches!(error(b"*9223372036854775807\r\n%9223372036854775807\r\n"), RespError::Number(_)));
    }

    #[test]
    fn errors_are_known() {
        assert_eq!(error_of(b"-ERR no\r\n"), Some(&b"ERR no"[..]));
        assert_eq!(error_of(b"+ERR no\r\n"), None);
        assert_eq!(error_of(b"*1\r\n-ERR no\r\n"), None);
    }

    /// Values of both protocols, as they are written.
    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        let text = |kind: &'static str| {
            prop::collection::vec(any::<u8>(), 0..30).prop_map(move |content| {
                [format!("{kind}{}\r\n", content.len()).into_bytes(), content, b"\r\n".to_vec()].concat()
            })
        };
        let line = "[+:,#(-][a-z0-9\r ]{0,10}".prop_map(|line| format!("{}\r\n", line.trim_end()).into_bytes());
        let null = prop::sample::select(vec!["_\r\n", "$-1\r\n", "*-1\r\n"]).prop_map(|text| text.as_bytes().to_vec());
        let leaf = prop_oneof![text("$"), text("="), text("!"), line, null];
        leaf.prop_recursive(6, 40, 6, |inner| {
            let list = |kinds: &'static [&'static str], each: usize| {
                let inner = inner.clone();
                (prop::sample::select(kinds), prop::collection::vec(inner, 0..4)).prop_map(move |(kind, mut values)| {
                    values.truncate(values.len() / each * each);
                    [format!("{kind}{}\r\n", values.len() / each).into_bytes(), values.concat()].concat()
                })
            };
            let attributes = (list(&["|"], 2), inner.clone()).prop_map(|(before, value)| [before, value].concat());
            prop_oneof![list(&["*", "~", ">"], 1), list(&["%"], 2), attributes]
        })
    }

    proptest! {
        #[test]
        fn any_split_of_answers_gives_the_same_as_the_tree(values in prop::collection::vec(any_value(), 1..5), parts in prop::collection::vec(1usize..40, 1..6)) {
            let bytes = values.concat();
            let mut at = 0;
            let mut of_tree = Vec::new();
            while let Some((_, len)) = Value::read(&bytes[at..]).unwrap() {
                of_tree.push(Some(bytes[at..at + len].to_vec()));
                at += len;
            }
            prop_assert_eq!(at, bytes.len());
            prop_assert_eq!(&of_tree, &values.into_iter().map(Some).collect::<Vec<_>>());
            prop_assert_eq!(answers_of(&bytes, &parts, ANSWER_MAX), Ok(of_tree));
        }

        #[test]
        fn no_part_of_a_command_is_taken_for_all(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5)) {
            let mut bytes = Vec::new();
            command(&mut bytes, &args.iter().map(Vec::as_slice).collect::<Vec<_>>());
            for len in 0..bytes.len() {
                prop_assert_eq!(Scanner::default().scan(&bytes[..len]), Ok((len, false)));
            }
            prop_assert_eq!(Scanner::default().scan(&bytes), Ok((bytes.len(), true)));
        }

        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200), parts in prop::collection::vec(1usize..40, 1..6)) {
            let whole = answers_of(&bytes, &[bytes.len()], ANSWER_MAX);
            prop_assert_eq!(answers_of(&bytes, &parts, ANSWER_MAX).is_err(), whole.is_err());
        }
    }
}
