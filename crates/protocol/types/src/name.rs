// SPDX-License-Identifier: Apache-2.0
//! Names of hosts and processes.

use crate::MAX_NAME;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A host's or process's name: 1 to [`MAX_NAME`] bytes of `[A-Za-z0-9._-]`, held inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    bytes: [u8; MAX_NAME],
    len: u8,
}

/// Why a name was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name is empty; give it 1 to {MAX_NAME} bytes of letters, digits, '.', '_' or '-'")]
    Empty,
    #[error("the name has {len} bytes; at most {MAX_NAME} are allowed")]
    TooLong { len: usize },
    #[error("byte {byte:#04x} at position {at} is not allowed in a name; use letters, digits, '.', '_' or '-'")]
    Byte { byte: u8, at: usize },
}

impl Name {
    /// Checks `bytes` and copies them.
    pub fn new(bytes: &[u8]) -> Result<Name, NameError> {
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > MAX_NAME {
            return Err(NameError::TooLong { len: bytes.len() });
        }
        let allowed = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if let Some(at) = bytes.iter().position(|b| !allowed(b)) {
            return Err(NameError::Byte { byte: bytes[at], at });
        }
        let mut name = Name { bytes: [0; MAX_NAME], len: bytes.len() as u8 };
        name.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(name)
    }

    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl TryFrom<&str> for Name {
    type Error = NameError;
    fn try_from(text: &str) -> Result<Name, NameError> {
        Name::new(text.as_bytes())
    }
}

impl core::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Name, NameError> {
        Name::new(text.as_bytes())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_str().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let text = <&str>::deserialize(deserializer)?;
        Name::new(text.as_bytes()).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_refuses() {
        assert_eq!(Name::try_from("redis-1.a_B").unwrap().as_str(), "redis-1.a_B");
        assert_eq!(Name::new(&[b'x'; 31]).unwrap().as_bytes().len(), 31);
        assert_eq!(Name::try_from(""), Err(NameError::Empty));
        assert_eq!(Name::new(&[b'x'; 32]), Err(NameError::TooLong { len: 32 }));
        assert_eq!(Name::try_from("a b"), Err(NameError::Byte { byte: b' ', at: 1 }));
        assert!(Name::try_from("a@b").unwrap_err().to_string().contains("position 1"));
    }
}
