// SPDX-License-Identifier: Apache-2.0
//! The content of units: commands in Redis' protocol, as a master would send them to a replica.
//!
//! Each name is *marked*: written in capitals but for its last letter (`SEt`). Redis does not care. A replica's
//! command filter sees the commands of its clients and those of its replication link alike and is not told
//! whose they are; by the mark it knows the latter. A client that writes a name so gains nothing: Redis itself
//! refuses writes of clients on a replica.

use crate::resp;

/// Longest name of a command that is marked on the stack.
const NAME_MAX: usize = 32;

/// Commands for one unit.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    /// The database of the last command.
    db: Option<u32>,
    commands: u32,
}

impl Stream {
    /// Appends a command for a database.
    pub fn push(&mut self, db: u32, args: &[&[u8]]) {
        self.select(db);
        let Some(name) = args.first() else { return };
        resp::command(&mut self.bytes, args);
        // In its place: after the count, the length and the name is what follows it.
        let rest: usize = args[1..].iter().map(|arg| resp::written_len(arg.len())).sum();
        let end = self.bytes.len() - rest - 2;
        mark(&mut self.bytes[end - name.len()..end]);
        self.commands += 1;
    }

    /// Appends a command that is written already, with its mark.
    pub(crate) fn push_written(&mut self, db: u32, command: &[u8]) {
        self.select(db);
        self.bytes.extend_from_slice(command);
        self.commands += 1;
    }

    fn select(&mut self, db: u32) {
        if self.db != Some(db) {
            self.db = Some(db);
            let number = db.to_string();
            resp::command(&mut self.bytes, &[b"SELECt", number.as_bytes()]);
        }
    }

    /// Commands since the last [`Stream::take`].
    #[must_use]
    pub fn commands(&self) -> u32 {
        self.commands
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The commands since the last call. The next ones name their database anew.
    pub fn take(&mut self) -> Vec<u8> {
        (self.db, self.commands) = (None, 0);
        std::mem::take(&mut self.bytes)
    }
}

/// Gives a name the mark of the log.
pub(crate) fn mark(name: &mut [u8]) {
    name.make_ascii_uppercase();
    if let Some(last) = name.last_mut() {
        last.make_ascii_lowercase();
    }
}

/// Whether a name has the mark of the log.
#[must_use]
pub fn is_marked(name: &[u8]) -> bool {
    let Some((last, front)) = name.split_last() else { return false };
    name.len() <= NAME_MAX
        && last.is_ascii_lowercase()
        && !front.iter().any(u8::is_ascii_lowercase)
        && !front.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Value;

    #[test]
    fn commands_name_their_database_once_and_are_marked() {
        let mut stream = Stream::default();
        stream.push(0, &[b"set", b"k", b"v"]);
        stream.push(0, &[b"DEL", b"k"]);
        stream.push(3, &[b"Incr", b"n"]);
        let bytes = stream.take();
        let mut names = Vec::new();
        let mut rest = &bytes[..];
        while let Some((value, len)) = Value::read(rest).unwrap() {
            names.push(
                value
                    .list()
                    .iter()
                    .map(|part| String::from_utf8_lossy(part.bytes().unwrap()).into_owned())
                    .collect::<Vec<_>>()
                    .join(" "),
            );
            rest = &rest[len..];
        }
        assert_eq!(names, ["SELECt 0", "SEt k v", "DEl k", "SELECt 3", "INCr n"]);
        stream.push(3, &[b"INCR", b"n"]);
        assert!(stream.take().starts_with(b"*2\r\n$6\r\nSELECt"));
    }

    #[test]
    fn mark_is_the_case_of_the_last_letter() {
        for name in ["set", "FIDE.APPLIED"] {
            let mut name = name.as_bytes().to_vec();
            mark(&mut name);
            assert!(is_marked(&name));
        }
        for name in ["set", "SET", "Set", "t", "T", ""] {
            assert!(!is_marked(name.as_bytes()), "{name}");
        }
    }
}
