// SPDX-License-Identifier: Apache-2.0
//! Agents on loopback: UDP and pidfds, without root, BPF or namespaces.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use fide_client::{Client, Event, Reason, Wanted};
use fide_testbed::Lines;
use rustix::process::{Pid, Signal, kill_process};

use crate::agents::{self, Killed, LIMIT, next};

const HOSTS: u8 = 3;

struct Cluster {
    agents: Vec<Option<Killed>>,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn start(port: u16) -> Self {
        Self::start_in(port, &[])
    }

    /// The same, with each agent started by the program `wrapper`.
    fn start_in(port: u16, wrapper: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let key = dir.path().join("cluster.key");
        fs::write(&key, "000102030405060708090a0b0c0d0e0f").expect("written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).expect("mode");
        let mut toml = format!(
            "[cluster]\nkey_file = \"cluster.key\"\nheartbeat_us = 10000\ntimeout_us = 1000000\nport = {port}\n\
             [agent]\nreceive = \"udp\"\nexit_watch = \"pidfd\"\n[[plane]]\n"
        );
        for host in 1..=HOSTS {
            toml += &format!("[[member]]\nname = \"l{host}\"\naddresses = [\"127.70.0.{host}\"]\n");
        }
        fs::write(dir.path().join("fide.toml"), toml).expect("written");
        let mut cluster = Self { agents: Vec::new(), dir };
        for host in 1..=HOSTS {
            let own = cluster.dir.path().join(format!("l{host}"));
            let words = [wrapper, &[env!("CARGO_BIN_EXE_fide"), "agent"]].concat();
            let agent = Command::new(words[0])
                .args(&words[1..])
                .arg("--config")
                .arg(cluster.dir.path().join("fide.toml"))
                .args(["--host", &format!("l{host}"), "--force-timeout"])
                .arg("--runtime-dir")
                .arg(&own)
                .arg("--state-dir")
                .arg(&own)
                .stderr(Stdio::null())
                .spawn()
                .expect("started");
            cluster.agents.push(Some(Killed(agent)));
        }
        cluster
    }

    fn socket(&self, host: u8) -> PathBuf {
        self.dir.path().join(format!("l{host}/agent.sock"))
    }

    /// Connects once there is an agent.
    fn client(&self, host: u8) -> Client {
        agents::client(&self.socket(host))
    }
}

#[test]
fn deaths_arrive_over_loopback_without_bpf() {
    let mut cluster = Cluster::start(7496);
    let mut near = cluster.client(1);
    let mut eyes: Vec<Client> = (1..=HOSTS).map(|host| cluster.client(host)).collect();
    for (n, (script, reason)) in [("exit 4", Reason::Exited(4)), ("kill -9 $$", Reason::Killed(9))].iter().enumerate() {
        let mut child = Killed(
            Command::new("sh").args(["-c", &format!("read line; {script}")]).stdin(Stdio::piped()).spawn().expect("sh"),
        );
        let name = format!("p{n}");
        near.join_pid(&name, child.0.id(), Duration::ZERO).expect("joined");
        let target = format!("{name}@l1");
        let monitors: Vec<_> =
            eyes.iter_mut().map(|c| c.monitor(&target, Wanted::default()).expect("watched")).collect();
        for (client, watched) in eyes.iter_mut().zip(&monitors) {
            next(client, "up", |event| {
                matches!(event, Event::Up { monitor, .. } if *monitor == watched.id).then_some(())
            });
        }
        drop(child.0.stdin.take());
        for (client, watched) in eyes.iter_mut().zip(&monitors) {
            let got = next(client, "the end", |event| match event {
                Event::Verdict(verdict) if verdict.monitor == watched.id => Some(verdict.reason),
                _ => None,
            });
            assert_eq!(got, *reason);
        }
    }
    let host = eyes[0].monitor("@l3", Wanted::default()).expect("watched");
    next(&mut eyes[0], "up", |event| matches!(event, Event::Up { monitor, .. } if *monitor == host.id).then_some(()));
    let live = eyes[2].live();
    cluster.agents[2] = None;
    let reason = next(&mut eyes[0], "the silence", |event| match event {
        Event::Verdict(verdict) if verdict.monitor == host.id => Some(verdict.reason),
        _ => None,
    });
    assert_eq!(reason, Reason::HostSilent);
    let until = Instant::now() + LIMIT;
    while !live.fenced() {
        assert!(Instant::now() < until, "programs of a dead agent are fenced");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn lanes_need_a_controller_and_listening_does_not() {
    let cluster = Cluster::start(7497);
    drop(cluster.client(1));
    let lane = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fide"));
        command.arg("lane").args(arguments).env("FIDE_SOCKET", cluster.socket(1)).stdin(Stdio::null());
        command
    };
    let arguments = ["send", "work", "--to", "l2", "--service", "7", "--size", "100", "--period", "10ms"];
    let output = lane(&arguments).output().expect("fide");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains("`fide controller`"), "{said}");
    let mut listen = Killed(lane(&["listen", "7", "255", "--json"]).stdout(Stdio::piped()).spawn().expect("fide"));
    let mut lines = Lines::of(listen.0.stdout.take().expect("piped"));
    assert_eq!(lines.next().as_deref(), Some(r#"{"host":"l1","kind":"listening","services":[7,255]}"#));
    let pid = Pid::from_raw(i32::try_from(listen.0.id()).expect("a pid")).expect("not 0");
    kill_process(pid, Signal::TERM).expect("sent");
    assert_eq!(listen.0.wait().expect("ended").code(), Some(0));
}

/// The program's clocks are offset: the end of its host's lease is another point in time to it.
#[test]
fn root_program_in_another_time_namespace_is_refused() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--time", "--monotonic", "7", "--fork"]);
        command
    };
    if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs root, unshare of util-linux and a kernel with time namespaces");
        return;
    }
    let cluster = Cluster::start(7498);
    drop(cluster.client(1));
    let mut command = unshare();
    command.args([env!("CARGO_BIN_EXE_fide"), "watch", "p@l1"]).env("FIDE_SOCKET", cluster.socket(1));
    let output = command.output().expect("unshare");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("another time namespace"), "{said}");
}

/// As in a container that does not share the host's pid namespace.
#[test]
fn root_join_from_another_pid_namespace_is_refused_with_the_reason() {
    let wrapper = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let tried = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs root and unshare of util-linux");
        return;
    }
    let cluster = Cluster::start_in(7492, &wrapper);
    let mut client = cluster.client(1);
    let own = std::process::id();
    for refused in [client.join("self"), client.join_pid("other", own, Duration::ZERO)] {
        let error = refused.expect_err("its process id is unknown there").to_string();
        assert!(error.contains("pid namespace of its own") && error.contains("--pid=host"), "{error}");
    }
    // A program that only watches needs no process id.
    let monitor = client.monitor("@l2", Wanted::default()).expect("watched");
    next(&mut client, "up", |event| matches!(event, Event::Up { monitor: of, .. } if *of == monitor.id).then_some(()));
    let words = ["run", "--name", "db", "--", "true"];
    let mut run = Command::new(env!("CARGO_BIN_EXE_fide"));
    let output = run.args(words).env("FIDE_SOCKET", cluster.socket(1)).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains("--pid=host"), "{:?}: {said}", output.status);
}
