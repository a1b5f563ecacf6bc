// SPDX-License-Identifier: Apache-2.0
//! `fide watch`, `fide run` and `fide guard` whose output cannot be written: a full disk, a reader that is gone.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

use rustix::process::Signal;
use serde_json::json;

use super::{
    common::{Running, World, calm, output, until_true, world},
    run::{is_running, is_stopped, signal, watched},
    run_corners::{end_silence, silence},
};

/// A target that refuses every write: ENOSPC.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("opened").into()
}

/// A pipe without a reader: EPIPE.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("made");
    drop(reader);
    writer.into()
}

fn start(command: &mut Command, out: Stdio, err: Stdio) -> Running {
    Running(command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("started"))
}

/// Waits until so many `fide watch` are registered with the agent of `host`.
fn watching(world: &World, host: usize, count: usize) {
    until_true("it watches", || {
        let clients = world.status(host)["clients"].clone();
        let watches = |c: &&serde_json::Value| c["program"] == "fide watch" && c["watches"] == 1;
        clients.as_array().expect("a list").iter().filter(watches).count() == count
    });
}

#[test]
fn root_watch_reacts_while_its_log_cannot_be_written() {
    let Some(world) = world(2, calm()) else { return };
    for (turn, log) in [full, unread].into_iter().enumerate() {
        let name = format!("redis{turn}");
        let mut run = Running::start(&mut world.fide(2, &["run", "--name", &name, "--", "sleep", "600"]));
        let pid = watched(&world, 2, &name);
        let target = format!("{name}@h2");
        world.client(1).watch(&target);
        let note = world.bed.scratch().join(&name);
        let promote = format!("touch {}; exit 3", note.display());
        let words = ["watch", &target, "--forever", "--on-failure", &promote];
        let mut watch = start(&mut world.fide(1, &words), log(), log());
        watching(&world, 1, 1);
        signal(pid, Signal::KILL);
        run.code();
        until_true("it has promoted", || note.exists());
        assert!(watch.0.try_wait().expect("asked").is_none(), "it goes on");
        drop(watch);
        watching(&world, 1, 0);
    }
}

#[test]
fn root_question_without_a_reader_ends_by_sigpipe() {
    let Some(world) = world(2, calm()) else { return };
    let ended = |mut running: Running| {
        let mut said = String::new();
        running.0.stderr.take().expect("piped").read_to_string(&mut said).expect("read");
        (running.0.wait().expect("ended").signal(), said)
    };
    for words in [&["status"][..], &["status", "--json"], &["explain"], &["metrics"], &["watch", "@h2"]] {
        let running = start(&mut world.fide(1, words), unread(), Stdio::piped());
        assert_eq!(ended(running), (Some(libc::SIGPIPE), String::new()), "{words:?}");
    }
    // `fide watch | head -1`: there is no event to print.
    let mut watch = Running::piped(&mut world.fide(1, &["watch", "@h2"]));
    let mut out = BufReader::new(watch.0.stdout.take().expect("piped"));
    out.read_line(&mut String::new()).expect("a line");
    watching(&world, 1, 1);
    drop(out);
    assert_eq!(ended(watch), (Some(libc::SIGPIPE), String::new()));
}

#[test]
fn root_run_and_guard_fence_while_their_log_cannot_be_written() {
    let Some(world) = world(3, calm()) else { return };
    for log in [full, unread] {
        let mut run = start(&mut world.fide(3, &["run", "--name", "run", "--", "sleep", "600"]), log(), log());
        let of_run = watched(&world, 3, "run");
        let program = world.sleeper(3);
        let pid = program.pid().to_string();
        let mut guard = start(&mut world.fide(3, &["guard", "--name", "guarded", "--pid", &pid]), log(), log());
        watched(&world, 3, "guarded");
        until_true("both run", || is_running(of_run) && is_running(program.pid()));
        silence(&world);
        until_true("both are stopped", || is_stopped(of_run) && is_stopped(program.pid()));
        end_silence(&world);
        until_true("both go on", || is_running(of_run) && is_running(program.pid()));
        world.settled(&[1, 2, 3]);
        assert!(run.0.try_wait().expect("asked").is_none() && guard.0.try_wait().expect("asked").is_none());
        signal(run.pid(), Signal::TERM);
        assert_eq!(run.code(), Some(128 + 15));
        signal(guard.pid(), Signal::TERM);
        assert_eq!(guard.code(), Some(0));
    }
    let words = ["run", "--name", "x", "--on-fence", "ignore", "--fence-sockets", "--", "true"];
    assert_eq!(start(&mut world.fide(3, &words), full(), full()).code(), Some(2), "an error keeps its exit code");
}

#[test]
fn root_watch_ends_once_nothing_is_watched_any_more() {
    let Some(mut world) = world(2, calm()) else { return };
    let mut run = Running::start(&mut world.fide(2, &["run", "--name", "redis", "--", "sleep", "600"]));
    watched(&world, 2, "redis");
    let words = ["watch", "redis@h2", "--timeout-us", "400000", "--forever"];
    let watch = Running::piped(&mut world.fide(1, &words));
    watching(&world, 1, 1);
    // The agent comes back with a longer timeout than requested.
    let drop_ins = world.agents.dir(1).join("fide.toml.d");
    fs::create_dir_all(&drop_ins).expect("made");
    let toml = fs::read_to_string(world.agents.dir(1).join("fide.toml")).expect("read");
    let before = toml.lines().take_while(|line| !line.starts_with("timeout_us"));
    let section = before.filter(|line| line.starts_with('[')).last().unwrap_or_default();
    fs::write(drop_ins.join("10-timeout.toml"), format!("{section}\ntimeout_us = 800000\n")).expect("written");
    world.agents.kill(1).expect("killed");
    world.agents.restart(1).expect("started");
    let ended = super::common::finish(watch);
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(1), "{out} {err}");
    assert!(out.contains("redis@h2 is not watched any more") && err.contains("nothing is watched"), "{out} {err}");
    run.kill();
}

#[test]
fn root_invalid_limits_are_refused() {
    let Some(world) = world(1, calm()) else { return };
    for limit in ["-1", "1e30", "nan", "soon"] {
        let (code, _, err) = output(&mut world.fide(1, &["watch", "@h1", &format!("--limit={limit}")]));
        assert!(code == Some(2) && err.contains("seconds"), "{limit}: {code:?} {err}");
    }
}

#[test]
fn root_quit_of_a_former_incarnation_is_refused() {
    let Some(world) = world(1, calm()) else { return };
    let program = world.sleeper(1);
    let mut client = world.client(1);
    let joined = client.client.join_pid("redis", program.pid(), std::time::Duration::ZERO).expect("joined");
    // The end of a former owner of the slot is no news to others, and the present one stays registered.
    let former = json!({ "slot": joined.slot, "incarnation": joined.incarnation.wrapping_sub(1) });
    let refused = world.agents.ask(1, "quit", former).expect_err("another one's");
    assert!(refused.contains("not_found") || refused.contains("incarnation"), "{refused}");
    assert_eq!(watched(&world, 1, "redis"), program.pid());
    client.client.quit(joined.id).expect("its own");
    assert_eq!(world.status(1)["processes"].as_array().map(Vec::len), Some(0));
}
