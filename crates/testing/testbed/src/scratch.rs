// SPDX-License-Identifier: Apache-2.0
//! A directory that is removed with its creator, for tests that need no namespaces.

use std::path::{Path, PathBuf};

use crate::names::Owner;
use crate::reaper::Reaper;
use crate::{Error, Result};

/// A new directory under the system's directory for temporary files. It is removed when this is dropped; if
/// its creator is interrupted or killed, a reaper removes it. It needs no privileges.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    reaper: Reaper,
}

impl Scratch {
    /// Makes the directory, readable by its owner only.
    pub fn new() -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let path = Owner::new()?.scratch();
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|e| Error::io(format!("making {}", path.display()), e))?;
        let reaper = Reaper::start(&[], &path)?;
        Ok(Scratch { path, reaper })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.reaper.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_directory_is_removed_with_its_contents() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        std::fs::write(path.join("file"), "text").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
