// SPDX-License-Identifier: Apache-2.0
//! The largest possible decision: a cable cut in a cluster of the most hosts, each with a lane to all
//! others.

use super::*;
use crate::core::{Core, Event, Options};
use fide_controller_api::paths;
use fide_planner::Limits;
use fide_planner::topology::{CableSpec, LeafSpine};
use std::sync::mpsc::channel;

const HOSTS: u64 = 64;
/// Lanes; planning more would take too long without optimisation.
const LANES: usize = 6;

#[test]
fn cut_cable_moves_many_lanes_of_many_receivers() {
    let dir = tempfile::tempdir().unwrap();
    let topology =
        LeafSpine { groups: 2, homing: 2, spines: 3, hosts: HOSTS / 2 }.build(&CableSpec::default()).unwrap();
    let names: Vec<String> = topology.hosts().map(|host| topology.node(host).name.clone()).collect();
    assert_eq!(names.len() as u64, HOSTS);
    let core = Core::new(topology, Limits::default(), Options::default()).unwrap();
    let mut store = Redb::open(&crate::store::redb_file(dir.path())).unwrap();
    let authority = Authority::Leader { epoch: store.last_epoch().unwrap() + 1 };
    let (orders, ordered) = channel();
    let act = move |effect| orders.send(effect).unwrap();
    let ruled = Ruled(Arc::new(Mutex::new(authority)));
    let shell = Shell::start(core, store, ruled, act).unwrap();
    // Switches that carry out every order.
    let event_sender = shell.event_sender();
    let switches = std::thread::spawn({
        let event_sender = event_sender.clone();
        move || {
            for order in ordered {
                let applied = Event::Applied { switch: order.switch, number: order.number, error: None };
                let _ = eventually("a place in the queue", || match event_sender.send(applied.clone()) {
                    Err(Refused::Busy) => None,
                    other => Some(other),
                });
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |host: &str, method: Method, body: Value, number: u64| {
        let sequence = (method != Method::Get).then_some(Sequence { incarnation: 1, number });
        let request = Request { method, path: paths::LANES, parameters: vec![], query: vec![], body, sequence };
        let peer = Peer { identity: host.parse().unwrap() };
        let reply =
            eventually("it leads", || runtime.block_on(shell.request_sender().ask(peer, request.clone(), number)).ok());
        assert_eq!(reply.status, 200, "{}", reply.body);
        serde_json::from_str::<Value>(&reply.body).unwrap()
    };
    for sender in &names[..LANES] {
        let receivers: Vec<&String> = names.iter().filter(|name| *name != sender).collect();
        let body = json!({"name": "all", "receivers": receivers, "size_max_bytes": 200, "period_min_ns": 100_000_000});
        ask(&format!("host.{sender}"), Method::Post, body, 1);
    }
    let lanes = || ask("operator.op", Method::Get, Value::Null, 0)["lanes"].as_array().unwrap().clone();
    let trees = |phase: &'static str| {
        lanes()
            .iter()
            .flat_map(|lane| lane["trees"].as_array().unwrap().clone())
            .filter(move |t| t["phase"] == phase)
            .count()
    };
    eventually("all trees are there", || (trees("ready") == 2 * LANES).then_some(()));
    // A leaf's cable to the spine that most of the first trees use.
    let mut uses = std::collections::BTreeMap::<(String, String), usize>::new();
    for lane in lanes() {
        for link in lane["trees"][0]["links"].as_array().unwrap() {
            let [from, port, to] = [0, 1, 2].map(|part| link[part].as_str().unwrap().to_owned());
            if to.starts_with("spine") {
                *uses.entry((from, port)).or_default() += 1;
            }
        }
    }
    let ((switch, port), over) = uses.into_iter().max_by_key(|(_, count)| *count).unwrap();
    assert!(over > 1, "{over}");
    event_sender.send(Event::Carrier { switch, port, up: false }).unwrap();
    eventually("they have moved", || {
        let moved = lanes().iter().filter(|lane| lane["trees"][0]["generation"] == 1).count();
        (moved == over && trees("ready") == 2 * LANES).then_some(())
    });
    shell.stop();
    drop(event_sender);
    switches.join().unwrap();
    let stored = reopen(&crate::store::redb_file(dir.path())).load(u64::MAX).unwrap();
    let largest = stored.records.iter().map(Vec::len).max().unwrap();
    println!("{over} lanes over the cable; the largest record has {largest} bytes");
    // An event for all peers is stored once: even with a lane for every host this is one record.
    assert!(largest / LANES * (HOSTS as usize) < crate::store::RECORD_MAX, "{largest}");
}
