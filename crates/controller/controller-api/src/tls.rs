// SPDX-License-Identifier: Apache-2.0
//! Mutual TLS whose certificates can be replaced while it runs.
//!
//! [`ClientTls`] is for an agent or an operator: the server must be a controller, at the address it was
//! called by, and not on the revocation list. A program that keeps a connection compares
//! [`Reloading::generation`] before each request, and connects anew under the present files.
//!
//! The files are read again on request ([`Reloading::reload`]) and when they change ([`Reloading::watch`]).
//! A set that is half-written, that does not fit together or that would lock out its owner is not taken:
//! the old one stays in force and [`Reloading::trouble`] has the reason. New connections use the new set,
//! present ones go on.
//!
//! TLS 1.3 only, because both ends are Fide; no session is resumed, so that every connection shows its
//! certificate.
//!
//! The server's half is the controller's; it is made of the same parts: [`Set`], [`Reloading`] and the
//! [`verifier`]s.

mod reload;
pub mod verifier;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore};

use crate::identity::{Identity, Role};
use crate::revoked::{self, Serial};
pub use reload::Reloading;
use verifier::{Clients, Servers};

/// The accepted authorities.
pub const CA_FILE: &str = "ca.pem";
/// The revocation list.
pub const REVOKED_FILE: &str = "revoked";
/// In a member's directory.
pub const CERTIFICATE_FILE: &str = "cert.pem";
pub const KEY_FILE: &str = "key.pem";

/// How often files are checked.
pub const WATCH_PERIOD: Duration = Duration::from_secs(2);
/// Bytes of one file.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Authorities in a bundle.
pub const AUTHORITIES_MAX: usize = 16;
/// The only protocol spoken.
pub const ALPN: &[u8] = b"http/1.1";

/// Why a set of files was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{}: {why}", path.display())]
    Read { path: PathBuf, kind: std::io::ErrorKind, why: String },
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("{} may be read by everybody; `chmod 600` it", path.display())]
    OpenKey { path: PathBuf },
    #[error("{} and {} do not fit: {why}; they must be of the same certificate", certificate.display(), key.display())]
    Mismatch { certificate: PathBuf, key: PathBuf, why: String },
    #[error("{}: no authority in {} issued it for this use ({why}); copy the whole directory again", certificate.display(), authorities.display())]
    NotIssued { certificate: PathBuf, authorities: PathBuf, why: String },
    #[error("the files changed while they were read; they are read again")]
    Changing,
}

/// The files of one member, as `fide controller issue` lays them out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// One bundle of all accepted authorities.
    pub authorities: PathBuf,
    /// The certificates that are not accepted any more.
    pub revoked: Revoked,
}

/// Where the revocation list is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// It must be there.
    List(PathBuf),
    /// The list in a member's directory. Directories from an older version have none: nothing is revoked
    /// then. Once there was a list it must stay.
    IfThere(PathBuf),
}

impl Revoked {
    /// The list, whether it is there or not.
    #[must_use]
    pub fn path(&self) -> &PathBuf {
        match self {
            Revoked::List(path) | Revoked::IfThere(path) => path,
        }
    }
}

impl Files {
    /// The files in a member's directory.
    #[must_use]
    pub fn of_member(dir: &Path) -> Files {
        Files {
            certificate: dir.join(CERTIFICATE_FILE),
            key: dir.join(KEY_FILE),
            authorities: dir.join(CA_FILE),
            revoked: Revoked::IfThere(dir.join(REVOKED_FILE)),
        }
    }

    /// The same with another list, if one is named.
    #[must_use]
    pub fn with_list(mut self, list: Option<PathBuf>) -> Files {
        if let Some(list) = list {
            self.revoked = Revoked::List(list);
        }
        self
    }

    /// All files, in the order that [`Set::parse`] expects.
    #[must_use]
    pub fn list(&self) -> Vec<PathBuf> {
        [&self.certificate, &self.key, &self.authorities, self.revoked.path()].into_iter().cloned().collect()
    }

    /// The file that may not be there.
    pub(crate) fn optional(&self) -> Option<PathBuf> {
        match &self.revoked {
            Revoked::List(_) => None,
            Revoked::IfThere(path) => Some(path.clone()),
        }
    }
}

/// A set of files, read and found to fit together.
#[derive(Debug)]
pub struct Set {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub roots: Arc<RootCertStore>,
    pub revoked: BTreeSet<Serial>,
}

impl Set {
    /// Parses the files' content, in the order of [`Files::list`].
    ///
    /// # Errors
    /// The file and what is wrong with it.
    pub fn parse(files: &Files, contents: &[Vec<u8>]) -> Result<Set, Error> {
        let refused = |path: &Path, why: String| Error::File { path: path.to_owned(), why };
        let certificates = |path: &Path, pem: &[u8]| -> Result<Vec<CertificateDer<'static>>, Error> {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            match all.map_err(|e| refused(path, format!("is no file of certificates in PEM ({e})")))? {
                all if all.is_empty() => Err(refused(path, "holds no certificate".into())),
                all => Ok(all),
            }
        };
        let chain = certificates(&files.certificate, &contents[0])?;
        let key = PrivateKeyDer::from_pem_slice(&contents[1])
            .map_err(|e| refused(&files.key, format!("is no private key in PEM ({e})")))?;
        let authorities = certificates(&files.authorities, &contents[2])?;
        if authorities.len() > AUTHORITIES_MAX {
            return Err(refused(&files.authorities, format!("holds more than {AUTHORITIES_MAX} authorities")));
        }
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|e| refused(&files.authorities, format!("holds no authority ({e})")))?;
        }
        let list = files.revoked.path();
        let text = std::str::from_utf8(&contents[3]).map_err(|_| refused(list, "is no text".into()))?;
        let revoked = revoked::parse(text).map_err(|e| refused(list, e.to_string()))?;
        Identity::of_certificate(&chain[0]).map_err(|e| refused(&files.certificate, e.to_string()))?;
        Ok(Set { chain, key, roots: Arc::new(roots), revoked })
    }

    /// The error if no authority issued the certificate for its use.
    pub fn not_issued(files: &Files, why: impl ToString) -> Error {
        Error::NotIssued {
            certificate: files.certificate.clone(),
            authorities: files.authorities.clone(),
            why: why.to_string(),
        }
    }

    /// The error if the key belongs to another certificate.
    pub fn mismatch(files: &Files, why: rustls::Error) -> Error {
        Error::Mismatch { certificate: files.certificate.clone(), key: files.key.clone(), why: why.to_string() }
    }
}

/// The cryptography that both ends use.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The error if rustls does not support the protocol.
#[must_use]
pub fn protocol(e: rustls::Error) -> Error {
    Error::File { path: PathBuf::from("TLS"), why: e.to_string() }
}

/// The configuration of a client's connections.
#[derive(Debug)]
pub struct Calling {
    pub config: Arc<ClientConfig>,
}

/// The connection settings that [`ClientTls`] builds from its files.
///
/// # Errors
/// [`Error`].
pub fn calling(files: &Files, contents: &[Vec<u8>]) -> Result<Calling, Error> {
    let set = Set::parse(files, contents)?;
    let own = Clients::new(set.roots.clone(), Default::default(), provider()).map_err(|e| Set::not_issued(files, e))?;
    own.verify_client_cert(&set.chain[0], &set.chain[1..], UnixTime::now()).map_err(|e| Set::not_issued(files, e))?;
    let servers = Servers::new(set.roots, set.revoked, provider()).map_err(|e| Set::not_issued(files, e))?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(protocol)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(servers))
        .with_client_auth_cert(set.chain, set.key)
        .map_err(|why| Set::mismatch(files, why))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Calling { config: Arc::new(config) })
}

/// The client's side.
#[derive(Debug)]
pub struct ClientTls {
    inner: Reloading<Calling>,
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The file and what is wrong with it.
    pub fn load(files: Files) -> Result<ClientTls, Error> {
        Ok(ClientTls { inner: Reloading::load(files, calling)? })
    }
}

impl Deref for ClientTls {
    type Target = Reloading<Calling>;

    fn deref(&self) -> &Reloading<Calling> {
        &self.inner
    }
}

/// The only role a server may have.
const SERVER_ROLE: Role = Role::Controller;
