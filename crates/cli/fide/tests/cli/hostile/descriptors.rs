// SPDX-License-Identifier: Apache-2.0
//! Descriptors that the agent sends, and descriptors that are sent to it.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use serde_json::json;

use super::common::Agent;

#[test]
fn blocking_wake_up_descriptor_does_not_hang_loop() {
    let agent = Agent::start(7520);
    let mut raw = agent.connect();
    let (_, fds) = raw.hello();
    let events = fds[2].as_fd();
    // The flag belongs to the open file description, which the agent may share.
    rustix::fs::fcntl_setfl(events, rustix::fs::OFlags::empty()).expect("flags");
    let mut filled = 0;
    if rustix::io::write(events, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        // If it is no counter, fill it.
        let other = rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(events, other).expect("flags");
        while rustix::io::write(events, &[0; 4096]).is_ok() && filled < 10_000 {
            filled += 1;
        }
        rustix::fs::fcntl_setfl(events, rustix::fs::OFlags::empty()).expect("flags");
    }
    // Notified at once, so the client has to be woken.
    raw.send(json!({ "id": 7, "op": "monitor", "target": "@h1" }).to_string().as_bytes(), &[]).expect("sent");
    for name in ["a", "b", "c"] {
        let request = json!({ "id": 8, "op": "join", "name": name }).to_string();
        let _ = raw.send(request.as_bytes(), &[]);
        let request = json!({ "id": 8, "op": "monitor", "target": format!("{name}@h1") }).to_string();
        let _ = raw.send(request.as_bytes(), &[]);
        std::thread::sleep(Duration::from_millis(10));
    }
    agent.serves();
}

#[test]
fn blocking_close_does_not_hang_agent() {
    let agent = Agent::start(7521);
    // The process that closes it last would wait for as long as it lingers, since its peer reads nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
    let (peer, _) = listener.accept().expect("accepted");
    let linger = libc::linger { l_onoff: 1, l_linger: 120 };
    // SAFETY: the value outlives the call, and its size is given.
    let set = unsafe {
        let size = libc::socklen_t::try_from(size_of_val(&linger)).expect("small");
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
    };
    assert_eq!(set, 0);
    stream.set_nonblocking(true).expect("flag");
    while stream.write(&[0; 65536]).is_ok() {}
    let raw = agent.connect();
    let request = json!({ "id": 1, "op": "events" }).to_string();
    let sent = raw.send(request.as_bytes(), &[stream.as_fd()]);
    if sent.is_err() {
        // The kernel refuses it: this end is the last one, and would linger here.
        drop((peer, listener));
        return agent.serves();
    }
    drop(stream);
    agent.serves();
    drop(peer);
}
