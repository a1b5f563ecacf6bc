// SPDX-License-Identifier: Apache-2.0
//! Users that take all they can: others keep a share.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::common::{Agent, Got, LIMIT, OTHER_USER, Raw, USER, as_user};

/// Connections of one user until one is refused, and the refusal.
fn all_connections(path: &std::path::Path) -> (Vec<Raw>, Value) {
    let mut held = Vec::new();
    loop {
        let mut raw = Raw::try_connect(path).expect("connected");
        match raw.ask(json!({ "op": "events" })) {
            Got::Answer(answer, _) if answer.get("ok").is_some() => held.push(raw),
            Got::Answer(answer, _) => return (held, answer["error"].clone()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_connections_of_a_user_leave_a_share_to_others() {
    let agent = Agent::start(7530);
    let path = agent.socket();
    let Some((held, refusal)) = as_user(USER, move || all_connections(&path)) else { return };
    assert_eq!(refusal["code"], "full");
    let text = refusal.to_string();
    assert!(text.contains("user 61001") && text.contains("connections") && text.contains("[limits]"), "{text}");
    assert_eq!(held.len(), 112, "half of what is not kept for root");
    let path = agent.socket();
    let (others, _) = as_user(OTHER_USER, move || all_connections(&path)).expect("root");
    assert_eq!(others.len(), 56);
    // As a command would see it: an answer, not a broken pipe.
    let output = Command::new("setpriv")
        .args(["--reuid", "61001", "--regid", "61001", "--clear-groups", env!("CARGO_BIN_EXE_fide"), "status"])
        .arg("--socket")
        .arg(agent.socket())
        .output();
    if let Ok(output) = output {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("user 61001 has 112 of 256 connections"), "{said}");
    }
    agent.serves();
    drop((held, others));
}

#[test]
fn all_sessions_and_watches_of_a_user_leave_a_share_to_others() {
    let agent = Agent::start(7531);
    let path = agent.socket();
    let Some((sessions, refusals)) = as_user(USER, move || {
        let mut sessions = Vec::new();
        let mut refusals = Vec::new();
        loop {
            let mut raw = Raw::try_connect(&path).expect("connected");
            match raw.ask(json!({ "op": "hello", "protocol": 2, "program": "x".repeat(60_000) })) {
                Got::Answer(answer, _) if answer.get("ok").is_some() => sessions.push(raw),
                Got::Answer(answer, _) => break refusals.push(answer["error"].clone()),
                other => panic!("{other:?}"),
            }
        }
        let refused = |raw: &mut Raw, request: &dyn Fn(usize) -> Value| {
            for n in 0.. {
                if let Got::Answer(answer, _) = raw.ask(request(n))
                    && let Some(error) = answer.get("error")
                {
                    return (n, error.clone());
                }
            }
            unreachable!()
        };
        let first = &mut sessions[0];
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let watches = refused(first, &|n| json!({ "op": "monitor", "target": format!("w{n}@h1") }));
        assert_eq!(watches.0, 448);
        refusals.push(watches.1);
        child.kill().expect("killed");
        child.wait().expect("reaped");
        (sessions, refusals)
    }) else {
        return;
    };
    assert_eq!(sessions.len(), 28);
    for (refusal, what) in refusals.iter().zip(["sessions", "watches"]) {
        let text = refusal.to_string();
        assert!(refusal["code"] == "full" && text.contains(&format!("`{what} = ...` set under [limits]")), "{text}");
    }
    // Their names do not make the answer too long.
    agent.serves();
    drop(sessions);
}

#[test]
fn root_taking_all_sessions_leaves_a_share_to_users() {
    let agent = Agent::start(7536);
    let mut held = Vec::new();
    let refusal = loop {
        let mut raw = agent.connect();
        match raw.ask(json!({ "op": "hello", "protocol": 2, "program": "root's" })) {
            Got::Answer(answer, _) if answer.get("ok").is_some() => held.push(raw),
            Got::Answer(answer, _) => break answer["error"].clone(),
            other => panic!("{other:?}"),
        }
    };
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    assert_eq!((held.len(), &refusal["code"]), (56, &json!("full")), "{refusal}");
    let path = agent.socket();
    let theirs = as_user(USER, move || Raw::try_connect(&path).expect("connected").hello().0);
    assert!(theirs.is_some_and(|hello| hello["session"].is_string()));
}

#[test]
fn user_with_endless_requests_waits_and_others_do_not() {
    let agent = Agent::start(7532);
    let path = agent.socket();
    let Some(waited) = as_user(USER, move || {
        let raw = Raw::try_connect(&path).expect("connected");
        let request = json!({ "id": 1, "op": "status" }).to_string();
        let until = Instant::now() + LIMIT;
        // Its socket is full once the agent takes no more from it.
        let mut answers = 0;
        while Instant::now() < until {
            match raw.send(request.as_bytes(), &[]) {
                Ok(()) => {}
                Err(_) if answers >= 64 => return Some(answers),
                Err(_) => {}
            }
            while matches!(raw.receive(Duration::ZERO), Got::Answer(..)) {
                answers += 1;
            }
        }
        None
    }) else {
        return;
    };
    assert!(waited.is_some(), "it never waited");
    agent.serves();
}

#[test]
fn name_of_another_user_is_refused() {
    let rule = "[[name]]\npattern = \"db-*\"\nusers = [\"61002\"]\ngroups = [\"61099\"]\n";
    let agent = Agent::configured(7533, rule);
    let join = |user: u32, name: &'static str| {
        let path = agent.socket();
        as_user(user, move || {
            let mut raw = Raw::try_connect(&path).expect("connected");
            raw.hello();
            let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
            let got = raw.ask(json!({ "op": "join", "name": name, "pid": child.id() }));
            child.kill().expect("killed");
            child.wait().expect("reaped");
            match got {
                Got::Answer(answer, _) => answer.get("error").cloned(),
                other => panic!("{other:?}"),
            }
        })
    };
    let gone = |name: &str| {
        let until = Instant::now() + LIMIT;
        let there = |status: &Value| {
            status["processes"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == json!(name)))
        };
        while there(&agent.connect().ok(json!({ "op": "status" }))) {
            assert!(Instant::now() < until, "{name} has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let Some(first) = join(USER, "redis") else { return };
    assert_eq!(first, None);
    gone("redis");
    // The program is down, and no other user gets its name meanwhile.
    let refusal = join(OTHER_USER, "redis").flatten().expect("refused");
    assert!(refusal["code"] == "not_permitted" && refusal.to_string().contains("a name of user 61001"), "{refusal}");
    assert_eq!(join(USER, "redis").flatten(), None);
    let refusal = join(USER, "db-1").flatten().expect("refused");
    assert!(refusal.to_string().contains("[[name]] db-* is about others"), "{refusal}");
    assert_eq!(join(OTHER_USER, "db-1").flatten(), None);
    gone("db-1");
    let mut root = agent.connect();
    root.hello();
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
    root.ok(json!({ "op": "join", "name": "db-1", "pid": child.id() }));
    child.kill().expect("killed");
    child.wait().expect("reaped");
}

#[test]
fn program_in_a_nested_pid_namespace_is_watched_itself() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can make pid namespaces");
    }
    let agent = Agent::start(7534);
    let mut run = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_fide"), "run", "--name", "inner", "--socket"])
        .arg(agent.socket())
        .args(["--", "sleep", "3600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("unshare");
    let mut raw = agent.connect();
    let until = Instant::now() + LIMIT;
    let pid = loop {
        let status = raw.ok(json!({ "op": "status" }));
        if let Some(process) = status["processes"].as_array().and_then(|all| all.first()) {
            break process["pid"].as_u64().expect("a number");
        }
        assert!(Instant::now() < until, "it joined: {}", agent.log());
        std::thread::sleep(Duration::from_millis(5));
    };
    // It joins before it executes its program.
    let program = || std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("its name");
    while program().trim_end() != "sleep" {
        assert!(Instant::now() < until, "process {pid} is {:?}", program());
        std::thread::sleep(Duration::from_millis(5));
    }
    run.kill().expect("killed");
    run.wait().expect("reaped");
}

#[test]
fn flapping_beats_are_notified_a_few_times_only() {
    let agent = Agent::start(7535);
    let mut raw = agent.connect();
    let (_, fds) = raw.hello();
    let refusal = raw.refused(json!({ "op": "join", "name": "hasty", "beat_timeout_us": 1 }));
    assert!(refusal["code"] == "timeout_too_short" && refusal["hint"] == "4 ms is the shortest here", "{refusal}");
    raw.ok(json!({ "op": "join", "name": "flaps", "beat_timeout_us": 4000 }));
    let session = fide_agent_api::session::ClientSession::map(fds[1].try_clone().expect("descriptor")).expect("mapped");
    let beat = session.beat();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        beat.beat();
        std::thread::sleep(Duration::from_millis(10));
    }
    let events = raw.ok(json!({ "op": "events", "kind": "verdict" }));
    let count = events["events"].as_array().expect("a list").len();
    let seconds = usize::try_from(began.elapsed().as_secs()).expect("few");
    assert!((2..=4 + seconds + 1).contains(&count), "{count} in {seconds} s: {events}");
}

/// Ends and kills a child just before another process takes the child's slot. The control thread is kept
/// busy, so that it finds the end, the request to leave and the other's join in one batch.
#[test]
fn no_end_is_notified_for_the_next_owner_of_a_slot() {
    struct Reap(std::process::Child);
    impl Drop for Reap {
        fn drop(&mut self) {
            let _ = (self.0.kill(), self.0.wait());
        }
    }
    let sleeps = || Reap(Command::new("sleep").arg("600").spawn().expect("sleep"));
    let agent = Agent::start(7541);
    let path = agent.socket();
    let Some((mut attacker, busy)) = as_user(USER, move || {
        let mut raw = Raw::try_connect(&path).expect("connected");
        raw.hello();
        // From now on slots are reused.
        let child = sleeps();
        for n in 0..64 {
            let joined = raw.ok(json!({ "op": "join", "name": format!("n{n}"), "pid": child.0.id() }));
            raw.ok(json!({ "op": "quit", "slot": joined["slot"] }));
        }
        let busy: Vec<Raw> = (0..3).map(|_| Raw::try_connect(&path).expect("connected")).collect();
        (raw, busy)
    }) else {
        return;
    };
    let path = agent.socket();
    let (mut other, mut victim) = as_user(OTHER_USER, move || {
        let mut raw = Raw::try_connect(&path).expect("connected");
        raw.hello();
        (raw, sleeps())
    })
    .expect("root");
    let asks = |op: Value| op.to_string().into_bytes();
    let status = asks(json!({ "id": 7, "op": "status" }));
    let keep_busy = |raw: &Raw| (0..14).for_each(|_| _ = raw.send(&status, &[]));
    for attempt in 0..4 {
        // Waits until the user may send requests again.
        std::thread::sleep(Duration::from_millis(2500));
        let mut child = as_user(USER, sleeps).expect("root");
        let slot = attacker.ok(json!({ "op": "join", "name": "n1", "pid": child.0.id() }))["slot"].clone();
        let quit = asks(json!({ "id": 9, "op": "quit", "slot": slot }));
        let join = asks(json!({ "id": 11, "op": "join", "name": "victim", "pid": victim.0.id() }));
        keep_busy(&busy[0]);
        attacker.send(&quit, &[]).expect("sent");
        for raw in [&attacker, &busy[1], &busy[2]] {
            keep_busy(raw);
        }
        other.send(&join, &[]).expect("sent");
        child.0.kill().expect("killed");
        let Got::Answer(joined, _) = other.receive(LIMIT) else { panic!("no answer") };
        for raw in busy.iter().chain([&attacker]) {
            while matches!(raw.receive(Duration::from_millis(20)), Got::Answer(..)) {}
        }
        let now = agent.connect().ok(json!({ "op": "status" }));
        let is_victim = |one: &Value| one["name"] == json!("victim");
        let listed = now["processes"].as_array().is_some_and(|all| all.iter().any(is_victim));
        assert!(matches!(victim.0.try_wait(), Ok(None)), "it lives");
        // Refused if the slot was not free yet.
        if let Some(slot) = joined["ok"].get("slot") {
            assert!(listed, "attempt {attempt}: it lives and its end was notified: {}", now["processes"]);
            other.ok(json!({ "op": "quit", "slot": slot }));
        }
    }
}
