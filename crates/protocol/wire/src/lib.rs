// SPDX-License-Identifier: Apache-2.0
//! What travels between hosts, byte by byte.
//!
//! - [`packet`]: [`Packet`], a checked view of a received UDP payload, and [`Builder`], which writes one.
//! - [`section`]: what a heartbeat carries beside its acknowledgements.
//! - [`view`]: the VIEW section, which carries the agreement on who is a member.
//! - [`chunk`]: packets that carry several services' data, each with a checksum of its own.
//! - [`auth`]: the key, the SipHash-2-4 tag, [`seal`] and [`verify`].
//! - [`shape`]: what a host takes the cluster to be, and the key of tags among hosts that agree on it.
//! - [`window`]: [`ReplayWindow`], which refuses a sequence number seen before.
//!
//! A heartbeat is one UDP payload, little-endian:
//!
//! ```text
//!  0 u16 magic 0xF1DE      8 u64 seq
//!  2 u8  version<<4|kind  16 u64 tag: SipHash-2-4(key, payload with these 8 bytes zero); the key is that of the shape
//!  3 u8  plane            24 u32 incarnation of the sending agent
//!  4 u16 sender           28 ack_count x {u32 incarnation, u32 seq_low}
//!  6 u8  ack_count           section_count x {u8 kind, u8 slot, u16 len, len bytes}
//!  7 u8  section_count
//! ```
//!
//! - [`c_header`]: the same for the BPF programs, as a header that their build writes.
//!
//! **Invariant:** no I/O, no clock; no allocation but in [`c_header`].
#![forbid(unsafe_code)]

use core::net::Ipv4Addr;

pub mod auth;
pub mod c_header;
pub mod chunk;
pub mod fuzz;
pub mod message;
pub mod packet;
pub mod section;
pub mod shape;
pub mod view;
pub mod window;

pub use auth::{Key, KeyError, Keys, WrongTag, seal, set_plane, set_seq, tag, verify};
pub use chunk::{Chunk, ChunkBuildError, ChunkBuilder, ChunkError, ChunkPacket, ChunkPacketError, Scheme};
pub use fide_types::{
    HOST_SLOT, MAX_CLIENTS, MAX_HOSTS, MAX_NAME, MAX_PLANES, MAX_PROCESSES, Name, NameError, PAYLOAD_MAX,
    PIGGYBACK_MAX, ProcessState,
};
pub use packet::{Ack, BuildError, Builder, Header, Kind, Packet, PacketError, ack_index};
pub use section::{Body, Echoes, Excluded, Monitor, Roster, Section, SectionError};
pub use shape::{AnnouncedShape, Digest, SHAPE, SHAPE_LEN, Shape};
pub use view::{Membership, Proposal, View, ViewId, ViewRepr};
pub use window::{ReplayWindow, Seen};

/// First two bytes of every packet (little-endian `u16`).
pub const MAGIC: u16 = 0xF1DE;
/// Version of this format, in the upper half of byte 2.
pub const VERSION: u8 = 1;
/// First and last multicast group of planned trees: 239.64.0.0/12. Their lowest 23 bits, which make the
/// hardware address, differ.
pub const TREE_GROUPS: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(239, 64, 0, 0), Ipv4Addr::new(239, 79, 255, 255));
/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 28;
/// Bytes of one acknowledgement.
pub const ACK_LEN: usize = 8;
/// Bytes of a section's own header.
pub const SECTION_HEADER_LEN: usize = 4;
/// Bytes of a ROSTER section before its name.
pub const ROSTER_LEN: usize = 24;
/// Bytes of a MONITOR section.
pub const MONITOR_LEN: usize = 12;
/// Bytes of one entry of an EXCLUDED section.
pub const EXCLUDED_LEN: usize = 8;
/// Bytes of one entry of an ECHO section.
pub const ECHO_LEN: usize = 16;
/// Bytes of a notice: header, one section header, one ROSTER section without a name.
pub const NOTICE_LEN: usize = HEADER_LEN + SECTION_HEADER_LEN + ROSTER_LEN;
/// Bytes of the VIEW section when nothing is being agreed.
pub const VIEW_STEADY_LEN: usize = 8;
/// Where version and kind are.
pub const KIND_OFFSET: usize = 2;
/// Where the plane byte is.
pub const PLANE_OFFSET: usize = 3;
/// Where the sequence number begins.
pub const SEQ_OFFSET: usize = 8;
/// Where the tag begins.
pub const TAG_OFFSET: usize = 16;

const _: () = assert!(NOTICE_LEN == 56);
const _: () = assert!(HEADER_LEN + ACK_LEN + SECTION_HEADER_LEN + 4 + PIGGYBACK_MAX <= PAYLOAD_MAX);
