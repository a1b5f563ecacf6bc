// SPDX-License-Identifier: Apache-2.0
//! One controller with its file, killed again and again under load.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fide_testbed::{Stops, retry_until};

use super::common::{LIMIT, Random, Site};

const KILLS: u64 = 20;
const HOSTS: usize = 3;
/// Lanes that a host keeps; older ones it releases.
const KEPT: usize = 12;

/// Sends requests until the end; returns lanes that were acknowledged and not released.
fn ask(site: &Site, host: usize, acknowledged: &AtomicU64, end: &AtomicBool) -> BTreeMap<String, u64> {
    let mut asking = site.host(&format!("h{host}"));
    let receiver = format!("h{}", host % HOSTS + 1);
    let (mut held, mut newest) = (Vec::<(String, u64)>::new(), 0);
    while !end.load(Ordering::SeqCst) {
        let (name, lane) = asking.lane(&receiver);
        assert!(lane > newest, "{name} has number {lane}, which was given before: {newest}");
        newest = lane;
        held.push((name, lane));
        if held.len() > KEPT {
            asking.release(held.remove(0).1);
        }
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
    held.into_iter().collect()
}

#[test]
fn a_controller_killed_at_any_moment_loses_nothing_acknowledged() {
    let mut random = Random::new();
    let site = Site::new(1, HOSTS, HOSTS, "store = \"c.redb\"");
    let (end, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rounds_with_progress = 0;
    let expected: BTreeMap<String, u64> = std::thread::scope(|scope| {
        let (site, end, acknowledged) = (&site, &end, &acknowledged);
        let stops = Stops(end);
        let asking: Vec<_> = (1..=HOSTS).map(|host| scope.spawn(move || ask(site, host, acknowledged, end))).collect();
        for kill in 0..KILLS {
            let before = acknowledged.load(Ordering::SeqCst);
            let mut running = site.start("c1");
            // Half of the kills come at any moment, also during the start; the other half under load.
            if kill % 2 == 1 {
                let until = before + 1 + random.below(12);
                retry_until("requests to be acknowledged", LIMIT, || match acknowledged.load(Ordering::SeqCst) {
                    count if count >= until => Ok(()),
                    count => Err(format!("{count} of {until}: {}", site.log("c1"))),
                })
                .expect("progress");
                std::thread::sleep(Duration::from_micros(random.below(4000)));
            } else {
                std::thread::sleep(Duration::from_micros(random.below(200_000)));
            }
            running.kill();
            rounds_with_progress += u64::from(acknowledged.load(Ordering::SeqCst) > before);
        }
        let _running = site.start("c1");
        drop(stops);
        let expected = asking.into_iter().flat_map(|asking| asking.join().expect("a host")).collect();
        assert_eq!(site.lanes(), expected, "what was acknowledged is not what is held");
        expected
    });
    let count = acknowledged.into_inner();
    println!("{KILLS} kills, {count} lanes acknowledged, {rounds_with_progress} rounds with progress");
    assert!(rounds_with_progress >= KILLS / 2);
    // Once more, without requests.
    let _running = site.start("c1");
    assert_eq!(site.lanes(), expected);
}
