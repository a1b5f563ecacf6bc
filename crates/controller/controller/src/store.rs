// SPDX-License-Identifier: Apache-2.0
//! Where the controller's state survives: a log of small records on top of a snapshot.
//!
//! Records are numbered 1, 2, 3 ... [`Store::append`] returns once they are durable, all of one call or
//! none. A snapshot stands for all records up to its number and replaces them. Both are opaque bytes.
//!
//! Every change is made under an epoch, the number of one leadership. A store that has been loaded under a
//! higher epoch refuses those of a lower one: a leader that was deposed without knowing cannot write any more
//! ([`Error::Fenced`]).
//!
//! * [`Redb`]: a file of one host. For a single controller.
//! * [`Etcd`]: a cluster of its own, shared by several controllers, see [`crate::leader`].

mod etcd;
mod redb;

use std::path::PathBuf;

pub use etcd::Etcd;
pub(crate) use etcd::leader_key;
pub use redb::Redb;

/// Bytes of one record. Half of what etcd takes in one request.
pub const RECORD_MAX: usize = 512 * 1024;
/// Records in one [`Store::append`]; etcd takes 128 operations in a transaction.
pub const BATCH_MAX: usize = 64;
/// Bytes in one [`Store::append`].
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a snapshot.
pub const SNAPSHOT_MAX: usize = 64 * 1024 * 1024;
/// The written layout. A store with a higher one is refused.
pub const FORMAT: u64 = 1;

/// Errors of a store. After any of them except [`Error::OutOfOrder`] and [`Error::TooLarge`] it must be
/// loaded again before it is written again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{place}: no space left on the device ({why}); nothing was changed: make room, then repeat")]
    Full { place: String, why: String },
    #[error("{place}: {why}")]
    Io { place: String, why: String },
    #[error("{place} is damaged ({why}); restore it from a backup, or move it away to begin with an empty state")]
    Corrupt { place: String, why: String },
    #[error("{place} has layout {found}, this program knows layouts up to {FORMAT}; use a newer program")]
    TooNew { place: String, found: u64 },
    #[error("{place} is in use by another program; stop that one first, or name another place")]
    InUse { place: String },
    #[error("{place} is led under another epoch than {epoch}; this controller was deposed and must not write")]
    Fenced { place: String, epoch: u64 },
    #[error(
        "{place} does not answer ({why}); whether the last change was stored is not known until it is loaded again"
    )]
    Unavailable { place: String, why: String },
    #[error("{place}: record {got} does not follow record {last}; load the store again")]
    OutOfOrder { place: String, last: u64, got: u64 },
    #[error("{what} is too large: {size}, at most {max}")]
    TooLarge { what: &'static str, size: usize, max: usize },
    #[error("{place} was not loaded; load it first, and again after an error")]
    NotLoaded { place: String },
}

pub type Result<T> = std::result::Result<T, Error>;

/// A state that stands for all records up to `through`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub through: u64,
    pub state: Vec<u8>,
}

/// The whole stored state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    pub snapshot: Option<Snapshot>,
    /// The records after the snapshot, oldest first, without a gap.
    pub records: Vec<Vec<u8>>,
}

impl Loaded {
    /// Number of the last record; 0 if there never was one.
    pub fn last(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |s| s.through) + self.records.len() as u64
    }
}

/// A place for the state of one controller at a time. Calls block until they are done.
pub trait Store: Send {
    /// Fences all epochs below `epoch` and returns the stored state. Called before anything else, at every
    /// change of the epoch, and after errors.
    fn load(&mut self, epoch: u64) -> Result<Loaded>;

    /// Appends records `first`, `first + 1` ...: all of them durably, or, on an error other than
    /// [`Error::Unavailable`] and [`Error::Io`], none.
    fn append(&mut self, first: u64, records: &[Vec<u8>]) -> Result<()>;

    /// Replaces the snapshot and all records up to `through`, which must be the last one.
    fn snapshot(&mut self, through: u64, state: &[u8]) -> Result<()>;

    /// File or address, for messages.
    fn place(&self) -> String;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn load(&mut self, epoch: u64) -> Result<Loaded> {
        (**self).load(epoch)
    }
    fn append(&mut self, first: u64, records: &[Vec<u8>]) -> Result<()> {
        (**self).append(first, records)
    }
    fn snapshot(&mut self, through: u64, state: &[u8]) -> Result<()> {
        (**self).snapshot(through, state)
    }
    fn place(&self) -> String {
        (**self).place()
    }
}

/// Checks the sizes of a batch; `last` is the number of the last record there is.
fn check_batch(place: &str, last: u64, first: u64, records: &[Vec<u8>]) -> Result<()> {
    let limit = |what, size, max| if size > max { Err(Error::TooLarge { what, size, max }) } else { Ok(()) };
    limit("a batch of records", records.len(), BATCH_MAX)?;
    limit("a batch's bytes", records.iter().map(Vec::len).sum(), BATCH_BYTES_MAX)?;
    records.iter().try_for_each(|record| limit("a record's bytes", record.len(), RECORD_MAX))?;
    match last.checked_add(1) {
        Some(next) if next == first => Ok(()),
        _ => Err(Error::OutOfOrder { place: place.into(), last, got: first }),
    }
}

fn check_snapshot(place: &str, last: u64, through: u64, state: &[u8]) -> Result<()> {
    if state.len() > SNAPSHOT_MAX {
        return Err(Error::TooLarge { what: "a snapshot's bytes", size: state.len(), max: SNAPSHOT_MAX });
    }
    if through != last {
        return Err(Error::OutOfOrder { place: place.into(), last, got: through });
    }
    Ok(())
}

/// A checksum before the bytes, over the number too: a record in another's place is noticed.
fn seal(number: u64, bytes: &[u8]) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), bytes);
    [&crc.to_le_bytes()[..], bytes].concat()
}

fn unseal(number: u64, sealed: &[u8]) -> Option<&[u8]> {
    let (_, bytes) = sealed.split_first_chunk::<4>()?;
    (seal(number, bytes) == sealed).then_some(bytes)
}

/// The default file of a single controller's state in `dir`.
pub fn redb_file(dir: &std::path::Path) -> PathBuf {
    dir.join("state.redb")
}

#[cfg(test)]
mod tests;
