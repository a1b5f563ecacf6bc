// SPDX-License-Identifier: Apache-2.0
//! Programs that misbehave: many at once, of other users, or killed.

use std::{os::unix::process::CommandExt, path::PathBuf, process::Command, time::Duration};

use fide_agent_api::protocol::ErrorCode;
use fide_client::{Client, ConnectOptions, Error, Event, Reason, Wanted};
use fide_testbed::{AgentsSpec, Victim, VictimSpec};
use serde_json::json;

use super::common::{Eyes, Running, World, calm, fide, output, until, until_true, world};

const NOBODY: u32 = 65534;
const PROGRAMS: usize = 64;
/// Clients killed at some point of their lives.
const KILLED: u64 = 60;

#[test]
fn root_client_of_another_version_sees_both_versions() {
    let Some(world) = world(1, calm()) else { return };
    let refused = world.agents.ask(1, "hello", json!({ "protocol": 99, "program": "future" })).expect_err("refused");
    assert!(refused.contains("version") && refused.contains("99") && refused.contains("agent 2"), "{refused}");
    for (op, arguments, says) in [
        ("nonsense", json!({}), "nonsense"),
        ("join", json!({ "name": "x" }), "hello"),
        ("monitor", json!({ "target": "x@h1" }), "hello"),
        ("explain", json!({ "event": "h1-999" }), "h1-999"),
        ("quit", json!({ "slot": 3 }), "slot 3"),
    ] {
        let refused = world.agents.ask(1, op, arguments).expect_err(op);
        assert!(refused.contains(says), "{op}: {refused}");
    }
    assert!(world.status(1)["clients"].as_array().expect("a list").is_empty());
}

#[test]
fn root_sixty_four_programs_and_sixty_four_clients() {
    let spec = AgentsSpec { sections: "[limits]\nonly_root = true\n".into(), ..calm() };
    let Some(world) = world(2, spec) else { return };
    let (mut near, mut far) = (world.client(1), world.client(2));
    let mut running: Vec<Running> = (0..PROGRAMS).map(|_| world.sleeper(1)).collect();
    for (n, program) in running.iter().enumerate() {
        near.client.join_pid(&format!("p{n}"), program.pid(), Duration::ZERO).expect("room for 64");
    }
    let monitors: Vec<_> = (0..PROGRAMS).map(|n| far.watch(&format!("p{n}@h1"))).collect();
    let one_more = world.sleeper(1);
    let mut other = world.client(1);
    match other.client.join_pid("p64", one_more.pid(), Duration::ZERO) {
        Err(Error::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::Full, "{refusal}"),
        outcome => panic!("{outcome:?}"),
    }
    // All at once.
    for program in &mut running {
        program.0.kill().expect("killed");
    }
    for monitor in &monitors {
        until("each verdict", || {
            while let Some(event) = far.client.poll_event().expect("event") {
                far.events.push(event);
            }
            if far.finals(monitor) == 1 { Ok(()) } else { Err(format!("{} of p@h1", far.finals(monitor))) }
        });
    }
    far.quiet();
    assert!(monitors.iter().all(|monitor| far.finals(monitor) == 1), "{:#?}", far.events);
    until_true("their places are free", || other.client.join_pid("p64", one_more.pid(), Duration::ZERO).is_ok());

    // Two sessions are open already.
    let options = || ConnectOptions { path: Some(world.agents.socket(1)), ..ConnectOptions::default() };
    let sessions: Vec<Client> = (2..64).map(|_| Client::connect(options()).expect("room for 64")).collect();
    match Client::connect(options()) {
        Err(Error::Refused(refusal)) => assert!(refusal.code == ErrorCode::Full, "{refusal}"),
        outcome => panic!("{:?}", outcome.map(|_| "a 65th session")),
    }
    drop(sessions);
    until_true("sessions are free again", || Client::connect(options()).is_ok());
}

#[test]
fn root_program_is_notified_of_watchers_and_piggyback_size() {
    let Some(world) = world(2, calm()) else { return };
    let (mut near, mut far) = (world.client(1), world.client(2));
    let (subject, observer) = (world.sleeper(1), world.sleeper(2));
    let joined = near.client.join_pid("subject", subject.pid(), Duration::ZERO).expect("joined");
    far.client.join_pid("observer", observer.pid(), Duration::ZERO).expect("joined");
    let wanted = Wanted { pbsize: 700, ..Wanted::default() };
    let monitor = far.client.monitor("subject@h1", wanted).expect("monitored");
    assert_eq!(monitor.pbsize, 700);
    let request = near.next("who watches", |event| match event {
        Event::MonitorRequest { process, watcher, pbsize, .. } => Some((*process, watcher.to_string(), *pbsize)),
        _ => None,
    });
    assert_eq!(request, (joined.id, "observer@h2".to_owned(), 700));

    let granted = |eyes: &mut Eyes| {
        eyes.next("another size", |event| match event {
            Event::PbsizeChanged { process, pbsize } if *process == joined.id => Some(*pbsize),
            _ => None,
        })
    };
    let mtu = |bytes: &str| {
        let mut ip = world.bed.host(1).command("ip");
        assert_eq!(output(ip.args(["link", "set", "p1", "mtu", bytes])).0, Some(0));
    };
    mtu("900");
    let smaller = granted(&mut near);
    assert!(smaller < 900 && joined.pbsize - smaller == 600, "{smaller} after {}", joined.pbsize);
    let large = vec![1; usize::from(smaller) + 1];
    let declined = near.client.piggyback(&large).expect_err("declined").to_string();
    assert!(declined.contains(&smaller.to_string()), "{declined}");
    near.client.piggyback(&large[1..]).expect("of the granted size");
    far.next("the message", |event| match event {
        Event::Piggyback { bytes, .. } if **bytes == large[1..] => Some(()),
        _ => None,
    });
    mtu("1500");
    assert_eq!(granted(&mut near), joined.pbsize);
    near.client.piggyback(&large).expect("granted again");
    far.next("the message", |event| match event {
        Event::Piggyback { bytes, .. } if **bytes == *large => Some(()),
        _ => None,
    });
    assert_eq!((world.counter(1, "sends_failed"), world.verdicts(2).len()), (0, 0), "no packet was too long");
}

/// A copy of `fide` that every user can run, and access to the socket.
struct Public {
    dir: tempfile::TempDir,
}

impl Public {
    fn new() -> Self {
        let dir = tempfile::Builder::new().permissions(mode(0o755)).tempdir_in("/tmp").expect("a directory");
        std::fs::copy(fide(), dir.path().join("fide")).expect("copied");
        Self { dir }
    }

    fn fide(&self) -> PathBuf {
        self.dir.path().join("fide")
    }

    fn command(&self, world: &World, host: usize, arguments: &[&str]) -> Command {
        // The user nobody cannot enter a namespace; the socket is a file, which needs none.
        let mut command = Command::new(self.fide());
        command.args(arguments).env("FIDE_SOCKET", world.agents.socket(host)).uid(NOBODY).gid(NOBODY);
        command
    }
}

fn mode(mode: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(mode)
}

#[test]
fn root_an_unprivileged_user_watches_everybody_and_joins_only_itself() {
    let Some(world) = world(2, calm()) else { return };
    let public = Public::new();
    let mut near = world.client(1);
    let victim = Victim::spawn(Some(world.bed.host(1)), &VictimSpec::default()).expect("victim");
    near.client.join_pid("roots", victim.pid(), Duration::ZERO).expect("joined");

    let pid = victim.pid().to_string();
    let (code, _, err) = output(&mut public.command(&world, 1, &["guard", "--name", "stolen", "--pid", &pid]));
    assert_eq!(code, Some(4), "{err}");
    assert!(err.contains("runs as user 0") && err.contains("65534"), "{err}");
    let (code, out, _) = output(&mut public.command(&world, 1, &["status"]));
    assert_eq!(code, Some(0));
    assert!(out.contains("roots"), "{out}");

    let mut own = Running::start(&mut public.command(&world, 1, &["run", "--name", "nobodys", "--", "sleep", "600"]));
    let mut far = world.client(2);
    let nobodys = far.watch("nobodys@h1");
    let program =
        world.status(1)["processes"].as_array().expect("a list").iter().find(|p| p["name"] == "nobodys").cloned();
    let program = program.expect("under watch");
    assert_eq!(program["uid"], NOBODY);

    let mut watching = Running::piped(&mut public.command(&world, 2, &["watch", "--json", "roots@h1"]));
    until_true("nobody watches", || {
        let status = world.status(2);
        status["clients"].as_array().expect("a list").iter().any(|c| c["uid"] == NOBODY && c["watches"] == 1)
    });
    victim.kill().expect("killed");
    assert_eq!(watching.code(), Some(1), "the watch ended with a failure");

    // The registration of another user cannot be ended either.
    let slot = program["slot"].as_u64().expect("a number");
    let socket = world.agents.socket(1);
    let as_another = format!(
        "import json,socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\ns.connect({:?})\n\
         s.send(json.dumps({{'id':1,'op':'quit','slot':{slot}}}).encode())\nprint(s.recv(65536).decode())",
        socket
    );
    if let Ok(answer) = Command::new("python3").args(["-c", &as_another]).uid(1).gid(1).output() {
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(answer.contains("not_permitted"), "{answer}");
    }
    own.kill();
    let pid = i32::try_from(program["pid"].as_u64().expect("a number")).expect("small");
    let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    assert_eq!(far.reason(&nobodys), Reason::Killed(9), "its wrapper may be gone");
}

#[test]
fn root_clients_killed_in_the_middle_of_anything_harm_nobody() {
    let Some(world) = world(2, calm()) else { return };
    let mut near = world.client(1);
    let mut eyes = world.client(2);
    let victim = Victim::spawn(Some(world.bed.host(1)), &VictimSpec::default()).expect("victim");
    near.client.join_pid("bystander", victim.pid(), Duration::ZERO).expect("joined");
    let bystander = eyes.watch("bystander@h1");
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for round in 0..KILLED {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let host = 1 + usize::from(random & 1 == 1);
        let name = format!("short-lived-{round}");
        let mut client = match round % 3 {
            0 => Running::piped(&mut world.fide(host, &["watch", "--forever", "bystander@h1", "@h1", "@h2"])),
            1 => Running::piped(&mut world.fide(host, &["run", "--name", &name, "--", "sleep", "1"])),
            _ => Running::piped(&mut world.fide(host, &["watch", "not-there@h1", "nor-there@h2"])),
        };
        std::thread::sleep(Duration::from_micros(random >> 32 & 0x3fff));
        client.kill();
    }
    for host in [1, 2] {
        until("only the living have sessions", || {
            let status = world.status(host);
            let (clients, processes) = (&status["clients"], &status["processes"]);
            let few = |list: &serde_json::Value| list.as_array().is_some_and(|list| list.len() <= 1);
            if few(clients) && few(processes) { Ok(()) } else { Err(format!("{clients} {processes}")) }
        });
        assert_eq!(world.status(host)["fenced"], false);
    }
    assert_eq!(eyes.finals(&bystander), 0);
    victim.kill().expect("killed");
    assert_eq!(eyes.reason(&bystander), Reason::Killed(9));
    // The next client is served like the first.
    let mut late = Eyes::at(&world.agents.socket(2));
    let running = world.sleeper(1);
    near.client.join_pid("late", running.pid(), Duration::ZERO).expect("joined");
    let monitor = late.watch("late@h1");
    drop(running);
    assert_eq!(late.reason(&monitor), Reason::Killed(9));
}
