// SPDX-License-Identifier: Apache-2.0
//! A lock on a file. The kernel drops it with its holder, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{Authority, Leadership};

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{} is held by {holder}; stop that controller first, or give this one another directory", path.display())]
    Held { path: PathBuf, holder: String },
    #[error("locking {}: {why}", path.display())]
    Io { path: PathBuf, why: std::io::Error },
}

/// The holder's entry in the file, for people.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    pid: u32,
    name: String,
}

/// Bytes of the file that are read.
const HOLDER_BYTES_MAX: u64 = 4096;

/// The leadership of the only controller.
#[derive(Debug)]
pub struct Single {
    epoch: u64,
    /// Locked as long as it is open.
    _lock: File,
}

/// The lock without an epoch yet: take it, open the store, then [`Lock::lead`].
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Single {
    /// Takes the lock `path` for the controller `name`, or reports its holder.
    pub fn lock(path: &Path, name: &str) -> Result<Lock, LockError> {
        let io = |why: std::io::Error| LockError::Io { path: path.to_owned(), why };
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut file = open.map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The holder may be about to write it.
                let _ = (&file).take(HOLDER_BYTES_MAX).read_to_string(&mut text);
                let holder = match serde_json::from_str::<Holder>(&text) {
                    Ok(Holder { pid, name }) => format!("controller {name}, process {pid}"),
                    Err(_) => "another controller that is just starting".into(),
                };
                return Err(LockError::Held { path: path.to_owned(), holder });
            }
            Err(errno) => return Err(io(errno.into())),
        }
        let holder = Holder { pid: std::process::id(), name: name.to_owned() };
        let text = serde_json::to_string(&holder).map_err(|e| io(e.into()))?;
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes())).map_err(io)?;
        Ok(Lock { file })
    }
}

impl Lock {
    /// Leads under the epoch after `last_epoch`, the highest one the store has seen.
    pub fn lead(self, last_epoch: u64) -> Single {
        Single { epoch: last_epoch.saturating_add(1), _lock: self.file }
    }
}

impl Leadership for Single {
    fn authority(&self) -> Authority {
        Authority::Leader { epoch: self.epoch }
    }

    fn deposed(&self) {
        tracing::error!(
            "the store was opened under a higher epoch although its lock is held here; was the lock file removed?"
        );
    }
}
