// SPDX-License-Identifier: Apache-2.0
//! Trees over a restart.

use std::{fs, io, net::Ipv4Addr, path::Path};

use fide_wire::MAX_PLANES;
use serde::{Deserialize, Serialize};

use super::TreesError;

/// In the state directory.
pub(super) const FILE: &str = "trees.json";

/// What a plane's packets are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    pub lane: u64,
    pub generation: u32,
    pub group: Ipv4Addr,
}

/// The tree of each plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    planes: [Option<Tree>; MAX_PLANES],
}

impl Kept {
    /// What was saved; nothing if there is no file.
    ///
    /// # Errors
    /// [`TreesError::Kept`] if there is one that is none of ours.
    pub fn load(path: &Path) -> Result<Self, TreesError> {
        let wrong = |why: String| TreesError::Kept { path: path.to_owned(), why };
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// All or nothing.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(self)?)?;
        fs::rename(&fresh, path)
    }

    /// Of a plane, from 0.
    #[must_use]
    pub fn of(&self, plane: usize) -> Option<Tree> {
        self.planes.get(plane).copied().flatten()
    }

    pub(super) fn set(&mut self, plane: u8, tree: Tree) {
        self.planes[usize::from(plane)] = Some(tree);
    }
}
