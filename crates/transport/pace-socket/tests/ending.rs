// SPDX-License-Identifier: Apache-2.0
//! Ends of connections and of endpoints.

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use common::{config, connect, key, loses_long_ones, pair, server};
use fide_pace_socket::{AcceptError, ConnectError, Endpoint};

/// Accepted connections that wait to be taken.
const ACCEPTED_MAX: usize = 1024;

/// The second message is here, behind one that is lost, when the other end closes.
#[test]
fn what_came_is_delivered_when_the_other_end_closes() {
    let state = Arc::new(AtomicU32::new(0));
    let (here, there, _relay) = pair(config(60_000), loses_long_ones(Arc::clone(&state), true));
    state.store(1, Ordering::Relaxed);
    here.try_send(&[1; 1100], None).unwrap();
    here.try_send(&[2; 750], None).unwrap();
    while state.load(Ordering::Relaxed) == 1 {
        thread::sleep(Duration::from_millis(1));
    }
    here.close("");
    assert_eq!(there.recv().map(|message| message.bytes.len()), Ok(750));
    assert!(there.recv().is_err());
}

/// An endpoint forgets a connection that is over after three seconds.
#[test]
fn what_came_before_the_end_can_be_taken_long_after_it() {
    let (here, there, _relay) = pair(config(60_000), Box::new(|_, _| true));
    for at in 0..5 {
        here.send(&[at; 100]).unwrap();
    }
    // They are there by then, whether or not that is known here.
    here.finish(Duration::from_secs(2));
    here.close("");
    thread::sleep(Duration::from_secs(5));
    let came = std::iter::from_fn(|| there.recv().ok()).map(|message| message.bytes[0]);
    assert_eq!(came.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

/// A message is lost each time. An endpoint forgets a connection that is over after three seconds.
#[test]
fn what_became_of_messages_is_known_long_after_the_end() {
    let state = Arc::new(AtomicU32::new(0));
    let (here, there, relay) = pair(config(60_000), loses_long_ones(Arc::clone(&state), true));
    there.send(b"answer").unwrap();
    here.recv().unwrap();
    state.store(1, Ordering::Relaxed);
    here.try_send(&[1; 1100], None).unwrap();
    let sent = here.counts().sent.messages;
    there.close("enough");
    assert!(!here.finish(Duration::MAX), "a message has not arrived");
    for wait in [Duration::ZERO, Duration::from_secs(5)] {
        thread::sleep(wait);
        assert_eq!(here.counts().sent.messages, sent);
        assert_eq!(here.counts().received.delivered, 1);
        assert_eq!(here.peer(), Some(relay.at));
        assert!(here.snapshot().is_some_and(|snapshot| snapshot.is_over && snapshot.counts.sent.messages == sent));
        assert!(!here.finish(Duration::MAX));
    }
}

/// What the other end says reaches terminals and logs.
#[test]
fn reason_of_the_other_end_is_escaped() {
    let (server, client) = (server(5000), Endpoint::client().unwrap());
    let here = connect(&client, &server, 5000);
    let there = server.accept().unwrap();
    here.close("gone\x1b[2J\r\nfide: \u{202e}all is well");
    let says = there.recv().unwrap_err().to_string();
    assert!(says.contains("gone") && says.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{says:?}");
}

#[test]
fn finish_may_wait_without_an_end() {
    let (here, _there, _relay) = pair(config(60_000), Box::new(|_, _| true));
    here.try_send(b"one", None).unwrap();
    assert!(here.finish(Duration::MAX));
}

/// Messages are farther apart than a round trip, each seventh packet is lost, either way, and the last ones have a minute left.
#[test]
fn finish_waits_no_longer_than_for_what_comes() {
    let mut count = 0;
    let loses_some = move |_: bool, _: &[u8]| {
        count += 1;
        count % 7 != 0
    };
    let (here, _there, _relay) = pair(config(60_000), Box::new(loses_some));
    for _ in 0..100 {
        here.try_send(b"message", None).unwrap();
        thread::sleep(Duration::from_millis(5));
    }
    assert!(here.finish(Duration::from_secs(30)));
}

#[test]
fn connections_that_ended_before_they_were_taken_make_way_for_others() {
    let server = server(5000);
    let client = Endpoint::bind("127.0.0.1:0".parse().unwrap(), None, config(5000), 4096).unwrap();
    for _ in 0..ACCEPTED_MAX {
        connect(&client, &server, 5000).close("gone");
    }
    let here = connect(&client, &server, 5000);
    here.send(b"there").unwrap();
    let came = (0..=ACCEPTED_MAX).find_map(|_| server.accept().unwrap().recv().ok());
    assert_eq!(came.map(|message| message.bytes), Some(b"there".to_vec()));
}

#[test]
fn endpoint_that_is_closed_takes_no_connections() {
    let (server, client) = (Arc::new(server(5000)), Endpoint::client().unwrap());
    let here = connect(&client, &server, 5000);
    let there = server.accept().unwrap();
    let asks = Arc::clone(&server);
    let waiting = thread::spawn(move || asks.accept().map(|_| ()));
    let (at, key) = (server.local_address().unwrap(), key().for_clients());
    server.close();
    assert_eq!(waiting.join().unwrap(), Err(AcceptError::Closed));
    assert!(matches!(server.connect(at, &key, config(100)), Err(ConnectError::Closed)));
    // The client is told so at once: it does not seem connected first.
    let why = client.connect(at, &key, config(5000)).unwrap_err();
    assert!(why.to_string().contains("the other end has as many connections as it allows"), "{why}");
    drop(server);
    here.send(b"goes on").unwrap();
    assert_eq!(there.recv().unwrap().bytes, b"goes on");
}
