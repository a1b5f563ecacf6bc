// SPDX-License-Identifier: Apache-2.0
//! What one part of a connection leaves to another.

use fide_link_model::LinkSpec;
use fide_pace::transport::{Arrival, Closed, Config, Transport};

use crate::world::{FlowSpec, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// The endpoint's thread would never sleep.
#[test]
fn question_for_an_address_of_a_closed_connection_is_not_due() {
    let mut transport = Transport::new(S, Config::default(), 30_000);
    transport.challenge([0x80; 8]);
    transport.close("so");
    let mut plain = [0; 1500];
    while transport.write(S, &mut plain).is_some() {}
    assert_eq!(transport.due_ns(S), u64::MAX);
    transport.challenge([0x81; 8]);
    assert_eq!((transport.due_ns(S), transport.write(S, &mut plain)), (u64::MAX, None));
}

/// A host whose link takes jumbo frames, on a path that does not.
#[test]
fn larger_packets_are_looked_for_whatever_the_own_link_takes() {
    let mut flow = FlowSpec::held();
    (flow.config.datagram_max, flow.bytes) = (9000, (5000, 5000));
    let way = LinkSpec::of(5_000_000).with_rate(20_000_000, 200_000);
    let mut world = World::new(1, way, LinkSpec::of(5_000_000), &[flow]);
    world.run_until(3 * S);
    let packet_bytes = world.transport(0, 0).0.snapshot(0).packet_bytes;
    assert!(packet_bytes > 1400, "{packet_bytes}");
}

/// What one end has to send now, packet by packet.
fn packets(of: &mut Transport, now_ns: u64) -> Vec<(u64, Vec<u8>)> {
    let mut plain = [0; 1500];
    let next = || of.write(now_ns, &mut plain).map(|written| (written.number, plain[..written.len].to_vec()));
    std::iter::from_fn(next).collect()
}

fn open(at: &mut Transport, now_ns: u64, packets: Vec<(u64, Vec<u8>)>) {
    packets.into_iter().for_each(|(number, plain)| at.open(now_ns, number, &plain, Arrival::default()).unwrap());
}

/// A packet counts as of when it came to the host, not as of when it was read: the round trip is the network's.
#[test]
fn what_waits_to_be_read_is_no_part_of_the_round_trip() {
    let [mut here, mut there] = [(); 2].map(|()| Transport::new(S, Config::default(), 30_000));
    let mut now_ns = S;
    // Each way takes 3 ms. What is said to have waited for longer than 100 ms counts as just come.
    for (waited_ns, round_trip_us) in [(200 * MS, 406_000), (20 * MS, 6000)] {
        let arrival = Arrival { waited_ns, ..Arrival::default() };
        here.send(now_ns, b"a message", None).unwrap();
        let sent = packets(&mut here, now_ns);
        now_ns += 3 * MS + waited_ns;
        sent.iter().for_each(|(number, plain)| there.open(now_ns, *number, plain, arrival).unwrap());
        let answers = packets(&mut there, now_ns);
        now_ns += 3 * MS + waited_ns;
        answers.iter().for_each(|(number, plain)| here.open(now_ns, *number, plain, arrival).unwrap());
        assert_eq!(here.snapshot(now_ns).shortest_us, Some(round_trip_us));
    }
}

/// Without the answer the other end knows no clock, and delivers nothing.
#[test]
fn end_of_a_connection_says_again_what_was_answered_last() {
    let [mut here, mut there] = [(); 2].map(|()| Transport::new(S, Config::default(), 30_000));
    let mut now_ns = S;
    here.send(now_ns, b"before the end", None).unwrap();
    now_ns += MS;
    open(&mut there, now_ns, packets(&mut here, now_ns));
    now_ns += MS;
    open(&mut here, now_ns, packets(&mut there, now_ns));
    assert!(!packets(&mut here, now_ns).is_empty(), "an answer, which is lost");
    assert!(here.is_idle() && there.poll_message(now_ns).is_none());
    here.close("enough");
    now_ns += MS;
    open(&mut there, now_ns, packets(&mut here, now_ns));
    assert_eq!(there.poll_message(now_ns).map(|message| message.bytes), Some(b"before the end".to_vec()));
    assert_eq!(there.closed(), Some(&Closed::There("enough".to_owned())));
}

/// The other end is gone, and nobody answers.
#[test]
fn end_of_a_connection_waits_for_no_clock_for_ever() {
    let [mut here, mut there] = [(); 2].map(|()| Transport::new(S, Config::default(), 30_000));
    here.send(S, b"before the end", None).unwrap();
    let mut now_ns = S + MS;
    open(&mut there, now_ns, packets(&mut here, S));
    here.close("enough");
    open(&mut there, now_ns, packets(&mut here, S));
    let (begun_ns, mut plain) = (now_ns, [0; 1500]);
    while there.closed().is_none() {
        now_ns = there.due_ns(now_ns).max(now_ns + 1);
        there.timeout(now_ns);
        while there.write(now_ns, &mut plain).is_some() {}
    }
    assert!(now_ns - begun_ns <= 2 * S, "{now_ns}");
    assert_eq!(there.closed(), Some(&Closed::There("enough".to_owned())));
}

/// Nothing follows that could say so. The packet that does may be lost, too.
#[test]
fn message_behind_one_that_is_given_up_waits_no_longer_for_it() {
    for lost_until_ms in [0, 900] {
        let [mut here, mut there] = [(); 2].map(|()| Transport::new(S, Config::default(), 30_000));
        let (mut now_ns, mut under_way, mut delivered_ms) = (S, [(); 2].map(|()| Vec::new()), None);
        for ms in 0..5000 {
            now_ns += MS;
            let [to_there, to_here] = std::mem::take(&mut under_way);
            open(&mut there, now_ns, to_there);
            open(&mut here, now_ns, to_here);
            let message = match ms {
                500 => Some(([0xEE; 900], 100 * MS)),
                505 => Some(([0x22; 900], 60 * S)),
                _ => None,
            };
            message.map(|(bytes, deadline_ns)| here.send(now_ns, &bytes, Some(deadline_ns)).unwrap());
            [&mut here, &mut there].into_iter().for_each(|end| end.timeout(now_ns));
            under_way = [packets(&mut here, now_ns), packets(&mut there, now_ns)];
            let carries = |plain: &[u8], byte| plain.windows(800).any(|part| part.iter().all(|of| *of == byte));
            let is_lost =
                |plain: &[u8]| carries(plain, 0xEE) || (500..lost_until_ms).contains(&ms) && !carries(plain, 0x22);
            under_way[0].retain(|(_, plain)| !is_lost(plain));
            delivered_ms = delivered_ms.or(there.poll_message(now_ns).map(|_| ms));
        }
        println!("delivered at {delivered_ms:?} ms");
        assert!(delivered_ms.is_some_and(|ms| ms < 700.max(lost_until_ms + 600)), "{delivered_ms:?}");
    }
}

/// A program whose standard output is full, say: what is sent meanwhile expires there.
#[test]
fn receiver_that_takes_nothing_holds_the_sender() {
    for rate in [16_000_000, 400_000_000] {
        let way = LinkSpec::of(5 * MS).with_rate(rate, 200_000);
        let mut world = World::new(1, way, LinkSpec::of(5 * MS), &[FlowSpec::held()]);
        let sent = |world: &mut World, until_ns| {
            let before = world.flows[0].ways[0].sent.len();
            world.run_until(until_ns);
            world.flows[0].ways[0].sent.len() - before
        };
        sent(&mut world, S);
        let usual = sent(&mut world, 2 * S);
        world.stop_receiver(0, 6 * S);
        sent(&mut world, 3 * S);
        let stuck = sent(&mut world, 6 * S);
        sent(&mut world, 7 * S);
        let again = sent(&mut world, 8 * S);
        println!("{usual} messages a second, {stuck} in three while nothing is taken, {again} a second after that");
        assert!(stuck <= 30 && again * 10 >= usual * 9);
    }
}
