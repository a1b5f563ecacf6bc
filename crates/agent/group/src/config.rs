// SPDX-License-Identifier: Apache-2.0
//! Configuration of a member.

use std::{path::PathBuf, time::Duration};

use fide_agreement::{Links, Trust, group, hsuc, huc, message, transfer};
use fide_wire::{
    ACK_LEN, HEADER_LEN, Key, MAX_HOSTS, PAYLOAD_MAX as HEARTBEAT_MAX, SECTION_HEADER_LEN, VIEW_STEADY_LEN,
};

use crate::{
    packet,
    versions::{PROTOCOL, Spoken, Versions},
};

/// Longest value of an HSUC instance that fits a packet, bytes.
pub const VALUE_MAX: usize = packet::DATAGRAM_MAX - group::PREFIX_LEN - message::HEADER_LEN;
/// Longest HUC decision that fits a heartbeat of any cluster, bytes: of a heartbeat with acknowledgements for
/// 64 hosts, a view and a promise.
pub const HUC_VALUE_MAX: usize = HEARTBEAT_MAX
    - HEADER_LEN
    - ACK_LEN * (MAX_HOSTS - 1)
    - (SECTION_HEADER_LEN + VIEW_STEADY_LEN)
    - 2 * (SECTION_HEADER_LEN + 4)
    - group::PREFIX_LEN
    - message::HEADER_LEN;
/// The default UDP port of groups.
const PORT: u16 = 7431;
/// A little more than a round trip between hosts in one rack, and than a busy member's turn.
const RESEND: Duration = Duration::from_millis(3);
const PAYLOAD_MAX: u64 = 64 << 20;
/// Some 50 ms of a busy group's decisions on 64-byte values, in which a joining host has to install a state.
/// Kept only while a host joins.
const TAIL_MAX: u64 = 32 << 20;
/// Some seconds of a busy group's decisions; reading them again takes about as long.
const COMPACT_BYTES: u64 = 64 << 20;

/// HSUC over a real network, with `window` instances under way, each with as many proposals as fit a packet.
#[must_use]
pub fn hsuc(window: u64) -> hsuc::Setting {
    hsuc::Setting { window, value_max: VALUE_MAX, links: Links::Lossy }
}

/// HUC over the agents' heartbeats, under their leases: one instance for each heartbeat, with as many
/// proposals as fit it. Longer values go ahead as payloads ([`crate::Member::propose_payload`]), of which a
/// heartbeat carries the identity.
#[must_use]
pub fn huc() -> huc::Setting {
    huc::Setting { value_max: HUC_VALUE_MAX, trust: Trust::Lease }
}

/// Configuration of a member. The same at all hosts, except for the directory and, during an upgrade, the versions.
#[derive(Debug, Clone)]
pub struct Config<S> {
    /// The name of the group and of the members' processes: 1 to 31 characters of `A-Za-z0-9._-`.
    pub group: String,
    /// Names of the hosts that may be members. All of them have to be up once for the group to be founded.
    pub hosts: Vec<String>,
    /// UDP port, on each plane.
    pub port: u16,
    /// The secret of the group: everybody who has it may send messages as a member.
    pub key: Key,
    /// Where this host keeps its record of the group.
    pub state_dir: PathBuf,
    /// Of the protocol.
    pub setting: S,
    /// Interval between two resends of unanswered messages.
    pub resend: Duration,
    /// Most bytes of decisions that are kept while a host joins, and of payloads that decisions have named.
    /// All that is decided while a state is transferred has to fit.
    pub tail_max: u64,
    /// Longest payload, and longest state of a user, bytes; for a durable member somewhat less than 1 GiB at most.
    pub payload_max: u64,
    /// Decisions are delivered once they are on the disks of most members, and the group comes back from them when
    /// all its processes have ended ([`Config::durable`]). The same at all hosts.
    pub is_durable: bool,
    /// Bytes of decisions in the log after which the user of a durable member is asked for its state
    /// ([`crate::Member::wants_base`]).
    pub compact_bytes: u64,
    /// Versions of the service's messages (values that it proposes, states that it gives) that this program speaks.
    /// A process that has none of them in common is refused; [`crate::Member::service_version`] says which one all
    /// of them speak. 1 unless the service counts versions.
    pub service: Versions,
}

impl<S> Config<S> {
    /// With the usual bounds.
    pub fn new(group: &str, hosts: &[&str], key: Key, state_dir: impl Into<PathBuf>, setting: S) -> Self {
        Self {
            group: group.to_owned(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            port: PORT,
            key,
            state_dir: state_dir.into(),
            setting,
            resend: RESEND,
            tail_max: TAIL_MAX,
            payload_max: PAYLOAD_MAX,
            is_durable: false,
            compact_bytes: COMPACT_BYTES,
            service: Versions::only(1),
        }
    }

    /// With decisions on disk.
    #[must_use]
    pub fn durable(self) -> Self {
        Self { is_durable: true, ..self }
    }

    pub(crate) fn spoken(&self) -> Spoken {
        Spoken { group: PROTOCOL, service: self.service }
    }

    pub(crate) fn transfer(&self) -> transfer::Config {
        transfer::Config {
            chunk_max: packet::DATAGRAM_MAX - group::PREFIX_LEN - transfer::HEADER_LEN,
            payload_max: self.payload_max,
            // Lengths beyond all memory are refused later, by name.
            stored_max: self.payload_max.saturating_add(self.tail_max).saturating_mul(2),
            // Room for a state, and for the decisions since it.
            reserved: self.payload_max.saturating_add(self.tail_max),
            wants_max: 64,
            arriving_max: 16,
        }
    }
}
