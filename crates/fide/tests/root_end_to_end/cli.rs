// SPDX-License-Identifier: Apache-2.0
//! The command line, as an operator meets it.

use std::{fs, io::BufRead, io::BufReader};

use fide_client::{Event, Reason};
use fide_testbed::{Victim, VictimSpec};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::common::{Running, World, calm, finish, output, until, until_true, world};

/// State letter of a process, as ps shows it.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

/// The pid under watch as `name`.
fn watched(world: &World, host: usize, name: &str) -> u32 {
    until(name, || {
        let status = world.agents.ask(host, "status", serde_json::json!({}))?;
        let found = status["processes"].as_array().into_iter().flatten().find(|p| p["name"] == name);
        let pid = found.and_then(|p| p["pid"].as_u64()).ok_or_else(|| status["processes"].to_string())?;
        Ok(u32::try_from(pid).expect("a pid"))
    })
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
    kill_process(pid, signal).expect("sent");
}

#[test]
fn root_run_pauses_its_program_while_the_host_is_fenced() {
    let Some(mut world) = world(3, calm()) else { return };
    let mut wrapper = Running::start(&mut world.fide(3, &["run", "--name", "paused", "--", "sleep", "600"]));
    let pid = watched(&world, 3, "paused");
    let mut eyes = world.client(1);
    let monitor = eyes.watch("paused@h3");
    until_true("it runs", || state(pid) == Some('S'));
    // Its agent is killed: nobody tells it, the lease runs out.
    world.agents.kill(3).expect("killed");
    until_true("it is stopped", || state(pid) == Some('T'));
    assert_eq!(eyes.reason(&monitor), Reason::HostSilent);
    assert_eq!(state(pid), Some('T'), "stopped before anybody may take its place");
    world.agents.restart(3).expect("started");
    until_true("it goes on", || state(pid) == Some('S'));
    eyes.up(&monitor);
    // The same when the host is cut off.
    world.bed.isolate(3).expect("cut off");
    until_true("it is stopped", || state(pid) == Some('T'));
    world.bed.rejoin(3).expect("restored");
    until_true("it goes on", || state(pid) == Some('S'));
    // SIGTERM is passed on.
    signal(wrapper.pid(), Signal::TERM);
    assert_eq!(wrapper.code(), Some(128 + 15));
}

#[test]
fn root_run_kills_if_told_so_and_gives_back_the_code() {
    let Some(world) = world(3, calm()) else { return };
    let (code, out, err) = output(&mut world.fide(1, &["run", "--name", "five", "--", "sh", "-c", "echo out; exit 5"]));
    assert_eq!((code, &*out), (Some(5), "out\n"), "{err}");
    let (code, _, err) = output(&mut world.fide(1, &["run", "--name", "none", "--", "/no/such/program"]));
    assert_eq!(code, Some(127), "{err}");
    let (code, _, err) = output(&mut world.fide(1, &["run", "--name", "not a name", "--", "true"]));
    assert!(code.is_some_and(|code| code != 0), "{err}");
    let mut kept = Running::start(&mut world.fide(3, &["run", "--name", "kept", "--", "sleep", "600"]));
    watched(&world, 3, "kept");
    let (code, _, err) = output(&mut world.fide(3, &["run", "--name", "kept", "--", "touch", "/nonexistent/x"]));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("kept") && !err.contains("touch:"), "its program never began: {err}");
    let mut wrapper =
        Running::start(&mut world.fide(3, &["run", "--name", "lost", "--on-fence", "kill", "--", "sleep", "600"]));
    watched(&world, 3, "lost");
    world.bed.isolate(3).expect("cut off");
    assert_eq!(wrapper.code(), Some(128 + 9));
    kept.kill();
}

#[test]
fn root_guard_watches_a_running_program_and_lets_it_go() {
    let Some(world) = world(3, calm()) else { return };
    let program = world.sleeper(2);
    let pid = program.pid().to_string();
    let mut guard = Running::piped(&mut world.fide(2, &["guard", "--name", "guarded", "--pid", &pid]));
    let mut eyes = world.client(1);
    let monitor = eyes.watch("guarded@h2");
    signal(guard.pid(), Signal::TERM);
    assert_eq!(guard.code(), Some(0));
    assert_eq!(eyes.reason(&monitor), Reason::Left, "its watch ends, it goes on");
    assert_eq!(state(program.pid()), Some('S'));

    let (code, out, err) = output(&mut world.fide(2, &["guard", "--name", "detached", "--pid", &pid, "--detach"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(&format!("detached@h2 is process {pid}")), "{out}");
    let monitor = eyes.watch("detached@h2");
    drop(program);
    assert_eq!(eyes.reason(&monitor), Reason::Killed(9));

    let (code, _, err) = output(&mut world.fide(2, &["guard", "--name", "gone", "--pid", &pid]));
    assert!(code == Some(1) && err.contains("no process"), "{err}");
    let (code, _, err) = output(&mut world.fide(2, &["guard", "--name", "which"]));
    assert!(code == Some(2) && err.contains("--pid"), "{err}");
}

#[test]
fn root_watch_prints_and_runs_what_it_was_told_to() {
    let Some(world) = world(3, calm()) else { return };
    let victim =
        Victim::spawn(Some(world.bed.host(2)), &VictimSpec { exit_code: 7, ..Default::default() }).expect("victim");
    let mut near = world.client(2);
    near.client.join_pid("seen", victim.pid(), std::time::Duration::ZERO).expect("joined");
    let told = world.bed.scratch().join("told");
    let react = format!("echo $FIDE_TARGET $FIDE_REASON $FIDE_CODE $FIDE_INCARNATION >> {}", told.display());
    let mut watch = Running::piped(&mut world.fide(1, &["watch", "seen@h2", "--json", "--on-failure", &react]));
    let mut lines = BufReader::new(watch.0.stdout.take().expect("piped")).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON") };
    let first = next();
    assert_eq!((&first["kind"], &first["target"]), (&"watching".into(), &"seen@h2".into()));
    let mut kinds = vec![];
    let up = loop {
        let value = next();
        kinds.push(value["kind"].clone());
        if value["kind"] == "up" {
            break value;
        }
    };
    victim.signal(Signal::USR2).expect("sent");
    let verdict = loop {
        let value = next();
        if value["kind"] == "verdict" {
            break value;
        }
    };
    assert_eq!(
        (&verdict["reason"], &verdict["code"], &verdict["failure"]),
        (&"exited".into(), &7.into(), &true.into())
    );
    assert_eq!(verdict["evidence"]["incarnation"], up["evidence"]["incarnation"]);
    assert_eq!(watch.code(), Some(1), "a failure was seen");
    let said = fs::read_to_string(&told).expect("the command ran");
    assert_eq!(said, format!("seen@h2 exited 7 {}\n", up["evidence"]["incarnation"]), "once");

    // Nothing happens: 0. For people: a line.
    let (code, out, err) = output(&mut world.fide(1, &["watch", "@h3", "--limit", "0.2"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with("watching @h3: alive"), "{out}");
    let (code, _, err) = output(&mut world.fide(1, &["watch", "@h9"]));
    assert!(code == Some(2) && err.contains("h1, h2, h3"), "{code:?} {err}");
    let (code, _, err) = output(&mut world.fide(1, &["watch", "@h2", "--timeout-us", "1"]));
    assert!(code == Some(2), "{code:?} {err}");
}

#[test]
fn root_watch_goes_on_for_ever_if_told_so() {
    let Some(world) = world(3, calm()) else { return };
    let watch = Running::piped(&mut world.fide(1, &["watch", "again@h2", "--forever", "--limit", "30"]));
    for _ in 0..3 {
        let mut running = Running::start(&mut world.fide(2, &["run", "--name", "again", "--", "sleep", "600"]));
        let mut eyes = world.client(1);
        let monitor = eyes.watch("again@h2");
        signal(watched(&world, 2, "again"), Signal::KILL);
        assert_eq!(running.code(), Some(128 + 9));
        eyes.next("the end", |event| match event {
            Event::Verdict(v) if v.monitor == monitor.id => Some(()),
            _ => None,
        });
        until_true("it is forgotten", || world.status(2)["processes"].as_array().expect("a list").is_empty());
    }
    signal(watch.pid(), Signal::INT);
    let output = finish(watch);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(out.matches("again@h2 was killed by signal 9").count(), 3, "{out}");
}

#[test]
fn root_status_explain_and_metrics() {
    let Some(world) = world(3, calm()) else { return };
    let victim = Victim::spawn(Some(world.bed.host(2)), &VictimSpec::default()).expect("victim");
    let mut near = world.client(2);
    near.client.join_pid("explained", victim.pid(), std::time::Duration::ZERO).expect("joined");
    let mut eyes = world.client(1);
    let monitor = eyes.watch("explained@h2");
    victim.kill().expect("killed");
    eyes.verdict(&monitor);

    let (code, out, _) = output(&mut world.fide(1, &["status", "--json"]));
    let status: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &status["host"], &status["fenced"]), (Some(0), &"h1".into(), &false.into()));
    assert_eq!(status["peers"].as_array().map(Vec::len), Some(2));
    let (code, out, _) = output(&mut world.fide(1, &["status"]));
    assert_eq!(code, Some(0));
    assert!(out.starts_with("h1 of cluster testbed") && out.contains("may act"), "{out}");

    let listed = until("the death is in the journal", || {
        let (_, out, _) = output(&mut world.fide(1, &["explain"]));
        out.lines().find(|line| line.contains("explained@h2 was killed by signal 9")).map(str::to_owned).ok_or(out)
    });
    let id = listed.split_whitespace().next().expect("an id");
    assert!(id.starts_with("h1-"), "{listed}");
    let (code, out, _) = output(&mut world.fide(1, &["explain", id]));
    assert_eq!(code, Some(0));
    assert!(out.contains("h2's kernel saw it") && out.contains("observer"), "{out}");
    let (_, out, _) = output(&mut world.fide(1, &["explain", id, "--json"]));
    let event: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&event["id"], &event["subject"]), (&id.into(), &"explained@h2".into()));
    let (code, _, err) = output(&mut world.fide(1, &["explain", "h1-99999"]));
    assert!(code == Some(2) && err.contains("h1-99999"), "{code:?} {err}");

    let (code, out, _) = output(&mut world.fide(1, &["metrics"]));
    assert_eq!(code, Some(0));
    for line in out.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("name and value");
        assert!(name.starts_with("fide_") && value.parse::<f64>().is_ok(), "{line}");
    }

    // Whoever asks a fenced host is told.
    world.bed.isolate(3).expect("cut off");
    until("h3 is fenced", || match output(&mut world.fide(3, &["status"])) {
        (Some(1), out, _) if out.contains("FENCED") => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
