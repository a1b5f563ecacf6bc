// SPDX-License-Identifier: Apache-2.0
//! The AF_PACKET receiver between hosts of a testbed: what is sent to it arrives, and nothing else.

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use fide_net::link::{Destination, Membership, PacketReceiver, PacketSender, Receiver, Sender, UdpSender};
use fide_sys::interface::{self, Interface};
use fide_testbed::{Host, Spec, Testbed, retry_until, supported};
use fide_wire::PAYLOAD_MAX;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 70, 0, 1);
const OTHER_GROUP: Ipv4Addr = Ipv4Addr::new(239, 70, 0, 9);
const PORT: u16 = 7411;
const LIMIT: Duration = Duration::from_secs(20);

/// `None`, with the reason printed, where there can be no testbed.
fn bed() -> Option<Testbed> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    Some(Testbed::build(Spec { planes: 1, ..Spec::hosts(3) }).expect("testbed"))
}

/// Runs on a host, with its interface.
fn on<T: Send>(host: &Host, f: impl FnOnce(&Interface) -> T + Send) -> T {
    at(host, host.address(0), f)
}

fn at<T: Send>(host: &Host, address: Ipv4Addr, f: impl FnOnce(&Interface) -> T + Send) -> T {
    host.run_in(|| f(&interface::by_address(address).expect("there"))).expect("entered")
}

fn receiver(host: &Host, destination: &Destination) -> Receiver {
    let (receiver, why) = on(host, |p0| Receiver::open(p0, destination, PORT)).expect("opened");
    assert_eq!((receiver.rung(), why), ("af_packet", None));
    receiver
}

/// What has come until `last` came, without it.
fn all_until(receiver: &Receiver, last: &[u8]) -> Vec<Vec<u8>> {
    let mut buffer = [0; PAYLOAD_MAX + 1];
    let mut got = Vec::new();
    retry_until("the last packet", LIMIT, || {
        while let Some(len) = receiver.receive(&mut buffer).expect("received") {
            if &buffer[..len] == last {
                return Ok(());
            }
            got.push(buffer[..len].to_vec());
        }
        Err(format!("not there; got {got:?}"))
    })
    .expect("the last packet");
    got
}

/// Sends frames as they are.
struct Raw(OwnedFd, u32);

impl Raw {
    fn open(host: &Host) -> Self {
        at(host, end(1), |v0| {
            // SAFETY: no memory is handed over; the descriptor is ours alone.
            let socket = unsafe {
                let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
                assert!(fd >= 0, "{}", io::Error::last_os_error());
                OwnedFd::from_raw_fd(fd)
            };
            Self(socket, v0.index)
        })
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: zeroes are a valid value of this plain structure.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.1.cast_signed();
        let len = libc::socklen_t::try_from(size_of_val(&to)).expect("small");
        // SAFETY: frame and address outlive the call and are of the sizes given.
        let sent = unsafe {
            libc::sendto(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), len)
        };
        assert_eq!(sent, frame.len().cast_signed(), "{}", io::Error::last_os_error());
    }
}

/// A datagram to the group, as it should be.
fn frame(payload: &[u8]) -> Vec<u8> {
    let udp = u16::try_from(8 + payload.len()).expect("small");
    let mut frame = vec![0x01, 0x00, 0x5e, 0x46, 0x00, 0x01, 2, 0xf1, 0xde, 0, 0, 1, 0x08, 0x00, 0x45, 0];
    frame.extend((20 + udp).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 1, 17, 0, 0, 10, 71, 0, 1]);
    frame.extend(GROUP.octets());
    for word in [PORT, PORT, udp, 0] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend(payload);
    frame
}

/// A cable from h1 to h2 without a switch, which would refuse some frames itself.
fn cable(bed: &Testbed) {
    let other = bed.host(2).namespace();
    let made = ["link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", other];
    ip(bed.host(1), &made);
    for host in [1, 2] {
        ip(bed.host(host), &["addr", "add", &format!("{}/24", end(host)), "dev", "v0"]);
        ip(bed.host(host), &["link", "set", "v0", "up"]);
    }
}

fn end(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 71, 0, u8::try_from(host).expect("two"))
}

fn ip(host: &Host, arguments: &[&str]) {
    let status = host.command("ip").args(arguments).status().expect("ip");
    assert!(status.success(), "ip {arguments:?}");
}

/// Packets that the kernel of a host has seen on its end of the cable.
fn seen(host: &Host) -> u64 {
    // Name, bytes received, packets received, and more.
    let text = host.run_in(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("entered").expect("read");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("v0:")).expect("v0");
    line.split_whitespace().nth(1).expect("a column").parse().expect("a number")
}

#[test]
fn root_what_a_packet_sender_sends_arrives() {
    let Some(bed) = bed() else { return };
    let receiver = receiver(bed.host(2), &Destination::Group(GROUP));
    let mut sender = on(bed.host(1), |p0| PacketSender::open(p0, GROUP, PORT)).expect("sender");
    let mut sent = Vec::new();
    for len in [0, 1, 18, 19, 500, PAYLOAD_MAX] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        sender.send(&payload).expect("sent");
        sent.push(payload);
    }
    sender.send(b"last").expect("sent");
    assert_eq!(all_until(&receiver, b"last"), sent);

    // The group was joined, and the interface hears no more than before.
    let shown = |arguments: &[&str]| {
        let out = bed.host(2).command("ip").args(arguments).output().expect("ip");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert!(shown(&["maddr", "show", "dev", "p0"]).contains(&GROUP.to_string()));
    let link = shown(&["-d", "link", "show", "p0"]);
    assert!(link.contains("promiscuity 0") && !link.contains("PROMISC"), "{link}");
}

#[test]
fn root_everything_else_stays_out() {
    let Some(bed) = bed() else { return };
    cable(&bed);
    let group = Destination::Group(GROUP);
    let near = |group, port| at(bed.host(1), end(1), |v0| PacketSender::open(v0, group, port)).expect("sender");
    let (receiver, why) = at(bed.host(2), end(2), |v0| Receiver::open(v0, &group, PORT)).expect("opened");
    assert_eq!(why, None);
    let mut own = at(bed.host(2), end(2), |v0| PacketSender::open(v0, GROUP, PORT)).expect("sender");
    let peer = Destination::Peers(vec![end(2)]);
    let mut unicast = at(bed.host(1), end(1), |v0| UdpSender::open(v0, &peer, PORT)).expect("sender");
    let raw = Raw::open(bed.host(1));
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = frame(b"not for it");
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let before = seen(bed.host(2));
    raw.send(&frame(b"by hand"));
    near(GROUP, PORT + 1).send(b"another port").expect("sent");
    near(OTHER_GROUP, PORT).send(b"another group").expect("sent");
    own.send(b"its own").expect("sent");
    unicast.send(b"to its address").expect("sent");
    for (offset, bytes) in [
        // Somebody else's hardware address: the IP layer would refuse it, too.
        (0, &[2, 0, 0, 0, 0, 0x77][..]),
        (12, &[0x86, 0xdd]),
        (14, &[0x46]),
        (20, &[0x20]),
        (21, &[0x01]),
        (23, &[6]),
    ] {
        raw.send(&with(offset, bytes));
    }
    raw.send(&frame(b"")[..30]);
    // A datagram that the sender's IP layer cuts into three.
    let long = at(bed.host(1), end(1), |v0| UdpSocket::bind((v0.address, 0))).expect("bound");
    rustix::net::sockopt::set_ip_multicast_if(&long, &end(1)).expect("its cable");
    long.send_to(&[7; 4000], (GROUP, PORT)).expect("sent");
    near(GROUP, PORT).send(b"last").expect("sent");
    assert_eq!(all_until(&receiver, b"last"), [b"by hand"]);
    // By hand, another port and group, its address, six edited, one cut, three fragments, the last.
    assert!(seen(bed.host(2)) - before >= 15, "all of it has been there");

    // What the filter lets through and the lengths refuse is a payload that nobody takes.
    raw.send(&with(16, &[0xff, 0xff]));
    raw.send(&with(38, &[0, 7]));
    near(GROUP, PORT).send(b"last").expect("sent");
    assert_eq!(all_until(&receiver, b"last"), [b"", b""]);
}

#[test]
fn root_without_a_group_its_own_address_counts() {
    let Some(bed) = bed() else { return };
    let peers = Destination::Peers(vec![bed.host(1).address(0)]);
    let receiver = receiver(bed.host(2), &peers);
    let to = Destination::Peers(vec![bed.host(3).address(0), bed.host(2).address(0)]);
    let (mut sender, _) = on(bed.host(1), |p0| Sender::open(p0, &to, PORT)).expect("sender");
    assert_eq!(sender.rung(), "udp");
    let mut group = on(bed.host(1), |p0| PacketSender::open(p0, GROUP, PORT)).expect("sender");
    group.send(b"to the group").expect("sent");
    for payload in [&b"one"[..], b"two", b"last"] {
        sender.send(payload).expect("sent");
    }
    assert_eq!(all_until(&receiver, b"last"), [b"one", b"two"]);
}

/// Two readers of one socket, one after the other: nothing is lost in between, nothing comes twice.
#[test]
fn root_another_owner_goes_on_where_the_first_stopped() {
    let Some(bed) = bed() else { return };
    let first = receiver(bed.host(2), &Destination::Group(GROUP));
    let mut sender = on(bed.host(1), |p0| PacketSender::open(p0, GROUP, PORT)).expect("sender");
    sender.send(b"for the first").expect("sent");
    sender.send(b"last").expect("sent");
    assert_eq!(all_until(&first, b"last"), [b"for the first"]);
    let sockets = first.sockets().expect("descriptors");
    assert!(sockets.packet.is_some());
    sender.send(b"in between").expect("sent");
    drop(first);
    let second = Receiver::from(sockets);
    assert_eq!(second.rung(), "af_packet");
    sender.send(b"last").expect("sent");
    assert_eq!(all_until(&second, b"last"), [b"in between"]);
}

/// Nobody reads for a while: the kernel keeps the oldest, within the buffer's bound, and goes on after that.
#[test]
fn root_a_full_buffer_drops_the_newest() {
    const SENT: u32 = 20_000;
    let Some(bed) = bed() else { return };
    let receiver = receiver(bed.host(2), &Destination::Group(GROUP));
    let mut sender = on(bed.host(1), |p0| PacketSender::open(p0, GROUP, PORT)).expect("sender");
    for n in 0..SENT {
        sender.send(&n.to_be_bytes()).expect("sent");
    }
    let mut buffer = [0; PAYLOAD_MAX + 1];
    let mut got = 0;
    while let Some(len) = receiver.receive(&mut buffer).expect("received") {
        assert_eq!(buffer[..len], u32::to_be_bytes(got), "in order, without a gap");
        got += 1;
    }
    // The kernel's bookkeeping may change; some 2500 on Linux 6.18.
    println!("{got} of {SENT} were kept");
    assert!((500..SENT).contains(&got), "{got}");
    sender.send(b"last").expect("sent");
    assert_eq!(all_until(&receiver, b"last"), Vec::<Vec<u8>>::new());
}

#[test]
fn root_a_link_that_comes_back_is_heard_again() {
    let Some(bed) = bed() else { return };
    let receiver = receiver(bed.host(2), &Destination::Group(GROUP));
    let mut sender = on(bed.host(1), |p0| PacketSender::open(p0, GROUP, PORT)).expect("sender");
    ip(bed.host(2), &["link", "set", "p0", "down"]);
    let mut buffer = [0; PAYLOAD_MAX + 1];
    let error = receiver.receive(&mut buffer).expect_err("it is down");
    assert_eq!(error.kind(), io::ErrorKind::NetworkDown);
    assert_eq!(receiver.receive(&mut buffer).expect("reported once"), None);
    ip(bed.host(2), &["link", "set", "p0", "up"]);
    retry_until("a packet", LIMIT, || {
        sender.send(b"back").map_err(|error| error.to_string())?;
        match receiver.receive(&mut buffer) {
            Ok(Some(4)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .expect("heard");
}

#[test]
fn root_loopback_and_taken_ports_are_named() {
    let Some(bed) = bed() else { return };
    let here = Destination::Peers(vec![Ipv4Addr::LOCALHOST]);
    let (fallen, error) = bed
        .host(1)
        .run_in(|| {
            let lo = interface::by_address(Ipv4Addr::LOCALHOST).expect("lo");
            let fallen = Receiver::open(&lo, &here, PORT).expect("UDP");
            (fallen, PacketReceiver::open(&lo, &here, PORT + 1).expect_err("no Ethernet"))
        })
        .expect("entered");
    assert_eq!(fallen.0.rung(), "udp");
    assert!(fallen.1.expect("why").contains("loopback"));
    assert!(error.to_string().contains("lo has no Ethernet frames"), "{error}");

    // Whoever holds the port is in the way of every rung.
    let peers = Destination::Peers(vec![bed.host(2).address(0)]);
    let first = on(bed.host(1), |p0| Membership::open(p0, &peers, PORT)).expect("free");
    let error = on(bed.host(1), |p0| Receiver::open(p0, &peers, PORT)).expect_err("taken");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    // The kernel would report a closed port to every sender; this one is not closed, and takes in nothing.
    let sender = on(bed.host(2), |p0| UdpSocket::bind((p0.address, 0))).expect("bound");
    sender.connect((bed.host(1).address(0), PORT)).expect("connected");
    for _ in 0..10 {
        sender.send(b"knock").expect("nobody says that it is closed");
    }
    let held = UdpSocket::from(first.as_fd().try_clone_to_owned().expect("a descriptor"));
    assert_eq!(held.recv(&mut [0; 10]).expect_err("nothing").kind(), io::ErrorKind::WouldBlock);
}
