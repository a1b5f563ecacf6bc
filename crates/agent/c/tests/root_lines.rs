// SPDX-License-Identifier: Apache-2.0
//! `examples/lines` in Rust and in C, as members of one group: nothing that was acknowledged is lost when members
//! die, and those that join have all of it, whichever language gave it to them.

#[path = "shared/library.rs"]
mod library;

use std::{
    fs::File,
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use fide_testbed::{Agents, AgentsSpec, Spec, Testbed, end_within, find_binary, supported};
use library::{compile, root};

const LIMIT: Duration = Duration::from_secs(30);
/// A datagram may be lost, or its leader may have died.
const PATIENCE: Duration = Duration::from_millis(500);
/// Longer than a shared machine keeps a host from running: an exclusion by load is not what this test is about.
const TIMEOUT_US: u32 = 60_000;
/// The host whose member is in Rust; those of the others are in C.
const IN_RUST: usize = 2;
const KEY: &str = "00112233445566778899aabbccddeeff";

/// Killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    /// On hosts 1..: what runs, and which program that is.
    running: Vec<Option<Program>>,
    programs: Vec<PathBuf>,
    agents: Agents,
    bed: Testbed,
}

impl World {
    /// None, with a word about it, where no namespaces can be made.
    fn new() -> Option<Self> {
        if let Err(why) = supported() {
            println!("skipped: {why}");
            return None;
        }
        let bed = Testbed::build(Spec { hosts: 3, offloads: true, ..Spec::default() }).expect("a testbed");
        let program = vec![find_binary("fide").expect("cargo build -p fide comes first")];
        let arguments = vec!["--force-timeout".to_owned()];
        let spec = AgentsSpec { program, arguments, timeout_us: Some(TIMEOUT_US), ..AgentsSpec::default() };
        let agents = Agents::start(&bed, spec).expect("agents");
        let in_c = agents.dir(1).join("lines-in-c");
        // The sanitizers end a program that reads what it does not own, and one that leaks at its end.
        let sanitizers = ["-std=gnu99", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        compile(&root().join("examples/lines/lines.c"), &sanitizers, &in_c);
        let in_rust = find_binary("lines").expect("cargo build -p fide-lines comes first");
        let mut world =
            Self { running: vec![None, None, None], programs: vec![in_c.clone(), in_rust, in_c], agents, bed };
        world.hosts().for_each(|host| world.start(host));
        Some(world)
    }

    fn hosts(&self) -> std::ops::RangeInclusive<usize> {
        1..=3
    }

    fn start(&mut self, host: usize) {
        let dir = self.agents.dir(host);
        let log = File::options().create(true).append(true).open(dir.join("lines.log")).expect("a log");
        let child = self
            .bed
            .host(host)
            .command(&self.programs[host - 1])
            .arg(dir.join("lines"))
            .args(self.bed.hosts().iter().map(|host| host.name()))
            .env("LINES_KEY", KEY)
            .env("FIDE_SOCKET", self.agents.socket(host))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.running[host - 1] = Some(Program(child.expect("a member")));
    }

    /// What a member answers, if it does.
    fn ask(&self, host: usize, line: &str) -> Option<String> {
        let host = self.bed.host(host);
        let asked = || -> std::io::Result<String> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect((host.address(0), 7000))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.send(format!("{line}\n").as_bytes())?;
            let mut buffer = vec![0; 65_536];
            let len = socket.recv(&mut buffer)?;
            Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
        };
        host.run_in(asked).expect("a namespace").ok()
    }

    /// Asks one member after the other, as clients do, until the leader answers. Who that was, and its answer.
    fn say(&self, line: &str) -> (usize, String) {
        let until = Instant::now() + LIMIT;
        let mut heard = Vec::new();
        while Instant::now() < until {
            for host in self.hosts().filter(|host| self.running[host - 1].is_some()) {
                match self.ask(host, line) {
                    Some(answer) if answer != "later\n" && !answer.starts_with("ask ") => return (host, answer),
                    other => heard.push((host, other)),
                }
            }
        }
        panic!("no answer to {line:?}: {:?}\n{}", &heard[heard.len().saturating_sub(6)..], self.logs());
    }

    fn add(&self, lines: &mut Vec<String>, count: usize) {
        for _ in 0..count {
            let line = format!("line {}", lines.len() + 1);
            assert_eq!(self.say(&line).1, "ok\n", "{line}");
            lines.push(line);
        }
    }

    /// The leader, which has all that was acknowledged, in order.
    fn assert_has(&self, lines: &[String]) -> usize {
        let (leader, text) = self.say("");
        assert_eq!(text.lines().collect::<Vec<_>>(), lines, "h{leader}\n{}", self.logs());
        leader
    }

    /// Has the leader take a host out, whose program ends by itself, without an error.
    fn take_out(&mut self, host: usize) {
        let until = Instant::now() + LIMIT;
        let mut program = self.running[host - 1].take().expect("it runs");
        let status = loop {
            // The leader may be the host itself, and a request may be too early.
            let _ = (1..=3).map(|asked| self.ask(asked, &format!("-{host}"))).find(|it| it.as_deref() == Some("ok\n"));
            match end_within(&mut program.0, PATIENCE) {
                Ok(status) => break status,
                Err(why) => assert!(Instant::now() < until, "h{host}: {why}\n{}", self.logs()),
            }
        };
        assert!(status.success(), "h{host}: {status}\n{}", self.logs());
    }

    fn kill(&mut self, host: usize) {
        self.running[host - 1] = None;
    }

    fn logs(&self) -> String {
        let log = |host| std::fs::read_to_string(self.agents.dir(host).join("lines.log")).unwrap_or_default();
        self.hosts().map(|host| format!("h{host}: {}\n", log(host))).collect()
    }
}

#[test]
fn root_members_in_rust_and_c_lose_nothing() {
    let Some(mut world) = World::new() else { return };
    let mut lines = Vec::new();
    world.add(&mut lines, 20);
    let first = world.assert_has(&lines);
    // A line that is there already is acknowledged, and is there once.
    assert_eq!(world.say("line 7").1, "ok\n");
    world.kill(first);
    world.add(&mut lines, 20);
    let second = world.assert_has(&lines);
    assert_ne!(first, second);
    // The one that comes back has taken over the state when the others are gone.
    world.start(first);
    world.add(&mut lines, 5);
    for host in (1..=3).filter(|host| *host != first) {
        world.take_out(host);
    }
    assert_eq!(world.assert_has(&lines), first);
    // From C to Rust and back, or the other way round: each has it from the one before, and from nobody else.
    let mut alone = first;
    for next in if first == IN_RUST { [1, IN_RUST] } else { [IN_RUST, first] } {
        world.start(next);
        world.add(&mut lines, 5);
        world.take_out(alone);
        assert_eq!(world.assert_has(&lines), next);
        alone = next;
    }
    world.add(&mut lines, 5);
    assert_eq!(world.assert_has(&lines), alone);
}
