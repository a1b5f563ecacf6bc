// SPDX-License-Identifier: Apache-2.0
//! Programs end in every possible way.

use std::{io::Write, process::Stdio, time::Duration};

use fide_agent_api::protocol::ErrorCode;
use fide_client::{Declined, Error, Event, Reason, Wanted};
use fide_testbed::{AgentSpec, AgentsSpec, Lines, Victim, VictimSpec};
use rustix::process::Signal;

use super::common::{Eyes, Running, World, calm, paper, until_true, world};

fn without_bpf() -> AgentSpec {
    AgentSpec { receive: "udp".into(), exit_watch: "pidfd".into(), ..AgentSpec::default() }
}

type End = fn(&mut Victim);

const ENDS: [(&str, End, Reason); 6] = [
    ("sigkill", |v| drop(v.kill()), Reason::Killed(9)),
    ("sigterm", |v| drop(v.signal(Signal::TERM)), Reason::Killed(15)),
    ("segfault", |v| drop(v.signal(Signal::USR1)), Reason::Killed(11)),
    ("code-3", |v| drop(v.signal(Signal::USR2)), Reason::Exited(3)),
    (
        "stopped-then-killed",
        |v| {
            v.signal(Signal::STOP).expect("stopped");
            v.kill().expect("killed");
        },
        Reason::Killed(9),
    ),
    (
        "killed-and-reaped-at-once",
        |v| {
            v.kill().expect("killed");
            v.wait().expect("reaped");
        },
        Reason::Killed(9),
    ),
];

/// Every end arrives on every host with its code or signal, exactly once.
fn every_end(world: &World) {
    let mut eyes: Vec<Eyes> = (1..=3).map(|host| world.client(host)).collect();
    let mut near = world.client(1);
    let mut spied = Vec::new();
    for (name, end, reason) in ENDS {
        let spec = VictimSpec { exit_code: 3, threads: 2, ..VictimSpec::default() };
        let mut victim = Victim::spawn(Some(world.bed.host(1)), &spec).expect("victim");
        near.client.join_pid(name, victim.pid(), Duration::ZERO).expect("joined");
        let target = format!("{name}@h1");
        let monitors: Vec<_> = eyes.iter_mut().map(|eyes| eyes.watch(&target)).collect();
        end(&mut victim);
        for (eyes, monitor) in eyes.iter_mut().zip(&monitors) {
            let verdict = eyes.verdict(monitor);
            assert_eq!(verdict.reason, reason, "{name}");
            assert_eq!((&*verdict.target, verdict.evidence.host_id), (&*target, 1));
            assert!(verdict.reason.is_failure() && verdict.reason.is_final());
        }
        spied.push(monitors);
    }
    // Leaving is an end, but no failure.
    let running = world.sleeper(1);
    let joined = near.client.join_pid("leaver", running.pid(), Duration::ZERO).expect("joined");
    let monitors: Vec<_> = eyes.iter_mut().map(|eyes| eyes.watch("leaver@h1")).collect();
    near.client.quit(joined.id).expect("quit");
    for (eyes, monitor) in eyes.iter_mut().zip(&monitors) {
        let reason = eyes.reason(monitor);
        assert_eq!(reason, Reason::Left);
        assert!(!reason.is_failure());
    }
    spied.push(monitors);
    for eyes in &mut eyes {
        eyes.quiet();
    }
    for monitors in &spied {
        for (eyes, monitor) in eyes.iter().zip(monitors) {
            assert_eq!(eyes.finals(monitor), 1, "{:#?}", eyes.events);
        }
    }
    for host in 1..=3 {
        assert_eq!(world.verdicts(host).len(), ENDS.len() + 1, "{:#?}", world.verdicts(host));
    }
}

#[test]
fn root_every_end_arrives_under_a_lease() {
    let Some(world) = world(3, calm()) else { return };
    every_end(&world);
    assert!(world.counter(2, "kernel_told_directly") > 0, "the kernel notified by itself");
}

#[test]
fn root_every_end_arrives_trusting_the_network() {
    let Some(world) = world(3, paper()) else { return };
    every_end(&world);
}

#[test]
fn root_every_end_arrives_without_bpf() {
    let Some(world) = world(3, AgentsSpec { agent: without_bpf(), ..calm() }) else { return };
    assert_eq!(world.receive_rungs(1), ["udp", "udp"]);
    let rungs = &world.status(1)["rungs"];
    assert_eq!(
        (&rungs["exit_watch"]["used"], &rungs["events"]["used"]),
        (&"pidfd".into(), &"shared memory and timer".into())
    );
    every_end(&world);
}

#[test]
fn root_every_end_arrives_over_af_packet_and_so_does_a_silence() {
    let agent = AgentSpec { receive: "af-packet".into(), ..AgentSpec::default() };
    let Some(world) = world(3, AgentsSpec { agent, ..calm() }) else { return };
    assert_eq!(world.receive_rungs(1), ["af_packet", "af_packet"]);
    every_end(&world);
    // The sockets that only hold group memberships must receive nothing, since no thread reads them.
    let queued = world.queued(1, 7411);
    assert!(queued.len() == 2 && queued.iter().all(|queued| *queued == 0), "{queued:?}");
    let mut eyes = [world.client(1), world.client(2)];
    let hosts = eyes.each_mut().map(|eyes| eyes.watch("@h3"));
    world.bed.isolate(3).expect("cut off");
    for (eyes, host) in eyes.iter_mut().zip(&hosts) {
        assert_eq!(eyes.reason(host), Reason::HostSilent);
    }
    world.bed.rejoin(3).expect("restored");
    world.settled(&[1, 2, 3]);
}

#[test]
fn root_every_end_arrives_over_af_packet_by_unicast_without_bpf() {
    let agent = AgentSpec { receive: "af-packet".into(), ..without_bpf() };
    let Some(world) = world(3, AgentsSpec { multicast: false, agent, ..paper() }) else { return };
    assert_eq!(world.receive_rungs(1), ["af_packet", "af_packet"]);
    every_end(&world);
}

#[test]
fn root_every_end_arrives_by_unicast_in_a_busy_loop() {
    let agent = AgentSpec { mode: "busy".into(), receive: "xdp-generic".into(), ..AgentSpec::default() };
    // Only one host spins: two cores carry no more.
    let spec = AgentsSpec { multicast: false, overrides: [(2, agent)].into(), ..calm() };
    let Some(world) = world(3, spec) else { return };
    every_end(&world);
}

/// Not a test of its own: a program that joins, and on request sends its last message and dies of SIGKILL.
#[test]
fn root_helper_last_words() {
    let Ok(socket) = std::env::var("LAST_WORDS_SOCKET") else { return };
    let name = std::env::var("LAST_WORDS_NAME").expect("named");
    let mut eyes = Eyes::at(socket.as_ref());
    let joined = eyes.client.join(&name).expect("joined");
    println!("ready {}", joined.pbsize);
    let mut words = String::new();
    std::io::stdin().read_line(&mut words).expect("words");
    for word in words.split_whitespace() {
        eyes.client.piggyback(word.as_bytes()).expect("said");
    }
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).expect("killed");
}

struct Speaker {
    running: Running,
    _said: Lines,
}

impl Speaker {
    fn start(world: &World, host: usize, name: &str) -> Self {
        let this = std::env::current_exe().expect("this program");
        let mut command = world.bed.host(host).command(this);
        command
            .args(["--exact", "root_end_to_end::deaths::root_helper_last_words", "--nocapture"])
            .env("LAST_WORDS_SOCKET", world.agents.socket(host))
            .env("LAST_WORDS_NAME", name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        // Kept open: the test harness of the child writes more.
        let mut said = Lines::of(child.stdout.take().expect("piped"));
        let running = Running(child);
        said.find_words("ready ");
        Self { running, _said: said }
    }

    fn say_and_die(&mut self, words: &str) {
        let mut pipe = self.running.0.stdin.take().expect("piped");
        writeln!(pipe, "{words}").expect("sent");
        self.running.code();
    }
}

/// The last message of a program arrives before the verdict on it (FiDe §3.4): always, on every host.
fn last_words(world: &World, rounds: usize) {
    let mut eyes = [world.client(1), world.client(2), world.client(3)];
    for round in 0..rounds {
        let name = format!("speaker-{round}");
        let mut speaker = Speaker::start(world, 1, &name);
        let target = format!("{name}@h1");
        let monitors = eyes.each_mut().map(|eyes| eyes.watch(&target));
        let words: Vec<String> = (0..=round % 5).map(|word| format!("word-{round}-{word}")).collect();
        speaker.say_and_die(&words.join(" "));
        for (host, (eyes, watched)) in (1..).zip(eyes.iter_mut().zip(&monitors)) {
            let mut heard = Vec::new();
            let reason = eyes.next("the end", |event| match event {
                Event::Piggyback { monitor, bytes, .. } if *monitor == watched.id => {
                    heard.push(String::from_utf8_lossy(bytes).into_owned());
                    None
                }
                Event::Verdict(verdict) if verdict.monitor == watched.id => Some(verdict.reason),
                _ => None,
            });
            assert_eq!(reason, Reason::Killed(9));
            assert_eq!(heard, words, "round {round}, h{host}: said before it died");
            eyes.client.unmonitor(watched.id).expect("ended");
        }
    }
}

#[test]
fn root_last_words_come_first() {
    let Some(world) = world(3, calm()) else { return };
    last_words(&world, 100);
}

#[test]
fn root_last_words_come_first_without_bpf() {
    let Some(world) = world(3, AgentsSpec { agent: without_bpf(), ..paper() }) else { return };
    last_words(&world, 20);
}

#[test]
fn root_piggybacks_arrive_whole_and_too_large_ones_are_declined() {
    let Some(world) = world(3, calm()) else { return };
    let (mut near, mut far) = (world.client(1), world.client(3));
    let running = world.sleeper(1);
    assert!(matches!(near.client.piggyback(b"early"), Err(Declined::NotJoined)));
    let joined = near.client.join_pid("talker", running.pid(), Duration::ZERO).expect("joined");
    assert!((1..=1418).contains(&joined.pbsize), "{}", joined.pbsize);
    let monitor = far.watch("talker@h1");
    for len in [0, 1, 7, 8, 9, usize::from(joined.pbsize)] {
        let message: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        near.client.piggyback(&message).expect("sent");
        let heard = far.next("a message", |event| match event {
            Event::Piggyback { monitor: of, bytes, .. } if *of == monitor.id => Some(bytes.to_vec()),
            _ => None,
        });
        assert_eq!(heard, message);
    }
    let large = vec![0; usize::from(joined.pbsize) + 1];
    match near.client.piggyback(&large) {
        Err(Declined::TooLarge { len, pbsize }) => assert_eq!((len, pbsize), (large.len(), joined.pbsize)),
        other => panic!("{other:?}"),
    }
}

/// A program that does not read its events: its ring is filled, and then a process that it watches dies.
fn overfull(world: &World) -> (Eyes, fide_client::Monitor) {
    let (mut near, mut far) = (world.client(1), world.client(3));
    let mut running = world.sleeper(1);
    near.client.join_pid("talker", running.pid(), Duration::ZERO).expect("joined");
    let monitor = far.watch("talker@h1");
    until_true("its ring is full", || {
        // Declined if too fast: then the next one is taken.
        let _ = near.client.piggyback(&[7; 1000]);
        world.counter(3, "events_undelivered") > 3
    });
    running.kill();
    until_true("the others know", || world.verdicts(3).len() == 1);
    (far, monitor)
}

#[test]
fn root_a_verdict_outlasts_a_full_ring() {
    let Some(world) = world(3, calm()) else { return };
    let (mut far, monitor) = overfull(&world);
    assert_eq!(far.reason(&monitor), Reason::Killed(9));
    far.quiet();
    assert_eq!(far.finals(&monitor), 1);
    assert!(far.events.iter().any(|event| matches!(event, Event::Lost { count } if *count > 0)), "messages were lost");
}

#[test]
fn root_after_a_full_inbox_the_table_tells() {
    let Some(world) = world(3, AgentsSpec { agent: without_bpf(), ..calm() }) else { return };
    let (mut far, monitor) = overfull(&world);
    far.next("lost", |event| matches!(event, Event::Lost { .. }).then_some(()));
    assert_eq!(far.client.peer_state(monitor.id), fide_agent_api::protocol::PeerState::Dead);
}

/// Every message that a call accepted is delivered, however fast the calls come; too fast ones are refused in
/// the call.
#[test]
fn root_a_burst_of_piggybacks_arrives_whole_and_in_order() {
    const MESSAGES: u32 = 200;
    let Some(world) = world(3, calm()) else { return };
    let (mut near, mut far, mut here) = (world.client(1), world.client(3), world.client(1));
    let running = world.sleeper(1);
    near.client.join_pid("talker", running.pid(), Duration::ZERO).expect("joined");
    let monitors = [far.watch("talker@h1"), here.watch("talker@h1")];
    let mut declined = 0;
    for n in 0..MESSAGES {
        let message = format!("{n:0200}");
        until_true("room in the outbox", || match near.client.piggyback(message.as_bytes()) {
            Ok(()) => true,
            Err(Declined::Full) => {
                declined += 1;
                false
            }
            Err(other) => panic!("{other}"),
        });
    }
    for (eyes, monitor) in [&mut far, &mut here].into_iter().zip(&monitors) {
        for n in 0..MESSAGES {
            let heard = eyes.next("a message", |event| match event {
                Event::Piggyback { monitor: of, bytes, .. } if *of == monitor.id => Some(bytes.to_vec()),
                _ => None,
            });
            assert_eq!(String::from_utf8_lossy(&heard), format!("{n:0200}"), "{declined} were declined");
        }
    }
    assert_eq!(world.counter(1, "piggybacks_declined"), 0);
}

#[test]
fn root_impossible_joins_are_refused() {
    let Some(world) = world(3, calm()) else { return };
    let mut near = world.client(1);
    let (one, two) = (world.sleeper(1), world.sleeper(1));
    near.client.join_pid("taken", one.pid(), Duration::ZERO).expect("joined");
    let refused = |outcome: Result<fide_client::Joined, Error>| match outcome {
        Err(Error::Refused(refusal)) => (refusal.code, refusal.to_string()),
        other => panic!("{other:?}"),
    };
    let (code, text) = refused(near.client.join_pid("taken", two.pid(), Duration::ZERO));
    assert!(code == ErrorCode::NameTaken && text.contains("taken"), "{text}");
    let (code, text) = refused(near.client.join_pid("again", one.pid(), Duration::ZERO));
    assert!(code == ErrorCode::NameTaken && text.contains("already"), "{text}");

    let mut gone = world.sleeper(1);
    gone.kill();
    let (code, text) = refused(near.client.join_pid("gone", gone.pid(), Duration::ZERO));
    assert!(code == ErrorCode::Gone && text.contains("no process"), "{text}");
    let agent = world.agents.pid(1).expect("an agent");
    assert_eq!(refused(near.client.join_pid("agent", agent, Duration::ZERO)).0, ErrorCode::BadRequest);
    assert!(matches!(near.client.join_pid("no spaces", two.pid(), Duration::ZERO), Err(Error::Name(_))));
    match near.client.monitor("x@nowhere", Wanted::default()) {
        Err(Error::Refused(refusal)) => {
            assert!(refusal.code == ErrorCode::UnknownHost && refusal.hint.contains("h1, h2, h3"), "{refusal}");
        }
        other => panic!("{other:?}"),
    }
    // A name is free again when its process has ended.
    drop(one);
    until_true("the name is free", || near.client.join_pid("taken", two.pid(), Duration::ZERO).is_ok());
}

#[test]
fn root_program_without_beats_stalls_and_recovers() {
    let Some(world) = world(3, calm()) else { return };
    let (mut near, mut far) = (world.client(1), world.client(2));
    let running = world.sleeper(1);
    near.client.join_pid("worker", running.pid(), Duration::from_millis(300)).expect("joined");
    let monitor = far.watch("worker@h1");
    // The program never beats, then it beats, then it stops.
    assert_eq!(far.reason(&monitor), Reason::Stalled);
    let live = near.client.live();
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(5)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                live.beat();
            }
        });
        assert_eq!(far.reason(&monitor), Reason::Recovered);
        drop(stop);
    });
    assert_eq!(far.reason(&monitor), Reason::Stalled);
    assert_eq!(far.finals(&monitor), 0);
    drop(running);
    assert_eq!(far.reason(&monitor), Reason::Killed(9), "a stalled program can die, too");
}
