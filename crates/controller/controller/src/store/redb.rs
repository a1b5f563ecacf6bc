// SPDX-License-Identifier: Apache-2.0
//! The state in a file, by redb: copy-on-write pages, one fsynced two-phase transaction for each call.

mod check;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageError, TableDefinition};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Error, FORMAT, Loaded, Result, Snapshot, Store, check_batch, check_snapshot, seal, unseal};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
const SNAPSHOT: TableDefinition<u64, &[u8]> = TableDefinition::new("snapshot");

/// Bytes redb may keep in memory.
const CACHE_BYTES: usize = 32 * 1024 * 1024;

/// A file that one program has open at a time.
#[derive(Debug)]
pub struct Redb {
    path: PathBuf,
    /// `None` after an error: redb wants a file opened again, and repairs it then.
    database: Option<Database>,
    /// Epoch and number of the last record; `None` until loaded.
    at: Option<(u64, u64)>,
}

impl Redb {
    /// Opens `path`, or creates it (mode 0600) if its directory exists. Errors: in use, damaged, of a newer
    /// layout.
    pub fn open(path: &Path) -> Result<Redb> {
        let mut store = Redb { path: path.to_owned(), database: None, at: None };
        store.guarded(|store| store.with_database(|_, _| Ok(())))?;
        Ok(store)
    }

    /// The highest epoch this file was loaded under; 0 if it never was.
    pub fn last_epoch(&mut self) -> Result<u64> {
        self.guarded(|store| {
            store.with_database(|database, place| {
                let read = database.begin_read().map_err(|e| failed(place, e))?;
                let meta = read.open_table(META).map_err(|e| failed(place, e))?;
                Ok(meta.get("epoch").map_err(|e| failed(place, e))?.map_or(0, |v| v.value()))
            })
        })
    }

    /// redb panics on some kinds of damage; here that counts as an error. The database is dropped, so that
    /// half-changed state is not seen again.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Redb) -> Result<T>) -> Result<T> {
        let place = self.place();
        let done = catch_unwind(AssertUnwindSafe(|| work(self)))
            .unwrap_or_else(|_| Err(Error::Corrupt { place, why: "its pages contradict each other".into() }));
        if done.as_ref().is_err_and(|e| !matches!(e, Error::OutOfOrder { .. } | Error::TooLarge { .. })) {
            self.at = None;
            self.close();
        }
        done
    }

    /// Closing writes, which may fail or panic on a damaged file; all that was acknowledged is on disk
    /// already.
    fn close(&mut self) {
        if let Some(database) = self.database.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
        }
    }

    fn with_database<T>(&mut self, work: impl FnOnce(&Database, &str) -> Result<T>) -> Result<T> {
        let place = self.place();
        if self.database.is_none() {
            self.database = Some(open(&self.path, &place)?);
        }
        match &self.database {
            Some(database) => work(database, &place),
            None => Err(Error::NotLoaded { place }),
        }
    }

    /// One transaction under the present epoch, durable when it returns.
    fn write<T>(&mut self, epoch: u64, work: impl FnOnce(&redb::WriteTransaction, &str) -> Result<T>) -> Result<T> {
        self.with_database(|database, place| {
            let mut write = database.begin_write().map_err(|e| failed(place, e))?;
            write.set_durability(Durability::Immediate).map_err(|e| failed(place, e))?;
            // From a damaged file redb would otherwise take the last but one commit, without an error.
            write.set_two_phase_commit(true);
            let result = {
                let mut meta = write.open_table(META).map_err(|e| failed(place, e))?;
                let stored = meta.get("epoch").map_err(|e| failed(place, e))?.map_or(0, |v| v.value());
                if stored > epoch {
                    return Err(Error::Fenced { place: place.into(), epoch });
                }
                meta.insert("epoch", epoch).map_err(|e| failed(place, e))?;
                drop(meta);
                work(&write, place)?
            };
            write.commit().map_err(|e| failed(place, e))?;
            Ok(result)
        })
    }

    fn at(&self) -> Result<(u64, u64)> {
        self.at.ok_or_else(|| Error::NotLoaded { place: self.place() })
    }
}

impl Drop for Redb {
    fn drop(&mut self) {
        self.close();
    }
}

/// An existing file is always complete. redb takes a file whose creation was interrupted for damaged, so it
/// is created under another name, and gets its own only if nobody else was faster.
fn open(path: &Path, place: &str) -> Result<Database> {
    let io = |e: std::io::Error| storage(place, StorageError::Io(e));
    if !path.exists() {
        let mut making = path.as_os_str().to_owned();
        making.push(".new");
        let making = PathBuf::from(making);
        match std::fs::remove_file(&making) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(e)),
            _ => drop(open_file(&making, place)?),
        }
        match std::fs::hard_link(&making, path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(io(e)),
            _ => std::fs::remove_file(&making).map_err(io)?,
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(io)?;
    }
    open_file(path, place)
}

fn open_file(path: &Path, place: &str) -> Result<Database> {
    let io = |e: std::io::Error| storage(place, StorageError::Io(e));
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path).map_err(io)?;
    lock(&file, place)?;
    check::check(&file).map_err(|e| failed(place, e))?;
    let database = redb::Builder::new().set_cache_size(CACHE_BYTES).create_file(file).map_err(|e| failed(place, e))?;
    let mut write = database.begin_write().map_err(|e| failed(place, e))?;
    write.set_two_phase_commit(true);
    {
        let mut meta = write.open_table(META).map_err(|e| failed(place, e))?;
        let found = meta.get("format").map_err(|e| failed(place, e))?.map(|v| v.value());
        match found {
            Some(FORMAT) => {}
            Some(found) if found > FORMAT => return Err(Error::TooNew { place: place.into(), found }),
            Some(found) => return Err(Error::Corrupt { place: place.into(), why: format!("layout {found}") }),
            None => {
                meta.insert("format", FORMAT).map_err(|e| failed(place, e))?;
            }
        }
        write.open_table(RECORDS).map_err(|e| failed(place, e))?;
        write.open_table(SNAPSHOT).map_err(|e| failed(place, e))?;
    }
    write.commit().map_err(|e| failed(place, e))?;
    Ok(database)
}

/// Takes the lock, which redb takes too, so that nobody changes the file while it is checked.
fn lock(file: &File, place: &str) -> Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Error::InUse { place: place.into() }),
        Err(errno) => Err(storage(place, StorageError::Io(errno.into()))),
    }
}

/// All of redb's errors are one enum in the end.
fn failed(place: &str, error: impl Into<redb::Error>) -> Error {
    let place = place.to_owned();
    match error.into() {
        redb::Error::Io(e) => storage(&place, StorageError::Io(e)),
        redb::Error::DatabaseAlreadyOpen => Error::InUse { place },
        redb::Error::Corrupted(why) => Error::Corrupt { place, why },
        redb::Error::UpgradeRequired(found) => {
            Error::Corrupt { place, why: format!("redb's file format {found}, which nothing of ours writes") }
        }
        why @ (redb::Error::PreviousIo | redb::Error::ValueTooLarge(_) | redb::Error::DatabaseClosed) => {
            Error::Io { place, why: why.to_string() }
        }
        why => Error::Corrupt { place, why: why.to_string() },
    }
}

fn storage(place: &str, error: StorageError) -> Error {
    use std::io::ErrorKind::{InvalidData, QuotaExceeded, StorageFull, UnexpectedEof};
    let place = place.to_owned();
    match error {
        StorageError::Io(e) => match e.kind() {
            StorageFull | QuotaExceeded => Error::Full { place, why: e.to_string() },
            InvalidData | UnexpectedEof => Error::Corrupt { place, why: e.to_string() },
            _ => Error::Io { place, why: e.to_string() },
        },
        other => failed(&place, DatabaseError::Storage(other)),
    }
}

impl Store for Redb {
    fn load(&mut self, epoch: u64) -> Result<Loaded> {
        self.at = None;
        self.guarded(|store| {
            let loaded = store.write(epoch, |write, place| {
                let corrupt = |why: String| Error::Corrupt { place: place.into(), why };
                let snapshots = write.open_table(SNAPSHOT).map_err(|e| failed(place, e))?;
                let mut loaded = Loaded::default();
                if let Some(entry) = snapshots.iter().map_err(|e| failed(place, e))?.next() {
                    let (through, state) = entry.map_err(|e| failed(place, e))?;
                    let through = through.value();
                    let state = unseal(through, state.value())
                        .ok_or_else(|| corrupt(format!("the checksum of snapshot {through} is wrong")))?;
                    loaded.snapshot = Some(Snapshot { through, state: state.to_vec() });
                }
                let records = write.open_table(RECORDS).map_err(|e| failed(place, e))?;
                for entry in records.iter().map_err(|e| failed(place, e))? {
                    let (number, record) = entry.map_err(|e| failed(place, e))?;
                    let (number, next) = (number.value(), loaded.last().saturating_add(1));
                    if number != next {
                        return Err(corrupt(format!("record {next} is missing, {number} is there")));
                    }
                    let record = unseal(number, record.value())
                        .ok_or_else(|| corrupt(format!("the checksum of record {number} is wrong")))?;
                    loaded.records.push(record.to_vec());
                }
                Ok(loaded)
            })?;
            store.at = Some((epoch, loaded.last()));
            Ok(loaded)
        })
    }

    fn append(&mut self, first: u64, records: &[Vec<u8>]) -> Result<()> {
        self.guarded(|store| {
            let (epoch, last) = store.at()?;
            check_batch(&store.place(), last, first, records)?;
            store.write(epoch, |write, place| {
                let mut table = write.open_table(RECORDS).map_err(|e| failed(place, e))?;
                for (number, record) in (first..).zip(records) {
                    table.insert(number, &seal(number, record)[..]).map_err(|e| failed(place, e))?;
                }
                Ok(())
            })?;
            store.at = Some((epoch, last + records.len() as u64));
            Ok(())
        })
    }

    fn snapshot(&mut self, through: u64, state: &[u8]) -> Result<()> {
        self.guarded(|store| {
            let (epoch, last) = store.at()?;
            check_snapshot(&store.place(), last, through, state)?;
            store.write(epoch, |write, place| {
                let mut snapshots = write.open_table(SNAPSHOT).map_err(|e| failed(place, e))?;
                snapshots.retain(|_, _| false).map_err(|e| failed(place, e))?;
                snapshots.insert(through, &seal(through, state)[..]).map_err(|e| failed(place, e))?;
                let mut records = write.open_table(RECORDS).map_err(|e| failed(place, e))?;
                records.retain(|_, _| false).map_err(|e| failed(place, e))?;
                Ok(())
            })
        })
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}
