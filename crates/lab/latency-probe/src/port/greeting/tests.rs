// SPDX-License-Identifier: Apache-2.0
//! Both ends over loopback; the tests pass the time in.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use super::*;

const LO: Ipv4Addr = Ipv4Addr::LOCALHOST;
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Turns within which a packet over loopback has to arrive; one is enough, except on a busy machine.
const TURNS: u64 = 10_000;

fn port_of(greeting: &Greeting) -> u16 {
    greeting.socket.local_addr().expect("bound").port()
}

fn answering(qpn: u32) -> Greeting {
    Greeting::open(LO, None, 0, qpn).expect("a free port")
}

/// An end that has met no peer yet, and has a reason to ask.
fn asking(port: u16) -> (Greeting, u64) {
    let mut ping = Greeting::open(LO, Some(LO), port, 50).expect("opened");
    for _ in 0..UNANSWERED {
        ping.sends();
    }
    let Role::Asks(Asking { nonce, .. }) = ping.role else { panic!("it has a peer") };
    (ping, nonce)
}

/// Runs turns of both ends until the one that asks gets a number.
fn number(ping: &mut Greeting, pong: &mut Greeting, start_ns: u64) -> Option<u32> {
    (0..TURNS).find_map(|turn| {
        let now_ns = start_ns + turn * LOOK_NS;
        pong.turn(now_ns);
        ping.turn(now_ns)
    })
}

#[test]
fn asking_side_asks_again_only_after_silence() {
    let mut pong = answering(70);
    let (mut ping, _) = asking(port_of(&pong));
    let start_ns = 10 * ASK_AGAIN_NS;
    assert_eq!(number(&mut ping, &mut pong, start_ns), Some(70));

    // As its datagrams are answered, it has no reason to ask, however long that goes on.
    let later_ns = 1000 * start_ns;
    ping.sends();
    assert!(ping.hears(LO, later_ns));
    assert_eq!(ping.turn(2 * later_ns), None);
    let Role::Asks(asking) = &ping.role else { panic!("it asks") };
    assert!(!asking.open && asking.asked_ns < later_ns);

    // Another end takes the place of the first, as after a restart.
    let port = port_of(&pong);
    drop(pong);
    let mut pong = Greeting::open(LO, None, port, 71).expect("free again");
    for _ in 0..UNANSWERED {
        ping.sends();
    }
    assert_eq!(number(&mut ping, &mut pong, 3 * later_ns), Some(71));
}

#[test]
fn ping_meets_only_the_pong_that_answers() {
    let mut pong = answering(72);
    let mut ping = Greeting::open(LO, Some(LO), port_of(&pong), 50).expect("opened");
    let met = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !met.load(Ordering::Acquire) {
                pong.turn(mono_ns());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let number = ping.meet();
        met.store(true, Ordering::Release);
        assert_eq!(number.expect("sockets work"), Some(72));
    });

    let silent = UdpSocket::bind((LO, 0)).expect("a free port");
    let port = silent.local_addr().expect("bound").port();
    let mut ping = Greeting::open(LO, Some(LO), port, 50).expect("opened");
    assert_eq!(ping.meet().expect("sockets work"), None);
    silent.set_nonblocking(true).expect("set");
    let asked = std::iter::from_fn(|| silent.recv_from(&mut [0; 64]).ok()).count();
    assert_eq!(asked, ASKS as usize, "it asks a bounded number of times");
}

#[test]
fn forged_answers_are_none() {
    let peer = UdpSocket::bind((LO, 0)).expect("a free port");
    let (mut ping, nonce) = asking(peer.local_addr().expect("bound").port());
    let ping_at = SocketAddr::from((LO, port_of(&ping)));
    let stranger = UdpSocket::bind((OTHER, 0)).expect("loopback");
    let good = Hello { kind: Kind::Answer, qpn: 99, nonce };

    let start_ns = 10 * ASK_AGAIN_NS;
    assert_eq!(ping.turn(start_ns), None, "it has asked");
    let send = |from: &UdpSocket, bytes: &[u8]| assert_eq!(from.send_to(bytes, ping_at).expect("sent"), bytes.len());
    send(&stranger, &good.emit());
    send(&peer, &Hello { nonce: nonce ^ 1, ..good }.emit());
    send(&peer, &Hello { kind: Kind::Ask, ..good }.emit());
    send(&peer, &[&good.emit()[..], &[0]].concat());
    send(&peer, &[]);
    // Only the last one is right. When it is found, all before it have been checked.
    send(&peer, &Hello { qpn: 98, ..good }.emit());
    let number = (1..TURNS).find_map(|turn| ping.turn(start_ns + turn * LOOK_NS));
    assert_eq!(number, Some(98));
}

#[test]
fn answering_side_answers_only_valid_questions() {
    let mut pong = answering(73);
    let pong_at = SocketAddr::from((LO, port_of(&pong)));
    let other = UdpSocket::bind((LO, 0)).expect("a free port");
    other.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let ask = Hello { kind: Kind::Ask, qpn: 5, nonce: 6 };
    for bytes in [&[][..], &[0; 1000], &Hello { kind: Kind::Answer, ..ask }.emit(), &ask.emit()[1..], &ask.emit()] {
        other.send_to(bytes, pong_at).expect("sent");
    }
    for turn in 1..=TURNS {
        assert_eq!(pong.turn(turn * LOOK_NS), None);
    }
    // Only the last was a question, and the answer has the number of the end that was asked.
    let mut bytes = [0; 2 * HELLO];
    let len = other.recv(&mut bytes).expect("an answer");
    assert_eq!(Hello::parse(&bytes[..len]), Some(Hello { kind: Kind::Answer, qpn: 73, nonce: 6 }));
    other.set_nonblocking(true).expect("set");
    assert!(other.recv(&mut bytes).is_err(), "one question, one answer");
    assert!(pong.hears(OTHER, 0), "it answers anybody");
}
