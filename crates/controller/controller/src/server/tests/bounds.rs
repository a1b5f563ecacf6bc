// SPDX-License-Identifier: Apache-2.0
//! What happens at each bound.

use super::rig::Rig;
use super::*;
use crate::testing::eventually;
use std::io::{Read, Write};
use std::sync::mpsc::{channel, sync_channel};

fn limits() -> Limits {
    Limits::default()
}

#[test]
fn excess_requests_get_retry_after() {
    // The rig's own request takes from another peer's bucket; alpha's probe is its first.
    let rig = Rig::new(Limits { requests_per_s: 1, requests_burst: 200, ..limits() });
    let (mut alpha, mut beta) = (rig.client("host.alpha"), rig.client("host.beta"));
    let refused = eventually("the bound", || Some(alpha.get(&rig, TOTAL.path)).filter(|sent| sent.status == 429));
    assert_eq!((refused.code(), refused.header("retry-after")), ("too_many_requests", "1"));
    assert!(refused.message().contains("1 requests per second"));
    // Others are served, and a new connection brings no new bucket.
    assert_eq!(beta.get(&rig, TOTAL.path).status, 200);
    drop(alpha);
    let mut again = rig.client("host.alpha");
    assert!((0..10).any(|_| again.get(&rig, TOTAL.path).status == 429));
}

#[test]
fn too_many_polls_and_connections_are_refused() {
    let rig = Rig::new(Limits { polls_per_peer: 2, connections_per_peer: 3, ..limits() });
    let mut clients = [rig.client("host.alpha"), rig.client("host.alpha"), rig.client("host.alpha")];
    let path = "/v1/upcalls?after=0&wait_ms=60000";
    let mut waiting: Vec<_> = clients.iter_mut().map(|client| client.start(&rig, path)).collect();
    // The last of the three does not wait.
    let last = eventually("the bound", || waiting.iter().position(|poll| poll.is_finished()));
    let refused = rig.wait(waiting.swap_remove(last));
    assert_eq!((refused.status, refused.code()), (429, "too_many_polls"));
    assert!(waiting.iter().all(|poll| !poll.is_finished()));
    assert!(rig.connect("host.alpha").is_err());
    assert_eq!(rig.client("host.beta").get(&rig, TOTAL.path).status, 200);
    waiting.iter().for_each(|poll| poll.abort());
    drop(clients);
    // The places are free again.
    eventually("a place", || rig.connect("host.alpha").ok());
}

#[test]
fn excess_and_silent_connections_are_closed() {
    let short = Duration::from_millis(300);
    let rig = Rig::new(Limits { connections: 2, handshake_timeout: short, head_timeout: short, ..limits() });
    // Idle connections are closed, so the rig's own goes.
    let silent = || std::net::TcpStream::connect(rig.address).unwrap();
    let mut end = [0; 16];
    let is_closed = |mut peer: std::net::TcpStream| {
        peer.set_read_timeout(Some(crate::testing::PATIENCE)).unwrap();
        matches!(peer.read(&mut end), Ok(0) | Err(_))
    };
    let held: Vec<_> = (0..5).map(|_| silent()).collect();
    assert!(held.into_iter().all(is_closed));
    // Those places are free again.
    let mut alpha = eventually("a place", || rig.connect("host.alpha").ok());
    // A head that does not end.
    let idle = eventually("it is closed", || rig.runtime.block_on(alpha.ready()).err());
    assert!(idle.is_closed() || idle.is_canceled(), "{idle}");
}

fn is_closed(mut peer: std::net::TcpStream) -> bool {
    peer.set_read_timeout(Some(crate::testing::PATIENCE)).unwrap();
    matches!(peer.read(&mut [0; 16]), Ok(0) | Err(_))
}

#[test]
fn silent_strangers_leave_room_for_known_peers() {
    let rig = Rig::new(Limits { connections: 8, handshakes: 4, handshakes_per_address: 2, ..limits() });
    let from = |last: u8| {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        rustix::net::connect(&socket, &rig.address).unwrap();
        std::net::TcpStream::from(socket)
    };
    let mut alpha = rig.client("host.alpha");
    let held = [from(2), from(2), from(3)];
    // The third handshake of one address, while two of it are silent.
    assert!(is_closed(from(2)));
    // Others come in, and do not count any more once they are known.
    let known: Vec<_> = (0..3).map(|_| rig.client("host.beta")).collect();
    let last = from(3);
    // As many as may be unknown at a time.
    assert!(is_closed(from(4)));
    assert_eq!(alpha.get(&rig, TOTAL.path).status, 200);
    drop((held, last));
    eventually("a place", || rig.connect("host.watcher").ok());
    drop(known);
}

#[test]
fn peer_with_too_many_silent_connections_is_closed_at_once() {
    let rig = Rig::new(Limits { connections_per_peer: 2, refusals_per_peer: 1, ..limits() });
    // A handshake ends earlier for a client than for the server: those with an answer are counted for sure.
    let mut two = [rig.client("host.alpha"), rig.client("host.alpha")];
    assert!(two.iter_mut().all(|client| client.get(&rig, TOTAL.path).status == 200));
    // The first is kept for as long as its head may take, which is over once the machine was slow.
    eventually("closed", || {
        let _first = rig.silent("host.alpha");
        rig.silent("host.alpha").is_closed(&rig).then_some(())
    });
    assert_eq!(rig.client("host.beta").get(&rig, TOTAL.path).status, 200);
}

#[test]
fn long_heads_and_nonsense_are_refused() {
    let rig = Rig::new(limits());
    let mut alpha = rig.client("host.alpha");
    let long = "x".repeat(HEAD_MAX);
    assert_eq!(alpha.send(&rig, "GET", "/v1/total", &[("x", &long)], "").status, 431);
    // Not even TLS.
    let mut plain = std::net::TcpStream::connect(rig.address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: c1\r\n\r\n").unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn full_queue_is_busy() {
    let (go, gate) = sync_channel::<()>(0);
    let (enter, entered) = channel();
    let mut first = true;
    let rig = Rig::acting(limits(), move |_| {
        // The first effect belongs to the start.
        if !std::mem::take(&mut first) {
            let _ = enter.send(());
            let _ = gate.recv();
        }
    });
    let mut alpha = rig.client("host.alpha");
    let event_sender = rig.shell.lock().unwrap().as_ref().unwrap().event_sender();
    // The thread waits in an effect, so that the queue stays full.
    event_sender.send(1).unwrap();
    entered.recv().unwrap();
    while event_sender.send(1).is_ok() {}
    let busy = alpha.add(&rig, "1.1", json!({"n": 1}));
    assert_eq!(busy.status, 503);
    assert_eq!((busy.code(), busy.header("retry-after")), ("busy", "1"));
    drop(go);
    let done =
        eventually("an answer", || Some(alpha.add(&rig, "1.1", json!({"n": 1}))).filter(|sent| sent.status == 200));
    assert!(done.body["total"].as_u64().unwrap() > crate::shell::QUEUE_MAX as u64);
}

#[test]
fn running_requests_are_answered_at_the_end() {
    let rig = Rig::new(limits());
    let (mut polling, mut idle) = (rig.client("host.alpha"), rig.client("host.beta"));
    let poll = polling.start(&rig, "/v1/upcalls?after=0&wait_ms=60000");
    assert_eq!(idle.get(&rig, TOTAL.path).status, 200);
    let running = rig.end();
    let answered = rig.wait(poll);
    assert!(matches!(answered.code(), "stopping") && answered.header("connection") == "close", "{answered:?}");
    rig.runtime.block_on(running).unwrap();
    assert!(rig.connect("host.alpha").is_err());
}

#[test]
fn missing_body_is_not_waited_for() {
    let rig = Rig::new(Limits { body_timeout: Duration::from_millis(200), ..limits() });
    let mut alpha = rig.client("host.alpha");
    // Announced and not sent.
    let headers = "fide-sequence: 1.1\r\ncontent-type: application/json\r\ncontent-length: 100";
    let slow = rig.raw("host.alpha", &format!("POST /v1/add HTTP/1.1\r\nhost: c1\r\n{headers}\r\n\r\n{{\"n\""));
    assert!(slow.contains("408") && slow.contains("body_too_slow"), "{slow}");
    assert_eq!(alpha.get(&rig, TOTAL.path).status, 200);
}
