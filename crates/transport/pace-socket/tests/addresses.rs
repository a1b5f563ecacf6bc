// SPDX-License-Identifier: Apache-2.0
//! Addresses of both families, and from where a server answers.

mod common;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use common::{config, key};
use fide_pace_socket::Endpoint;

fn has_ipv6() -> bool {
    let has = UdpSocket::bind("[::1]:0").is_ok();
    if !has {
        println!("this host has no IPv6");
    }
    has
}

/// A server at one address, asked at another: a message goes there and back.
fn exchange(at: &str, asked_at: &str) {
    let server = Endpoint::server(at.parse().unwrap(), key(), config(5000)).unwrap();
    let asked = SocketAddr::new(asked_at.parse().unwrap(), server.local_address().unwrap().port());
    let here = Endpoint::client()
        .unwrap()
        .connect(asked, &key().for_clients(), config(5000))
        .unwrap_or_else(|why| panic!("a server at {at} that is asked at {asked_at}: {why}"));
    let there = server.accept().unwrap();
    here.send(b"there").unwrap();
    assert_eq!(there.recv().unwrap().bytes, b"there");
    there.send(b"and back").unwrap();
    assert_eq!(here.recv().unwrap().bytes, b"and back");
    assert_eq!(here.peer(), Some(asked));
    assert_eq!(there.peer().unwrap().is_ipv4(), asked.is_ipv4());
}

#[test]
fn client_reaches_addresses_of_both_families() {
    exchange("127.0.0.1:0", "127.0.0.1");
    if has_ipv6() {
        exchange("[::1]:0", "::1");
    }
}

#[test]
fn server_at_all_addresses_answers_from_the_one_that_was_asked() {
    exchange("0.0.0.0:0", "127.0.0.2");
    if has_ipv6() {
        exchange("[::]:0", "127.0.0.2");
        exchange("[::]:0", "::1");
    }
}

#[test]
fn address_of_a_family_that_the_socket_does_not_have_is_refused_at_once() {
    let client = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), None, config(100), 4).unwrap();
    let why = client.connect("[::1]:9".parse().unwrap(), &key().for_clients(), config(100)).unwrap_err();
    assert!(why.to_string().contains("127.0.0.1") && why.to_string().contains("IPv6"), "{why}");
}
