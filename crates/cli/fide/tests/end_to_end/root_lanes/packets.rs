// SPDX-License-Identifier: Apache-2.0
//! Packets that no agent would send, on a real network: damaged, forged, old.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use fide_wire::{ChunkBuilder, Key, PAYLOAD_MAX, Scheme, chunk, message};

use super::{
    QUIET, SERVICE,
    common::{Program, World, world},
    wanted,
};

const PORT: u16 = 7411;
/// Index of a lane that the host does not have, so its numbers are free.
const LANE: u64 = 9;

/// The network of one host, on which the test sends arbitrary packets.
struct Meddler {
    socket: UdpSocket,
    to: SocketAddrV4,
    key: Key,
    incarnation: u32,
    number: u64,
}

impl Meddler {
    fn new(world: &mut World, program: &Program) -> Self {
        let tree = world.lanes()[0]["trees"][0].clone();
        let group: Ipv4Addr = tree["group"].as_str().expect("text").parse().expect("a group");
        let plane = usize::from(tree["port"] == "p1");
        let host = world.fabric.host(1);
        let bound = host.run_in(|| UdpSocket::bind((host.address(plane), 0)));
        let key = std::fs::read_to_string(world.agents.key_file()).expect("the cluster's key");
        let plain: Key = key.trim().parse().expect("a key");
        let config = fide_agent::config::Config::load(&world.agents.dir(1).join("fide.toml")).expect("good");
        Self {
            socket: bound.expect("namespace").expect("a socket"),
            to: SocketAddrV4::new(group, PORT),
            key: config.shape().key(&plain),
            incarnation: program.client.agent().incarnation,
            number: 1,
        }
    }

    /// A packet with three messages, each in two chunks.
    fn packet(&mut self) -> Vec<u8> {
        self.number += 1;
        let mut buffer = [0; PAYLOAD_MAX];
        let seq = LANE << 56 | self.number;
        let mut builder = ChunkBuilder::new(&mut buffer, Scheme::Chunks36, 1, self.incarnation, seq).expect("room");
        for n in 1..=3 {
            message::push(&mut builder, Scheme::Chunks36, SERVICE, &[n; 40]).expect("room");
        }
        let len = builder.finish();
        chunk::seal(&mut buffer[..len], 0, &self.key);
        buffer[..len].to_vec()
    }

    fn send(&self, packet: &[u8]) {
        self.socket.send_to(packet, self.to).expect("sent");
    }
}

fn message(n: u8) -> (u8, Vec<u8>) {
    (SERVICE, vec![n; 40])
}

/// Asserts that so many messages came since the last call, and no more.
fn news(program: &mut Program, count: usize) -> Vec<(u8, Vec<u8>)> {
    program.await_messages(count);
    std::thread::sleep(QUIET);
    let news = program.messages();
    program.events.clear();
    news
}

/// The packet with a bit flipped in its fourth chunk, the second message's last.
fn damaged(packet: &[u8]) -> Vec<u8> {
    let mut damaged = packet.to_vec();
    damaged[chunk::CHUNK_HEADER_LEN + 3 * Scheme::Chunks36.chunk_len() + 5] ^= 0x10;
    damaged
}

#[test]
fn root_damaged_chunk_costs_only_its_own_message_if_wanted() {
    let Some(mut world) = world("", "salvage = true") else { return };
    let (mut one, mut two) = (world.program(1), world.program(2));
    two.client.listen(SERVICE).expect("listening");
    one.client.open_lane(wanted("log")).expect("a lane");
    let mut meddler = Meddler::new(&mut world, &one);
    // A lane without any authentic packet so far delivers nothing.
    let packet = meddler.packet();
    meddler.send(&damaged(&packet));
    assert_eq!(news(&mut two, 0), []);
    meddler.send(&packet);
    assert_eq!(news(&mut two, 3).len(), 3);
    let packet = meddler.packet();
    meddler.send(&damaged(&packet));
    assert_eq!(news(&mut two, 2), [message(1), message(3)]);
    // The other tree's copy is whole.
    meddler.send(&packet);
    assert_eq!(news(&mut two, 1), [message(2)]);
    meddler.send(&packet);
    meddler.send(&damaged(&packet));
    assert_eq!(news(&mut two, 0), []);
    world.until("it is counted", |world| match world.metric(2, "fide_lane_chunks_damaged_total") {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    // A damaged header makes the rest unreadable.
    let mut packet = meddler.packet();
    packet[7] ^= 1;
    meddler.send(&packet);
    assert_eq!(news(&mut two, 0), []);
}

#[test]
fn root_forged_old_or_damaged_packets_are_ignored() {
    let Some(mut world) = world("", "") else { return };
    let (mut one, mut two) = (world.program(1), world.program(2));
    two.client.listen(SERVICE).expect("listening");
    one.client.open_lane(wanted("log")).expect("a lane");
    let mut meddler = Meddler::new(&mut world, &one);
    let packet = meddler.packet();
    meddler.send(&packet);
    assert_eq!(news(&mut two, 3), [message(1), message(2), message(3)], "what is right is taken");

    let refused = |world: &World| {
        ["bad_tag", "stale", "malformed"]
            .map(|reason| world.metric(2, &format!("fide_refused_packets_total{{reason=\"{reason}\"}}")))
    };
    let [bad_tag, stale, malformed] = refused(&world);
    let whole = meddler.packet();
    meddler.send(&damaged(&whole));
    let key = std::mem::replace(&mut meddler.key, Key([7; 16]));
    let forged = meddler.packet();
    meddler.send(&forged);
    meddler.key = key;
    meddler.incarnation -= 1;
    let old = meddler.packet();
    meddler.send(&old);
    meddler.incarnation += 1;
    // Authentic, but truncated: no packet.
    let mut short = meddler.packet();
    short.truncate(short.len() - 1);
    fide_wire::seal(&mut short, 0, &meddler.key);
    meddler.send(&short);
    assert_eq!(news(&mut two, 0), []);
    world.until("all are counted", |world| match refused(world) {
        now if now == [bad_tag + 2, stale + 1, malformed + 1] => Ok(()),
        now => Err(format!("{now:?}, {:?} before", [bad_tag, stale, malformed])),
    });

    // These packets have not moved the lane's window.
    let packet = meddler.packet();
    meddler.send(&packet);
    assert_eq!(news(&mut two, 3), [message(1), message(2), message(3)]);
}
