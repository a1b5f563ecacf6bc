// SPDX-License-Identifier: Apache-2.0
//! The words of XREADGROUP, which Redis takes in any order: `GROUP` may come last, and a group may be called as an
//! option is.

/// Where the parts of `XREADGROUP ... STREAMS key ... id ...` are. Indexes are those of its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupRead<'a> {
    pub(crate) group: &'a [u8],
    pub(crate) consumer: &'a [u8],
    /// How long it waits for data, ms; 0: for ever. None: it does not wait.
    pub(crate) block_ms: Option<i64>,
    pub(crate) no_ack: bool,
    /// The index of the first key.
    pub(crate) first: usize,
    /// How many keys there are, and ids after them.
    pub(crate) streams: usize,
}

impl<'a> GroupRead<'a> {
    /// None: Redis refuses these words.
    pub(crate) fn of(args: &[&'a [u8]]) -> Option<Self> {
        let (mut named, mut block_ms, mut no_ack, mut at) = (None, None, false, 1);
        loop {
            let (word, rest) = (args.get(at)?, args.len() - at - 1);
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            if is("STREAMS") && rest > 0 {
                let ((group, consumer), first) = (named?, at + 1);
                let is_balanced = rest.is_multiple_of(2);
                return is_balanced.then_some(Self { group, consumer, block_ms, no_ack, first, streams: rest / 2 });
            }
            if is("GROUP") && rest >= 2 {
                named = Some((args[at + 1], args[at + 2]));
                at += 3;
            } else if is("BLOCK") && rest > 0 {
                block_ms = Some(std::str::from_utf8(args[at + 1]).ok()?.parse().ok()?);
                at += 2;
            } else if is("COUNT") && rest > 0 {
                at += 2;
            } else if is("NOACK") {
                (no_ack, at) = (true, at + 1);
            } else {
                return None;
            }
        }
    }

    /// Each key with the id after which its messages are wanted. `args`: the words that this is of.
    pub(crate) fn starts<'b>(self, args: &'b [&'a [u8]]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a, 'b> {
        let Self { first, streams, .. } = self;
        (first..first + streams).map(move |at| (args[at], args[at + streams]))
    }

    /// The keys.
    pub(crate) fn keys<'b>(self, args: &'b [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> + use<'a, 'b> {
        self.starts(args).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::GroupRead;

    /// Group, consumer, how long it waits, `NOACK`, and the keys, in words.
    fn read(line: &'static str) -> Option<String> {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let of = GroupRead::of(&args)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let keys: Vec<String> = of.keys(&args).map(text).collect();
        Some(format!("{} {} {:?} {} {keys:?}", text(of.group), text(of.consumer), of.block_ms, of.no_ack))
    }

    #[test]
    fn words_are_taken_in_any_order_as_redis_takes_them() {
        for (line, want) in [
            ("XREADGROUP GROUP g c COUNT 2 BLOCK 50 STREAMS a b > 0", r#"g c Some(50) false ["a", "b"]"#),
            ("xreadgroup block 0 count 10 noack group g c streams s >", r#"g c Some(0) true ["s"]"#),
            // Names that are options elsewhere.
            ("XREADGROUP GROUP streams noack BLOCK 5 STREAMS block >", r#"streams noack Some(5) false ["block"]"#),
            ("XREADGROUP GROUP block 7 STREAMS block group > >", r#"block 7 None false ["block", "group"]"#),
        ] {
            assert_eq!(read(line).as_deref(), Some(want), "{line}");
        }
    }

    #[test]
    fn what_redis_refuses_is_nothing() {
        for line in [
            "XREADGROUP",
            "XREADGROUP GROUP g c",
            "XREADGROUP STREAMS s >",
            "XREADGROUP GROUP g c STREAMS",
            "XREADGROUP GROUP g c STREAMS a b >",
            "XREADGROUP GROUP g c BLOCK x STREAMS s >",
            "XREADGROUP GROUP g c WAIT STREAMS s >",
            "XREADGROUP GROUP g",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
