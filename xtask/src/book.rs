// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask book`: the documentation in `docs/` as a book of HTML pages.

use crate::run::{Step, root_dir, target_dir};
use std::process::Command;

/// The version of mdBook that the book is tested with.
const VERSION: &str = "0.5.4";

/// Installs mdBook into the target directory if it is missing, and builds the book.
pub(crate) fn book() -> Result<(), String> {
    let root = target_dir().join("tools");
    let program = root.join("bin/mdbook");
    let found = Command::new(&program).arg("--version").output().map(|out| out.stdout).unwrap_or_default();
    if String::from_utf8_lossy(&found).trim() != format!("mdbook v{VERSION}") {
        Step::cargo(&["install", "--debug", "--quiet", "--locked", "--no-default-features", "--root"])
            .args(&[&root.to_string_lossy(), &format!("mdbook@{VERSION}")])
            .run("mdBook, once")?;
    }
    let out = target_dir().join("book");
    Step::new(&program.to_string_lossy())
        .args(&["build", "--dest-dir", &out.to_string_lossy()])
        .dir(&root_dir())
        .run("book")?;
    println!("{}", out.join("index.html").display());
    Ok(())
}
