// SPDX-License-Identifier: Apache-2.0
//! Programs of Python under the library, and the same without it: they see the same.

mod under;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use fide_rack::meet::monitor::Monitor;
use under::ends;

struct Host {
    _monitor: Option<Monitor>,
    directory: tempfile::TempDir,
}

/// Which ends have the library.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    None,
    Server,
    Client,
    Both,
}

/// What both ends printed, and how many of them used memory.
struct Seen {
    printed: [String; 2],
    attached: usize,
}

impl Host {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let monitor = Monitor::start(&directory.path().join(under::MONITOR)).unwrap();
        Self { _monitor: Some(monitor), directory }
    }

    fn without_monitor() -> Self {
        Self { _monitor: None, directory: tempfile::tempdir().unwrap() }
    }

    fn command(&self, is_under: bool, name: &str, role: &str, env: &[(&str, &str)]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/pair.py");
        let mut command = Command::new("python3");
        command
            .arg("-B")
            .arg(script)
            .args([name, role])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .envs(env.iter().copied());
        if is_under {
            under::sets(&mut command, self.directory.path());
        }
        command
    }

    fn run(&self, name: &str, under: Under, env: &[(&str, &str)]) -> Seen {
        let _ = fs::remove_file(self.directory.path().join(under::STATS));
        let mut server =
            self.command(matches!(under, Under::Server | Under::Both), name, "server", env).spawn().unwrap();
        let mut of_server = BufReader::new(server.stdout.take().unwrap());
        let mut port = String::new();
        of_server.read_line(&mut port).unwrap();
        let mut client = self.command(matches!(under, Under::Client | Under::Both), name, "client", env);
        let mut client = client.arg(port.trim()).spawn().unwrap();
        let of_client = client.stdout.take().unwrap();
        let reads = thread::spawn(move || ends(server, of_server));
        let of_client = ends(client, of_client);
        let printed = [reads.join().unwrap(), of_client];
        let stats = fs::read_to_string(self.directory.path().join(under::STATS)).unwrap_or_default();
        Seen { printed, attached: stats.lines().filter(|line| !line.ends_with("attached 0")).count() }
    }

    /// As without the library, and over memory.
    fn is_the_same(&self, name: &str, users: usize) {
        let plain = self.run(name, Under::None, &[]);
        assert_eq!(plain.attached, 0);
        let cold = self.run(name, Under::Both, &[("COLD", "1")]);
        assert_eq!(cold.printed, plain.printed, "{name}, cold");
        for connects in ["blocking", "nonblocking"] {
            // On a host that has much else to do the memory comes late.
            for warm in ["30", "150", "1000"] {
                let seen = self.run(name, Under::Both, &[("CONNECTS", connects), ("WARM", warm)]);
                assert_eq!(seen.printed, plain.printed, "{name}, {connects}");
                // A process that was forked says what its parent had.
                if seen.attached == users || name == "serves-by-forks" && seen.attached == users + 1 {
                    break;
                }
                assert_ne!(warm, "1000", "{name}, {connects}: {} ends used memory", seen.attached);
            }
        }
    }
}

macro_rules! same {
    ($($test:ident: $name:literal, $users:literal;)*) => {
        $(
            #[test]
            fn $test() {
                Host::new().is_the_same($name, $users);
            }
        )*
    };
}

same! {
    echo_is_the_same: "echo", 2;
    flags_mean_the_same: "flags", 2;
    large_streams_both_ways_are_the_same: "both", 2;
    select_is_the_same: "select", 2;
    poll_is_the_same: "poll", 2;
    epoll_is_the_same: "epoll", 2;
    edge_triggered_epoll_is_the_same: "epoll-edge", 2;
    edges_and_single_shots_are_the_same: "edges", 2;
    set_that_another_thread_changes_is_the_same: "rearms", 2;
    set_that_another_thread_adds_to_is_the_same: "adds", 2;
    threads_of_one_set_are_the_same: "pool", 2;
    threads_of_one_edge_triggered_set_are_the_same: "pool-edge", 2;
    threads_of_one_set_of_single_shots_are_the_same: "pool-once", 2;
    set_in_a_set_is_the_same: "nested", 2;
    exclusive_sets_are_the_same: "exclusive", 2;
    large_set_is_the_same: "crowd", 2;
    set_of_parent_and_child_is_the_same: "set-forks", 2;
    shut_halves_are_the_same: "halves", 2;
    second_descriptors_are_the_same: "dups", 2;
    files_are_sent_the_same: "files", 2;
    files_that_are_not_in_memory_are_sent_the_same: "cold-files", 2;
    files_of_the_c_library_are_the_same: "streams", 2;
    reads_and_writes_with_flags_are_the_same: "vectors", 2;
    connections_that_other_programs_serve_are_the_same: "served-by-others", 2;
    // Of those that are handed on at once none goes over.
    connections_of_other_programs_are_the_same: "inherits", 2;
    low_water_marks_are_the_same: "low-water", 2;
    // The child says what its parent had, too.
    fork_after_accept_is_the_same: "forks", 3;
    // Here as well, if the server has got it before the fork: its child goes on with that.
    servers_that_fork_for_each_connection_are_the_same: "serves-by-forks", 2;
    other_programs_are_begun_the_same: "spawns", 2;
    // The killed one says nothing.
    killed_peer_is_the_same: "killed", 1;
    close_is_the_same: "closed", 2;
    threads_are_the_same: "threads", 2;
    round_trips_are_the_same: "pingpong", 2;
    round_trips_by_epoll_are_the_same: "epolls", 2;
}

#[test]
fn program_without_monitor_uses_tcp() {
    let host = Host::without_monitor();
    let plain = host.run("echo", Under::None, &[]);
    let seen = host.run("echo", Under::Both, &[]);
    assert_eq!((seen.printed, seen.attached), (plain.printed, 0));
}

/// As where another one has taken the place of the monitor that the caller has found.
#[test]
fn monitor_of_another_user_is_asked_nothing() {
    let host = Host::new();
    let plain = host.run("echo", Under::None, &[]);
    for (uid, users) in [("54321", 0), ("no number", 0), ("", 0)] {
        let seen = host.run("echo", Under::Both, &[("FIDE_RACK_MONITOR_UID", uid)]);
        assert_eq!((&seen.printed, seen.attached), (&plain.printed, users), "{uid:?}");
    }
    let me = fs::metadata("/proc/self").unwrap().uid().to_string();
    // Where the monitor is slow, its answers may come after the end.
    let is_attached = |_| host.run("echo", Under::Both, &[("FIDE_RACK_MONITOR_UID", &me)]).attached == 2;
    assert!((0..20).any(is_attached), "its own monitor is asked");
}

/// Another process that is given a connection sees its bytes, also of one that was over memory.
#[test]
fn connection_over_memory_is_handed_on() {
    let host = Host::new();
    let plain = host.run("hands-on", Under::None, &[]).printed;
    let was_over_memory = |_| {
        let seen = host.run("hands-on", Under::Both, &[("WARM", "100")]);
        assert_eq!(seen.printed, plain);
        seen.attached == 2
    };
    assert!((0..20).any(was_over_memory), "it never goes over memory");
}

/// Whether it uses memory depends on which comes first, the fork or the memory.
#[test]
fn connection_that_a_child_keeps_is_the_same() {
    let host = Host::new();
    let plain = host.run("keeps-forked", Under::None, &[]);
    for _ in 0..5 {
        assert_eq!(host.run("keeps-forked", Under::Both, &[]).printed, plain.printed);
    }
}

#[test]
fn one_end_without_the_library_uses_tcp() {
    let host = Host::new();
    for name in ["echo", "both", "epoll", "epoll-edge", "halves", "edges", "flags"] {
        let plain = host.run(name, Under::None, &[]);
        for under in [Under::Server, Under::Client] {
            let seen = host.run(name, under, &[]);
            assert_eq!((&seen.printed, seen.attached), (&plain.printed, 0), "{name}");
        }
    }
}

/// Of connections with any other host it asks nothing. Both ends are of one here, each with an address of its own.
#[test]
fn root_connection_with_a_host_that_has_a_link_is_asked_for() {
    const ADDRESSES: [(&str, &str); 2] = [("CLIENT", "10.9.0.1"), ("SERVER", "10.9.0.2")];
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root, and so without a network namespace");
        return;
    }
    // Of the thread alone, and of what it starts.
    let test = thread::spawn(|| {
        // SAFETY: it changes only which network this thread has.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
        let ip =
            |words: &str| assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
        ip("link set lo up");
        ADDRESSES.iter().for_each(|(_, address)| ip(&format!("addr add {address}/32 dev lo")));
        let host = Host::new();
        let run = |under, peers| {
            let env: Vec<_> = ADDRESSES.into_iter().chain([("WARM", "150"), ("FIDE_RACK_PEERS", peers)]).collect();
            host.run("echo", under, &env)
        };
        let plain = run(Under::None, "");
        for peers in ["", "10.9.1.0/24+fd00::/64"] {
            let seen = run(Under::Both, peers);
            assert_eq!((&seen.printed, seen.attached), (&plain.printed, 0), "{peers}");
        }
        // Where the monitor is slow, its answers may come after the end.
        let is_attached = |_| {
            let seen = run(Under::Both, "fd00::/64+10.9.0.0/24");
            assert_eq!(seen.printed, plain.printed);
            seen.attached == 2
        };
        assert!((0..20).any(is_attached), "it is asked for");
    });
    test.join().unwrap();
}
