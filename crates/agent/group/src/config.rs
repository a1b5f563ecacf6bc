// SPDX-License-Identifier: Apache-2.0
//! What a member is told at its start.

use std::{path::PathBuf, time::Duration};

use fide_agreement::{Links, Trust, group, hsuc, huc, message, transfer};
use fide_wire::{
    ACK_LEN, HEADER_LEN, Key, MAX_HOSTS, PAYLOAD_MAX as HEARTBEAT_MAX, SECTION_HEADER_LEN, VIEW_STEADY_LEN,
};

use crate::packet;

/// Longest value of an instance that fits a packet, bytes.
pub const VALUE_MAX: usize = packet::DATAGRAM_MAX - group::PREFIX_LEN - message::HEADER_LEN;
/// Longest decision that fits a heartbeat of any cluster, bytes: one with acknowledgements for 64 hosts, a view and a promise.
pub const HUC_VALUE_MAX: usize = HEARTBEAT_MAX
    - HEADER_LEN
    - ACK_LEN * (MAX_HOSTS - 1)
    - (SECTION_HEADER_LEN + VIEW_STEADY_LEN)
    - 2 * (SECTION_HEADER_LEN + 4)
    - group::PREFIX_LEN
    - message::HEADER_LEN;
/// Where groups listen unless told otherwise.
const PORT: u16 = 7431;
/// A little more than a round trip between hosts that share a rack, and than a busy member's turn.
const RESEND: Duration = Duration::from_millis(3);
const PAYLOAD_MAX: u64 = 64 << 20;
/// Kept only while somebody joins: some 50 ms of all that a group decides of 64-byte values, in which who joins has to take a state.
const TAIL_MAX: u64 = 32 << 20;

/// HSUC over a real network, with so many instances under way: each as many proposals as fit a packet.
#[must_use]
pub fn hsuc(window: u64) -> hsuc::Setting {
    hsuc::Setting { window, value_max: VALUE_MAX, links: Links::Lossy }
}

/// HUC over the agents' heartbeats, under their leases: one instance for each heartbeat, with as many proposals as fit it. What is longer, or more,
/// goes ahead as a payload ([`crate::Member::propose_payload`]), of which the heartbeat has the identity.
#[must_use]
pub fn huc() -> huc::Setting {
    huc::Setting { value_max: HUC_VALUE_MAX, trust: Trust::Lease }
}

/// What a member is told at its start. The same at all hosts, but for the directory.
#[derive(Debug, Clone)]
pub struct Config<S> {
    /// Its name, and that of the members' processes: 1 to 31 of `A-Za-z0-9._-`.
    pub group: String,
    /// Names of the hosts that may be in it. All of them have to be there once, for the group to be founded.
    pub hosts: Vec<String>,
    /// UDP port, on each plane.
    pub port: u16,
    /// Whoever has it may speak in the group.
    pub key: Key,
    /// Where this host remembers that there is a group.
    pub state_dir: PathBuf,
    /// Of the protocol.
    pub setting: S,
    /// Between two looks at what was not answered.
    pub resend: Duration,
    /// Bytes of decisions that are kept while somebody joins, and of payloads that decisions have named: what is decided until a state
    /// has arrived has to fit.
    pub tail_max: u64,
    /// Longest payload, and longest state of a user, bytes.
    pub payload_max: u64,
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
        }
    }

    pub(crate) fn transfer(&self) -> transfer::Config {
        transfer::Config {
            chunk_max: packet::DATAGRAM_MAX - group::PREFIX_LEN - transfer::HEADER_LEN,
            payload_max: self.payload_max,
            stored_max: 2 * self.payload_max + 2 * self.tail_max,
            // A state, and what was decided since it.
            reserved: self.payload_max + self.tail_max,
            wants_max: 64,
            arriving_max: 16,
        }
    }
}
