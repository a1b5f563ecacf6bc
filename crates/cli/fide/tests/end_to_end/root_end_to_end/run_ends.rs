// SPDX-License-Identifier: Apache-2.0
//! A program of `fide run` leaves nothing behind, however it ends.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use rustix::process::Signal;

use super::{
    common::{Running, World, calm, fide, output, until_true, world},
    place::{Place, groups_in},
    run::{signal, state, watched},
    run_corners::is_still,
};

fn none_left(place: &Place, after: &str) {
    until_true(&format!("no control group is left after {after}"), || place.left().is_empty());
}

/// A program in which each process starts the next one and ends: a list of its processes is outdated when it
/// is read.
fn runaway(world: &World) -> PathBuf {
    let file = world.bed.scratch().join("runaway");
    let stop = world.bed.scratch().join("stop-runaway");
    let text = format!("#!/bin/sh\n[ -e {} ] && exit\n\"$0\" &\n", stop.display());
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("executable");
    file
}

/// Puts a child into a control group within its own.
const NESTS: &str = r#"for line in $(cat /proc/self/cgroup); do
  dir=""
  case $line in *fide-run-*) for at in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do
    [ -e $at/${line##*:}/cgroup.procs ] && mkdir -p $at/${line##*:}/in/ner && dir=$at/${line##*:}/in/ner; done;;
  esac
  [ -n "$dir" ] && (sh -c 'echo $$ > $0/cgroup.procs; exec sleep 600' $dir &)
done
sleep 600"#;

#[test]
fn root_run_leaves_no_control_group_however_it_ends() {
    let Some(world) = world(2, calm()) else { return };
    for place in Place::with_groups() {
        let run = |name: &str, command: &[&str]| {
            let mut words = vec!["run", "--name", name, "--"];
            words.extend_from_slice(command);
            place.fide(&world, 2, &words)
        };
        let (code, _, err) = output(&mut run("itself", &["true"]));
        assert_eq!(code, Some(0), "{err}");
        none_left(&place, "its own end");
        let (code, _, err) =
            output(&mut run("children", &["sh", "-c", "sleep 600 >&- 2>&- & sleep 600 >&- 2>&- & exit 3"]));
        assert_eq!(code, Some(3), "{err}");
        none_left(&place, "its own end, with children that go on");
        let (code, _, err) = output(&mut run("missing", &["/no/such/program"]));
        assert_eq!(code, Some(127), "{err}");
        none_left(&place, "no beginning");
        let (code, _, _) = output(&mut run("not a name", &["true"]));
        assert_ne!(code, Some(0));
        none_left(&place, "a refusal");
        for (name, sent) in [("asked", Signal::TERM), ("nested", Signal::TERM), ("lost", Signal::KILL)] {
            let mut wrapper = Running::start(&mut run(name, &["sh", "-c", NESTS]));
            watched(&world, 2, name);
            until_true("it has a group in its group", || {
                place.left().iter().any(|dir| groups_in(dir).iter().any(|dir| !groups_in(dir).is_empty()))
            });
            signal(wrapper.pid(), sent);
            wrapper.code();
            none_left(&place, name);
        }
        let mut wrapper = Running::start(&mut run("frozen", &["sh", "-c", NESTS]));
        let pid = watched(&world, 2, "frozen");
        for host in 1..=2 {
            world.bed.isolate(host).expect("cut off");
        }
        until_true("it is stopped", || is_still(pid));
        wrapper.kill();
        none_left(&place, "a death while its program was frozen");
        for host in 1..=2 {
            world.bed.rejoin(host).expect("restored");
        }
        world.settled(&[1, 2]);
    }
}

#[test]
fn root_run_killed_at_any_moment_leaves_no_control_group() {
    let Some(world) = world(2, calm()) else { return };
    for place in Place::with_groups() {
        for turn in 0..30 {
            let name = format!("turn{turn}");
            let mut wrapper =
                Running::start(&mut place.fide(&world, 2, &["run", "--name", &name, "--", "sleep", "600"]));
            // No time is asserted: this is some moment of its start.
            std::thread::sleep(Duration::from_micros(turn * 700));
            wrapper.kill();
        }
        none_left(&place, "thirty starts that were cut off");
    }
}

#[test]
fn root_run_kills_a_program_that_forks_meanwhile() {
    let Some(world) = world(2, calm()) else { return };
    let file = runaway(&world);
    for place in Place::with_groups() {
        let begin = format!("for chain in 1 2 3 4 5 6 7 8; do {} & done; sleep 600", file.display());
        for sent in [Signal::KILL, Signal::TERM] {
            let words = ["run", "--name", "runaway", "--", "sh", "-c", &begin];
            let mut wrapper = Running::start(&mut place.fide(&world, 2, &words));
            let pid = watched(&world, 2, "runaway");
            until_true("it forks", || {
                let procs =
                    place.left().first().map(|dir| fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default());
                procs.is_some_and(|text| text.lines().filter(|line| *line != pid.to_string()).count() > 1)
            });
            signal(wrapper.pid(), sent);
            wrapper.code();
            until_true("it dies with its wrapper", || state(pid).is_none());
            none_left(&place, "a program that forked meanwhile");
        }
    }
    fs::write(world.bed.scratch().join("stop-runaway"), "").expect("written");
}

/// Any user that may read a directory may lock it.
#[test]
fn root_no_other_user_can_hold_a_control_group_of_run() {
    let Some(world) = world(2, calm()) else { return };
    for place in Place::with_groups() {
        let mut wrapper = Running::start(&mut place.fide(&world, 2, &["run", "--name", "held", "--", "sleep", "600"]));
        let pid = watched(&world, 2, "held");
        let dir = place.left().pop().expect("its group");
        let as_user = |words: &[&str]| output(Command::new(words[0]).args(&words[1..]).arg(&dir).uid(61001).gid(61001));
        let (code, _, err) = as_user(&["sh", "-c", "flock --shared --nonblock $0 true"]);
        assert!(code != Some(0) && err.contains("Permission denied"), "{code:?} {err}");
        // A program that runs as another user finds its limits there, by their names.
        let (code, out, err) = as_user(&["sh", "-c", "cat $0/cgroup.procs"]);
        assert!(out.contains(&pid.to_string()), "{code:?} {err}");
        signal(wrapper.pid(), Signal::TERM);
        wrapper.code();
        none_left(&place, "an end");
    }
}

#[test]
fn root_run_removes_unused_control_groups() {
    let Some(world) = world(2, calm()) else { return };
    for place in Place::with_groups() {
        // A pid namespace ends: no process is left to clean up.
        let program = fide();
        let words =
            ["unshare", "--pid", "--fork", "--kill-child", program.to_str().expect("UTF-8"), "run", "--name", "inner"];
        let words = [&words[..], &["--", "sleep", "600"]].concat();
        let mut outer = Running::start(&mut place.command(&world, 2, &words));
        let pid = watched(&world, 2, "inner");
        outer.kill();
        until_true("it dies with its namespace", || state(pid).is_none());
        // From `fide run` and a warden that were killed at once, frozen: in version 1 no frozen process dies.
        let orphaned = place.dir().join("fide-run-7-0123456789abcdef");
        fs::create_dir(&orphaned).expect("made");
        let orphan = world.sleeper(2);
        fs::write(orphaned.join("cgroup.procs"), orphan.pid().to_string()).expect("moved");
        fs::write(orphaned.join("cgroup.freeze"), "1")
            .or_else(|_| fs::write(orphaned.join("freezer.state"), "FROZEN"))
            .expect("frozen");
        // Of a running `fide run`.
        let mut going = Running::start(&mut place.fide(&world, 2, &["run", "--name", "going", "--", "sleep", "600"]));
        let going_pid = watched(&world, 2, "going");
        until_true("what was orphaned is gone", || !orphaned.exists());
        // From an earlier version, with a nested group.
        fs::create_dir_all(place.dir().join("fide-run-2/inner")).expect("made");
        let other = place.dir().join("fide-run-3-of-another");
        fs::create_dir(&other).expect("made");
        let sleeper = world.sleeper(2);
        fs::write(other.join("cgroup.procs"), sleeper.pid().to_string()).expect("moved");
        let (code, _, err) = output(&mut place.fide(&world, 2, &["run", "--name", "sweeps", "--", "true"]));
        assert_eq!(code, Some(0), "{err}");
        until_true("only those in use are left", || place.left().len() == 2 && place.left().contains(&other));
        assert_eq!(state(sleeper.pid()), Some('S'), "of an earlier version nobody knows whether it is held");
        assert_eq!(state(going_pid), Some('S'), "it is held");
        signal(going.pid(), Signal::TERM);
        going.code();
    }
}
