// SPDX-License-Identifier: Apache-2.0
//! Tests the harness of agents with a stand-in that only answers on the control socket.

use fide_testbed::fabric::{Fabric, FabricSpec};
use fide_testbed::{Agents, AgentsSpec, Spec, Testbed, supported};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send,
    socket_with,
};
use serde_json::{Value, json};
use std::path::Path;

/// Starts this test program as the stand-in: `$6` is the value of `--runtime-dir`.
const START: &str = r#"RUNTIME_DIR=$6 exec "$STAND_IN" --exact root_agents::root_helper_agent --nocapture"#;

fn stand_in(script: &str) -> AgentsSpec {
    let this = std::env::current_exe().unwrap();
    AgentsSpec {
        program: ["/bin/sh", "-c", script].map(Into::into).into(),
        env: vec![("STAND_IN".into(), this.to_str().unwrap().into())],
        ..AgentsSpec::default()
    }
}

/// Not a test, but the stand-in. It answers every question with the question itself.
#[test]
fn root_helper_agent() {
    let Some(dir) = std::env::var_os("RUNTIME_DIR") else {
        return;
    };
    let dir = Path::new(&dir);
    assert!(dir.join("fide.toml").is_file() && dir.join("../cluster.key").is_file());
    let path = dir.join("agent.sock");
    let _ = std::fs::remove_file(&path);
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    println!("it listens");
    // Until the test kills it.
    loop {
        let client = accept(&socket).unwrap();
        let mut question = [0u8; 4096];
        let (n, _) = recv(&client, &mut question[..], RecvFlags::empty()).unwrap();
        let question: Value = serde_json::from_slice(&question[..n]).unwrap();
        let answer = match question["op"].as_str() {
            Some("fail") => json!({"id": 1, "error": {"code": "no", "message": "as asked"}}),
            _ => json!({"id": 1, "ok": question}),
        };
        send(&client, answer.to_string().as_bytes(), SendFlags::NOSIGNAL).unwrap();
    }
}

#[test]
fn root_agents_are_started_asked_paused_killed_and_started_again() {
    if let Err(why) = supported() {
        return println!("skipped: {why}");
    }
    let bed = Testbed::build(Spec::hosts(2)).unwrap();
    let mut agents = Agents::start(&bed, stand_in(START)).unwrap();
    assert_eq!(bed.processes().unwrap(), [agents.pid(1).unwrap(), agents.pid(2).unwrap()]);

    let answer = agents.ask(2, "explain", json!({"event": "7"})).unwrap();
    assert_eq!((&answer["op"], &answer["event"]), (&json!("explain"), &json!("7")));
    let refused = agents.ask(1, "fail", json!({})).unwrap_err();
    assert!(refused.contains("as asked"), "{refused}");

    agents.pause(1).unwrap();
    agents.resume(1).unwrap();
    agents.ask(1, "status", json!({})).unwrap();

    agents.stop(1).unwrap();
    assert_eq!(agents.pid(1), None);
    assert!(agents.pause(1).unwrap_err().to_string().contains("no running agent"));
    agents.restart(1).unwrap();
    agents.kill(2).unwrap();
    agents.restart(2).unwrap();
    assert_eq!(agents.log(2).matches("it listens").count(), 2);
    assert_eq!(bed.processes().unwrap().len(), 2);
    drop(agents);
    assert_eq!(bed.processes().unwrap(), Vec::<u32>::new());
}

#[test]
fn root_agents_run_on_the_hosts_of_a_fabric_too() {
    if let Err(why) = supported() {
        return println!("skipped: {why}");
    }
    let fabric = Fabric::build(FabricSpec::single_pair(2)).unwrap();
    let agents = Agents::start(&fabric, stand_in(START)).unwrap();
    assert_eq!(fabric.processes().unwrap(), [agents.pid(1).unwrap(), agents.pid(2).unwrap()]);
    assert_eq!(agents.ask(2, "status", json!({})).unwrap()["op"], json!("status"));
}

#[test]
fn root_agent_that_ends_at_once_is_an_error_with_its_log() {
    if let Err(why) = supported() {
        return println!("skipped: {why}");
    }
    let bed = Testbed::build(Spec::hosts(1)).unwrap();
    let why = Agents::start(&bed, stand_in("echo a timeout below the bound >&2; exit 2"));
    let why = why.unwrap_err().to_string();
    assert!(why.contains("exit status: 2") && why.contains("a timeout below the bound"), "{why}");
}
