// SPDX-License-Identifier: Apache-2.0
//! Agents whose only plane is windows: memory of this machine, which each two of them map.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use fide_client::{Client, Event, MonitorId, Reason, Wanted};
use fide_rack::{
    pci::{PciWindow, Side},
    plane::Plane,
};

use crate::{
    agents::{self, Killed, LIMIT, next},
    cli_edges::common::{Place, refused, said},
};

const HOSTS: usize = 3;
const FILE_LEN: u64 = 64 << 10;
const PAIRS: [&str; 3] = ["w1+w2", "w1+w3", "w2+w3"];

/// A file of memory.
fn make(path: &Path, len: u64) {
    File::create(path).expect("made").set_len(len).expect("long");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("mode");
}

struct Cluster {
    agents: Vec<Option<Killed>>,
    place: Place,
    /// In memory.
    windows: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Self {
        let windows = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        PAIRS.iter().for_each(|pair| make(&windows.path().join(pair), FILE_LEN));
        let mut toml = format!(
            "[cluster]\nkey_file = \"cluster.key\"\nheartbeat_us = 10000\ntimeout_us = 1000000\n\
             [agent]\nexit_watch = \"pidfd\"\n[[plane]]\nwindows = \"{}\"\n",
            windows.path().display()
        );
        (1..=HOSTS).for_each(|host| toml += &format!("[[member]]\nname = \"w{host}\"\n"));
        let mut cluster = Self { agents: Vec::new(), place: Place::with(&toml), windows };
        for host in 1..=HOSTS {
            let agent = cluster.agent(host).spawn().expect("started");
            cluster.agents.push(Some(Killed(agent)));
        }
        cluster
    }

    fn agent(&self, host: usize) -> Command {
        let own = format!("w{host}");
        let words = ["agent", "--config", "fide.toml", "--force-timeout", "--host", &own];
        let mut command = self.place.fide(&words);
        command.args(["--runtime-dir", &own, "--state-dir", &own]).stderr(Stdio::null());
        command
    }

    fn counters(&self, host: usize) -> serde_json::Value {
        let status = said(self.place.fide(&["status", "--json"]).env("FIDE_SOCKET", self.socket(host))).1;
        serde_json::from_str::<serde_json::Value>(&status).expect("JSON")["counters"].clone()
    }

    fn status(&self, host: usize) -> String {
        said(self.place.fide(&["status"]).env("FIDE_SOCKET", self.socket(host))).1
    }

    /// Waits until a host's view is one of these hosts.
    fn await_view(&self, host: usize, hosts: &str) {
        let until = Instant::now() + LIMIT;
        while let status = self.status(host)
            && !status.contains(hosts)
        {
            assert!(Instant::now() < until, "{status}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.place.path(&format!("w{host}/agent.sock"))
    }

    /// Connects once there is an agent.
    fn client(&self, host: usize) -> Client {
        agents::client(&self.socket(host))
    }
}

/// Watches a target until it is up.
fn watch(client: &mut Client, target: &str) -> MonitorId {
    let monitor = client.monitor(target, Wanted::default()).expect("watched").id;
    next(client, "up", |event| matches!(event, Event::Up { monitor: of, .. } if *of == monitor).then_some(()));
    monitor
}

fn reason(client: &mut Client, monitor: MonitorId) -> Reason {
    next(client, "the end", |event| match event {
        Event::Verdict(verdict) if verdict.monitor == monitor => Some(verdict.reason),
        _ => None,
    })
}

/// The events that have come.
fn events(client: &mut Client) -> Vec<Event> {
    std::iter::from_fn(|| client.wait_event(Some(Duration::ZERO)).expect("event")).collect()
}

/// Sends packets in the place of the second host of a window, for longer than a timeout.
fn flood(path: &Path) {
    let window = PciWindow::open(path, Side::Second).expect("a window");
    let mut plane = Plane::new([Arc::new(window)], 1);
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        for _ in 0..100 {
            plane.send(&[0x5a; 200]).expect("not cut");
        }
        let _ = plane.receive(&mut [0; 200]);
        std::thread::yield_now();
    }
}

#[test]
fn processes_and_hosts_die_where_all_heartbeats_go_through_memory() {
    let mut cluster = Cluster::start();
    let (mut near, mut far) = (cluster.client(1), cluster.client(2));
    let mut child =
        Killed(Command::new("sh").args(["-c", "read line; exit 4"]).stdin(Stdio::piped()).spawn().expect("sh"));
    near.join_pid("p", child.0.id(), Duration::ZERO).expect("joined");
    let watched = watch(&mut far, "p@w1");
    drop(child.0.stdin.take());
    assert_eq!(reason(&mut far, watched), Reason::Exited(4));

    let status = cluster.status(1);
    assert!(status.contains("windows, read every 2.5 ms"), "{status}");

    // Members of a group have addresses only where there is a network.
    let paths = [cluster.socket(1), cluster.place.path("group"), cluster.place.path("cluster.key")];
    let [socket, state, key] = paths.map(|path| path.display().to_string());
    let words = ["--group", "g", "--hosts", "w1,w2,w3", "--socket", &socket, "--state-dir", &state, "--key-file", &key];
    let why = fide_counter::main(&words.map(str::to_owned)).expect_err("no member").to_string();
    assert!(why.contains("host w1 has no address: all planes of its cluster are windows"), "{why}");

    // A stranger who may write there writes everywhere, for as long as many heartbeats.
    let host = watch(&mut far, "@w1");
    let file = File::options().write(true).open(cluster.windows.path().join("w2+w3")).expect("open");
    for number in 0..400_u64 {
        let garbage = vec![u8::try_from(number % 251).expect("small"); usize::try_from(FILE_LEN).expect("small")];
        file.write_all_at(&garbage, 0).expect("written");
        std::thread::sleep(Duration::from_micros(500));
    }
    // The two find each other again, if they have lost each other at all.
    watch(&mut far, "@w3");
    let third = watch(&mut near, "@w3");

    cluster.agents[2] = None;
    assert_eq!(reason(&mut near, third), Reason::HostSilent);
    // In its place, somebody without the key sends as fast as it is taken.
    let live = near.live();
    let second = watch(&mut near, "@w2");
    flood(&cluster.windows.path().join("w1+w3"));
    let (counters, events) = (cluster.counters(1), events(&mut near));
    assert!(counters["refused_bad_tag"].as_u64() > Some(1000), "{counters:#}");
    assert!(!live.fenced(), "{events:#?}");
    let is_final = |event: &Event| matches!(event, Event::Verdict(verdict) if verdict.monitor == second);
    assert!(!events.iter().any(is_final), "{events:#?}");
    // An agent that begins again in its place reads nothing of the one before.
    cluster.agents[2] = Some(Killed(cluster.agent(3).spawn().expect("started")));
    cluster.await_view(2, ": w1, w2, w3\n");
    cluster.agents[0] = None;
    assert_eq!(reason(&mut far, host), Reason::HostSilent);
}

#[test]
fn windows_that_are_none_are_refused_at_the_start() {
    const FILE: &str = "[cluster]\nkey_file = \"cluster.key\"\n[agent]\nexit_watch = \"pidfd\"\ncalibrate_ms = 1\n\
                        [[plane]]\nwindows = \"w\"\n[[member]]\nname = \"a\"\n[[member]]\nname = \"b\"\n";
    let place = Place::with(FILE);
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let refuses = |words: &[&str]| {
        for more in [&["--host", "b"][..], &["--host", "b", "--check"]] {
            refused(&mut place.agent(more), 2, words);
            assert!(!place.path("agent.sock").exists() && !place.path("incarnation").exists(), "nothing was begun");
        }
    };
    refuses(&[
        "plane 0: ",
        "w/a+b is not there, the window to a: ",
        "a file of 65536 bytes or more that both hosts map",
    ]);
    fs::create_dir(place.path("w")).expect("made");
    refuses(&["w/a+b is not there"]);
    make(&place.path("w/a+b"), FILE_LEN);
    refuses(&["w/a+b: a file on a disk, for which the agent would wait at times: make it in memory, as in /dev/shm"]);
    fs::remove_dir_all(place.path("w")).expect("removed");
    std::os::unix::fs::symlink(memory.path(), place.path("w")).expect("made");
    make(&place.path("w/a+b"), 1 << 12);
    refuses(&["w/a+b has 4096 bytes, and heartbeats need 65536: `truncate -s 65536`"]);
    make(&place.path("w/a+b"), 1 << 40);
    refuses(&["has 1099511627776 bytes: a window that is no device's takes 67108864 at most"]);
    make(&place.path("w/a+b"), FILE_LEN + 4);
    refuses(&["the window to a: ", "has 65540 bytes: a window takes a multiple of 16"]);
    fs::remove_file(place.path("w/a+b")).expect("removed");
    std::os::unix::fs::symlink("/dev/zero", place.path("w/a+b")).expect("made");
    refuses(&["the window to a: /dev/zero: neither a file of a BAR nor one of memory"]);
    refused(&mut place.agent(&[]), 2, &["without a plane that is a network", "--host (a, b)"]);
    fs::remove_file(place.path("w/a+b")).expect("removed");
    make(&place.path("w/a+b"), FILE_LEN);
    let (code, out, err) = said(&mut place.agent(&["--host", "b", "--check"]));
    assert!(code == Some(0) && out.contains("1 planes"), "{out}{err}");
    // As where three guests have one device.
    let place = Place::with(&(FILE.to_owned() + "[[member]]\nname = \"c\"\n"));
    fs::create_dir(place.path("w")).expect("made");
    for pair in ["a+b", "b+c"] {
        std::os::unix::fs::symlink(memory.path().join("a+b"), place.path("w").join(pair)).expect("made");
    }
    for more in [&["--host", "b"][..], &["--host", "b", "--check"]] {
        refused(&mut place.agent(more), 2, &["plane 0: ", "w/a+b and ", "w/b+c are one memory: each two hosts need"]);
    }
}
