// SPDX-License-Identifier: Apache-2.0
//! What controllers answer, as the types of the contract read it. The controller's tests write the same file.

use fide_controller_api::event::Event;
use fide_controller_api::{cluster, failure, lane, network};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ANSWERS: &str = include_str!("answers.jsonl");

fn through<T: DeserializeOwned + Serialize>(body: Value) -> Value {
    json!(serde_json::from_value::<T>(body).expect("as the contract says"))
}

fn read(what: &str, body: Value) -> Value {
    match what {
        "lane" => through::<lane::Lane>(body),
        "lanes" => through::<lane::Lanes>(body),
        "generation" => through::<lane::Generation>(body),
        "released" => through::<lane::Released>(body),
        "usage" => through::<lane::UsageAnswer>(body),
        "reported" => through::<lane::Reported>(body),
        "network" => through::<network::Network>(body),
        "cable_set" => through::<network::CableSet>(body),
        "self" => through::<network::Myself>(body),
        "cluster" => through::<cluster::Cluster>(body),
        "app" => through::<cluster::App>(body),
        "monitored" => through::<cluster::Monitored>(body),
        "failed" => through::<failure::Failed>(body),
        "event" => through::<Event>(body["event"].clone()),
        other => panic!("{other} is no answer"),
    }
}

fn lines() -> impl Iterator<Item = (String, Value)> {
    ANSWERS.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        (line["what"].as_str().expect("what it is").to_owned(), line["body"].take())
    })
}

fn event(body: &Value) -> Event {
    serde_json::from_value(body.clone()).expect("never refused")
}

/// What is compared of it.
fn whole(what: &str, body: Value) -> Value {
    if what == "event" { body["event"].clone() } else { body }
}

#[test]
fn real_answers_are_read_and_written_without_a_loss() {
    for (what, body) in lines() {
        assert_eq!(read(&what, body.clone()), whole(&what, body), "{what}");
    }
    let understood =
        |(what, body): &(String, Value)| what == "event" && matches!(event(&body["event"]), Event::Other(_));
    assert_eq!(lines().filter(understood).count(), 0, "an event is not understood");
}

#[test]
fn fields_and_values_of_later_versions_are_no_hindrance() {
    for (what, mut body) in lines() {
        let expected = whole(&what, body.clone());
        let grown = if what == "event" { &mut body["event"] } else { &mut body };
        grown["of_a_later_version"] = json!({"a": [1]});
        assert_eq!(read(&what, body), expected, "{what}");
    }
    let (_, mut lane) = lines().find(|(what, _)| what == "lane").expect("one");
    lane["standing"] = json!("dreaming");
    lane["trees"][0]["phase"] = json!("growing");
    let lane: lane::Lane = serde_json::from_value(lane).expect("a lane");
    assert_eq!((lane.standing, lane.trees[0].phase), (lane::Standing::Unknown, lane::Phase::Unknown));
}

#[test]
fn events_that_are_not_understood_are_kept_as_they_came() {
    for body in [json!({"kind": "of_a_later_version", "x": 1}), json!({"kind": "tree", "lane": "none"}), json!("text")]
    {
        assert_eq!(event(&body), Event::Other(body.clone()));
        assert_eq!(json!(event(&body)), body);
    }
}

#[test]
fn requests_with_a_field_too_many_are_refused() {
    let asked = json!({"name": "a", "receivers": ["h2"], "size_max_bytes": 1, "period_min_ns": 2});
    let request: lane::LaneRequest = serde_json::from_value(asked.clone()).expect("a request");
    assert_eq!(json!(request), {
        let mut written = asked.clone();
        written["priority"] = json!(0);
        written
    });
    let mut more = asked;
    more["of_a_later_version"] = json!(true);
    assert!(serde_json::from_value::<lane::LaneRequest>(more).is_err());
    let report = lane::LaneReport { lane: 7, report: lane::TreeReport { tree: 1, generation: 3, missing: true } };
    assert_eq!(json!(report), json!({"lane": 7, "tree": 1, "generation": 3, "missing": true}));
}
