// SPDX-License-Identifier: Apache-2.0
//! Signals to `fide run` and `fide guard`: passed on unchanged, and never the end of a fence.

use std::{fs, io::Write, path::Path, process::Stdio};

use fide_client::Reason;
use rustix::process::Signal;

use super::{
    common::{QUIET, Running, calm, fide, until, until_true, world},
    run::{is_running, is_stopped, signal, state, watched},
    run_corners::{end_silence, parent, silence},
};

/// Signals that concern `fide run` alone, or cannot be caught.
const KEPT: [i32; 14] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGCHLD,
    libc::SIGCONT,
    libc::SIGPIPE,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

/// A program that writes the number of each signal that it gets, whatever its parents ignore.
fn noting(file: &Path, signals: &str) -> Vec<String> {
    let script = format!(
        "for s in {signals}; do trap \"echo $s >> {file}\" $s; done; echo ready >> {file}; while :; do sleep 0.01; done",
        file = file.display()
    );
    ["env", "--default-signal", "bash", "-c", &script].map(str::to_owned).into()
}

fn noted(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn root_run_passes_every_signal_on_and_still_fences() {
    let Some(world) = world(3, calm()) else { return };
    // The C library keeps 32 and 33 for itself.
    let all: Vec<i32> = (1..=64).filter(|number| !KEPT.contains(number) && ![32, 33].contains(number)).collect();
    let file = world.bed.scratch().join("signals");
    let words: Vec<String> = all.iter().map(i32::to_string).collect();
    let program = noting(&file, &words.join(" "));
    let mut arguments = vec!["run", "--name", "signalled", "--"];
    arguments.extend(program.iter().map(String::as_str));
    let mut wrapper = Running::start(&mut world.fide(3, &arguments));
    let pid = watched(&world, 3, "signalled");
    until_true("it is ready", || noted(&file) == ["ready"]);
    let mut expected = vec!["ready".to_owned()];
    for number in all {
        // SAFETY: the number is one that the C library does not keep for itself.
        signal(wrapper.pid(), unsafe { Signal::from_raw_unchecked(number) });
        expected.push(number.to_string());
        until("the program gets it", || {
            let noted = noted(&file);
            if noted == expected { Ok(()) } else { Err(format!("signal {number}: {noted:?}")) }
        });
    }
    for kept in [Signal::PIPE, Signal::CHILD, Signal::CONT] {
        signal(wrapper.pid(), kept);
    }
    assert!(wrapper.0.try_wait().expect("asked").is_none(), "it lives as long as its program");
    silence(&world);
    until_true("it is fenced", || is_stopped(pid));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    assert_eq!(noted(&file), expected, "and nothing else");
    signal(wrapper.pid(), Signal::KILL);
    until_true("it dies with its wrapper", || state(pid).is_none());
}

#[test]
fn root_run_passes_a_terminal_key_on_only_once() {
    let Some(world) = world(3, calm()) else { return };
    for session in ["", "setsid "] {
        let file = world.bed.scratch().join(format!("keys{}", session.len()));
        let program = noting(&file, "2 3");
        let line = format!(
            "exec {} run --name keys -- {session}{} -c '{}'",
            fide().display(),
            program[..3].join(" "),
            program[4].replace('\'', "'\\''")
        );
        let mut terminal = world.bed.host(3).command("script");
        terminal.args(["-qec", &line, "/dev/null"]).env("FIDE_SOCKET", world.agents.socket(3));
        let mut terminal = Running(terminal.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started"));
        let mut keys = terminal.0.stdin.take().expect("piped");
        let pid = watched(&world, 3, "keys");
        let wrapper = parent(pid);
        until_true("it is ready", || noted(&file) == ["ready"]);
        let mut expected = vec!["ready"];
        for (key, number) in [(b"\x03", "2"), (b"\x1c", "3")] {
            keys.write_all(key).expect("typed");
            expected.push(number);
            until_true("the program gets it", || noted(&file).len() == expected.len());
            std::thread::sleep(QUIET);
            assert_eq!(noted(&file), expected, "once; {session}");
        }
        signal(wrapper, Signal::INT);
        expected.push("2");
        until_true("the same from elsewhere", || noted(&file) == expected);
        signal(pid, Signal::KILL);
        until_true("it ends with its program", || state(wrapper).is_none());
        terminal.code();
    }
}

#[test]
fn root_guard_is_ended_only_by_ending_signals() {
    let Some(world) = world(3, calm()) else { return };
    let program = world.sleeper(3);
    let pid = program.pid().to_string();
    let mut eyes = world.client(1);
    for (name, end) in [("quit", Signal::QUIT), ("interrupted", Signal::INT)] {
        let mut guard = Running::start(&mut world.fide(3, &["guard", "--name", name, "--pid", &pid]));
        let monitor = eyes.watch(&format!("{name}@h3"));
        for ignored in [Signal::HUP, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH] {
            signal(guard.pid(), ignored);
        }
        silence(&world);
        until_true("it is fenced", || is_stopped(program.pid()));
        end_silence(&world);
        until_true("it goes on", || is_running(program.pid()));
        world.settled(&[1, 2, 3]);
        signal(guard.pid(), end);
        assert_eq!(guard.code(), Some(0));
        assert_eq!(eyes.reason(&monitor), Reason::Left);
        assert!(is_running(program.pid()), "untouched");
    }
}
