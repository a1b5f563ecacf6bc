// SPDX-License-Identifier: Apache-2.0

mod bounds;
mod rig;

use super::*;
use crate::testing::{ADD, TOTAL};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rig::{Rig, Sent};
use serde_json::{Value, json};

#[test]
fn peer_is_identified_by_its_certificate() {
    let rig = Rig::new(Limits::default());
    let mut alpha = rig.client("host.alpha");
    let added = alpha.add(&rig, "1.1", json!({"n": 4}));
    assert_eq!((added.status, &added.body), (200, &json!({"total": 4, "count": 1})));
    assert_eq!(added.header("content-type"), "application/json");
    // Each peer has an order of its own, and its role decides what it may do.
    let mut ann = rig.client("operator.ann");
    assert_eq!(ann.add(&rig, "1.1", json!({"n": 1})).body["total"], 5);
    let refused = alpha.send(&rig, "DELETE", "/v1/total", &[("fide-sequence", "1.2")], "");
    assert_eq!((refused.status, refused.code()), (403, "forbidden"));
    assert!(refused.message().contains("host.alpha") && refused.message().contains("operator"));
    assert_eq!(ann.send(&rig, "DELETE", "/v1/total", &[("fide-sequence", "1.2")], "").code(), "no_answer");
    assert_eq!(alpha.get(&rig, TOTAL.path).body, json!({"total": 5, "count": 2}));
}

#[test]
fn requests_are_repeated_and_refused_by_sequence() {
    let rig = Rig::new(Limits::default());
    let mut alpha = rig.client("host.alpha");
    let first = alpha.add(&rig, "7.1", json!({"n": 1}));
    assert_eq!(alpha.add(&rig, "7.1", json!({"n": 1})).body, first.body);
    let gap = alpha.add(&rig, "7.3", json!({"n": 1}));
    assert_eq!((gap.status, gap.code(), &gap.body["error"]["expected"]), (409, "out_of_order", &json!("7.2")));
    let old = alpha.add(&rig, "6.9", json!({"n": 1}));
    assert_eq!((old.status, old.code()), (409, "replayed"));
    assert_eq!(alpha.add(&rig, "7.1", json!({"n": 2})).code(), "number_reused");
    for (headers, code) in [
        (vec![], "sequence_missing"),
        (vec![("fide-sequence", "7.2"), ("fide-sequence", "7.2")], "sequence_missing"),
        (vec![("fide-sequence", "07.2")], "bad_sequence"),
        (vec![("fide-sequence", "7.2 ; drop")], "bad_sequence"),
    ] {
        let refused = alpha.send(&rig, "POST", ADD.path, &headers, "{}");
        assert_eq!((refused.status, refused.code()), (400, code), "{headers:?}");
        assert!(refused.message().contains("INCARNATION.NUMBER"));
    }
    assert_eq!(alpha.get(&rig, TOTAL.path).body["count"], 1);
}

#[test]
fn every_error_is_json_with_a_remedy() {
    let rig = Rig::new(Limits { body_bytes: 1000, ..Limits::default() });
    let mut alpha = rig.client("host.alpha");
    let json = ("content-type", "application/json");
    let order = ("fide-sequence", "1.1");
    let long = "x".repeat(2000);
    for (method, path, headers, body, status, code, says) in [
        ("GET", "/nowhere", vec![], "", 404, "no_such_path", "POST /v1/add"),
        ("PATCH", "/v1/add", vec![], "", 405, "no_such_method", "POST /v1/add"),
        ("POST", "/v1/add", vec![order, json], "{\"n\": 1,\n \"m\" 2}", 400, "bad_json", "line 2 column 6"),
        ("POST", "/v1/add", vec![order, json], "{\"n\": ", 400, "bad_json", "EOF"),
        ("POST", "/v1/add", vec![order], "{}", 415, "not_json", "application/json"),
        ("POST", "/v1/add", vec![order, json], &long, 413, "body_too_large", "1000 bytes"),
        ("POST", "/v1/add", vec![order, json], "{\"n\": -1}", 422, "no_number", "give a number"),
        ("GET", "/v1/upcalls", vec![], "", 400, "bad_query", "`after` is missing"),
        ("GET", "/v1/upcalls?after=x", vec![], "", 400, "bad_query", "no number"),
        ("GET", "/v1/upcalls?after=1&after=2", vec![], "", 400, "bad_query", "twice"),
        ("GET", "/v1/upcalls?after=0&wait_ms=60001", vec![], "", 400, "bad_query", "up to 60000"),
        ("GET", "/v1/upcalls?after=0&x=1", vec![], "", 400, "bad_query", "only"),
        ("GET", "/v1/upcalls?after=9", vec![], "", 409, "never_sent", "after=0"),
    ] {
        let refused = alpha.send(&rig, method, path, &headers, body);
        assert_eq!((refused.status, refused.code()), (status, code), "{method} {path} {}", refused.body);
        assert!(refused.message().contains(says), "{}", refused.message());
        assert_eq!(refused.header("content-type"), "application/json");
        if refused.header("connection") == "close" {
            alpha = rig.client("host.alpha");
        }
    }
}

#[test]
fn upcalls_are_delivered_until_acknowledged() {
    let rig = Rig::new(Limits::default());
    let (mut watcher, mut alpha) = (rig.client("host.watcher"), rig.client("host.alpha"));
    assert_eq!(watcher.get(&rig, "/v1/upcalls?after=0").body, json!({"lost": null, "events": []}));
    let waiting = watcher.start(&rig, "/v1/upcalls?after=0&wait_ms=60000");
    alpha.add(&rig, "1.1", json!({"n": 4}));
    let one = json!({"lost": null, "events": [{"number": 1, "event": {"total": 4}}]});
    assert_eq!(rig.wait(waiting).body, one);
    let mut watcher = rig.client("host.watcher");
    assert_eq!(watcher.get(&rig, "/v1/upcalls?after=0").body, one);
    assert_eq!(watcher.get(&rig, "/v1/upcalls?after=1").body["events"], json!([]));
    // Each peer gets only its own.
    assert_eq!(alpha.get(&rig, "/v1/upcalls?after=0").body["events"], json!([]));
}

#[test]
fn certificates_are_replaced_without_dropping_a_connection() {
    let rig = Rig::new(Limits::default());
    let mut alpha = rig.client("host.alpha");
    alpha.add(&rig, "1.1", json!({"n": 4}));
    let before = rig.tls.current().own.serial.clone();
    crate::pki::renew(&rig.pki, "controller.c1".parse().unwrap(), 7).unwrap();
    rig.tls.reload().unwrap();
    assert_ne!(rig.tls.current().own.serial, before);
    assert_eq!(alpha.add(&rig, "1.2", json!({"n": 4})).body["total"], 8);
    assert_eq!(rig.client("host.beta").get(&rig, TOTAL.path).status, 200);
    // A withdrawn certificate is refused on its open connection, and gets no other.
    let mut other = rig.client("host.alpha");
    let poll = other.start(&rig, "/v1/upcalls?after=0&wait_ms=60000");
    crate::pki::revoke(&rig.pki, "host.alpha".parse().unwrap()).unwrap();
    rig.tls.reload().unwrap();
    let refused = alpha.add(&rig, "1.3", json!({"n": 4}));
    assert_eq!((refused.status, refused.code(), refused.header("connection")), (403, "not_admitted", "close"));
    assert!(refused.message().contains("revoked"));
    assert!(rig.connect("host.alpha").is_err());
    rig.stop_deciding();
    assert!(matches!(rig.wait(poll).code(), "not_admitted" | "not_leader"));
}

#[test]
fn revoked_controller_is_not_asked_on_an_open_connection() {
    use fide_controller_api::client::Caller;
    use fide_controller_api::tls::{ClientTls, Files};
    let rig = Rig::new(Limits::default());
    let files = Files::of_member(&rig.pki.join(crate::pki::ISSUED_DIR).join("host.alpha"));
    let tls = Arc::new(ClientTls::load(files).unwrap());
    let mut caller = Caller::new(vec![rig.address], tls.clone()).unwrap();
    let mut ask = || caller.call(fide_controller_api::Method::Get, TOTAL.path, None, None, Duration::ZERO);
    assert_eq!(ask().unwrap().status, 200);
    crate::pki::revoke(&rig.pki, "controller.c1".parse().unwrap()).unwrap();
    assert_eq!(ask().unwrap().status, 200, "not read yet");
    tls.reload().unwrap();
    let refused = ask().unwrap_err().to_string();
    assert!(refused.contains("Revoked"), "{refused}");
}

/// Any bytes of a peer are answered in JSON, and the next request is served.
#[test]
fn any_body_and_header_is_harmless() {
    let rig = Rig::new(Limits { requests_per_s: 1_000_000, requests_burst: 1_000_000, ..Limits::default() });
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    let body = prop_oneof![bytes, "[\\[\\]{}:,\"n0-9e.+-]{0,200}".prop_map(String::into_bytes)];
    let sequence = prop_oneof!["[ -~]{0,40}", "[0-9.]{0,44}"];
    let path = "(/[a-z%0-9{}?&=.]{0,12}){1,4}";
    let mut runner = TestRunner::new(ProptestConfig::with_cases(100));
    let run = runner.run(&(body, sequence, path), |(body, sequence, path)| {
        let mut alpha = rig.client("host.alpha");
        let headers = [("fide-sequence", sequence.as_str()), ("content-type", "application/json")];
        for (method, path) in [("POST", ADD.path), ("GET", &path)] {
            let sent: Sent = alpha.send_bytes(&rig, method, path, &headers, body.clone());
            prop_assert!(sent.status < 500 && sent.body != Value::Null, "{} {}", sent.status, sent.body);
            if sent.header("connection") == "close" {
                alpha = rig.client("host.alpha");
            }
        }
        prop_assert_eq!(alpha.get(&rig, TOTAL.path).status, 200);
        Ok(())
    });
    run.unwrap();
}
