// SPDX-License-Identifier: Apache-2.0
//! Writes that clients send to a follower, passed on to the leader: one connection, in the order in which they
//! came. What is under way when the leader is lost may or may not happen, and its client is told so. A leader
//! that has handed over still answers what it had, or refuses it, and then it is sent to the next one.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream},
    os::fd::{AsRawFd, RawFd},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with},
};

use redis_module::raw::{REDISMODULE_EVENTLOOP_READABLE, REDISMODULE_EVENTLOOP_WRITABLE};

use super::{
    replies::write,
    words::{AS, WRITES},
};
use crate::{
    answer::{Incoming, Part, error_of},
    commands::Checks,
    redis::{Blocked, Text, unwatch},
    resp::{self, RespError, Value},
};

/// Most writes that wait for the leader; more are refused.
pub(super) const WAITING_MAX: usize = 10_000;
/// Most bytes of them.
const BYTES_MAX: usize = 64 << 20;
/// What was written is dropped from the buffer from so many bytes on.
const WRITTEN_MAX: usize = 1 << 20;
/// A write waits so long for a leader, and for its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to send what a server has refused: it is about to lead.
const REFUSED_RETRY: Duration = Duration::from_millis(1);
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
const READ_MAX: usize = 64 << 10;

pub(super) const UNKNOWN: &str =
    "UNKNOWN the leader was lost while it had this write; it may or may not happen. Read the data before you repeat it";
const NO_DATABASE: &str =
    "ERR the leader does not give this database (databases, or the permissions of its default user); it did not happen";
const NO_LEADER: &str = "TRYAGAIN no leader has taken this write; it did not happen";

/// A write of a client.
pub(super) struct Passed {
    /// None: this module itself.
    client: Option<Blocked>,
    db: u32,
    request: Vec<u8>,
    since: Instant,
    /// It may be sent again, as it happens once ([`crate::once`]).
    is_numbered: bool,
    /// Whose rights it has, where Redis checks them while it executes it.
    user: Option<Vec<u8>>,
    /// A leader that is lost may have had it.
    was_sent: bool,
}

impl Passed {
    /// The answer if no leader has answered.
    fn unanswered(self) -> Answer {
        Answer { client: self.client, bytes: Err(if self.was_sent { UNKNOWN } else { NO_LEADER }) }
    }

    /// Executes it here.
    pub(super) fn execute(self) {
        let Some(client) = self.client else { return };
        let request = match Value::read(&self.request) {
            Ok(Some((request, _))) => request,
            _ => Value::Null,
        };
        // Without FIDE.W in front, or FIDE.AS with a proof and a user.
        let in_front = if self.user.is_some() { 3 } else { 1 };
        let args: Vec<Text> = request.list().iter().skip(in_front).filter_map(Value::bytes).map(Text::new).collect();
        client.end(|ctx| {
            super::commands::execute(ctx, &args, self.user.as_deref());
        });
    }
}

/// How a server says that it does not lead: Redis itself, and this module.
const REFUSALS: [&str; 4] = [
    "READONLY You can't write against a read only replica",
    "READONLY this server follows",
    "LOADING Redis is loading",
    "LOADING this server is",
];

const OLD_LEADER: &str = "ERR the leader is of a version that does not take this command from followers; send it to the leader, or upgrade that one";

const TOO_LONG: &str =
    "ERR the leader has executed this, and its answer is longer than a follower passes on (512 MiB); ask the leader";

/// How an older leader answers what it cannot take with a user: it does not know the word, or not before this command.
fn is_of_older(answer: &[u8]) -> bool {
    let known = ["ERR unknown command", "ERR FIDE.AS is for this module's own use"];
    error_of(answer).is_some_and(|text| known.iter().any(|start| text.starts_with(start.as_bytes())))
}

/// Whether an answer says that a server has not executed the write, as it does not lead. `is_script`: it may be the
/// script's own error, of whatever name, and a script is not to be executed twice.
fn is_refused(answer: &[u8], is_script: bool) -> bool {
    let Some(text) = error_of(answer) else { return false };
    if is_script {
        return REFUSALS.iter().any(|refusal| text.starts_with(refusal.as_bytes()));
    }
    text.starts_with(b"READONLY ") || text.starts_with(b"LOADING ")
}

/// What the leader is sent.
pub(super) struct Request {
    bytes: Vec<u8>,
    user: Option<Vec<u8>>,
}

/// A write whose client was allowed to send it. As the leader's own filter would put it: a server that does not lead
/// refuses it, and does not pass it on.
pub(super) fn plain(checks: Checks, args: &[&[u8]]) -> Request {
    let mut bytes = Vec::new();
    resp::command(&mut bytes, &[&[WRITES[checks.index()].0.to_bytes()], args].concat());
    Request { bytes, user: None }
}

/// A script, or SORT: the leader checks what this user may do.
pub(super) fn as_user(proof: &[u8], user: Vec<u8>, args: &[&[u8]]) -> Request {
    let mut bytes = Vec::new();
    resp::command(&mut bytes, &[&[AS.to_bytes(), proof, &user], args].concat());
    Request { bytes, user: Some(user) }
}

/// An answer that the leader owes.
enum Owed {
    /// To a client.
    To(Passed),
    /// To AUTH: what it says is seen in the next answer.
    Auth,
    /// To SELECT: nothing is sent before it is there.
    Select,
}

struct Connection {
    stream: TcpStream,
    to: SocketAddrV4,
    db: u32,
    /// The answer to SELECT is not there yet.
    selects: bool,
    /// Something has left: the leader may have it.
    has_sent: bool,
    out: Vec<u8>,
    written: usize,
    incoming: Incoming,
    owed: VecDeque<Owed>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        unwatch(self.stream.as_raw_fd(), REDISMODULE_EVENTLOOP_READABLE | REDISMODULE_EVENTLOOP_WRITABLE);
    }
}

/// Writes on their way to the leader.
#[derive(Default)]
pub(super) struct Proxy {
    connection: Option<Connection>,
    waiting: VecDeque<Passed>,
    tried: Option<Instant>,
    /// When the leader refused something: it was not one yet, or is none any more.
    refused: Option<Instant>,
}

/// A client's answer.
pub(super) struct Answer {
    client: Option<Blocked>,
    /// As the leader wrote it; none: an error of this module's own.
    bytes: Result<Vec<u8>, &'static str>,
}

impl Answer {
    pub(super) fn give(self) {
        let Some(client) = self.client else { return };
        client.end(|ctx| match &self.bytes {
            Ok(bytes) => {
                write(ctx, bytes);
            }
            Err(why) => {
                ctx.error(why);
            }
        });
    }
}

impl Proxy {
    pub(super) fn is_full(&self) -> bool {
        let sent = self.connection.iter().flat_map(|connection| &connection.owed).filter_map(|owed| match owed {
            Owed::To(passed) => Some(passed),
            _ => None,
        });
        let (count, bytes) = self
            .waiting
            .iter()
            .chain(sent)
            .fold((0, 0), |(count, bytes), passed| (count + 1, bytes + passed.request.len()));
        count >= WAITING_MAX || bytes >= BYTES_MAX
    }

    /// Writes that were not sent to anybody.
    pub(super) fn take_waiting(&mut self) -> Vec<Passed> {
        self.waiting.drain(..).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.connection.is_none()
    }

    /// Takes a request, as [`plain`] or [`as_user`] makes it.
    pub(super) fn pass(&mut self, client: Blocked, db: u32, request: Request, is_numbered: bool) {
        let Request { bytes: request, user } = request;
        let (since, was_sent) = (Instant::now(), false);
        let client = Some(client);
        self.waiting.push_back(Passed { client, db, request, since, is_numbered, user, was_sent });
    }

    /// Sends a command of this module to the leader, whose answer does not matter.
    pub(super) fn tell(&mut self, args: &[&[u8]]) {
        let mut request = Vec::new();
        resp::command(&mut request, args);
        let (since, was_sent) = (Instant::now(), false);
        self.waiting.push_back(Passed {
            client: None,
            db: 0,
            request,
            since,
            is_numbered: false,
            user: None,
            was_sent,
        });
    }

    /// What waits is refused: this server is out.
    pub(super) fn refuse_all(&mut self, answers: &mut Vec<Answer>) {
        self.lose(answers);
        answers.extend(self.waiting.drain(..).map(Passed::unanswered));
    }

    /// Sends what waits to this leader, once a former one that lives has answered what was sent to it; what was
    /// sent to a dead one is lost. None: no other leader is known. Adds the answers for clients that wait no
    /// longer, and returns a descriptor to be watched.
    pub(super) fn follow(
        &mut self,
        leader: Option<(Ipv4Addr, u16)>,
        lives: &dyn Fn(Ipv4Addr) -> bool,
        password: &[u8],
        answers: &mut Vec<Answer>,
    ) -> Option<RawFd> {
        let leader = leader.map(|(address, port)| SocketAddrV4::new(address, port));
        let is_late = |owed: &Owed| matches!(owed, Owed::To(passed) if passed.since.elapsed() > PATIENCE);
        let mut is_former = false;
        if let Some(Connection { to, owed, .. }) = &self.connection {
            is_former = Some(*to) != leader;
            let owes = owed.iter().any(|owed| matches!(owed, Owed::To(_)));
            if owed.iter().take(2).any(is_late) || is_former && !(owes && lives(*to.ip())) {
                self.lose(answers);
                is_former = false;
            }
        }
        while self.waiting.front().is_some_and(|passed| passed.since.elapsed() > PATIENCE) {
            let passed = self.waiting.pop_front();
            answers.extend(passed.map(Passed::unanswered));
        }
        let mut new = None;
        if self.connection.is_none() && !self.waiting.is_empty() {
            new = self.connect(leader?, password);
        }
        if is_former || self.refused.is_some_and(|refused| refused.elapsed() < REFUSED_RETRY) {
            return new;
        }
        let Some(connection) = &mut self.connection else { return new };
        while !connection.selects
            && let Some(first) = self.waiting.front()
        {
            if connection.db != first.db {
                connection.db = first.db;
                connection.selects = true;
                resp::command(&mut connection.out, &[b"SELECT", first.db.to_string().as_bytes()]);
                connection.owed.push_back(Owed::Select);
                break;
            }
            let Some(passed) = self.waiting.pop_front() else { break };
            connection.out.extend_from_slice(&passed.request);
            connection.owed.push_back(Owed::To(passed));
        }
        if !self.flush() {
            self.lose(answers);
            return None;
        }
        new
    }

    /// Begins a connection; whether it comes about is seen when it is written or read.
    fn connect(&mut self, to: SocketAddrV4, password: &[u8]) -> Option<RawFd> {
        if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return None;
        }
        self.tried = Some(Instant::now());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok()?;
        match connect(&socket, &SocketAddr::V4(to)) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(_) => return None,
        }
        let stream = TcpStream::from(socket);
        let _ = stream.set_nodelay(true);
        let fd = stream.as_raw_fd();
        let (mut out, mut owed) = (Vec::new(), VecDeque::new());
        if !password.is_empty() {
            resp::command(&mut out, &[b"AUTH", password]);
            owed.push_back(Owed::Auth);
        }
        self.connection = Some(Connection {
            stream,
            to,
            db: 0,
            selects: false,
            has_sent: false,
            out,
            written: 0,
            incoming: Incoming::default(),
            owed,
        });
        Some(fd)
    }

    /// Whether the connection stands.
    fn flush(&mut self) -> bool {
        let Some(Connection { stream, out, written, has_sent, .. }) = &mut self.connection else { return true };
        while *written < out.len() {
            match stream.write(&out[*written..]) {
                Ok(len) => {
                    *written += len;
                    *has_sent = true;
                }
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                // The rest at the next turn; a connection that is not there yet says so, too.
                Err(why) if why.kind() == ErrorKind::WouldBlock && *written > WRITTEN_MAX => {
                    out.drain(..*written);
                    *written = 0;
                    return true;
                }
                Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => return true,
                Err(_) => return false,
            }
        }
        out.clear();
        *written = 0;
        true
    }

    /// The leader has answered, or is gone.
    pub(super) fn receive(&mut self, answers: &mut Vec<Answer>) {
        let Some(connection) = &mut self.connection else { return };
        let mut buffer = [0; READ_MAX];
        let stands = match connection.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(len) => {
                let mut refused = Vec::new();
                let result = connection.answer(&buffer[..len], answers, &mut refused);
                if let Ok(false) = result {
                    // The first one that waits asked for a database that the leader does not give.
                    let passed = self.waiting.pop_front();
                    answers.extend(passed.map(|passed| Answer { client: passed.client, bytes: Err(NO_DATABASE) }));
                }
                if !refused.is_empty() {
                    self.refused = Some(Instant::now());
                }
                refused.into_iter().rev().for_each(|passed| self.waiting.push_front(passed));
                matches!(result, Ok(true))
            }
            Err(why) => matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected),
        };
        if !stands {
            self.lose(answers);
        }
    }

    /// The connection is gone, and with it what the leader had.
    pub(super) fn lose(&mut self, answers: &mut Vec<Answer>) {
        let Some(mut connection) = self.connection.take() else { return };
        let owed: Vec<Owed> = connection.owed.drain(..).collect();
        for owed in owed.into_iter().rev() {
            let Owed::To(mut passed) = owed else { continue };
            passed.was_sent |= connection.has_sent;
            if passed.is_numbered {
                self.waiting.push_front(passed);
            } else {
                answers.push(passed.unanswered());
            }
        }
    }
}

impl Connection {
    /// Hands out the answers that these bytes complete, and the writes that were refused. False: the leader refuses
    /// the database.
    fn answer(
        &mut self,
        mut bytes: &[u8],
        answers: &mut Vec<Answer>,
        refused: &mut Vec<Passed>,
    ) -> Result<bool, RespError> {
        while !bytes.is_empty() {
            let (len, part) = self.incoming.take(bytes)?;
            bytes = &bytes[len..];
            let answer = match part {
                Part::Open => continue,
                Part::Whole(answer) => Ok(answer),
                Part::TooLong => Err(TOO_LONG),
            };
            let known = answer.as_deref().unwrap_or_default();
            match self.owed.pop_front() {
                Some(Owed::To(passed)) if is_refused(known, passed.user.is_some()) => refused.push(passed),
                // Its text has the proof.
                Some(Owed::To(Passed { client, user: Some(_), .. })) if is_of_older(known) => {
                    answers.push(Answer { client, bytes: Err(OLD_LEADER) });
                }
                Some(Owed::To(Passed { client, .. })) => {
                    answers.push(Answer { client, bytes: answer });
                }
                Some(Owed::Select) if error_of(known).is_some() => return Ok(false),
                Some(Owed::Select) => self.selects = false,
                Some(Owed::Auth) | None => {}
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_is_not_sent_again_for_an_error_of_its_own() {
        let refused = |text: &str, is_script| is_refused(format!("-{text}\r\n").as_bytes(), is_script);
        for of_server in REFUSALS {
            assert!(refused(of_server, true) && refused(of_server, false), "{of_server}");
        }
        assert!(refused("READONLY whatever", false) && !refused("READONLY whatever", true));
        assert!(!refused("ERR no", false) && !is_refused(b"+READONLY this server follows\r\n", true));
    }
}
