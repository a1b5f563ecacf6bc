// SPDX-License-Identifier: Apache-2.0
//! Missing permissions end with code 4, for files, sockets and directories alike.

use std::{
    fs,
    os::unix::{net::UnixListener, process::CommandExt},
    process::Command,
};

use super::common::{Place, program, refused};

/// A user without privileges.
const USER: u32 = 61_003;

/// A copy of the program that this user can reach, and commands as this user.
struct Unprivileged {
    place: Place,
}

impl Unprivileged {
    fn new() -> Self {
        let place = Place::new();
        fs::set_permissions(place.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode");
        let copy = place.path("fide");
        if fs::hard_link(program(), &copy).is_err() {
            fs::copy(program(), &copy).expect("copied");
        }
        Self { place }
    }

    /// Runs as that user if this is root, else as the user of the test: neither may open the closed files.
    fn fide(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.place.path("fide"));
        command.args(words).current_dir(self.place.dir.path()).env_remove("FIDE_SOCKET");
        if rustix::process::getuid().is_root() {
            command.uid(USER).gid(USER);
        }
        command
    }
}

#[test]
fn missing_permission_ends_with_4() {
    let user = Unprivileged::new();
    let place = &user.place;
    for name in ["closed.toml", "closed.fjl"] {
        place.write(name, "");
        place.mode(name, 0o000);
    }
    // Closed to everyone but root, or to everyone.
    place.mode("cluster.key", 0o000);
    let _socket = UnixListener::bind(place.path("closed.sock")).expect("bound");
    place.mode("closed.sock", 0o000);
    fs::create_dir(place.path("closed")).expect("made");
    place.mode("closed", 0o000);
    place.write("ours.fjl", "");
    let state =
        ["agent", "--host", "a", "--config", "fide.toml", "--runtime-dir", "closed/x", "--state-dir", "closed/x"];
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec!["agent", "--config", "closed.toml"], "closed.toml"),
        (vec!["agent", "--check", "--config", "closed.toml"], "closed.toml"),
        (vec!["agent", "--check", "--config", "fide.toml"], "cluster.key"),
        (vec!["agent", "--check=file", "--config", "fide.toml"], "cluster.key"),
        (state.to_vec(), "cluster.key"),
        (vec!["agent", "--make-key", "closed/key"], "closed/key"),
        (vec!["status", "--socket", "closed.sock"], "may not use the agent's socket"),
        (vec!["explain", "--socket", "closed.sock"], "may not use the agent's socket"),
        (vec!["metrics", "--socket", "closed.sock"], "may not use the agent's socket"),
        (vec!["watch", "@a", "--socket", "closed.sock"], "may not use the agent's socket"),
        (vec!["lane", "listen", "7", "--socket", "closed.sock"], "may not use the agent's socket"),
        (vec!["run", "--name", "x", "--socket", "closed.sock", "--", "true"], "may not use the agent's socket"),
        (vec!["plan", "closed.toml"], "closed.toml"),
        (vec!["controller", "check", "--config", "closed.toml"], "closed.toml"),
        (vec!["controller", "run", "--config", "closed.toml"], "closed.toml"),
        (vec!["controller", "discover", "--config", "closed.toml"], "closed.toml"),
        (vec!["controller", "announce", "--config", "closed.toml"], "closed.toml"),
        (vec!["controller", "status", "--credentials", "closed", "--address", "127.0.0.1:1"], "closed/cert.pem"),
        (vec!["controller", "init", "closed/pki", "--address", "127.0.0.1"], "closed/pki"),
        (vec!["jitter", "report", "closed.fjl"], "closed.fjl"),
        (vec!["jitter", "ping", "--from", "127.0.0.1", "--to", "127.0.0.2", "--out", "closed/x.fjl"], "closed/x.fjl"),
        (vec!["jitter", "sweep", "--from", "127.0.0.1", "--to", "127.0.0.2", "--out", "closed/x"], "closed/x"),
        (vec!["doctor", "--config", "closed.toml"], "closed.toml"),
        (vec!["tune", "--plan", "--config", "closed.toml"], "closed.toml"),
    ];
    for (words, says) in cases {
        refused(&mut user.fide(&words), 4, &[says]);
    }
    // Directories that the configuration names.
    fs::remove_file(place.path("cluster.key")).expect("removed");
    place.write("cluster.key", "000102030405060708090a0b0c0d0e0f\n");
    place.mode("cluster.key", 0o400);
    if rustix::process::getuid().is_root() {
        std::os::unix::fs::chown(place.path("cluster.key"), Some(USER), Some(USER)).expect("given");
    }
    refused(&mut user.fide(&state), 4, &["closed/x"]);
    place.mode("closed", 0o700);
}
