// SPDX-License-Identifier: Apache-2.0
//! Seals packets and opens them, by the keys of a set-up (`ring`).
//!
//! | version | suite | its keys |
//! |---|---|---|
//! | 3 | ChaCha20-Poly1305 | those of Noise, as its own transport messages |
//! | 4 | AES-256-GCM, which takes a third of the time where the processor has it | one for each [`PACKETS`] numbers, derived from those of Noise |
//!
//! What one key of AES-GCM seals is bounded: 2^24 packets of 1,500 bytes are 2^31 blocks, so that somebody who sees all of them can tell
//! them from random bytes with an advantage of 2^-67 (RFC 9001 §B.1, where 2^-57 is enough).

use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::packet::TAG_LEN;

/// Packets that one key of AES-GCM seals.
pub const PACKETS: u64 = 1 << 24;
/// Bytes of a key.
const KEY_LEN: usize = 32;

/// How packets are sealed, which the version of a set-up says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    ChaCha20Poly1305,
    Aes256Gcm,
}

impl Suite {
    pub(crate) const ALL: [Self; 2] = [Self::ChaCha20Poly1305, Self::Aes256Gcm];

    /// What is fastest here: AES where the processor has it.
    #[must_use]
    pub fn of_host() -> Self {
        if has_aes() { Self::Aes256Gcm } else { Self::ChaCha20Poly1305 }
    }

    /// Of the set-up by which it is asked for.
    #[must_use]
    pub const fn version(self) -> u8 {
        match self {
            Self::ChaCha20Poly1305 => 3,
            Self::Aes256Gcm => 4,
        }
    }

    /// None: another version of the protocol.
    #[must_use]
    pub fn of_version(version: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.version() == version)
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            Self::Aes256Gcm => &AES_256_GCM,
        }
    }

    /// As the Noise framework writes a number (§12.3 and §12.4 of it).
    fn nonce(self, number: u64) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        bytes[4..].copy_from_slice(&match self {
            Self::ChaCha20Poly1305 => number.to_le_bytes(),
            Self::Aes256Gcm => number.to_be_bytes(),
        });
        Nonce::assume_unique_for_key(bytes)
    }

    /// Which of its keys seals a packet.
    fn epoch(self, number: u64) -> u64 {
        match self {
            Self::ChaCha20Poly1305 => 0,
            Self::Aes256Gcm => number / PACKETS,
        }
    }

    fn key(self, root: &[u8; KEY_LEN], epoch: u64) -> Key {
        let bytes = match self {
            Self::ChaCha20Poly1305 => *root,
            Self::Aes256Gcm => {
                let mut hasher = blake3::Hasher::new_derive_key("fide-pace 4 keys of packets");
                hasher.update(root).update(&epoch.to_be_bytes());
                hasher.finalize().into()
            }
        };
        let key = UnboundKey::new(self.algorithm(), &bytes).expect("both suites have keys of 32 bytes");
        Key { epoch, key: LessSafeKey::new(key) }
    }
}

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull")
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

struct Key {
    epoch: u64,
    key: LessSafeKey,
}

/// The keys of one direction: of the newest packets, and others that were looked for last.
struct Keys {
    root: [u8; KEY_LEN],
    newest: Key,
    other: Option<Key>,
}

impl Keys {
    fn new(suite: Suite, root: [u8; KEY_LEN]) -> Self {
        Self { newest: suite.key(&root, 0), other: None, root }
    }

    fn of(&mut self, suite: Suite, epoch: u64) -> &LessSafeKey {
        if self.newest.epoch == epoch {
            return &self.newest.key;
        }
        let root = &self.root;
        let other = self.other.take().filter(|other| other.epoch == epoch);
        &self.other.insert(other.unwrap_or_else(|| suite.key(root, epoch))).key
    }

    /// A packet of this epoch was sealed, or has been opened.
    fn has_served(&mut self, epoch: u64) {
        if let Some(other) = self.other.as_mut().filter(|other| other.epoch == epoch && epoch > self.newest.epoch) {
            // The former one is kept, for packets that come late.
            std::mem::swap(other, &mut self.newest);
        }
    }
}

/// The keys of a connection.
pub struct Sealer {
    suite: Suite,
    out: Keys,
    into: Keys,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealer({:?}, ..)", self.suite)
    }
}

impl Sealer {
    /// `out`, `into`: the keys of this end's packets, and of the other end's.
    #[must_use]
    pub fn new(suite: Suite, out: [u8; KEY_LEN], into: [u8; KEY_LEN]) -> Self {
        Self { suite, out: Keys::new(suite, out), into: Keys::new(suite, into) }
    }

    /// Seals the first `len` bytes in place, with the number of their packet, which no other packet of this end has. Returns how many
    /// they are then: [`TAG_LEN`] more. None: there is no room for these.
    #[must_use]
    pub fn seal(&mut self, number: u64, bytes: &mut [u8], len: usize) -> Option<usize> {
        let (plain, rest) = bytes.split_at_mut_checked(len)?;
        let rest = rest.first_chunk_mut::<TAG_LEN>()?;
        let (suite, epoch) = (self.suite, self.suite.epoch(number));
        let key = self.out.of(suite, epoch);
        let tag = key.seal_in_place_separate_tag(suite.nonce(number), Aad::empty(), plain).ok()?;
        rest.copy_from_slice(tag.as_ref());
        self.out.has_served(epoch);
        Some(len + TAG_LEN)
    }

    /// Opens a packet. Returns the bytes of it. None: it was not sealed by the other end with this number, or `plain` is shorter than it.
    #[must_use]
    pub fn open(&mut self, number: u64, sealed: &[u8], plain: &mut [u8]) -> Option<usize> {
        let plain = plain.get_mut(..sealed.len())?;
        plain.copy_from_slice(sealed);
        let (suite, epoch) = (self.suite, self.suite.epoch(number));
        let key = self.into.of(suite, epoch);
        let len = key.open_in_place(suite.nonce(number), Aad::empty(), plain).ok()?.len();
        self.into.has_served(epoch);
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(suite: Suite) -> [Sealer; 2] {
        [Sealer::new(suite, [1; 32], [2; 32]), Sealer::new(suite, [2; 32], [1; 32])]
    }

    fn sealed(by: &mut Sealer, number: u64) -> [u8; 4 + TAG_LEN] {
        let mut bytes = [7; 4 + TAG_LEN];
        assert_eq!(by.seal(number, &mut bytes, 4), Some(4 + TAG_LEN));
        bytes
    }

    #[test]
    fn both_ends_open_what_the_other_sealed_and_nothing_else() {
        for suite in Suite::ALL {
            let [mut here, mut there] = ends(suite);
            let (packet, mut plain) = (sealed(&mut here, 5), [0; 100]);
            assert_eq!(there.open(5, &packet, &mut plain), Some(4));
            assert_eq!(plain[..4], [7; 4]);
            assert_eq!(there.open(6, &packet, &mut plain), None, "another number");
            assert_eq!(here.open(5, &packet, &mut plain), None, "its own packet");
            for at in 0..packet.len() {
                let mut forged = packet;
                forged[at] ^= 1;
                assert_eq!(there.open(5, &forged, &mut plain), None, "byte {at}");
                assert_eq!(there.open(5, &packet[..at], &mut plain), None, "cut at {at}");
            }
            assert_eq!(there.open(5, &packet, &mut plain[..packet.len() - 1]), None, "no room");
            assert_eq!(here.seal(6, &mut [0; 3 + TAG_LEN], 4), None, "no room");
        }
    }

    #[test]
    fn keys_change_with_numbers_also_while_packets_overtake_one_another() {
        let [mut here, mut there] = ends(Suite::Aes256Gcm);
        let mut opens = |number: u64, packet: &[u8]| there.open(number, packet, &mut [0; 100]).is_some();
        let numbers = [0, PACKETS - 1, PACKETS, 2 * PACKETS - 1, 2 * PACKETS, 2 * PACKETS + 1];
        let packets = numbers.map(|number| sealed(&mut here, number));
        for at in [0, 2, 1, 4, 3, 2, 5, 0] {
            assert!(opens(numbers[at], &packets[at]), "{}", numbers[at]);
            // As packets that somebody else makes, with numbers of keys to come, or of long ago.
            assert!(!opens(numbers[at] + 7 * PACKETS, &packets[at]));
            assert!(
                !opens(numbers[at] % PACKETS + PACKETS * u64::from(numbers[at] < PACKETS), &packets[at]) || at == 0
            );
        }
        assert_eq!((there.into.newest.epoch, here.out.newest.epoch), (2, 2));
    }

    #[test]
    fn each_key_seals_for_itself() {
        let [mut here, _] = ends(Suite::Aes256Gcm);
        let packet = |by: &mut Sealer, epoch: u64| {
            let key = by.suite.key(&by.out.root, epoch);
            let mut bytes = [7; 4];
            let tag = key.key.seal_in_place_separate_tag(by.suite.nonce(3), Aad::empty(), &mut bytes).unwrap();
            (bytes, <[u8; TAG_LEN]>::try_from(tag.as_ref()).unwrap())
        };
        assert_ne!(packet(&mut here, 0), packet(&mut here, 1));
    }
}
