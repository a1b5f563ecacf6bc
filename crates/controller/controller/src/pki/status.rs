// SPDX-License-Identifier: Apache-2.0
//! Lists the certificates, and when they expire.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fide_controller_api::identity::Identity;
use fide_controller_api::revoked::{self, REVOKED_BYTES_MAX, Serial};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{CA_FILE, CERTIFICATE_FILE, Error, ISSUED_DIR, REVOKED_FILE, Result, files};

/// Bytes of a file of certificates that are read.
pub(super) const PEM_BYTES_MAX: u64 = 1024 * 1024;

/// The content of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// `None` for an authority.
    pub identity: Option<Identity>,
    /// IP addresses and DNS names.
    pub addresses: Vec<String>,
    pub serial: Serial,
    /// Seconds since 1970.
    pub not_before_s: i64,
    pub not_after_s: i64,
    /// The issuer's name.
    pub issuer: String,
    pub subject: String,
}

impl Certificate {
    /// Reads a certificate in DER. Whether it may be believed is not checked.
    pub fn parse(der: &[u8]) -> std::result::Result<Certificate, String> {
        let (_, x509) = X509Certificate::from_der(der).map_err(|e| format!("no certificate ({e})"))?;
        let names = x509.subject_alternative_name().map_err(|e| format!("no certificate ({e})"))?;
        let address = |name: &GeneralName| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(|ip| IpAddr::from(ip).to_string()),
                _ => <[u8; 16]>::try_from(*bytes).ok().map(|ip| IpAddr::from(ip).to_string()),
            },
            _ => None,
        };
        Ok(Certificate {
            identity: Identity::of_certificate(der).ok(),
            addresses: names.iter().flat_map(|names| &names.value.general_names).filter_map(address).collect(),
            serial: Serial::new(x509.raw_serial()),
            not_before_s: x509.validity().not_before.timestamp(),
            not_after_s: x509.validity().not_after.timestamp(),
            issuer: x509.issuer().to_string(),
            subject: x509.subject().to_string(),
        })
    }

    /// The first certificate of a PEM file.
    pub(super) fn read(path: &Path, hint: &'static str) -> Result<Certificate> {
        let text = files::read(path, PEM_BYTES_MAX, hint)?;
        let der = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|e| Error::content(path, e))?;
        Certificate::parse(&der).map_err(|why| Error::content(path, why))
    }
}

/// One line of [`status`].
#[derive(Debug)]
pub struct Entry {
    pub path: PathBuf,
    pub revoked: bool,
    /// An authority, or issued by the present one. Other certificates need [`super::renew`] before
    /// [`super::retire_cas`].
    pub current: bool,
    /// Or why it cannot be read.
    pub certificate: Result<Certificate>,
}

/// The serial numbers on the revocation list of `dir`; none if there is no list.
pub(super) fn revocations(dir: &Path) -> Result<BTreeSet<Serial>> {
    let path = dir.join(REVOKED_FILE);
    match files::read(&path, REVOKED_BYTES_MAX, "") {
        Ok(text) => revoked::parse(&text).map_err(|e| Error::content(&path, e)),
        Err(Error::Missing { .. }) => Ok(BTreeSet::new()),
        Err(other) => Err(other),
    }
}

/// The authorities of `dir` in DER, the present one first.
pub(super) fn authorities(dir: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let path = dir.join(CA_FILE);
    let text = files::read(&path, PEM_BYTES_MAX, "make an authority with `fide controller init` first")?;
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match all.map_err(|e| Error::content(&path, e))? {
        all if all.is_empty() => Err(Error::content(&path, "holds no certificate; restore it from a backup")),
        all => Ok(all),
    }
}

/// All authorities and certificates of `dir`. What cannot be read is listed with the reason.
pub fn status(dir: &Path) -> Result<Vec<Entry>> {
    let revoked = revocations(dir)?;
    let mut entries: Vec<Entry> = authorities(dir)?
        .iter()
        .map(|der| Entry {
            path: dir.join(CA_FILE),
            revoked: false,
            current: true,
            certificate: Certificate::parse(der).map_err(|why| Error::content(&dir.join(CA_FILE), why)),
        })
        .collect();
    let present = entries.first().and_then(|e| e.certificate.as_ref().ok()).map(|c| c.subject.clone());
    let issued = dir.join(ISSUED_DIR);
    let mut members = std::fs::read_dir(&issued)
        .and_then(|dir| dir.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>())
        .map_err(Error::io("reading", &issued))?;
    members.sort();
    entries.extend(members.into_iter().map(|member| {
        let path = member.join(CERTIFICATE_FILE);
        let certificate = Certificate::read(&path, "issue it again");
        let is = |f: &dyn Fn(&Certificate) -> bool| certificate.as_ref().is_ok_and(f);
        Entry {
            revoked: is(&|c| revoked.contains(&c.serial)),
            current: is(&|c| Some(&c.issuer) == present.as_ref()),
            path,
            certificate,
        }
    }));
    Ok(entries)
}
