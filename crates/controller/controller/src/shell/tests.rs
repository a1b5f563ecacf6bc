// SPDX-License-Identifier: Apache-2.0

mod back;
mod cut;
mod several;

use super::*;
use crate::handler::{Peer, Request, Route};
use crate::leader::{Authority, Candidate};
use crate::sequence::Refusal;
use crate::store::{Error, Loaded, Redb, Result as Stored};
use crate::testing::{ADD, Adder, ODD, TOTAL, eventually, reopen, watcher};
use fide_controller_api::Method;
use fide_controller_api::identity::Identity;
use fide_controller_api::sequence::Sequence;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex};

/// How the next calls of the store go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Nothing is stored.
    Full,
    /// It is stored, but the caller cannot know.
    LostAnswer,
    /// It is not stored, and the caller cannot know.
    LostRequest,
    /// Loading fails too.
    Away,
}

/// A real file with faults.
struct Faulty {
    store: Redb,
    faults: Arc<Mutex<VecDeque<Fault>>>,
}

impl Faulty {
    fn call(&mut self, mut work: impl FnMut(&mut Redb) -> Stored<()>) -> Stored<()> {
        let place = self.store.place();
        let lost = Error::Unavailable { place: place.clone(), why: "made up".into() };
        match self.faults.lock().unwrap().pop_front().unwrap_or(Fault::None) {
            Fault::None => work(&mut self.store),
            Fault::Full => Err(Error::Full { place, why: "made up".into() }),
            Fault::LostAnswer => work(&mut self.store).and(Err(lost)),
            Fault::LostRequest | Fault::Away => Err(lost),
        }
    }
}

impl Store for Faulty {
    fn load(&mut self, epoch: u64) -> Stored<Loaded> {
        let mut faults = self.faults.lock().unwrap();
        if faults.front() == Some(&Fault::Away) {
            faults.pop_front();
            return Err(Error::Unavailable { place: self.place(), why: "made up".into() });
        }
        self.store.load(epoch)
    }
    fn append(&mut self, first: u64, records: &[Vec<u8>]) -> Stored<()> {
        self.call(|store| store.append(first, records))
    }
    fn snapshot(&mut self, through: u64, state: &[u8]) -> Stored<()> {
        self.call(|store| store.snapshot(through, state))
    }
    fn place(&self) -> String {
        self.store.place()
    }
}

#[derive(Debug, Clone)]
struct Ruled(Arc<Mutex<Authority>>);

impl Leadership for Ruled {
    fn authority(&self) -> Authority {
        self.0.lock().unwrap().clone()
    }
    fn deposed(&self) {
        *self.0.lock().unwrap() = Authority::Standby { leader: None, trouble: None };
    }
}

struct Rig {
    shell: Option<Shell<u64>>,
    path: PathBuf,
    faults: Arc<Mutex<VecDeque<Fault>>>,
    authority: Arc<Mutex<Authority>>,
    effects: Arc<AtomicU64>,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig {
            shell: None,
            path: crate::store::redb_file(dir.path()),
            faults: Arc::default(),
            authority: Arc::new(Mutex::new(Authority::Standby { leader: None, trouble: None })),
            effects: Arc::default(),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            _dir: dir,
        };
        rig.restart();
        rig
    }

    fn restart(&mut self) {
        self.shell = None;
        let mut store = reopen(&self.path);
        self.rule(Authority::Leader { epoch: store.last_epoch().unwrap() + 1 });
        let (faults, effects) = (self.faults.clone(), self.effects.clone());
        let act = move |total| effects.store(total, Ordering::SeqCst);
        self.shell =
            Some(Shell::start(Adder::default(), Faulty { store, faults }, Ruled(self.authority.clone()), act).unwrap());
    }

    fn rule(&self, authority: Authority) {
        *self.authority.lock().unwrap() = authority;
    }

    fn fail(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    fn ask(&self, route: Route, how: &str, number: u64, body: Value) -> Result<Value, Refused> {
        let sequence = (route.method != Method::Get).then_some(Sequence { incarnation: 1, number });
        let digest = crate::sequence::digest(route.method.as_str(), route.path, body.to_string().as_bytes());
        let parameters = vec![("how".into(), how.into())];
        let request = Request { method: route.method, path: route.path, parameters, query: vec![], body, sequence };
        let peer = Peer { identity: Identity::host("a").unwrap() };
        let reply = self.runtime.block_on(self.shell.as_ref().unwrap().request_sender().ask(peer, request, digest))?;
        let mut value: Value = serde_json::from_str(&reply.body).unwrap();
        if reply.stale {
            value["stale"] = true.into();
        }
        Ok(value)
    }

    fn add(&self, number: u64, n: u64) -> Result<Value, Refused> {
        self.ask(ADD, "", number, json!({"n": n}))
    }

    /// Like a peer: with the same number until it is answered.
    fn add_surely(&self, number: u64, n: u64) -> Value {
        eventually("an answer", || match self.add(number, n) {
            Ok(answer) => Some(answer),
            Err(Refused::Order(why)) => panic!("{why}"),
            Err(_) => None,
        })
    }

    fn total(&self) -> Value {
        self.ask(TOTAL, "", 0, Value::Null).unwrap()
    }

    fn upcalls(&self, after: u64) -> Vec<u64> {
        let board = self.shell.as_ref().unwrap().request_sender().board().clone();
        let batch = self.runtime.block_on(board.poll(watcher(), after, Duration::ZERO)).unwrap();
        batch.events.iter().map(|event| event.number).collect()
    }
}

#[test]
fn answered_requests_survive_a_restart() {
    let mut rig = Rig::new();
    assert_eq!(rig.add(1, 5), Ok(json!({"total": 5, "count": 1})));
    assert_eq!(rig.add(2, 6), Ok(json!({"total": 11, "count": 2})));
    rig.restart();
    assert_eq!(rig.total(), json!({"total": 11, "count": 2}));
    // Effects may have been lost with the predecessor; the handler repeats its orders.
    assert_eq!(rig.effects.load(Ordering::SeqCst), 11);
    assert_eq!(rig.add(2, 6), Ok(json!({"total": 11, "count": 2})));
    assert!(matches!(rig.add(2, 7), Err(Refused::Order(Refusal::Reused { .. }))));
    assert!(matches!(rig.add(4, 7), Err(Refused::Order(Refusal::OutOfOrder { .. }))));
    assert!(matches!(rig.add(1, 5), Err(Refused::Order(Refusal::Replayed { .. }))));
    assert_eq!(rig.upcalls(0), [1, 2]);
    assert_eq!(rig.upcalls(1), [2]);
    assert_eq!(rig.add(3, 1), Ok(json!({"total": 12, "count": 3})));
    rig.restart();
    rig.total();
    assert_eq!(rig.upcalls(0), [2, 3]);
    assert_eq!(rig.add(3, 1), Ok(json!({"total": 12, "count": 3})));
}

#[test]
fn handler_refusal_uses_up_its_number() {
    let rig = Rig::new();
    let refused = rig.ask(ADD, "", 1, json!({})).unwrap();
    assert_eq!(refused["error"]["code"], "no_number");
    assert_eq!(rig.ask(ADD, "", 1, json!({})), Ok(refused));
    assert_eq!(rig.add(2, 1).unwrap()["count"], 1);
}

#[test]
fn unstored_decision_has_no_effect() {
    let rig = Rig::new();
    rig.add(1, 5).unwrap();
    rig.fail(&[Fault::Full]);
    assert!(matches!(rig.add(2, 100), Err(Refused::ReadOnly { why }) if why.contains("make room")));
    // Nobody sees any of it.
    let total = rig.total();
    assert_eq!((&total["total"], rig.effects.load(Ordering::SeqCst)), (&json!(5), 5));
    assert_eq!(rig.upcalls(0), [1]);
    assert_eq!(rig.add_surely(2, 100), json!({"total": 105, "count": 2}));
}

#[test]
fn lost_answer_causes_no_second_addition() {
    let rig = Rig::new();
    rig.total();
    for (n, fault) in [(1, Fault::LostAnswer), (2, Fault::LostRequest), (3, Fault::LostAnswer)] {
        rig.fail(&[fault]);
        let unknown = rig.add(n, 10).unwrap_err();
        assert!(matches!(&unknown, Refused::Unknown { .. }), "{unknown}");
        assert!(unknown.to_string().contains("same number"));
        // Until the store is loaded again, reads get the last known state and nothing changes.
        if rig.total()["stale"] == true {
            assert_eq!(rig.total()["count"], n - 1);
        }
        assert_eq!(rig.add_surely(n, 10)["count"], n);
    }
    assert_eq!(rig.total(), json!({"total": 30, "count": 3}));
    assert_eq!(rig.upcalls(0), [1, 2, 3]);
}

#[test]
fn deposed_leader_refuses_and_read_only_one_reads() {
    let rig = Rig::new();
    rig.add(1, 5).unwrap();
    let epoch = match rig.authority.lock().unwrap().clone() {
        Authority::Leader { epoch } => epoch,
        other => panic!("{other:?}"),
    };
    rig.rule(Authority::ReadOnly { epoch, why: "etcd is away".into() });
    assert!(matches!(rig.add(2, 5), Err(Refused::ReadOnly { why }) if why == "etcd is away"));
    assert_eq!(rig.total(), json!({"total": 5, "count": 1, "stale": true}));
    assert_eq!(rig.upcalls(0), [1]);
    let leader = Some(Candidate { name: "c2".into(), address: "c2:7000".into() });
    rig.rule(Authority::Standby { leader: leader.clone(), trouble: None });
    let refused = rig.add(2, 5).unwrap_err();
    assert_eq!(refused, Refused::NotLeader { leader, trouble: None });
    assert!(refused.to_string().contains("c2 at c2:7000"));
    let board = rig.shell.as_ref().unwrap().request_sender().board().clone();
    assert!(rig.runtime.block_on(board.poll(watcher(), 0, Duration::ZERO)).is_err());
    // Back under a lower epoch than the store has seen: the store refuses, whatever the leadership
    // believes.
    rig.rule(Authority::Leader { epoch: epoch - 1 });
    assert!(matches!(rig.add(2, 5), Err(Refused::NotLeader { leader: None, .. })));
    rig.rule(Authority::Leader { epoch: epoch + 1 });
    assert_eq!(rig.add_surely(2, 5), json!({"total": 10, "count": 2}));
}

#[test]
fn decision_that_cannot_be_stored_is_rolled_back() {
    let rig = Rig::new();
    rig.add(1, 5).unwrap();
    for how in ["large", "talkative"] {
        let refused = rig.ask(ODD, how, 2, json!(how)).unwrap_err();
        assert!(matches!(refused, Refused::TooLarge { .. }), "{refused}");
        assert_eq!(rig.total(), json!({"total": 5, "count": 1}));
    }
    assert_eq!(rig.ask(ODD, "long", 2, json!(1)).unwrap().as_str().map(str::len), Some(crate::sequence::ANSWER_MAX));
    assert_eq!(rig.ask(ODD, "long", 2, json!(1)), Err(Refused::AnswerGone));
    assert_eq!(rig.ask(ODD, "silent", 3, json!(1)).unwrap()["error"]["code"], "no_answer");
    rig.ask(ODD, "forget", 4, json!(1)).unwrap();
    assert!(rig.upcalls(0).is_empty());
}

#[test]
fn refusal_that_had_begun_a_change_is_rolled_back() {
    let rig = Rig::new();
    rig.add(1, 5).unwrap();
    assert_eq!(rig.ask(ODD, "refused_late", 2, json!(1)).unwrap()["error"]["code"], "no");
    assert_eq!(rig.total(), json!({"total": 5, "count": 1}));
    // Answered under its number, once.
    assert_eq!(rig.ask(ODD, "refused_late", 2, json!(1)).unwrap()["error"]["code"], "no");
    assert_eq!(rig.add(3, 2).unwrap(), json!({"total": 7, "count": 2}));
}

#[test]
fn events_and_deadlines_are_decisions_too() {
    let mut rig = Rig::new();
    rig.total();
    rig.shell.as_ref().unwrap().event_sender().send(7).unwrap();
    rig.ask(ODD, "later", 1, json!(1)).unwrap();
    eventually("the tick", || (rig.total()["total"] == 1007).then_some(()));
    rig.restart();
    assert_eq!(rig.total(), json!({"total": 1007, "count": 2}));
}

#[test]
fn snapshot_replaces_the_log_and_may_fail() {
    let mut rig = Rig::new();
    let mut number = 0;
    let mut add = |rig: &Rig, count| {
        for _ in 0..count {
            number += 1;
            assert_eq!(rig.add_surely(number, 1)["count"], number);
        }
    };
    add(&rig, SNAPSHOT_RECORDS - 1);
    rig.fail(&[Fault::None, Fault::Full]);
    add(&rig, 2);
    rig.restart();
    assert_eq!(rig.total()["count"], SNAPSHOT_RECORDS + 1);
    add(&rig, 3);
    rig.shell = None;
    let stored = reopen(&rig.path).load(u64::MAX).unwrap();
    assert!(stored.snapshot.is_some() && stored.records.len() < 10, "{}", stored.records.len());
}

/// A handler whose effects wait until the test lets them go on.
#[test]
fn full_queue_is_busy_and_is_decided_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = Redb::open(&crate::store::redb_file(dir.path())).unwrap();
    let authority = Arc::new(Mutex::new(Authority::Leader { epoch: 1 }));
    let (go, gate): (SyncSender<()>, Receiver<()>) = std::sync::mpsc::sync_channel(0);
    let (done, decided) = std::sync::mpsc::channel();
    let act = move |total| {
        let _ = gate.recv();
        done.send(total).unwrap();
    };
    let shell = Shell::start(Adder::default(), store, Ruled(authority), act).unwrap();
    let event_sender = shell.event_sender();
    // The thread waits in its first effect; the queue fills up.
    let mut sent = 0;
    let full = loop {
        match event_sender.send(1) {
            Ok(()) => sent += 1,
            Err(e) => break e,
        }
        assert!(sent <= 2 * QUEUE_MAX, "the queue has no bound");
    };
    assert_eq!((full.clone(), full.code()), (Refused::Busy, (503, fide_controller_api::Code::Busy)));
    assert!(sent >= QUEUE_MAX);
    drop(go);
    assert!(shell.is_running());
    shell.stop();
    assert_eq!(decided.iter().last(), Some(sent as u64));
    assert_eq!(event_sender.send(1), Err(Refused::Stopping));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Whatever fails and whenever the controller starts again: each addition of a peer that repeats until
    /// it is answered is made once.
    #[test]
    fn each_request_is_carried_out_once(steps in prop::collection::vec((1..100u64, prop::collection::vec(0..5u8, 0..3), any::<bool>()), 1..6)) {
        let mut rig = Rig::new();
        let mut sum = 0;
        for (number, (n, faults, restart)) in (1..).zip(steps) {
            let faults: Vec<Fault> = faults
                .into_iter()
                .map(|f| [Fault::None, Fault::Full, Fault::LostAnswer, Fault::LostRequest, Fault::Away][f as usize])
                .collect();
            rig.fail(&faults);
            if restart {
                let _ = rig.add(number, n);
                rig.restart();
            }
            sum += n;
            prop_assert_eq!(rig.add_surely(number, n), json!({"total": sum, "count": number}));
        }
        eventually("a sure answer", || rig.total().get("stale").is_none().then_some(()));
        prop_assert_eq!(&rig.total()["total"], sum);
        let delivered = rig.upcalls(0);
        prop_assert_eq!(delivered, (1..=rig.total()["count"].as_u64().unwrap()).collect::<Vec<_>>());
    }
}
