// SPDX-License-Identifier: Apache-2.0
//! Clients that read and write registers at all servers, and note what they asked, when, and what they saw.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use rand::RngExt as _;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

const KEYS: u8 = 5;
/// A client gives up on a request after this, and does not know what became of it.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(1);

/// What clients share.
pub(crate) struct Shared {
    sockets: Vec<PathBuf>,
    pub(crate) stop: AtomicBool,
    begun: Instant,
    /// The next number of a client: one whose request is open for ever asks no more under its number.
    clients: AtomicU32,
    values: AtomicU64,
    pub(crate) history: Mutex<Vec<String>>,
    pub(crate) reads_by_host: Vec<AtomicU64>,
    /// Acknowledged writes, by [`Way`].
    pub(crate) written: [AtomicU64; WAYS.len()],
    /// Writes whose outcome no client knows.
    pub(crate) unknown: AtomicU64,
}

impl Shared {
    pub(crate) fn new(sockets: Vec<PathBuf>) -> Self {
        Self {
            stop: AtomicBool::new(false),
            begun: Instant::now(),
            clients: AtomicU32::new(0),
            values: AtomicU64::new(1),
            history: Mutex::default(),
            reads_by_host: sockets.iter().map(|_| AtomicU64::new(0)).collect(),
            written: Default::default(),
            unknown: AtomicU64::new(0),
            sockets,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).expect("some seconds")
    }
}

/// How a register is written. Each takes another path through the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Redis executes it as it is; nothing is found.
    Plain,
    /// The module executes it.
    WithGet,
    /// The same by another rule.
    GetSet,
    /// Of a script, which a follower passes on as a whole.
    Script,
    /// A transaction, which finds the value that it replaces.
    Transaction,
}

pub(crate) const WAYS: [Way; 5] = [Way::Plain, Way::WithGet, Way::GetSet, Way::Script, Way::Transaction];

const SCRIPT: &str = "local v = redis.call('GET', KEYS[1]); redis.call('SET', KEYS[1], ARGV[1]); return v";

/// The answer to a request.
enum Answer {
    /// A value, or 0 for none.
    Found(u64),
    Done,
    /// It had no effect.
    Refused,
    Unknown,
}

fn request(words: &[&str]) -> String {
    let mut request = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    request
}

fn ask(stream: &mut UnixStream, words: &[&str]) -> Answer {
    if stream.write_all(request(words).as_bytes()).is_err() {
        return Answer::Unknown;
    }
    answer(&mut BufReader::new(stream))
}

fn answer(reader: &mut impl BufRead) -> Answer {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(len) if len > 0 => {}
        _ => return Answer::Unknown,
    }
    match line.as_bytes()[0] {
        b'-' if line.starts_with("-UNKNOWN") => Answer::Unknown,
        b'-' => Answer::Refused,
        b'+' => Answer::Done,
        b'$' => {
            let Ok(len) = usize::try_from(line[1..].trim().parse::<i64>().expect("a length")) else {
                return Answer::Found(0);
            };
            let mut value = vec![0; len + 2];
            if reader.read_exact(&mut value).is_err() {
                return Answer::Unknown;
            }
            Answer::Found(String::from_utf8_lossy(&value[..len]).parse().expect("a number"))
        }
        _ => panic!("an answer of another kind: {line}"),
    }
}

/// Step by step, as the next command would be executed by itself if one before it were refused.
fn transaction(stream: &mut UnixStream, key: &str, value: &str) -> Answer {
    for words in [&["MULTI"][..], &["GET", key], &["SET", key, value]] {
        match ask(stream, words) {
            Answer::Done => {}
            // Nothing happens before EXEC.
            _ => return Answer::Refused,
        }
    }
    if stream.write_all(request(&["EXEC"]).as_bytes()).is_err() {
        return Answer::Unknown;
    }
    let (mut reader, mut line) = (BufReader::new(stream), String::new());
    match reader.read_line(&mut line) {
        Ok(len) if len > 0 && line.starts_with("-UNKNOWN") => Answer::Unknown,
        Ok(len) if len > 0 && line.starts_with('-') => Answer::Refused,
        Ok(len) if len > 0 => {
            assert_eq!(line, "*2\r\n", "the answers of GET and SET, or an error");
            let found = answer(&mut reader);
            match (found, answer(&mut reader)) {
                // A follower answers the read, and refuses the write.
                (_, Answer::Refused) => Answer::Refused,
                (Answer::Found(found), Answer::Done) => Answer::Found(found),
                (Answer::Unknown, _) | (_, Answer::Unknown) => Answer::Unknown,
                _ => panic!("SET was done, and GET in front of it was not"),
            }
        }
        _ => Answer::Unknown,
    }
}

fn write(stream: &mut UnixStream, way: Way, key: &str, value: &str) -> Answer {
    match way {
        Way::Plain => ask(stream, &["SET", key, value]),
        Way::WithGet => ask(stream, &["SET", key, value, "GET"]),
        Way::GetSet => ask(stream, &["GETSET", key, value]),
        Way::Script => ask(stream, &["EVAL", SCRIPT, "1", key, value]),
        Way::Transaction => transaction(stream, key, value),
    }
}

/// One client: it asks servers at random, and writes where that is taken.
pub(crate) fn client(shared: &Shared, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut number = shared.clients.fetch_add(1, Relaxed);
    let mut leader = 0;
    while !shared.stop.load(Relaxed) {
        thread::sleep(PAUSE);
        let is_read = random.random_bool(0.5);
        let host = if is_read { random.random_range(0..shared.sockets.len()) } else { leader };
        let connect = || {
            let stream = UnixStream::connect(&shared.sockets[host])?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok::<_, std::io::Error>(stream)
        };
        let Ok(mut stream) = connect() else {
            leader = random.random_range(0..shared.sockets.len());
            continue;
        };
        // Some requests on one connection.
        for _ in 0..random.random_range(1..20) {
            let key = random.random_range(0..KEYS);
            let name = format!("key{key}");
            let way = random.random_range(0..WAYS.len());
            let call = shared.now();
            let value = shared.values.fetch_add(1, Relaxed);
            let answer = if is_read {
                ask(&mut stream, &["GET", &name])
            } else {
                write(&mut stream, WAYS[way], &name, &value.to_string())
            };
            let returned = shared.now();
            let head = format!("\"client\":{number},\"key\":{key},\"call\":{call},\"host\":{}", host + 1);
            let line = match answer {
                Answer::Refused => {
                    leader = random.random_range(0..shared.sockets.len());
                    break;
                }
                Answer::Unknown if is_read => break,
                Answer::Unknown => format!("{{{head},\"op\":\"write\",\"value\":{value}}}"),
                Answer::Found(found) if is_read => {
                    shared.reads_by_host[host].fetch_add(1, Relaxed);
                    format!("{{{head},\"op\":\"read\",\"return\":{returned},\"found\":{found}}}")
                }
                Answer::Done if is_read => panic!("GET is answered by a value"),
                Answer::Done => {
                    shared.written[way].fetch_add(1, Relaxed);
                    format!("{{{head},\"op\":\"write\",\"value\":{value},\"return\":{returned}}}")
                }
                Answer::Found(found) => {
                    shared.written[way].fetch_add(1, Relaxed);
                    format!("{{{head},\"op\":\"write\",\"value\":{value},\"return\":{returned},\"found\":{found}}}")
                }
            };
            shared.history.lock().unwrap().push(line);
            if matches!(answer, Answer::Unknown) {
                shared.unknown.fetch_add(1, Relaxed);
                number = shared.clients.fetch_add(1, Relaxed);
                leader = random.random_range(0..shared.sockets.len());
                break;
            }
        }
    }
}
