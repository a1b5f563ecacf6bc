// SPDX-License-Identifier: Apache-2.0
//! Subcommands whose output has no reader any more.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Output, Stdio},
};

use super::{fide, said, text};

/// Runs the command with a pipe without a reader as standard output.
fn unread(words: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().expect("made");
    drop(reader);
    let mut command = fide(words);
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    command.spawn().expect("started").wait_with_output().expect("waited for")
}

/// The same, with standard error gone too.
fn unheard(words: &[&str]) -> Output {
    let pipe = || {
        let (reader, writer) = std::io::pipe().expect("made");
        drop(reader);
        writer
    };
    let mut command = fide(words);
    command.stdin(Stdio::null()).stdout(pipe()).stderr(pipe());
    command.spawn().expect("started").wait_with_output().expect("waited for")
}

#[test]
fn question_without_a_reader_ends_by_sigpipe() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("page.html");
    let page = page.to_str().expect("UTF-8");
    let pki = dir.path().join("pki");
    let pki = pki.to_str().expect("UTF-8");
    for words in [
        &["jitter", "report", "examples/jitter/disturbed.fjl", "--json", "--html", page][..],
        &["tune", "--plan", "--json"],
        &["controller", "init", pki, "--address", "127.0.0.1"],
        &["controller", "certificates", pki],
    ] {
        let output = unread(words);
        assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{words:?}: {}", said(&output));
        assert!(!text(&output.stderr).contains("panicked"), "{words:?}: {}", said(&output));
    }
    assert!(fs::exists(page).expect("looked"), "what it had to do was done before");
}

#[test]
fn work_without_a_reader_is_done_and_keeps_its_exit_code() {
    let dir = tempfile::tempdir().expect("a directory");
    let drawing = dir.path().join("plan.svg");
    let config = dir.path().join("fide.toml");
    let key = dir.path().join("cluster.key");
    fs::write(&key, "00112233445566778899aabbccddeeff\n").expect("written");
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o400)).expect("set");
    let member = |at: u8| format!("[[member]]\nname = \"h{at}\"\naddresses = [\"10.0.0.{at}\"]\n");
    let cluster = "[cluster]\nname = \"db\"\nkey_file = \"cluster.key\"\n[[plane]]\ngroup = \"239.70.0.1\"\n";
    fs::write(&config, format!("{cluster}{}{}", member(1), member(2))).expect("written");
    let (drawing, config) = (drawing.to_str().expect("UTF-8"), config.to_str().expect("UTF-8"));
    for words in [
        &["plan", "examples/fat-tree-k8.toml", "--svg", drawing, "--force"][..],
        &["agent", "--check=file", "--host", "h1", "--config", config],
        &["jitter", "export", "examples/jitter/disturbed.fjl"],
        &["--help"],
    ] {
        for output in [unread(words), unheard(words)] {
            assert_eq!(output.status.code(), Some(0), "{words:?}: {}", said(&output));
            assert!(!text(&output.stderr).contains("panicked"), "{words:?}: {}", said(&output));
        }
    }
    assert!(fs::exists(drawing).expect("looked"));
}
