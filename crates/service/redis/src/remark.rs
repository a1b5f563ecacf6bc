// SPDX-License-Identifier: Apache-2.0
//! What the leader says to all servers at a position of the log, beside what its clients wrote ([`crate::unit`]):
//!
//! ```text
//! compare (1):   u64 number: each server takes a digest of its data as of this position
//! digests (2):   u64 number, u16 the leader's host, u16 count, for each server: u16 host, the digest (44 bytes)
//! settings (3): u32 how many databases the leader has, u16 its port, u64 its hll-sparse-max-bytes, u16 the version of
//!               its Redis' dumps
//! ```
//!
//! Each begins with a u8 for its kind. Servers that speak version 1 of these messages ([`crate::settings::VERSION`])
//! know none, so a leader makes remarks only where no server speaks version 1.

use std::fmt;

/// Most servers of a group.
const HOSTS_MAX: usize = 64;
const DIGEST_LEN: usize = 44;

/// What a server's data is at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// `DEBUG DIGEST`: keys, values and which keys have a deadline.
    pub data: [u8; 20],
    /// Of each key's deadline.
    pub deadlines: u64,
    /// Of functions.
    pub functions: u64,
    /// Of answers to numbered requests.
    pub numbered: u64,
}

impl Digest {
    #[must_use]
    pub fn to_bytes(self) -> [u8; DIGEST_LEN] {
        let mut bytes = [0; DIGEST_LEN];
        bytes[..20].copy_from_slice(&self.data);
        for (place, number) in bytes[20..].chunks_exact_mut(8).zip([self.deadlines, self.functions, self.numbered]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (data, rest) = bytes.split_first_chunk()?;
        let (deadlines, rest) = rest.split_first_chunk()?;
        let (functions, rest) = rest.split_first_chunk()?;
        let numbered: &[u8; 8] = rest.try_into().ok()?;
        let [deadlines, functions, numbered] = [deadlines, functions, numbered].map(|word| u64::from_le_bytes(*word));
        Some(Self { data: *data, deadlines, functions, numbered })
    }

    /// From its [`fmt::Display`] form without what is between the words.
    #[must_use]
    pub fn from_words(words: [&[u8]; 4]) -> Option<Self> {
        let number = |word: &[u8]| {
            let text = std::str::from_utf8(word).ok().filter(|text| text.len() == 16)?;
            u64::from_str_radix(text, 16).ok()
        };
        let [data, deadlines, functions, numbered] = words;
        Some(Self {
            data: data_of(data)?,
            deadlines: number(deadlines)?,
            functions: number(functions)?,
            numbered: number(numbered)?,
        })
    }

    /// Four words for [`Digest::from_words`].
    #[must_use]
    pub fn words(&self) -> [String; 4] {
        let Self { deadlines, functions, numbered, .. } = self;
        let data = self.data.iter().map(|byte| format!("{byte:02x}")).collect();
        [data, format!("{deadlines:016x}"), format!("{functions:016x}"), format!("{numbered:016x}")]
    }
}

/// The 20 bytes that `DEBUG DIGEST` writes as 40 digits.
#[must_use]
pub fn data_of(digits: &[u8]) -> Option<[u8; 20]> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 40 && digits.is_ascii())?;
    let mut data = [0; 20];
    for (at, byte) in data.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(data)
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [data, deadlines, functions, numbered] = self.words();
        write!(f, "data {data}, deadlines {deadlines}, functions {functions}, numbered {numbered}")
    }
}

/// Settings that have to be the same on all servers, and what its Redis is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    pub databases: u32,
    /// Where clients and the other servers find it.
    pub port: u16,
    /// `hll-sparse-max-bytes`: the bytes of a HyperLogLog depend on it.
    pub hll_bytes: u64,
    /// The version of its Redis' dumps, which newer versions of Redis read, and older ones do not.
    pub rdb_version: u16,
}

/// Why a server cannot follow a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    pub name: &'static str,
    pub here: u64,
    pub there: u64,
    /// What is to be done.
    pub remedy: &'static str,
}

impl Settings {
    /// What keeps a server with these settings from following a leader with those.
    #[must_use]
    pub fn difference(self, leader: Self) -> Option<Difference> {
        const ALIKE: &str = "set it alike on all servers, in redis.conf";
        const UPGRADE: &str =
            "install the leader's version of Redis here, or a newer one, and upgrade the leader of a group last";
        let all = [
            ("databases", self.databases.into(), leader.databases.into()),
            ("port", self.port.into(), leader.port.into()),
            ("hll-sparse-max-bytes", self.hll_bytes, leader.hll_bytes),
        ];
        let setting = all.into_iter().find(|(_, here, there)| here != there);
        setting.map(|(name, here, there)| Difference { name, here, there, remedy: ALIKE }).or_else(|| {
            let (here, there) = (self.rdb_version.into(), leader.rdb_version.into());
            (here < there).then_some(Difference { name: "RDB version", here, there, remedy: UPGRADE })
        })
    }
}

/// Something that the leader says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    Compare {
        number: u64,
    },
    /// What the servers found for that number.
    Digests {
        number: u64,
        leader: u16,
        of: Vec<(u16, Digest)>,
    },
    /// What all servers have in common.
    Settings(Settings),
}

impl Remark {
    #[allow(clippy::cast_possible_truncation, reason = "at most HOSTS_MAX servers")]
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Compare { number } => {
                out.push(1);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Self::Digests { number, leader, of } => {
                out.push(2);
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&leader.to_le_bytes());
                out.extend_from_slice(&(of.len() as u16).to_le_bytes());
                for (host, digest) in of {
                    out.extend_from_slice(&host.to_le_bytes());
                    out.extend_from_slice(&digest.to_bytes());
                }
            }
            Self::Settings(Settings { databases, port, hll_bytes, rdb_version }) => {
                out.push(3);
                out.extend_from_slice(&databases.to_le_bytes());
                out.extend_from_slice(&port.to_le_bytes());
                out.extend_from_slice(&hll_bytes.to_le_bytes());
                out.extend_from_slice(&rdb_version.to_le_bytes());
            }
        }
    }

    /// The remark at the beginning of `bytes`, and what follows it.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (kind, rest) = bytes.split_first()?;
        if *kind == 3 {
            let (databases, rest) = rest.split_first_chunk()?;
            let (port, rest) = rest.split_first_chunk()?;
            let (hll_bytes, rest) = rest.split_first_chunk()?;
            // Builds of the same version have not said it.
            let (rdb_version, rest) = rest.split_first_chunk().unwrap_or((&[0; 2], &[]));
            let settings = Settings {
                databases: u32::from_le_bytes(*databases),
                port: u16::from_le_bytes(*port),
                hll_bytes: u64::from_le_bytes(*hll_bytes),
                rdb_version: u16::from_le_bytes(*rdb_version),
            };
            return Some((Self::Settings(settings), rest));
        }
        let (number, mut rest) = rest.split_first_chunk()?;
        let number = u64::from_le_bytes(*number);
        match kind {
            1 => Some((Self::Compare { number }, rest)),
            2 => {
                let short = |bytes: &mut &[u8]| {
                    let (short, rest) = bytes.split_first_chunk()?;
                    *bytes = rest;
                    Some(u16::from_le_bytes(*short))
                };
                let (leader, count) = (short(&mut rest)?, short(&mut rest)?);
                if usize::from(count) > HOSTS_MAX {
                    return None;
                }
                let mut of = Vec::with_capacity(count.into());
                for _ in 0..count {
                    let host = short(&mut rest)?;
                    let (digest, after) = rest.split_at_checked(DIGEST_LEN)?;
                    of.push((host, Digest::from_bytes(digest)?));
                    rest = after;
                }
                Some((Self::Digests { number, leader, of }, rest))
            }
            _ => None,
        }
    }

    /// All of them; none if they cannot be read.
    #[must_use]
    pub fn read_all(mut bytes: &[u8]) -> Option<Vec<Self>> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let (remark, rest) = Self::read(bytes)?;
            all.push(remark);
            bytes = rest;
        }
        Some(all)
    }
}

/// The digest that the group goes on with: that of more than half of the servers that have one, or else the leader's.
/// None: it has none, and nobody knows who is right.
#[must_use]
pub fn right_one(leader: u16, of: &[(u16, Digest)]) -> Option<Digest> {
    let count = |digest: &Digest| of.iter().filter(|(_, other)| other == digest).count();
    let most = of.iter().map(|(_, digest)| *digest).max_by_key(&count)?;
    if 2 * count(&most) > of.len() {
        return Some(most);
    }
    of.iter().find(|(host, _)| *host == leader).map(|(_, digest)| *digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(byte: u8) -> Digest {
        Digest { data: [byte; 20], deadlines: 1, functions: 2, numbered: 3 }
    }

    #[test]
    fn majority_is_right_or_else_the_leader() {
        let [a, b, c] = [1, 2, 3].map(digest);
        assert_eq!(right_one(1, &[(1, a), (2, b), (3, b)]), Some(b), "the leader differs alone");
        assert_eq!(right_one(1, &[(1, a), (2, b), (3, a)]), Some(a));
        assert_eq!(right_one(2, &[(1, a), (2, b)]), Some(b));
        assert_eq!(right_one(1, &[(1, a), (2, b), (3, c)]), Some(a));
        assert_eq!(right_one(1, &[(2, a), (3, b)]), None, "the leader could not look");
        assert_eq!(right_one(1, &[]), None);
    }

    #[test]
    fn digest_is_read_as_it_is_written() {
        let digest = Digest { numbered: u64::MAX, ..digest(0xab) };
        let words = digest.words();
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        assert_eq!(Digest::from_words(words.try_into().unwrap()), Some(digest));
        assert_eq!(Digest::from_bytes(&digest.to_bytes()), Some(digest));
        assert_eq!(data_of(b"xy"), None);
        assert_eq!(data_of("ü".repeat(20).as_bytes()), None);
    }

    #[test]
    fn server_of_an_older_redis_than_the_leader_is_named_and_a_newer_one_follows() {
        let [old, new] = [10, 11].map(|rdb_version| Settings { rdb_version, port: 6379, ..Settings::default() });
        let found = old.difference(new).unwrap();
        assert_eq!((found.name, found.here, found.there), ("RDB version", 10, 11));
        assert_eq!((new.difference(old), old.difference(old)), (None, None));
        let found = Settings { port: 7000, ..new }.difference(old).unwrap();
        assert_eq!((found.name, found.here, found.there), ("port", 7000, 6379));
    }

    fn any_remark() -> impl Strategy<Value = Remark> {
        let digests = prop::collection::vec((1u16..=64, any::<u8>().prop_map(digest)), 0..5);
        prop_oneof![
            any::<u64>().prop_map(|number| Remark::Compare { number }),
            (any::<u64>(), any::<u16>(), digests).prop_map(|(number, leader, of)| Remark::Digests {
                number,
                leader,
                of
            }),
            any::<(u32, u16, u64, u16)>().prop_map(|(databases, port, hll_bytes, rdb_version)| {
                Remark::Settings(Settings { databases, port, hll_bytes, rdb_version })
            }),
        ]
    }

    proptest! {
        #[test]
        fn remarks_come_back_in_order(remarks in prop::collection::vec(any_remark(), 0..6)) {
            let mut bytes = Vec::new();
            remarks.iter().for_each(|remark| remark.write(&mut bytes));
            prop_assert_eq!(Remark::read_all(&bytes), Some(remarks));
        }

        #[test]
        fn any_bytes_are_remarks_or_refused(kind in 0u8..5, bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let bytes: Vec<u8> = std::iter::once(kind).chain(bytes).collect();
            let _ = Remark::read_all(&bytes);
        }
    }
}
