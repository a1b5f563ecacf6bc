// SPDX-License-Identifier: Apache-2.0
use std::os::unix::net::UnixDatagram;

use proptest::prelude::*;

use super::*;
use crate::link::frame::{ETHERNET, IPV4, UDP};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 198, 0, 1);

fn interface() -> Interface {
    Interface {
        name: "p0".to_owned(),
        index: 7,
        hardware: [2, 0, 0, 0, 0, 9],
        address: Ipv4Addr::new(10, 70, 1, 2),
        loopback: false,
    }
}

/// What a sender would send.
fn frame_of(payload: &[u8]) -> Vec<u8> {
    let mut frame = headers(&interface(), multicast_hardware(GROUP), GROUP, 7411)[..HEADERS].to_vec();
    frame.extend(payload);
    finish(&mut frame);
    frame
}

/// A receiver that takes frames from a local socket instead of an interface, without a filter.
fn receiver() -> (UnixDatagram, PacketReceiver) {
    let (sender, receiver) = UnixDatagram::pair().expect("a pair");
    receiver.set_nonblocking(true).expect("set");
    let membership = Membership::from(OwnedFd::from(UnixDatagram::unbound().expect("a socket")));
    (sender, PacketReceiver::take_over(receiver.into(), membership))
}

#[test]
fn a_frame_is_what_the_standards_say() {
    let mut frame = headers(&interface(), multicast_hardware(GROUP), GROUP, 7411);
    finish(&mut frame[..HEADERS + 3]);
    assert_eq!(frame[..14], [1, 0, 0x5e, 0x46, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0]);
    // A receiver sums the header with its checksum to all ones.
    let sum: u32 = frame[14..34].chunks_exact(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    assert_eq!(frame[16..18], 31u16.to_be_bytes());
    assert_eq!(frame[38..40], 11u16.to_be_bytes());
    assert_eq!(frame[15], 0xe0);
}

#[test]
fn what_is_sent_is_received_and_nothing_else() {
    let (sender, receiver) = receiver();
    let mut buffer = [0; PAYLOAD_MAX + 1];
    assert_eq!(receiver.receive(&mut buffer).expect("empty"), None);
    for len in [0, 1, 17, 18, 19, PAYLOAD_MAX] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        // As short frames are on the wire.
        let mut frame = frame_of(&payload);
        frame.resize(frame.len().max(60), 0xee);
        sender.send(&frame).expect("sent");
        assert_eq!(receiver.receive(&mut buffer).expect("there"), Some(len));
        assert_eq!(buffer[..len], payload);
    }
    assert_eq!(receiver.receive(&mut buffer).expect("empty"), None);
}

#[test]
fn lengths_that_contradict_each_other_are_an_empty_payload() {
    let good = frame_of(b"a payload that is long enough");
    let with = |at: usize, value: u16| {
        let mut frame = good.clone();
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        frame
    };
    let (total, udp) =
        (u16::try_from(good.len() - ETHERNET).expect("small"), u16::try_from(good.len() - 34).expect("small"));
    for (what, frame) in [
        ("an IP packet longer than its frame", with(16, total + 1)),
        ("an IP packet shorter than its datagram", with(16, total - 1)),
        ("a datagram longer than its packet", with(38, udp + 1)),
        ("a datagram shorter than its header", with(38, 7)),
        ("a datagram of nothing", with(38, 0)),
        ("a fragment", with(20, 0x2000)),
        ("a later fragment", with(20, 0x0001)),
        ("options", with(14, 0x46e0)),
        ("IPv6", with(12, 0x86dd)),
        ("TCP", with(22, 0x0106)),
        ("a frame that was cut", good[..good.len() - 1].to_vec()),
        ("headers that were cut", good[..HEADERS - 1].to_vec()),
        ("nothing", Vec::new()),
        ("more than fits", frame_of(&[0; PAYLOAD_MAX + 1])),
        ("far more than fits", frame_of(&[0; 9000])),
    ] {
        let (sender, receiver) = receiver();
        sender.send(&frame).expect("sent");
        assert_eq!(receiver.receive(&mut [0; PAYLOAD_MAX + 1]).expect("there"), Some(0), "{what}");
    }
    // Shorter than the frame is padding, wherever it is.
    let mut headers = [0; HEADERS];
    headers.copy_from_slice(&with(38, udp - 5)[..HEADERS]);
    assert_eq!(payload_len(&headers, good.len()), Some(usize::from(udp) - 5 - UDP));
}

proptest! {
    #[test]
    fn whatever_arrives_is_refused_or_lies_within_its_frame(
        noise in proptest::collection::vec(any::<u8>(), 0..2100),
        shaped in any::<bool>(),
        off in proptest::array::uniform2(prop_oneof![-2..3i16, any::<i16>()]),
    ) {
        let mut frame = noise;
        if shaped && frame.len() >= HEADERS {
            let good = frame_of(&[]);
            frame[..HEADERS].copy_from_slice(&good);
            // Often near the truth, often far from it.
            let wrong = |truth: usize, by: i16| u16::try_from(truth).expect("small").wrapping_add_signed(by);
            let (total, udp) = (wrong(frame.len() - ETHERNET, off[0]), wrong(frame.len() - ETHERNET - IPV4, off[1]));
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame[38..40].copy_from_slice(&udp.to_be_bytes());
        }
        let (sender, receiver) = receiver();
        sender.send(&frame).expect("sent");
        let mut buffer = [0; PAYLOAD_MAX + 1];
        let len = receiver.receive(&mut buffer).expect("there").expect("one");
        prop_assert!(len == 0 || HEADERS + len <= frame.len() && len <= PAYLOAD_MAX);
        if len > 0 {
            prop_assert_eq!(len + UDP, usize::from(u16::from_be_bytes([frame[38], frame[39]])));
            prop_assert_eq!(&buffer[..len], &frame[HEADERS..HEADERS + len]);
        }
        prop_assert_eq!(receiver.receive(&mut buffer).expect("empty"), None);
    }

    #[test]
    fn every_payload_arrives_with_any_padding(
        payload in proptest::collection::vec(any::<u8>(), 0..=PAYLOAD_MAX),
        padding in 0..64usize,
    ) {
        let mut frame = frame_of(&payload);
        frame.resize(frame.len() + padding, 0xee);
        let (sender, receiver) = receiver();
        sender.send(&frame).expect("sent");
        let mut buffer = [0; PAYLOAD_MAX + 1];
        prop_assert_eq!(receiver.receive(&mut buffer).expect("there"), Some(payload.len()));
        prop_assert_eq!(&buffer[..payload.len()], &payload[..]);
    }
}
