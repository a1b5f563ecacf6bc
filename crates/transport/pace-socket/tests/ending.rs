// SPDX-License-Identifier: Apache-2.0
//! Ends of connections and of endpoints.

mod common;

use std::{sync::Arc, thread, time::Duration};

use common::{config, connect, key, pair, server};
use fide_pace_socket::{AcceptError, ConnectError, Endpoint};

/// Accepted connections that wait to be taken.
const ACCEPTED_MAX: usize = 1024;

#[test]
fn finish_may_wait_without_an_end() {
    let (here, _there, _relay) = pair(config(60_000), Box::new(|_, _| true));
    here.try_send(b"one", None).unwrap();
    assert!(here.finish(Duration::MAX));
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
