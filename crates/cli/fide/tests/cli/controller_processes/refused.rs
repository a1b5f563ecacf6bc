// SPDX-License-Identifier: Apache-2.0
//! False identities, and requests that come twice or too early.

use std::time::Duration;

use fide_controller_api::client::Caller;
use fide_controller_api::sequence::Sequence;
use fide_controller_api::{Code, Method, paths};
use fide_testbed::retry_until;
use serde_json::{Value, json};

use super::common::{LIMIT, Random, Site, lane_of, numbered};

fn call(caller: &mut Caller, method: Method, path: &str, body: &Value, sequence: Option<&str>) -> (u16, Value) {
    let sequence = sequence.map(|text| text.parse().expect("a sequence"));
    let answered = caller.call(method, path, Some(body), sequence, Duration::ZERO).expect("an answer");
    (answered.status, answered.body)
}

#[test]
fn nobody_speaks_for_another_and_nothing_is_done_out_of_order() {
    let site = Site::new(1, 4, 3, "store = \"c.redb\"");
    let mut running = site.start("c1");
    let mut hosts = [1, 2, 3].map(|n| site.host(&format!("h{n}")));
    let (first, lane) = hosts[0].lane("h2");
    let path = paths::lane(lane);
    let expected = std::collections::BTreeMap::from([(first, lane)]);

    // A certificate of the right name by another authority.
    let other = Site::new(0, 1, 0, "");
    std::fs::rename(other.credentials("host.h1"), site.credentials("host.stranger")).expect("a directory");
    let mut stranger = site.caller("host.stranger");
    let refused = stranger.call(Method::Get, paths::SELF, None, None, Duration::ZERO);
    assert!(refused.is_err(), "{refused:?}");
    // The right authority, another host.
    let mut as_h1 = lane_of("x", "h3");
    as_h1["sender"] = json!("h1");
    let moved = json!({"tree": 0, "generation": 0});
    let report = json!({"tree": 0, "generation": 0, "missing": true});
    for (host, method, path, body, right) in [
        (2, Method::Post, paths::LANES, &as_h1, (403, Code::NotYou)),
        (2, Method::Put, &*path, &lane_of("x", "h3"), (403, Code::NotYours)),
        (2, Method::Delete, &path, &json!({}), (403, Code::NotYours)),
        (2, Method::Post, &paths::moved(lane), &moved, (403, Code::NotYours)),
        (2, Method::Put, &paths::cable("h1--h2"), &json!({"in_use": false}), (403, Code::Forbidden)),
        (3, Method::Delete, &path, &json!({}), (404, Code::NoSuchLane)),
        (3, Method::Post, &paths::lane_reports(lane), &report, (404, Code::NoSuchLane)),
        (1, Method::Post, &paths::lane_reports(lane), &report, (403, Code::NotAReceiver)),
    ] {
        let answered = hosts[host - 1].change(method, path, body).expect("an answer");
        let (status, code) = right;
        assert_eq!((answered.status, answered.code()), (status, Some(code)), "{path}: {}", answered.body);
        assert!(answered.message().len() > 20, "{}", answered.body);
    }
    assert_eq!(site.lanes(), expected);

    // Recorded and sent again: too early, and without a number; also after a crash.
    let mut h4 = site.caller("host.h4");
    let body = |number: u64| lane_of(&format!("n{number}"), "h1");
    let number = |number| Sequence { incarnation: 3, number };
    let done: Vec<_> = (1..=3).map(|n| numbered(&mut h4, number(n), &body(n))).collect();
    assert!(done.iter().all(|answered| answered.status == 200), "{done:?}");
    for crashed in [false, true] {
        if crashed {
            running.kill();
            running = site.start("c1");
        }
        assert_eq!(numbered(&mut h4, number(3), &body(3)), done[2], "a repeat is answered as it was");
        for (sequence, content, right, expected) in [
            ("3.1", 1, Code::Replayed, "3.4"),
            ("3.2", 2, Code::Replayed, "3.4"),
            ("2.9", 9, Code::Replayed, "3.4"),
            ("3.3", 9, Code::NumberReused, "3.4"),
            ("3.5", 5, Code::OutOfOrder, "3.4"),
            ("4.2", 2, Code::OutOfOrder, "4.1"),
            ("3.18446744073709551615", 5, Code::OutOfOrder, "3.4"),
        ] {
            let (status, said) = call(&mut h4, Method::Post, paths::LANES, &body(content), Some(sequence));
            let error = &said["error"];
            assert_eq!((status, &error["code"], &error["expected"]), (409, &json!(right), &json!(expected)), "{said}");
            assert!(error["message"].as_str().is_some_and(|text| text.contains(expected)), "{said}");
        }
        let (status, said) = call(&mut h4, Method::Post, paths::LANES, &body(4), None);
        assert_eq!((status, &said["error"]["code"]), (400, &json!(Code::SequenceMissing)));
        assert_eq!(site.lanes().len(), expected.len() + 3);
    }
}

#[test]
fn messages_in_any_order_are_carried_out_in_theirs() {
    const MESSAGES: u64 = 10;
    let mut random = Random::new();
    let site = Site::new(1, 2, 1, "store = \"c.redb\"");
    let _running = site.start("c1");
    let mut numbers: Vec<u64> = (1..=MESSAGES).collect();
    for n in (1..numbers.len()).rev() {
        numbers.swap(n, random.below(n as u64 + 1) as usize);
    }
    println!("in this order: {numbers:?}");
    // Each over a separate connection, repeated until its turn has come.
    let mut lanes: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let site = &site;
        let sending: Vec<_> = numbers
            .into_iter()
            .map(|number| {
                scope.spawn(move || {
                    let mut caller = site.caller("host.h1");
                    let body = lane_of(&format!("n{number}"), "h2");
                    let lane = retry_until("its turn", LIMIT, || {
                        let answered = numbered(&mut caller, Sequence { incarnation: 1, number }, &body);
                        match (answered.status, answered.code()) {
                            (200, _) => Ok(answered.body["lane"].as_u64().expect("a number")),
                            (409, Some(Code::OutOfOrder)) => Err("too early".to_owned()),
                            _ => panic!("{number}: {}", answered.body),
                        }
                    });
                    (number, lane.expect("its turn"))
                })
            })
            .collect();
        sending.into_iter().map(|sending| sending.join().expect("a message")).collect()
    });
    lanes.sort_unstable();
    assert!(lanes.windows(2).all(|pair| pair[0].1 < pair[1].1), "{lanes:?}");
    assert_eq!(site.lanes().len() as u64, MESSAGES);
}
