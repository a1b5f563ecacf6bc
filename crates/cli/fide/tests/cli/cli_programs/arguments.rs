// SPDX-License-Identifier: Apache-2.0
//! Arguments that are no text, and those that are for this program alone.

use std::{
    ffi::OsStr,
    os::unix::{ffi::OsStrExt, fs::symlink, process::CommandExt},
    process::Command,
};

use super::{fide, said, text};

const NO_TEXT: &[u8] = b"\xff";

#[test]
fn argument_that_is_no_text_is_refused_in_words() {
    let no_text = OsStr::from_bytes(NO_TEXT);
    for words in [&[no_text][..], &["status".as_ref(), no_text], &["explain".as_ref(), no_text]] {
        let output = fide(&[]).args(words).output().expect("run");
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(text(&output.stderr).starts_with("error: "), "{words:?}: {}", said(&output));
    }
}

#[test]
fn program_and_directory_may_have_any_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let odd = dir.path().join(OsStr::from_bytes(NO_TEXT));
    std::fs::create_dir(&odd).expect("made");
    symlink(env!("CARGO_BIN_EXE_fide"), odd.join("fide")).expect("linked");
    for command in [&mut Command::new(odd.join("fide")), fide(&[]).arg0(OsStr::from_bytes(NO_TEXT))] {
        let output = command.args(["status", "--socket", "none"]).current_dir(&odd).output().expect("run");
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(text(&output.stderr).contains("no Fide agent at none"), "{}", said(&output));
    }
}

#[test]
fn gate_called_by_hand_is_refused() {
    for words in [&[][..], &["-1"], &["-1", "-1", "-1", "-1"], &["99999", "99999"], &["x", "true"], &["1", "true"]] {
        let output = fide(&["__gate"]).args(words).output().expect("run");
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(text(&output.stderr).contains("__gate is for `fide run`"), "{words:?}: {}", said(&output));
    }
    assert_eq!(fide(&["__warden"]).output().expect("run").status.code(), Some(2));
}

/// It finds `fide-lab` beside itself, and passes on every word; without one it says what to do.
#[test]
fn demo_is_passed_on_to_fide_lab() {
    let dir = tempfile::tempdir().expect("a directory");
    // Files are made by other processes: this one may fork for another test while it has a file open for writing,
    // and a file that anybody may write cannot be executed.
    let made = |command: &mut Command| assert!(command.status().expect("run").success());
    made(Command::new("cp").arg(env!("CARGO_BIN_EXE_fide")).arg(dir.path().join("fide")));
    let demo = |words: &[&str]| {
        let mut command = Command::new(dir.path().join("fide"));
        command.arg("demo").args(words).env("PATH", "/nowhere").output().expect("run")
    };
    let output = demo(&["redis", "--json"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(text(&output.stderr).contains("fide-lab") && text(&output.stderr).contains("cargo xtask demo redis"));
    let lab = dir.path().join("fide-lab");
    let script = r##"printf '#!/bin/sh\necho "$@"\nexit 7\n' > "$0" && chmod 755 "$0""##;
    made(Command::new("sh").args(["-c", script]).arg(&lab));
    for words in [&["redis", "--json", "--help"][..], &["--json"], &[]] {
        let output = demo(words);
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        assert_eq!(text(&output.stdout).trim(), [&["demo"], words].concat().join(" "));
    }
}
