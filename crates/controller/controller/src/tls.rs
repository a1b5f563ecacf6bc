// SPDX-License-Identifier: Apache-2.0
//! The server's half of mutual TLS; the client's half, and the shared parts, are in
//! [`fide_controller_api::tls`].
//!
//! A client must have a certificate of an authority in the bundle, naming one identity, and not on the
//! revocation list. [`ServerTls::admit`] judges a peer again when any of that has changed, as connections
//! live longer than files. They are read again on SIGHUP and when they change.

use std::ops::Deref;
use std::sync::Arc;

use fide_controller_api::identity::Identity;
use fide_controller_api::tls::verifier::{self, Clients, Servers};
use fide_controller_api::tls::{ALPN, Error, Files, Reloading, Set, protocol, provider};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use crate::pki::Certificate;

/// The configuration of a server's connections.
#[derive(Debug)]
pub struct Serving {
    pub config: Arc<ServerConfig>,
    clients: Arc<Clients>,
    /// The server's own certificate, for `status`.
    pub own: Certificate,
}

fn serving(files: &Files, contents: &[Vec<u8>]) -> Result<Serving, Error> {
    let set = Set::parse(files, contents)?;
    let own = Certificate::parse(&set.chain[0]).map_err(|why| Error::File { path: files.certificate.clone(), why })?;
    // The own certificate, judged as an agent would, except for the address: a server that no agent accepts
    // is not started.
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
    Ok(Serving { config: Arc::new(config), clients, own })
}

/// A connection's peer, with the data to judge it again.
#[derive(Debug, Clone)]
pub struct Admitted {
    pub identity: Identity,
    pub certificate: Arc<Certificate>,
    chain: Arc<[CertificateDer<'static>]>,
    /// The set of files that it was last judged by.
    generation: u64,
}

/// Why a peer is not accepted any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    #[error("your certificate is not accepted: {why}; have it renewed")]
    Refused { why: String },
    #[error("your certificate expired; have it renewed")]
    Expired,
}

/// The controller's side.
#[derive(Debug)]
pub struct ServerTls {
    inner: Reloading<Serving>,
}

impl ServerTls {
    /// Reads the files. Errors name the file and what is wrong with it.
    pub fn load(files: Files) -> Result<ServerTls, Error> {
        Ok(ServerTls { inner: Reloading::load(files, serving)? })
    }

    /// The peer of a fresh connection; `chain` is what rustls has verified under the set in force then.
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

    /// Judges the peer of an open connection by the present files: expiry always, the rest if they have
    /// changed.
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

impl Deref for ServerTls {
    type Target = Reloading<Serving>;

    fn deref(&self) -> &Reloading<Serving> {
        &self.inner
    }
}

#[cfg(test)]
mod tests;
