// SPDX-License-Identifier: Apache-2.0
//! A client's connection to a server, and how a client finds the leader: as with Redis Sentinel.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The name of the group, as clients of Sentinel use it.
const GROUP: &str = "redis";
/// A server that does not take a connection, or has begun a reply and does not end it, is given up after this.
const LIMIT: Duration = Duration::from_millis(20);
/// Longest reply of one piece, bytes.
const REPLY_MAX: u64 = 16 << 20;

/// A reply of Redis.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A status, a number or a string.
    Text(String),
    Null,
    Error(String),
    List(Vec<Reply>),
}

/// A TCP or a Unix connection.
pub(super) trait Stream: Read + Write + AsFd {}
impl<S: Read + Write + AsFd> Stream for S {}

pub(super) struct Connection {
    stream: BufReader<Box<dyn Stream + Send>>,
}

impl Connection {
    /// Connects from this thread's namespace.
    pub(super) fn to(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    /// Connects to a server of any namespace.
    pub(super) fn at(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)) })
    }

    pub(super) fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Whether a reply has begun, or the connection has ended, within this time.
    pub(super) fn is_readable(&self, within: Duration) -> io::Result<bool> {
        if !self.stream.buffer().is_empty() {
            return Ok(true);
        }
        let mut polled = [PollFd::new(self.stream.get_ref(), PollFlags::IN)];
        let within = Timespec::try_from(within).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&within)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    /// The next reply.
    ///
    /// # Errors
    /// The connection has ended, nothing comes for [`LIMIT`], or what comes is no reply.
    pub(super) fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let odd = || io::Error::other(format!("{line:?} is no reply of Redis"));
        let line = line.trim_end();
        let rest = line.get(1..).ok_or_else(odd)?;
        let number = || rest.parse::<i64>().map_err(|_| odd());
        match line.as_bytes()[0] {
            b'+' | b':' => Ok(Reply::Text(rest.to_owned())),
            b'-' => Ok(Reply::Error(rest.to_owned())),
            b'$' => {
                let Ok(len) = u64::try_from(number()?) else { return Ok(Reply::Null) };
                if len > REPLY_MAX {
                    return Err(odd());
                }
                let mut text = vec![0; usize::try_from(len).map_err(io::Error::other)? + 2];
                self.stream.read_exact(&mut text)?;
                text.truncate(text.len() - 2);
                Ok(Reply::Text(String::from_utf8_lossy(&text).into_owned()))
            }
            b'*' => match u32::try_from(number()?) {
                Ok(len) => (0..len).map(|_| self.receive()).collect::<io::Result<Vec<_>>>().map(Reply::List),
                Err(_) => Ok(Reply::Null),
            },
            _ => Err(odd()),
        }
    }

    pub(super) fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }
}

/// The leader's address, as this server has it.
pub(super) fn leader_by(sentinel: SocketAddr) -> Option<Ipv4Addr> {
    let asked = Connection::to(sentinel).and_then(|mut it| it.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", GROUP]));
    match asked {
        Ok(Reply::List(words)) => match words.first() {
            Some(Reply::Text(ip)) => ip.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_all_kinds_are_read() {
        let (ours, mut servers) = UnixStream::pair().unwrap();
        let mut connection = Connection { stream: BufReader::new(Box::new(ours)) };
        servers.write_all(b"+OK\r\n:7\r\n$-1\r\n$3\r\na\nb\r\n-ERR no\r\n*2\r\n$1\r\nx\r\n*-1\r\n?\r\n").unwrap();
        drop(servers);
        let text = |text: &str| Reply::Text(text.to_owned());
        assert_eq!(connection.receive().unwrap(), text("OK"));
        assert_eq!(connection.receive().unwrap(), text("7"));
        assert_eq!(connection.receive().unwrap(), Reply::Null);
        assert_eq!(connection.receive().unwrap(), text("a\nb"));
        assert_eq!(connection.receive().unwrap(), Reply::Error("ERR no".to_owned()));
        assert_eq!(connection.receive().unwrap(), Reply::List(vec![text("x"), Reply::Null]));
        assert!(connection.receive().unwrap_err().to_string().contains("is no reply"));
        assert_eq!(connection.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
