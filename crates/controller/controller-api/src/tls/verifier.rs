// SPDX-License-Identifier: Apache-2.0
//! Which peers are accepted: webpki's judgement, and our own about identity, role and revocation.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use webpki::EndEntityCert;

use super::SERVER_ROLE;
use crate::identity::{Identity, Role};
use crate::revoked::Serial;

type Revoked = BTreeSet<Serial>;

fn other(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
}

/// The error in words for the peer.
#[must_use]
pub fn explain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Revoked) => "it is revoked".into(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => "its authority is believed no more".into(),
        Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => why.to_string(),
        other => other.to_string(),
    }
}

/// It has an identity, and is not revoked.
fn judge(der: &CertificateDer<'_>, revoked: &Revoked) -> Result<Role, Error> {
    let identity = Identity::of_certificate(der).map_err(other)?;
    let certificate =
        EndEntityCert::try_from(der).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    match revoked.contains(&Serial::new(certificate.serial())) {
        true => Err(Error::InvalidCertificate(CertificateError::Revoked)),
        false => Ok(identity.role),
    }
}

#[derive(Debug)]
struct NotAServer;

impl std::error::Error for NotAServer {}

impl std::fmt::Display for NotAServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it is not a controller's")
    }
}

/// For servers: which clients may connect.
#[derive(Debug)]
pub struct Clients {
    inner: Arc<dyn ClientCertVerifier>,
    revoked: Revoked,
}

impl Clients {
    /// # Errors
    /// No authorities.
    pub fn new(
        roots: Arc<RootCertStore>,
        revoked: Revoked,
        provider: Arc<CryptoProvider>,
    ) -> Result<Clients, impl std::error::Error> {
        WebPkiClientVerifier::builder_with_provider(roots, provider).build().map(|inner| Clients { inner, revoked })
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        judge(end_entity, &self.revoked)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// For clients: which servers are controllers.
#[derive(Debug)]
pub struct Servers {
    inner: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    schemes: rustls::crypto::WebPkiSupportedAlgorithms,
    revoked: Revoked,
}

impl Servers {
    /// # Errors
    /// No authorities.
    pub fn new(
        roots: Arc<RootCertStore>,
        revoked: Revoked,
        provider: Arc<CryptoProvider>,
    ) -> Result<Servers, impl std::error::Error> {
        let schemes = provider.signature_verification_algorithms;
        WebPkiServerVerifier::builder_with_provider(roots.clone(), provider).build().map(|inner| Servers {
            inner,
            roots,
            schemes,
            revoked,
        })
    }

    /// Whether an authority issued `chain` for a controller; the address is not checked.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check_issued(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let end_entity = rustls::server::ParsedCertificate::try_from(&chain[0])?;
        let (rest, now) = (&chain[1..], UnixTime::now());
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &end_entity,
            &self.roots,
            rest,
            now,
            self.schemes.all,
        )?;
        self.judge(&chain[0])
    }

    fn judge(&self, end_entity: &CertificateDer<'_>) -> Result<(), Error> {
        match judge(end_entity, &self.revoked)? {
            SERVER_ROLE => Ok(()),
            _ => Err(other(NotAServer)),
        }
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        self.judge(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
