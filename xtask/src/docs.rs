// SPDX-License-Identifier: Apache-2.0
//! Checks of the documentation, run as unit tests: links and paths lead somewhere, every page is in the book,
//! and the table of bounds agrees with the constants of the source.

mod bounds;
mod links;

use crate::run::root_dir;
use std::fs;
use std::path::{Path, PathBuf};

/// All files below `dir` with one of these extensions, sorted; what cargo builds is left out.
pub(crate) fn files_below(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    dirs.push(path);
                }
            } else if path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A path as people write it: from the root of the repository.
fn shown(path: &Path) -> String {
    path.strip_prefix(root_dir()).unwrap_or(path).display().to_string()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
