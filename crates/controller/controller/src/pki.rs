// SPDX-License-Identifier: Apache-2.0
//! The certificates of a cluster: one authority, and a certificate for each controller, host and operator.
//!
//! ```text
//! DIR/                      0700
//!   ca.pem                  authorities believed in: the present one first, then those being replaced
//!   ca.key                  0600, the present authority's key
//!   revoked                 serial numbers, one a line
//!   issued/host.alpha/      what host alpha needs, to be copied there: cert.pem, key.pem (0600), ca.pem, revoked
//!   issued/controller.c1/   the same for a controller
//! ```
//!
//! * [`init`] makes it, [`issue`] adds a member, [`renew`] gives a member a new certificate and key with the same
//!   addresses, [`revoke`] withdraws one, [`status`] lists what there is and when it expires.
//! * The authority is replaced in four steps: [`rotate_ca`]; copy each `ca.pem` to its member; [`renew`] each
//!   and copy; [`retire_cas`] and copy `ca.pem` again. Nobody is cut off at any point, as both authorities
//!   are believed in between.
//!
//! Keys are ECDSA P-256. Every file is replaced as a whole, so that a reader sees the old or the new one; a
//! certificate and its key are two files, and their readers check that they fit (see [`crate::tls`]).

mod files;
mod issue;
mod status;

use fide_controller_api::identity::IdentityError;

use std::path::{Path, PathBuf};

pub use issue::{Issued, Request, init, issue, renew, retire_cas, revoke, rotate_ca};
pub use status::{Certificate, Entry, status};

pub use fide_controller_api::tls::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE};

/// The present authority's private key.
pub const CA_KEY_FILE: &str = "ca.key";
/// One directory per member.
pub const ISSUED_DIR: &str = "issued";

/// Days a new authority is valid.
pub const CA_DAYS: u32 = 3650;
/// Days a new certificate is valid.
pub const CERTIFICATE_DAYS: u32 = 365;
/// Longest validity of a certificate.
pub const DAYS_MAX: u32 = 36_500;
/// A certificate is valid from this long before it was made, as clocks differ.
pub const CLOCK_SKEW_S: i64 = 3600;
/// Addresses in one certificate.
pub const ADDRESSES_MAX: usize = 64;

/// An error with certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing} {}: {why}", path.display())]
    Io { doing: &'static str, path: PathBuf, why: std::io::Error },
    #[error("{} exists already; give --overwrite to replace it: what it was for stops working", path.display())]
    Exists { path: PathBuf },
    #[error("{} is missing; {hint}", path.display())]
    Missing { path: PathBuf, hint: &'static str },
    #[error(
        "{} can be used by others (mode {mode:03o}), but private keys are to be kept there; `chmod 700` it or name another \
         directory", path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    #[error("{}: {why}", path.display())]
    Content { path: PathBuf, why: String },
    #[error("`{address}` is no address; give an IP address or a DNS name")]
    Address { address: String },
    #[error("{count} addresses are too many for one certificate; give at most {ADDRESSES_MAX}")]
    TooManyAddresses { count: usize },
    #[error("a controller needs at least one address: the IP address or DNS name by which agents reach it")]
    NoAddress,
    #[error("{days} days is no validity; give 1 to {DAYS_MAX}")]
    Days { days: u32 },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("making a certificate: {0}")]
    Make(rcgen::Error),
}

impl From<rcgen::Error> for Error {
    fn from(why: rcgen::Error) -> Self {
        Self::Make(why)
    }
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |why| Error::Io { doing, path, why }
    }

    fn content(path: &Path, why: impl ToString) -> Error {
        Error::Content { path: path.to_owned(), why: why.to_string() }
    }
}

#[cfg(test)]
mod tests;
