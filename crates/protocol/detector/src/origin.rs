// SPDX-License-Identifier: Apache-2.0
//! Where something that a peer says came from.

use crate::types::*;
use fide_types::HostId;
use fide_wire::Packet;

/// The heartbeat or notice that something is read from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub host: HostId,
    pub incarnation: u32,
    pub seq: u64,
}

impl Origin {
    pub(crate) fn of(packet: &Packet<&[u8]>) -> Origin {
        Origin { host: packet.sender(), incarnation: packet.incarnation(), seq: packet.seq() }
    }
}

/// Where a section about processes came from.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub host: HostId,
    pub seq: u64,
    pub rx_ns: u64,
    pub via: Via,
}
