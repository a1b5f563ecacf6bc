// SPDX-License-Identifier: Apache-2.0
//! Who may speak: a shared key and a SipHash-2-4 tag over the whole payload.

use crate::{MAX_PLANES, PLANE_OFFSET, SEQ_OFFSET, TAG_OFFSET};
use core::fmt;
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

const TAG_END: usize = TAG_OFFSET + 8;

/// The cluster's key. `Debug` never shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why a key was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("a key has 32 hexadecimal digits, this one has {len} characters")]
    Length { len: usize },
    #[error("character {at} of the key is not a hexadecimal digit; a key has 32 of them")]
    Digit { at: usize },
}

impl core::str::FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Key, KeyError> {
        let text = text.trim().as_bytes();
        if text.len() != 32 {
            return Err(KeyError::Length { len: text.len() });
        }
        let mut key = [0u8; 16];
        for (at, digit) in text.iter().enumerate() {
            let value = char::from(*digit).to_digit(16).ok_or(KeyError::Digit { at })?;
            key[at / 2] = key[at / 2] << 4 | value as u8;
        }
        Ok(Key(key))
    }
}

/// The keys a receiver accepts: the current one, and the previous one while keys are being changed.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    pub current: Key,
    pub previous: Option<Key>,
}

impl From<Key> for Keys {
    fn from(current: Key) -> Keys {
        Keys { current, previous: None }
    }
}

/// No key of the receiver explains the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tag does not fit the packet under any key of this host: forged, damaged, or from a host with another key")]
pub struct WrongTag;

/// SipHash-2-4 of `payload` with the tag field taken as zero. Payloads too short to have one are hashed as they are.
pub fn tag(key: &Key, payload: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(&key.0);
    if payload.len() < TAG_END {
        hasher.write(payload);
    } else {
        hasher.write(&payload[..TAG_OFFSET]);
        hasher.write(&[0; 8]);
        hasher.write(&payload[TAG_END..]);
    }
    hasher.finish()
}

/// Sets the plane byte. Panics if `payload` is shorter than a header.
pub fn set_plane(payload: &mut [u8], plane: u8) {
    debug_assert!(usize::from(plane) < MAX_PLANES);
    payload[PLANE_OFFSET] = plane;
}

/// Sets the sequence number of a built packet, which is to be sealed (again). Panics if `payload` is shorter
/// than a header.
pub fn set_seq(payload: &mut [u8], seq: u64) {
    payload[SEQ_OFFSET..SEQ_OFFSET + 8].copy_from_slice(&seq.to_le_bytes());
}

/// Makes a built packet ready for `plane`: sets the plane byte, then the tag.
///
/// Panics if `payload` is shorter than a header (a [`crate::Builder`] never makes one).
pub fn seal(payload: &mut [u8], plane: u8, key: &Key) {
    set_plane(payload, plane);
    let value = tag(key, payload);
    payload[TAG_OFFSET..TAG_END].copy_from_slice(&value.to_le_bytes());
}

/// Checks the tag against every key the receiver has, in time that does not depend on where it differs.
pub fn verify(payload: &[u8], keys: &Keys) -> Result<(), WrongTag> {
    let Some(bytes) = payload.get(TAG_OFFSET..TAG_END) else { return Err(WrongTag) };
    let mut carried = [0u8; 8];
    carried.copy_from_slice(bytes);
    let carried = u64::from_le_bytes(carried);
    let mut good = (carried ^ tag(&keys.current, payload)) == 0;
    if let Some(previous) = &keys.previous {
        good |= (carried ^ tag(previous, payload)) == 0;
    }
    if good { Ok(()) } else { Err(WrongTag) }
}

#[cfg(test)]
mod tests;
