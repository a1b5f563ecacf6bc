// SPDX-License-Identifier: Apache-2.0
//! `fide guard --unit`: the whole unit is stopped and continued with its main process.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use fide_testbed::Lines;
use rustix::process::Signal;

use super::{
    common::{Running, World, calm, until_true, world},
    place::{Place, Rung},
    run::{cgroup2, signal, watched},
    run_corners::{end_silence, silence},
};

/// $PATH with a systemctl that knows one unit: its main process, and its control group.
fn systemctl(world: &World, main: u32, group: &str) -> String {
    let bin = world.bed.scratch().join("bin");
    fs::create_dir_all(&bin).expect("made");
    let text = format!("#!/bin/sh\ncase $* in *ControlGroup*) echo {group};; *) echo {main};; esac\n");
    fs::write(bin.join("systemctl"), text).expect("written");
    fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).expect("executable");
    format!("{}:{}", bin.display(), std::env::var("PATH").expect("set"))
}

/// A control group as systemd names it.
fn in_hierarchy(dir: &Path) -> String {
    format!("/{}", dir.strip_prefix(cgroup2().expect("mounted")).expect("within").display())
}

fn procs(dir: &Path) -> usize {
    fs::read_to_string(dir.join("cgroup.procs")).expect("read").lines().count()
}

fn is_frozen(dir: &Path) -> bool {
    fs::read_to_string(dir.join("cgroup.events")).expect("read").contains("frozen 1")
}

#[test]
fn root_guard_stops_a_unit_with_a_nested_group() {
    let Some(mut world) = world(3, calm()) else { return };
    let Some(place) = Place::new(Rung::V2) else { return };
    // As systemd does with DelegateSubgroup=, systemd-nspawn and podman.
    let made = |name: &str| -> PathBuf {
        let dir = place.dir().join(name);
        fs::create_dir(&dir).expect("made");
        dir
    };
    let (main, payload) = (made("supervisor"), made("payload"));
    let script = format!(
        "(echo 0 > {}/cgroup.procs; exec sleep 600) & echo 0 > {}/cgroup.procs; wait",
        payload.display(),
        main.display()
    );
    let unit = Running::start(&mut place.command(&world, 3, &["sh", "-c", &script]));
    until_true("both are in place", || procs(&main) == 1 && procs(&payload) == 1);
    let path = systemctl(&world, unit.pid(), &in_hierarchy(place.dir()));
    let words = ["guard", "--name", "unit", "--unit", "db.service"];
    let mut guard = Running::start(world.fide(3, &words).env("PATH", &path));
    watched(&world, 3, "unit");
    world.agents.kill(3).expect("killed");
    until_true("all of it is stopped", || is_frozen(&main) && is_frozen(&payload));
    world.agents.restart(3).expect("started");
    assert_eq!(guard.code(), Some(0), "its main process has ended");
    // The kernel ends each of the processes in its own time.
    until_true("others may have replaced it", || (procs(&main), procs(&payload)) == (0, 0));
    until_true("it can be started again", || !is_frozen(place.dir()));

    // The unit's group does not reach a main process that is elsewhere, and the message says what does.
    let Some(elsewhere) = Place::new(Rung::V2) else { return };
    let stranger = Running::start(&mut elsewhere.command(&world, 3, &["sleep", "600"]));
    until_true("it is elsewhere", || procs(elsewhere.dir()) == 1);
    let path = systemctl(&world, stranger.pid(), &in_hierarchy(place.dir()));
    world.settled(&[1, 2, 3]);
    let mut guard = Running::piped(world.fide(3, &words).env("PATH", &path));
    let mut lines = Lines::of(guard.0.stdout.take().expect("piped"));
    until_true("it is said", || {
        let line = lines.next().expect("more");
        line.contains("SIGSTOP") && line.contains("not in the unit's control group")
    });
    signal(guard.pid(), Signal::TERM);
    assert_eq!(guard.code(), Some(0));
}

#[test]
fn root_guard_leaves_no_frozen_process_of_a_unit_killed_by_others() {
    let Some(world) = world(3, calm()) else { return };
    let Some(place) = Place::new(Rung::V2) else { return };
    let mut unit = Running::start(&mut place.command(&world, 3, &["sh", "-c", "sleep 600 & sleep 600; true"]));
    until_true("it has begun", || procs(place.dir()) == 3);
    let path = systemctl(&world, unit.pid(), &in_hierarchy(place.dir()));
    let words = ["guard", "--name", "unit", "--unit", "db.service"];
    let mut guard = Running::start(world.fide(3, &words).env("PATH", &path));
    watched(&world, 3, "unit");
    silence(&world);
    until_true("it is stopped", || is_frozen(place.dir()));
    // As a watchdog, the kernel's OOM killer, or `systemctl kill` would.
    unit.kill();
    assert_eq!(guard.code(), Some(0), "its main process has ended");
    until_true("nothing of it is left while the host is fenced", || procs(place.dir()) == 0);
    until_true("it is left thawed", || !is_frozen(place.dir()));
    let next = Running::start(&mut place.command(&world, 3, &["sleep", "600"]));
    until_true("it can be started again", || procs(place.dir()) == 1 && !is_frozen(place.dir()));
    drop(next);
    end_silence(&world);
}
