// SPDX-License-Identifier: Apache-2.0
//! What endpoints show to other processes. Alone in its process, so that no other test's endpoints are seen.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::{fd::BorrowedFd, unix::process::CommandExt},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use fide_pace_socket::{Config, Connection, Endpoint, SHOWN_MAX, ServerKey, ShownEndpoint, Step, shown};

/// For what takes milliseconds.
const TRIES: usize = 1000;

fn of_process(pid: u32) -> Vec<ShownEndpoint> {
    let mut endpoints = shown().endpoints;
    endpoints.retain(|endpoint| endpoint.pid == pid);
    endpoints
}

fn of_this() -> Vec<ShownEndpoint> {
    of_process(std::process::id())
}

/// Waits until what this process shows is as it should be.
fn await_shown(what: &str, is_so: impl Fn(&[ShownEndpoint]) -> bool) -> Vec<ShownEndpoint> {
    for _ in 0..TRIES {
        let endpoints = of_this();
        if is_so(&endpoints) {
            return endpoints;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}: {:#?}", of_this());
}

fn connect(server: &Endpoint, client: &Endpoint, key: &ServerKey) -> (Connection, Connection) {
    let here = client.connect(server.local_address().unwrap(), &key.for_clients(), Config::default()).unwrap();
    (here, server.accept().unwrap())
}

/// Shows a connection until it is killed; started by the test below.
#[test]
#[ignore = "a process of another test"]
fn child() {
    let key = ServerKey::Secret([7; 32]);
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), Config::default()).unwrap();
    let (here, there) = connect(&server, &Endpoint::client().unwrap(), &key);
    here.send(b"one").unwrap();
    there.recv().unwrap();
    println!("\nshows");
    // Its parent kills it; nobody waits longer.
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn connections_are_shown_while_they_are_there_and_asked_for() {
    let key = ServerKey::Secret([7; 32]);
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), Config::default()).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let client = Endpoint::bind(any, None, Config::default(), 2 * SHOWN_MAX).unwrap();
    let (here, there) = connect(&server, &client, &key);
    assert_eq!(of_this(), [], "nobody has asked for it");
    server.show().unwrap();
    client.show().unwrap();
    client.show().unwrap();
    for _ in 0..50 {
        here.send(&[7; 100]).unwrap();
        there.recv().unwrap();
    }
    let endpoints = await_shown("50 messages", |endpoints| {
        let counts = |endpoint: &ShownEndpoint| endpoint.shown.first().map(|shown| shown.snapshot.counts);
        endpoints.iter().filter_map(counts).any(|counts| counts.sent.messages == 50)
            && endpoints.iter().filter_map(counts).any(|counts| counts.received.delivered == 50)
    });
    assert_eq!(endpoints.len(), 2, "{endpoints:#?}");
    let of_server = endpoints.iter().find(|endpoint| endpoint.is_server).unwrap();
    let of_client = endpoints.iter().find(|endpoint| !endpoint.is_server).unwrap();
    assert_eq!(of_server.local, server.local_address().unwrap());
    assert_eq!(of_client.shown[0].peer, of_server.local);
    assert_eq!((of_server.connections, of_server.shown.len()), (1, 1));
    let snapshot = of_client.shown[0].snapshot;
    assert!(snapshot.there.get(Step::Transmit) > 0 && snapshot.round_trip_us.is_some(), "{snapshot:?}");

    // Another user sees nothing of it.
    if rustix::process::geteuid().is_root() {
        let fds = format!("/proc/{}/fd", std::process::id());
        let looks = |uid: u32| Command::new("ls").arg("-l").arg(&fds).uid(uid).gid(uid).output().unwrap();
        let by_root = String::from_utf8(looks(0).stdout).unwrap();
        assert!(by_root.contains("/memfd:fide-pace"), "{by_root}");
        let by_nobody = looks(65_534);
        assert!(!by_nobody.status.success() && by_nobody.stdout.is_empty(), "{by_nobody:?}");
    }

    // A program that it starts keeps the file, if somebody lets it, and shows nothing by it.
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let ours: Vec<i32> = descriptors
        .filter(|entry| {
            fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:fide-pace"))
        })
        .map(|entry| entry.file_name().to_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(ours.len(), 2, "an endpoint that is shown already has no second file");
    for fd in ours {
        // SAFETY: the endpoints that have it open outlive this.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).unwrap();
    }
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let has_it = fs::read_dir(format!("/proc/{}/fd", other.id())).unwrap().count() > 3;
    let shown_by_other = of_process(other.id());
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(has_it && shown_by_other.is_empty(), "{shown_by_other:?}");

    // More than there is room for are counted.
    let many: Vec<_> = (0..SHOWN_MAX).map(|_| connect(&server, &client, &key)).collect();
    let all = SHOWN_MAX as u64 + 1;
    let endpoints = await_shown("all connections", |endpoints| {
        endpoints.len() == 2 && endpoints.iter().all(|endpoint| endpoint.connections == all)
    });
    assert!(endpoints.iter().all(|endpoint| endpoint.shown.len() == SHOWN_MAX), "{endpoints:#?}");
    drop(many);
    await_shown("one connection again", |endpoints| endpoints.iter().all(|endpoint| endpoint.connections == 1));
    drop((here, there, server, client));
    await_shown("nothing", <[_]>::is_empty);
}

#[test]
fn environment_asks_for_it_and_a_killed_process_leaves_nothing() {
    for (value, count) in [("1", 2), ("0", 0), ("", 0)] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env("FIDE_PACE_SHOW", value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "shows"));
        let shown = of_process(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(shown.len(), count, "FIDE_PACE_SHOW={value}: {shown:#?}");
        assert_eq!(of_process(child.id()), []);
    }
}
