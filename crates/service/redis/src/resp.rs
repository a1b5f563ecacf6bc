// SPDX-License-Identifier: Apache-2.0
//! Redis' protocol, RESP2 and RESP3: reading what comes, writing commands.
//!
//! Both versions are read into one tree, because the rules of replication ask what a reply says and not in
//! which protocol the client wanted it.

/// Deepest nesting that is read. Redis' own replies are at most 6 deep.
const DEPTH_MAX: usize = 32;
/// Longest line before its end: a type, a length or a number.
const LINE_MAX: usize = 64 << 10;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Null,
    /// The text of an error, its code first.
    Error(Vec<u8>),
    /// A string, a number, a boolean: as it is written.
    Leaf(Vec<u8>),
    /// An array, a set, a push, or a map with its keys and values in turn.
    List(Vec<Value>),
}

/// Why bytes are no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RespError {
    #[error("a value begins with byte {0:#04x}, which is no type of RESP")]
    Type(u8),
    #[error("a length or count that is no number: {0:?}")]
    Number(String),
    #[error("values are nested more than {DEPTH_MAX} deep")]
    Depth,
    #[error("a line of more than {LINE_MAX} bytes")]
    Line,
}

impl Value {
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The elements of a list; none of anything else.
    #[must_use]
    pub fn list(&self) -> &[Value] {
        match self {
            Self::List(values) => values,
            _ => &[],
        }
    }

    /// The bytes of a string or number.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Leaf(bytes) => Some(bytes),
            _ => None,
        }
    }

    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        std::str::from_utf8(self.bytes()?).ok()?.parse().ok()
    }

    /// Reads the value at the beginning of `bytes`, and how long it is; none if its end is missing.
    ///
    /// # Errors
    /// [`RespError`].
    pub fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, RespError> {
        let mut reader = Reader { bytes, at: 0 };
        Ok(reader.value(0)?.map(|value| (value, reader.at)))
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Up to the next end of line, which is skipped.
    fn line(&mut self) -> Result<Option<&'a [u8]>, RespError> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.windows(2).position(|end| end == b"\r\n") else {
            return if rest.len() > LINE_MAX { Err(RespError::Line) } else { Ok(None) };
        };
        self.at += end + 2;
        Ok(Some(&rest[..end]))
    }

    fn value(&mut self, depth: usize) -> Result<Option<Value>, RespError> {
        if depth > DEPTH_MAX {
            return Err(RespError::Depth);
        }
        let Some(kind) = self.bytes.get(self.at).copied() else { return Ok(None) };
        self.at += 1;
        if !b"+:,#(-_$=!*~>%|".contains(&kind) {
            return Err(RespError::Type(kind));
        }
        let Some(line) = self.line()? else { return Ok(None) };
        let count = |times: usize| {
            let text = String::from_utf8_lossy(line);
            text.parse::<i64>()
                .map(|count| usize::try_from(count).ok().map(|count| count * times))
                .map_err(|_| RespError::Number(text.into_owned()))
        };
        Ok(Some(match kind {
            b'-' => Value::Error(line.to_vec()),
            b'_' => Value::Null,
            b'$' | b'=' | b'!' => {
                let Some(len) = count(1)? else { return Ok(Some(Value::Null)) };
                let Some(content) = self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) else { return Ok(None) };
                if self.bytes.len() < self.at + len + 2 {
                    return Ok(None);
                }
                self.at += len + 2;
                // A verbatim string begins with its format.
                let content = if kind == b'=' { content.get(4..).unwrap_or_default() } else { content };
                if kind == b'!' { Value::Error(content.to_vec()) } else { Value::Leaf(content.to_vec()) }
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let Some(len) = count(if matches!(kind, b'%' | b'|') { 2 } else { 1 })? else {
                    return Ok(Some(Value::Null));
                };
                let mut values = Vec::new();
                for _ in 0..len {
                    let Some(value) = self.value(depth + 1)? else { return Ok(None) };
                    values.push(value);
                }
                // Attributes stand before the value that they describe.
                if kind == b'|' {
                    return self.value(depth + 1);
                }
                Value::List(values)
            }
            _ => Value::Leaf(line.to_vec()),
        }))
    }
}

/// Appends a command: an array of strings.
pub fn command(out: &mut Vec<u8>, args: &[&[u8]]) {
    number(out, b'*', args.len());
    for arg in args {
        word(out, arg);
    }
}

/// Appends a word of a command, of which [`number`] has told how many there are. Returns where its bytes begin.
pub(crate) fn word(out: &mut Vec<u8>, word: &[u8]) -> usize {
    number(out, b'$', word.len());
    let begin = out.len();
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
    begin
}

/// Bytes of a word of that length in a command.
pub(crate) fn written_len(len: usize) -> usize {
    let digits = len.checked_ilog10().unwrap_or(0) as usize + 1;
    1 + digits + 2 + len + 2
}

/// Appends a length or count, after the sign of its kind.
pub(crate) fn number(out: &mut Vec<u8>, kind: u8, mut number: usize) {
    // Twice for each word of each write: by hand, which takes a third of the formatter's time.
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leaf(text: &str) -> Value {
        Value::Leaf(text.as_bytes().to_vec())
    }

    #[test]
    fn both_protocols_are_read_into_one_tree() {
        let read = |text: &str| Value::read(text.as_bytes()).unwrap().map(|(value, len)| (value, text.len() - len));
        let whole = |value| Some((value, 0));
        assert_eq!(read("+OK\r\n"), whole(leaf("OK")));
        assert_eq!(read(":-7\r\n"), whole(leaf("-7")));
        assert_eq!(read("$5\r\na\r\nbc\r\n"), whole(leaf("a\r\nbc")));
        assert_eq!(read("$-1\r\n"), whole(Value::Null));
        assert_eq!(read("*-1\r\n"), whole(Value::Null));
        assert_eq!(read("_\r\n"), whole(Value::Null));
        assert_eq!(read("-ERR no\r\n"), whole(Value::Error(b"ERR no".to_vec())));
        assert_eq!(read("=7\r\ntxt:abc\r\n"), whole(leaf("abc")));
        assert_eq!(read("~1\r\n$1\r\na\r\n+rest\r\n"), Some((Value::List(vec![leaf("a")]), 7)));
        assert_eq!(read("%1\r\n+k\r\n:1\r\n"), whole(Value::List(vec![leaf("k"), leaf("1")])));
        assert_eq!(read("|1\r\n+ttl\r\n:1\r\n+x\r\n"), whole(leaf("x")));
        assert_eq!(
            read("*2\r\n*1\r\n+a\r\n_\r\n"),
            whole(Value::List(vec![Value::List(vec![leaf("a")]), Value::Null]))
        );
    }

    #[test]
    fn what_is_no_value_is_named() {
        assert_eq!(Value::read(b"?"), Err(RespError::Type(b'?')));
        assert_eq!(Value::read(b"$x\r\n"), Err(RespError::Number("x".into())));
        assert_eq!(Value::read(&b"*1\r\n".repeat(DEPTH_MAX + 2)), Err(RespError::Depth));
    }

    proptest! {
        #[test]
        fn commands_come_back_and_no_part_of_one_is_taken(args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5)) {
            let mut bytes = Vec::new();
            command(&mut bytes, &args.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let want = Value::List(args.into_iter().map(Value::Leaf).collect());
            for len in 0..bytes.len() {
                prop_assert_eq!(Value::read(&bytes[..len]), Ok(None));
            }
            prop_assert_eq!(Value::read(&bytes), Ok(Some((want, bytes.len()))));
        }

        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Value::read(&bytes);
        }
    }
}
