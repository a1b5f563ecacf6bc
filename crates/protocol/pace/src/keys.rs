// SPDX-License-Identifier: Apache-2.0
//! Who may talk to whom.
//!
//! | the server has | the client has | who is sure of whom |
//! |---|---|---|
//! | a secret | the same secret | both |
//! | a private key | its public key | the client of the server, as in the Web |
//!
//! A key is 32 bytes, written in base64: 44 characters. One that is meant for others to read begins with `fide-pace-public:`, one
//! that is not with `fide-pace-private:` or `fide-pace-secret:`, so that they are not taken for one another.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use crate::secure;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// What a server proves itself with.
#[derive(Clone, PartialEq, Eq)]
pub enum ServerKey {
    /// Known to both ends.
    Secret([u8; KEY_LEN]),
    /// Known to the server only.
    Private([u8; KEY_LEN]),
}

/// What a client knows of its server.
#[derive(Clone, PartialEq, Eq)]
pub enum ClientKey {
    Secret([u8; KEY_LEN]),
    /// The server's public key.
    Public([u8; KEY_LEN]),
}

// Keys are in no log.
impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret(..)",
            Self::Private(_) => "Private(..)",
        })
    }
}

impl std::fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret(..)",
            Self::Public(_) => "Public(..)",
        })
    }
}

/// A text that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("a key begins with {expected}, and {KEY_LEN} bytes in base64 follow; `fide pace key` makes one")]
    Prefix { expected: &'static str },
    #[error("{0} is for servers; clients have the public key that `fide pace key --public` prints, or the secret")]
    Private(&'static str),
    #[error("{0} is for clients; servers have the private key, or the secret")]
    Public(&'static str),
    #[error("after {0} there are not {KEY_LEN} bytes in base64: 43 letters, digits, + or /, and =")]
    Bytes(&'static str),
}

const SECRET: &str = "fide-pace-secret:";
const PRIVATE: &str = "fide-pace-private:";
const PUBLIC: &str = "fide-pace-public:";

fn bytes(text: &str, prefix: &'static str) -> Option<Result<[u8; KEY_LEN], KeyError>> {
    let rest = text.strip_prefix(prefix)?;
    let bytes = STANDARD.decode(rest).ok().and_then(|bytes| bytes.try_into().ok());
    Some(bytes.ok_or(KeyError::Bytes(prefix)))
}

fn text(prefix: &str, bytes: &[u8; KEY_LEN]) -> String {
    format!("{prefix}{}", STANDARD.encode(bytes))
}

impl ServerKey {
    /// Reads a key as [`ServerKey::to_text`] writes it. White space around it does not matter.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(input: &str) -> Result<Self, KeyError> {
        let input = input.trim();
        if bytes(input, PUBLIC).is_some() {
            return Err(KeyError::Public(PUBLIC));
        }
        let secret = bytes(input, SECRET).map(|read| read.map(Self::Secret));
        let private = || bytes(input, PRIVATE).map(|read| read.map(Self::Private));
        secret.or_else(private).unwrap_or(Err(KeyError::Prefix { expected: "fide-pace-secret: or fide-pace-private:" }))
    }

    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Secret(bytes) => text(SECRET, bytes),
            Self::Private(bytes) => text(PRIVATE, bytes),
        }
    }

    /// What its clients are given.
    #[must_use]
    pub fn for_clients(&self) -> ClientKey {
        match self {
            Self::Secret(bytes) => ClientKey::Secret(*bytes),
            Self::Private(bytes) => ClientKey::Public(secure::public_key(bytes)),
        }
    }
}

impl ClientKey {
    /// Reads a key as [`ClientKey::to_text`] writes it. White space around it does not matter.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(input: &str) -> Result<Self, KeyError> {
        let input = input.trim();
        if bytes(input, PRIVATE).is_some() {
            return Err(KeyError::Private(PRIVATE));
        }
        let secret = bytes(input, SECRET).map(|read| read.map(Self::Secret));
        let public = || bytes(input, PUBLIC).map(|read| read.map(Self::Public));
        secret.or_else(public).unwrap_or(Err(KeyError::Prefix { expected: "fide-pace-secret: or fide-pace-public:" }))
    }

    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Secret(bytes) => text(SECRET, bytes),
            Self::Public(bytes) => text(PUBLIC, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for key in [ServerKey::Secret([7; 32]), ServerKey::Private([9; 32])] {
            assert_eq!(ServerKey::parse(&format!(" {}\n", key.to_text())), Ok(key.clone()));
            let of_clients = key.for_clients();
            assert_eq!(ClientKey::parse(&of_clients.to_text()), Ok(of_clients));
            assert!(!format!("{key:?}").contains('7') && !format!("{key:?}").contains('9'));
        }
    }

    #[test]
    fn wrong_texts_are_named() {
        let private = ServerKey::Private([9; 32]);
        assert_eq!(ClientKey::parse(&private.to_text()), Err(KeyError::Private(PRIVATE)));
        assert_eq!(ServerKey::parse(&private.for_clients().to_text()), Err(KeyError::Public(PUBLIC)));
        assert!(matches!(ServerKey::parse("secret"), Err(KeyError::Prefix { .. })));
        assert_eq!(ServerKey::parse("fide-pace-secret:AAAA"), Err(KeyError::Bytes(SECRET)));
        assert_eq!(ClientKey::parse("fide-pace-secret:&"), Err(KeyError::Bytes(SECRET)));
    }
}
