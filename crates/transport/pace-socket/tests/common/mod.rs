// SPDX-License-Identifier: Apache-2.0
//! Ends that are connected through a relay, which loses what a test says.

#![allow(dead_code, reason = "each test has its own part")]

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use fide_pace_socket::{Config, Connection, Endpoint, ServerKey};

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn key() -> ServerKey {
    ServerKey::Secret([7; 32])
}

pub(crate) fn config(deadline_ms: u64) -> Config {
    Config { deadline_ns: deadline_ms * MS, queue_max: 100, ..Config::default() }
}

pub(crate) fn server(deadline_ms: u64) -> Endpoint {
    Endpoint::server("127.0.0.1:0".parse().unwrap(), key(), config(deadline_ms)).unwrap()
}

pub(crate) fn connect(from: &Endpoint, to: &Endpoint, deadline_ms: u64) -> Connection {
    from.connect(to.local_address().unwrap(), &key().for_clients(), config(deadline_ms)).unwrap()
}

/// Whether a datagram goes on: whether it goes to the server, and its bytes.
pub(crate) type Rule = Box<dyn FnMut(bool, &[u8]) -> bool + Send>;

/// A relay between one client and a server; it ends with this.
pub(crate) struct Relay {
    pub(crate) at: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    fn new(server: SocketAddr, mut rule: Rule) -> Self {
        let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(server).unwrap();
        front.set_nonblocking(true).unwrap();
        back.set_nonblocking(true).unwrap();
        let (at, is_over) = (front.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&is_over);
        thread::spawn(move || {
            let (mut client, mut buffer) = (None, [0; 65_536]);
            while !ends.load(Ordering::Relaxed) {
                while let Ok((len, from)) = front.recv_from(&mut buffer) {
                    client = Some(from);
                    if rule(true, &buffer[..len]) {
                        let _ = back.send(&buffer[..len]);
                    }
                }
                while let Ok(len) = back.recv(&mut buffer) {
                    if let Some(client) = client.filter(|_| rule(false, &buffer[..len])) {
                        let _ = front.send_to(&buffer[..len], client);
                    }
                }
                thread::sleep(Duration::from_micros(100));
            }
        });
        Self { at, is_over }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A client and a server that are connected through a relay, and know each other's clock.
pub(crate) fn pair(config: Config, rule: Rule) -> (Connection, Arc<Connection>, Relay) {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key(), config).unwrap();
    let relay = Relay::new(server.local_address().unwrap(), rule);
    let accepts = thread::spawn(move || server.accept().unwrap());
    let here = Endpoint::client().unwrap().connect(relay.at, &key().for_clients(), config).unwrap();
    let there = accepts.join().unwrap();
    for _ in 0..20 {
        here.send(b"first").unwrap();
        let _ = there.recv_timeout(Duration::from_millis(50));
    }
    while there.recv_timeout(Duration::from_millis(100)).unwrap().is_some() {}
    (here, Arc::new(there), relay)
}

/// From state 1 on long messages are lost each time, and one of 700 bytes passes, which makes the state 2. Short packets pass in
/// state 2, too, if `passes_short`. State 0 loses nothing.
pub(crate) fn loses_long_ones(state: Arc<AtomicU32>, passes_short: bool) -> Rule {
    Box::new(move |to_server, bytes| {
        if !to_server || state.load(Ordering::Relaxed) == 0 {
            return true;
        }
        match bytes.len() {
            1150.. => false,
            700.. => state.swap(2, Ordering::Relaxed) == 1,
            _ => passes_short || state.load(Ordering::Relaxed) == 1,
        }
    })
}
