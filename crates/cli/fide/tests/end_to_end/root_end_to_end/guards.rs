// SPDX-License-Identifier: Apache-2.0
//! Several guards of one process, and a guard of a program of `fide run`: one of them has it registered, and
//! once that one is gone the next one does, as the same process.

use fide_client::Reason;
use fide_testbed::Lines;
use rustix::process::Signal;

use super::{
    common::{Eyes, Running, World, calm, output, until, until_true, world},
    joins::take_over,
    run::{is_running, is_stopped, signal, watched},
    run_corners::{end_silence, silence},
};

fn guard(world: &World, name: &str, pid: u32, more: &[&str]) -> std::process::Command {
    let pid = pid.to_string();
    world.fide(3, &[&["guard", "--name", name, "--pid", &pid][..], more].concat())
}

/// A request for it is refused, whatever the name, and the answer says what it is registered as.
fn is_taken(world: &World, pid: u32, by: &str) {
    for name in [by, "other"] {
        for more in [&[][..], &["--detach"]] {
            let (code, out, err) = output(&mut guard(world, name, pid, more));
            assert_eq!((code, &*out), (Some(1), ""), "{name}: {err}");
            assert!(err.contains(&format!("process {pid} is under watch already, as {by}")), "{name}: {err}");
        }
    }
    assert_eq!(watched(world, 3, by), pid);
}

/// The incarnation that others know the process by.
fn number(eyes: &mut Eyes, name: &str) -> u32 {
    let monitor = eyes.client.monitor(&format!("{name}@h3"), fide_client::Wanted::default()).expect("monitored");
    eyes.up(&monitor)
}

#[test]
fn root_second_guard_is_refused_until_the_first_is_gone_and_goes_on_with_the_same_process() {
    let Some(world) = world(3, calm()) else { return };
    let program = world.sleeper(3);
    let pid = program.pid();
    let mut first = Running::start(&mut guard(&world, "db", pid, &[]));
    let mut eyes = world.client(1);
    let monitor = eyes.watch("db@h3");
    let known = number(&mut eyes, "db");
    is_taken(&world, pid, "db");
    // The refused guards have left the process alone: it is fenced, and continues.
    until_true("it runs", || is_running(pid));
    silence(&world);
    until_true("it is stopped", || is_stopped(pid));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    world.settled(&[1, 2, 3]);

    // A guard that is stopped while the agent is replaced may come back: the agent waits for this very
    // process.
    signal(first.pid(), Signal::STOP);
    let agent = take_over(&world, 3);
    is_taken(&world, pid, "db");
    signal(first.pid(), Signal::CONT);
    until_true("it is back", || {
        let clients = world.status(3)["clients"].clone();
        clients.as_array().expect("a list").iter().any(|client| client["pid"] == first.pid())
    });
    is_taken(&world, pid, "db");

    // Each time the present guard is killed the next one takes over; others hear nothing of that.
    for _ in 0..3 {
        first.kill();
        first = Running::start(&mut guard(&world, "db", pid, &[]));
        let is_guard = |client: &serde_json::Value| client["pid"] == first.pid();
        until_true("its session is open", || {
            world.status(3)["clients"].as_array().expect("a list").iter().any(is_guard)
        });
        until_true("it has it", || {
            let (code, _, err) = output(&mut guard(&world, "other", pid, &[]));
            code == Some(1) && err.contains("already, as db")
        });
        assert_eq!(number(&mut eyes, "db"), known);
    }
    eyes.quiet();
    assert_eq!(eyes.finals(&monitor), 0, "{:#?}", eyes.events);
    silence(&world);
    until_true("the last one fences it", || is_stopped(pid));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    signal(first.pid(), Signal::TERM);
    assert_eq!(first.code(), Some(0));
    assert_eq!(eyes.reason(&monitor), Reason::Left, "its watch ends, it goes on");
    assert!(is_running(pid));
    drop(agent);
}

#[test]
fn root_released_guards_leave_one_registration() {
    let Some(world) = world(3, calm()) else { return };
    let program = world.sleeper(3);
    let pid = program.pid();
    let mut eyes = world.client(1);
    for _ in 0..3 {
        let (code, out, err) = output(&mut guard(&world, "db", pid, &["--detach"]));
        assert_eq!(code, Some(0), "{out} {err}");
        assert_eq!(world.status(3)["processes"].as_array().map(Vec::len), Some(1));
    }
    let monitor = eyes.watch("db@h3");
    let known = number(&mut eyes, "db");
    // The process is taken under any other name, too.
    let (code, _, err) = output(&mut guard(&world, "other", pid, &["--detach"]));
    assert!(code == Some(1) && err.contains("already, as db"), "{err}");
    let mut fences = Running::start(&mut guard(&world, "db", pid, &[]));
    silence(&world);
    until_true("it is fenced", || is_stopped(pid));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    world.settled(&[1, 2, 3]);
    assert_eq!(number(&mut eyes, "db"), known);
    fences.kill();
    assert_eq!(eyes.finals(&monitor), 0);
    drop(program);
    assert_eq!(eyes.reason(&monitor), Reason::Killed(9), "it was under watch all the time");
}

#[test]
fn root_guard_of_a_program_of_fide_run_is_refused() {
    let Some(world) = world(3, calm()) else { return };
    let mut run = Running::start(&mut world.fide(3, &["run", "--name", "ran", "--", "sleep", "600"]));
    let pid = watched(&world, 3, "ran");
    let mut eyes = world.client(1);
    let monitor = eyes.watch("ran@h3");
    is_taken(&world, pid, "ran");
    // No program gets the name of a guarded one, and such a program never begins.
    let begun = world.bed.scratch().join("begun");
    let words = ["run", "--name", "ran", "--", "touch", begun.to_str().expect("UTF-8")];
    let (code, _, err) = output(&mut world.fide(3, &words));
    assert!(code == Some(1) && err.contains("ran"), "{code:?} {err}");
    until_true("it runs", || is_running(pid));
    silence(&world);
    until_true("it is fenced", || is_stopped(pid));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    world.settled(&[1, 2, 3]);
    eyes.quiet();
    assert_eq!((eyes.finals(&monitor), begun.exists()), (0, false), "{:#?}", eyes.events);
    signal(run.pid(), Signal::TERM);
    assert_eq!(run.code(), Some(128 + 15));
    assert_eq!(eyes.reason(&monitor), Reason::Killed(15));
}

/// The agent was replaced, and the new one gave up waiting for the guard.
#[test]
fn root_late_guard_reports_it_and_leaves_the_process_to_the_next() {
    let Some(world) = world(3, calm()) else { return };
    let program = world.sleeper(3);
    let pid = program.pid();
    let mut late = Running::piped(&mut guard(&world, "db", pid, &[]));
    let mut lines = Lines::of(late.0.stderr.take().expect("piped"));
    let mut eyes = world.client(1);
    let monitor = eyes.watch("db@h3");
    signal(late.pid(), Signal::STOP);
    let agent = take_over(&world, 3);
    let mut next = until("the agent gives it up", || {
        let (code, _, err) = output(&mut guard(&world, "db", pid, &["--detach"]));
        if code == Some(0) { Ok(Running::start(&mut guard(&world, "db", pid, &[]))) } else { Err(err) }
    });
    until_true("its session is open", || {
        world.status(3)["clients"].as_array().expect("a list").iter().any(|client| client["pid"] == next.pid())
    });
    signal(late.pid(), Signal::CONT);
    lines.find_words("db is not under watch any more");
    signal(late.pid(), Signal::TERM);
    assert_eq!(late.code(), Some(0), "{}", lines.rest());
    assert_eq!(eyes.finals(&monitor), 0, "it is the next one's");
    is_taken(&world, pid, "db");
    signal(next.pid(), Signal::TERM);
    assert_eq!(next.code(), Some(0));
    assert_eq!(eyes.reason(&monitor), Reason::Left);
    drop(agent);
}
