// SPDX-License-Identifier: Apache-2.0
//! Checks that a file is undamaged, before redb opens it.
//!
//! redb trusts a file that was closed, and follows damaged page numbers to an allocation of terabytes,
//! which ends the process. It checks each page's checksum before following it only when it repairs. So a
//! copy in memory is repaired first, with its header changed so that redb checks everything and has no
//! older commit to fall back to: an acknowledged record must never be lost without an error. The layout of
//! the header is in redb's docs/design.md, file format 3.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::{DatabaseError, StorageBackend, StorageError};

use super::CACHE_BYTES;

/// Bytes of a file that is opened: several times a snapshot as large as may be.
pub(super) const FILE_MAX: u64 = 1024 * 1024 * 1024;

const MAGIC: &[u8; 9] = b"redb\x1a\x0a\xa9\x0d\x0a";
const FLAGS: usize = MAGIC.len();
const SECOND_IS_PRIMARY: u8 = 1;
const RECOVERY_REQUIRED: u8 = 2;
const TWO_PHASE_COMMIT: u8 = 4;
/// Sizes of pages and regions; the same in all our files.
const GEOMETRY: Range<usize> = 12..24;
const SLOTS: [Range<usize>; 2] = [64..192, 192..320];

/// A file's content in memory.
#[derive(Debug, Clone, Default)]
struct Copy(Arc<Mutex<Vec<u8>>>);

impl Copy {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn range(&self, offset: u64, len: usize) -> Result<Range<usize>> {
        let start = usize::try_from(offset).map_err(Error::other)?;
        start.checked_add(len).map(|end| start..end).ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }
}

impl StorageBackend for Copy {
    fn len(&self) -> Result<u64> {
        Ok(self.lock().len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = self.range(offset, out.len())?;
        out.copy_from_slice(self.lock().get(range).ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> Result<()> {
        // A repair adds a few pages.
        match usize::try_from(len) {
            Ok(bytes) if len <= 2 * FILE_MAX => self.lock().resize(bytes, 0),
            _ => return Err(ErrorKind::FileTooLarge.into()),
        }
        Ok(())
    }
    fn sync_data(&self) -> Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let range = self.range(offset, data.len())?;
        self.lock().get_mut(range).ok_or(ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}

fn corrupted(why: impl ToString) -> DatabaseError {
    StorageError::Corrupted(why.to_string()).into()
}

fn open(copy: Copy) -> std::result::Result<redb::Database, DatabaseError> {
    redb::Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(copy)
}

/// Checks all of `file`, which must be locked. A file that is new, or was never finished, is left to redb.
pub(super) fn check(file: &File) -> std::result::Result<(), DatabaseError> {
    let len = file.metadata()?.len();
    if len > FILE_MAX {
        return Err(corrupted(format!("{len} bytes are more than the {FILE_MAX} that a state may have")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    if !bytes.starts_with(MAGIC) || bytes.len() < SLOTS[1].end {
        return Ok(());
    }
    let fresh = Copy::default();
    drop(open(fresh.clone())?);
    if fresh.lock().get(GEOMETRY) != bytes.get(GEOMETRY) {
        return Err(corrupted("its header has sizes that are not ours"));
    }
    let flags = bytes[FLAGS];
    if flags & TWO_PHASE_COMMIT != 0 {
        // Only the primary commit counts.
        let primary = usize::from(flags & SECOND_IS_PRIMARY);
        bytes.copy_within(SLOTS[primary].clone(), SLOTS[1 - primary].start);
    }
    bytes[FLAGS] = (flags | RECOVERY_REQUIRED) & !TWO_PHASE_COMMIT;
    open(Copy(Arc::new(Mutex::new(bytes)))).map(drop)
}
