// SPDX-License-Identifier: Apache-2.0
//! A client of Redis that believes nothing: it writes numbered values and reads them back, over connections that may break at any time.
//!
//! ```text
//! redis_check ADDRESS CONNECTIONS STOP    until the file STOP exists
//! ```
//!
//! A value that was read has to be the one that was written last, or one that was under way when a connection broke. Anything else, and
//! any answer that Redis does not give, is wrong. It exits with 1 if anything was.

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// Values of each connection.
const KEYS: u64 = 16;
/// Operations until a connection is made anew: one that began while there was no link stays with TCP.
const OPERATIONS: u64 = 200;
/// Bytes of the longest value.
const LONGEST: u64 = 40_000;
/// A connection that says nothing for so long has broken.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(10);
const SAYS_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Counts {
    operations: AtomicU64,
    bytes: AtomicU64,
    connected: AtomicU64,
    /// Connections that broke, and of these the ones by silence.
    broken: AtomicU64,
    silent: AtomicU64,
    wrong: AtomicU64,
}

impl Counts {
    fn line(&self) -> String {
        let of = |count: &AtomicU64| count.load(Relaxed);
        format!(
            "operations {} bytes {} connected {} broken {} silent {} wrong {}",
            of(&self.operations),
            of(&self.bytes),
            of(&self.connected),
            of(&self.broken),
            of(&self.silent),
            of(&self.wrong)
        )
    }
}

/// What ends a connection.
enum End {
    Broken(io::Error),
    Wrong(String),
}

impl From<io::Error> for End {
    fn from(why: io::Error) -> Self {
        Self::Broken(why)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let parsed = match &args[..] {
        [address, connections, stop] => address.parse().ok().zip(connections.parse().ok()).map(|of| (of, stop)),
        _ => None,
    };
    let Some(((address, connections), stop)) = parsed else {
        eprintln!("usage: redis_check ADDRESS:PORT CONNECTIONS STOP");
        return ExitCode::FAILURE;
    };
    let (counts, is_over) = (Counts::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..connections {
            let (counts, is_over) = (&counts, &is_over);
            scope.spawn(move || Client::new(number).runs(address, counts, is_over));
        }
        while !Path::new(stop).exists() {
            println!("CLIENT {}", counts.line());
            thread::sleep(SAYS_EVERY);
        }
        is_over.store(true, Relaxed);
    });
    println!("ended, {}", counts.line());
    if counts.wrong.load(Relaxed) == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The value of a number, of a length that it decides.
fn value(client: u64, number: u64) -> Vec<u8> {
    let mixed = |of: u64| (of ^ of >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
    let seed = mixed(client << 40 | number);
    // Most are short.
    let len = match seed % 8 {
        0 => seed >> 8 & 0xffff,
        _ => seed >> 8 & 0xff,
    };
    let mut value = format!("{client}:{number}:").into_bytes();
    value.extend((0..len % LONGEST).map(|at| mixed(seed ^ at << 20) as u8));
    value
}

struct Client {
    number: u64,
    /// Of the last value that was written.
    written: u64,
    keys: Vec<Key>,
}

/// The numbers of values that a key may have.
#[derive(Clone, Default)]
struct Key {
    /// The last one that was answered.
    written: Option<u64>,
    /// Those whose answer did not come: a server may come to them late.
    may_be: Vec<u64>,
}

impl Client {
    fn new(number: u64) -> Self {
        Self { number, written: 0, keys: vec![Key::default(); KEYS as usize] }
    }

    fn runs(mut self, address: SocketAddr, counts: &Counts, is_over: &AtomicBool) {
        while !is_over.load(Relaxed) {
            match self.connection(address, counts, is_over) {
                Ok(()) => continue,
                Err(End::Broken(why)) => {
                    let is_silent = matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                    counts.silent.fetch_add(u64::from(is_silent), Relaxed);
                    counts.broken.fetch_add(1, Relaxed);
                }
                Err(End::Wrong(what)) => {
                    println!("WRONG {what}");
                    counts.wrong.fetch_add(1, Relaxed);
                }
            }
            thread::sleep(AGAIN);
        }
    }

    fn connection(&mut self, address: SocketAddr, counts: &Counts, is_over: &AtomicBool) -> Result<(), End> {
        let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        counts.connected.fetch_add(1, Relaxed);
        let mut stream = BufReader::new(stream);
        for _ in 0..OPERATIONS {
            if is_over.load(Relaxed) {
                break;
            }
            let bytes = self.operation(&mut stream)?;
            counts.operations.fetch_add(1, Relaxed);
            counts.bytes.fetch_add(bytes, Relaxed);
        }
        Ok(())
    }

    /// Writes a value, and reads that of another key.
    fn operation(&mut self, stream: &mut BufReader<TcpStream>) -> Result<u64, End> {
        self.written += 1;
        let key = self.written % KEYS;
        let bytes = value(self.number, self.written);
        self.keys[key as usize].may_be.push(self.written);
        let mut order =
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n", self.key(key).len(), self.key(key), bytes.len());
        order.reserve(bytes.len());
        let order = [order.as_bytes(), &bytes, b"\r\n"].concat();
        stream.get_mut().write_all(&order)?;
        let answer = line(stream)?;
        if answer != "+OK" {
            return Err(End::Wrong(format!("a write was answered by {answer:?}")));
        }
        let is = &mut self.keys[key as usize];
        is.may_be.pop();
        is.written = Some(self.written);

        let key = self.written.wrapping_mul(7) % KEYS;
        let order = format!("*2\r\n$3\r\nGET\r\n${}\r\n{}\r\n", self.key(key).len(), self.key(key));
        stream.get_mut().write_all(order.as_bytes())?;
        let answer = line(stream)?;
        let len = answer.strip_prefix('$').and_then(|len| len.parse::<i64>().ok());
        let is = &self.keys[key as usize];
        let got = match len {
            Some(-1) if is.written.is_none() => return Ok(order.len() as u64),
            Some(len @ 0..) if len as u64 <= 2 * LONGEST => {
                let mut got = vec![0; len as usize + 2];
                stream.read_exact(&mut got)?;
                got
            }
            _ => return Err(End::Wrong(format!("a read was answered by {answer:?}"))),
        };
        let Some(value) = got.strip_suffix(b"\r\n") else {
            return Err(End::Wrong("an answer that does not end with its length".into()));
        };
        let number = String::from_utf8_lossy(value).split(':').nth(1).and_then(|number| number.parse().ok());
        let is_right = number.is_some_and(|number| {
            (is.written == Some(number) || is.may_be.contains(&number)) && self::value(self.number, number) == value
        });
        if !is_right {
            let begin = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
            let (len, Key { written, may_be }) = (value.len(), is);
            let what = format!("key {key}: {len} bytes, {begin:?}, where it is {written:?} or may be {may_be:?}");
            return Err(End::Wrong(what));
        }
        Ok((bytes.len() + value.len()) as u64)
    }

    fn key(&self, key: u64) -> String {
        format!("check:{}:{key}", self.number)
    }
}

/// One line of an answer. One that does not end is a broken connection.
fn line(stream: &mut BufReader<TcpStream>) -> Result<String, End> {
    let mut line = Vec::new();
    stream.by_ref().take(200).read_until(b'\n', &mut line)?;
    let is_whole = line.ends_with(b"\r\n");
    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
    match is_whole {
        true => Ok(text),
        false if line.len() < 200 => Err(End::Broken(io::ErrorKind::UnexpectedEof.into())),
        false => Err(End::Wrong(format!("no line: {text:?}"))),
    }
}
