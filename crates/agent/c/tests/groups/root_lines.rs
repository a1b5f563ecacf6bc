// SPDX-License-Identifier: Apache-2.0
//! `examples/lines` in Rust and in C, as members of one group: nothing that was acknowledged is lost when members
//! die, and those that join have all of it, whichever language gave it to them.

use std::{
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    time::{Duration, Instant},
};

use fide_testbed::{end_within, find_binary};

use crate::world::{LIMIT, Program, World};

/// A datagram may be lost, or its leader may have died.
const PATIENCE: Duration = Duration::from_millis(500);
/// The host whose member is in Rust; those of the others are in C.
const IN_RUST: usize = 2;

struct Lines {
    /// On hosts 1..: what runs, and which program that is.
    running: Vec<Option<Program>>,
    programs: Vec<PathBuf>,
    world: World,
}

impl Lines {
    fn new() -> Option<Self> {
        let world = World::new(3)?;
        let in_c = world.compile("examples/lines/lines.c");
        let in_rust = find_binary("lines").expect("cargo build -p fide-lines comes first");
        let mut lines = Self { running: vec![None, None, None], programs: vec![in_c.clone(), in_rust, in_c], world };
        (1..=3).for_each(|host| lines.start(host));
        Some(lines)
    }

    fn start(&mut self, host: usize) {
        self.running[host - 1] = Some(self.world.start(host, &self.programs[host - 1], &[]));
    }

    /// What a member answers, if it does.
    fn ask(&self, host: usize, line: &str) -> Option<String> {
        let host = self.world.bed.host(host);
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
            for host in (1..=3).filter(|host| self.running[host - 1].is_some()) {
                match self.ask(host, line) {
                    Some(answer) if answer != "later\n" && !answer.starts_with("ask ") => return (host, answer),
                    other => heard.push((host, other)),
                }
            }
        }
        panic!("no answer to {line:?}: {:?}\n{}", &heard[heard.len().saturating_sub(6)..], self.world.logs());
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
        assert_eq!(text.lines().collect::<Vec<_>>(), lines, "h{leader}\n{}", self.world.logs());
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
                Err(why) => assert!(Instant::now() < until, "h{host}: {why}\n{}", self.world.logs()),
            }
        };
        assert!(status.success(), "h{host}: {status}\n{}", self.world.logs());
    }

    fn kill(&mut self, host: usize) {
        self.running[host - 1] = None;
    }
}

#[test]
fn root_members_in_rust_and_c_lose_nothing() {
    let Some(mut members) = Lines::new() else { return };
    let mut lines = Vec::new();
    members.add(&mut lines, 20);
    let first = members.assert_has(&lines);
    // A line that is there already is acknowledged, and is there once.
    assert_eq!(members.say("line 7").1, "ok\n");
    members.kill(first);
    members.add(&mut lines, 20);
    let second = members.assert_has(&lines);
    assert_ne!(first, second);
    // The one that comes back has taken over the state when the others are gone.
    members.start(first);
    members.add(&mut lines, 5);
    for host in (1..=3).filter(|host| *host != first) {
        members.take_out(host);
    }
    assert_eq!(members.assert_has(&lines), first);
    // From C to Rust and back, or the other way round: each has it from the one before, and from nobody else.
    let mut alone = first;
    for next in if first == IN_RUST { [1, IN_RUST] } else { [IN_RUST, first] } {
        members.start(next);
        members.add(&mut lines, 5);
        members.take_out(alone);
        assert_eq!(members.assert_has(&lines), next);
        alone = next;
    }
    members.add(&mut lines, 5);
    assert_eq!(members.assert_has(&lines), alone);
}
