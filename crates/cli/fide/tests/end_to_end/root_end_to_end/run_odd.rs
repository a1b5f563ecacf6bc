// SPDX-License-Identifier: Apache-2.0
//! `fide run` if the program, the terminal or the operator's command hinders a fence.

use std::{
    io::{Read, Write},
    net::TcpListener,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::Stdio,
    time::{Duration, Instant},
};

use fide_testbed::Lines;
use rustix::process::Signal;

use super::{
    common::{QUIET, Running, calm, output, until, until_true, world},
    place::{Place, Rung},
    run::{is_running, is_stopped, signal, state, watched},
    run_corners::{end_silence, is_still, parent, silence},
};

/// Writes to the port in its argument for as long as it can.
const FLOOD: &str = r#"use IO::Socket::INET;
$c = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]") or die;
while (1) { syswrite($c, "x" x 65536); }"#;

#[test]
fn root_run_resets_connections_before_it_kills() {
    let Some(world) = world(3, calm()) else { return };
    let host = world.bed.host(3);
    for place in [Rung::V2, Rung::V1, Rung::Signals].into_iter().filter_map(Place::new) {
        let listener = host.run_in(|| TcpListener::bind("127.0.0.1:0").expect("bound")).expect("in its namespace");
        let port = listener.local_addr().expect("an address").port().to_string();
        let words =
            ["run", "--name", "speaker", "--on-fence", "kill", "--fence-sockets", "--", "perl", "-e", FLOOD, &port];
        let mut wrapper = Running::start(&mut place.fide(&world, 3, &words));
        let pid = watched(&world, 3, "speaker");
        let (mut peer, _) = listener.accept().expect("its connection");
        until_true("it writes", || peer.peek(&mut [0; 1]).is_ok_and(|len| len == 1));
        silence(&world);
        assert_eq!(wrapper.code(), Some(128 + 9));
        assert!(state(pid).is_none());
        let (until, mut buffer) = (Instant::now() + Duration::from_secs(20), vec![0; 1 << 16]);
        let end = loop {
            assert!(Instant::now() < until, "it is dead");
            match peer.read(&mut buffer) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(end, Some(std::io::ErrorKind::ConnectionReset), "what it had written and was not sent is dropped");
        end_silence(&world);
        world.settled(&[1, 2, 3]);
    }
}

#[test]
fn root_run_ends_a_hanging_fence_command_when_asked_to_end() {
    let Some(world) = world(3, calm()) else { return };
    // A program that handles SIGTERM does not end by it while it is stopped.
    let handler = "trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let words = ["run", "--name", "hang", "--fence-command", "exec sleep 600", "--", "sh", "-c", handler];
    let mut wrapper = Running::piped(&mut world.fide(3, &words));
    let pid = watched(&world, 3, "hang");
    until_true("it runs", || is_running(pid));
    silence(&world);
    until_true("it is stopped", || is_stopped(pid));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    signal(wrapper.pid(), Signal::TERM);
    lines.find_words("the next SIGTERM");
    signal(wrapper.pid(), Signal::TERM);
    until_true("the program is dead", || !is_running(pid) && !is_stopped(pid));
    std::thread::sleep(QUIET);
    assert!(wrapper.0.try_wait().expect("asked").is_none(), "the command has its time");
    signal(wrapper.pid(), Signal::TERM);
    assert_eq!(wrapper.code(), Some(128 + 9));
    end_silence(&world);
}

#[test]
fn root_run_is_not_suspended_if_nothing_could_continue_it() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        // As `ssh -t host fide run …` and `docker exec -t`: `fide run` leads its session, which has no shell
        // with job control.
        let line = format!("exec {} run --name orphan -- sleep 600", super::common::fide().display());
        let mut terminal = place.command(&world, 3, &["script", "-qec", &line, "/dev/null"]);
        let mut terminal = Running(terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started"));
        let mut keys = terminal.0.stdin.take().expect("piped");
        let pid = watched(&world, 3, "orphan");
        let wrapper = parent(pid);
        until_true("it runs", || !is_still(pid));
        let mut lines = Lines::of(terminal.0.stdout.take().expect("piped"));
        keys.write_all(b"\x1a").expect("typed");
        lines.find_words("orphaned");
        assert_ne!(state(wrapper), Some('T'));
        assert!(!is_still(pid), "it runs on, and is fenced");
        keys.write_all(b"\x03").expect("typed");
        until_true("Ctrl-C ends it", || state(wrapper).is_none());
        terminal.code();
        until_true("nothing is left", || place.left().is_empty());
    }
}

#[test]
fn root_run_stops_and_kills_a_program_that_left_its_control_group() {
    let Some(mut world) = world(3, calm()) else { return };
    let Some(place) = Place::new(Rung::V2) else { return };
    // As `systemd-run --scope` does, and pam_systemd for `su -` and `sudo`: the same process in another group.
    let script = format!("echo 0 > {}/cgroup.procs; exec sleep 600", place.dir().display());
    let mut wrapper = Running::piped(&mut world.fide(3, &["run", "--name", "left", "--", "sh", "-c", &script]));
    let pid = watched(&world, 3, "left");
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    lines.find_words("left its control group");
    // Another `fide run` that begins meanwhile removes unused groups. This one is empty, but in use.
    let (code, _, err) = output(&mut world.fide(3, &["run", "--name", "other", "--", "true"]));
    assert_eq!(code, Some(0), "{err}");
    silence(&world);
    until_true("it is stopped", || state(pid) == Some('T'));
    end_silence(&world);
    until_true("it goes on", || state(pid) == Some('S'));
    world.settled(&[1, 2, 3]);
    world.agents.kill(3).expect("killed");
    world.agents.restart(3).expect("started");
    assert_eq!(wrapper.code(), Some(128 + 9), "others may have replaced it");
    assert!(state(pid).is_none());
}

/// As systemd does for a `systemd-run --scope` whose request came before the fence.
#[test]
fn root_run_stops_a_stopped_program_again_after_a_move_out_of_its_group() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        let mut wrapper = Running::start(&mut place.fide(&world, 3, &["run", "--name", "moved", "--", "sleep", "600"]));
        let pid = watched(&world, 3, "moved");
        until_true("it runs", || !is_still(pid));
        silence(&world);
        until_true("it is stopped", || is_still(pid));
        // The kernel thaws a process that leaves a frozen group.
        std::fs::write(place.dir().join("cgroup.procs"), pid.to_string()).expect("moved");
        until_true("it is stopped again", || state(pid) == Some('T'));
        end_silence(&world);
        until_true("it goes on", || state(pid) == Some('S'));
        world.settled(&[1, 2, 3]);
        signal(wrapper.pid(), Signal::TERM);
        assert_eq!(wrapper.code(), Some(128 + 15));
    }
}

#[test]
fn root_run_stops_a_stopped_program_again_after_sigcont() {
    let Some(world) = world(3, calm()) else { return };
    for rung in [Rung::V2, Rung::V1, Rung::Signals] {
        let Some(place) = Place::new(rung) else { continue };
        let mut wrapper = Running::start(&mut place.fide(&world, 3, &["run", "--name", "woken", "--", "sleep", "600"]));
        let pid = watched(&world, 3, "woken");
        until_true("it runs", || !is_still(pid));
        silence(&world);
        until_true("it is stopped", || is_still(pid));
        if rung != Rung::Signals {
            std::fs::write(place.dir().join("cgroup.procs"), pid.to_string()).expect("moved");
        }
        until_true("it is stopped by a signal", || state(pid) == Some('T'));
        // From here on it is not in that state until it is stopped again.
        signal(pid, Signal::CONT);
        until_true("it is stopped again", || state(pid) == Some('T'));
        end_silence(&world);
        until_true("it goes on", || state(pid) == Some('S'));
        world.settled(&[1, 2, 3]);
        signal(wrapper.pid(), Signal::TERM);
        assert_eq!(wrapper.code(), Some(128 + 15));
    }
}

/// While `fide run` is suspended, no process would fence the program.
#[test]
fn root_suspended_run_holds_a_program_moved_out_of_its_group() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        let words = ["run", "--name", "job", "--", "sleep", "600"];
        let wrapper = Running::start(place.fide(&world, 3, &words).process_group(0));
        let pid = watched(&world, 3, "job");
        until_true("it runs", || !is_still(pid));
        signal(wrapper.pid(), Signal::TSTP);
        until_true("it is suspended", || state(wrapper.pid()) == Some('T'));
        std::fs::write(place.dir().join("cgroup.procs"), pid.to_string()).expect("moved");
        // The kernel continues the process as soon as it is out.
        until_true("it is stopped", || state(pid) == Some('T'));
        signal(wrapper.pid(), Signal::CONT);
        until_true("it goes on", || state(pid) == Some('S'));
        drop(wrapper);
        until_true("nothing is left", || place.left().is_empty());
    }
}

#[test]
fn root_run_hung_up_before_its_program_began_never_begins_it() {
    let Some(world) = world(3, calm()) else { return };
    let command = ["run", "--name", "ignores", "--on-fence", "ignore", "--fence-command", "true", "--", "true"];
    let (code, _, err) = output(&mut world.fide(3, &command));
    assert!(code == Some(2) && err.contains("--fence-command"), "it would never run: {code:?} {err}");
    silence(&world);
    until_true("the host is fenced", || world.status(3)["fenced"] == true);
    let note = world.bed.scratch().join("began");
    let mut wrapper =
        Running::piped(&mut world.fide(3, &["run", "--name", "hup", "--", "touch", note.to_str().expect("UTF-8")]));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    lines.find_words("begins when it is heard");
    signal(wrapper.pid(), Signal::HUP);
    assert_ne!(wrapper.code(), Some(0));
    end_silence(&world);
    world.settled(&[1, 2, 3]);
    assert!(!note.exists());
}

/// The agent restarts while the program waits for a lease, and another process has the name by the time that
/// the program is registered again.
#[test]
fn root_run_begins_no_unregistered_program() {
    let Some(mut world) = world(3, calm()) else { return };
    silence(&world);
    until_true("the host is fenced", || world.status(3)["fenced"] == true);
    let note = world.bed.scratch().join("began");
    let mut wrapper =
        Running::piped(&mut world.fide(3, &["run", "--name", "wanted", "--", "touch", note.to_str().expect("UTF-8")]));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    lines.find_words("begins when it is heard");
    signal(wrapper.pid(), Signal::STOP);
    world.agents.restart(3).expect("restarted");
    let other = world.sleeper(3);
    let mut there = world.client(3);
    there.client.join_pid("wanted", other.pid(), Duration::ZERO).expect("joined");
    signal(wrapper.pid(), Signal::CONT);
    lines.find_words("does not begin");
    assert!(wrapper.code().is_some_and(|code| code != 0));
    end_silence(&world);
    world.settled(&[1, 2, 3]);
    assert!(!note.exists());
}

#[test]
fn root_run_retries_to_remove_an_address() {
    let Some(world) = world(3, calm()) else { return };
    let ip = |arguments: &str| {
        let (code, out, err) = output(world.bed.host(3).command("ip").args(arguments.split(' ')));
        assert_eq!(code, Some(0), "{arguments}: {err}");
        out
    };
    ip("link add vip0 type veth peer name vip1");
    ip("address add 10.99.0.9/32 dev vip0");
    let words = ["run", "--name", "late", "--fence-address", "10.99.0.9/32@vip0", "--", "sleep", "600"];
    let mut wrapper = Running::piped(&mut world.fide(3, &words));
    let pid = watched(&world, 3, "late");
    until_true("it runs", || is_running(pid));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    // No lookup finds it by its name.
    ip("link set vip0 name away");
    silence(&world);
    lines.find_words("tried again");
    until_true("the rest of the fence is in force", || is_stopped(pid));
    ip("link set away name vip0");
    lines.find_words("off now");
    assert!(!ip("-o address show").contains("10.99.0.9"));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    until_true("it is put back", || ip("-o address show").contains("10.99.0.9"));
    signal(wrapper.pid(), Signal::TERM);
    assert_eq!(wrapper.code(), Some(128 + 15));
}

#[test]
fn root_run_retries_to_restore_an_address() {
    let Some(world) = world(3, calm()) else { return };
    let ip = |arguments: &str| {
        let (code, out, err) = output(world.bed.host(3).command("ip").args(arguments.split(' ')));
        assert_eq!(code, Some(0), "{arguments}: {err}");
        out
    };
    let make = || {
        ip("link add vip0 type veth peer name vip1");
        ip("link set vip0 up");
    };
    make();
    ip("address add 10.99.0.8/32 dev vip0");
    let words = ["run", "--name", "back", "--fence-address", "10.99.0.8/32@vip0", "--", "sleep", "600"];
    let mut wrapper = Running::piped(&mut world.fide(3, &words));
    let pid = watched(&world, 3, "back");
    until_true("it runs", || is_running(pid));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    silence(&world);
    until_true("it is off", || !ip("-o address show").contains("10.99.0.8"));
    // The interface goes away, and comes back as another one.
    ip("link delete vip0");
    end_silence(&world);
    lines.find_words("could not be put back, and is tried again");
    until_true("it goes on without", || is_running(pid));
    make();
    lines.find_words("is back now");
    assert!(ip("-o address show dev vip0").contains("10.99.0.8"));
    signal(wrapper.pid(), Signal::TERM);
    assert_eq!(wrapper.code(), Some(128 + 15));
}

#[test]
fn root_run_dumps_no_core_and_its_program_does() {
    let Some(world) = world(3, calm()) else { return };
    let fide = super::common::fide();
    // As a service with LimitCORE=infinity.
    let words = ["prlimit", "--core=unlimited", "--"];
    let mut command = world.bed.host(3).command(words[0]);
    command.args(&words[1..]).arg(fide).args(["run", "--name", "cores", "--fence-command", "exec sleep 600", "--"]);
    command.args(["sleep", "600"]).env("FIDE_SOCKET", world.agents.socket(3)).current_dir(world.bed.scratch());
    let mut wrapper = Running::piped(&mut command);
    let pid = watched(&world, 3, "cores");
    until_true("it runs", || is_running(pid));
    let limit = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("read");
        let line = text.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a limit").to_owned();
        line.split_whitespace().next().expect("a number").to_owned()
    };
    assert_eq!((limit(wrapper.pid()), limit(pid)), ("1".to_owned(), "unlimited".to_owned()));
    let others = |of: u32| {
        let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).expect("read");
        children
            .split_whitespace()
            .map(|pid| pid.parse().expect("a pid"))
            .filter(|child| *child != pid)
            .collect::<Vec<u32>>()
    };
    for warden in others(wrapper.pid()) {
        until_true("the warden dumps none", || limit(warden) == "1");
    }
    silence(&world);
    until_true("it is stopped", || is_stopped(pid));
    // A fault of `fide run` itself. (SIGABRT, which dumps core too, is passed on to the program.)
    signal(wrapper.pid(), Signal::ILL);
    let status = until("its end", || wrapper.0.try_wait().ok().flatten().ok_or_else(|| "it lives".to_owned()));
    assert!(!status.core_dumped(), "meanwhile nobody fences the program: {status}");
    until_true("the program is dead", || state(pid).is_none_or(|state| state == 'Z'));
    end_silence(&world);
}
