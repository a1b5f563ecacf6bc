// SPDX-License-Identifier: Apache-2.0
//! C programs built against the headers and the libraries of this package.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A library that cargo has built of this package.
pub(crate) fn library(name: &str) -> PathBuf {
    // target/<profile>/deps/c_program-... : the libraries lie beside it or one level up.
    let test = std::env::current_exe().expect("this test has a path");
    let deps = test.parent().expect("a directory");
    [deps.join(name), deps.with_file_name(name)]
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("cargo builds {name} before the tests of its package"))
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("it is there")
}

/// Where `fide.h` and `fide_group.h` are.
pub(crate) fn includes() -> [PathBuf; 2] {
    ["crates/agent/client/include", "crates/agent/group-c/include"].map(|path| root().join(path))
}

/// Builds `program` from a source, with the static library. Every warning is an error.
pub(crate) fn compile(source: &Path, flags: &[&str], program: &Path) {
    let output = Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(flags)
        .arg(source)
        .args(includes().map(|path| format!("-I{}", path.display())))
        .arg(library("libfide.a"))
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(program)
        .output()
        .expect("gcc is needed to test the C ABI");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
