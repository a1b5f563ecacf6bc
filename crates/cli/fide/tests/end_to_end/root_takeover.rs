// SPDX-License-Identifier: Apache-2.0
//! A new agent takes over from a running one: no host is declared dead, and clients reattach by themselves.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use fide_client::{Client, ConnectOptions, Event, Reason, Wanted};
use fide_testbed::{
    Agents, AgentsSpec, Spec, Testbed, Victim, VictimSpec, retry_until,
    trace::{SLEEPS_IN, Trace},
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

fn client(agents: &Agents, host: usize) -> Client {
    Client::connect(ConnectOptions { path: Some(agents.socket(host)), ..Default::default() }).expect("an agent")
}

fn wait_for<T>(client: &mut Client, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let mut seen = Vec::new();
    for _ in 0..1000 {
        let Some(event) = client.wait_event(Some(LIMIT)).expect("events") else { break };
        if let Some(found) = wanted(&event) {
            return found;
        }
        seen.push(event);
    }
    panic!("not notified of {what}, but of {seen:?}");
}

fn status(agents: &Agents, host: usize) -> Value {
    agents.ask(host, "status", json!({})).expect("status")
}

fn successor(bed: &Testbed, agents: &Agents, host: usize) -> Child {
    let dir = agents.dir(host);
    let log = std::fs::File::options().append(true).create(true).open(dir.join("successor.log")).expect("log");
    let mut command: Command = bed.host(host).command(env!("CARGO_BIN_EXE_fide"));
    command
        .args(["agent", "--takeover", "--force-timeout", "--host", bed.host(host).name()])
        .arg("--config")
        .arg(dir.join("fide.toml"))
        .arg("--runtime-dir")
        .arg(&dir)
        .arg("--state-dir")
        .arg(dir.join("state"))
        .stderr(Stdio::from(log));
    command.spawn().expect("a successor")
}

fn take_over(receive: &str, exit_watch: &str, expected: &str) {
    if let Err(why) = fide_testbed::supported() {
        println!("skipped: {why}");
        return;
    }
    let bed = Testbed::build(Spec::hosts(3)).expect("testbed");
    // The jitter that a busy machine measures is no reason not to start, and none of its hosts is silent for
    // so long.
    let mut spec = AgentsSpec {
        program: vec![env!("CARGO_BIN_EXE_fide").into()],
        arguments: vec!["--force-timeout".to_owned()],
        heartbeat_us: 5_000,
        timeout_us: Some(400_000),
        ..Default::default()
    };
    spec.agent.receive = receive.into();
    spec.agent.exit_watch = exit_watch.into();
    let agents = Agents::start(&bed, spec).expect("agents");
    for host in 1..=3 {
        retry_until("a lease", LIMIT, || match status(&agents, host)["fenced"].as_bool() {
            Some(false) => Ok(()),
            other => Err(format!("h{host} fenced: {other:?}")),
        })
        .expect("unfenced");
    }
    let mut victim = Victim::spawn(Some(bed.host(1)), &VictimSpec::default()).expect("victim");
    let mut near = client(&agents, 1);
    near.join_pid("db", victim.pid(), Duration::ZERO).expect("joined");
    let mut local = client(&agents, 1);
    local.monitor("db@h1", Wanted::default()).expect("monitored locally");
    let mut far = client(&agents, 2);
    far.monitor("db@h1", Wanted::default()).expect("monitored");
    far.monitor("@h1", Wanted::default()).expect("monitored");
    wait_for(&mut far, "db is up", |event| {
        matches!(event, Event::Up { target, .. } if &**target == "db@h1").then_some(())
    });
    wait_for(&mut local, "db is up here", |event| matches!(event, Event::Up { .. }).then_some(()));
    let before = status(&agents, 1);
    let events = agents.ask(1, "events", json!({ "since": 0 })).expect("events");
    let first = events["events"][0].clone();

    let mut running = agents.pid(1);
    let mut children = Vec::new();
    for round in 0..3 {
        let trace = Trace::where_kernel_can(running.expect("a pid"), "fide-loop");
        children.push(successor(&bed, &agents, 1));
        let old = running.take().expect("a pid");
        retry_until("the old agent's end", LIMIT, || match std::fs::read_to_string(format!("/proc/{old}/stat")) {
            Ok(stat) if !stat.contains(") Z ") => Err(format!(
                "round {round}: {old} still runs; {}",
                std::fs::read_to_string(agents.dir(1).join("successor.log")).unwrap_or_default()
            )),
            _ => Ok(()),
        })
        .expect("handed over");
        running = children.last().map(Child::id);
        // The agent waits for nothing while it hands over: a wait that is shorter than the others' timeout
        // shows only here.
        if let Some(trace) = trace {
            let traced = trace.finish().expect("a trace");
            assert_eq!(traced.waits(), [] as [String; 0], "{traced:#?}");
            assert!(traced.calls.contains_key(&SLEEPS_IN), "it was traced: {traced:#?}");
        }
        // Both clients of this host are served by the new one, in the same session.
        for client in [&mut near, &mut local] {
            let resumed = wait_for(client, "attached again", |event| match event {
                Event::Reattached { resumed } => Some(*resumed),
                _ => None,
            });
            assert!(resumed, "the session went on");
        }
    }
    let after = status(&agents, 1);
    assert_eq!(before["incarnation"], after["incarnation"], "the same life");
    let explained = agents.ask(1, "explain", json!({ "event": first["id"] })).expect("remembered");
    assert_eq!(explained, first, "what happened before is explained as before");
    for plane in 0..2 {
        let rung = |status: &Value| status["rungs"]["receive"][plane]["used"].clone();
        assert_eq!((rung(&before), rung(&after)), (expected.into(), expected.into()), "plane {plane}");
    }
    assert_eq!(after["processes"][0]["name"], "db");
    assert_eq!(status(&agents, 2)["counters"]["verdicts"], 0, "nobody was held dead:\n{}", agents.log_tail(2));
    assert_eq!(status(&agents, 3)["counters"]["verdicts"], 0, "nobody was held dead:\n{}", agents.log_tail(3));

    // The watch continues, for the near client and for the far one.
    victim.kill().expect("killed");
    for client in [&mut far, &mut local] {
        let reason = wait_for(client, "its death", |event| match event {
            Event::Verdict(verdict) => Some(verdict.reason),
            _ => None,
        });
        assert_eq!(reason, Reason::Killed(9));
    }
    victim.wait().expect("ended");
    for child in &mut children {
        // The last agent still runs; this test has to end it.
        let _ = child.kill();
        child.wait().expect("ended");
    }
}

#[test]
fn root_takeover_with_bpf() {
    take_over("auto", "auto", "xdp native");
}

#[test]
fn root_takeover_without_bpf() {
    take_over("udp", "pidfd", "udp");
}

#[test]
fn root_takeover_over_af_packet() {
    take_over("af-packet", "auto", "af_packet");
}
