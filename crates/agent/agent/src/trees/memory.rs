// SPDX-License-Identifier: Apache-2.0
//! Stores the trees over a restart.

use std::{fs, io, net::Ipv4Addr, path::Path};

use fide_wire::MAX_PLANES;
use serde::{Deserialize, Serialize};

use super::TreesError;

/// Name of the file in the state directory.
pub(super) const FILE: &str = "trees.json";

/// The tree that a plane's packets go to.
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
    /// The stored trees; none if there is no file.
    ///
    /// # Errors
    /// [`TreesError::Kept`] if the file is not one of ours.
    pub fn load(path: &Path) -> Result<Self, TreesError> {
        let wrong = |why: String| TreesError::Kept { path: path.to_owned(), why };
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// Replaces the file as a whole.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(self)?)?;
        fs::rename(&fresh, path)
    }

    /// The tree of a plane, from 0.
    #[must_use]
    pub fn of(&self, plane: usize) -> Option<Tree> {
        self.planes.get(plane).copied().flatten()
    }

    pub(super) fn set(&mut self, plane: u8, tree: Tree) {
        self.planes[usize::from(plane)] = Some(tree);
    }
}
