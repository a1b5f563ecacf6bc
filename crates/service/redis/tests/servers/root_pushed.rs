// SPDX-License-Identifier: Apache-2.0
//! Clients that are sent what others write, and that read slowly, see nothing before it is decided.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
};

use fide_testbed::{RedisServer, retry_until};

use crate::world::{LIMIT, World};

/// What fills a connection, byte by byte less than Redis writes at once (64 KiB).
const FILLER: usize = 4 << 10;
/// Replies of that length that fill any connection.
const FILLERS_MAX: usize = 10_000;
const ENTRY: &str = "the-entry";

fn line(words: &str) -> Vec<u8> {
    format!("{words}\r\n").into_bytes()
}

fn connect(server: &RedisServer) -> UnixStream {
    let stream = UnixStream::connect(server.socket()).expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    stream
}

/// A client whose connection is full, and that waits for an entry of the stream `s`, or subscribes to the channel `s`.
struct Slow {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Slow {
    fn new(world: &World, leader: usize, waits: &str) -> Self {
        assert_eq!(world.ask(leader, &format!("SET filler {}", "x".repeat(FILLER))), "+OK\r\n");
        let mut stream = connect(world.server(leader));
        stream.write_all(&line("CLIENT SETNAME slow")).unwrap();
        let about = || {
            let list = world.ask(leader, "CLIENT LIST");
            list.lines().find(|line| line.contains(" name=slow ")).unwrap_or_default().to_owned()
        };
        let is_full = |about: &str| about.split(' ').any(|field| field == "events=rw");
        let mut fillers = 0;
        while !is_full(&about()) {
            assert!(fillers < FILLERS_MAX, "{}", about());
            stream.write_all(&line("GET filler")).unwrap();
            fillers += 1;
        }
        stream.write_all(&line(waits)).unwrap();
        let waiting = retry_until("a client that waits", LIMIT, || {
            let about = about();
            let flags = about.split(' ').find_map(|field| field.strip_prefix("flags=")).unwrap_or_default().to_owned();
            if is_full(&about) && flags.contains(['b', 'P']) { Ok(()) } else { Err(about) }
        });
        waiting.unwrap_or_else(|why| panic!("{why}"));
        Self { stream, read: Vec::new() }
    }

    /// Reads what has come.
    fn drain(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let end = self.stream.read_to_end(&mut self.read).expect_err("it is connected");
        assert_eq!(end.kind(), ErrorKind::WouldBlock);
        self.stream.set_nonblocking(false).unwrap();
    }

    fn has_entry(&self) -> bool {
        String::from_utf8_lossy(&self.read).contains(ENTRY)
    }

    /// Reads until the entry is there, or the connection ends; whether it was there.
    fn awaits_entry(&mut self) -> bool {
        let mut buffer = [0; FILLER];
        while !self.has_entry() {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(len) => self.read.extend_from_slice(&buffer[..len]),
                Err(why) if why.kind() == ErrorKind::ConnectionReset => return false,
                // With a timeout Linux says so also when the whole process was stopped, or frozen, for a moment.
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => panic!("{why}"),
            }
        }
        true
    }
}

/// Has the server find both in one look: a request, and then that the slow client takes more.
fn at_once(server: &RedisServer, writer: &mut UnixStream, request: &[u8], slow: &mut Slow) {
    server.pause();
    writer.write_all(request).unwrap();
    slow.drain();
    server.resume();
}

fn reply_of(stream: &mut UnixStream) -> String {
    let mut buffer = [0; FILLER];
    let len = stream.read(&mut buffer).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

fn nothing_undecided_is_sent(waits: &str, write: &str) {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    let mut writer = connect(world.server(leader));
    for is_decided in [true, false] {
        let mut slow = Slow::new(&world, leader, waits);
        // Without this server nothing is decided.
        if !is_decided {
            world.server(follower).pause();
        }
        at_once(world.server(leader), &mut writer, &line(write), &mut slow);
        let was_sent = slow.awaits_entry();
        let reply = reply_of(&mut writer);
        if !is_decided {
            world.server(follower).resume();
        }
        assert_eq!(was_sent, is_decided, "{write}: {reply}\n{}", world.logs());
        // Its own connection is closed, too.
        assert_eq!(reply.is_empty(), !is_decided, "{write}: {reply}");
        writer = connect(world.server(leader));
    }
    world.await_ready();
    world.assert_alike();
}

#[test]
fn root_entry_is_not_sent_to_a_slow_reader_before_it_is_decided() {
    nothing_undecided_is_sent("XREAD BLOCK 0 STREAMS s $", &format!("XADD s * f {ENTRY}"));
}

#[test]
fn root_message_is_not_sent_to_a_slow_subscriber_before_it_is_decided() {
    nothing_undecided_is_sent("SUBSCRIBE s", &format!("PUBLISH s {ENTRY}"));
}

#[test]
fn root_script_is_decided_before_a_slow_reader_is_sent_what_it_wrote() {
    let script = format!("EVAL \"return redis.call('PUBLISH','s','{ENTRY}')\" 0");
    nothing_undecided_is_sent("SUBSCRIBE s", &script);
}

/// Nothing runs between its last command and the next client.
#[test]
fn root_transaction_is_refused_while_a_slow_reader_would_be_sent_it() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let mut slow = Slow::new(&world, leader, "XREAD BLOCK 0 STREAMS s $");
    let mut writer = connect(world.server(leader));
    let queue = |writer: &mut UnixStream| {
        for words in ["MULTI", &format!("XADD s 1-1 f {ENTRY}")] {
            writer.write_all(&line(words)).unwrap();
            let reply = reply_of(writer);
            assert!(reply.starts_with('+'), "{reply}");
        }
    };
    queue(&mut writer);
    at_once(world.server(leader), &mut writer, &line("EXEC"), &mut slow);
    let reply = reply_of(&mut writer);
    assert!(reply.starts_with("*1\r\n-TRYAGAIN another client that is sent messages"), "{reply}");
    assert_eq!(world.ask(leader, "EXISTS s"), ":0\r\n");
    assert!(!slow.has_entry());
    queue(&mut writer);
    writer.write_all(&line("EXEC")).unwrap();
    assert_eq!(reply_of(&mut writer), "*1\r\n$3\r\n1-1\r\n");
    assert!(slow.awaits_entry());
    world.assert_alike();
}
