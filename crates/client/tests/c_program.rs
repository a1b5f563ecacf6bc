// SPDX-License-Identifier: Apache-2.0
//! A C program builds against the header and the static library, and is told clearly that no agent runs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn static_library() -> PathBuf {
    // target/<profile>/deps/c_program-... : the libraries lie beside it or one level up.
    let test = std::env::current_exe().expect("this test has a path");
    let deps = test.parent().expect("a directory");
    [deps.join("libfide_client.a"), deps.with_file_name("libfide_client.a")]
        .into_iter()
        .find(|path| path.exists())
        .expect("cargo builds libfide_client.a before the tests of its package")
}

fn build(dir: &Path, warnings: &[&str]) -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join("monitor");
    let output = Command::new("gcc")
        .args(warnings)
        .arg(crate_dir.join("../../examples/monitor.c"))
        .arg("-I")
        .arg(crate_dir.join("include"))
        .arg(static_library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .expect("gcc is needed to test the C ABI");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn the_example_builds_without_warnings_and_names_the_missing_agent() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), &["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    let missing = dir.path().join("no.sock");
    let output = Command::new(&program).arg("db@beta").env("FIDE_SOCKET", &missing).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no Fide agent at") && said.contains("fide agent") && said.contains("no.sock"), "{said}");
    assert_eq!(Command::new(&program).output().unwrap().status.code(), Some(2));
}

#[test]
fn the_header_is_good_cxx_too() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("gcc")
        .args(["-x", "c++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
        .arg(crate_dir.join("include/fide.h"))
        .output()
        .expect("gcc is needed to test the C ABI");
    let said = String::from_utf8_lossy(&output.stderr);
    // Without a C++ front end there is nothing to check.
    assert!(output.status.success() || said.contains("cc1plus"), "{said}");
}
