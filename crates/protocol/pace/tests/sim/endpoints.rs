// SPDX-License-Identifier: Apache-2.0
//! Set-ups, forgeries, floods and changes of address: endpoints over a network that an attacker is part of.

use fide_pace::{
    endpoint::{ConnectionId, Endpoint, EndpointConfig, Event, SetUpError},
    keys::{ClientKey, ServerKey},
    packet::Kind,
    seal::Suite,
    setup::{ANSWER_MAX, COOKIE_LEN, INITIATION_LEN, Refused, SetUp, Tagger, VERSION},
    transport::{Algorithm, Arrival, Closed, Config},
};

use crate::net::{Harm, Net, address};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

pub(crate) fn config() -> Config {
    // These tests are not about congestion.
    Config { queue_max: 100, deadline_ns: S, algorithm: Algorithm::XPace, ..Config::default() }
}

pub(crate) fn endpoint(accepts: Option<ServerKey>, connections_max: usize, seed: u8) -> Endpoint {
    // A server has clients of both suites.
    let suite = if seed.is_multiple_of(2) { Suite::ChaCha20Poly1305 } else { Suite::Aes256Gcm };
    Endpoint::new(EndpointConfig { accepts, suite, connections_max, connection: config() }, &[seed; 32])
}

pub(crate) fn secret() -> ServerKey {
    ServerKey::Secret([7; 32])
}

/// A server, and clients with its key that connect at once.
pub(crate) fn net(seed: u64, harm: Harm, key: &ServerKey, clients: u8) -> (Net, Vec<ConnectionId>) {
    let server = endpoint(Some(key.clone()), 1000, 0);
    let endpoints = std::iter::once(server).chain((1..=clients).map(|at| endpoint(None, 10, at))).collect();
    let mut net = Net::new(seed, harm, endpoints);
    let ids = (1..=clients.into()).map(|at| connect(&mut net, at, &key.for_clients())).collect();
    (net, ids)
}

pub(crate) fn connect(net: &mut Net, at: usize, key: &ClientKey) -> ConnectionId {
    let (entropy, now_ns, to) = (net.entropy(), net.now_ns, net.hosts[0].address);
    net.hosts[at].endpoint.connect(now_ns, to, key, config(), entropy).unwrap()
}

pub(crate) fn send(net: &mut Net, at: usize, id: ConnectionId, bytes: &[u8]) {
    let now_ns = net.now_ns;
    net.hosts[at].endpoint.with(id, now_ns, |transport| transport.send(now_ns, bytes, None)).unwrap().unwrap();
}

pub(crate) fn messages(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|at| vec![at; 1 + usize::from(at) * 10]).collect()
}

/// Both ways, one message each 10 ms.
pub(crate) fn exchange(net: &mut Net, at: usize, here: ConnectionId, there: ConnectionId) {
    net.hosts.iter_mut().for_each(|host| host.delivered.clear());
    for message in messages(100) {
        send(net, at, here, &message);
        send(net, 0, there, &message);
        net.run(10 * MS);
    }
    net.run(S);
}

/// Which of [`messages`] were delivered.
pub(crate) fn delivered(net: &Net, at: usize, id: ConnectionId) -> Vec<u8> {
    let of = |bytes: &Vec<u8>| {
        let number = bytes.first().copied().unwrap_or(u8::MAX);
        assert_eq!(messages(100).get(usize::from(number)), Some(bytes), "another message");
        number
    };
    net.hosts[at].delivered.iter().filter(|(whose, _)| *whose == id).map(|(_, bytes)| of(bytes)).collect()
}

pub(crate) fn all(count: u8) -> Vec<u8> {
    (0..count).collect()
}

#[test]
fn connections_are_set_up_and_used_beside_an_attacker() {
    let harm = Harm { loses: 0.1, repeats: 0.1, forges: 0.5, replays: 0.5 };
    for seed in 0..40 {
        let key = if seed % 2 == 0 { secret() } else { ServerKey::Private([9; 32]) };
        let (mut net, ids) = net(seed, harm, &key, 3);
        net.run(5 * S);
        let accepted = net.hosts[0].connections();
        assert_eq!(accepted.len(), 3, "seed {seed}: {:?}", net.hosts[0].events);
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(net.hosts[at + 1].events, [Event::Connected(*id)], "seed {seed}");
        }
        let there = net.hosts[0].events.iter().find_map(|event| match event {
            Event::Accepted(id, from) if *from == net.hosts[1].address => Some(*id),
            _ => None,
        });
        exchange(&mut net, 1, ids[0], there.unwrap());
        for (host, id) in [(1, ids[0]), (0, there.unwrap())] {
            let came = delivered(&net, host, id);
            assert_eq!(came, all(100), "seed {seed}");
        }
        let dropped = net.hosts[0].endpoint.dropped();
        assert!(dropped.forged > 0, "the attacker was busy: {dropped:?}");
        assert_eq!(net.hosts[0].endpoint.connections(), 3, "seed {seed}");
        assert_eq!(net.hosts[0].events.len(), 3, "seed {seed}: nobody has moved or gone: {:?}", net.hosts[0].events);
    }
}

#[test]
fn change_of_the_clients_address_is_survived() {
    let (mut net, ids) = net(1, Harm { replays: 0.3, ..Harm::default() }, &secret(), 1);
    net.run(S);
    let there = net.hosts[0].connections()[0];
    net.hosts[1].address = address(2, 7777);
    net.run(S);
    assert!(net.hosts[0].events.contains(&Event::Moved(there, address(2, 7777))), "{:?}", net.hosts[0].events);
    exchange(&mut net, 1, ids[0], there);
    assert_eq!(delivered(&net, 1, ids[0]), all(100));
    assert_eq!(delivered(&net, 0, there), all(100));
}

/// The attacker brings packets sooner than the client's own, from an address of its own, where it gets nothing but challenges.
#[test]
fn packets_that_somebody_else_sends_on_move_nothing() {
    let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
    net.run(S);
    let there = net.hosts[0].connections()[0];
    let (own, attacker) = (net.hosts[1].address, net.attacker);
    let mut attacked = 0;
    for message in messages(50) {
        send(&mut net, 1, ids[0], &message);
        send(&mut net, 0, there, &message);
        net.hosts[1].address = attacker;
        net.run(MS);
        net.hosts[1].address = own;
        attacked += 1;
        net.run(19 * MS);
    }
    net.run(S);
    assert_eq!(attacked, 50);
    assert_eq!(net.hosts[0].endpoint.address(there), Some(own), "{:?}", net.hosts[0].events);
    assert_eq!(delivered(&net, 1, ids[0]), all(50));
}

fn initiation(client: u32, cookie: [u8; COOKIE_LEN]) -> Vec<u8> {
    let mut bytes = vec![0; INITIATION_LEN];
    let message = std::array::from_fn(|at| u8::try_from(at).unwrap());
    let tagger = Tagger::of_server(&secret());
    SetUp::Initiation { version: VERSION, client, attempt: 0, cookie, message }.write(&tagger, None, &mut bytes);
    bytes
}

#[test]
fn flood_of_set_ups_makes_no_state_and_gets_less_than_it_sends() {
    let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
    net.run(S);
    let there = net.hosts[0].connections()[0];
    let (attacker, server) = (net.attacker, net.hosts[0].address);
    let mut sent = 0;
    for client in 0..10_000 {
        let bytes = initiation(client, [u8::try_from(client % 256).unwrap(); COOKIE_LEN]);
        sent += bytes.len();
        net.send(attacker, server, &bytes);
        if client % 100 == 0 {
            net.run(MS);
        }
    }
    let late = connect(&mut net, 1, &secret().for_clients());
    net.run(2 * S);
    assert_eq!(net.hosts[0].endpoint.connections(), 2);
    assert!(net.hosts[1].events.contains(&Event::Connected(late)), "others still get in");
    assert!(
        net.to_attacker > 0 && net.to_attacker * INITIATION_LEN <= sent * ANSWER_MAX,
        "{} for {sent}",
        net.to_attacker
    );
    exchange(&mut net, 1, ids[0], there);
    assert_eq!(delivered(&net, 0, there), all(100));
}

/// Clients with the key begin set-ups by the thousand, and end none.
#[test]
fn unconfirmed_connections_are_bounded_and_forgotten() {
    let key = ServerKey::Private([9; 32]);
    let mut server = Endpoint::new(
        EndpointConfig {
            accepts: Some(key.clone()),
            suite: Suite::of_host(),
            connections_max: 4096,
            connection: config(),
        },
        &[0; 32],
    );
    let (now_ns, mut bytes) = (S, vec![0; 1500]);
    let mut client = endpoint(None, 4096, 1);
    let mut answered = 0;
    for at in 0..1500_u16 {
        let from = address(9, 10_000 + at);
        client
            .connect(now_ns, address(1, 5000), &key.for_clients(), config(), [u8::try_from(at % 251).unwrap(); 32])
            .unwrap();
        // Without a cookie, and with it.
        for _ in 0..2 {
            let first = client.transmit(now_ns, &mut bytes).unwrap();
            server.receive(now_ns, from, &bytes[..first.len], Arrival::default(), || [3; 32]);
            let answer = server.transmit(now_ns, &mut bytes).unwrap();
            if Kind::of(&bytes) == Some(Kind::Cookie) {
                client.receive(now_ns, address(1, 5000), &bytes[..answer.len], Arrival::default(), || [0; 32]);
            } else {
                answered += usize::from(Kind::of(&bytes) == Some(Kind::Response));
            }
        }
    }
    assert_eq!((server.connections(), answered), (1024, 1024));
    assert!(server.poll_event().is_none(), "nobody is shown before it has proven its key");
    assert_eq!(server.dropped().full, 1500 - 1024);
    server.timeout(now_ns + 5 * S);
    assert_eq!(server.connections(), 0);
}

#[test]
fn set_ups_that_come_to_nothing_say_why() {
    let failed = |net: &Net, at: usize| net.hosts[at].events.clone();
    let (mut net, _) = net(1, Harm::default(), &secret(), 1);
    net.hosts[1].endpoint = endpoint(None, 10, 5);
    net.run(S);
    let id = connect(&mut net, 1, &ClientKey::Secret([8; 32]));
    net.run(11 * S);
    assert_eq!(failed(&net, 1), [Event::Failed(id, SetUpError::Refused(Refused::Key))]);

    net.hosts[1].events.clear();
    net.hosts[0].endpoint = endpoint(Some(secret()), 0, 0);
    let id = connect(&mut net, 1, &secret().for_clients());
    net.run(2 * S);
    assert_eq!(failed(&net, 1), [Event::Failed(id, SetUpError::Refused(Refused::Full))]);

    net.hosts[1].events.clear();
    net.hosts[0].endpoint = endpoint(None, 10, 0);
    let id = connect(&mut net, 1, &secret().for_clients());
    net.run(20 * S);
    assert_eq!(failed(&net, 1), [Event::Failed(id, SetUpError::Silence { after_ns: 10 * S })]);
    assert_eq!(net.hosts[1].endpoint.connections(), 0);
}

#[test]
fn end_of_a_connection_is_told_to_the_other_end() {
    for seed in 0..8 {
        let (mut net, ids) = net(seed, Harm { loses: 0.2, ..Harm::default() }, &secret(), 1);
        net.run(10 * S);
        let (there, now_ns) = (net.hosts[0].connections()[0], net.now_ns);
        net.hosts[0].endpoint.close(there, now_ns, "enough");
        net.run(3 * S);
        let closed = Event::Closed(ids[0], Closed::There("enough".to_owned()));
        assert!(net.hosts[1].events.contains(&closed), "seed {seed}: {:?}", net.hosts[1].events);
        assert!(net.hosts[0].events.contains(&Event::Closed(there, Closed::Here)));
        net.run(10 * S);
        assert_eq!(net.hosts[0].endpoint.connections() + net.hosts[1].endpoint.connections(), 0);
    }
}

/// The client closes before it is asked for its clock, without which the server delivers nothing.
#[test]
fn what_came_before_the_end_is_delivered_though_no_clock_is_known() {
    for seed in 0..8 {
        let (mut net, ids) = net(seed, Harm::default(), &secret(), 1);
        while net.hosts[1].events.is_empty() {
            net.run(MS / 10);
        }
        send(&mut net, 1, ids[0], &messages(2)[1]);
        net.run(3 * MS);
        let now_ns = net.now_ns;
        net.hosts[1].endpoint.close(ids[0], now_ns, "enough");
        net.run(S);
        let there = net.hosts[0].connections()[0];
        assert_eq!(delivered(&net, 0, there), [1], "seed {seed}");
        assert_eq!(net.hosts[0].events.last(), Some(&Event::Closed(there, Closed::There("enough".to_owned()))));
    }
}

/// By half an hour, at all hosts at once. What is under way then is lost, as the network keeps its times by the same clock.
fn clocks_go_back(net: &mut Net) {
    net.now_ns -= 1800 * S;
}

#[test]
fn set_up_goes_on_though_the_clock_goes_back() {
    let (mut net, ids) = net(1, Harm { loses: 1.0, ..Harm::default() }, &secret(), 1);
    net.run(S);
    clocks_go_back(&mut net);
    net.harm.loses = 0.0;
    net.run(3 * S);
    assert_eq!(net.hosts[1].events, [Event::Connected(ids[0])]);
    assert_eq!(net.hosts[0].connections().len(), 1);
}

#[test]
fn set_up_is_given_up_though_the_clock_goes_back() {
    let (mut net, ids) = net(1, Harm { loses: 1.0, ..Harm::default() }, &secret(), 1);
    // What passed since the clock was read last is lost each time.
    for _ in 0..20 {
        net.run(4 * S);
        net.now_ns -= 4 * S;
    }
    assert!(matches!(net.hosts[1].events[..], [Event::Failed(id, _)] if id == ids[0]), "{:?}", net.hosts[1].events);
}

#[test]
fn change_of_address_is_survived_though_the_clock_goes_back() {
    let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
    net.run(S);
    let there = net.hosts[0].connections()[0];
    net.hosts[1].address = address(2, 7777);
    net.run(S);
    clocks_go_back(&mut net);
    net.hosts[1].address = address(2, 8888);
    net.run(3 * S);
    assert_eq!(net.hosts[0].events.last(), Some(&Event::Moved(there, address(2, 8888))));
    exchange(&mut net, 1, ids[0], there);
    assert_eq!(delivered(&net, 1, ids[0]), all(100));
    assert_eq!(delivered(&net, 0, there), all(100));
    // And a connection that is over is forgotten.
    let now_ns = net.now_ns;
    net.hosts[0].endpoint.close(there, now_ns, "enough");
    net.run(S);
    clocks_go_back(&mut net);
    net.run(4 * S);
    assert!(net.hosts[0].endpoint.get(there).is_none() && net.hosts[1].endpoint.get(ids[0]).is_none());
}

#[test]
fn peer_that_vanishes_is_noticed() {
    let (mut net, ids) = net(1, Harm::default(), &secret(), 1);
    net.run(S);
    net.harm.loses = 1.0;
    net.run(40 * S);
    assert!(net.hosts[1].events.contains(&Event::Closed(ids[0], Closed::Vanished)), "{:?}", net.hosts[1].events);
    assert!(matches!(net.hosts[0].events[1..], [Event::Closed(_, Closed::Vanished), Event::Forgotten(..)]));
}
