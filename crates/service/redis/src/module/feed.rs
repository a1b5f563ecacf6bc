// SPDX-License-Identifier: Apache-2.0
//! The replication link to this process' own server: a port of the loopback, one connection, and what waits
//! to be written to it.

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, RawFd},
};

use redis_module::raw::{REDISMODULE_EVENTLOOP_READABLE, REDISMODULE_EVENTLOOP_WRITABLE};

use super::answers::Answers;
use crate::{
    link::{Master, State},
    redis::unwatch,
    resp,
};

/// Bytes read at once.
const READ_MAX: usize = 16 << 10;
/// Bytes of a file that are read at once.
const FILE_READ_MAX: usize = 256 << 10;

/// A connection of the server.
struct Connection {
    stream: TcpStream,
    master: Master,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Before it is closed: another descriptor of the same number would be taken for it.
        unwatch(self.stream.as_raw_fd(), REDISMODULE_EVENTLOOP_READABLE | REDISMODULE_EVENTLOOP_WRITABLE);
    }
}

/// The link, and what it has to bring.
pub(super) struct Feed {
    listener: TcpListener,
    token: String,
    connection: Option<Connection>,
    /// What was not written yet, of which `written` bytes were.
    out: Vec<u8>,
    written: usize,
    /// Decided units that wait for the link.
    queue: Vec<u8>,
    /// Bytes that the server has taken, of all links so far.
    taken: u64,
    /// The server's data, to be sent before that, and how many bytes of it are left.
    file: Option<(File, u64)>,
}

/// What became of the link.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fed {
    Fine,
    /// The server has closed it, or asked for something that it is not given.
    Lost(String),
}

impl Feed {
    pub(super) fn open() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            listener,
            token,
            connection: None,
            out: Vec::new(),
            written: 0,
            queue: Vec::new(),
            taken: 0,
            file: None,
        })
    }

    pub(super) fn listener(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    pub(super) fn connection(&self) -> Option<RawFd> {
        self.connection.as_ref().map(|connection| connection.stream.as_raw_fd())
    }

    /// The addresses of the link's two ends: as the server has them, this module's and its own.
    pub(super) fn ends(&self) -> Option<[SocketAddr; 2]> {
        let stream = &self.connection.as_ref()?.stream;
        Some([stream.local_addr().ok()?, stream.peer_addr().ok()?])
    }

    pub(super) fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |address| address.port())
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    pub(super) fn is_streaming(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.master.state() == State::Streaming)
    }

    /// Bytes that the server has not been given yet.
    pub(super) fn len(&self) -> usize {
        self.out.len() - self.written + self.queue.len()
    }

    /// Bytes that the server has taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes a connection that waits at the port, in place of one that has not shown the token.
    pub(super) fn accept(&mut self) -> Option<RawFd> {
        let (stream, _) = self.listener.accept().ok()?;
        // The first one that knows the token stays.
        if self
            .connection
            .as_ref()
            .is_some_and(|connection| matches!(connection.master.state(), State::Known | State::Streaming))
        {
            return None;
        }
        stream.set_nonblocking(true).ok()?;
        let _ = stream.set_nodelay(true);
        let (fd, full) = (stream.as_raw_fd(), self.file.as_ref().map(|(_, bytes)| *bytes));
        self.connection = Some(Connection { stream, master: Master::new(&self.token).with_full(full) });
        Some(fd)
    }

    pub(super) fn close(&mut self) {
        self.connection = None;
        (self.out, self.written, self.queue, self.file) = (Vec::new(), 0, Vec::new(), None);
    }

    /// The server is to load this file first.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn set_file(&mut self, path: &std::path::Path) -> std::io::Result<()> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        self.file = Some((file, bytes));
        Ok(())
    }

    /// Takes what is to be written next: the file, then what waits. False if there is nothing.
    fn fill(&mut self) -> std::io::Result<bool> {
        self.out.clear();
        self.written = 0;
        if !self.is_streaming() {
            return Ok(false);
        }
        if let Some((file, left)) = &mut self.file {
            let wanted = usize::try_from(*left).unwrap_or(usize::MAX).min(FILE_READ_MAX);
            self.out.resize(wanted, 0);
            file.read_exact(&mut self.out)?;
            *left -= wanted as u64;
            if *left == 0 {
                self.file = None;
            }
        } else {
            std::mem::swap(&mut self.out, &mut self.queue);
        }
        Ok(!self.out.is_empty())
    }

    /// Appends a decided unit.
    pub(super) fn push(&mut self, content: &[u8]) {
        self.queue.extend_from_slice(content);
    }

    /// Appends a command that does nothing: a server that hears nothing for a minute gives its master up.
    pub(super) fn push_sign_of_life(&mut self) {
        resp::command(&mut self.queue, &[b"PINg"]);
    }

    /// Appends the note that everything up to a position is applied then, with answers for servers that
    /// replicate from this one.
    pub(super) fn push_position(&mut self, position: u64, answers: Option<Answers>) {
        let position = position.to_string();
        let mut words: Vec<&[u8]> = vec![b"FIDE.APPLIEd", position.as_bytes()];
        if let Some(answers) = &answers {
            words.extend(answers.words());
        }
        resp::command(&mut self.queue, &words);
    }

    /// The server may have asked something.
    pub(super) fn receive(&mut self) -> Fed {
        let Some(Connection { stream, master }) = &mut self.connection else { return Fed::Fine };
        let is_stranger = master.state() == State::Greeting;
        let mut buffer = [0; READ_MAX];
        match stream.read(&mut buffer) {
            Ok(0) if is_stranger => self.forget_stranger(),
            Ok(0) => Fed::Lost("the server has closed its replication link".to_owned()),
            Ok(len) => match master.receive(&buffer[..len], &mut self.out) {
                Ok(()) => self.flush(),
                Err(_) if is_stranger => self.forget_stranger(),
                Err(why) => Fed::Lost(why),
            },
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Fed::Fine,
            Err(why) => Fed::Lost(why.to_string()),
        }
    }

    /// Somebody who has not shown the token goes, and nothing else changes.
    fn forget_stranger(&mut self) -> Fed {
        self.connection = None;
        Fed::Fine
    }

    /// Writes what there is, as far as the server takes it.
    pub(super) fn flush(&mut self) -> Fed {
        if self.connection.is_none() {
            return Fed::Fine;
        }
        loop {
            if self.written == self.out.len() {
                match self.fill() {
                    Ok(true) => {}
                    Ok(false) => return Fed::Fine,
                    Err(why) => return Fed::Lost(format!("the group's data on disk cannot be read: {why}")),
                }
            }
            let Some(Connection { stream, .. }) = &mut self.connection else { return Fed::Fine };
            match stream.write(&self.out[self.written..]) {
                Ok(len) => {
                    self.written += len;
                    self.taken += len as u64;
                }
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Fed::Fine,
                Err(why) => return Fed::Lost(why.to_string()),
            }
        }
    }

    /// Whether bytes wait that the server does not take now.
    pub(super) fn is_stuck(&self) -> bool {
        self.written < self.out.len()
    }
}
