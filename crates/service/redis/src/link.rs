// SPDX-License-Identifier: Apache-2.0
//! The master's side of a Redis replication link, as far as a replica in the same process needs it: it has
//! all data already, and is only told to go on.
//!
//! The replica is the Redis server that has loaded this module. Its state is that of the group at a position,
//! so a partial synchronisation is the answer; a replica that asks for a full one has no state, and is refused.
//! Only a server that gets its data back from the group's log on disk is sent a full one, from a file.
//!
//! Any program on the host may connect to the port, so the server shows a token first, as a password.

use crate::resp::Value;

/// Most bytes of a request that has not come whole. The replica's longest is a `REPLCONF`, below 1 kB.
const REQUEST_MAX: usize = 64 << 10;

/// How far the replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    #[default]
    Greeting,
    /// It has shown the token: it is this process' own server.
    Known,
    /// It applies what is sent.
    Streaming,
    /// Something went wrong: the connection is to be closed.
    Failed,
}

/// The master's side.
#[derive(Debug, Default)]
pub struct Master {
    state: State,
    token: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of the file that a full synchronisation sends, if there has to be one.
    full: Option<u64>,
}

impl Master {
    /// A link for the server that knows the token.
    #[must_use]
    pub fn new(token: &str) -> Self {
        Self { token: token.as_bytes().to_vec(), ..Self::default() }
    }

    /// The next synchronisation is a full one, with so many bytes, which the caller sends after the answer.
    #[must_use]
    pub fn with_full(self, bytes: Option<u64>) -> Self {
        Self { full: bytes, ..self }
    }

    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes bytes of the replica, and appends the answers. Returns why the link failed, if it did.
    pub fn receive(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.received.extend_from_slice(bytes);
        let mut at = 0;
        let result = loop {
            // A replica that loads what it was sent shows in this way that it lives.
            while self.received.get(at) == Some(&b'\n') {
                at += 1;
            }
            match Value::read(&self.received[at..]) {
                Ok(Some((request, len))) => {
                    at += len;
                    if let Err(why) = self.answer(&request, out) {
                        break Err(why);
                    }
                }
                Ok(None) if self.received.len() - at > REQUEST_MAX => break Err("a request without an end".to_owned()),
                Ok(None) => break Ok(()),
                Err(why) => break Err(why.to_string()),
            }
        };
        self.received.drain(..at);
        if result.is_err() {
            self.state = State::Failed;
        }
        result
    }

    fn answer(&mut self, request: &Value, out: &mut Vec<u8>) -> Result<(), String> {
        let words: Vec<&[u8]> = request.list().iter().filter_map(Value::bytes).collect();
        let name = words.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
        match name.as_slice() {
            // Acknowledgements have no answer.
            b"replconf" if words.get(1).is_some_and(|what| what.eq_ignore_ascii_case(b"ack")) => {}
            // Redis takes this answer to its first PING for a master that asks for a password.
            b"ping" if self.state == State::Greeting => out.extend_from_slice(b"-NOAUTH\r\n"),
            b"ping" => out.extend_from_slice(b"+PONG\r\n"),
            b"auth" if words.len() > 1 && words.last() == Some(&self.token.as_slice()) => {
                self.state = State::Known;
                out.extend_from_slice(b"+OK\r\n");
            }
            _ if self.state == State::Greeting => {
                return Err("a stranger at the port of the replication link".to_owned());
            }
            b"replconf" => out.extend_from_slice(b"+OK\r\n"),
            b"psync" if self.full.is_some() => {
                let bytes = self.full.take().unwrap_or(0);
                // The replica asks for it by this name if the link breaks.
                let name: String =
                    self.token.iter().map(|byte| char::from(*byte)).chain("0".repeat(40).chars()).take(40).collect();
                out.extend_from_slice(format!("+FULLRESYNC {name} 0\r\n${bytes}\r\n").as_bytes());
                self.state = State::Streaming;
            }
            b"psync" => match words.get(1) {
                Some(id) if *id != b"?" => {
                    out.extend_from_slice(b"+CONTINUE ");
                    out.extend_from_slice(id);
                    out.extend_from_slice(b"\r\n");
                    self.state = State::Streaming;
                }
                _ => return Err("the server asks for all data, although it has what the group has".to_owned()),
            },
            _ => return Err(format!("the server asks for {}", String::from_utf8_lossy(&name).escape_debug())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ask(master: &mut Master, words: &[&str]) -> Result<String, String> {
        let mut request = Vec::new();
        crate::resp::command(&mut request, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        let mut out = Vec::new();
        // In two parts, as a network may bring it.
        let (first, second) = request.split_at(request.len() / 2);
        master.receive(first, &mut out)?;
        master.receive(second, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn replica_that_has_the_state_is_told_to_go_on() {
        let mut master = Master::new("secret");
        assert_eq!(ask(&mut master, &["PING"]).unwrap(), "-NOAUTH\r\n");
        assert_eq!(ask(&mut master, &["AUTH", "secret"]).unwrap(), "+OK\r\n");
        assert_eq!(ask(&mut master, &["REPLCONF", "capa", "eof"]).unwrap(), "+OK\r\n");
        assert_eq!(master.state(), State::Known);
        assert_eq!(ask(&mut master, &["PSYNC", "abc", "17"]).unwrap(), "+CONTINUE abc\r\n");
        assert_eq!(master.state(), State::Streaming);
        assert_eq!(ask(&mut master, &["REPLCONF", "ACK", "20"]).unwrap(), "");
    }

    #[test]
    fn replica_without_the_state_is_refused() {
        let mut master = Master::new("secret");
        ask(&mut master, &["AUTH", "secret"]).unwrap();
        assert!(ask(&mut master, &["PSYNC", "?", "-1"]).unwrap_err().contains("asks for all data"));
        assert_eq!(master.state(), State::Failed);
    }

    #[test]
    fn replica_whose_data_is_in_a_file_is_sent_it_once() {
        let mut master = Master::new("0123456789abcdef").with_full(Some(77));
        ask(&mut master, &["AUTH", "0123456789abcdef"]).unwrap();
        let answer = ask(&mut master, &["PSYNC", "?", "-1"]).unwrap();
        assert_eq!(answer, format!("+FULLRESYNC 0123456789abcdef{} 0\r\n$77\r\n", "0".repeat(24)));
        let mut out = Vec::new();
        master.receive(b"\n\n", &mut out).unwrap();
        assert!(ask(&mut master, &["PSYNC", "?", "-1"]).unwrap_err().contains("asks for all data"));
    }

    #[test]
    fn stranger_is_refused() {
        for words in [&["PSYNC", "abc", "1"][..], &["AUTH", "guess"], &["AUTH"], &["REPLCONF", "capa", "eof"]] {
            let mut master = Master::new("secret");
            assert!(ask(&mut master, words).unwrap_err().contains("stranger"), "{words:?}");
            assert_eq!(master.state(), State::Failed);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6)) {
            let (mut master, mut out) = (Master::default(), Vec::new());
            for part in parts {
                let _ = master.receive(&part, &mut out);
            }
        }
    }
}
