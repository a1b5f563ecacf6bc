// SPDX-License-Identifier: Apache-2.0
//! Interfaces of a namespace: their names, the bridges whose ports they are, their traffic.

use crate::DriverError;
use crate::netlink::{Netlink, Raw};
use netlink_packet_core::{Emitable, NlasIterator, ParseableParametrized};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage};

pub(crate) const RTM_NEWLINK: u16 = 16;
pub(crate) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;

/// A port of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortState {
    /// Its name.
    pub name: String,
    /// Whether there is a cable, and a running device at its other end.
    pub carrier: bool,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that the device dropped instead of sending. Drops of a queueing discipline do not count
    /// here.
    pub tx_dropped: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets dropped after they were received.
    pub rx_dropped: u64,
}

/// An interface.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) index: u32,
    /// Number of the bridge whose port it is.
    pub(crate) master: Option<u32>,
    pub(crate) bridge: bool,
    /// Packets that a queue of default length holds there.
    pub(crate) queue_packets: u32,
    pub(crate) state: PortState,
}

/// Reads a link message; none if it is not one, or about a bridge port's own settings (family AF_BRIDGE).
pub(crate) fn parse(raw: &Raw) -> Option<Link> {
    if ![RTM_NEWLINK, RTM_DELLINK].contains(&raw.kind) || raw.body.first() != Some(&0) {
        return None;
    }
    let (header, attributes) = message(raw)?;
    let mut link =
        Link { index: header.index, master: None, bridge: false, queue_packets: 0, state: PortState::default() };
    link.state.carrier = header.flags.contains(LinkFlags::LowerUp) && raw.kind == RTM_NEWLINK;
    for attribute in attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.state.name = name,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::TxQueueLen(packets) => link.queue_packets = packets,
            LinkAttribute::LinkInfo(info) => link.bridge = info.contains(&LinkInfo::Kind(InfoKind::Bridge)),
            LinkAttribute::Stats64(s) => {
                let p = &mut link.state;
                (p.tx_packets, p.tx_bytes, p.tx_dropped) = (s.tx_packets, s.tx_bytes, s.tx_dropped);
                (p.rx_packets, p.rx_bytes, p.rx_dropped) = (s.rx_packets, s.rx_bytes, s.rx_dropped);
            }
            _ => {}
        }
    }
    Some(link)
}

/// Header and attributes. An attribute in an unknown form is left out; the others still count.
pub(crate) fn message(raw: &Raw) -> Option<(LinkHeader, Vec<LinkAttribute>)> {
    let header = LinkHeader::parse(&raw.body).ok()?;
    let nlas = NlasIterator::new(raw.body.get(header.buffer_len()..)?).map_while(Result::ok);
    let known = nlas.filter_map(|n| LinkAttribute::parse_with_param(&n, header.interface_family).ok()).collect();
    Some((header, known))
}

/// All interfaces of the socket's namespace.
pub(crate) fn list(netlink: &mut Netlink) -> Result<Vec<Link>, DriverError> {
    let mut body = vec![0; LinkMessage::default().buffer_len()];
    LinkMessage::default().emit(&mut body);
    let all = netlink.dump(Raw { kind: RTM_GETLINK, body });
    Ok(all.map_err(|e| e.on("listing interfaces"))?.iter().filter_map(parse).collect())
}
