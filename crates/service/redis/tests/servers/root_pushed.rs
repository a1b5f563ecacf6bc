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

/// A client whose connection is full.
struct Slow {
    stream: UnixStream,
    read: Vec<u8>,
}

/// What the server's list of clients has of the slow one.
fn about(world: &World, leader: usize) -> String {
    let list = world.ask(leader, "CLIENT LIST");
    list.lines().find(|line| line.contains(" name=slow ")).unwrap_or_default().to_owned()
}

/// Whether Redis waits until it can write to the client of this line.
fn is_full(about: &str) -> bool {
    about.split(' ').any(|field| field == "events=rw")
}

impl Slow {
    fn full(world: &World, leader: usize) -> Self {
        assert_eq!(world.ask(leader, &format!("SET filler {}", "x".repeat(FILLER))), "+OK\r\n");
        let mut stream = connect(world.server(leader));
        stream.write_all(&line("CLIENT SETNAME slow")).unwrap();
        let mut fillers = 0;
        while !is_full(&about(world, leader)) {
            assert!(fillers < FILLERS_MAX, "{}", about(world, leader));
            stream.write_all(&line("GET filler")).unwrap();
            fillers += 1;
        }
        Self { stream, read: Vec::new() }
    }

    /// One that waits for an entry of the stream `s`, or subscribes to the channel `s`.
    fn new(world: &World, leader: usize, waits: &str) -> Self {
        let mut slow = Self::full(world, leader);
        slow.stream.write_all(&line(waits)).unwrap();
        let waiting = retry_until("a client that waits", LIMIT, || {
            let about = about(world, leader);
            let flags = about.split(' ').find_map(|field| field.strip_prefix("flags=")).unwrap_or_default().to_owned();
            if is_full(&about) && flags.contains(['b', 'P']) { Ok(()) } else { Err(about) }
        });
        waiting.unwrap_or_else(|why| panic!("{why}"));
        slow
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
    let mut buffer = [0; 4 * FILLER];
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
fn root_keys_of_a_reading_script_are_tracked_while_a_client_reads_slowly() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    assert_eq!(world.ask(leader, "SET k old"), "+OK\r\n");
    let mut slow = Slow::new(&world, leader, "SUBSCRIBE s");
    let mut tracks = connect(world.server(leader));
    for words in ["HELLO 3", "CLIENT TRACKING ON"] {
        tracks.write_all(&line(words)).unwrap();
        let reply = reply_of(&mut tracks);
        assert!(!reply.starts_with('-'), "{words}: {reply}");
    }
    let script = line("EVAL_RO \"return redis.call('get',KEYS[1])\" 1 k");
    at_once(world.server(leader), &mut tracks, &script, &mut slow);
    assert_eq!(reply_of(&mut tracks), "$3\r\nold\r\n");
    assert_eq!(world.ask(leader, "SET k new"), "+OK\r\n");
    assert_eq!(reply_of(&mut tracks), ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n");
    world.assert_alike();
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

/// Begins a transaction that stores a number in two keys: what stores the first one, then what comes before the second.
fn queue(stream: &mut UnixStream, number: usize, first: &[&str]) {
    stream.write_all(&line("MULTI")).unwrap();
    first.iter().for_each(|words| stream.write_all(&line(words)).unwrap());
    for words in [&format!("SET b {number}"), "CLIENT LIST"] {
        stream.write_all(&line(words)).unwrap();
    }
}

fn script(number: usize) -> String {
    format!("EVAL \"return redis.call('SET','a','{number}')\" 0")
}

fn assert_whole(world: &World, leader: usize, number: usize, before: usize, answer: &str) {
    let parts = ["GET a", "GET b"].map(|line| world.ask(leader, line));
    let value = |number: usize| format!("${}\r\n{number}\r\n", number.to_string().len());
    let is_of = |number: usize| parts.iter().all(|part| *part == value(number));
    assert!(is_of(number) || is_of(before), "a transaction in part: {parts:?} after {answer}");
}

/// A transaction whose client has read all its replies is executed. `first`: its commands before the last write, by the
/// number and the line of the slow client.
fn whole_while_another_client_reads_slowly(first: impl Fn(usize, &str) -> Vec<String>) {
    const ROUNDS: usize = 20;
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    let mut writer = connect(world.server(leader));
    assert_eq!(world.ask(leader, "MSET a 0 b 0"), "+OK\r\n");
    let mut seen = 0;
    for number in 1..=ROUNDS {
        let mut slow = Slow::full(&world, leader);
        let first = first(number, &about(&world, leader));
        let first: Vec<&str> = first.iter().map(String::as_str).collect();
        queue(&mut writer, number, &first);
        let mut queued = String::new();
        while queued.matches("+QUEUED").count() < first.len() + 2 {
            queued.push_str(&reply_of(&mut writer));
        }
        at_once(world.server(leader), &mut writer, &line("EXEC"), &mut slow);
        let answer = reply_of(&mut writer);
        assert_whole(&world, leader, number, number - 1, &answer);
        assert!(answer.starts_with('*') && !answer.contains("TRYAGAIN"), "nothing of its own was unread: {answer}");
        // Redis was about to write to the slow client, which had read everything by then.
        let about = answer.lines().find(|line| line.contains(" name=slow ")).unwrap_or_default();
        seen += usize::from(is_full(about));
        if seen == 3 {
            return world.assert_alike();
        }
    }
    panic!("only {seen} times in {ROUNDS} rounds the slow client had unread replies when EXEC came");
}

/// A script's commands come from a client of Redis' own that has no connection.
#[test]
fn root_transaction_with_a_script_is_whole_while_another_client_reads_slowly() {
    whole_while_another_client_reads_slowly(|number, _| vec![script(number)]);
}

#[test]
fn root_transaction_that_has_a_slow_reader_sent_messages_is_whole() {
    whole_while_another_client_reads_slowly(|number, about| {
        let id = about.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap_or_default();
        vec![format!("SET a {number}"), format!("CLIENT TRACKING ON REDIRECT {id}")]
    });
}

/// Here the client of the transaction is the slow one.
#[test]
fn root_transaction_with_a_script_of_a_client_that_reads_slowly_is_whole() {
    const ROUNDS: usize = 20;
    let Some(world) = World::new(2, "hsuc") else { return };
    let leader = world.leader();
    assert_eq!(world.ask(leader, "MSET a 0 b 0"), "+OK\r\n");
    let (mut refused, mut before) = (0, 0);
    for number in 1..=ROUNDS {
        let mut slow = Slow::full(&world, leader);
        queue(&mut slow.stream, number, &[&script(number)]);
        let queued = retry_until("three commands are queued", LIMIT, || {
            let about = about(&world, leader);
            if about.contains(" multi=3 ") && is_full(&about) { Ok(()) } else { Err(about) }
        });
        queued.unwrap_or_else(|why| panic!("{why}"));
        let mut writer = slow.stream.try_clone().unwrap();
        at_once(world.server(leader), &mut writer, &line("EXEC"), &mut slow);
        writer.write_all(&line(&format!("ECHO {ENTRY}"))).unwrap();
        assert!(slow.awaits_entry(), "{}", world.logs());
        let answer = String::from_utf8_lossy(&slow.read);
        let answer = answer.rsplit("+QUEUED\r\n").next().unwrap_or_default();
        assert_whole(&world, leader, number, before, answer);
        if answer.starts_with("*3\r\n+OK\r\n+OK\r\n") {
            before = number;
        } else {
            assert_eq!(answer.matches("TRYAGAIN read the earlier replies").count(), 2, "{answer}");
            refused += 1;
        }
        if refused == 3 {
            return world.assert_alike();
        }
    }
    panic!("only {refused} transactions were refused in {ROUNDS} rounds");
}
