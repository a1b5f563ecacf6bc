// SPDX-License-Identifier: Apache-2.0
//! Somebody on the path sees all datagrams, and sends copies, altered ones and forged ones sooner than they come.

use std::{cell::RefCell, collections::HashSet, net::SocketAddr, rc::Rc};

use fide_pace::{
    endpoint::{Endpoint, Event, SetUpError},
    keys::ServerKey,
    packet::Kind,
    setup::{COOKIE_LEN, INITIATION_LEN, Refused},
    transport::{Arrival, Config, Transport},
};

use crate::{
    endpoints::{all, connect, delivered, endpoint, exchange, messages, net, secret, send},
    net::{Harm, Host, Net, Sent, address},
};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn keys() -> [ServerKey; 2] {
    [secret(), ServerKey::Private([9; 32])]
}

/// One client whose set-up somebody disturbs.
fn disturbed(key: &ServerKey, mut adds: impl FnMut(&Sent) -> Vec<Sent> + 'static) -> (Net, Rc<RefCell<usize>>) {
    let (mut net, asked) = (net(1, Harm::default(), key, 0).0, Rc::new(RefCell::new(0)));
    net.hosts[0].endpoint = endpoint(Some(key.clone()), 10, 0);
    let counts = Rc::clone(&asked);
    net.on_path = Some(Box::new(move |sent| {
        *counts.borrow_mut() += usize::from(Kind::of(&sent.2) == Some(Kind::Initiation));
        adds(sent)
    }));
    (net, asked)
}

/// It is set up nevertheless, and carries messages.
fn is_set_up(mut net: Net, key: &ServerKey) {
    let host = Net::new(0, Harm::default(), vec![endpoint(None, 10, 1)]).hosts.remove(0);
    net.hosts.push(Host { address: address(2, 5000), ..host });
    let id = connect(&mut net, 1, &key.for_clients());
    net.run(5 * S);
    assert_eq!(net.hosts[1].events, [Event::Connected(id)]);
    let there = net.hosts[0].connections()[0];
    exchange(&mut net, 1, id, there);
    assert_eq!((delivered(&net, 1, id), delivered(&net, 0, there)), (all(100), all(100)));
    assert_eq!(net.hosts[0].endpoint.connections(), 1);
}

fn is_of_set_up(bytes: &[u8]) -> bool {
    Kind::of(bytes).is_some_and(|kind| kind != Kind::Sealed)
}

#[test]
fn altered_packets_of_a_set_up_change_nothing() {
    for key in keys() {
        let altered = |(from, to, bytes): &Sent| {
            if !is_of_set_up(bytes) {
                return Vec::new();
            }
            let alter = |at: usize| {
                let mut altered = bytes.clone();
                altered[at] ^= 1;
                (*from, *to, altered)
            };
            let cut = (0..bytes.len().min(120)).map(|len| (*from, *to, bytes[..len].to_vec()));
            (0..bytes.len().min(120)).rev().map(alter).chain(cut).collect()
        };
        is_set_up(disturbed(&key, altered).0, &key);
    }
}

/// Of each packet of a client: answers that a server might have given to it.
fn forged((from, to, bytes): &Sent, count: u8, of: impl Fn(u8) -> (Kind, Vec<u8>)) -> Vec<Sent> {
    if Kind::of(bytes) != Some(Kind::Initiation) {
        return Vec::new();
    }
    let forge = |at: u8| {
        let (kind, rest) = of(at);
        let answer = [&[kind as u8], &bytes[2..6], &rest].concat();
        (*to, *from, answer)
    };
    (0..count).map(forge).collect()
}

#[test]
fn forged_cookies_hold_no_set_up_up_and_make_no_flood() {
    for key in keys() {
        let cookies = |sent: &Sent| {
            let attempt = sent.2[6];
            // Of version 1, and of this one.
            forged(sent, 100, |at| {
                (Kind::Cookie, [vec![attempt], vec![at + 1; COOKIE_LEN + 16 * usize::from(at % 2)]].concat())
            })
        };
        let (net, asked) = disturbed(&key, cookies);
        is_set_up(net, &key);
        assert!(*asked.borrow() < 10, "{} packets for a set-up", asked.borrow());
    }
}

#[test]
fn forged_refusals_end_no_set_up() {
    for key in keys() {
        let refusals = |sent: &Sent| {
            forged(sent, 200, |at| {
                (Kind::Refusal, [vec![sent.2[6].wrapping_add(at / 3), at % 3 + 1], vec![0; 16]].concat())
            })
        };
        is_set_up(disturbed(&key, refusals).0, &key);
    }
}

/// A client's packet is altered, so that the server refuses it.
#[test]
fn client_is_not_refused_for_what_another_made_of_its_packet() {
    for key in keys() {
        // The version, the message, and the tag.
        let altered = |(from, to, bytes): &Sent| {
            if Kind::of(bytes) != Some(Kind::Initiation) {
                return Vec::new();
            }
            let alter = |at: usize| {
                let mut altered = bytes.clone();
                altered[at] ^= 1;
                (*from, *to, altered)
            };
            [1, 40, 80].into_iter().map(alter).collect()
        };
        let (mut net, _) = disturbed(&key, altered);
        // The client's own packets come late, and so do the answers.
        net.delay_ns = 150 * MS;
        is_set_up(net, &key);
    }
}

const COOKIE_AT: std::ops::Range<usize> = 7..7 + COOKIE_LEN;

/// The attacker's hosts, and what they have seen of a client's set-up that ended well.
fn seen(net: &mut Net) -> Rc<RefCell<Vec<Sent>>> {
    let seen = Rc::new(RefCell::new(Vec::<Sent>::new()));
    let notes = Rc::clone(&seen);
    net.on_path = Some(Box::new(move |sent| {
        if Kind::of(&sent.2) == Some(Kind::Initiation) && sent.2[COOKIE_AT] != [0; COOKIE_LEN] {
            notes.borrow_mut().push(sent.clone());
        }
        Vec::new()
    }));
    seen
}

#[test]
fn copies_of_a_set_up_make_no_connection() {
    for key in keys() {
        let (mut net, _) = net(1, Harm::default(), &key, 2);
        net.hosts[0].endpoint = endpoint(Some(key.clone()), 10, 0);
        let seen = seen(&mut net);
        net.run(S);
        assert_eq!(net.hosts[0].endpoint.connections(), 2);
        let copied = seen.borrow()[0].clone();
        let ip = net.attacker.ip();
        // It gets a cookie at each of its addresses, and sends a copy with it.
        let copies = copied.2.clone();
        net.on_path = Some(Box::new(move |(from, to, bytes)| {
            if Kind::of(bytes) != Some(Kind::Cookie) || to.ip() != ip {
                return Vec::new();
            }
            let mut copy = copies.clone();
            copy[COOKIE_AT].copy_from_slice(&bytes[6..6 + COOKIE_LEN]);
            vec![(*to, *from, copy)]
        }));
        let server = net.hosts[0].address;
        for port in 0..100_u16 {
            let mut copy = copied.2.clone();
            copy[COOKIE_AT].fill(0);
            net.send(SocketAddr::new(ip, 1000 + port), server, &copy);
            // And from the client's own address.
            net.send(copied.0, server, &copied.2);
            if port % 10 == 0 {
                net.run(5 * MS);
            }
        }
        net.run(20 * MS);
        assert_eq!(net.hosts[0].endpoint.connections(), 2);
        let late = connect(&mut net, 1, &key.for_clients());
        net.run(S);
        assert!(net.hosts[1].events.contains(&Event::Connected(late)), "others still get in");
        assert_eq!(net.hosts[0].connections().len(), 3);
    }
}

#[test]
fn set_up_of_a_connection_that_is_over_makes_no_other() {
    for key in keys() {
        let (mut net, ids) = net(1, Harm::default(), &key, 1);
        let seen = seen(&mut net);
        net.run(S);
        let (now_ns, there) = (net.now_ns, net.hosts[0].connections()[0]);
        net.hosts[0].endpoint.close(there, now_ns, "enough");
        net.hosts[1].endpoint.close(ids[0], now_ns, "enough");
        net.run(4 * S);
        let (_, to, copy) = seen.borrow()[0].clone();
        let from = net.hosts[1].address;
        for _ in 0..100 {
            net.send(from, to, &copy);
            net.run(20 * MS);
            assert_eq!(net.hosts[0].endpoint.connections(), 0, "its cookie is good still");
        }
        // The client itself gets in with another one.
        let again = connect(&mut net, 1, &key.for_clients());
        net.run(S);
        assert!(net.hosts[1].events.contains(&Event::Connected(again)));
    }
}

/// A server of this version names it to a client of version 1, and a client to itself what a server of version 1 answers.
#[test]
fn ends_of_version_1_are_named() {
    let (mut server, now_ns, mut bytes) = (endpoint(Some(secret()), 10, 0), 3600 * S, vec![0; INITIATION_LEN]);
    bytes[..2].copy_from_slice(&[Kind::Initiation as u8, 1]);
    let mut answer = [0; 1500];
    let mut ask = |bytes: &[u8]| {
        server.receive(now_ns, address(9, 5000), bytes, Arrival::default(), || [3; 32]);
        let len = server.transmit(now_ns, &mut answer).unwrap().len;
        answer[..len].to_vec()
    };
    let cookie = ask(&bytes);
    assert_eq!(Kind::of(&cookie), Some(Kind::Cookie));
    bytes[COOKIE_AT].copy_from_slice(&cookie[6..6 + COOKIE_LEN]);
    assert_eq!(ask(&bytes)[..7], [Kind::Refusal as u8, 0, 0, 0, 0, 0, Refused::Version as u8]);

    let (mut client, to) = (endpoint(None, 10, 1), address(1, 5000));
    let id = client.connect(now_ns, to, &secret().for_clients(), Config::default(), [1; 32]).unwrap();
    client.transmit(now_ns, &mut bytes).unwrap();
    let cookie = [&[Kind::Cookie as u8], &bytes[2..7], &[7; COOKIE_LEN]].concat();
    client.receive(now_ns, to, &cookie, Arrival::default(), || [0; 32]);
    client.timeout(now_ns + 10 * S);
    assert_eq!(client.poll_event(), Some(Event::Failed(id, SetUpError::Refused(Refused::Version))));
}

#[test]
fn set_up_that_is_given_up_sends_nothing_more() {
    let (mut client, now_ns, mut bytes) = (endpoint(None, 10, 1), S, [0; INITIATION_LEN + 300]);
    let connect = client.connect(now_ns, address(1, 5000), &secret().for_clients(), Config::default(), [1; 32]);
    let id = connect.unwrap();
    let sends = |client: &mut Endpoint, now_ns: u64, bytes: &mut [u8]| {
        (0..100).take_while(|_| client.transmit(now_ns, bytes).is_some()).count()
    };
    assert_eq!(sends(&mut client, now_ns, &mut bytes), 1);
    // Another thread sends something before the one that keeps the times has woken.
    assert_eq!(sends(&mut client, now_ns + 10 * S, &mut bytes), 0, "packets after it was given up");
    assert!(matches!(client.poll_event(), Some(Event::Failed(failed, _)) if failed == id));
    assert_eq!(client.due_ns(), u64::MAX);
}

/// Somebody copies one packet that comes after the end, again and again.
#[test]
fn copies_of_a_packet_after_the_end_are_answered_once() {
    let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
    net.run(S);
    let there = net.hosts[0].connections()[0];
    let (seen, told) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(0)));
    let (server, now_ns) = (net.hosts[0].address, net.now_ns);
    let (notes, counts) = (Rc::clone(&seen), Rc::clone(&told));
    net.on_path = Some(Box::new(move |sent| {
        if sent.0 == server {
            *counts.borrow_mut() += 1;
        } else {
            notes.borrow_mut().get_or_insert_with(|| sent.clone());
        }
        Vec::new()
    }));
    // What the server says at the end is lost.
    net.harm.loses = 1.0;
    net.hosts[0].endpoint.close(there, now_ns, &"enough".repeat(30));
    send(&mut net, 1, ids[0], b"still here");
    net.run(MS);
    let (from, to, copy) = seen.borrow().clone().unwrap();
    net.harm.loses = 0.0;
    let before = *told.borrow();
    for _ in 0..500 {
        net.send(from, to, &copy);
        net.run(2 * MS);
    }
    let told = *told.borrow() - before;
    assert!((1..20).contains(&told), "{told} packets to a client for copies of one of its own");
}

/// Somebody brings copies of all packets to the server from an address of its own, sooner than they come, and hands on what the
/// server sends there: at first.
fn relays(net: &mut Net, hands_on: Rc<RefCell<bool>>) {
    let (client, server, attacker) = (net.hosts[1].address, net.hosts[0].address, net.attacker);
    net.on_path = Some(Box::new(move |(from, to, bytes)| {
        if *from == client && *to == server {
            return vec![(attacker, server, bytes.clone())];
        }
        if *to == attacker && *hands_on.borrow() {
            return vec![(server, client, bytes.clone())];
        }
        Vec::new()
    }));
}

fn moved(net: &Net) -> usize {
    net.hosts[0].events.iter().filter(|event| matches!(event, Event::Moved(..))).count()
}

#[test]
fn relay_that_is_faster_takes_no_connection_away() {
    for delay_ns in [4 * MS, 20 * MS, 150 * MS] {
        let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
        net.delay_ns = delay_ns;
        net.run(3 * S);
        let (there, own) = (net.hosts[0].connections()[0], net.hosts[1].address);
        let hands_on = Rc::new(RefCell::new(true));
        relays(&mut net, Rc::clone(&hands_on));
        for message in messages(100) {
            send(&mut net, 1, ids[0], &message);
            send(&mut net, 0, there, &message);
            net.run(10 * MS);
        }
        net.run(S);
        *hands_on.borrow_mut() = false;
        net.run(S);
        assert_eq!(net.hosts[0].endpoint.address(there), Some(own), "{:?}", net.hosts[0].events);
        exchange(&mut net, 1, ids[0], there);
        assert_eq!((delivered(&net, 1, ids[0]), delivered(&net, 0, there)), (all(100), all(100)), "{delay_ns} ns");
        assert_eq!(moved(&net), 0, "{:?}", net.hosts[0].events);
    }
}

#[test]
fn address_that_does_not_answer_gets_few_packets() {
    let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
    net.run(3 * S);
    relays(&mut net, Rc::new(RefCell::new(false)));
    let there = net.hosts[0].connections()[0];
    for _ in 0..1000 {
        send(&mut net, 1, ids[0], b"there");
        send(&mut net, 0, there, &[0; 1000]);
        net.run(MS);
    }
    // Ten questions a second, each of 38 bytes.
    assert!((1..=38 * 11).contains(&net.to_attacker), "{} bytes", net.to_attacker);
    assert_eq!(moved(&net), 0);
}

/// Where packets are lost the old address may seem silent, and the relay has the connection for a moment.
#[test]
fn connection_comes_back_from_a_relay() {
    let mut moves = 0;
    for seed in 0..20 {
        let (mut net, ids) = net(seed, Harm::default(), &secret(), 1);
        net.run(3 * S);
        let (there, own) = (net.hosts[0].connections()[0], net.hosts[1].address);
        let hands_on = Rc::new(RefCell::new(true));
        relays(&mut net, Rc::clone(&hands_on));
        net.harm.loses = 0.5;
        for _ in 0..200 {
            send(&mut net, 1, ids[0], b"there");
            send(&mut net, 0, there, b"back");
            net.run(10 * MS);
        }
        (net.harm.loses, *hands_on.borrow_mut()) = (0.0, false);
        for _ in 0..100 {
            send(&mut net, 1, ids[0], b"there");
            net.run(10 * MS);
        }
        moves += moved(&net);
        assert_eq!(net.hosts[0].endpoint.address(there), Some(own), "seed {seed}: {:?}", net.hosts[0].events);
        exchange(&mut net, 1, ids[0], there);
        assert_eq!(delivered(&net, 1, ids[0]), all(100), "seed {seed}");
    }
    println!("{moves} moves");
    assert!(moves > 0, "the relay never had it");
}

/// Messages of a server, one each millisecond, that were lost as its client's address changed. The client sends some, too.
fn lost_in_a_move(delay_ns: u64) -> usize {
    let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
    net.delay_ns = delay_ns;
    net.run(3 * S);
    let there = net.hosts[0].connections()[0];
    let bytes = |at: u32| at.to_be_bytes().to_vec();
    for at in 0..3000 {
        if at == 1000 {
            net.hosts[1].address = address(2, 7777);
        }
        let (now_ns, deadline_ns) = (net.now_ns, 3 * delay_ns + 20 * MS);
        let sends = |transport: &mut Transport| transport.send(now_ns, &bytes(at), Some(deadline_ns));
        // One that finds no room in the queue is lost, too.
        let _ = net.hosts[0].endpoint.with(there, now_ns, sends).unwrap();
        if at % 5 == 0 {
            net.hosts[1].endpoint.with(ids[0], now_ns, sends).unwrap().unwrap();
        }
        net.run(MS);
    }
    net.run(S);
    assert!(net.hosts[0].events.contains(&Event::Moved(there, address(2, 7777))), "{:?}", net.hosts[0].events);
    assert_eq!(moved(&net), 1);
    let came: HashSet<_> = net.hosts[1].delivered.iter().map(|(_, bytes)| bytes.clone()).collect();
    assert!((2500..3000).all(|at| came.contains(&bytes(at))), "they come again");
    (0..2500).filter(|at| !came.contains(&bytes(*at))).count()
}

#[test]
fn change_of_address_costs_about_a_round_trip() {
    for delay_ns in [4 * MS, 20 * MS] {
        let lost = lost_in_a_move(delay_ns);
        let round_trip = usize::try_from(2 * (delay_ns / MS + 2)).unwrap();
        println!("{} ms: {lost} lost", delay_ns / MS);
        // Those that leave before the client's first packet from there comes, and until it has answered; the old address has up
        // to half a round trip more.
        assert!(lost <= round_trip * 2 + 30, "{lost} messages of a millisecond, over a round trip of {round_trip} ms");
    }
}

/// Longer than the time between two questions to the new address.
#[test]
fn change_of_address_over_a_long_path_is_survived() {
    let lost = lost_in_a_move(100 * MS);
    println!("{lost} lost");
}
