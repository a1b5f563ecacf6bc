// SPDX-License-Identifier: Apache-2.0
//! `fide` for shells, packagers and C programmers. No agent is needed.

mod arguments;
mod guards;
mod manual;
mod readers;

use std::{
    path::PathBuf,
    process::{Command, Output},
};

/// `fide` with these words, in the root of the repository.
fn fide(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide"));
    command.args(words).current_dir(root());
    command
}

/// The root of the repository.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../..")).canonicalize().expect("it is there")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a program, for a failing test.
fn said(output: &Output) -> String {
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}
