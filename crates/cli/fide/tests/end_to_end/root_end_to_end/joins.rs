// SPDX-License-Identifier: Apache-2.0
//! Names: which process has one when a program joins under it again.

use std::{fs, process::Command, process::Stdio, time::Duration};

use fide_agent_api::protocol::ErrorCode;
use fide_client::{Error, Event, Reason};
use fide_testbed::{AgentSpec, AgentsSpec};
use rustix::process::{Pid, Signal, kill_process};

use super::common::{Eyes, Running, World, calm, fide, until, until_true, world};

fn refused(outcome: Result<fide_client::Joined, Error>) -> (ErrorCode, String) {
    match outcome {
        Err(Error::Refused(refusal)) => (refusal.code, refusal.to_string()),
        other => panic!("{other:?}"),
    }
}

/// The ups and ends of a name that were notified so far, in order.
fn lives(eyes: &Eyes) -> Vec<(u32, Option<Reason>)> {
    let about = |event: &Event| match event {
        Event::Up { evidence, .. } => Some((evidence.incarnation, None)),
        Event::Verdict(verdict) => Some((verdict.evidence.incarnation, Some(verdict.reason))),
        _ => None,
    };
    eyes.events.iter().filter_map(about).collect()
}

/// A program dies, and another one requests its name before the agent has seen the death.
fn name_goes_from_the_dead_to_the_next(world: &World) {
    const ROUNDS: usize = 100;
    let (mut near, mut far, mut here) = (world.client(1), world.client(2), world.client(1));
    let mut running = world.sleeper(1);
    let first = near.client.join_pid("heir", running.pid(), Duration::ZERO).expect("joined");
    let monitors = [far.watch("heir@h1"), here.watch("heir@h1")];
    let mut expected = vec![(first.incarnation, None)];
    for round in 0..ROUNDS {
        let next = world.sleeper(1);
        running.kill();
        let joined = near.client.join_pid("heir", next.pid(), Duration::ZERO);
        let joined = joined.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let former = expected.last().expect("one").0;
        expected.extend([(former, Some(Reason::Killed(9))), (joined.incarnation, None)]);
        running = next;
    }
    // The agent finds the request before it finds the death.
    let agent = Pid::from_raw(world.agents.pid(1).expect("an agent").try_into().expect("a pid")).expect("a pid");
    for _ in 0..5 {
        let next = world.sleeper(1);
        kill_process(agent, Signal::STOP).expect("stopped");
        let joined = std::thread::scope(|scope| {
            let joins = scope.spawn(|| near.client.join_pid("heir", next.pid(), Duration::ZERO));
            std::thread::sleep(Duration::from_millis(20));
            running.kill();
            kill_process(agent, Signal::CONT).expect("goes on");
            joins.join().expect("no panic")
        });
        let former = expected.last().expect("one").0;
        let joined = joined.expect("its name is free");
        expected.extend([(former, Some(Reason::Killed(9))), (joined.incarnation, None)]);
        running = next;
    }
    for (eyes, monitor) in [&mut far, &mut here].into_iter().zip(&monitors) {
        let last = expected.last().expect("one").0;
        while eyes.up(monitor) != last {}
        // If the end of a process and its successor are in one heartbeat, others may hear nothing of it.
        let lives = lives(eyes);
        assert!(lives.iter().all(|one| expected.contains(one)), "{lives:?}");
        assert!(lives.is_sorted_by_key(|one| (one.0, one.1.is_some())), "each ends before the next is up: {lives:?}");
    }
    assert_eq!(lives(&here), expected);
}

#[test]
fn root_name_of_a_dead_process_is_free_at_once() {
    let Some(world) = world(3, calm()) else { return };
    name_goes_from_the_dead_to_the_next(&world);
}

#[test]
fn root_name_of_a_dead_process_is_free_at_once_without_bpf() {
    let agent = AgentSpec { receive: "udp".into(), exit_watch: "pidfd".into(), ..AgentSpec::default() };
    let Some(world) = world(3, AgentsSpec { agent, ..calm() }) else { return };
    name_goes_from_the_dead_to_the_next(&world);
}

/// Starts a new agent that takes over from the agent of a host.
pub(crate) fn take_over(world: &World, host: usize) -> Running {
    let dir = world.agents.dir(host);
    let log = fs::File::options().append(true).create(true).open(dir.join("successor.log")).expect("log");
    let mut command: Command = world.bed.host(host).command(fide());
    command.args(["agent", "--takeover", "--force-timeout", "--host", world.bed.host(host).name(), "--config"]);
    command.arg(dir.join("fide.toml")).arg("--runtime-dir").arg(&dir).arg("--state-dir").arg(dir.join("state"));
    let old = world.agents.pid(host).expect("an agent");
    let new = Running::start(command.stderr(Stdio::from(log)));
    until("the old agent's end", || match fs::read_to_string(format!("/proc/{old}/stat")) {
        Ok(stat) if !stat.contains(") Z ") => {
            Err(fs::read_to_string(dir.join("successor.log")).unwrap_or_else(|error| error.to_string()))
        }
        _ => Ok(()),
    });
    new
}

#[test]
fn root_reconnected_program_keeps_its_process() {
    let Some(world) = world(3, calm()) else { return };
    let (mut far, mut near) = (world.client(2), world.client(1));
    let joined = near.client.join("self").expect("joined");
    let monitor = far.watch("self@h1");
    // While the program's first connection is open, another name and a second connection are refused.
    let mut second = world.client(1);
    assert_eq!(refused(second.client.join("self")).0, ErrorCode::NameTaken);
    let other = world.sleeper(1);
    // The agent is replaced, and the program begins anew: the new agent waits for the old session, which
    // never comes.
    let agent = take_over(&world, 1);
    let mut anew = world.client(1);
    assert_eq!(refused(anew.client.join("other")).0, ErrorCode::NameTaken, "it is under watch by another name");
    assert_eq!(refused(anew.client.join_pid("self", other.pid(), Duration::ZERO)).0, ErrorCode::NameTaken);
    let again = anew.client.join("self").expect("it is the same process");
    assert_eq!(again.incarnation, joined.incarnation);
    // The program's messages are taken, and its old session ends without effect on it.
    anew.client.piggyback(b"here").expect("taken");
    far.next("its message", |event| {
        matches!(event, Event::Piggyback { bytes, .. } if &**bytes == b"here").then_some(())
    });
    drop(near);
    drop(second);
    far.quiet();
    assert_eq!(far.finals(&monitor), 0);
    // The old connection hangs up just before the next one requests.
    for _ in 0..50 {
        drop(anew);
        anew = world.client(1);
        assert_eq!(anew.client.join("self").expect("it is the same process").incarnation, joined.incarnation);
    }
    drop(agent);
}

#[test]
fn root_failed_join_leaves_nothing_behind() {
    let agent = AgentSpec { exit_watch: "pidfd".into(), ..AgentSpec::default() };
    let env = vec![("FIDE_FAULTS".into(), "1".into())];
    let Some(world) = world(3, AgentsSpec { agent, env, ..calm() }) else { return };
    let (mut near, mut far) = (world.client(1), world.client(2));
    let running = world.sleeper(1);
    let monitor = far.client.monitor("blind@h1", fide_client::Wanted::default()).expect("monitored");
    let fault = world.agents.dir(1).join("state/fault");
    fs::write(&fault, "join-unwatched").expect("planted");
    until_true("the fault is armed", || !fault.exists());
    let (code, text) = refused(near.client.join_pid("blind", running.pid(), Duration::ZERO));
    assert!(code == ErrorCode::Full && text.contains("max_user_watches"), "{text}");
    assert_eq!(world.status(1)["processes"].as_array().map(Vec::len), Some(0));
    far.quiet();
    assert!(lives(&far).is_empty(), "{:?}", far.events);
    // Its name and its place are free.
    near.client.join_pid("blind", running.pid(), Duration::ZERO).expect("joined");
    far.up(&monitor);
    drop(running);
    assert_eq!(far.reason(&monitor), Reason::Killed(9));
}
