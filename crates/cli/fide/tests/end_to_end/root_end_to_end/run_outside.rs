// SPDX-License-Identifier: Apache-2.0
//! Children of a program of `fide run`, and processes that leave its control group: as with `systemd-run
//! --scope` and pam_systemd.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    time::Duration,
};

use fide_testbed::Lines;
use rustix::process::Signal;

use super::{
    common::{Running, World, calm, until, until_true, world},
    place::{Place, Rung},
    run::{signal, state, watched},
    run_corners::{end_silence, is_still, silence},
};

/// Shell words: a process in the group `to`, which writes its number to `note`.
fn leaver(to: &Path, note: &Path) -> String {
    format!("sh -c 'echo 0 > {}/cgroup.procs; echo $$ > {}; exec sleep 600'", to.display(), note.display())
}

fn number(note: &Path) -> u32 {
    until("its number", || {
        let text = fs::read_to_string(note).map_err(|error| error.to_string())?;
        text.trim().parse().map_err(|_| format!("{text:?}"))
    })
}

fn is_gone(pid: u32) -> bool {
    state(pid).is_none_or(|state| state == 'Z')
}

fn notes(world: &World, names: &[&str]) -> Vec<PathBuf> {
    let notes: Vec<PathBuf> = names.iter().map(|name| world.bed.scratch().join(name)).collect();
    notes.iter().for_each(|note| drop(fs::remove_file(note)));
    notes
}

#[test]
fn root_run_stops_and_kills_children_outside_of_its_group() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        let scope = place.dir().join("scope");
        fs::create_dir(&scope).expect("made");
        for sent in [Signal::TERM, Signal::KILL] {
            let notes = notes(&world, &["child", "orphan", "beside"]);
            // A child; an orphan; and a process in the group of `fide run` itself.
            let [child, orphan, beside] =
                [(&scope, 0), (&scope, 1), (&place.dir().to_owned(), 2)].map(|(to, number)| leaver(to, &notes[number]));
            let script = format!("{child} & ({orphan} &) ; {beside} & wait");
            let words = ["run", "--name", "left", "--", "sh", "-c", &script];
            let mut wrapper = Running::piped(&mut place.fide(&world, 3, &words));
            watched(&world, 3, "left");
            let left: Vec<u32> = notes.iter().map(|note| number(note)).collect();
            let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
            for _ in &left {
                lines.find_words("left its control group");
            }
            silence(&world);
            until_true("all are stopped", || left.iter().all(|pid| state(*pid) == Some('T')));
            signal(left[0], Signal::CONT);
            until_true("it is stopped again", || state(left[0]) == Some('T'));
            end_silence(&world);
            until_true("all go on", || left.iter().all(|pid| state(*pid) == Some('S')));
            world.settled(&[1, 2, 3]);
            signal(wrapper.pid(), sent);
            wrapper.code();
            until_true("none acts on", || left.iter().all(|pid| is_gone(*pid)));
            until_true("nothing is left", || place.left() == [scope.clone()]);
        }
    }
}

#[test]
fn root_run_stops_children_again_after_a_move_out_of_its_group() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        let notes = notes(&world, &["child"]);
        let script = format!("sh -c 'echo $$ > {}; exec sleep 600' & wait", notes[0].display());
        let words = ["run", "--name", "moved", "--", "sh", "-c", &script];
        let mut wrapper = Running::start(place.fide(&world, 3, &words).process_group(0));
        watched(&world, 3, "moved");
        let child = number(&notes[0]);
        let group = || fs::read_to_string(place.left()[0].join("cgroup.procs")).expect("it is there");
        for is_suspended in [false, true] {
            until_true("it runs", || !is_still(child));
            if is_suspended {
                signal(wrapper.pid(), Signal::TSTP);
                until_true("it is suspended", || state(wrapper.pid()) == Some('T'));
            } else {
                silence(&world);
                until_true("it is stopped", || is_still(child));
            }
            // The kernel continues the process as soon as it is out.
            fs::write(place.dir().join("cgroup.procs"), child.to_string()).expect("moved");
            until_true("it is stopped again", || state(child) == Some('T'));
            if is_suspended {
                signal(wrapper.pid(), Signal::CONT);
            } else {
                end_silence(&world);
            }
            until_true("it goes on", || state(child) == Some('S'));
            fs::write(place.left()[0].join("cgroup.procs"), child.to_string()).expect("moved back");
            assert!(group().lines().any(|line| line == child.to_string()));
        }
        world.settled(&[1, 2, 3]);
        signal(wrapper.pid(), Signal::TERM);
        wrapper.code();
        until_true("nothing is left", || place.left().is_empty());
    }
}

#[test]
fn root_run_leaves_children_of_a_fence_command_alone() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        let notes = notes(&world, &["daemon", "stopped"]);
        let command = format!(
            "if [ $FIDE_FENCE = stopped ]; then : > {1}; elif [ ! -e {0} ]; then setsid sleep 600 >&- 2>&- & echo $! > {0}; fi",
            notes[0].display(),
            notes[1].display()
        );
        let words = ["run", "--name", "commands", "--fence-command", &command, "--", "sleep", "600"];
        let mut wrapper = Running::start(&mut place.fide(&world, 3, &words));
        let pid = watched(&world, 3, "commands");
        until_true("it runs", || !is_still(pid));
        silence(&world);
        // A fence that ends before `fide run` has looked runs no command.
        until_true("the command for the stop has run", || notes[1].exists());
        end_silence(&world);
        let daemon = number(&notes[0]);
        world.settled(&[1, 2, 3]);
        silence(&world);
        until_true("it is stopped", || is_still(pid));
        assert_eq!(state(daemon), Some('S'), "it is the operator's");
        end_silence(&world);
        world.settled(&[1, 2, 3]);
        signal(wrapper.pid(), Signal::TERM);
        wrapper.code();
        assert_eq!(state(daemon), Some('S'), "it is the operator's");
        signal(daemon, Signal::KILL);
    }
}

#[test]
fn root_run_kills_a_process_moved_beside_it_just_before() {
    let Some(world) = world(3, calm()) else { return };
    for place in Place::with_groups() {
        for turn in 0..3 {
            let notes = notes(&world, &["child"]);
            let script = format!("sh -c 'echo $$ > {}; exec sleep 600' & wait", notes[0].display());
            let name = format!("beside{turn}");
            let words = ["run", "--name", &name, "--on-fence", "kill", "--", "sh", "-c", &script];
            let mut wrapper = Running::start(&mut place.fide(&world, 3, &words));
            watched(&world, 3, &name);
            let child = number(&notes[0]);
            silence(&world);
            // No time is asserted: this is shortly before the lease ends, so `fide run` seldom looks in
            // between.
            std::thread::sleep(Duration::from_millis(200));
            // The process may have died by then.
            let _ = fs::write(place.dir().join("cgroup.procs"), child.to_string());
            assert_eq!(wrapper.code(), Some(128 + 9));
            let is_killed = (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(2));
                is_gone(child)
            });
            if !is_killed {
                signal(child, Signal::KILL);
            }
            assert!(is_killed, "it lost its parent beside `fide run`, and acts on: turn {turn}");
            end_silence(&world);
            world.settled(&[1, 2, 3]);
        }
    }
}

#[test]
fn root_run_reports_processes_that_survive_its_kill() {
    let Some(world) = world(3, calm()) else { return };
    // A frozen process in a group of version 2 dies all the same.
    let Some(place) = Place::new(Rung::V1) else { return };
    let scope = place.dir().join("scope");
    fs::create_dir(&scope).expect("made");
    let notes = notes(&world, &["child"]);
    let script = format!("{} & wait", leaver(&scope, &notes[0]));
    let words = ["run", "--name", "undead", "--", "sh", "-c", &script];
    let mut wrapper = Running::piped(&mut place.fide(&world, 3, &words));
    watched(&world, 3, "undead");
    let child = number(&notes[0]);
    let mut lines = Lines::of(wrapper.0.stderr.take().expect("piped"));
    lines.find_words("left its control group");
    fs::write(scope.join("freezer.state"), "FROZEN").expect("frozen");
    signal(wrapper.pid(), Signal::TERM);
    lines.find_words(&format!("process {child} of the program, outside of its control group, has not died"));
    wrapper.code();
    fs::write(scope.join("freezer.state"), "THAWED").expect("thawed");
    until_true("it dies as soon as it can", || is_gone(child));
}
