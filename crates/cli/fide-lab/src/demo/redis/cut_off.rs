// SPDX-License-Identifier: Apache-2.0
//! What a leader whose host is cut off both networks does with its clients: it is asked from the cut until its host
//! is back, for a read and a write in turn.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use fide_sys::clock::mono_ns;

/// A question without a byte of an answer for this long is unanswered; the next one follows on a new connection.
const PATIENCE: Duration = Duration::from_millis(20);
/// Between two questions.
const PAUSE: Duration = Duration::from_millis(2);
/// Most questions.
const ASKED_MAX: usize = 10_000;
/// Most questions without an answer: fewer than connections may wait for a server (511), as one more would block.
const SILENT_MAX: usize = 400;
/// What is read of an answer, bytes.
const ANSWER_MAX: usize = 1024;
/// No client of the demo writes it.
const KEY: &str = "cut-off";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// An error, with its text.
    Refused(String),
    /// Not a byte.
    Silent,
    /// Anything else: a whole value, or the begin of one.
    Answered(String),
}

impl Answer {
    fn of(received: &[u8]) -> Self {
        let text = || String::from_utf8_lossy(received).trim_end().to_owned();
        match received.first() {
            None => Self::Silent,
            Some(b'-') => Self::Refused(text()[1..].to_owned()),
            Some(_) => Self::Answered(text()),
        }
    }
}

/// A question to the leader that was cut off.
#[derive(Debug)]
pub(super) struct Asked {
    is_write: bool,
    /// CLOCK_MONOTONIC, before the question.
    sent_ns: u64,
    answer: Answer,
}

/// Asks until it is stopped, in any namespace. `refused` is set with the first refusal.
pub(super) fn ask(socket: &Path, stop: &AtomicBool, refused: &AtomicBool) -> Vec<Asked> {
    let mut asked: Vec<Asked> = Vec::new();
    let mut silent = 0;
    while !stop.load(Relaxed) && asked.len() < ASKED_MAX && silent < SILENT_MAX {
        let (is_write, sent_ns) = (asked.len() % 2 == 1, mono_ns());
        let number = asked.len().to_string();
        let words: &[&str] = if is_write { &["SET", KEY, &number] } else { &["GET", "writer:0"] };
        let answer = ask_once(socket, words);
        match answer {
            Answer::Silent => silent += 1,
            Answer::Refused(_) => refused.store(true, Relaxed),
            Answer::Answered(_) => {}
        }
        asked.push(Asked { is_write, sent_ns, answer });
        thread::sleep(PAUSE);
    }
    asked
}

fn ask_once(socket: &Path, words: &[&str]) -> Answer {
    let mut received = Vec::new();
    // How it ended does not matter: a client has what it has received.
    let _ = exchange(socket, words, &mut received);
    Answer::of(&received)
}

fn exchange(socket: &Path, words: &[&str], received: &mut Vec<u8>) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    stream.write_all(request.as_bytes())?;
    let mut piece = [0; ANSWER_MAX];
    while !received.ends_with(b"\r\n") && received.len() < ANSWER_MAX {
        match stream.read(&mut piece)? {
            0 => break,
            len => received.extend_from_slice(&piece[..len]),
        }
    }
    Ok(())
}

/// What came of all questions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CutOff {
    asked: usize,
    pub(super) refused: usize,
    /// The text of the last refusal.
    refusal: String,
    pub(super) unanswered: usize,
    /// Reads that were answered while the leader had its lease.
    pub(super) by_lease: usize,
    /// Reads, and writes, after its lease had ended.
    late: [usize; 2],
    /// The first answer that may not be.
    wrong: Option<String>,
}

impl CutOff {
    /// Up to `known_ns` (CLOCK_MONOTONIC), when the next leader's host declared it dead, the leader may have a
    /// lease, with which it answers reads. No write may be answered: nobody else can have stored it.
    pub(super) fn judge(asked: &[Asked], known_ns: u64) -> Self {
        let mut it = Self { asked: asked.len(), ..Self::default() };
        for one in asked {
            let is_late = one.sent_ns >= known_ns;
            it.late[usize::from(one.is_write)] += usize::from(is_late);
            match &one.answer {
                Answer::Refused(text) => {
                    it.refused += 1;
                    it.refusal.clone_from(text);
                }
                Answer::Silent => it.unanswered += 1,
                Answer::Answered(_) if !one.is_write && !is_late => it.by_lease += 1,
                Answer::Answered(text) => {
                    let what = if one.is_write { "write" } else { "read" };
                    it.wrong.get_or_insert_with(|| format!("it answered a {what} with {text:?}"));
                }
            }
        }
        it
    }

    /// It was asked for both after its lease had ended, refused at least once, so that it was there, and answered
    /// nothing that it may not.
    pub(super) fn has_held(&self) -> bool {
        self.wrong.is_none() && self.refused > 0 && self.late.iter().all(|asked| *asked > 0)
    }

    /// For people.
    pub(super) fn seen(&self) -> String {
        let Self { asked, refused, unanswered, .. } = self;
        let mut seen = self.wrong.as_ref().map(|wrong| format!("{wrong}; ")).unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = write!(seen, "{refused} of {asked} reads and writes refused");
        if *refused > 0 {
            let _ = write!(seen, " ({})", self.refusal);
        }
        let _ = write!(seen, ", {unanswered} unanswered");
        if self.by_lease > 0 {
            let _ = write!(seen, ", {} reads answered before its lease had ended", self.by_lease);
        }
        if self.late.contains(&0) {
            let [reads, writes] = self.late;
            let _ = write!(seen, "; only {reads} reads and {writes} writes came after its lease had ended");
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What a client has of a server that sends this and closes the connection.
    fn answer_to(reply: &'static [u8]) -> Answer {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let server = UnixListener::bind(&socket).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut client, _) = server.accept().unwrap();
                let _ = client.read(&mut [0; ANSWER_MAX]).unwrap();
                client.write_all(reply).unwrap();
            });
            ask_once(&socket, &["GET", "key"])
        })
    }

    #[test]
    fn received_bytes_are_an_answer_unless_they_are_an_error() {
        let answered = |text: &str| Answer::Answered(text.to_owned());
        assert_eq!(answer_to(b"$5\r\n12345\r\n"), answered("$5\r\n12345"));
        assert_eq!(answer_to(b"$5\r\n12"), answered("$5\r\n12"), "the connection ended within it");
        assert_eq!(answer_to(b"$-1\r\n"), answered("$-1"));
        assert_eq!(answer_to(b"-LOADING no\r\n"), Answer::Refused("LOADING no".to_owned()));
        assert_eq!(answer_to(b""), Answer::Silent);
    }

    #[test]
    fn only_reads_within_the_lease_may_be_answered() {
        let one = |is_write, sent_ns, answer: &Answer| Asked { is_write, sent_ns, answer: answer.clone() };
        let (value, refused) = (Answer::Answered("$1\r\n7".to_owned()), Answer::Refused("ERR no".to_owned()));
        let late = || vec![one(false, 60, &Answer::Silent), one(true, 60, &refused)];
        let judge = |first: Option<Asked>| {
            let asked: Vec<Asked> = first.into_iter().chain(late()).collect();
            CutOff::judge(&asked, 50)
        };
        let held = judge(None);
        assert_eq!((held.has_held(), held.refused, held.unanswered, held.by_lease), (true, 1, 1, 0));
        assert_eq!(held.seen(), "1 of 2 reads and writes refused (ERR no), 1 unanswered");
        let by_lease = judge(Some(one(false, 49, &value)));
        assert!(by_lease.has_held() && by_lease.by_lease == 1, "{by_lease:?}");
        let stale = judge(Some(one(false, 50, &value)));
        assert!(!stale.has_held() && stale.seen().starts_with("it answered a read with \"$1"), "{}", stale.seen());
        assert!(!judge(Some(one(true, 10, &value))).has_held(), "nobody else has stored it");
    }

    #[test]
    fn leader_that_was_not_there_or_not_asked_in_time_shows_nothing() {
        let one = |is_write, sent_ns, answer: Answer| Asked { is_write, sent_ns, answer };
        assert!(!CutOff::judge(&[], 50).has_held());
        let silent = [one(false, 60, Answer::Silent), one(true, 60, Answer::Silent)];
        assert!(!CutOff::judge(&silent, 50).has_held());
        let refused = || Answer::Refused("ERR no".to_owned());
        let early = CutOff::judge(&[one(false, 60, refused()), one(true, 40, refused())], 50);
        assert!(
            !early.has_held() && early.seen().ends_with("only 1 reads and 0 writes came after its lease had ended")
        );
    }
}
