// SPDX-License-Identifier: Apache-2.0
//! Client libraries with their own support for Sentinel, while the leader is killed: sessions of
//! `baselines/clients`, each a program in the library's language.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use fide_testbed::{end_within, say_not_tested};

use crate::world::World;

/// A session says something within this: each of its own waits is shorter.
const END_LIMIT: Duration = Duration::from_secs(400);
const PORT: u16 = 6379;
/// The second one may come back to a server that has died before.
const FAILOVERS: usize = 2;
/// What each session has to have done, by the names in its report.
const DONE: [&str; 7] = ["writes", "counted", "transactions", "scripts", "pushed", "replica_reads", "messages"];

/// How a session is started, once `make test-redis` has fetched its library into `target/clients`.
struct Start {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(&'static str, PathBuf)>,
    /// Without this file the library was not fetched.
    needs: PathBuf,
}

fn sources(library: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../baselines/clients").join(library)
}

/// `target/clients/LIBRARY`, beside the directory that cargo builds this test in.
fn fetched(library: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.ancestors().nth(3).expect("target/debug/deps/servers-...");
    target.join("clients").join(library)
}

fn start_of(library: &str) -> Start {
    let (sources, fetched) = (sources(library), fetched(library));
    match library {
        "redis-py" => {
            let python = fetched.join("bin/python");
            Start {
                needs: python.clone(),
                program: python,
                arguments: vec!["-u".into(), sources.join("session.py").into()],
                environment: vec![],
            }
        }
        "go-redis" => {
            let program = fetched.join("session");
            Start { needs: program.clone(), program, arguments: vec![], environment: vec![] }
        }
        "jedis" => {
            let classes = fetched.join("*");
            Start {
                needs: fetched.join("fetched"),
                program: "java".into(),
                arguments: vec!["-cp".into(), classes.into(), sources.join("Session.java").into()],
                environment: vec![],
            }
        }
        "ioredis" => {
            let modules = fetched.join("node_modules");
            Start {
                needs: modules.join("ioredis/package.json"),
                program: "node".into(),
                arguments: vec![sources.join("session.js").into()],
                environment: vec![("NODE_PATH", modules)],
            }
        }
        _ => unreachable!("a library of these tests"),
    }
}

/// Ends a session also when its test fails.
struct Session(Child);

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One library, a fail-over, and what the session says that it did.
fn session(library: &str, protocol: &str) {
    let start = start_of(library);
    if !start.needs.exists() {
        say_not_tested(&format!(
            "{library}: it is not below {}; `make test-redis` fetches it, and says why if it cannot",
            fetched(library).display()
        ));
        return;
    }
    let Some(mut world) = World::new(3, protocol) else { return };
    let mut leaders = vec![world.leader()];
    let addresses: Vec<String> =
        world.hosts().iter().map(|host| format!("{}:{PORT}", world.bed.host(*host).address(0))).collect();
    let errors = world.bed.scratch().join("session.err");
    let mut command: Command = world.bed.host(world.followers()[0]).command(&start.program);
    command
        .args(&start.arguments)
        .args([addresses.join(","), FAILOVERS.to_string()])
        .envs(start.environment.iter().map(|(name, value)| (name, value.as_os_str())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&errors).expect("a file"));
    let child = command.spawn().unwrap_or_else(|why| panic!("{library}: {}: {why}", start.program.display()));
    let mut child = Session(child);
    let output = BufReader::new(child.0.stdout.take().expect("a pipe"));
    let (to, lines) = channel();
    thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
    // Nothing, if the session has ended or hangs.
    let line = || lines.recv_timeout(END_LIMIT).unwrap_or_default();
    let why =
        |world: &World| format!("{}\n{library}: {}", world.logs(), fs::read_to_string(&errors).unwrap_or_default());
    for _ in 0..FAILOVERS {
        let said = line();
        assert_eq!(said, "under way", "{}", why(&world));
        // One that died before is back, as a follower.
        for host in 1..=world.servers.len() {
            if world.servers[host - 1].is_none() {
                world.start(host);
            }
        }
        world.await_ready();
        world.kill(world.leader());
        let told = child.0.stdin.as_mut().expect("a pipe").write_all(b"killed\n");
        assert!(told.is_ok(), "{}\n{told:?}", why(&world));
        world.await_ready();
        leaders.push(world.leader());
    }
    let report = line();
    let status = end_within(&mut child.0, END_LIMIT).unwrap_or_else(|end| panic!("{end}: {}", why(&world)));
    assert!(status.success(), "{}\n{status}", why(&world));
    println!("{report}");
    let said: serde_json::Value =
        serde_json::from_str(&report).unwrap_or_else(|_| panic!("{report:?}: {}", why(&world)));
    let leaders: Vec<String> = leaders.iter().map(|host| world.bed.host(*host).address(0).to_string()).collect();
    assert_eq!(said["leaders"], serde_json::json!(leaders), "{report}");
    assert_eq!(said["replicas_before"], 2, "{report}");
    for name in DONE {
        assert!(said[name].as_u64().is_some_and(|count| count > 0), "{name}: {report}");
    }
    // The servers hold what the session has counted, and the same.
    world.assert_alike();
    let counted = world.ask(world.leader(), "GET counter");
    let counted: u64 = counted.lines().nth(1).and_then(|text| text.parse().ok()).unwrap_or_default();
    assert!(counted >= said["counted"].as_u64().unwrap_or(u64::MAX), "{counted}: {report}");
}

#[test]
fn root_session_of_redis_py_outlives_the_leader() {
    session("redis-py", "hsuc");
}

#[test]
fn root_session_of_go_redis_outlives_the_leader() {
    session("go-redis", "hsuc");
}

#[test]
fn root_session_of_jedis_outlives_the_leader() {
    session("jedis", "huc");
}

#[test]
fn root_session_of_ioredis_outlives_the_leader() {
    session("ioredis", "hsuc");
}
