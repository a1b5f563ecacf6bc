// SPDX-License-Identifier: Apache-2.0
//! Decisions that are rolled back, events that are missed, records in parts: the handler's state, orders
//! and deadlines afterwards.

use super::*;

#[test]
fn orders_and_deadlines_survive_a_roll_back() {
    for how in ["large", "talkative"] {
        let rig = Rig::new();
        rig.add(1, 5).unwrap();
        rig.ask(ODD, "later", 2, json!({"far": 1_000_000_000_000u64})).unwrap();
        assert_eq!(rig.effects.swap(0, Ordering::SeqCst), 5);
        rig.ask(ODD, how, 3, json!(how)).unwrap_err();
        eventually("what must be so is ordered again", || (rig.effects.load(Ordering::SeqCst) >= 5).then_some(()));
        eventually("what was due", || (rig.total()["total"] == 1005).then_some(()));
        assert_eq!(rig.add(3, 1).unwrap(), json!({"total": 1006, "count": 3}));
    }
}

#[test]
fn events_missed_while_read_only_are_made_up_for() {
    let rig = Rig::new();
    rig.add(1, 5).unwrap();
    let before = rig.authority.lock().unwrap().clone();
    let Authority::Leader { epoch } = before else { panic!("{before:?}") };
    rig.rule(Authority::ReadOnly { epoch, why: "etcd is away".into() });
    rig.shell.as_ref().unwrap().event_sender().send(7).unwrap();
    assert_eq!(rig.total()["stale"], true, "asked after the event was sent");
    rig.effects.store(0, Ordering::SeqCst);
    // Under the same epoch: no other controller has led, and nothing has to be loaded.
    rig.rule(before);
    eventually("it looks what is so", || (rig.effects.load(Ordering::SeqCst) == 5).then_some(()));
    assert_eq!(rig.total(), json!({"total": 5, "count": 1}));
}

#[test]
fn decision_of_many_records_is_atomic() {
    let mut rig = Rig::new();
    rig.add(1, 5).unwrap();
    assert_eq!(rig.ask(ODD, "wide", 2, json!(1)), Ok(json!({"total": 6, "count": 2})));
    rig.restart();
    assert_eq!(rig.total(), json!({"total": 6, "count": 2}));
    assert_eq!(rig.upcalls(0), [1, 2]);
    // Cut off before its last record.
    let mut number = 3;
    for (cut, fault) in [(1, Fault::Full), (3, Fault::LostRequest), (6, Fault::LostAnswer), (4, Fault::Away)] {
        let faults: Vec<Fault> = std::iter::repeat_n(Fault::None, cut).chain([fault]).collect();
        rig.fail(&faults);
        let refused = rig.ask(ODD, "wide", number, json!(1)).unwrap_err();
        assert!(matches!(refused, Refused::ReadOnly { .. } | Refused::Unknown { .. }), "{refused}");
        if cut % 2 == 0 {
            rig.restart();
        }
        let count = rig.total()["count"].as_u64().unwrap();
        assert!(count < number || fault == Fault::LostAnswer, "{count}");
        // A small decision follows the incomplete one, or it is made a second time.
        let again = eventually("an answer", || rig.ask(ODD, "wide", number, json!(1)).ok());
        assert_eq!(again["count"], number);
        rig.add_surely(number + 1, 1);
        rig.restart();
        assert_eq!(rig.total()["count"], number + 1);
        number += 2;
    }
    assert_eq!(rig.upcalls(0).len() as u64, number - 1);
}
