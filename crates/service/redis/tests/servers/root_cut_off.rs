// SPDX-License-Identifier: Apache-2.0
//! What clients are told that wait at a server which is cut off.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use fide_testbed::retry_until;

use crate::world::{LIMIT, World};

/// Longer than the first two retransmissions of TCP: the next one comes after the follower has learned of its exclusion.
const CUT: Duration = Duration::from_millis(700);
/// Answers by which docs/redis.md has a client send a numbered request again.
const AGAIN: [&str; 4] = ["-TRYAGAIN ", "-LOADING ", "-READONLY ", "-UNKNOWN "];
/// What a write of which nothing was sent is answered.
const NOT_DONE: &str = "-TRYAGAIN no leader has taken this write; it did not happen";
const ANSWER_MAX: usize = 1024;

/// A client that has sent one request.
pub(crate) struct Asks {
    stream: UnixStream,
}

impl Asks {
    pub(crate) fn new(world: &World, host: usize, database: u32, request: &str) -> Self {
        let mut stream = UnixStream::connect(world.server(host).socket()).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        let mut one = Self { stream: stream.try_clone().expect("a descriptor") };
        stream.write_all(format!("SELECT {database}\r\n").as_bytes()).expect("sent");
        assert_eq!(one.answer(), "+OK\r\n");
        stream.write_all(format!("{request}\r\n").as_bytes()).expect("sent");
        one
    }

    /// Empty: the connection was closed.
    pub(crate) fn answer(&mut self) -> String {
        let mut buffer = [0; ANSWER_MAX];
        let len = match self.stream.read(&mut buffer) {
            Ok(len) => len,
            Err(why) if why.kind() == ErrorKind::ConnectionReset => 0,
            Err(why) => panic!("no answer: {why}"),
        };
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }

    /// What has come so far.
    pub(crate) fn received(&mut self) -> String {
        let mut all = Vec::new();
        self.stream.set_nonblocking(true).expect("a setting");
        let end = self.stream.read_to_end(&mut all);
        self.stream.set_nonblocking(false).expect("a setting");
        assert!(end.is_ok() || end.is_err_and(|why| why.kind() == ErrorKind::WouldBlock));
        String::from_utf8_lossy(&all).into_owned()
    }
}

impl World {
    /// Waits until the leader says that a host is no member.
    pub(crate) fn await_excluded(&self, leader: usize, host: usize) {
        let name = format!("h{host}");
        let excluded = retry_until("an exclusion", LIMIT, || {
            let members = self.status(leader)["members"].clone();
            let is_member = members.as_array().is_none_or(|members| members.iter().any(|member| *member == *name));
            if is_member { Err(members.to_string()) } else { Ok(()) }
        });
        excluded.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()));
    }
}

fn await_blocked(world: &World, host: usize, clients: usize) {
    let wanted = format!("blocked_clients:{clients}\r\n");
    let blocked = retry_until("clients that wait", LIMIT, || {
        let info = world.ask(host, "INFO clients");
        if info.contains(&wanted) { Ok(()) } else { Err(info) }
    });
    blocked.unwrap_or_else(|why| panic!("{why}"));
}

/// Redis ends the wait of all clients of a server that takes the data over.
#[test]
fn root_excluded_follower_answers_what_it_was_to_pass_on() {
    let Some(world) = World::new(3, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    assert_eq!(world.ask(follower, "INCR warm"), ":1\r\n", "the connection to the leader stands");
    world.bed.isolate(follower).expect("cut");
    let mut numbered = Asks::new(&world, follower, 0, "FIDE.ONCE c 41 INCR numbered");
    let mut plain = Asks::new(&world, follower, 0, "INCR plain");
    await_blocked(&world, follower, 2);
    // It waits for the leader to answer SELECT.
    let mut unsent = Asks::new(&world, follower, 1, "INCR unsent");
    await_blocked(&world, follower, 3);
    world.await_excluded(leader, follower);
    thread::sleep(CUT);
    let mut read = Asks::new(&world, follower, 0, "GET warm");
    await_blocked(&world, follower, 4);
    world.bed.rejoin(follower).expect("back");
    let answers = [&mut numbered, &mut plain, &mut unsent, &mut read].map(Asks::answer);
    println!("{answers:?}");
    for answer in &answers {
        let is_done = answer == ":1\r\n" || answer == "$1\r\n1\r\n";
        let is_told = AGAIN.iter().any(|again| answer.starts_with(again));
        assert!(is_done || is_told, "{answers:?}\n{}", world.logs());
    }
    world.await_ready();
    // Requests are passed on in the order in which they came: whatever was still to be sent is sent before this.
    assert_eq!(Asks::new(&world, follower, 1, "INCR later").answer(), ":1\r\n");
    let done = Asks::new(&world, leader, 1, "EXISTS unsent").answer();
    assert_eq!(done == ":0\r\n", answers[2].starts_with(NOT_DONE), "{answers:?} {done}");
    assert_eq!(world.ask(follower, "FIDE.ONCE c 41 INCR numbered"), ":1\r\n");
    assert_eq!(world.ask(leader, "GET numbered"), "$1\r\n1\r\n", "it happened once");
    world.assert_alike();
}

/// That there was no data is data, too.
#[test]
fn root_wait_that_ends_at_a_leader_that_is_cut_off_is_not_answered() {
    let Some(world) = World::new(3, "hsuc") else { return };
    let leader = world.leader();
    assert_eq!(world.ask(leader, "XGROUP CREATE s g $ MKSTREAM"), "+OK\r\n");
    let waiting = || {
        let all = ["BLPOP l 2", "XREADGROUP GROUP g c BLOCK 2000 STREAMS s >"];
        let all = all.map(|request| Asks::new(&world, leader, 0, request));
        await_blocked(&world, leader, 2);
        all
    };
    for mut one in waiting() {
        assert_eq!(one.answer(), "*-1\r\n");
    }
    let all = waiting();
    world.bed.isolate(leader).expect("cut");
    for mut one in all {
        let answer = one.answer();
        assert!(answer.is_empty(), "{answer}");
    }
    world.bed.rejoin(leader).expect("back");
    world.await_ready();
    world.assert_alike();
}
