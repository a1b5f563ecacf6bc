// SPDX-License-Identifier: Apache-2.0
//! What a host takes the cluster to be. Hosts that differ in it do not hear each other, and say so.
//!
//! The tags of all other packets are made with a key that is derived from the cluster's key and the shape
//! ([`Shape::key`]). A [`Shape`] itself travels in a packet of its own kind under the cluster's plain key, so
//! that hosts that differ can tell in what. It is no sign of life and has no replay window: it is only shown
//! to people.
//!
//! ```text
//!  0 header as in a heartbeat, kind 4, no acknowledgements, one section
//! 28 u8 SHAPE (9), u8 0, u16 52
//! 32 u8 trust, u8 policy, u8 members, u8 name_len
//! 36 u64 digest of the cluster's name and period of heartbeats
//! 44 u64 digest of the members: names, addresses, roles, who monitors whom
//! 52 name of the sender, 31 bytes filled with 0, and a 0
//! ```

use core::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::section::{le16, le32, le64};
use crate::{HEADER_LEN, Key, Keys, MAGIC, MAX_HOSTS, MAX_NAME, Name, SECTION_HEADER_LEN, VERSION};

/// Kind of a packet with a shape.
pub const SHAPE: u8 = 4;
/// Kind of its section.
pub const SHAPE_SECTION: u8 = 9;
/// Bytes of a packet with a shape.
pub const SHAPE_LEN: usize = BODY_AT + BODY_LEN;
const BODY_AT: usize = HEADER_LEN + SECTION_HEADER_LEN;
const NAME_AT: usize = BODY_AT + 20;
const BODY_LEN: usize = 20 + MAX_NAME + 1;
const _: () = assert!(SHAPE_LEN == 84);

/// What hosts of one cluster must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// 1 network, 2 lease.
    pub trust: u8,
    /// 1 network, 2 majority.
    pub policy: u8,
    /// How many there are.
    pub members: u8,
    /// Of the cluster's name and period of heartbeats.
    pub cluster: u64,
    /// Of the members in their order: names, addresses, roles, who monitors whom.
    pub list: u64,
}

/// The shape that a host announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedShape {
    pub name: Name,
    pub incarnation: u32,
    pub shape: Shape,
}

/// A digest that shows what differs by mistake: not a secret, and the same under every key.
#[derive(Debug, Clone)]
pub struct Digest(SipHasher24);

impl Default for Digest {
    fn default() -> Self {
        Digest(SipHasher24::new_with_key(b"fide shape\0\0\0\0\0\0"))
    }
}

impl Digest {
    /// Adds bytes, after their number: what follows cannot be taken for them.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(&(bytes.len() as u32).to_le_bytes());
        self.0.write(bytes);
    }

    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}

impl Shape {
    fn bytes(&self) -> [u8; 19] {
        let mut out = [0; 19];
        out[..3].copy_from_slice(&[self.trust, self.policy, self.members]);
        out[3..11].copy_from_slice(&self.cluster.to_le_bytes());
        out[11..].copy_from_slice(&self.list.to_le_bytes());
        out
    }

    /// One number for all of it.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.add(&self.bytes());
        digest.value()
    }

    /// The key of tags among hosts of this shape: two SipHash values of it under the cluster's key.
    #[must_use]
    pub fn key(&self, plain: &Key) -> Key {
        let mut out = [0; 16];
        for (half, place) in out.chunks_exact_mut(8).enumerate() {
            let mut hasher = SipHasher24::new_with_key(&plain.0);
            hasher.write(b"fide tags");
            hasher.write(&[half as u8]);
            hasher.write(&self.bytes());
            place.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        Key(out)
    }

    /// The same for all keys that are accepted.
    #[must_use]
    pub fn keys(&self, plain: &Keys) -> Keys {
        Keys { current: self.key(&plain.current), previous: plain.previous.map(|key| self.key(&key)) }
    }

    /// Writes the packet of host `sender`; plane and tag are left zero, see [`crate::seal`].
    #[must_use]
    pub fn packet(&self, sender: u16, name: &Name, incarnation: u32) -> [u8; SHAPE_LEN] {
        let mut out = [0; SHAPE_LEN];
        out[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        out[2] = VERSION << 4 | SHAPE;
        out[4..6].copy_from_slice(&sender.to_le_bytes());
        out[7] = 1;
        out[24..28].copy_from_slice(&incarnation.to_le_bytes());
        out[HEADER_LEN] = SHAPE_SECTION;
        out[HEADER_LEN + 2..BODY_AT].copy_from_slice(&(BODY_LEN as u16).to_le_bytes());
        let name = name.as_bytes();
        out[BODY_AT..BODY_AT + 4].copy_from_slice(&[self.trust, self.policy, self.members, name.len() as u8]);
        out[BODY_AT + 4..BODY_AT + 12].copy_from_slice(&self.cluster.to_le_bytes());
        out[BODY_AT + 12..NAME_AT].copy_from_slice(&self.list.to_le_bytes());
        out[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
        out
    }
}

impl AnnouncedShape {
    /// Reads a packet; `None` if it is no packet with a shape. Says nothing of its tag: see [`crate::verify`].
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<AnnouncedShape> {
        let whole = payload.len() == SHAPE_LEN
            && le16(payload, 0) == MAGIC
            && payload[2] == VERSION << 4 | SHAPE
            && payload[6..8] == [0, 1]
            && payload[HEADER_LEN..HEADER_LEN + 2] == [SHAPE_SECTION, 0]
            && usize::from(le16(payload, HEADER_LEN + 2)) == BODY_LEN;
        if !whole {
            return None;
        }
        let [trust, policy, members, name_len] = [0, 1, 2, 3].map(|at| payload[BODY_AT + at]);
        if usize::from(members) > MAX_HOSTS {
            return None;
        }
        let name = Name::new(payload.get(NAME_AT..NAME_AT + usize::from(name_len))?).ok()?;
        let shape =
            Shape { trust, policy, members, cluster: le64(payload, BODY_AT + 4), list: le64(payload, BODY_AT + 12) };
        Some(AnnouncedShape { name, incarnation: le32(payload, 24), shape })
    }
}

#[cfg(test)]
mod tests;
