// SPDX-License-Identifier: Apache-2.0
//! Whole packets: [`Packet`] reads one, [`Builder`] writes one.

use crate::section::{self, Body, Section, SectionError, le16, le32, le64};
use crate::{
    ACK_LEN, HEADER_LEN, MAGIC, MAX_HOSTS, MAX_PLANES, Monitor, NOTICE_LEN, PAYLOAD_MAX, Roster, SECTION_HEADER_LEN,
    VERSION, ViewRepr,
};
use fide_types::host_index;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Sent every period.
    Heartbeat = 1,
    /// A process's end, sent at once and once per plane; idempotent.
    Notice = 2,
}

/// Why bytes are not a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("{len} bytes; a packet has {HEADER_LEN} to {PAYLOAD_MAX}")]
    Length { len: usize },
    #[error("magic {magic:#06x}; it must be {MAGIC:#06x}")]
    Magic { magic: u16 },
    #[error("version {version}; this program speaks version {VERSION}")]
    Version { version: u8 },
    #[error("kind {kind}; 1 (heartbeat) and 2 (notice) are known")]
    Kind { kind: u8 },
    #[error("plane {plane}; it must be below {MAX_PLANES}")]
    Plane { plane: u8 },
    #[error("sender {sender}; host ids are 1..={MAX_HOSTS}")]
    Sender { sender: u16 },
    #[error("{acks} acknowledgements; at most 63, and they must fit")]
    Acks { acks: u8 },
    #[error("section {index} does not fit into the packet")]
    Truncated { index: u8 },
    #[error("{left} bytes follow the last section; a packet ends with it")]
    Trailing { left: usize },
    #[error("section {index}: {error}")]
    Section { index: u8, error: SectionError },
    #[error("a notice has no acknowledgement and one roster section without a name, {NOTICE_LEN} bytes in all")]
    Notice,
}

/// What the sender hears of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ack {
    /// 0: hears nothing of it.
    pub incarnation: u32,
    /// Low half of the highest heartbeat received from that incarnation.
    pub seq_low: u32,
}

/// Where the acknowledgement of host `of` stands in a heartbeat of host `sender`; `None` for its own.
pub fn ack_index(sender: u16, of: u16) -> Option<usize> {
    if of == sender || of == 0 {
        return None;
    }
    Some(host_index(of) - usize::from(of > sender))
}

/// The fixed header, out of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub plane: u8,
    pub sender: u16,
    pub seq: u64,
    pub tag: u64,
    pub incarnation: u32,
}

/// A packet whose structure was checked to the last byte. Says nothing of its tag: see [`crate::verify`].
#[derive(Debug, Clone, Copy)]
pub struct Packet<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks the header, every section, and that nothing follows.
    pub fn new(bytes: T) -> Result<Packet<T>, PacketError> {
        check(bytes.as_ref())?;
        Ok(Packet { bytes })
    }

    fn b(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    pub fn kind(&self) -> Kind {
        if self.b()[2] & 0xf == Kind::Notice as u8 { Kind::Notice } else { Kind::Heartbeat }
    }

    pub fn plane(&self) -> u8 {
        self.b()[3]
    }

    pub fn sender(&self) -> u16 {
        le16(self.b(), 4)
    }

    pub fn seq(&self) -> u64 {
        le64(self.b(), 8)
    }

    pub fn tag(&self) -> u64 {
        le64(self.b(), 16)
    }

    pub fn incarnation(&self) -> u32 {
        le32(self.b(), 24)
    }

    pub fn ack_count(&self) -> usize {
        usize::from(self.b()[6])
    }

    pub fn section_count(&self) -> usize {
        usize::from(self.b()[7])
    }

    pub fn header(&self) -> Header {
        Header {
            kind: self.kind(),
            plane: self.plane(),
            sender: self.sender(),
            seq: self.seq(),
            tag: self.tag(),
            incarnation: self.incarnation(),
        }
    }

    /// What the sender hears of host `of`; `None` when the packet does not say.
    pub fn ack(&self, of: u16) -> Option<Ack> {
        let index = ack_index(self.sender(), of)?;
        if index >= self.ack_count() {
            return None;
        }
        let at = HEADER_LEN + index * ACK_LEN;
        Some(Ack { incarnation: le32(self.b(), at), seq_low: le32(self.b(), at + 4) })
    }

    /// The sections, in order.
    pub fn sections(&self) -> Sections<'_> {
        let at = HEADER_LEN + self.ack_count() * ACK_LEN;
        Sections { rest: &self.b()[at..], left: self.b()[7] }
    }

    /// The sections, understood. (Those that are not were refused by [`Packet::new`].)
    pub fn bodies(&self) -> impl Iterator<Item = Body<'_>> {
        self.bodies_of(|_| true)
    }

    /// Those of some kinds ([`crate::section`]); the others are skipped by their length.
    pub fn bodies_of(&self, wanted: impl Fn(u8) -> bool) -> impl Iterator<Item = Body<'_>> {
        self.sections().filter(move |s| wanted(s.kind)).filter_map(|s| s.body().ok())
    }

    pub fn into_inner(self) -> T {
        self.bytes
    }
}

/// Iterator over the sections of a [`Packet`].
#[derive(Debug, Clone)]
pub struct Sections<'a> {
    rest: &'a [u8],
    left: u8,
}

impl<'a> Iterator for Sections<'a> {
    type Item = Section<'a>;
    fn next(&mut self) -> Option<Section<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (section, rest) = split(self.rest)?;
        self.rest = rest;
        Some(section)
    }
}

fn split(b: &[u8]) -> Option<(Section<'_>, &[u8])> {
    let (head, rest) = b.split_at_checked(SECTION_HEADER_LEN)?;
    let (bytes, rest) = rest.split_at_checked(usize::from(le16(head, 2)))?;
    Some((Section { kind: head[0], slot: head[1], bytes }, rest))
}

fn check(b: &[u8]) -> Result<(), PacketError> {
    if b.len() < HEADER_LEN || b.len() > PAYLOAD_MAX {
        return Err(PacketError::Length { len: b.len() });
    }
    let magic = le16(b, 0);
    if magic != MAGIC {
        return Err(PacketError::Magic { magic });
    }
    let (version, kind) = (b[2] >> 4, b[2] & 0xf);
    if version != VERSION {
        return Err(PacketError::Version { version });
    }
    if kind != Kind::Heartbeat as u8 && kind != Kind::Notice as u8 {
        return Err(PacketError::Kind { kind });
    }
    if usize::from(b[3]) >= MAX_PLANES {
        return Err(PacketError::Plane { plane: b[3] });
    }
    let sender = le16(b, 4);
    if sender == 0 || usize::from(sender) > MAX_HOSTS {
        return Err(PacketError::Sender { sender });
    }
    let acks = b[6];
    let sections_at = HEADER_LEN + usize::from(acks) * ACK_LEN;
    if usize::from(acks) >= MAX_HOSTS || sections_at > b.len() {
        return Err(PacketError::Acks { acks });
    }
    let mut rest = &b[sections_at..];
    for index in 0..b[7] {
        let (section, after) = split(rest).ok_or(PacketError::Truncated { index })?;
        section.body().map_err(|error| PacketError::Section { index, error })?;
        rest = after;
    }
    if !rest.is_empty() {
        return Err(PacketError::Trailing { left: rest.len() });
    }
    if kind == Kind::Notice as u8
        && (acks != 0 || b[7] != 1 || b.len() != NOTICE_LEN || b[HEADER_LEN] != section::ROSTER)
    {
        return Err(PacketError::Notice);
    }
    Ok(())
}

/// Why something did not go into a packet. The packet is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error("{need} bytes are needed, {room} are left of {PAYLOAD_MAX}")]
    NoRoom { need: usize, room: usize },
    #[error("a packet has at most 255 sections")]
    TooManySections,
    #[error("acknowledgements come before sections, at most 63 of them")]
    AckOrder,
}

/// Writes a packet into a buffer. Plane and tag are left zero: see [`crate::seal`].
#[derive(Debug)]
pub struct Builder<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> Builder<'a> {
    /// Starts a heartbeat. `buf` must hold a header; at most [`PAYLOAD_MAX`] bytes of it are used.
    pub fn heartbeat(buf: &'a mut [u8], sender: u16, incarnation: u32, seq: u64) -> Result<Builder<'a>, BuildError> {
        Builder::start(buf, Kind::Heartbeat, sender, incarnation, seq)
    }

    /// Writes a whole notice; the name of `roster` is left out. Returns its length, [`NOTICE_LEN`].
    pub fn notice(
        buf: &'a mut [u8],
        sender: u16,
        incarnation: u32,
        seq: u64,
        roster: &Roster,
    ) -> Result<usize, BuildError> {
        let mut b = Builder::start(buf, Kind::Notice, sender, incarnation, seq)?;
        b.roster(&Roster { name: None, ..*roster })?;
        Ok(b.finish())
    }

    fn start(
        buf: &'a mut [u8],
        kind: Kind,
        sender: u16,
        incarnation: u32,
        seq: u64,
    ) -> Result<Builder<'a>, BuildError> {
        let room = buf.len();
        if room < HEADER_LEN {
            return Err(BuildError::NoRoom { need: HEADER_LEN, room });
        }
        buf[..HEADER_LEN].fill(0);
        buf[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        buf[2] = VERSION << 4 | kind as u8;
        buf[4..6].copy_from_slice(&sender.to_le_bytes());
        buf[8..16].copy_from_slice(&seq.to_le_bytes());
        buf[24..28].copy_from_slice(&incarnation.to_le_bytes());
        let room = room.min(PAYLOAD_MAX);
        Ok(Builder { buf: &mut buf[..room], len: HEADER_LEN })
    }

    /// Bytes left, a section's header included.
    pub fn remaining(&self) -> usize {
        self.buf.len() - self.len
    }

    /// Adds the next acknowledgement: one for every member but the sender, ascending id, before any section.
    pub fn push_ack(&mut self, ack: Ack) -> Result<(), BuildError> {
        if self.buf[7] != 0 || usize::from(self.buf[6]) + 1 >= MAX_HOSTS {
            return Err(BuildError::AckOrder);
        }
        let at = self.reserve(ACK_LEN)?;
        self.buf[at..at + 4].copy_from_slice(&ack.incarnation.to_le_bytes());
        self.buf[at + 4..at + 8].copy_from_slice(&ack.seq_low.to_le_bytes());
        self.buf[6] += 1;
        Ok(())
    }

    /// Adds a section whose bytes are `head` followed by `tail`.
    pub fn section(&mut self, kind: u8, slot: u8, head: &[u8], tail: &[u8]) -> Result<(), BuildError> {
        let len = head.len() + tail.len();
        let at = self.section_header(kind, slot, len)?;
        self.buf[at..at + head.len()].copy_from_slice(head);
        self.buf[at + head.len()..at + len].copy_from_slice(tail);
        Ok(())
    }

    pub fn roster(&mut self, roster: &Roster) -> Result<(), BuildError> {
        let name = roster.name.as_ref().map_or(&[][..], |n| n.as_bytes());
        self.section(section::ROSTER, roster.slot, &roster.emit(), name)
    }

    pub fn piggyback(&mut self, slot: u8, pb_seq: u32, bytes: &[u8]) -> Result<(), BuildError> {
        self.section(section::PIGGYBACK, slot, &pb_seq.to_le_bytes(), bytes)
    }

    pub fn view(&mut self, view: &ViewRepr) -> Result<(), BuildError> {
        let len = view.wire_len();
        let at = self.section_header(section::VIEW, 0, len)?;
        view.emit(&mut self.buf[at..at + len]);
        Ok(())
    }

    pub fn promise(&mut self, timeout_us: u32) -> Result<(), BuildError> {
        self.section(section::PROMISE, 0, &timeout_us.to_le_bytes(), &[])
    }

    pub fn goodbye(&mut self) -> Result<(), BuildError> {
        self.section(section::GOODBYE, 0, &[], &[])
    }

    /// All processes of this host that live are in this heartbeat or in one that its receivers have acknowledged.
    pub fn all_named(&mut self) -> Result<(), BuildError> {
        self.section(section::ALL_NAMED, 0, &[], &[])
    }

    pub fn monitor(&mut self, monitor: &Monitor) -> Result<(), BuildError> {
        self.section(section::MONITOR, monitor.target_slot, &monitor.emit(), &[])
    }

    /// Adds one EXCLUDED section with as many of `entries` (host id, incarnation) as fit; returns how many.
    pub fn excluded(&mut self, entries: impl Iterator<Item = (u16, u32)> + Clone) -> Result<usize, BuildError> {
        let room = self.remaining().saturating_sub(SECTION_HEADER_LEN) / crate::EXCLUDED_LEN;
        let count = entries.clone().take(room).count();
        if count == 0 {
            return Ok(0);
        }
        let mut at = self.section_header(section::EXCLUDED, 0, count * crate::EXCLUDED_LEN)?;
        for (host, incarnation) in entries.take(count) {
            self.buf[at..at + crate::EXCLUDED_LEN].copy_from_slice(&section::Excluded::emit(host, incarnation));
            at += crate::EXCLUDED_LEN;
        }
        Ok(count)
    }

    /// Adds one ECHO section with as many of `entries` (host id, incarnation, sequence number) as fit;
    /// returns how many.
    pub fn echoes(&mut self, entries: impl Iterator<Item = (u16, u32, u64)> + Clone) -> Result<usize, BuildError> {
        let room = self.remaining().saturating_sub(SECTION_HEADER_LEN) / crate::ECHO_LEN;
        let count = entries.clone().take(room).count();
        if count == 0 {
            return Ok(0);
        }
        let mut at = self.section_header(section::ECHO, 0, count * crate::ECHO_LEN)?;
        for (host, incarnation, seq) in entries.take(count) {
            self.buf[at..at + crate::ECHO_LEN].copy_from_slice(&section::Echoes::emit(host, incarnation, seq));
            at += crate::ECHO_LEN;
        }
        Ok(count)
    }

    /// The packet's length.
    pub fn finish(self) -> usize {
        self.len
    }

    fn section_header(&mut self, kind: u8, slot: u8, len: usize) -> Result<usize, BuildError> {
        if self.buf[7] == u8::MAX {
            return Err(BuildError::TooManySections);
        }
        let at = self.reserve(SECTION_HEADER_LEN + len)?;
        self.buf[at] = kind;
        self.buf[at + 1] = slot;
        self.buf[at + 2..at + 4].copy_from_slice(&(len as u16).to_le_bytes());
        self.buf[7] += 1;
        Ok(at + SECTION_HEADER_LEN)
    }

    fn reserve(&mut self, need: usize) -> Result<usize, BuildError> {
        let room = self.remaining();
        if need > room {
            return Err(BuildError::NoRoom { need, room });
        }
        let at = self.len;
        self.len += need;
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
