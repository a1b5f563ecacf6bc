// SPDX-License-Identifier: Apache-2.0
//! Classic BPF on a socket: what the kernel queues there at all.

use std::{io, net::Ipv4Addr, ops::RangeInclusive, os::fd::OwnedFd};

use super::udp::set_option;

/// What a filter answers for a packet that is queued whole; 0 is for one that is not.
const KEEP: u32 = u32::MAX;

/// One condition on a part of the packet.
#[derive(Clone, Copy)]
enum Is {
    Equal(u32),
    AtLeast(u32),
    AtMost(u32),
    Other(u32),
    Without(u32),
}

/// Only UDP packets of the cluster to one of `addresses`, from the Ethernet header on: IPv4 without options, no
/// fragment, and not what the interface only saw because it listens to everything.
pub(super) fn cluster_only(socket: &OwnedFd, addresses: RangeInclusive<Ipv4Addr>, port: u16) -> io::Result<()> {
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    attach(
        socket,
        &all_of(&[
            (libc::BPF_B, packet_type, Is::Other(u32::from(libc::PACKET_OTHERHOST))),
            (libc::BPF_H, 12, Is::Equal(libc::ETH_P_IP.cast_unsigned())),
            (libc::BPF_B, 14, Is::Equal(0x45)),
            (libc::BPF_B, 23, Is::Equal(libc::IPPROTO_UDP.cast_unsigned())),
            (libc::BPF_H, 20, Is::Without(0x3fff)),
            (libc::BPF_W, 30, Is::AtLeast(u32::from(*addresses.start()))),
            (libc::BPF_W, 30, Is::AtMost(u32::from(*addresses.end()))),
            (libc::BPF_H, 36, Is::Equal(u32::from(port))),
        ]),
    )
}

/// Only UDP packets to `port`, whoever they are for.
pub(super) fn port_only(socket: &OwnedFd, port: u16) -> io::Result<()> {
    attach(
        socket,
        &all_of(&[
            (libc::BPF_H, 12, Is::Equal(libc::ETH_P_IP.cast_unsigned())),
            (libc::BPF_B, 14, Is::Equal(0x45)),
            (libc::BPF_B, 23, Is::Equal(libc::IPPROTO_UDP.cast_unsigned())),
            (libc::BPF_H, 20, Is::Without(0x3fff)),
            (libc::BPF_H, 36, Is::Equal(u32::from(port))),
        ]),
    )
}

/// Only frames of one type, untagged, whoever they are for.
pub(super) fn ethertype_only(socket: &OwnedFd, ethertype: u16) -> io::Result<()> {
    attach(socket, &all_of(&[(libc::BPF_H, 12, Is::Equal(u32::from(ethertype)))]))
}

/// Nothing at all.
pub(super) fn nothing(socket: &OwnedFd) -> io::Result<()> {
    attach(socket, &[instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0)])
}

/// A program that keeps a packet if every condition on (size, offset) holds. A packet that ends before
/// an offset is dropped by the kernel.
fn all_of(conditions: &[(u32, u32, Is)]) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    for (position, (size, offset, is)) in conditions.iter().enumerate() {
        // Over the other conditions, of two instructions each, and over "keep".
        let refuse = u8::try_from(2 * (conditions.len() - position) - 1).expect("a handful");
        let (jump, operand, if_so, if_not) = match *is {
            Is::Equal(value) => (libc::BPF_JEQ, value, 0, refuse),
            Is::AtLeast(value) => (libc::BPF_JGE, value, 0, refuse),
            Is::AtMost(value) => (libc::BPF_JGT, value, refuse, 0),
            Is::Other(value) => (libc::BPF_JEQ, value, refuse, 0),
            Is::Without(bits) => (libc::BPF_JSET, bits, refuse, 0),
        };
        program.push(instruction(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, *offset));
        program.push(instruction(libc::BPF_JMP | jump | libc::BPF_K, if_so, if_not, operand));
    }
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, KEEP));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    program
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).expect("16 bits"), jt, jf, k }
}

fn attach(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("short"),
        // The kernel only reads it, and only during the call.
        filter: program.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use proptest::prelude::*;

    use super::*;

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 70, 0, 1);
    const PORT: u16 = 7411;

    /// What the filter says in words, once more.
    fn wanted(frame: &[u8]) -> bool {
        frame.len() >= 38
            && frame[12..14] == [0x08, 0x00]
            && frame[14] == 0x45
            && frame[20] & 0x3f == 0
            && frame[21] == 0
            && frame[23] == 17
            && frame[30..34] == GROUP.octets()
            && frame[36..38] == PORT.to_be_bytes()
    }

    fn good() -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12] = 0x08;
        frame[14] = 0x45;
        frame[20] = 0x40;
        frame[23] = 17;
        frame[30..34].copy_from_slice(&GROUP.octets());
        frame[36..38].copy_from_slice(&PORT.to_be_bytes());
        frame
    }

    /// A pair whose second end has a filter: these sockets take frames from anybody.
    fn pair(filter: impl FnOnce(&OwnedFd) -> io::Result<()>) -> (UnixDatagram, UnixDatagram) {
        let (sender, receiver) = UnixDatagram::pair().expect("a pair");
        let receiver = OwnedFd::from(receiver);
        filter(&receiver).expect("a filter that the kernel takes");
        let receiver = UnixDatagram::from(receiver);
        receiver.set_nonblocking(true).expect("set");
        (sender, receiver)
    }

    #[test]
    fn nothing_is_nothing() {
        let (sender, receiver) = pair(nothing);
        sender.send(&good()).expect("sent");
        assert_eq!(receiver.recv(&mut [0; 100]).expect_err("dropped").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn one_type_and_no_other() {
        let (sender, receiver) = pair(|socket| ethertype_only(socket, 0x88cc));
        let frame = |ethertype: u16| [&[0; 12][..], &ethertype.to_be_bytes(), &[7; 50]].concat();
        for ethertype in [0x0800, 0x88cd, 0x88cc] {
            sender.send(&frame(ethertype)).expect("sent");
        }
        sender.send(&frame(0x88cc)[..13]).expect("sent");
        let mut got = [0; 100];
        assert_eq!(receiver.recv(&mut got).expect("there"), 64);
        assert_eq!(got[..64], frame(0x88cc));
        assert_eq!(receiver.recv(&mut got).expect_err("dropped").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_packet_of_the_cluster_passes_whole() {
        assert!(wanted(&good()));
        let (sender, receiver) = pair(|socket| cluster_only(socket, GROUP..=GROUP, PORT));
        let frame = [good(), vec![7; 1454]].concat();
        sender.send(&frame).expect("sent");
        let mut got = [0; 2000];
        assert_eq!(receiver.recv(&mut got).expect("there"), frame.len());
        assert_eq!(got[..frame.len()], frame);
    }

    proptest! {
        #[test]
        fn it_keeps_what_it_says(
            edits in proptest::collection::vec((0..42usize, prop_oneof![Just(0u8), Just(0x20), any::<u8>()]), 0..3),
            len in prop_oneof![Just(60usize), 0..60usize],
        ) {
            let mut frame = good();
            for (at, byte) in edits {
                frame[at] = byte;
            }
            frame.truncate(len);
            let (sender, receiver) = pair(|socket| cluster_only(socket, GROUP..=GROUP, PORT));
            sender.send(&frame).expect("sent");
            prop_assert_eq!(receiver.recv(&mut [0; 100]).is_ok(), wanted(&frame));
        }
    }
}
