// SPDX-License-Identifier: Apache-2.0
//! Files of a cluster on loopback, and `fide` with them.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Two members on loopback, of which this host is `a`.
pub(crate) const GOOD: &str = r#"
[cluster]
key_file = "cluster.key"
heartbeat_us = 5000
port = 7590
[[plane]]
[[member]]
name = "a"
addresses = ["127.0.0.1"]
[[member]]
name = "b"
addresses = ["127.0.0.2"]
[agent]
receive = "udp"
exit_watch = "pidfd"
calibrate_ms = 10
"#;

/// A directory with `fide.toml`, its key, and a place for drop-ins.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(GOOD)
    }

    pub(crate) fn with(toml: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a directory") };
        place.write("fide.toml", toml);
        place.write("cluster.key", "000102030405060708090a0b0c0d0e0f\n");
        place.mode("cluster.key", 0o400);
        fs::create_dir(place.path("fide.toml.d")).expect("made");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
    }

    pub(crate) fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).expect("mode");
    }

    /// `fide` in this directory, so that paths may be relative.
    pub(crate) fn fide<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(program());
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null()).env_remove("FIDE_SOCKET");
        command
    }

    /// `fide agent`, with all its files in this directory.
    pub(crate) fn agent(&self, more: &[&str]) -> Command {
        let mut command = self.fide(&["agent", "--config", "fide.toml", "--runtime-dir", ".", "--state-dir", "."]);
        command.args(more);
        command
    }
}

pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fide"))
}

/// Code, standard output, standard error.
pub(crate) fn said(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("fide");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

/// Asserts that the command ends with this code, prints these words, and nothing on standard output.
pub(crate) fn refused(command: &mut Command, code: i32, words: &[&str]) -> String {
    let (got, out, err) = said(command);
    assert_eq!(got, Some(code), "{command:?}: {out}{err}");
    for words in words {
        assert!(err.contains(words), "{command:?}: {words:?} is not in {err:?}");
    }
    err
}
