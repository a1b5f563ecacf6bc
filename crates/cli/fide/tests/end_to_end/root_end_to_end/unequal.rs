// SPDX-License-Identifier: Apache-2.0
//! Hosts that promise for unequal times: the promise of one slow host to a leader outlives every timeout of
//! the others. `crates/protocol/detector/scenarios/28_unequal_promises.txt` is the same step by step.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use fide_client::Permit;

use super::common::{Eyes, LIMIT, World, calm, until, world};

const SLOW: usize = 3;
const SHORT: &str = "timeout_us = 400000";
/// Of the slow host.
const LONG: &str = "timeout_us = 1200000";
/// From when both newcomers answer until the leader is cut off: before, while and after the others agree on
/// the newcomers.
const CUTS_MS: [u64; 3] = [0, 3, 12];

/// Asks continuously whether a program may act, until stopped. Returns the times of the first and last permit
/// that `wanted` accepts.
fn ask(socket: &Path, stop: &AtomicBool, wanted: fn(&Permit) -> bool) -> Option<(u64, u64)> {
    let eyes = Eyes::at(socket);
    let mut found = None;
    while !stop.load(Ordering::Relaxed) {
        if let Some(permit) = eyes.client.may_act().filter(wanted) {
            found = Some((found.map_or(permit.now_ns, |(first, _)| first), permit.now_ns));
            if permit.host_id == 2 {
                break;
            }
        }
        sleep(Duration::from_micros(100));
    }
    found
}

/// Waits until the view of a host has so many members.
fn view_of(world: &World, host: usize, members: usize) {
    until(&format!("a view of {members}"), || {
        let view = world.agents.ask(host, "status", serde_json::json!({}))?["view"].clone();
        let found = view["members"].as_array().map_or(0, Vec::len);
        if found == members { Ok(()) } else { Err(view.to_string()) }
    });
}

#[test]
fn root_excluded_leader_never_acts_beside_its_successor_under_unequal_promises() {
    let Some(mut world) = world(5, calm()) else { return };
    let config = world.agents.dir(SLOW).join("fide.toml");
    let text = fs::read_to_string(&config).expect("read");
    assert!(text.contains(SHORT), "{text}");
    fs::write(&config, text.replace(SHORT, LONG)).expect("written");
    world.agents.restart(SLOW).expect("it starts");
    world.settled(&[1, 2, 3, 4, 5]);
    for cut in CUTS_MS.map(Duration::from_millis) {
        for host in [4, 5] {
            world.agents.kill(host).expect("killed");
        }
        view_of(&world, 1, 3);
        let (leader, successor) = (world.agents.socket(1), world.agents.socket(2));
        let stop = AtomicBool::new(false);
        let (last, first) = std::thread::scope(|scope| {
            let stops = fide_testbed::Stops(&stop);
            let leads = scope.spawn(|| ask(&leader, &stop, |_| true));
            // The lowest of the others, once no view of older members lets any of them act.
            let follows = scope.spawn(|| ask(&successor, &stop, Permit::is_lowest));
            for host in [4, 5] {
                world.agents.start_again(host).expect("started");
            }
            for host in [4, 5] {
                let begun = Instant::now();
                while world.agents.ask(host, "status", serde_json::json!({})).is_err() {
                    assert!(begun.elapsed() < LIMIT, "h{host} does not answer");
                    sleep(Duration::from_millis(1));
                }
            }
            sleep(cut);
            world.bed.isolate(1).expect("cut off");
            let waited = fide_testbed::retry_until("a successor", LIMIT, || {
                if follows.is_finished() { Ok(()) } else { Err("it does not act yet".to_owned()) }
            });
            drop(stops);
            waited.unwrap_or_else(|why| panic!("{why}: {}", world.status(2)));
            (leads.join().expect("asked"), follows.join().expect("asked"))
        });
        let (_, last) = last.expect("the leader acted");
        let (first, _) = first.expect("its successor acts");
        assert!(last < first, "cut after {cut:?}: the leader acted {} ns after its successor began", last - first);
        println!(
            "cut after {cut:?}: {} us between the leader, in {}, and its successor, in {}",
            (first - last) / 1000,
            world.status(1)["view"],
            world.status(2)["view"]
        );
        world.bed.rejoin(1).expect("restored");
        world.settled(&[1, 2, 3, 4, 5]);
        view_of(&world, 1, 5);
    }
}
