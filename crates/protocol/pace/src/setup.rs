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
//! key of its own, so it remembers nothing. Until one comes back a set-up costs a server no more than a hash, and it
//! answers 1,200 bytes with 30.
//!
//! | packet | bytes |
//! |---|---|
//! | Initiation | kind 1, version 1, client's number 4, attempt 1, cookie 24, message [`MESSAGE_LEN`], zeros up to [`INITIATION_LEN`] |
//! | Cookie | kind 1, client's number 4, attempt 1, cookie 24 |
//! | Response | kind 1, client's number 4, attempt 1, server's number 4, message [`MESSAGE_LEN`] |
//! | Refusal | kind 1, client's number 4, attempt 1, reason 1 |
//!
//! A Refusal is not sealed, and anybody who sees the set-up can cause one. So a client asks again, and believes
//! the third.

use std::net::SocketAddr;

use crate::{
    packet::{HEADER_LEN, Kind, TAG_LEN},
    secure::MESSAGE_LEN,
};

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Bytes of an Initiation: no fewer than any answer, and as many as every path takes.
pub const INITIATION_LEN: usize = 1200;
/// Bytes of a cookie: when it was made, and its tag.
pub const COOKIE_LEN: usize = 24;
/// Bytes of the longest of a server's answers.
pub const ANSWER_MAX: usize = 10 + MESSAGE_LEN;
/// A cookie is good for so long.
pub const COOKIE_LIFE_US: u64 = 10_000_000;

/// Proof that its holder gets packets at its address.
pub type Cookie = [u8; COOKIE_LEN];

/// Why a server does not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Refused {
    #[error(
        "the other end speaks another version of the protocol than {VERSION}: run the same release of Fide at both ends"
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
    /// `message`: none from a client of another version.
    Initiation {
        client: u32,
        attempt: u8,
        cookie: Cookie,
        message: Option<[u8; MESSAGE_LEN]>,
    },
    Cookie {
        client: u32,
        attempt: u8,
        cookie: Cookie,
    },
    Response {
        client: u32,
        attempt: u8,
        server: u32,
        message: [u8; MESSAGE_LEN],
    },
    Refusal {
        client: u32,
        attempt: u8,
        reason: Refused,
    },
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
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let kind = Kind::of(datagram)?;
        let mut reader = Reader(datagram.get(1..)?);
        Some(match kind {
            Kind::Initiation => {
                if datagram.len() < INITIATION_LEN {
                    return None;
                }
                let version = reader.u8()?;
                let (client, attempt, cookie) = (reader.u32()?, reader.u8()?, reader.take()?);
                let message = reader.take()?;
                Self::Initiation { client, attempt, cookie, message: (version == VERSION).then_some(message) }
            }
            Kind::Cookie => Self::Cookie { client: reader.u32()?, attempt: reader.u8()?, cookie: reader.take()? },
            Kind::Response => {
                let (client, attempt, server) = (reader.u32()?, reader.u8()?, reader.u32()?);
                Self::Response { client, attempt, server, message: reader.take()? }
            }
            Kind::Refusal => {
                Self::Refusal { client: reader.u32()?, attempt: reader.u8()?, reason: Refused::of(reader.u8()?)? }
            }
            Kind::Sealed => return None,
        })
    }

    /// Writes it; the number of bytes.
    ///
    /// # Panics
    /// If there is no room for [`INITIATION_LEN`] bytes.
    pub fn write(&self, into: &mut [u8]) -> usize {
        fn put(into: &mut [u8], at: &mut usize, bytes: &[u8]) {
            into[*at..*at + bytes.len()].copy_from_slice(bytes);
            *at += bytes.len();
        }
        let at = &mut 0;
        match self {
            Self::Initiation { client, attempt, cookie, message } => {
                let version = if message.is_some() { VERSION } else { 0 };
                into[..INITIATION_LEN].fill(0);
                put(into, at, &[Kind::Initiation as u8, version]);
                put(into, at, &client.to_be_bytes());
                put(into, at, &[*attempt]);
                put(into, at, cookie);
                put(into, at, &message.unwrap_or([0; MESSAGE_LEN]));
                *at = INITIATION_LEN;
            }
            Self::Cookie { client, attempt, cookie } => {
                put(into, at, &[Kind::Cookie as u8]);
                put(into, at, &client.to_be_bytes());
                put(into, at, &[*attempt]);
                put(into, at, cookie);
            }
            Self::Response { client, attempt, server, message } => {
                put(into, at, &[Kind::Response as u8]);
                put(into, at, &client.to_be_bytes());
                put(into, at, &[*attempt]);
                put(into, at, &server.to_be_bytes());
                put(into, at, message);
            }
            Self::Refusal { client, attempt, reason } => {
                put(into, at, &[Kind::Refusal as u8]);
                put(into, at, &client.to_be_bytes());
                put(into, at, &[*attempt, *reason as u8]);
            }
        }
        *at
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
            (any::<u32>(), any::<u8>(), cookie(), message()).prop_map(|(client, attempt, cookie, message)| {
                SetUp::Initiation { client, attempt, cookie, message: Some(message) }
            }),
            (any::<u32>(), any::<u8>(), cookie()).prop_map(|(client, attempt, cookie)| SetUp::Cookie {
                client,
                attempt,
                cookie
            }),
            (any::<u32>(), any::<u8>(), any::<u32>(), message()).prop_map(|(client, attempt, server, message)| {
                SetUp::Response { client, attempt, server, message }
            }),
            (any::<u32>(), any::<u8>(), reasons).prop_map(|(client, attempt, reason)| SetUp::Refusal {
                client,
                attempt,
                reason
            }),
        ]
    }

    proptest! {
        #[test]
        fn packets_are_read_as_they_are_written(packet in packets()) {
            let mut bytes = [0xff; INITIATION_LEN];
            let len = packet.write(&mut bytes);
            prop_assert_eq!(SetUp::read(&bytes[..len]), Some(packet));
            for shorter in 0..len {
                prop_assert_eq!(SetUp::read(&bytes[..shorter]), None);
            }
        }

        #[test]
        fn bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..1300)) {
            let _ = SetUp::read(&bytes);
        }
    }
}
