// SPDX-License-Identifier: Apache-2.0
//! Agents that stop, are killed, leave, come back.

use std::{fs, os::unix::fs::OpenOptionsExt, time::Duration};

use fide_client::{Event, Reason, now_ns};
use fide_testbed::{AgentSpec, AgentsSpec, Victim, VictimSpec};

use super::{
    common::{Running, calm, until_true, world},
    run::{is_stopped, watched},
};

#[test]
fn root_stopped_agent_is_excluded_and_declares_no_host_dead() {
    let Some(world) = world(3, calm()) else { return };
    let mut own = world.client(3);
    let watched = (own.watch("@h1"), own.watch("@h2"));
    let mut eyes = world.client(1);
    let host = eyes.watch("@h3");
    world.agents.pause(3).expect("stopped");
    let stopped_ns = now_ns();
    // The programs of a stopped agent find out by themselves that it does not run.
    until_true("its programs are fenced", || own.client.fenced());
    assert_eq!(eyes.reason(&host), Reason::HostSilent);
    until_true("a second has passed", || now_ns() - stopped_ns > 1_000_000_000);
    assert!(own.client.fenced());
    world.agents.resume(3).expect("continued");
    own.acknowledge();
    world.settled(&[1, 2, 3]);
    until_true("its programs may act again", || !own.client.fenced());
    own.quiet();
    assert_eq!((own.finals(&watched.0), own.finals(&watched.1)), (0, 0), "{:#?}", own.events);
    assert_eq!(world.verdicts(3), Vec::<String>::new(), "it was the one that did not run");
    assert_eq!(eyes.finals(&host), 1);
}

#[test]
fn root_a_killed_agent_is_silent_and_its_programs_are_fenced_for_good() {
    let Some(mut world) = world(3, calm()) else { return };
    let own = world.client(3);
    let live = own.client.live();
    let mut eyes = [world.client(1), world.client(2)];
    let hosts = eyes.each_mut().map(|eyes| eyes.watch("@h3"));
    assert!(!live.fenced());
    world.agents.kill(3).expect("killed");
    for (eyes, host) in eyes.iter_mut().zip(&hosts) {
        assert_eq!(eyes.reason(host), Reason::HostSilent);
    }
    // No agent is there to notify the programs: their lease has run out.
    until_true("its programs are fenced", || live.fenced());
    for _ in 0..200 {
        assert!(live.fenced(), "a fence of a dead agent never lifts");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn root_client_finds_the_next_agent_and_its_watches() {
    let Some(mut world) = world(3, calm()) else { return };
    let mut own = world.client(3);
    let running = world.sleeper(3);
    own.client.join_pid("survivor", running.pid(), Duration::ZERO).expect("joined");
    let (remote, victim) =
        (world.client(1), Victim::spawn(Some(world.bed.host(1)), &VictimSpec::default()).expect("victim"));
    let mut remote = remote;
    remote.client.join_pid("victim", victim.pid(), Duration::ZERO).expect("joined");
    let watched = own.watch("victim@h1");
    let mut eyes = world.client(2);
    let survivor = eyes.watch("survivor@h3");
    world.agents.kill(3).expect("killed");
    assert_eq!(eyes.reason(&survivor), Reason::HostSilent);
    world.agents.restart(3).expect("started");
    own.next("reattached", |event| matches!(event, Event::Reattached { resumed: false }).then_some(()));
    own.acknowledge();
    world.settled(&[1, 2, 3]);
    until_true("its programs may act again", || !own.client.fenced());
    eyes.up(&survivor);
    victim.kill().expect("killed");
    assert_eq!(own.reason(&watched), Reason::Killed(9));
    drop(running);
    assert_eq!(eyes.reason(&survivor), Reason::Killed(9));
}

/// Others were notified that everything on the host is dead: the lease of the next agent does not hold for
/// its former programs.
#[test]
fn root_lease_of_a_restarted_agent_is_not_for_former_programs() {
    let Some(mut world) = world(3, calm()) else { return };
    let mut own = world.client(3);
    let live = own.client.live();
    let permit = own.client.may_act().expect("it may act");
    let mut eyes = world.client(1);
    let host = eyes.watch("@h3");
    world.agents.kill(3).expect("killed");
    world.agents.restart(3).expect("started");
    assert_eq!(eyes.reason(&host), Reason::HostSilent);
    let successor = eyes.client.may_act().expect("it may act");
    assert!(successor.token() > permit.token(), "{successor:?} after {permit:?}");
    own.next("reattached", |event| matches!(event, Event::Reattached { resumed: false }).then_some(()));
    until_true("the next agent has a lease", || live.with_table(|table| table.lease_left_ns(table.incarnation()) != 0));
    assert!(live.fenced() && live.may_act().is_none());
    own.acknowledge();
    until_true("its programs may act again", || !live.fenced());
    let again = live.may_act().expect("it may act");
    assert!(again.token() > permit.token() && again.incarnation > permit.incarnation, "{again:?} after {permit:?}");
}

/// An agent without some of root's rights takes the best rungs that it can, and reports why not better ones.
#[test]
fn root_without_rights_the_next_rung_is_taken() {
    let spec = |rights: &str| {
        let mut program: Vec<std::path::PathBuf> = ["setpriv", "--bounding-set", rights].map(Into::into).into();
        program.extend(calm().program);
        AgentsSpec { program, ..calm() }
    };
    for (rights, rung, why) in [
        ("-sys_admin,-bpf", "af_packet", &["ermi"][..]),
        ("-sys_admin,-bpf,-net_raw", "udp", &["ermi", "; AF_PACKET: Operation not permitted"]),
    ] {
        let Some(world) = world(2, spec(rights)) else { return };
        assert_eq!(world.receive_rungs(1), [rung, rung]);
        let why_not = world.status(1)["rungs"]["receive"][1]["fell_back"].to_string();
        assert!(why.iter().all(|why| why_not.contains(why)), "{rights}: {why_not}");
        println!("{rights}: {rung}, because {why_not}");
    }
}

#[test]
fn root_leaving_agent_is_no_failure() {
    let Some(mut world) = world(3, calm()) else { return };
    let running = world.sleeper(3);
    let mut own = world.client(3);
    own.client.join_pid("inside", running.pid(), Duration::ZERO).expect("joined");
    let mut eyes = world.client(1);
    let (host, process) = (eyes.watch("@h3"), eyes.watch("inside@h3"));
    let mut wrapper = Running::start(&mut world.fide(3, &["run", "--name", "served", "--", "sleep", "600"]));
    let served = watched(&world, 3, "served");
    let before = own.client.may_act().expect("it may act").incarnation;
    world.agents.stop(3).expect("stopped");
    until_true("what `fide run` has started is stopped", || is_stopped(served));
    let reason = eyes.reason(&host);
    assert_eq!(reason, Reason::Left);
    assert!(!reason.is_failure());
    eyes.quiet();
    for event in &eyes.events {
        if let Event::Verdict(verdict) = event {
            assert!(!verdict.reason.is_failure(), "{verdict:?}");
        }
    }
    assert_eq!((eyes.finals(&host), eyes.finals(&process)), (1, 1), "{:#?}", eyes.events);
    assert!(!world.agents.socket(3).exists(), "its socket goes with it");
    // The majority continues, and readmits the host.
    assert_eq!(world.status(1)["fenced"], false);
    world.agents.restart(3).expect("started");
    world.settled(&[1, 2, 3]);
    eyes.up(&host);
    assert_eq!(wrapper.code(), Some(128 + 9), "others may have replaced it");
    assert!(world.status(3)["incarnation"].as_u64() > Some(before.into()), "as after an exclusion");
}

#[test]
fn root_a_new_key_is_taken_without_a_verdict() {
    // One file for all hosts, each of which looks at it five times a second: the overlap is longer than that.
    let Some(world) = world(3, AgentsSpec { cluster_extra: "key_overlap_ms = 1500".into(), ..calm() }) else { return };
    let path = world.bed.scratch().join("cluster.key");
    let mut eyes = world.client(1);
    let hosts = [eyes.watch("@h2"), eyes.watch("@h3")];
    for round in 0..2 {
        let next = path.with_extension("next");
        let mut options = fs::File::options();
        let mut file = options.write(true).create_new(true).mode(0o400).open(&next).expect("made");
        std::io::Write::write_all(&mut file, format!("{round}").repeat(32).as_bytes()).expect("written");
        drop(file);
        fs::rename(&next, &path).expect("in place");
        for host in 1..=3 {
            until_true("the new key is in use", || {
                world.agents.log(host).matches("the new key is in use").count() == round + 1
            });
        }
        for host in 1..=3 {
            until_true("the old key is forgotten", || {
                world.agents.log(host).matches("the old key is not accepted").count() == round + 1
            });
        }
        // Heartbeats with the new key are accepted.
        let accepted = world.counter(1, "kernel_accepted");
        until_true("heartbeats go on", || world.counter(1, "kernel_accepted") > accepted + 20);
    }
    // A bad key changes nothing.
    let next = path.with_extension("next");
    fs::write(&next, "not a key").expect("written");
    fs::rename(&next, &path).expect("in place");
    until_true("a bad key is refused", || world.agents.log(1).contains("the present key stays in force"));
    eyes.quiet();
    assert_eq!(hosts.map(|host| eyes.finals(&host)), [0, 0], "{:#?}", eyes.events);
    for host in 1..=3 {
        assert_eq!(world.verdicts(host), Vec::<String>::new());
        assert_eq!(world.status(host)["fenced"], false);
    }
}

#[test]
fn root_a_busy_loop_sees_and_tells_as_a_sleeping_one_does() {
    let mut spec = calm();
    let busy = AgentSpec { mode: "busy".into(), ..Default::default() };
    spec.overrides.insert(1, busy);
    let Some(world) = world(3, spec) else { return };
    assert_eq!((world.status(1)["mode"].clone(), world.status(2)["mode"].clone()), ("busy".into(), "sleep".into()));
    let (mut near, mut eyes) = (world.client(1), world.client(2));
    let mut running = world.sleeper(1);
    near.client.join_pid("spinner", running.pid(), Duration::ZERO).expect("joined");
    let watched = eyes.watch("spinner@h1");
    running.kill();
    assert_eq!(eyes.verdict(&watched).reason, Reason::Killed(9));
}
