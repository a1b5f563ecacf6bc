// SPDX-License-Identifier: Apache-2.0
//! Mutual TLS whose certificates can be replaced while it runs.
//!
//! * [`ServerTls`] for a controller: a client must have a certificate of an authority in the bundle, naming one identity,
//!   and not on the revocation list. [`ServerTls::admit`] judges a peer again when any of that has changed, as connections
//!   live longer than files.
//! * [`ClientTls`] for an agent or an operator: the server must be a controller, at the address it was called by, and not on
//!   the revocation list. Who keeps a connection compares [`ClientTls::generation`] before each request, and connects anew
//!   under the files of today.
//!
//! Both read their files again when told ([`ServerTls::reload`], for SIGHUP) and when they change ([`ServerTls::watch`]).
//! A set that is half-written, that does not fit together or that would lock out its owner is not taken: the old one
//! stays in force and [`ServerTls::trouble`] says why. New connections use the new set, present ones go on.
//!
//! TLS 1.3 only, as both ends are Fide; no session is resumed, so that every connection shows its certificate.

mod reload;
mod verifier;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::identity::{Identity, Role};
use crate::pki::{self, Certificate};
use reload::Reloading;
use verifier::{Clients, Servers};

/// How often files are looked at.
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

/// The files of one member, as [`pki::issue`] lays them out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// One bundle of all authorities believed in.
    pub authorities: PathBuf,
    /// Whose certificates are not believed any more.
    pub revoked: Revoked,
}

/// Where the revocation list is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Revoked {
    /// It must be there.
    List(PathBuf),
    /// The list in a member's directory. Those made by an older version have none: nothing is revoked then. Once there was
    /// one it must stay.
    IfThere(PathBuf),
}

impl Revoked {
    fn path(&self) -> &PathBuf {
        match self {
            Revoked::List(path) | Revoked::IfThere(path) => path,
        }
    }
}

impl Files {
    /// Those in a member's directory.
    pub fn of_member(dir: &Path) -> Files {
        Files {
            certificate: dir.join(pki::CERTIFICATE_FILE),
            key: dir.join(pki::KEY_FILE),
            authorities: dir.join(pki::CA_FILE),
            revoked: Revoked::IfThere(dir.join(pki::REVOKED_FILE)),
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

    fn list(&self) -> Vec<PathBuf> {
        [&self.certificate, &self.key, &self.authorities, self.revoked.path()].into_iter().cloned().collect()
    }

    /// The file that may not be there.
    fn optional(&self) -> Option<PathBuf> {
        match &self.revoked {
            Revoked::List(_) => None,
            Revoked::IfThere(path) => Some(path.clone()),
        }
    }
}

/// A set of files, read and found to fit together.
struct Set {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Arc<RootCertStore>,
    revoked: std::collections::BTreeSet<pki::revoked::Serial>,
    own: Certificate,
}

impl Set {
    fn parse(files: &Files, contents: &[Vec<u8>]) -> Result<Set, Error> {
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
        let revoked = pki::revoked::parse(text).map_err(|e| refused(list, e.to_string()))?;
        let own = Certificate::parse(&chain[0]).map_err(|why| refused(&files.certificate, why))?;
        Identity::of_certificate(&chain[0]).map_err(|e| refused(&files.certificate, e.to_string()))?;
        Ok(Set { chain, key, roots: Arc::new(roots), revoked, own })
    }

    fn not_issued(files: &Files, why: impl ToString) -> Error {
        Error::NotIssued {
            certificate: files.certificate.clone(),
            authorities: files.authorities.clone(),
            why: why.to_string(),
        }
    }

    fn mismatch(files: &Files, why: rustls::Error) -> Error {
        Error::Mismatch { certificate: files.certificate.clone(), key: files.key.clone(), why: why.to_string() }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn protocol(e: rustls::Error) -> Error {
    Error::File { path: PathBuf::from("TLS"), why: e.to_string() }
}

/// What a server's connections are made with.
#[derive(Debug)]
pub struct Serving {
    pub config: Arc<ServerConfig>,
    clients: Arc<Clients>,
    /// The server's own certificate, for `status`.
    pub own: Certificate,
}

/// What a client's connections are made with.
#[derive(Debug)]
pub struct Calling {
    pub config: Arc<ClientConfig>,
    pub own: Certificate,
}

fn serving(files: &Files, contents: &[Vec<u8>]) -> Result<Serving, Error> {
    let set = Set::parse(files, contents)?;
    // Its own certificate, judged as an agent would but for the address: a server that nobody believes is not started.
    let end_entity =
        Servers::new(set.roots.clone(), Default::default(), provider()).map_err(|e| Set::not_issued(files, e))?;
    end_entity.check_issued(&set.chain).map_err(|e| Set::not_issued(files, e))?;
    let clients = Arc::new(Clients::new(set.roots, set.revoked, provider()).map_err(|e| Set::not_issued(files, e))?);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(protocol)?
        .with_client_cert_verifier(clients.clone())
        .with_single_cert(set.chain, set.key)
        .map_err(|why| Set::mismatch(files, why))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Serving { config: Arc::new(config), clients, own: set.own })
}

fn calling(files: &Files, contents: &[Vec<u8>]) -> Result<Calling, Error> {
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
    Ok(Calling { config: Arc::new(config), own: set.own })
}

/// Who a connection's peer is, with what is needed to judge it again.
#[derive(Debug, Clone)]
pub struct Admitted {
    pub identity: Identity,
    pub certificate: Arc<Certificate>,
    chain: Arc<[CertificateDer<'static>]>,
    /// The set of files it was last judged by.
    generation: u64,
}

/// Why a peer is not let in any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    #[error("your certificate is not accepted: {why}; have it renewed")]
    Refused { why: String },
    #[error("your certificate expired; have it renewed")]
    Expired,
}

macro_rules! reloading {
    ($name:ident, $set:ty, $build:path) => {
        impl $name {
            /// Reads the files. Errors name the file and what is wrong with it.
            pub fn load(files: Files) -> Result<$name, Error> {
                let (list, optional) = (files.list(), files.optional());
                let key = files.key.clone();
                let build = move |contents: &[Vec<u8>]| $build(&files, contents);
                Ok($name { inner: Reloading::load(list, key, optional, Box::new(build))? })
            }

            /// What new connections are to be made with.
            pub fn current(&self) -> Arc<$set> {
                self.inner.current()
            }

            /// Grows with each set that is put in force.
            pub fn generation(&self) -> u64 {
                self.inner.generation()
            }

            /// Reads the files again, now. On an error what was in force stays in force.
            pub fn reload(&self) -> Result<(), Error> {
                self.inner.reload()
            }

            /// Looks whether the files have changed, and reads them if they have and rest. To be called every
            /// [`WATCH_PERIOD`]; [`Self::watch`] does. Returns whether a new set is in force.
            pub fn look(&self) -> bool {
                self.inner.look()
            }

            /// Calls [`Self::look`] for ever.
            pub async fn watch(&self) {
                loop {
                    tokio::time::sleep(WATCH_PERIOD).await;
                    self.look();
                }
            }

            /// Why the newest files are not in force, if they are not.
            pub fn trouble(&self) -> Option<Error> {
                self.inner.trouble()
            }
        }
    };
}

/// The controller's side.
#[derive(Debug)]
pub struct ServerTls {
    inner: Reloading<Serving>,
}

/// The agent's side.
#[derive(Debug)]
pub struct ClientTls {
    inner: Reloading<Calling>,
}

reloading!(ServerTls, Serving, serving);
reloading!(ClientTls, Calling, calling);

impl ServerTls {
    /// Who the peer of a fresh connection is; `chain` is what rustls has verified under the set then in force.
    pub fn greet(&self, chain: &[CertificateDer<'_>]) -> Result<Admitted, NotAdmitted> {
        let refused = |why: String| NotAdmitted::Refused { why };
        let first = chain.first().ok_or_else(|| refused("there is none".into()))?;
        let mut peer = Admitted {
            identity: Identity::of_certificate(first).map_err(|e| refused(e.to_string()))?,
            certificate: Arc::new(Certificate::parse(first).map_err(refused)?),
            chain: chain.iter().map(|der| der.clone().into_owned()).collect(),
            // Judged at once: the set may have changed since the handshake began.
            generation: 0,
        };
        self.admit(&mut peer)?;
        Ok(peer)
    }

    /// Judges the peer of an open connection by the files of today: expiry always, the rest if they have changed.
    pub fn admit(&self, peer: &mut Admitted) -> Result<(), NotAdmitted> {
        let now = UnixTime::now();
        if i64::try_from(now.as_secs()).is_ok_and(|now_s| now_s > peer.certificate.not_after_s) {
            return Err(NotAdmitted::Expired);
        }
        let generation = self.inner.generation();
        if generation != peer.generation {
            let current = self.current();
            current
                .clients
                .verify_client_cert(&peer.chain[0], &peer.chain[1..], now)
                .map_err(|e| NotAdmitted::Refused { why: verifier::explain(&e) })?;
            peer.generation = generation;
        }
        Ok(())
    }
}

/// The only role a server may have.
const SERVER_ROLE: Role = Role::Controller;

#[cfg(test)]
mod tests;
