// SPDX-License-Identifier: Apache-2.0
//! A plane of windows beside a network.

use std::{
    fs::{self, File},
    path::Path,
    time::Duration,
};

use fide_client::{Event, Reason};
use fide_testbed::{
    Agents, AgentsSpec, Spec, Testbed, Victim, VictimSpec, supported,
    trace::{SLEEPS_IN, Trace},
};

use super::{
    common::{Eyes, World, calm, until_true},
    sessions::come_and_go,
};

const PAIRS: [&str; 3] = ["h1+h2", "h1+h3", "h2+h3"];

fn make(path: &Path) {
    File::create(path).expect("made").set_len(64 << 10).expect("long");
}

/// One network, and windows to each other host.
fn world(windows: &Path) -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    PAIRS.iter().for_each(|pair| make(&windows.join(pair)));
    let bed = Testbed::build(Spec { planes: 1, ..Spec::hosts(3) }).expect("testbed");
    let sections = format!("[[plane]]\nwindows = \"{}\"\n", windows.display());
    let agents = Agents::start(&bed, AgentsSpec { sections, ..calm() }).expect("agents");
    let world = World { agents, bed };
    world.settled(&[1, 2, 3]);
    Some(world)
}

/// Waits until h1 has lost a plane to h2, or has it again.
fn path(eyes: &mut Eyes, which: u8, is_lost: bool) {
    eyes.next("the path", |event| match event {
        Event::PathLost { host_id: 2, plane } if is_lost && *plane == which => Some(()),
        Event::PathRestored { host_id: 2, plane } if !is_lost && *plane == which => Some(()),
        _ => None,
    });
}

#[test]
fn root_each_plane_goes_on_without_the_other_where_one_is_memory() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let Some(mut world) = world(dir.path()) else { return };
    assert_eq!(world.receive_rungs(1), ["af_packet", "windows, read every 1.25 ms"]);
    let mut eyes = world.client(1);
    let host = eyes.watch("@h2");

    // The network is cut: nobody is dead, and deaths are told through memory.
    world.bed.cut(2, 0).expect("cut");
    path(&mut eyes, 0, true);
    let victim = Victim::spawn(Some(world.bed.host(2)), &VictimSpec::default()).expect("victim");
    world.client(2).client.join_pid("victim", victim.pid(), Duration::ZERO).expect("joined");
    let process = eyes.watch("victim@h2");
    victim.kill().expect("killed");
    assert_eq!(eyes.reason(&process), Reason::Killed(9));
    world.bed.restore(2, 0).expect("restored");
    path(&mut eyes, 0, false);

    // The memory is taken away, and comes back.
    let window = dir.path().join(PAIRS[0]);
    fs::remove_file(&window).expect("removed");
    path(&mut eyes, 1, true);
    make(&window);
    path(&mut eyes, 1, false);
    // A file that became too short raises SIGBUS.
    File::options().write(true).open(&window).expect("open").set_len(0).expect("cut");
    path(&mut eyes, 1, true);
    fs::remove_file(&window).expect("removed");
    make(&window);
    path(&mut eyes, 1, false);

    // Another agent takes over: it opens the windows while the one before still uses them.
    world.agents.take_over(2).expect("started");
    let before = world.agents.pid(2);
    until_true("the takeover", || {
        assert!(world.agents.ended(2).is_none(), "both have ended: {}", world.agents.log_tail(2));
        world.agents.pid(2) != before
    });
    world.bed.cut(2, 0).expect("cut");
    path(&mut eyes, 0, true);
    world.settled(&[1, 2, 3]);
    assert_eq!(eyes.finals(&host), 0, "{:#?}", eyes.events);

    // Both planes end with the agent.
    world.agents.kill(2).expect("killed");
    assert_eq!(eyes.reason(&host), Reason::HostSilent);
}

/// Reading and writing memory is no call, also where it is taken away meanwhile.
#[test]
fn root_the_loop_sleeps_only_between_two_turns_where_a_plane_is_memory() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let Some(world) = world(dir.path()) else { return };
    let trace = Trace::where_kernel_can(world.agents.pid(1).expect("an agent"), "fide-loop");
    let Some(trace) = trace else { return };
    come_and_go(&world);
    let window = dir.path().join(PAIRS[1]);
    fs::remove_file(&window).expect("removed");
    let plane = |is_lost: bool| {
        until_true("the plane", || {
            let peers = world.status(1)["peers"].clone();
            let h3 = peers.as_array().into_iter().flatten().find(|peer| peer["host"] == "h3").cloned();
            h3.is_some_and(|h3| h3["planes"][1]["path_lost"] == is_lost)
        });
    };
    plane(true);
    make(&window);
    plane(false);
    let traced = trace.finish().expect("a trace");
    assert_eq!(traced.waits(), [] as [String; 0], "{traced:#?}");
    assert!(traced.calls[&SLEEPS_IN].sleeps > 100, "{traced:#?}");
}
