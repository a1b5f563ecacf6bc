// SPDX-License-Identifier: Apache-2.0
//! The packets that set a connection up, and the cookie.
//!
//! ```text
//!  client                                          server
//!    │ Initiation, without a cookie ───────────────► │  answers, and forgets it
//!    │ ◄──────────────────────────────────── Cookie  │
//!    │ Initiation, with it ────────────────────────► │  a connection
//!    │ ◄────────────────────────────────── Response  │
//!    │ Sealed ─────────────────────────────────────► │  it is confirmed
//! ```
//!
//! The cookie says that the client gets packets at its address, and when it was made; only the server can make it, by a
//! key of its own, so it remembers nothing. Until one comes back a set-up costs a server no more than two hashes, and it
//! answers 1,200 bytes with 46.
//!
//! | packet | bytes |
//! |---|---|
//! | Initiation | kind 1, version 1, client's number 4, attempt 1, cookie 24, message [`MESSAGE_LEN`], tag 16, zeros up to [`INITIATION_LEN`] |
//! | Cookie | kind 1, client's number 4, attempt 1, cookie 24, tag 16 |
//! | Response | kind 1, client's number 4, attempt 1, message [`ANSWER_LEN`], tag 16 |
//! | Refusal | kind 1, client's number 4, attempt 1, reason 1, tag 16 |
//!
//! Somebody on the path sees these packets, copies and alters them, and may be faster. So each ends with a tag by a key that both
//! ends have ([`Tagger`]), and that of an answer covers the client's message, too: a client's set-up is changed by the answer to
//! its own newest message only, and otherwise goes on until it is given up. Both messages hold for one number of the client and
//! one cookie alone ([`bound`]), and the server's number is sealed in its message.

use std::net::SocketAddr;

use crate::{
    keys::{ClientKey, ServerKey},
    packet::{HEADER_LEN, Kind, TAG_LEN},
    seal::Suite,
    secure::{ANSWER_LEN, MESSAGE_LEN},
};

/// Newest version of the protocol. A client asks for what its host seals fastest ([`Suite`]), and a server knows each of them.
pub const VERSION: u8 = Suite::Aes256Gcm.version();
/// Bytes of an Initiation: no fewer than any answer, and as many as every path takes.
pub const INITIATION_LEN: usize = 1200;
/// Bytes of a cookie: when it was made, and its tag.
pub const COOKIE_LEN: usize = 24;
/// Bytes of the longest of a server's answers.
pub const ANSWER_MAX: usize = 6 + ANSWER_LEN + TAG_LEN;
/// A cookie is good for so long.
pub const COOKIE_LIFE_US: u64 = 10_000_000;

/// Proof that its holder gets packets at its address.
pub type Cookie = [u8; COOKIE_LEN];
/// A client's message.
pub type Message = [u8; MESSAGE_LEN];

/// What both messages of a set-up are bound to: the client's number, and the cookie.
#[must_use]
pub fn bound(client: u32, cookie: &Cookie) -> [u8; 4 + COOKIE_LEN] {
    let mut bytes = [0; 4 + COOKIE_LEN];
    bytes[..4].copy_from_slice(&client.to_be_bytes());
    bytes[4..].copy_from_slice(cookie);
    bytes
}

/// Why a server does not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Refused {
    #[error(
        "the other end speaks another version of the protocol than this one ({VERSION}): run the same release of Fide at both ends"
    )]
    Version = 1,
    #[error("the other end has as many connections as it allows")]
    Full = 2,
    #[error("the other end has another key: give both ends the same secret, or this end the other's public key")]
    Key = 3,
}

impl Refused {
    fn of(code: u8) -> Option<Self> {
        [Self::Version, Self::Full, Self::Key].into_iter().find(|reason| *reason as u8 == code)
    }
}

/// A packet of a set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetUp {
    /// `version`: of the client. That of the others is what the server has answered to.
    Initiation {
        version: u8,
        client: u32,
        attempt: u8,
        cookie: Cookie,
        message: Message,
    },
    Cookie {
        client: u32,
        attempt: u8,
        cookie: Cookie,
    },
    Response {
        client: u32,
        attempt: u8,
        message: [u8; ANSWER_LEN],
    },
    Refusal {
        client: u32,
        attempt: u8,
        reason: Refused,
    },
}

/// A packet of a set-up as it came, with its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read<'a> {
    pub packet: SetUp,
    /// What the tag is of.
    tagged: &'a [u8],
    /// None: as in version 1.
    tag: Option<[u8; TAG_LEN]>,
}

impl Read<'_> {
    /// Whether it was made by an end that has the key. `asked`: the client's message, if this is an answer to it.
    #[must_use]
    pub fn is_by(&self, tagger: &Tagger, asked: Option<&Message>) -> bool {
        // In constant time: blake3's hashes compare so.
        let wide = |tag: [u8; TAG_LEN]| {
            let mut bytes = [0; 32];
            bytes[..TAG_LEN].copy_from_slice(&tag);
            blake3::Hash::from_bytes(bytes)
        };
        self.tag.is_some_and(|tag| wide(tag) == wide(tagger.tag(self.tagged, asked)))
    }

    #[must_use]
    pub fn has_tag(&self) -> bool {
        self.tag.is_some()
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }
}

impl SetUp {
    /// Reads a datagram. None: it is none of these.
    #[must_use]
    pub fn read(datagram: &[u8]) -> Option<Read<'_>> {
        let kind = Kind::of(datagram)?;
        let mut reader = Reader(datagram.get(1..)?);
        let packet = match kind {
            Kind::Initiation => {
                if datagram.len() < INITIATION_LEN {
                    return None;
                }
                let version = reader.u8()?;
                let (client, attempt, cookie) = (reader.u32()?, reader.u8()?, reader.take()?);
                Self::Initiation { version, client, attempt, cookie, message: reader.take()? }
            }
            Kind::Cookie => Self::Cookie { client: reader.u32()?, attempt: reader.u8()?, cookie: reader.take()? },
            Kind::Response => Self::Response { client: reader.u32()?, attempt: reader.u8()?, message: reader.take()? },
            Kind::Refusal => {
                Self::Refusal { client: reader.u32()?, attempt: reader.u8()?, reason: Refused::of(reader.u8()?)? }
            }
            Kind::Sealed => return None,
        };
        let tagged = datagram.len() - reader.0.len();
        Some(Read { packet, tagged: datagram.get(..tagged)?, tag: reader.take() })
    }

    /// Writes it with its tag; the number of bytes. `asked`: the client's message, if this is an answer to it.
    ///
    /// # Panics
    /// If there is no room for [`INITIATION_LEN`] bytes.
    pub fn write(&self, tagger: &Tagger, asked: Option<&Message>, into: &mut [u8]) -> usize {
        fn put(into: &mut [u8], at: &mut usize, bytes: &[u8]) {
            into[*at..*at + bytes.len()].copy_from_slice(bytes);
            *at += bytes.len();
        }
        let at = &mut 0;
        let mut begin = |kind: Kind, version: &[u8], client: u32, attempt: u8| {
            put(into, at, &[kind as u8]);
            put(into, at, version);
            put(into, at, &client.to_be_bytes());
            put(into, at, &[attempt]);
        };
        match self {
            Self::Initiation { version, client, attempt, cookie, message } => {
                begin(Kind::Initiation, &[*version], *client, *attempt);
                put(into, at, cookie);
                put(into, at, message);
            }
            Self::Cookie { client, attempt, cookie } => {
                begin(Kind::Cookie, &[], *client, *attempt);
                put(into, at, cookie);
            }
            Self::Response { client, attempt, message } => {
                begin(Kind::Response, &[], *client, *attempt);
                put(into, at, message);
            }
            Self::Refusal { client, attempt, reason } => {
                begin(Kind::Refusal, &[], *client, *attempt);
                put(into, at, &[*reason as u8]);
            }
        }
        let tag = tagger.tag(&into[..*at], asked);
        put(into, at, &tag);
        if matches!(self, Self::Initiation { .. }) {
            into[*at..INITIATION_LEN].fill(0);
            *at = INITIATION_LEN;
        }
        *at
    }
}

/// Makes the tags of a set-up's packets, by a key that both ends have: the secret, or the server's public key. So whoever has
/// that public key, and sees a set-up, can make answers, too: it can hold the set-up up, but not agree in the server's place.
#[derive(Clone)]
pub struct Tagger {
    key: [u8; 32],
}

impl std::fmt::Debug for Tagger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tagger(..)")
    }
}

impl Tagger {
    #[must_use]
    pub fn of_client(key: &ClientKey) -> Self {
        let (is_public, bytes) = match key {
            ClientKey::Secret(bytes) => (0, bytes),
            ClientKey::Public(bytes) => (1, bytes),
        };
        let mut hasher = blake3::Hasher::new_derive_key("fide-pace tags of set-ups");
        hasher.update(&[is_public]).update(bytes);
        Self { key: hasher.finalize().into() }
    }

    #[must_use]
    pub fn of_server(key: &ServerKey) -> Self {
        Self::of_client(&key.for_clients())
    }

    fn tag(&self, bytes: &[u8], asked: Option<&Message>) -> [u8; TAG_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(bytes);
        if let Some(asked) = asked {
            hasher.update(asked);
        }
        hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
    }
}

/// Makes cookies, and knows its own.
#[derive(Clone)]
pub struct Baker {
    key: [u8; 32],
}

impl std::fmt::Debug for Baker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Baker(..)")
    }
}

impl Baker {
    #[must_use]
    pub fn new(entropy: &[u8; 32]) -> Self {
        Self { key: blake3::derive_key("fide-pace cookies", entropy) }
    }

    /// For a client at an address, with its number.
    #[must_use]
    pub fn bake(&self, now_us: u64, address: SocketAddr, client: u32) -> Cookie {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&now_us.to_be_bytes());
        hasher.update(&client.to_be_bytes());
        match address {
            SocketAddr::V4(address) => hasher.update(&address.ip().octets()),
            SocketAddr::V6(address) => hasher.update(&address.ip().octets()),
        };
        hasher.update(&address.port().to_be_bytes());
        let mut cookie = [0; COOKIE_LEN];
        cookie[..8].copy_from_slice(&now_us.to_be_bytes());
        cookie[8..].copy_from_slice(&hasher.finalize().as_bytes()[..COOKIE_LEN - 8]);
        cookie
    }

    /// How long ago this cookie was made for this client. None: it was not, or too long ago.
    #[must_use]
    pub fn age_us(&self, now_us: u64, address: SocketAddr, client: u32, cookie: &Cookie) -> Option<u64> {
        let made_us = u64::from_be_bytes(*cookie.first_chunk()?);
        let age_us = now_us.checked_sub(made_us).filter(|age_us| *age_us <= COOKIE_LIFE_US)?;
        let own = self.bake(made_us, address, client);
        // In constant time: blake3's hashes compare so.
        let hash =
            |cookie: &Cookie| blake3::Hash::from_bytes(std::array::from_fn(|at| cookie.get(at).copied().unwrap_or(0)));
        (hash(&own) == hash(cookie)).then_some(age_us)
    }
}

const _: () = assert!(ANSWER_MAX < INITIATION_LEN && HEADER_LEN + TAG_LEN < INITIATION_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cookie_is_for_one_client_at_one_address_and_a_while() {
        let (baker, here) = (Baker::new(&[1; 32]), "192.0.2.1:5000".parse().unwrap());
        let cookie = baker.bake(1000, here, 7);
        assert_eq!(baker.age_us(1500, here, 7, &cookie), Some(500));
        assert_eq!(baker.age_us(1500, here, 8, &cookie), None);
        assert_eq!(baker.age_us(1500, "192.0.2.1:5001".parse().unwrap(), 7, &cookie), None);
        assert_eq!(baker.age_us(1500, "192.0.2.2:5000".parse().unwrap(), 7, &cookie), None);
        assert_eq!(baker.age_us(1001 + COOKIE_LIFE_US, here, 7, &cookie), None);
        assert_eq!(baker.age_us(999, here, 7, &cookie), None, "of the future");
        assert_eq!(Baker::new(&[2; 32]).age_us(1500, here, 7, &cookie), None);
        for at in 0..COOKIE_LEN {
            let mut forged = cookie;
            forged[at] ^= 1;
            assert_eq!(baker.age_us(1500, here, 7, &forged), None);
        }
        assert_eq!(baker.age_us(1500, here, 7, &[0; COOKIE_LEN]), None);
    }

    fn packets() -> impl Strategy<Value = SetUp> {
        let (cookie, message) = (any::<[u8; COOKIE_LEN]>, any::<[u8; MESSAGE_LEN]>);
        let reasons = prop::sample::select(vec![Refused::Version, Refused::Full, Refused::Key]);
        prop_oneof![
            (any::<u8>(), any::<u32>(), any::<u8>(), cookie(), message()).prop_map(
                |(version, client, attempt, cookie, message)| SetUp::Initiation {
                    version,
                    client,
                    attempt,
                    cookie,
                    message
                }
            ),
            (any::<u32>(), any::<u8>(), cookie()).prop_map(|(client, attempt, cookie)| SetUp::Cookie {
                client,
                attempt,
                cookie
            }),
            (any::<u32>(), any::<u8>(), any::<[u8; ANSWER_LEN]>())
                .prop_map(|(client, attempt, message)| SetUp::Response { client, attempt, message }),
            (any::<u32>(), any::<u8>(), reasons).prop_map(|(client, attempt, reason)| SetUp::Refusal {
                client,
                attempt,
                reason
            }),
        ]
    }

    proptest! {
        #[test]
        fn packets_are_read_as_they_are_written_and_are_no_others(
            packet in packets(), asked in prop::option::of(any::<[u8; MESSAGE_LEN]>())
        ) {
            let tagger = Tagger::of_client(&ClientKey::Secret([7; 32]));
            let mut bytes = [0xff; INITIATION_LEN];
            let len = packet.write(&tagger, asked.as_ref(), &mut bytes);
            let read = SetUp::read(&bytes[..len]).unwrap();
            prop_assert_eq!(read.packet, packet);
            prop_assert!(read.is_by(&tagger, asked.as_ref()));
            prop_assert!(!read.is_by(&tagger, Some(&[7; MESSAGE_LEN])), "the answer to another message");
            for other in [ClientKey::Secret([8; 32]), ClientKey::Public([7; 32])] {
                prop_assert!(!read.is_by(&Tagger::of_client(&other), asked.as_ref()));
            }
            for shorter in 0..len {
                let is_by = SetUp::read(&bytes[..shorter]).is_some_and(|read| read.is_by(&tagger, asked.as_ref()));
                prop_assert!(!is_by);
            }
            for bit in 0..8 * (read.tagged.len() + TAG_LEN) {
                let mut forged = bytes;
                forged[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(!SetUp::read(&forged[..len]).is_some_and(|read| read.is_by(&tagger, asked.as_ref())));
            }
        }

        #[test]
        fn bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..1300)) {
            let _ = SetUp::read(&bytes);
        }
    }
}
