// SPDX-License-Identifier: Apache-2.0
//! What one part of a connection leaves to another.

use fide_link_model::LinkSpec;
use fide_pace::transport::{Config, Transport};

use crate::world::{FlowSpec, World};

const S: u64 = 1_000_000_000;

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
