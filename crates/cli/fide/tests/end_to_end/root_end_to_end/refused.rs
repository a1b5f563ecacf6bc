// SPDX-License-Identifier: Apache-2.0
//! Configurations and hosts with which no agent starts, and the messages about it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use super::common::{Running, calm, fide, output, start, until_true, world};

const GOOD: &str = r#"
[cluster]
key_file = "cluster.key"
heartbeat_us = 5000
port = 7499
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
"#;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(toml: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a directory") };
        fs::write(place.path("fide.toml"), toml).expect("written");
        fs::write(place.path("cluster.key"), "000102030405060708090a0b0c0d0e0f\n").expect("written");
        place.key_mode(0o400);
        place
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn key_mode(&self, mode: u32) {
        fs::set_permissions(self.path("cluster.key"), fs::Permissions::from_mode(mode)).expect("mode");
    }

    fn agent(&self, more: &[&str]) -> Command {
        agent(&self.path("fide.toml"), self.dir.path(), more)
    }
}

fn agent(config: &Path, dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(fide());
    command.arg("agent").arg("--config").arg(config).arg("--runtime-dir").arg(dir).arg("--state-dir").arg(dir);
    command.args(more);
    command
}

/// The agent ends with this code and prints these words.
fn refused(command: &mut Command, code: i32, says: &[&str]) {
    let (got, _, err) = output(command);
    assert_eq!(got, Some(code), "{err}");
    for text in says {
        assert!(err.contains(text), "{text:?} is not in {err:?}");
    }
}

#[test]
fn wrong_configuration_ends_with_code_2_and_a_hint() {
    let cases: [(&str, &str, &[&str]); 12] = [
        ("[cluster]", "[cluster]\nheartbeet_us = 5", &["heartbeet_us", "unknown field"]),
        ("[agent]", "[agent]\nmode = \"fast\"", &["fast", "sleep", "busy"]),
        ("heartbeat_us = 5000", "heartbeat_us = 5", &["heartbeat_us = 5", "20 to 1000000"]),
        (
            "heartbeat_us = 5000",
            "heartbeat_us = 5000\ntimeout_us = 5000",
            &["timeout_us = 5000", "every heartbeat would be late"],
        ),
        ("port = 7499", "port = 0", &["port = 0", "7411"]),
        ("port = 7499", "port = 74111", &["74111"]),
        ("[[plane]]", "[[plane]]\ngroup = \"10.0.0.1\"", &["no multicast address"]),
        ("[[plane]]", "", &["0 [[plane]] sections"]),
        ("[[plane]]", "[[plane]]\n[[plane]]", &["1 addresses", "each of the 2 planes"]),
        ("name = \"b\"", "name = \"a\"", &["name a is used twice"]),
        ("127.0.0.2", "127.0.0.1", &["127.0.0.1 is used twice"]),
        ("name = \"b\"", "name = \"b\"\nmonitors = [\"c\"]", &["monitors c, which is no member"]),
    ];
    for (from, to, says) in cases {
        assert!(GOOD.contains(from));
        let place = Place::new(&GOOD.replacen(from, to, 1));
        refused(&mut place.agent(&["--host", "a"]), 2, says);
        refused(&mut place.agent(&["--check"]), 2, says);
        assert!(!place.path("agent.sock").exists() && !place.path("incarnation").exists());
    }
    let place = Place::new(GOOD);
    refused(&mut place.agent(&["--host", "nobody"]), 2, &["no member is called nobody", "a, b"]);
    refused(&mut place.agent(&["--config-file"]), 2, &["--config-file"]);
    let missing = place.path("missing.toml");
    refused(&mut agent(&missing, place.dir.path(), &[]), 2, &["missing.toml", "No such file"]);
    let (code, out, err) = output(&mut place.agent(&["--check"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("is right"), "{out}");
}

#[test]
fn keys_readable_by_others_are_refused() {
    let place = Place::new(GOOD);
    for mode in [0o440, 0o404, 0o644, 0o420] {
        place.key_mode(mode);
        refused(&mut place.agent(&["--host", "a"]), 2, &[&format!("mode {mode:04o}"), "chmod 0400"]);
    }
    fs::remove_file(place.path("cluster.key")).expect("removed");
    refused(&mut place.agent(&["--host", "a"]), 2, &["cluster.key", "No such file"]);
    fs::write(place.path("cluster.key"), "0001").expect("written");
    place.key_mode(0o600);
    refused(&mut place.agent(&["--host", "a"]), 2, &["32 hexadecimal digits"]);
}

#[test]
fn unsupported_by_this_host_ends_with_code_3() {
    for wanted in ["receive = \"xdp\"", "receive = \"xdp-generic\"", "receive = \"af-packet\""] {
        let place = Place::new(&GOOD.replacen("receive = \"udp\"", wanted, 1));
        refused(&mut place.agent(&["--host", "a"]), 3, &[wanted, "loopback", "auto"]);
    }
}

#[test]
fn absent_address_is_named() {
    let place = Place::new(&GOOD.replacen("127.0.0.1", "203.0.113.7", 1));
    let (code, _, err) = output(&mut place.agent(&["--host", "a"]));
    assert!(code.is_some_and(|code| code != 0), "{err}");
    assert!(err.contains("plane 0") && err.contains("203.0.113.7"), "{err}");
}

#[test]
fn no_agent_is_code_1_and_says_how_to_start_one() {
    let place = Place::new(GOOD);
    let socket = place.path("agent.sock");
    for arguments in [&["status"][..], &["watch", "@a"], &["run", "--name", "x", "--", "true"], &["metrics"]] {
        let mut command = Command::new(fide());
        command.args(arguments).env("FIDE_SOCKET", &socket);
        refused(&mut command, 1, &["agent.sock", "fide agent"]);
    }
    let mut command = Command::new(fide());
    refused(command.arg("bogus"), 2, &["bogus", "Usage"]);
}

#[test]
fn root_timeout_too_short_for_this_host_is_refused_unless_forced() {
    let Some(world) = start(2, fide_testbed::AgentsSpec { hosts: vec![1], ..calm() }) else { return };
    let dir = world.bed.scratch().join("hasty");
    fs::create_dir_all(&dir).expect("made");
    let good = fs::read_to_string(world.agents.dir(2).join("fide.toml")).expect("there");
    let hasty = good.replace("timeout_us = 400000", "timeout_us = 15000");
    assert_ne!(hasty, good);
    let config = dir.join("fide.toml");
    fs::write(&config, hasty).expect("written");
    let on_h2 = |more: &[&str]| {
        let mut command = world.bed.host(2).command(fide());
        command.arg("agent").arg("--config").arg(&config).args(["--host", "h2"]).arg("--runtime-dir").arg(&dir);
        command.arg("--state-dir").arg(&dir).args(more);
        command
    };
    refused(&mut on_h2(&[]), 2, &["timeout_us = 15000", "measured to hold", "--force-timeout"]);
    let _forced = Running::start(&mut on_h2(&["--force-timeout"]));
    until_true("it runs", || {
        let mut status = Command::new(fide());
        let (code, out, _) = output(status.args(["status", "--socket"]).arg(dir.join("agent.sock")));
        code.is_some() && out.contains("timeout 15 ms")
    });
}

#[test]
fn root_the_timeout_stands_on_the_stored_bound_if_it_is_of_this_host() {
    let Some(world) = start(2, fide_testbed::AgentsSpec { hosts: vec![1], ..calm() }) else { return };
    let dir = world.bed.scratch().join("bounded");
    fs::create_dir_all(&dir).expect("made");
    let config = dir.join("fide.toml");
    let calm = fs::read_to_string(world.agents.dir(2).join("fide.toml")).expect("there");
    fs::write(&config, calm.replace("timeout_us = 400000", "timeout_us = 50000")).expect("written");
    let read = |path: &str| fs::read_to_string(path).expect("there").trim().to_owned();
    let boot = read("/proc/sys/kernel/random/boot_id");
    let bound = |boot_id: &str| {
        format!(
            "version = 1\n[[bound]]\ncore = {}\nmethod = \"wake-up\"\njitter_max_ns = 14000000\npackets = 1000\n\
             confidence = 0.95\nmeasured_at_s = 1\nkernel = \"{}\"\nboot_id = \"{boot_id}\"\n",
            fide_net::isolation::default_core(),
            read("/proc/sys/kernel/osrelease"),
        )
    };
    let on_h2 = |more: &[&str]| {
        let mut command = world.bed.host(2).command(fide());
        command.arg("agent").arg("--config").arg(&config).args(["--host", "h2"]).arg("--runtime-dir").arg(&dir);
        command.arg("--state-dir").arg(&dir).args(more);
        command
    };
    let rung = || {
        let mut status = Command::new(fide());
        let (_, out, _) = output(status.args(["status", "--json", "--socket"]).arg(dir.join("agent.sock")));
        serde_json::from_str::<serde_json::Value>(&out).map(|status| status["rungs"]["bound"].clone()).ok()
    };
    // 14 ms of jitter: the configured timeout of 50 ms is too short for it.
    fs::write(dir.join("bound.toml"), bound(&boot)).expect("written");
    refused(
        &mut on_h2(&[]),
        2,
        &["timeout_us = 50000", "measured to hold", "own lateness up to 14 ms", "--force-timeout"],
    );
    let running = Running::start(&mut on_h2(&["--force-timeout"]));
    until_true("it goes by the bound", || {
        rung().is_some_and(|rung| rung["used"] == "14 ms late at most, by wake-up of 1000 timers")
    });
    drop(running);
    // A bound from another boot does not count, and the agent says so.
    fs::write(dir.join("bound.toml"), bound("another")).expect("written");
    let _running = Running::start(&mut on_h2(&["--force-timeout"]));
    until_true("it measures by itself", || {
        rung().is_some_and(|rung| rung["fell_back"].as_str().is_some_and(|why| why.contains("boot another")))
    });
}

#[test]
fn root_planes_too_narrow_for_a_heartbeat_are_named() {
    let Some(world) = start(2, fide_testbed::AgentsSpec { hosts: vec![1], ..calm() }) else { return };
    let mut ip = world.bed.host(2).command("ip");
    assert_eq!(output(ip.args(["link", "set", "p1", "mtu", "150"])).0, Some(0));
    let dir = world.agents.dir(2);
    let mut narrow = world.bed.host(2).command(fide());
    narrow.arg("agent").arg("--config").arg(dir.join("fide.toml")).args(["--host", "h2", "--force-timeout"]);
    narrow.arg("--runtime-dir").arg(&dir).arg("--state-dir").arg(dir.join("state"));
    refused(&mut narrow, 3, &["p0, p1", "150 bytes", "ip link set"]);
}

#[test]
fn root_a_second_agent_is_refused_and_does_not_disturb_the_first() {
    let Some(world) = world(2, calm()) else { return };
    let mut eyes = world.client(1);
    let host = eyes.watch("@h2");
    let before = world.status(2)["incarnation"].clone();
    let dir = world.agents.dir(2);
    let mut second = world.bed.host(2).command(fide());
    second
        .arg("agent")
        .arg("--config")
        .arg(dir.join("fide.toml"))
        .args(["--host", "h2"])
        .arg("--runtime-dir")
        .arg(&dir);
    second.arg("--state-dir").arg(dir.join("state"));
    refused(&mut second, 1, &["already running", "agent.sock"]);
    eyes.quiet();
    assert_eq!(eyes.finals(&host), 0);
    assert_eq!(world.status(2)["incarnation"], before);
}
