// SPDX-License-Identifier: Apache-2.0
//! Several controllers over a real etcd; one over a real file that is killed.

use super::*;
use crate::handler::Answer;
use crate::leader::{Elected, ElectedOptions, Single, TTL_MIN_S};
use crate::store::Etcd;
use crate::testing::{EtcdServer, PATIENCE, as_child, respawn, say};

fn asked(number: u64) -> (Peer, Request, u64) {
    let sequence = Some(Sequence { incarnation: 1, number });
    let body = json!({"n": number});
    let request = Request { method: ADD.method, path: ADD.path, parameters: vec![], query: vec![], body, sequence };
    (Peer { identity: Identity::host("a").unwrap() }, request, number)
}

fn question() -> (Peer, Request, u64) {
    let (peer, request, digest) = asked(1);
    (peer, Request { method: Method::Get, path: TOTAL.path, sequence: None, ..request }, digest)
}

/// Asks until any controller answers.
async fn surely(senders: &[RequestSender], (peer, request, digest): (Peer, Request, u64)) -> Value {
    let begin = std::time::Instant::now();
    loop {
        for request_sender in senders {
            match request_sender.ask(peer, request.clone(), digest).await {
                Ok(reply) if !reply.stale => return serde_json::from_str(&reply.body).unwrap(),
                Err(Refused::Order(why)) => panic!("{why}"),
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        assert!(begin.elapsed() < PATIENCE, "in vain: an answer");
    }
}

#[tokio::test]
async fn controllers_follow_each_other_and_etcd_may_go_away() {
    let Some(mut server) = EtcdServer::start() else { return };
    let start = |name: &str| {
        let candidate = Candidate { name: name.into(), address: format!("{name}:7000") };
        let options = ElectedOptions { prefix: "/fide/shell".into(), candidate, ttl_s: TTL_MIN_S };
        let leadership = Elected::start(server.client(), options).unwrap();
        Shell::start(Adder::default(), Etcd::new(server.client(), "/fide/shell"), leadership, |_| {}).unwrap()
    };
    let mut shells = vec![start("one"), start("two")];
    let mut senders: Vec<RequestSender> = shells.iter().map(Shell::request_sender).collect();
    for number in 1..=5 {
        assert_eq!(surely(&senders, asked(number)).await["count"], number);
    }
    server.kill();
    // The leader notices by trying, or by its lease; after that it only reports the last state.
    let (peer, request, digest) = asked(6);
    let begin = std::time::Instant::now();
    let mut stale = 0;
    while stale == 0 {
        for request_sender in &senders {
            let refused = request_sender.ask(peer, request.clone(), digest).await.unwrap_err();
            assert!(
                matches!(refused, Refused::Unknown { .. } | Refused::ReadOnly { .. } | Refused::NotLeader { .. }),
                "{refused}"
            );
            let (peer, request, digest) = question();
            if let Ok(reply) = request_sender.ask(peer, request, digest).await
                && reply.stale
            {
                assert_eq!(reply.body, Answer::ok(json!({"total": 15, "count": 5})).body.to_string());
                stale += 1;
            }
        }
        assert!(begin.elapsed() < PATIENCE, "in vain: somebody who still reads");
    }
    server.run();
    assert_eq!(surely(&senders, asked(6)).await, json!({"total": 21, "count": 6}));
    // The leader ends; the other one has everything, and does nothing twice.
    let (peer, request, digest) = question();
    let leads = match senders[0].ask(peer, request, digest).await {
        Ok(_) => 0,
        Err(_) => 1,
    };
    senders.remove(leads);
    shells.remove(leads).stop();
    assert_eq!(surely(&senders, asked(6)).await, json!({"total": 21, "count": 6}));
    assert_eq!(surely(&senders, asked(7)).await, json!({"total": 28, "count": 7}));
}

/// Times the controller is killed.
const KILLS: u64 = 25;

/// A controller on a file; its peer is on the same thread, so that both die together.
#[test]
fn child_is_a_controller() {
    let Some(dir) = as_child() else { return };
    let dir = std::path::Path::new(&dir);
    let lock = Single::lock(&dir.join("lock"), "c1").unwrap();
    let mut store = reopen(&crate::store::redb_file(dir));
    let single = lock.lead(store.last_epoch().unwrap());
    let shell = Shell::start(Adder::default(), store, single, |_| {}).unwrap();
    let senders = [shell.request_sender()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let count = surely(&senders, question()).await["count"].as_u64().unwrap();
        // The last request again: it is not carried out again.
        for number in count.max(1).. {
            let answer = surely(&senders, asked(number)).await;
            assert_eq!(answer, json!({"total": number * (number + 1) / 2, "count": number}));
            say(format!("ack {number}"));
        }
    });
}

#[test]
fn killed_controller_has_carried_out_each_request_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mut acknowledged, mut random) = (0, crate::clock::Now::read().unix_ns);
    println!("seed {random}");
    for _ in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (mut child, lines) = respawn("shell::tests::several::child_is_a_controller", dir.path().to_str().unwrap());
        let number = |line: String| {
            line.strip_prefix("ack ").unwrap_or_else(|| panic!("it said {line}")).parse::<u64>().unwrap()
        };
        for _ in 0..(random >> 33) % 60 + 1 {
            let next = lines.next().map(number).expect("it answers");
            assert!(next >= acknowledged);
            acknowledged = next;
        }
        std::thread::sleep(Duration::from_micros((random >> 20) % 3000));
        child.kill();
        while let Some(line) = lines.next() {
            acknowledged = number(line);
        }
    }
    println!("{KILLS} kills, {acknowledged} requests");
    assert!(acknowledged >= KILLS);
}

proptest! {
    /// Any content of the store is read or refused.
    #[test]
    fn garbage_in_the_store_is_refused(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..4), snapshot in prop::option::of(prop::collection::vec(0..5u8, 0..80))) {
        let snapshot = snapshot.map(|state| crate::store::Snapshot { through: 1, state });
        // As if written by us, except for the rest.
        let records: Vec<Vec<u8>> = records.into_iter().map(|r| [vec![1], r].concat()).collect();
        let _ = super::super::entry::restore(&mut Adder::default(), &Loaded { snapshot, records });
        let newer = Loaded { snapshot: None, records: vec![vec![9, 0, 0]] };
        let refused = super::super::entry::restore(&mut Adder::default(), &newer).unwrap_err();
        prop_assert!(refused.to_string().contains("format 9"));
    }
}
