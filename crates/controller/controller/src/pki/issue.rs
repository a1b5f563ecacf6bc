// SPDX-License-Identifier: Apache-2.0
//! Issues certificates.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fide_controller_api::identity::{Identity, Role};
use fide_controller_api::revoked::{REVOKED_BYTES_MAX, Serial};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::{Duration, OffsetDateTime};

use super::files::{self, Access};
use super::status::{PEM_BYTES_MAX, authorities, revocations};
use super::{
    ADDRESSES_MAX, CA_FILE, CA_KEY_FILE, CERTIFICATE_DAYS, CERTIFICATE_FILE, CLOCK_SKEW_S, Certificate, DAYS_MAX,
    Error, ISSUED_DIR, KEY_FILE, REVOKED_FILE, Result,
};

/// The content of a certificate.
#[derive(Debug, Clone)]
pub struct Request {
    pub identity: Identity,
    /// IP addresses and DNS names. A controller needs the ones by which agents reach it.
    pub addresses: Vec<String>,
    pub days: u32,
    /// Replace existing files.
    pub overwrite: bool,
}

impl Request {
    /// [`CERTIFICATE_DAYS`] for `identity`, without addresses, replacing nothing.
    pub fn new(identity: Identity) -> Request {
        Request { identity, addresses: Vec::new(), days: CERTIFICATE_DAYS, overwrite: false }
    }

    fn check(&self) -> Result<Vec<SanType>> {
        check_days(self.days)?;
        if self.addresses.len() > ADDRESSES_MAX {
            return Err(Error::TooManyAddresses { count: self.addresses.len() });
        }
        if self.identity.role == Role::Controller && self.addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        let mut names = vec![SanType::URI(self.identity.uri().try_into()?)];
        for address in &self.addresses {
            let refused = || Error::Address { address: address.clone() };
            names.push(match address.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => {
                    // rustls knows what a DNS name is.
                    rustls::pki_types::DnsName::try_from(address.as_str()).map_err(|_| refused())?;
                    SanType::DnsName(address.clone().try_into().map_err(|_| refused())?)
                }
            });
        }
        Ok(names)
    }
}

/// The result of issuing a certificate.
#[derive(Debug)]
pub struct Issued {
    /// The member's directory, to be copied to it.
    pub dir: PathBuf,
    pub certificate: Certificate,
}

fn check_days(days: u32) -> Result<()> {
    if (1..=DAYS_MAX).contains(&days) { Ok(()) } else { Err(Error::Days { days }) }
}

/// Makes the authority, valid for `ca_days`, and the first controller's certificate.
///
/// Refuses a directory that others can use, and one that has an authority already unless
/// `controller.overwrite`; all certificates of the replaced authority are worthless after that.
pub fn init(dir: &Path, ca_days: u32, controller: &Request) -> Result<Issued> {
    check_days(ca_days)?;
    controller.check()?;
    files::private_dir(dir)?;
    for file in [CA_FILE, CA_KEY_FILE] {
        let path = dir.join(file);
        if !controller.overwrite && path.exists() {
            return Err(Error::Exists { path });
        }
    }
    let (certificate, key) = make_ca(ca_days)?;
    files::write(&dir.join(CA_KEY_FILE), &key.serialize_pem(), Access::Owner, controller.overwrite)?;
    files::write(&dir.join(CA_FILE), &certificate.pem(), Access::All, controller.overwrite)?;
    files::write(&dir.join(REVOKED_FILE), EMPTY_LIST, Access::All, true)?;
    files::private_dir(&dir.join(ISSUED_DIR))?;
    issue(dir, controller)
}

fn make_ca(days: u32) -> Result<(rcgen::Certificate, KeyPair)> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = params(days);
    // Two authorities that are believed at the same time need different names.
    let id = Serial::new(&params.key_identifier(&key));
    params.distinguished_name.push(DnType::CommonName, format!("fide authority {}", &id.to_string()[..16]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((params.self_signed(&key)?, key))
}

fn params(days: u32) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = now - Duration::seconds(CLOCK_SKEW_S);
    params.not_after = now + Duration::days(i64::from(days));
    params
}

/// Makes a certificate and a key for a member, in a directory of its own.
///
/// Refuses to replace a member's files unless asked to. Addresses are checked; the name was by
/// [`fide_wire::Name`].
pub fn issue(dir: &Path, request: &Request) -> Result<Issued> {
    let names = request.check()?;
    let bundle = files::read(&dir.join(CA_FILE), PEM_BYTES_MAX, "make an authority with `fide controller init` first")?;
    let authority = authorities(dir)?.swap_remove(0);
    let issuer = issuer(dir, &authority)?;

    let member = dir.join(ISSUED_DIR).join(request.identity.to_string());
    files::private_dir(&dir.join(ISSUED_DIR))?;
    files::private_dir(&member)?;
    let path = member.join(CERTIFICATE_FILE);
    if !request.overwrite && path.exists() {
        return Err(Error::Exists { path });
    }
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = params(request.days);
    params.distinguished_name.push(DnType::CommonName, request.identity.to_string());
    params.subject_alt_names = names;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Only a controller can be a server: no host can pass for one, whatever its addresses are.
    params.extended_key_usages = match request.identity.role {
        Role::Controller => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        Role::Host | Role::Operator => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    let certificate = params.signed_by(&key, &issuer)?;
    files::write(&member.join(CA_FILE), &bundle, Access::All, true)?;
    files::write(&member.join(REVOKED_FILE), &list(dir)?, Access::All, true)?;
    // An interrupted run leaves a key without certificate; the next one may replace it.
    files::write(&member.join(KEY_FILE), &key.serialize_pem(), Access::Owner, true)?;
    files::write(&path, &certificate.pem(), Access::All, request.overwrite)?;
    let certificate = Certificate::parse(certificate.der()).map_err(|why| Error::content(&path, why))?;
    Ok(Issued { dir: member, certificate })
}

fn issuer(dir: &Path, authority: &CertificateDer<'_>) -> Result<Issuer<'static, KeyPair>> {
    let path = dir.join(CA_KEY_FILE);
    let text = files::read(&path, PEM_BYTES_MAX, "certificates can only be made where the authority's key is kept")?;
    let key = KeyPair::from_pem(&text).map_err(|e| Error::content(&path, format!("is no private key ({e})")))?;
    let fits = x509_parser::parse_x509_certificate(authority)
        .is_ok_and(|(_, ca)| &*ca.public_key().subject_public_key.data == rcgen::PublicKeyData::der_bytes(&key));
    if !fits {
        return Err(Error::content(
            &path,
            format!("is not the key of the first certificate in {CA_FILE}; restore both"),
        ));
    }
    Ok(Issuer::from_ca_cert_der(authority, key)?)
}

/// Gives a member a new key and certificate, valid for `days` from now, with the addresses of its present
/// one. That one is not withdrawn: where its key may be in wrong hands, [`revoke`] it first.
pub fn renew(dir: &Path, identity: Identity, days: u32) -> Result<Issued> {
    let path = dir.join(ISSUED_DIR).join(identity.to_string()).join(CERTIFICATE_FILE);
    let old = Certificate::read(&path, "there is nothing to renew; use `fide controller issue`")?;
    issue(dir, &Request { identity, addresses: old.addresses, days, overwrite: true })
}

/// Puts a new authority before the present one. Certificates of both are believed until [`retire_cas`].
pub fn rotate_ca(dir: &Path, days: u32) -> Result<()> {
    check_days(days)?;
    let old = authorities(dir)?;
    issuer(dir, &old[0])?;
    let (certificate, key) = make_ca(days)?;
    let path = dir.join(CA_FILE);
    let bundle = format!("{}{}", certificate.pem(), files::read(&path, PEM_BYTES_MAX, "")?);
    // Cut off between the two, `issuer` says that they do not fit; `ca.key.old` is the way back.
    let key_path = dir.join(CA_KEY_FILE);
    files::write(&dir.join("ca.key.old"), &files::read(&key_path, PEM_BYTES_MAX, "")?, Access::Owner, true)?;
    files::write(&key_path, &key.serialize_pem(), Access::Owner, true)?;
    files::write(&path, &bundle, Access::All, true)?;
    copy_bundle(dir, &bundle)
}

/// Ends the belief in all authorities but the present one. Refuses while a member's certificate that is
/// neither expired nor revoked comes from another.
pub fn retire_cas(dir: &Path) -> Result<()> {
    let now_s = OffsetDateTime::now_utc().unix_timestamp();
    let in_use =
        |e: &&super::Entry| !e.current && !e.revoked && e.certificate.as_ref().is_ok_and(|c| c.not_after_s > now_s);
    if let Some(left) = super::status(dir)?.iter().find(in_use) {
        return Err(Error::content(
            &left.path,
            "comes from an authority that is to be retired; renew or revoke it first",
        ));
    }
    let text = files::read(&dir.join(CA_FILE), PEM_BYTES_MAX, "")?;
    // The present one is the first.
    let bundle = text.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap_or_default();
    if CertificateDer::pem_slice_iter(bundle.as_bytes()).count() != 1 {
        return Err(Error::content(
            &dir.join(CA_FILE),
            "is laid out by another program; leave only its first certificate",
        ));
    }
    files::write(&dir.join(CA_FILE), bundle, Access::All, true)?;
    copy_bundle(dir, bundle)?;
    match std::fs::remove_file(dir.join("ca.key.old")) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("removing", &dir.join("ca.key.old"))(why))
        }
        _ => Ok(()),
    }
}

fn copy_bundle(dir: &Path, bundle: &str) -> Result<()> {
    copy(dir, CA_FILE, bundle)
}

/// Writes a file into every member's directory.
fn copy(dir: &Path, file: &str, text: &str) -> Result<()> {
    let issued = dir.join(ISSUED_DIR);
    for member in std::fs::read_dir(&issued).map_err(Error::io("reading", &issued))? {
        let member = member.map_err(Error::io("reading", &issued))?.path();
        files::write(&member.join(file), text, Access::All, true)?;
    }
    Ok(())
}

const EMPTY_LIST: &str = "# serial numbers of withdrawn certificates, one a line; see `fide controller revoke`\n";

/// The revocation list, as it is.
fn list(dir: &Path) -> Result<String> {
    match files::read(&dir.join(REVOKED_FILE), REVOKED_BYTES_MAX, "") {
        Err(Error::Missing { .. }) => Ok(EMPTY_LIST.to_owned()),
        other => other,
    }
}

/// Puts the present certificate of `identity` on the revocation list, and that into every member's directory.
/// Returns its serial number.
///
/// Its files stay, as proof; issue it again with `overwrite` to let the member back in.
pub fn revoke(dir: &Path, identity: Identity) -> Result<Serial> {
    let path = dir.join(ISSUED_DIR).join(identity.to_string()).join(CERTIFICATE_FILE);
    let hint = "nothing of that name was issued here; put its serial number into `revoked` by hand";
    let serial = Certificate::read(&path, hint)?.serial;
    let mut text = list(dir)?;
    if !revocations(dir)?.contains(&serial) {
        text.push_str(&format!("{serial} # {identity}\n"));
        files::write(&dir.join(REVOKED_FILE), &text, Access::All, true)?;
    }
    // Also when it was on the list already: the last time may have been cut off here.
    copy(dir, REVOKED_FILE, &text)?;
    Ok(serial)
}
