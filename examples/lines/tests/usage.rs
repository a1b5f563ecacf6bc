// SPDX-License-Identifier: Apache-2.0
//! The program says what it takes. (As there is a test that starts it, cargo builds it with the tests; those of
//! `fide-c` have it in one group with lines.c.)

use std::process::Command;

#[test]
fn program_without_arguments_says_what_it_takes() {
    let output = Command::new(env!("CARGO_BIN_EXE_lines")).output().expect("run");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("usage: lines STATE_DIR HOST..."), "{said}");
}
