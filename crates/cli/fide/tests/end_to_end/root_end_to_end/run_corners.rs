// SPDX-License-Identifier: Apache-2.0
//! `fide run` and `fide guard` in corner cases of program, terminal or operator.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{ChildStdin, Stdio},
};

use fide_client::Reason;
use fide_testbed::Lines;
use rustix::process::Signal;

use super::{
    common::{QUIET, Running, World, calm, output, until_true, world},
    place::{Place, Rung},
    run::{is_running, is_stopped, signal, state, watched},
};

/// No host hears any other: all are fenced, and none can be excluded.
pub(crate) fn silence(world: &World) {
    for host in 1..=3 {
        world.bed.isolate(host).expect("cut off");
    }
}

/// Ends the silence. Two hosts that hear each other again may go on without the third, so the hosts with
/// stopped programs and with watchers come back first.
pub(crate) fn end_silence(world: &World) {
    for host in [3, 1, 2] {
        world.bed.rejoin(host).expect("restored");
    }
}

/// Whether a program executes nothing: stopped, or frozen in a group of either version.
pub(crate) fn is_still(pid: u32) -> bool {
    state(pid).is_none_or(|state| matches!(state, 'D' | 'T')) || is_stopped(pid)
}

pub(crate) fn parent(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    line.trim().parse().expect("a pid")
}

#[test]
fn root_run_kills_also_when_the_fence_is_short() {
    let Some(world) = world(3, calm()) else { return };
    let note = world.bed.scratch().join("fenced");
    let command = format!("echo $FIDE_FENCE >> {}", note.display());
    let words = ["run", "--name", "short", "--on-fence", "kill", "--fence-command", &command, "--", "sleep", "600"];
    let mut wrapper = Running::start(&mut world.fide(3, &words));
    let pid = watched(&world, 3, "short");
    let mut own = world.client(3);
    silence(&world);
    until_true("the host is fenced", || own.client.fenced());
    end_silence(&world);
    assert_eq!(wrapper.code(), Some(128 + 9), "whether or not the fence has lifted since");
    assert_eq!(fs::read_to_string(&note).expect("it was run"), "stopped\n");
    until_true("it is dead", || state(pid).is_none());
    world.settled(&[1, 2, 3]);
    own.quiet();
    assert!(!own.client.fenced(), "in the same incarnation");
}

#[test]
fn root_suspended_run_has_stopped_its_program_first() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        let words = ["run", "--name", "job", "--on-exclusion", "stop", "--", "sleep", "600"];
        // A process group of its own, as from a shell with job control: this test could continue it.
        let wrapper = Running::start(place.fide(&world, 3, &words).process_group(0));
        let pid = watched(&world, 3, "job");
        until_true("it runs", || is_running(pid));
        let still = || is_still(pid);
        for is_fenced in [false, true] {
            signal(wrapper.pid(), Signal::TSTP);
            until_true("it is suspended", || state(wrapper.pid()) == Some('T'));
            assert!(still(), "nobody would fence it: {:?}", state(pid));
            if is_fenced {
                silence(&world);
                until_true("the host is fenced", || world.status(3)["fenced"] == true);
            }
            signal(wrapper.pid(), Signal::CONT);
            if is_fenced {
                until_true("it goes on", || state(wrapper.pid()) != Some('T'));
                std::thread::sleep(QUIET);
                assert!(still(), "its host is fenced");
                end_silence(&world);
            }
            until_true("the program goes on", || !still());
        }
        drop(wrapper);
        until_true("nothing is left", || place.left().is_empty());
        world.settled(&[1, 2, 3]);
    }
}

#[test]
fn root_run_in_a_terminal_is_suspended_and_comes_back_to_the_foreground() {
    let Some(world) = world(3, calm()) else { return };
    let file = world.bed.scratch().join("typed");
    let program = world.bed.scratch().join("program");
    let text = format!("#!/bin/sh\nwhile read -r line; do echo \"$line\" >> {}; done\n", file.display());
    fs::write(&program, text).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    let typed = || fs::read_to_string(&file).unwrap_or_default();
    for rung in [Rung::V2, Rung::V1, Rung::Signals] {
        let Some(place) = Place::new(rung) else { continue };
        let mut terminal = place.command(&world, 3, &["script", "-qec", "bash --norc --noprofile -i", "/dev/null"]);
        let mut terminal = Running(terminal.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started"));
        let mut keys = terminal.0.stdin.take().expect("piped");
        let press = |keys: &mut ChildStdin, text: &str| keys.write_all(text.as_bytes()).expect("typed");
        press(&mut keys, &format!("{} run --name tty -- {}\n", super::common::fide().display(), program.display()));
        let pid = watched(&world, 3, "tty");
        let wrapper = parent(pid);
        press(&mut keys, "before\n");
        until_true("it reads what is typed", || typed().ends_with("before\n"));
        press(&mut keys, "\x1a");
        if rung == Rung::Signals {
            press(&mut keys, "not suspended\n");
            until_true("it goes on at once", || typed().ends_with("not suspended\n"));
        } else {
            until_true("it is suspended", || state(wrapper) == Some('T'));
            assert!(is_still(pid), "{:?}", state(pid));
            press(&mut keys, "fg\n");
            until_true("it goes on", || state(wrapper) != Some('T'));
            press(&mut keys, "after\n");
            until_true("it reads what is typed", || typed().ends_with("after\n"));
        }
        signal(wrapper, Signal::TERM);
        until_true("it ends", || state(wrapper).is_none());
        press(&mut keys, "exit\n");
        terminal.code();
        until_true("nothing is left", || place.left().is_empty());
    }
}

#[test]
fn root_run_without_a_control_group_is_not_suspended() {
    let Some(world) = world(3, calm()) else { return };
    let place = Place::new(Rung::Signals).expect("that is always to be had");
    let mut command = place.fide(&world, 3, &["run", "--name", "job", "--", "sleep", "600"]);
    let mut wrapper = Running::piped(command.process_group(0));
    let pid = watched(&world, 3, "job");
    until_true("it runs", || is_running(pid));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    signal(wrapper.pid(), Signal::TSTP);
    until_true("it says why", || {
        let line = lines.next().expect("more");
        assert_ne!(state(wrapper.pid()), Some('T'), "nobody would fence the program");
        line.contains("suspended")
    });
    silence(&world);
    until_true("it is stopped", || is_stopped(pid));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    signal(wrapper.pid(), Signal::TERM);
    assert_eq!(wrapper.code(), Some(128 + 15));
}

/// $PATH with a systemctl that knows one unit, with this main process.
fn systemctl(world: &World, main: u32) -> String {
    let bin = world.bed.scratch().join("bin");
    fs::create_dir(&bin).expect("made");
    fs::write(bin.join("systemctl"), format!("#!/bin/sh\necho {main}\n")).expect("written");
    fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).expect("executable");
    format!("{}:{}", bin.display(), std::env::var("PATH").expect("set"))
}

#[test]
fn root_guard_kills_an_excluded_unit_as_a_whole_and_leaves_its_group_thawed() {
    let Some(mut world) = world(3, calm()) else { return };
    let Some(place) = Place::new(Rung::V2) else { return };
    let unit = Running::start(&mut place.command(&world, 3, &["sh", "-c", "sleep 600 & sleep 600"]));
    let procs = || fs::read_to_string(place.dir().join("cgroup.procs")).expect("read").lines().count();
    until_true("it has started another one", || procs() == 3);
    let path = systemctl(&world, unit.pid());
    let mut guard =
        Running::start(world.fide(3, &["guard", "--name", "unit", "--unit", "db.service"]).env("PATH", &path));
    watched(&world, 3, "unit");
    world.agents.kill(3).expect("killed");
    let events = || fs::read_to_string(place.dir().join("cgroup.events")).expect("read");
    until_true("it is stopped", || events().contains("frozen 1"));
    world.agents.restart(3).expect("started");
    assert_eq!(guard.code(), Some(0), "its process has ended");
    // The kernel ends each of the processes in its own time.
    until_true("no part of it stays frozen", || procs() == 0);
    until_true("it can be started again", || events().contains("frozen 0"));
}

#[test]
fn root_fenced_run_kills_at_the_second_request_to_end() {
    let Some(world) = world(3, calm()) else { return };
    let handler = "trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let mut wrapper = Running::piped(&mut world.fide(3, &["run", "--name", "asked", "--", "sh", "-c", handler]));
    let pid = watched(&world, 3, "asked");
    until_true("it runs", || is_running(pid));
    silence(&world);
    until_true("it is stopped", || is_stopped(pid));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    signal(wrapper.pid(), Signal::TERM);
    lines.find_words("the next SIGTERM");
    assert!(is_stopped(pid), "it may not act");
    signal(wrapper.pid(), Signal::INT);
    assert_eq!(wrapper.code(), Some(128 + 9));
    end_silence(&world);
}

#[test]
fn root_guard_refuses_to_freeze_itself() {
    let Some(world) = world(3, calm()) else { return };
    let Some(place) = Place::new(Rung::V2) else { return };
    let Some(elsewhere) = Place::new(Rung::V2) else { return };
    let unit = Running::start(&mut place.command(&world, 3, &["sleep", "600"]));
    until_true("it is in its group", || {
        fs::read_to_string(place.dir().join("cgroup.procs")).expect("read").contains(&unit.pid().to_string())
    });
    let path = systemctl(&world, unit.pid());
    let words = ["guard", "--name", "unit", "--unit", "db.service"];
    let (code, out, err) = output(place.fide(&world, 3, &words).env("PATH", &path));
    assert_eq!(code, Some(2), "{out} {err}");
    assert!(err.contains("db.service") && err.contains("itself"), "what to do instead: {err}");
    assert_eq!(world.status(3)["processes"].as_array().map(Vec::len), Some(0), "nothing has begun");
    // From another group, the program is stopped with its group.
    let mut guard = Running::piped(elsewhere.fide(&world, 3, &words).env("PATH", &path));
    let frozen = || fs::read_to_string(place.dir().join("cgroup.events")).expect("read").contains("frozen 1");
    let mut lines = Lines::of(guard.0.stdout.take().expect("piped"));
    lines.find_words("fenced by cgroup v2");
    silence(&world);
    until_true("it is stopped", frozen);
    end_silence(&world);
    until_true("it goes on", || !frozen());
    signal(guard.pid(), Signal::TERM);
    assert_eq!(guard.code(), Some(0));
    assert_eq!(state(unit.pid()), Some('S'));
}

#[test]
fn root_run_reports_a_setuid_program_and_ends() {
    let Some(world) = world(3, calm()) else { return };
    let place = Place::new(Rung::Signals).expect("that is always to be had");
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("readable");
    let becomes_root = dir.path().join("becomes-root");
    if let Err(error) = fs::copy("/usr/bin/setpriv", &becomes_root) {
        println!("not tested: /usr/bin/setpriv: {error}");
        return;
    }
    fs::set_permissions(&becomes_root, fs::Permissions::from_mode(0o4755)).expect("setuid");
    let note = dir.path().join("note");
    fs::write(&note, "").expect("written");
    fs::set_permissions(&note, fs::Permissions::from_mode(0o666)).expect("writable");
    let note_it = format!("echo $FIDE_FENCE >> {}", note.display());
    let program = super::common::fide();
    let words = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        program.to_str().expect("UTF-8"),
        "run",
        "--name",
        "root",
        "--fence-command",
        &note_it,
        "--",
        becomes_root.to_str().expect("UTF-8"),
        "--reuid=0",
        "--clear-groups",
        "sleep",
        "600",
    ];
    let mut wrapper = Running::piped(&mut place.command(&world, 3, &words));
    let pid = watched(&world, 3, "root");
    let uids = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    until_true("it is root", || uids().contains("Uid:\t0\t0\t0\t0"));
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    let mut eyes = world.client(1);
    let monitor = eyes.watch("root@h3");
    lines.find_words("out of reach");
    world.bed.isolate(3).expect("cut off");
    until_true("the host is fenced", || world.status(3)["fenced"] == true);
    until_true("what can be is fenced", || fs::read_to_string(&note).expect("read").contains("stopped"));
    assert_eq!(eyes.reason(&monitor), Reason::HostSilent);
    world.bed.rejoin(3).expect("restored");
    let code = wrapper.code();
    let goes_on = state(pid).is_some_and(|state| state != 'Z');
    signal(pid, Signal::KILL);
    assert_eq!(code, Some(125), "it does not wait for what it cannot end");
    assert!(goes_on, "it could not be ended");
    assert!(fs::read_to_string(&note).expect("read").ends_with("excluded\n"));
}

#[test]
fn root_fence_command_begins_with_no_signal_blocked() {
    let Some(world) = world(3, calm()) else { return };
    let note = world.bed.scratch().join("masks");
    let note_it = format!("grep -E '^Sig(Blk|Ign)' /proc/self/status >> {}", note.display());
    let words = ["run", "--name", "masked", "--fence-command", &note_it, "--", "sleep", "600"];
    let mut wrapper = Running::start(world.fide(3, &words).stdin(Stdio::null()));
    watched(&world, 3, "masked");
    silence(&world);
    until_true("it has run", || fs::read_to_string(&note).is_ok_and(|text| text.contains("SigIgn")));
    end_silence(&world);
    for line in fs::read_to_string(&note).expect("read").lines() {
        let mask = line.split_whitespace().nth(1).expect("a mask");
        // Signals 32 and 33 belong to the C library: the inherited mask of them stays.
        let mask = u64::from_str_radix(mask, 16).expect("a mask") & !(0b11 << 31);
        assert_eq!(mask, 0, "{line}");
    }
    signal(wrapper.pid(), Signal::TERM);
    wrapper.code();
}

#[test]
fn root_slow_fence_command_gives_way_to_the_newest_state() {
    let Some(mut world) = world(3, calm()) else { return };
    let note = world.bed.scratch().join("order");
    let slow = format!(
        "echo begin $FIDE_FENCE >> {0}; [ $FIDE_FENCE = continued ] && sleep 12; echo end $FIDE_FENCE >> {0}",
        note.display()
    );
    let words = ["run", "--name", "slow", "--fence-command", &slow, "--", "sleep", "600"];
    let mut wrapper = Running::start(&mut world.fide(3, &words));
    watched(&world, 3, "slow");
    let noted = || fs::read_to_string(&note).unwrap_or_default();
    silence(&world);
    until_true("it is stopped", || noted().contains("end stopped"));
    end_silence(&world);
    until_true("it goes on", || noted().contains("begin continued"));
    world.agents.kill(3).expect("killed");
    world.agents.restart(3).expect("started");
    assert_eq!(wrapper.code(), Some(128 + 9), "others may have replaced it");
    let noted = noted();
    assert!(noted.ends_with("begin excluded\nend excluded\n"), "{noted}");
    assert!(!noted.contains("end continued"), "of an older state: {noted}");
}

/// The output of `ip` about an address on h3's loopback.
fn shown(world: &World, address: &str) -> String {
    let (_, out, _) = output(world.bed.host(3).command("ip").args(["-o", "address", "show", "dev", "lo"]));
    out.lines().find(|line| line.contains(address)).unwrap_or_default().to_owned()
}

fn ip(world: &World, arguments: &[&str]) {
    let (code, _, err) = output(world.bed.host(3).command("ip").args(arguments));
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn root_run_takes_addresses_off_while_it_is_fenced_and_for_good_once_excluded() {
    let Some(mut world) = world(3, calm()) else { return };
    let (four, six) = ("10.99.0.9/32", "fd00:99::9/128");
    ip(&world, &["address", "add", four, "dev", "lo", "label", "lo:vip"]);
    ip(&world, &["address", "add", six, "dev", "lo", "nodad"]);
    let (here, not_here) = (format!("{four}@lo"), "10.99.0.10/32@lo");
    let six_here = format!("{six}@lo");
    let words = [
        "run",
        "--name",
        "vip",
        "--fence-address",
        &here,
        "--fence-address",
        not_here,
        "--fence-address",
        &six_here,
        "--",
        "sleep",
        "600",
    ];
    let mut wrapper = Running::start(&mut world.fide(3, &words));
    let pid = watched(&world, 3, "vip");
    until_true("it runs", || is_running(pid));
    let before = (shown(&world, four), shown(&world, six));
    assert!(before.0.contains("lo:vip"), "{before:?}");
    silence(&world);
    until_true("they are off", || shown(&world, four).is_empty() && shown(&world, six).is_empty());
    until_true("so is the program", || is_stopped(pid));
    end_silence(&world);
    until_true("it goes on", || is_running(pid));
    until_true("they are as they were", || (shown(&world, four), shown(&world, six)) == before);
    assert_eq!(shown(&world, "10.99.0.10"), "", "it was never there");
    world.agents.kill(3).expect("killed");
    world.agents.restart(3).expect("started");
    assert_eq!(wrapper.code(), Some(128 + 9));
    world.settled(&[1, 2, 3]);
    assert_eq!((shown(&world, four), shown(&world, six)), (String::new(), String::new()), "they are another's now");

    // If it is killed in a short fence, it does not get the addresses back either.
    ip(&world, &["address", "add", four, "dev", "lo"]);
    let words = ["run", "--name", "short", "--on-fence", "kill", "--fence-address", &here, "--", "sleep", "600"];
    let mut wrapper = Running::start(&mut world.fide(3, &words));
    watched(&world, 3, "short");
    let own = world.client(3);
    silence(&world);
    until_true("the host is fenced", || own.client.fenced());
    end_silence(&world);
    assert_eq!(wrapper.code(), Some(128 + 9));
    world.settled(&[1, 2, 3]);
    assert_eq!(shown(&world, four), "");

    for (wrong, says) in [
        ("10.99.0.9/32@nodev", "nodev"),
        ("10.99.0.9@lo", "ADDR/LEN@DEV"),
        ("10.99.0.9/33@lo", "33"),
        ("10.70.1.3/32@lo", "h3's own address"),
    ] {
        let (code, _, err) =
            output(&mut world.fide(3, &["run", "--name", "x", "--fence-address", wrong, "--", "true"]));
        assert!(code == Some(2) && err.contains(says), "{wrong}: {code:?} {err}");
    }
}

#[test]
fn root_run_without_the_right_to_fence_the_network_begins_nothing() {
    let Some(world) = world(2, calm()) else { return };
    let place = Place::new(Rung::Signals).expect("that is always to be had");
    let program = super::common::fide();
    let begun = world.bed.scratch().join("begun");
    for option in [&["--fence-address", "10.99.0.9/32@lo"][..], &["--fence-sockets"]] {
        let mut words = vec!["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        words.extend_from_slice(&[program.to_str().expect("UTF-8"), "run", "--name", "bare"]);
        words.extend_from_slice(option);
        words.extend_from_slice(&["--", "touch", begun.to_str().expect("UTF-8")]);
        let (code, _, err) = output(&mut place.command(&world, 2, &words));
        assert!(code == Some(4) && err.contains(option[0]) && err.contains("CAP_NET_ADMIN"), "{code:?} {err}");
    }
    // A program that ignores fences has none to extend.
    let words = ["run", "--name", "bare", "--on-fence", "ignore", "--fence-sockets", "--", "true"];
    let (code, _, err) = output(&mut world.fide(2, &words));
    assert!(code == Some(2) && err.contains("--on-fence ignore"), "{code:?} {err}");
    assert!(!begun.exists());
}

/// Listens on port 7001, and has a connection to the port in its argument.
const SPEAKER: &str = r#"use IO::Socket::INET;
$l = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => 7001, ReuseAddr => 1) or die;
$c = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]") or die;
sleep 600"#;

#[test]
fn root_run_resets_the_connections_of_its_program_while_it_is_fenced() {
    let Some(world) = world(3, calm()) else { return };
    let host = world.bed.host(3);
    for place in Place::with_groups() {
        let (listener, port) = host
            .run_in(|| {
                let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
                let port = listener.local_addr().expect("an address").port().to_string();
                (listener, port)
            })
            .expect("in its namespace");
        let (mut of_another, kept) = host
            .run_in(|| {
                let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
                (client, listener.accept().expect("accepted").0)
            })
            .expect("in its namespace");
        let words = ["run", "--name", "speaker", "--fence-sockets", "--", "perl", "-e", SPEAKER, &port];
        let mut wrapper = Running::start(&mut place.fide(&world, 3, &words));
        let pid = watched(&world, 3, "speaker");
        let (mut peer, _) = listener.accept().expect("its connection");
        silence(&world);
        let error = peer.read(&mut [0; 1]).expect_err("no end in good order");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        until_true("it is stopped", || is_stopped(pid) || state(pid) == Some('D'));
        end_silence(&world);
        until_true("its listener is kept", || {
            host.run_in(|| TcpStream::connect("127.0.0.1:7001").is_ok()).expect("in its namespace")
        });
        of_another.set_nonblocking(true).expect("set");
        let unread = of_another.read(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(unread, Err(std::io::ErrorKind::WouldBlock), "another program's connection is none of its");
        drop(kept);
        signal(wrapper.pid(), Signal::TERM);
        wrapper.code();
        world.settled(&[1, 2, 3]);
    }
}
