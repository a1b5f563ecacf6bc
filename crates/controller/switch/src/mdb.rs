// SPDX-License-Identifier: Apache-2.0
//! A bridge's multicast entries (linux/if_bridge.h: br_port_msg, br_mdb_entry).

use crate::netlink::{Answer, Netlink, Raw, attributes, emit, nla, u32_at};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use std::net::Ipv4Addr;

const RTM_NEWMDB: u16 = 84;
const RTM_DELMDB: u16 = 85;
const RTM_GETMDB: u16 = 86;
const AF_BRIDGE: u8 = 7;
const ETH_P_IP: u16 = 0x0800;
/// Attributes of a change, and of what is listed: table, entry, its description.
const MDBA_SET_ENTRY: u16 = 1;
const MDBA_MDB: u16 = 1;
const MDBA_MDB_ENTRY: u16 = 1;
const MDBA_MDB_ENTRY_INFO: u16 = 1;
const MDB_PERMANENT: u8 = 1;
/// struct br_port_msg, struct br_mdb_entry.
const PORT_MSG_LEN: usize = 8;
const ENTRY_LEN: usize = 28;

/// One port of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) group: Ipv4Addr,
    /// Number of the port's interface; the bridge's own if it is a member itself.
    pub(crate) port: u32,
    /// Set by hand: it stays without reports and queries.
    pub(crate) permanent: bool,
}

fn header(bridge: u32) -> Vec<u8> {
    let mut bytes = vec![AF_BRIDGE, 0, 0, 0];
    bytes.extend(bridge.to_ne_bytes());
    bytes
}

fn message(kind: u16, bridge: u32, entry: Entry) -> Raw {
    let mut e = [0u8; ENTRY_LEN];
    e[0..4].copy_from_slice(&entry.port.to_ne_bytes());
    e[4] = if entry.permanent { MDB_PERMANENT } else { 0 };
    // Flags and VLAN stay 0; the address is a union of 16 bytes.
    e[8..12].copy_from_slice(&entry.group.octets());
    e[24..26].copy_from_slice(&ETH_P_IP.to_be_bytes());
    let mut body = header(bridge);
    body.extend(emit(&[nla(MDBA_SET_ENTRY, &e)]));
    Raw { kind, body }
}

/// Adds an entry, or makes one that was learned permanent. It forwards when this returns.
pub(crate) fn add(netlink: &mut Netlink, bridge: u32, group: Ipv4Addr, port: u32) -> Answer<()> {
    netlink.change(message(RTM_NEWMDB, bridge, Entry { group, port, permanent: true }), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Deletes an entry, permanent or learned.
pub(crate) fn delete(netlink: &mut Netlink, bridge: u32, entry: Entry) -> Answer<()> {
    netlink.change(message(RTM_DELMDB, bridge, entry), 0)
}

/// The bridge's entries for IPv4 groups without VLAN.
pub(crate) fn list(netlink: &mut Netlink, bridge: u32) -> Answer<Vec<Entry>> {
    let all = netlink.dump(Raw { kind: RTM_GETMDB, body: header(bridge) })?;
    Ok(all.iter().flat_map(|raw| parse(&raw.body, bridge)).collect())
}

fn parse(body: &[u8], bridge: u32) -> Vec<Entry> {
    let mut entries = Vec::new();
    if u32_at(body, 4) != Some(bridge) {
        return entries;
    }
    let inside = |bytes, kind| attributes(bytes).into_iter().filter(move |(k, _)| *k == kind).map(|(_, v)| v);
    for table in inside(body.get(PORT_MSG_LEN..).unwrap_or_default(), MDBA_MDB) {
        for group in inside(table, MDBA_MDB_ENTRY) {
            entries.extend(inside(group, MDBA_MDB_ENTRY_INFO).filter_map(entry));
        }
    }
    entries
}

fn entry(e: &[u8]) -> Option<Entry> {
    let e = e.get(..ENTRY_LEN)?;
    let of_ipv4 = e[24..26] == ETH_P_IP.to_be_bytes();
    let without_vlan = e[6..8] == [0, 0];
    (of_ipv4 && without_vlan).then(|| Entry {
        group: Ipv4Addr::new(e[8], e[9], e[10], e[11]),
        port: u32_at(e, 0).unwrap_or_default(),
        permanent: e[4] == MDB_PERMANENT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::nest;

    const ENTRY: Entry = Entry { group: Ipv4Addr::new(239, 71, 0, 1), port: 0x0102, permanent: true };

    #[test]
    #[cfg(target_endian = "little")]
    fn change_is_encoded_for_the_kernel() {
        let raw = message(RTM_NEWMDB, 7, ENTRY);
        let mut expected = vec![7, 0, 0, 0, 7, 0, 0, 0];
        expected.extend([32, 0, 1, 0]);
        expected.extend([2, 1, 0, 0, 1, 0, 0, 0, 239, 71, 0, 1]);
        expected.extend([0; 12]);
        expected.extend([8, 0, 0, 0]);
        assert_eq!((raw.kind, raw.body), (84, expected));
    }

    #[test]
    fn only_this_bridges_ipv4_entries_are_read() {
        let mut info = message(0, 7, ENTRY).body[PORT_MSG_LEN + 4..].to_vec();
        // Attributes of the entry follow it.
        info.extend(emit(&[nla(1, &0u32.to_ne_bytes())]));
        let mut ipv6 = info.clone();
        ipv6[24..26].copy_from_slice(&[0x86, 0xdd]);
        let group = nest(MDBA_MDB_ENTRY, &[nla(MDBA_MDB_ENTRY_INFO, &info), nla(MDBA_MDB_ENTRY_INFO, &ipv6)]);
        let mut body = header(7);
        body.extend(emit(&[nest(MDBA_MDB, &[group]), nla(2, &[1, 2, 3, 4])]));
        assert_eq!(parse(&body, 7), [ENTRY]);
        assert_eq!(parse(&body, 8), []);
        assert_eq!(parse(&body[..20], 7), []);
        assert_eq!(parse(&[], 7), []);
    }
}
