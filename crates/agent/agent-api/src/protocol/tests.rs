// SPDX-License-Identifier: Apache-2.0
use super::*;

#[test]
fn requests_have_the_documented_shape() {
    let hello = Op::Hello { protocol: 1, program: "p".into(), session: None, bell: false };
    let bytes = Request { id: 7, op: hello.clone() }.to_bytes();
    let text = std::str::from_utf8(&bytes).unwrap();
    assert_eq!(text, r#"{"id":7,"op":"hello","protocol":1,"program":"p","session":null,"bell":false}"#);
    assert_eq!(Request::parse(&bytes), Ok(Request { id: 7, op: hello }));
    let join = Request::parse(br#"{"op":"join","name":"db","id":3,"colour":"blue"}"#).unwrap();
    assert_eq!(join.op, Op::Join { name: "db".into(), pid: 0, beat_timeout_us: 0 });
    assert_eq!(Request::parse(br#"{"id":1,"op":"status"}"#).unwrap().op, Op::Status {});
    // Of clients that name no incarnation, and for agents that know of none.
    let quit = Request { id: 1, op: Op::Quit { slot: 2, incarnation: None } };
    assert_eq!(Request::parse(br#"{"id":1,"op":"quit","slot":2}"#), Ok(quit.clone()));
    assert_eq!(quit.to_bytes(), br#"{"id":1,"op":"quit","slot":2}"#);
    assert_eq!(Request { id: 1, op: Op::Metrics {} }.to_bytes(), br#"{"id":1,"op":"metrics"}"#);
    let all = [
        Op::Quit { slot: 1, incarnation: None },
        Op::Quit { slot: 1, incarnation: Some(7) },
        Op::Monitor { target: "a@b".into(), timeout_us: 5, pbsize: 6 },
        Op::Unmonitor { watch: 2 },
        Op::Explain { event: "e".into() },
        Op::Events { since: u64::MAX, kind: None },
        Op::Events { since: 0, kind: Some("verdict".into()) },
    ];
    for op in all {
        let request = Request { id: u64::MAX, op };
        assert_eq!(Request::parse(&request.to_bytes()), Ok(request));
    }
}

#[test]
fn broken_requests_become_refusals_that_say_why() {
    for (bytes, id, expected) in [
        (&b"nonsense"[..], 0, "not JSON"),
        (br#"{"id":9,"op":"dance"}"#, 9, "dance"),
        (br#"{"id":9,"op":"join"}"#, 9, "name"),
        (br#"{"op":"status"}"#, 0, "id"),
        (br#"{"id":4,"op":"quit","slot":256}"#, 4, "256"),
        (b"[]", 0, "invalid"),
    ] {
        let reply = Request::parse(bytes).unwrap_err();
        assert_eq!(reply.id, id);
        let refusal = reply.result::<Empty>().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::BadRequest);
        assert!(refusal.message.contains(expected), "{refusal}");
        assert!(refusal.hint.contains("one JSON object"));
    }
    let long = vec![b' '; MESSAGE_MAX + 1];
    assert!(Request::parse(&long).is_err());
}

#[test]
fn replies_have_the_documented_shape() {
    let ok = Reply::ok(3, &JoinOk { slot: 1, incarnation: 2, pbsize: 3 });
    assert_eq!(ok.to_bytes(), br#"{"id":3,"ok":{"incarnation":2,"pbsize":3,"slot":1}}"#);
    assert_eq!(Reply::parse(&ok.to_bytes()).unwrap().result::<JoinOk>().unwrap().slot, 1);
    let refused = Reply::error(4, Refusal::new(ErrorCode::TimeoutTooShort, "m", "h"));
    let bytes = refused.to_bytes();
    assert_eq!(bytes, br#"{"id":4,"error":{"code":"timeout_too_short","message":"m","hint":"h"}}"#);
    assert_eq!(Reply::parse(&bytes).unwrap(), refused);
    assert_eq!(refused.result::<Empty>().unwrap_err().to_string(), "m; h");
    let later = Reply::parse(br#"{"id":4,"error":{"code":"too_shiny"}}"#).unwrap().result::<Empty>();
    assert_eq!(later.unwrap_err().code, ErrorCode::Other);
    assert_eq!(
        Reply::parse(br#"{"id":4,"ok":{}}"#).unwrap().result::<JoinOk>().unwrap_err().code,
        ErrorCode::BadRequest
    );
}

#[test]
fn too_long_answer_becomes_a_refusal_that_fits() {
    let reply = Reply::ok(5, &MetricsOk { text: "x".repeat(MESSAGE_MAX) });
    let bytes = reply.to_bytes();
    assert!(bytes.len() <= MESSAGE_MAX);
    assert_eq!(Reply::parse(&bytes).unwrap().result::<MetricsOk>().unwrap_err().code, ErrorCode::Full);
}

#[test]
fn targets_are_split_and_checked() {
    assert_eq!(parse_target("db-1@alpha"), Ok((Some("db-1"), "alpha")));
    assert_eq!(parse_target("@alpha"), Ok((None, "alpha")));
    assert!(matches!(parse_target("alpha"), Err(NameError::Target(_))));
    for bad in ["db@", "d b@alpha", "a@b@c", "@", "ä@b", &format!("{}@b", "x".repeat(32))] {
        assert!(matches!(parse_target(bad), Err(NameError::Name(_))), "{bad}");
    }
}
