// SPDX-License-Identifier: Apache-2.0
//! Connections over the loopback, with real sockets and threads.

use std::{thread, time::Duration};

use fide_pace_socket::{ClientKey, Closed, Config, Connection, Endpoint, SendError, ServerKey, Step};

fn config() -> Config {
    Config { deadline_ns: 2_000_000_000, queue_max: 100, ..Config::default() }
}

/// A server that accepts one connection, and a client of it.
fn pair(key: &ServerKey) -> (Connection, Connection) {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), config()).unwrap();
    let address = server.local_address().unwrap();
    let accepts = thread::spawn(move || server.accept().unwrap());
    let client = Endpoint::client().unwrap();
    let here = client.connect(address, &key.for_clients(), config()).unwrap();
    // A server sees a client once it has sent something sealed, which it does at once.
    (here, accepts.join().unwrap())
}

#[test]
fn messages_of_all_lengths_come_both_ways_in_order() {
    for key in [ServerKey::Secret([7; 32]), ServerKey::Private([9; 32])] {
        let (here, there) = pair(&key);
        let of = |at: usize| vec![u8::try_from(at % 251).unwrap(); at * 37];
        let echoes = thread::spawn(move || {
            for at in 0..300 {
                let message = there.recv().unwrap();
                assert_eq!(message.bytes, of(at), "message {at}");
                there.send(&message.bytes).unwrap();
                there.recycle(message);
            }
            assert!(there.finish(Duration::from_secs(5)));
            there
        });
        for at in 0..300 {
            here.send(&of(at)).unwrap();
            assert_eq!(here.recv().unwrap().bytes, of(at), "message {at}");
        }
        let there = echoes.join().unwrap();
        assert_eq!(here.counts().received.lost + there.counts().received.lost, 0);
        drop(there);
        assert_eq!(here.recv().unwrap_err().0, Closed::There(String::new()));
        assert!(matches!(here.send(b"late"), Err(SendError::Closed(Closed::There(_)))));
    }
}

#[test]
fn sender_that_is_held_sends_no_faster_than_its_receiver_takes() {
    let (here, there) = pair(&ServerKey::Secret([7; 32]));
    let takes = thread::spawn(move || {
        for _ in 0..200 {
            there.recv().unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        there
    });
    let (mut sent, mut first) = (0, None);
    while !takes.is_finished() && sent < 10_000 {
        here.send(&[0; 1000]).unwrap();
        sent += 1;
        // What came before its pace was told may be too much, and more where its thread is woken late.
        if first.is_none() && here.view().is_some_and(|view| view.paces.get(Step::Deliver) > 0) {
            first = Some(sent);
        }
    }
    let there = takes.join().unwrap();
    let lost = there.counts().received.lost;
    let held = sent - first.expect("its pace is told");
    println!("{sent} sent, {held} of them held, {lost} lost, {:?}", here.view());
    // A few wait at the end.
    assert!(held < 250, "{held} messages for 200");
}

#[test]
fn other_key_is_refused_by_name() {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), ServerKey::Secret([7; 32]), config()).unwrap();
    let client = Endpoint::client().unwrap();
    let why = client.connect(server.local_address().unwrap(), &ClientKey::Secret([8; 32]), config()).unwrap_err();
    assert!(why.to_string().contains("the other end has another key"), "{why}");
    assert!(client.accept().unwrap_err().to_string().contains("Endpoint::server"));
}
