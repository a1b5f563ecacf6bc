// SPDX-License-Identifier: Apache-2.0
//! Programs that come and go: the agent's loop keeps up, and other programs do not notice.

use std::{
    collections::BTreeSet,
    os::unix::process::CommandExt,
    process::Stdio,
    time::{Duration, Instant},
};

use fide_client::{Client, ConnectOptions, Event, Monitor, Reason, Wanted};
use fide_testbed::{
    AgentsSpec,
    trace::{LOOP_CALLS, SLEEPS_IN, Trace},
};

use super::common::{Eyes, QUIET, Running, World, calm, fide, until, world};

const PROGRAMS: usize = 40;
/// Number of clusters, one after another, in which all programs of a host die at once; `FIDE_ROUNDS`
/// overrides it.
const ROUNDS: usize = 2;
/// This test binary as a program that joins: name, and the agent's socket.
const JOIN_AS: &str = "FIDE_TEST_JOIN_AS";

/// No test: a program that joins by itself and lives until it is killed.
#[test]
fn as_a_program_that_joins() {
    let Ok(name) = std::env::var(JOIN_AS) else { return };
    let mut client = Client::connect(ConnectOptions::default()).expect("an agent");
    client.join(&name).expect("joined");
    println!("joined");
    loop {
        client.wait_event(None).expect("event");
    }
}

/// A program on a host that joins by itself, in the process group of `leader` or in one of its own.
fn joins(world: &World, host: usize, name: &str, leader: i32) -> Running {
    let mut command = world.bed.host(host).command(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "root_end_to_end::sessions::as_a_program_that_joins", "--nocapture"])
        .process_group(leader);
    command.env(JOIN_AS, name).env("FIDE_SOCKET", world.agents.socket(host)).stdout(Stdio::null());
    Running::start(&mut command)
}

/// Kills a whole process group and reaps it.
fn kill_group(programs: &mut [Running]) {
    let leader = rustix::process::Pid::from_raw(programs[0].pid().cast_signed()).expect("not 0");
    rustix::process::kill_process_group(leader, rustix::process::Signal::KILL).expect("killed");
    for program in programs {
        program.0.wait().expect("reaped");
    }
}

/// Waits for the verdict of each death, in any order.
fn all_killed(eyes: &mut Eyes, monitors: &[Monitor]) {
    let mut left: BTreeSet<_> = monitors.iter().map(|monitor| monitor.id).collect();
    while !left.is_empty() {
        eyes.next("all deaths", |event| match event {
            Event::Verdict(verdict) if left.remove(&verdict.monitor) => {
                assert_eq!(verdict.reason, Reason::Killed(9), "{verdict:?}");
                Some(())
            }
            _ => None,
        });
    }
}

fn rounds() -> usize {
    std::env::var("FIDE_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("FIDE_ROUNDS is a number"))
}

/// With the timeouts that agents choose: a loop that waits would be too late for them.
#[test]
fn root_death_of_forty_programs_at_once_kills_no_host() {
    let begun = Instant::now();
    for round in 1..=rounds() {
        let spec = AgentsSpec { program: vec![fide()], ..AgentsSpec::default() };
        let Some(world) = world(5, spec) else { return };
        let leader = joins(&world, 1, "p0", 0);
        let pid = leader.pid().cast_signed();
        let mut programs = vec![leader];
        programs.extend((1..PROGRAMS).map(|n| joins(&world, 1, &format!("p{n}"), pid)));
        let mut eyes: Vec<Eyes> = (1..=3).map(|host| world.client(host)).collect();
        let mut watched: Vec<Vec<_>> = Vec::new();
        for eyes in &mut eyes {
            let targets: Vec<String> = (0..PROGRAMS).map(|n| format!("p{n}@h1")).collect();
            watched.push(targets.iter().map(|target| eyes.watch(target)).collect());
            for host in 2..=5 {
                // An agent notifies no program of the end of its own host.
                let _ = eyes.client.monitor(&format!("@h{host}"), Wanted::default());
            }
            let _ = eyes.client.monitor("@h1", Wanted::default());
        }
        kill_group(&mut programs);
        for (eyes, monitors) in eyes.iter_mut().zip(&watched) {
            all_killed(eyes, monitors);
        }
        until("its sessions are closed", || match world.status(1)["clients"].as_array().map_or(0, Vec::len) {
            1 => Ok(()),
            n => Err(format!("{n} are open")),
        });
        for (eyes, monitors) in eyes.iter_mut().zip(&watched) {
            eyes.quiet();
            assert!(monitors.iter().all(|monitor| eyes.finals(monitor) == 1), "round {round}: {:#?}", eyes.events);
            let hosts = eyes.events.iter().filter(|event| match event {
                Event::Verdict(verdict) => verdict.reason == Reason::HostSilent,
                _ => false,
            });
            assert_eq!(hosts.count(), 0, "round {round}: {:#?}", eyes.events);
        }
        for host in 1..=5 {
            let silent: Vec<_> = world.verdicts(host).into_iter().filter(|text| text.contains("silent")).collect();
            assert!(silent.is_empty(), "round {round}, h{host}: {silent:?}");
        }
        if round % 10 == 0 {
            println!("{round} rounds in {} s", begun.elapsed().as_secs());
        }
    }
}

#[test]
fn root_the_loop_sleeps_only_between_two_turns() {
    for receive in ["auto", "af-packet", "udp"] {
        let mut spec = calm();
        spec.agent.receive = receive.into();
        spec.agent.exit_watch = if receive == "auto" { "auto".into() } else { "pidfd".into() };
        let Some(world) = world(2, spec) else { return };
        let trace = Trace::where_kernel_can(world.agents.pid(1).expect("an agent"), "fide-loop");
        let Some(trace) = trace else { return };
        come_and_go(&world);
        let traced = trace.finish().expect("a trace");
        assert_eq!(traced.waits(), [] as [String; 0], "{receive}: {traced:#?}");
        assert!(traced.calls[&SLEEPS_IN].sleeps > 100, "{receive}: {traced:#?}");
    }
}

/// Everything that clients do to a loop: sessions, watches, and programs that join, leave, die, are watched,
/// and send.
pub(super) fn come_and_go(world: &World) {
    let mut far = world.client(2);
    for round in 0..3 {
        let mut near = world.client(1);
        let running: Vec<Running> = (0..4).map(|_| world.sleeper(1)).collect();
        let mut monitors = Vec::new();
        for (n, program) in running.iter().enumerate() {
            let name = format!("r{round}n{n}");
            near.client.join_pid(&name, program.pid(), Duration::ZERO).expect("joined");
            near.watch(&format!("{name}@h1"));
            monitors.push(far.watch(&format!("{name}@h1")));
        }
        let mut own = vec![joins(world, 1, &format!("r{round}own"), 0)];
        monitors.push(far.watch(&format!("r{round}own@h1")));
        near.watch("@h2");
        near.client.piggyback(b"last words").expect("taken");
        std::thread::sleep(QUIET / 4);
        kill_group(&mut own);
        drop(running);
        all_killed(&mut far, &monitors);
        let one_more = world.sleeper(1);
        let joined = near.client.join_pid("leaves", one_more.pid(), Duration::ZERO).expect("joined");
        near.client.quit(joined.id).expect("left");
        drop(near);
    }
    until("its sessions are closed", || match world.status(1)["clients"].as_array().map_or(0, Vec::len) {
        0 => Ok(()),
        n => Err(format!("{n} are open")),
    });
}

/// If this fails: a new call of the loop must state what it may wait for.
#[test]
fn calls_of_the_loop_are_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/internals/agent-loop.md");
    let text = std::fs::read_to_string(path).expect("docs/internals/agent-loop.md");
    for (name, ..) in LOOP_CALLS {
        assert!(text.contains(&format!("| `{name}`")), "docs/internals/agent-loop.md says nothing of {name}");
    }
}
