// SPDX-License-Identifier: Apache-2.0
//! Whether the kernel keeps the departure times of packets (X-PACE §IV-C1: `SO_TXTIME`).
//!
//! Each kernel takes such times, but only some queues of interfaces keep them. That of a host that wants it is `fq`
//! (`tc qdisc replace dev eth0 root fq`). `etf` keeps them too, but drops the packets of sockets that are not set up as
//! this one queue is, and is left alone.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage},
    tc::{TcAttribute, TcHandle, TcMessage},
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// Packets are handed over so long before they leave: as late as a thread is woken that has nobody before it. Messages of an application
/// that is held are older by this as they leave.
pub(crate) const AHEAD_NS: u64 = 250_000;
/// For each datagram of an answer. The kernel has written it before the request returns, or writes it as it is read, so that there is
/// nothing to wait for: the thread may be one of an asynchronous runtime.
const ANSWER_LIMIT: Duration = Duration::from_millis(5);
/// Datagrams of one answer that are read.
const ANSWERS_MAX: usize = 64;
const KEEPS: &str = "fq";
/// A queue of its own for each queue of the hardware.
const MANY: &str = "mq";

/// Whether packets to an address leave by an interface that keeps their times. What cannot be found out is taken for no.
pub(crate) fn is_kept_to(to: SocketAddr) -> bool {
    let of = || -> io::Result<bool> {
        let interface = interface_to(to)?;
        Ok(interface.is_some_and(|index| queues().is_ok_and(|queues| keeps_times(&queues, index))))
    };
    of().unwrap_or(false)
}

/// A queue of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Queue {
    interface: u32,
    handle: TcHandle,
    parent: TcHandle,
    kind: String,
}

/// The outermost one does, or each one in the outermost one.
fn keeps_times(queues: &[Queue], interface: u32) -> bool {
    let of = || queues.iter().filter(|queue| queue.interface == interface);
    let Some(outermost) = of().find(|queue| queue.parent == TcHandle::ROOT) else { return false };
    let mut inner = of().filter(|queue| queue.parent.major == outermost.handle.major && *queue != outermost).peekable();
    outermost.kind == KEEPS
        || outermost.kind == MANY && inner.peek().is_some() && inner.all(|queue| queue.kind == KEEPS)
}

fn interface_to(to: SocketAddr) -> io::Result<Option<u32>> {
    if let SocketAddr::V6(to) = to
        && to.ip().is_unicast_link_local()
        && to.scope_id() != 0
    {
        // Each interface may have a route to it: the address itself says by which it leaves.
        return Ok(Some(to.scope_id()));
    }
    let to = to.ip().to_canonical();
    let mut message = RouteMessage::default();
    (message.header.address_family, message.header.destination_prefix_length) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.attributes.push(RouteAttribute::Destination(RouteAddress::from(to)));
    let mut found = None;
    ask(RouteNetlinkMessage::GetRoute(message), 0, |answer| {
        if let RouteNetlinkMessage::NewRoute(route) = answer {
            found = route.attributes.iter().find_map(|one| match one {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            });
        }
    })?;
    Ok(found)
}

fn queues() -> io::Result<Vec<Queue>> {
    let mut all = Vec::new();
    ask(RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()), NLM_F_DUMP, |answer| {
        let RouteNetlinkMessage::NewQueueDiscipline(TcMessage { header, attributes, .. }) = answer else { return };
        let kind = attributes.into_iter().find_map(|one| match one {
            TcAttribute::Kind(kind) => Some(kind),
            _ => None,
        });
        if let (Ok(interface), Some(kind)) = (u32::try_from(header.index), kind) {
            all.push(Queue { interface, handle: header.handle, parent: header.parent, kind });
        }
    })?;
    Ok(all)
}

/// One request, and each of its answers.
fn ask(what: RouteNetlinkMessage, flags: u16, mut take: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(what));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    for _ in 0..ANSWERS_MAX {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::InnerMessage(answer) => take(answer),
                NetlinkPayload::Error(why) if why.raw_code() != 0 => return Err(why.to_io()),
                NetlinkPayload::Done(_) | NetlinkPayload::Error(_) => return Ok(()),
                _ => {}
            }
            let len = NetlinkBuffer::new(rest).length() as usize;
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        if flags & NLM_F_DUMP == 0 {
            return Ok(());
        }
    }
    Err(io::Error::other(format!("more than {ANSWERS_MAX} answers")))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use super::*;

    const INNER: TcHandle = TcHandle { major: 0x8001, minor: 0 };

    fn queue(interface: u32, handle: TcHandle, parent: TcHandle, kind: &str) -> Queue {
        Queue { interface, handle, parent, kind: kind.to_owned() }
    }

    #[test]
    fn times_are_kept_by_fq_alone_or_in_each_queue_of_the_hardware() {
        let root = |kind| queue(2, INNER, TcHandle::ROOT, kind);
        let inner = |minor, kind| queue(2, TcHandle::UNSPEC, TcHandle { major: INNER.major, minor }, kind);
        let of = |queues: &[Queue]| keeps_times(queues, 2);
        assert!(of(&[root("fq")]) && of(&[root("mq"), inner(1, "fq"), inner(2, "fq")]));
        assert!(!of(&[root("mq"), inner(1, "fq"), inner(2, "fq_codel")]) && !of(&[root("mq")]));
        assert!(!of(&[root("fq_codel")]) && !of(&[root("htb"), inner(1, "fq")]) && !of(&[]));
        assert!(!of(&[queue(3, INNER, TcHandle::ROOT, "fq")]), "of another interface");
    }

    #[test]
    fn link_local_peer_is_reached_by_the_interface_of_its_address() {
        let of = |scope| interface_to(SocketAddrV6::new("fe80::1".parse().unwrap(), 7000, 0, scope).into());
        // There is no such interface, so that no route names it.
        assert_eq!(of(123_456_789).unwrap(), Some(123_456_789));
    }

    #[test]
    fn the_loopback_keeps_no_times() {
        let index = interface_to(SocketAddr::from(([127, 0, 0, 1], 7000))).unwrap();
        assert_eq!(index, Some(1), "it is the first one in each namespace");
        assert!(queues().unwrap().iter().all(|queue| queue.interface > 0));
        assert!(!is_kept_to(SocketAddr::from(([127, 0, 0, 1], 7000))));
        assert!(!is_kept_to(SocketAddr::from(([0_u16, 0, 0, 0, 0, 0, 0, 1], 7000))));
    }
}
