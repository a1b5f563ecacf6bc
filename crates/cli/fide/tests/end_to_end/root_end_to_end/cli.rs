// SPDX-License-Identifier: Apache-2.0
//! The command line, as an operator meets it.

use std::fs;

use fide_testbed::{Lines, Victim, VictimSpec};
use rustix::process::Signal;
use serde_json::Value;

use super::{
    common::{Running, calm, finish, output, until, until_true, world},
    run::{signal, watched},
};

#[test]
fn root_watch_prints_events_and_runs_the_command() {
    let Some(world) = world(3, calm()) else { return };
    let victim =
        Victim::spawn(Some(world.bed.host(2)), &VictimSpec { exit_code: 7, ..Default::default() }).expect("victim");
    let mut near = world.client(2);
    near.client.join_pid("seen", victim.pid(), std::time::Duration::ZERO).expect("joined");
    let notes = world.bed.scratch().join("notes");
    let react =
        format!("echo $FIDE_TARGET $FIDE_REASON $FIDE_CODE $FIDE_INCARNATION $FIDE_TOKEN >> {}", notes.display());
    let mut watch = Running::piped(&mut world.fide(1, &["watch", "seen@h2", "--json", "--on-failure", &react]));
    let mut lines = Lines::of(watch.0.stdout.take().expect("piped"));
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line")).expect("JSON") };
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
    let said = fs::read_to_string(&notes).expect("the command ran");
    let token = world.client(1).client.may_act().and_then(|permit| permit.token()).expect("a view");
    assert_eq!(said, format!("seen@h2 exited 7 {} {token}\n", up["evidence"]["incarnation"]), "once");

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
fn root_watch_forever() {
    let Some(world) = world(3, calm()) else { return };
    let mut watch = Running::piped(&mut world.fide(1, &["watch", "again@h2", "--forever"]));
    let mut lines = Lines::of(watch.0.stdout.take().expect("piped"));
    // A death from before the watch began would not be notified.
    lines.find_words("watching again@h2");
    for _ in 0..3 {
        let mut running = Running::start(&mut world.fide(2, &["run", "--name", "again", "--", "sleep", "600"]));
        lines.find_words("again@h2 is up");
        signal(watched(&world, 2, "again"), Signal::KILL);
        // Each death is printed before the next process begins, and before the watch is ended.
        lines.find_words("again@h2 was killed by signal 9");
        assert_eq!(running.code(), Some(128 + 9));
        until_true("it is forgotten", || world.status(2)["processes"].as_array().expect("a list").is_empty());
    }
    assert!(watch.0.try_wait().expect("asked").is_none(), "it goes on");
    // Not INT: a shell's background job and its children ignore that one.
    signal(watch.pid(), Signal::TERM);
    assert_eq!(lines.rest(), "", "each death is printed once");
    assert_eq!(watch.code(), None, "by the signal");
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

    // A fenced host says that it is fenced.
    world.bed.isolate(3).expect("cut off");
    until("h3 is fenced", || match output(&mut world.fide(3, &["status"])) {
        (Some(1), out, _) if out.contains("FENCED") => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn root_watch_tells_no_death_from_before_it_began() {
    let Some(world) = world(3, calm()) else { return };
    let fired = world.bed.scratch().join("fired");
    let mut eyes = world.client(1);
    let live = || Running::start(&mut world.fide(2, &["run", "--name", "db", "--", "sleep", "600"]));
    let mut former = live();
    let monitor = eyes.watch("db@h2");
    signal(watched(&world, 2, "db"), Signal::KILL);
    former.code();
    eyes.verdict(&monitor);
    let react = format!("echo $FIDE_REASON $FIDE_INCARNATION >> {}", fired.display());
    let mut watch = Running::piped(&mut world.fide(1, &["watch", "db@h2", "--on-failure", &react]));
    let mut lines = Lines::of(watch.0.stdout.take().expect("piped"));
    lines.find_words("before this watch began");
    let mut later = live();
    lines.find_words("is up");
    let evidence = eyes.up(&monitor);
    assert!(!fired.exists(), "nobody died meanwhile");
    signal(watched(&world, 2, "db"), Signal::TERM);
    assert_eq!(watch.code(), Some(1), "a failure was seen");
    later.code();
    until("it fired", || fs::read_to_string(&fired).map_err(|error| error.to_string()));
    assert_eq!(fs::read_to_string(&fired).expect("read"), format!("killed {evidence}\n"), "once");
    // An operator that wants to know of an earlier end at once asks for it.
    let words = ["watch", "db@h2", "--count-earlier", "--on-failure", &react];
    let earlier = finish(Running::piped(&mut world.fide(1, &words)));
    assert_eq!(earlier.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&fired).expect("read"), format!("killed {evidence}\nkilled {evidence}\n"));
}
