// SPDX-License-Identifier: Apache-2.0
//! A peer that is killed says nothing: what waits ends after `idle_ns`, with an error that says so.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use fide_pace_socket::{Closed, Config, Endpoint, IDLE_LEAST_NS, RecvError, SendError, ServerKey};

const KEY: ServerKey = ServerKey::Secret([7; 32]);

fn config() -> Config {
    // Of messages: none expires meanwhile.
    Config { deadline_ns: 600_000_000_000, idle_ns: IDLE_LEAST_NS, ..Config::default() }
}

/// Takes one message, and no other, until it is killed; started by the test below.
#[test]
#[ignore = "a process of another test"]
fn child() {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), KEY, config()).unwrap();
    println!("\nat {}", server.local_address().unwrap());
    let there = server.accept().unwrap();
    there.recv().unwrap();
    println!("has one");
    // Its parent kills it; nobody waits longer.
    thread::sleep(Duration::from_secs(60));
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn peer_that_is_killed_ends_send_and_recv() {
    let mut peer = Killed(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(peer.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.strip_prefix("at ")?.parse().ok()).expect("an address");
    let here = Endpoint::client().unwrap().connect(address, &KEY.for_clients(), config()).unwrap();
    let here = Arc::new(here);
    here.send(b"one").unwrap();
    assert!(lines.any(|line| line == "has one"));
    let receives = thread::spawn({
        let here = Arc::clone(&here);
        move || here.recv()
    });
    let sends = thread::spawn(move || std::iter::repeat_with(|| here.send(&[0; 1000])).find_map(Result::err));
    drop(peer);
    let why = receives.join().unwrap().expect_err("nobody sends");
    assert_eq!(why, RecvError(Closed::Vanished));
    assert!(why.to_string().contains("the other end was not heard any more"), "{why}");
    assert_eq!(sends.join().unwrap(), Some(SendError::Closed(Closed::Vanished)));
}
