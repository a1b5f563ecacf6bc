// SPDX-License-Identifier: Apache-2.0
//! A peer's identity: a role and a name, as in its certificate.
//!
//! In a certificate it is one subject alternative name of the kind URI, `fide:host.NAME`. The common name
//! repeats it for people and is not read; DNS names are addresses, and an address must not be able to make a
//! host an operator.

use std::fmt;
use std::str::FromStr;

use fide_types::{Name, NameError};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use webpki::EndEntityCert;

/// The scheme of the URI that holds an identity.
pub const URI_SCHEME: &str = "fide:";

/// Decides what a peer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// An agent, for itself and for the programs on its host.
    Host,
    /// A person or a tool that operates the cluster.
    Operator,
    /// A controller.
    Controller,
}

impl Role {
    /// As it is written in an identity.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Host => "host",
            Role::Operator => "operator",
            Role::Controller => "controller",
        }
    }
}

/// A role and a name; written `host.alpha`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub role: Role,
    pub name: Name,
}

/// Why a text or a certificate has no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("`{text}` is no identity; write host.NAME, operator.NAME or controller.NAME")]
    Form { text: String },
    #[error("`{text}` is no identity: {why}")]
    Name { text: String, why: NameError },
    #[error("the certificate cannot be read ({why}); make one with `fide controller issue`")]
    Unreadable { why: String },
    #[error(
        "the certificate names no identity; it needs one URI `fide:host.NAME`: make it with `fide controller issue`"
    )]
    Absent,
    #[error("the certificate names {count} identities; it must name exactly one")]
    Several { count: usize },
}

impl Identity {
    pub fn new(role: Role, name: Name) -> Identity {
        Identity { role, name }
    }

    /// The identity of host `name`. Errors: `name` breaks the rules of [`Name`].
    pub fn host(name: &str) -> Result<Identity, IdentityError> {
        format!("host.{name}").parse()
    }

    /// The URI that stands for it in a certificate.
    pub fn uri(&self) -> String {
        format!("{URI_SCHEME}{self}")
    }

    /// The identity in the certificate `der`. The connection's verifier decides whether to believe it.
    pub fn of_certificate(der: &[u8]) -> Result<Identity, IdentityError> {
        let der = CertificateDer::from(der);
        let certificate =
            EndEntityCert::try_from(&der).map_err(|why| IdentityError::Unreadable { why: why.to_string() })?;
        let uris: Vec<&str> = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(URI_SCHEME)).collect();
        match uris[..] {
            [] => Err(IdentityError::Absent),
            [one] => one.parse(),
            _ => Err(IdentityError::Several { count: uris.len() }),
        }
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Identity, IdentityError> {
        // The peer's text is repeated in the error, but only up to a bound.
        let shown = || text.chars().take(64).collect::<String>();
        let form = || IdentityError::Form { text: shown() };
        let (role, name) = text.split_once('.').ok_or_else(form)?;
        let role = match role {
            "host" => Role::Host,
            "operator" => Role::Operator,
            "controller" => Role::Controller,
            _ => return Err(form()),
        };
        let name = name.parse().map_err(|why| IdentityError::Name { text: shown(), why })?;
        Ok(Identity { role, name })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.role.as_str(), self.name)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Identity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Identity, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
