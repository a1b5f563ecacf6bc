// SPDX-License-Identifier: Apache-2.0
//! Monitors and programs of several users.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    process::{Command, Stdio},
};

use serde_json::Value;

use super::{FIDE, Host, Process, fide, library, said, text};

const OTHER: u32 = 54_321;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root may be other users");
    }
    is_root
}

/// A host whose directory others reach, with copies of the program and its library that they may run.
fn host() -> Host {
    let host = Host::new();
    fs::set_permissions(host.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut copies = Command::new("cp");
    copies.args([FIDE, library().to_str().unwrap(), host.directory.path().to_str().unwrap()]);
    assert!(copies.status().unwrap().success());
    host
}

/// The program as another user.
fn by_other(host: &Host, words: &[&str]) -> Command {
    let id = OTHER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", &host.path("fide"), "rack"]).args(words);
    command.env_remove("FIDE_RACK_MONITOR").env_remove("XDG_RUNTIME_DIR");
    command
}

#[test]
fn root_user_that_is_not_served_runs_over_tcp_and_sees_nothing_of_others() {
    if !is_root() {
        return;
    }
    let host = host();
    let socket = host.socket();
    let mut monitor = Process::start(
        fide(&["monitor", "--socket", &socket, "--allow-users", "root", "--json"]).stderr(Stdio::null()),
    );
    let ready: Value = serde_json::from_str(&monitor.line()).unwrap();
    assert_eq!(ready["users"], serde_json::json!([0]), "{ready}");
    let output = by_other(&host, &["run", "--monitor", &socket, "--require", "true"]).output().unwrap();
    let says = text(&output.stderr);
    assert!(output.status.code() == Some(1) && says.contains("does not serve this user"), "{}", said(&output));
    let (mut server, port) = host.server("1");
    let mut client = host.client_with_memory(&port);
    let output = by_other(&host, &["top", "--monitor", &socket, "--once", "--json"]).output().unwrap();
    let top: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(top["of_all_users"] == false && top["connections"].as_array().unwrap().is_empty(), "{top}");
    let pid = server.child.id().to_string();
    let output = by_other(&host, &["check", "--pid", &pid]).output().unwrap();
    assert!(output.status.code() == Some(4) && text(&output.stderr).contains("another user's"), "{}", said(&output));
    client.asks_again();
    assert_eq!((client.finishes(), server.ends()), (0, 0));
}

/// It could read and write what goes over the connections.
#[test]
fn root_monitor_of_another_user_is_used_only_if_that_is_asked_for() {
    if !is_root() {
        return;
    }
    let host = host();
    let directory = host.path("theirs");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(OTHER), Some(OTHER)).unwrap();
    let socket = format!("{directory}/monitor.sock");
    let mut monitor =
        Process::start(by_other(&host, &["monitor", "--socket", &socket, "--json"]).stderr(Stdio::null()));
    let ready: Value = serde_json::from_str(&monitor.line()).unwrap();
    assert_eq!((&ready["users"], &ready["uid"]), (&serde_json::json!([]), &OTHER.into()), "{ready}");
    let run = |options: &[&str]| {
        let mut command = fide(&["run", "--monitor", &socket, "--require", "--library", library().to_str().unwrap()]);
        command.args(options).arg("true").output().unwrap()
    };
    let output = run(&[]);
    let says = text(&output.stderr);
    assert!(output.status.code() == Some(1) && says.contains("--monitor-user 54321"), "{}", said(&output));
    let output = run(&["--monitor-user", "54321"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    // Its own programs use it without a word.
    let output = by_other(&host, &["run", "--monitor", &socket, "--require", "true"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    monitor.signal(rustix::process::Signal::INT);
    assert_eq!(monitor.ends(), 0);
}

#[test]
fn root_program_that_becomes_another_user_is_not_accelerated() {
    if !is_root() {
        return;
    }
    let host = host();
    let path = host.path("shell");
    assert!(Command::new("cp").args(["/bin/sh", &path]).status().unwrap().success());
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    for (mode, says) in [(0o4755, "is setuid, for user 54321"), (0o2755, "is setgid, for group 54321")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let output = fide(&["check", &path]).output().unwrap();
        assert!(output.status.code() == Some(1) && text(&output.stdout).contains(says), "{}", said(&output));
        // For that one it is no change.
        let output = by_other(&host, &["check", &path]).output().unwrap();
        assert!(
            output.status.code() == Some(0) && text(&output.stdout).contains("for this user alone"),
            "{}",
            said(&output)
        );
    }
}

/// Of a file that lets its program do more than its caller may.
#[test]
fn root_program_with_capabilities_is_not_accelerated_for_others() {
    if !is_root() {
        return;
    }
    let host = host();
    let path = host.path("shell");
    assert!(Command::new("cp").args(["/bin/sh", &path]).status().unwrap().success());
    // Version 2, and CAP_NET_RAW as permitted.
    let words: [u32; 5] = [0x0200_0000, 1 << 13, 0, 0, 0];
    let value = words.map(u32::to_le_bytes).concat();
    if let Err(why) = rustix::fs::setxattr(&path, "security.capability", &value, rustix::fs::XattrFlags::empty()) {
        println!("skipped: files have no capabilities here: {why}");
        return;
    }
    let output = by_other(&host, &["check", &path]).output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stdout).contains("has capabilities"), "{}", said(&output));
    assert_eq!(fide(&["check", &path]).output().unwrap().status.code(), Some(0), "root gains nothing by them");
}

/// A user's own monitor, where nobody says where it is.
#[test]
fn root_users_find_their_own_monitors_by_themselves() {
    if !is_root() || fs::exists("/run/fide-rack/monitor.sock").unwrap() {
        return;
    }
    let host = host();
    let session = host.path("session");
    fs::create_dir(&session).unwrap();
    chown(&session, Some(OTHER), Some(OTHER)).unwrap();
    let output = by_other(&host, &["monitor"]).output().unwrap();
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("XDG_RUNTIME_DIR"), "{}", said(&output));
    let by_user = |words: &[&str]| {
        let mut command = by_other(&host, words);
        command.env("XDG_RUNTIME_DIR", &session);
        command
    };
    let output = by_user(&["run", "--require", "true"]).output().unwrap();
    let says = text(&output.stderr);
    assert!(output.status.code() == Some(1) && says.contains("for this user alone"), "{}", said(&output));
    let mut monitor = Process::start(by_user(&["monitor", "--json"]).stderr(Stdio::null()));
    let ready: Value = serde_json::from_str(&monitor.line()).unwrap();
    assert_eq!(ready["socket"], format!("{session}/fide-rack/monitor.sock"), "{ready}");
    assert_eq!(fs::metadata(format!("{session}/fide-rack")).unwrap().permissions().mode() & 0o777, 0o700);
    for words in [&["run", "--require", "true"][..], &["top", "--once"], &["metrics"]] {
        let output = by_user(words).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", said(&output));
    }
    monitor.signal(rustix::process::Signal::TERM);
    assert_eq!(monitor.ends(), 0);
}

#[test]
fn monitor_refuses_wrong_users_and_places() {
    let host = Host::new();
    let socket = host.socket();
    for (words, says) in [
        (&["--socket", socket.as_str(), "--allow-users", "no-user-of-this-name"][..], "no-user-of-this-name"),
        (&["--socket", "/nowhere/monitor.sock"], "/nowhere"),
        (&["--socket", socket.as_str(), "--allow-networks", "10.0.0.0/8,10.0.0.0/40"], "'10.0.0.0/40'"),
    ] {
        let output = fide(&["monitor"]).args(words).output().unwrap();
        assert!(output.status.code() == Some(2) && text(&output.stderr).contains(says), "{}", said(&output));
    }
    fs::write(host.socket(), "a file of somebody").unwrap();
    let output = fide(&["monitor", "--socket", &host.socket()]).output().unwrap();
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("no socket"), "{}", said(&output));
    assert_eq!(fs::read(host.socket()).unwrap(), b"a file of somebody");
}

/// The service's command line, by a user without rights. systemd gives it a directory that is its own.
#[test]
fn root_unit_needs_no_rights() {
    if !is_root() {
        return;
    }
    let host = host();
    let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/fide-rack.service");
    let unit = fs::read_to_string(unit).unwrap();
    let setting = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap();
    let mut words = setting("ExecStart").split(' ');
    assert_eq!(words.next(), Some("/usr/bin/fide"));
    assert_eq!(setting("CapabilityBoundingSet"), "");
    let directory = host.path("fide-rack");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let (socket, id) = (format!("{directory}/monitor.sock"), OTHER.to_string());
    let words: Vec<_> = words.map(|word| word.replace("/run/fide-rack/monitor.sock", &socket)).collect();
    assert!(words.contains(&socket), "{words:?}");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--no-new-privs", "--bounding-set", "-all"]);
    let notify = std::os::unix::net::UnixDatagram::bind(host.path("notify")).unwrap();
    fs::set_permissions(host.path("notify"), fs::Permissions::from_mode(0o666)).unwrap();
    let command = command.arg(host.path("fide")).args(&words).env("NOTIFY_SOCKET", host.path("notify"));
    let mut monitor = Process::start(command.stderr(Stdio::null()));
    assert!(monitor.line().starts_with("ready: "));
    let mut word = [0; 64];
    let len = notify.recv(&mut word).unwrap();
    assert_eq!(&word[..len], b"READY=1\n");
    // Programs of root, who trusts it where it is named.
    let end = |role: &str, argument: &str| {
        let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/rack_cli/ends.py");
        let mut command = fide(&["run", "--monitor", &socket, "--monitor-user", &id, "--require", "--library"]);
        command.arg(library()).args(["--", "python3"]).arg(script).args([role, argument]);
        Process::start(&mut command)
    };
    let mut server = end("server", "1");
    let port = server.line();
    let mut client = end("client", &port);
    assert_eq!(client.line(), "asked");
    let top = || -> Value {
        let output = fide(&["top", "--monitor", &socket, "--once", "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let until = std::time::Instant::now() + super::LIMIT;
    while top()["connections"][0]["over"] != "memory" {
        assert!(std::time::Instant::now() < until, "{}", top());
        client.asks_again();
    }
    client.asks_again();
    assert_eq!((client.finishes(), server.ends()), (0, 0));
    assert!(top()["connections"].as_array().unwrap().is_empty(), "a connection that is over is forgotten");
    monitor.signal(rustix::process::Signal::TERM);
    assert_eq!(monitor.ends(), 0);
}
