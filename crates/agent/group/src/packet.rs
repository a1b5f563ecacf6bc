// SPDX-License-Identifier: Apache-2.0
//! Packets: datagrams of a group, sealed with the group's key. Little-endian:
//!
//! ```text
//!  0 u8  version, 1
//!  1 u8  1: the sender does not know the receiver's incarnation, and asks it for a packet; else 0
//!  2 u16 id of the sender's host
//!  4 u32 number of the sender's process, as its agent reports it
//!  8 u32 incarnation of the sender in the group
//! 12 4 u8 versions that the sender speaks: newest and oldest of the group's protocol, of the service's messages
//! 16 u64 session: a random number, drawn when the sender began
//! 24 u64 number of the packet in its session
//! 32 encrypted: datagrams, each a u16 length and that many bytes; a length of 0 ends them, and zeros follow
//! -16 tag
//! ```
//!
//! AES-128-GCM, of which the first 32 bytes are the associated data, under a key that is derived from the
//! group's (BLAKE3's `derive_key`) for this sender and session, and with the packet's number as the nonce. So
//! no nonce is ever used twice. (A tag alone would do, and is slower: the library's fast path is that of
//! encrypted bytes.)

use crate::versions::Spoken;
use fide_types::{HostId, MAX_HOSTS, PAYLOAD_MAX, PerHost};
use fide_wire::Key;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};

/// UDP payload of a full packet: an Ethernet frame's 1500 bytes without IPv4's and UDP's headers.
pub const PACKET_MAX: usize = PAYLOAD_MAX;
/// Bytes before the datagrams.
pub const HEADER_LEN: usize = 32;
pub const TAG_LEN: usize = 16;
const LENGTH_LEN: usize = 2;
/// Longest datagram.
pub const DATAGRAM_MAX: usize = PACKET_MAX - HEADER_LEN - LENGTH_LEN - TAG_LEN;
const VERSION: u8 = 1;
const CONTEXT: &str = "fide-member 2026-11 session key";

/// The sender of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    pub host: HostId,
    /// Its process, as its agent reports it.
    pub process: u32,
    /// Its incarnation in the group.
    pub incarnation: u32,
}

/// Why a packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("{len} bytes; a packet has {} to {PACKET_MAX}", HEADER_LEN + TAG_LEN)]
    Length { len: usize },
    #[error("version {version}; this program speaks {VERSION}")]
    Version { version: u8 },
    #[error("from host {host}; hosts are 1 to {MAX_HOSTS}")]
    Host { host: HostId },
    #[error("the tag is wrong: forged, damaged, or sealed with another key")]
    Tag,
}

/// The key of one sender's session.
struct Session {
    sender: Sender,
    number: u64,
    key: LessSafeKey,
}

impl Session {
    fn new(key: &Key, sender: Sender, number: u64) -> Self {
        let mut material = [0; 34];
        material[..16].copy_from_slice(&key.0);
        material[16..18].copy_from_slice(&sender.host.to_le_bytes());
        material[18..22].copy_from_slice(&sender.process.to_le_bytes());
        material[22..26].copy_from_slice(&sender.incarnation.to_le_bytes());
        material[26..].copy_from_slice(&number.to_le_bytes());
        let derived = blake3::derive_key(CONTEXT, &material);
        let unbound = UnboundKey::new(&AES_128_GCM, &derived[..16]).expect("16 bytes");
        Self { sender, number, key: LessSafeKey::new(unbound) }
    }
}

fn nonce(packet: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&packet.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Seals the packets that one member sends.
pub struct Sealer {
    session: Session,
    spoken: Spoken,
    packets: u64,
}

impl Sealer {
    /// `session` has to be random.
    #[must_use]
    pub fn new(key: &Key, sender: Sender, session: u64) -> Self {
        Self { session: Session::new(key, sender, session), spoken: Spoken::default(), packets: 0 }
    }

    /// With other versions than the usual ones in the packets.
    #[must_use]
    pub fn speaking(self, spoken: Spoken) -> Self {
        Self { spoken, ..self }
    }

    /// Appends the header of a packet. `asks`: for a packet in return.
    pub fn begin(&mut self, out: &mut Vec<u8>, asks: bool) {
        let Sender { host, process, incarnation } = self.session.sender;
        out.extend_from_slice(&[VERSION, u8::from(asks)]);
        out.extend_from_slice(&host.to_le_bytes());
        out.extend_from_slice(&process.to_le_bytes());
        out.extend_from_slice(&incarnation.to_le_bytes());
        self.spoken.write(out);
        out.extend_from_slice(&self.session.number.to_le_bytes());
        self.packets += 1;
        out.extend_from_slice(&self.packets.to_le_bytes());
    }

    /// Appends a datagram to the packet that begins at `start`. If it does not fit, returns false and changes
    /// nothing.
    ///
    /// # Panics
    /// If the datagram is longer than [`DATAGRAM_MAX`].
    pub fn push(out: &mut Vec<u8>, start: usize, datagram: &[u8]) -> bool {
        assert!(datagram.len() <= DATAGRAM_MAX, "a datagram of {} bytes", datagram.len());
        if out.len() - start + LENGTH_LEN + datagram.len() + TAG_LEN > PACKET_MAX {
            return false;
        }
        #[allow(clippy::cast_possible_truncation, reason = "below the length of a packet")]
        out.extend_from_slice(&(datagram.len() as u16).to_le_bytes());
        out.extend_from_slice(datagram);
        true
    }

    /// Seals the packet that begins at `start`. `fill`: with zeros up to the length of a full packet, if
    /// other packets follow it.
    ///
    /// # Panics
    /// If no packet begins there.
    pub fn seal(&self, out: &mut Vec<u8>, start: usize, fill: bool) {
        if fill {
            out.resize(start + PACKET_MAX - TAG_LEN, 0);
        }
        let number = u64::from_le_bytes(out[start + 24..start + HEADER_LEN].try_into().expect("8 bytes"));
        let (header, datagrams) = out[start..].split_at_mut(HEADER_LEN);
        let tag = self.session.key.seal_in_place_separate_tag(nonce(number), Aad::from(&*header), datagrams);
        out.extend_from_slice(tag.expect("a short packet").as_ref());
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("sender", &self.session.sender).finish_non_exhaustive()
    }
}

/// Opens the packets of all members.
pub struct Opener {
    key: Key,
    /// The last session of each host.
    sessions: PerHost<Option<Session>>,
}

impl Opener {
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, sessions: PerHost::new(MAX_HOSTS, |_| None) }
    }

    /// Decrypts a packet in place. Returns its sender and its datagrams.
    ///
    /// # Errors
    /// [`PacketError`]; the bytes of the packet are of no use then.
    pub fn open<'p>(&mut self, packet: &'p mut [u8]) -> Result<Opened<'p>, PacketError> {
        let length = PacketError::Length { len: packet.len() };
        if packet.len() > PACKET_MAX {
            return Err(length);
        }
        let (sealed, tag) = packet.split_last_chunk_mut::<TAG_LEN>().ok_or(length)?;
        let (header, datagrams) = sealed.split_first_chunk_mut::<HEADER_LEN>().ok_or(length)?;
        if header[0] != VERSION {
            return Err(PacketError::Version { version: header[0] });
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let sender =
            Sender { host: HostId::from_le_bytes([header[2], header[3]]), process: word(4), incarnation: word(8) };
        let known = self.sessions.get_mut(sender.host);
        let known = known.ok_or(PacketError::Host { host: sender.host })?;
        let number = long(16);
        let new = match known {
            Some(session) if session.sender == sender && session.number == number => None,
            _ => Some(Session::new(&self.key, sender, number)),
        };
        let session = new.as_ref().or(known.as_ref()).ok_or(PacketError::Tag)?;
        let tag = Tag::from(*tag);
        let opened = session.key.open_in_place_separate_tag(nonce(long(24)), Aad::from(&*header), tag, datagrams, 0..);
        opened.map_err(|_| PacketError::Tag)?;
        if new.is_some() {
            *known = new;
        }
        let spoken = Spoken::read(std::array::from_fn(|byte| header[12 + byte]));
        Ok(Opened { sender, spoken, asks: header[1] == 1, datagrams: Datagrams(datagrams) })
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

/// The datagrams of a packet, in order.
#[derive(Debug, Clone)]
pub struct Datagrams<'p>(&'p [u8]);

impl<'p> Datagrams<'p> {
    /// Reads the decrypted content of a packet, between its header and its tag.
    #[must_use]
    pub fn of(content: &'p [u8]) -> Self {
        Self(content)
    }
}

/// An opened packet.
#[derive(Debug, Clone)]
pub struct Opened<'p> {
    pub sender: Sender,
    /// What the sender speaks.
    pub spoken: Spoken,
    /// It asks for a packet in return.
    pub asks: bool,
    pub datagrams: Datagrams<'p>,
}

impl<'p> Iterator for Datagrams<'p> {
    type Item = &'p [u8];

    fn next(&mut self) -> Option<&'p [u8]> {
        let (length, rest) = self.0.split_first_chunk::<LENGTH_LEN>()?;
        let length = usize::from(u16::from_le_bytes(*length));
        if length == 0 {
            return None;
        }
        let (datagram, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(datagram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = Key([7; 16]);
    const SENDER: Sender = Sender { host: 3, process: 70, incarnation: 9 };

    fn packet(sealer: &mut Sealer, datagrams: &[Vec<u8>], fill: bool) -> Vec<u8> {
        let mut out = vec![1, 2, 3];
        sealer.begin(&mut out, fill);
        for datagram in datagrams {
            assert!(Sealer::push(&mut out, 3, datagram));
        }
        sealer.seal(&mut out, 3, fill);
        out.split_off(3)
    }

    #[test]
    fn full_packet_takes_no_more() {
        let mut sealer = Sealer::new(&KEY, SENDER, 1);
        let full = packet(&mut sealer, &[vec![1; DATAGRAM_MAX]], false);
        assert_eq!(full.len(), PACKET_MAX);
        let mut out = Vec::new();
        sealer.begin(&mut out, false);
        assert!(Sealer::push(&mut out, 0, &[1; DATAGRAM_MAX - 2]));
        assert!(!Sealer::push(&mut out, 0, &[1]));
    }

    #[test]
    fn sessions_replace_each_other_and_keys_differ() {
        let mut opener = Opener::new(KEY);
        let mut first = Sealer::new(&KEY, SENDER, 1);
        let again = Sender { incarnation: 10, ..SENDER };
        let mut second = Sealer::new(&KEY, again, 2);
        let other = packet(&mut Sealer::new(&Key([8; 16]), SENDER, 1), &[], false);
        for _ in 0..2 {
            assert_eq!(opener.open(&mut packet(&mut first, &[], false)).unwrap().sender, SENDER);
            assert_eq!(opener.open(&mut packet(&mut second, &[], false)).unwrap().sender, again);
            assert_eq!(opener.open(&mut other.clone()).unwrap_err(), PacketError::Tag);
        }
    }

    proptest! {
        #[test]
        fn sealed_packet_opens(
            all in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..6),
            fill: bool,
        ) {
            let mut packet = packet(&mut Sealer::new(&KEY, SENDER, 1), &all, fill);
            prop_assert!(!fill || packet.len() == PACKET_MAX);
            let mut opener = Opener::new(KEY);
            let Opened { sender, spoken, asks, datagrams } = opener.open(&mut packet).unwrap();
            prop_assert_eq!((sender, spoken, asks), (SENDER, Spoken::default(), fill));
            prop_assert_eq!(datagrams.map(<[u8]>::to_vec).collect::<Vec<_>>(), all);
        }

        #[test]
        fn changed_packet_is_refused(at in 0usize..400, bit in 0u8..8, len in 0usize..300) {
            let sealed = packet(&mut Sealer::new(&KEY, SENDER, 1), &[vec![5; len + 1]], false);
            let mut changed = sealed.clone();
            let at = at % changed.len();
            changed[at] ^= 1 << bit;
            let mut opener = Opener::new(KEY);
            prop_assert!(opener.open(&mut changed.clone()).is_err());
            prop_assert!(opener.open(&mut sealed.clone()).is_ok());
            prop_assert!(opener.open(&mut changed.clone()).is_err(), "also once the session is known");
            prop_assert!(opener.open(&mut sealed[..at].to_vec()).is_err());
        }

        #[test]
        fn any_bytes_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..1600)) {
            prop_assert!(Opener::new(KEY).open(&mut bytes).is_err());
        }
    }
}
