// SPDX-License-Identifier: Apache-2.0
//! The value before each change, stored on disk before the change is made.
//!
//! The file is `tune-undo.jsonl` in the state directory. It has one JSON object a line, and is only ever
//! appended to:
//!
//! ```text
//! {"fide_tune_undo":1,"boot_id":"...","core":1}                              first line
//! {"n":1,"id":"nmi-watchdog","target":{...},"before":"1\n","to":["0"]}      about to be changed
//! {"n":1,"now":"0\n"}                                                       was changed, or refused
//! ```
//!
//! Each line is synced before the next step. So if the last line is cut off, its step was not taken; and a
//! change without its second line may or may not have been made.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::{Change, Target};
use fide_sys::bounded;

/// Name of the journal in the state directory.
pub const FILE: &str = "tune-undo.jsonl";
const LOCK: &str = "tune.lock";
const LOCK_MODE: u32 = 0o600;
const VERSION: u32 = 1;
/// Longest journal: enough for a hundred thousand changes; a host has some thousands.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Fault of a last line that ends in the middle.
const CUT_OFF: &str = "it is cut off";

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error("another `fide tune` is at work in {0}")]
    Busy(PathBuf),
    #[error(
        "{path}, line {line} is damaged: {why}; run `fide tune --undo` first, which restores what the other lines say"
    )]
    Damaged { path: PathBuf, line: usize, why: String },
    #[error("{path} is of version {found}, this program knows {VERSION}: undo with the program that wrote it")]
    Version { path: PathBuf, found: u32 },
    #[error("this kernel has no boot id, so that a journal could not be distinguished from one before a reboot: {0}")]
    BootId(crate::roots::Unread),
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    fide_tune_undo: u32,
    boot_id: String,
    core: usize,
}

/// One change that was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    #[serde(rename = "n")]
    pub number: u64,
    pub id: String,
    pub target: Target,
    pub before: String,
    /// A value to set on the way back, before `before` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_way_of: Option<String>,
    /// One of these values was set, or was about to be set.
    pub to: Vec<String>,
    /// The value afterwards; `None` if it was never recorded.
    #[serde(skip)]
    pub now: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Finished {
    #[serde(rename = "n")]
    number: u64,
    now: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Entry(Entry),
    Finished(Finished),
}

/// The content of a journal on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub boot_id: String,
    pub core: usize,
    pub entries: Vec<Entry>,
    /// Number (from 1) and fault of each line that could not be parsed; the last line may be cut off.
    pub damaged: Vec<(usize, String)>,
    /// Number of bytes up to the end of the last whole line.
    whole: usize,
}

/// Exclusive use of a state directory's journal, until this is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    dir: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock. Makes the directory if it is missing.
    ///
    /// # Errors
    /// [`JournalError::Busy`], [`JournalError::Io`].
    pub fn take(dir: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(dir).map_err(|why| JournalError::Io { path: dir.to_owned(), why })?;
        let path = dir.join(LOCK);
        // Only its owner may open it, because everybody who can read it could lock it. An earlier version
        // made it readable for all.
        let open = File::options().write(true).create(true).truncate(false).mode(LOCK_MODE).open(&path);
        let made = open.and_then(|file| file.set_permissions(Permissions::from_mode(LOCK_MODE)).map(|()| file));
        let file = made.map_err(|why| JournalError::Io { path: path.clone(), why })?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { dir: dir.to_owned(), _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(JournalError::Busy(dir.to_owned())),
            Err(why) => Err(JournalError::Io { path, why: why.into() }),
        }
    }

    /// Path of the journal.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    fn io(&self) -> impl Fn(io::Error) -> JournalError {
        let path = self.path();
        move |why| JournalError::Io { path: path.clone(), why }
    }

    /// Reads the journal; `None` if there is none.
    ///
    /// # Errors
    /// [`JournalError::Io`], [`JournalError::Version`].
    pub fn read(&self) -> Result<Option<Contents>, JournalError> {
        let bytes = match bounded::read(&self.path(), FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(self.io()(why)),
        };
        parse(&self.path(), &bytes).map(Some)
    }

    /// Removes the journal, when there is nothing left to restore.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn remove(&self) -> Result<(), JournalError> {
        fs::remove_file(self.path()).and_then(|()| File::open(&self.dir)?.sync_all()).map_err(self.io())
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Contents, JournalError> {
    let mut contents = Contents::default();
    if bytes.is_empty() {
        contents.damaged.push((1, CUT_OFF.to_owned()));
    }
    let mut end = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        end += line.len();
        let fault = |error: serde_json::Error| match line.ends_with(b"\n") {
            true => error.to_string(),
            false => CUT_OFF.to_owned(),
        };
        if index == 0 {
            match serde_json::from_slice::<Head>(line) {
                Ok(head) if head.fide_tune_undo != VERSION => {
                    return Err(JournalError::Version { path: path.to_owned(), found: head.fide_tune_undo });
                }
                Ok(head) => (contents.boot_id, contents.core, contents.whole) = (head.boot_id, head.core, end),
                Err(error) => contents.damaged.push((1, fault(error))),
            }
            continue;
        }
        match serde_json::from_slice::<Line>(line) {
            Ok(Line::Entry(entry)) => contents.entries.push(entry),
            Ok(Line::Finished(finished)) => {
                let entry = contents.entries.iter_mut().find(|entry| entry.number == finished.number);
                if let Some(entry) = entry {
                    entry.now = Some(finished.now);
                }
            }
            Err(error) => {
                contents.damaged.push((index + 1, fault(error)));
                continue;
            }
        }
        contents.whole = end;
    }
    Ok(contents)
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    next: u64,
}

impl Journal {
    /// Opens the journal of this boot, or begins one. A journal of another boot is replaced, because the
    /// reboot has restored everything that it would restore. Settings that were changed before keep their
    /// first `before`.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(lock: &Lock, boot_id: &str, core: usize) -> Result<Self, JournalError> {
        let path = lock.path();
        let contents = lock.read()?.filter(|contents| contents.boot_id == boot_id || contents.boot_id.is_empty());
        let Some(contents) = contents else {
            return Self::begin_new(lock, boot_id, core);
        };
        // The last line may be cut off, because its step was not taken; all other lines must be whole.
        if let Some((line, why)) = contents.damaged.first()
            && (contents.damaged.len() > 1 || why != CUT_OFF || *line == 1)
        {
            return Err(JournalError::Damaged { path, line: *line, why: why.clone() });
        }
        let open = || {
            let mut file = File::options().read(true).append(true).open(&path)?;
            file.set_len(contents.whole as u64)?;
            let bytes = bounded::read(&path, FILE_BYTES_MAX)?;
            if !bytes.ends_with(b"\n") {
                file.write_all(b"\n")?;
            }
            file.sync_all()?;
            Ok(file)
        };
        let file = open().map_err(lock.io())?;
        let next = contents.entries.iter().map(|entry| entry.number).max().unwrap_or(0) + 1;
        Ok(Self { path, file, next })
    }

    fn begin_new(lock: &Lock, boot_id: &str, core: usize) -> Result<Self, JournalError> {
        let begin = || {
            // The file is renamed into place, so that there is never a journal without its first line.
            let mut file = tempfile::NamedTempFile::new_in(&lock.dir)?;
            let head = Head { fide_tune_undo: VERSION, boot_id: boot_id.to_owned(), core };
            file.write_all(&line(&head)?)?;
            file.as_file().sync_all()?;
            file.persist(lock.path()).map_err(|error| error.error)?;
            File::open(&lock.dir)?.sync_all()?;
            File::options().append(true).open(lock.path())
        };
        Ok(Self { path: lock.path(), file: begin().map_err(lock.io())?, next: 1 })
    }

    fn append<T: Serialize>(&mut self, value: &T) -> Result<(), JournalError> {
        let mut append = || {
            self.file.write_all(&line(value)?)?;
            self.file.sync_data()
        };
        append().map_err(|why| JournalError::Io { path: self.path.clone(), why })
    }

    /// Records a change that is about to be made. Returns its number.
    ///
    /// # Errors
    /// [`JournalError::Io`]; then the change must not be made.
    pub fn begin(&mut self, change: &Change, before: &str, by_way_of: Option<String>) -> Result<u64, JournalError> {
        let number = self.next;
        self.append(&Entry {
            number,
            id: change.id.to_owned(),
            target: change.target.clone(),
            before: before.to_owned(),
            by_way_of,
            to: change.to.clone(),
            now: None,
        })?;
        self.next += 1;
        Ok(number)
    }

    /// Records the value after the change.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn finish(&mut self, number: u64, now: &str) -> Result<(), JournalError> {
        self.append(&Finished { number, now: now.to_owned() })
    }
}

fn line<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
