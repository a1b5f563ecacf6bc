// SPDX-License-Identifier: Apache-2.0
//! Which users may register a process, and which may end a registration.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

use serde_json::{Value, json};

use super::common::{Agent, Got, OTHER_USER, Raw, USER, as_user};

fn answer(raw: &mut Raw, request: Value) -> Value {
    match raw.ask(request) {
        Got::Answer(answer, _) => answer,
        other => panic!("{other:?}"),
    }
}

/// A daemon of root that acts for a user at the moment: its effective id is the user's, its real one is root's.
fn acts_for(uid: u32) -> Child {
    let mut command = Command::new("sleep");
    let become_user = move || {
        // SAFETY: numbers only.
        match unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes one system call, and allocates nothing.
    unsafe { command.arg("600").pre_exec(become_user) }.spawn().expect("sleep")
}

#[test]
fn root_daemon_acting_for_a_user_is_registered_and_ended_by_root_alone() {
    let agent = Agent::start(7544);
    let path = agent.socket();
    let Some(mut user) = as_user(USER, move || Raw::try_connect(&path).expect("connected")) else { return };
    user.hello();
    let mut root = agent.connect();
    root.hello();
    let mut daemon = acts_for(USER);
    let joined = answer(&mut user, json!({ "op": "join", "name": "mine", "pid": daemon.id() }));
    let granted = answer(&mut root, json!({ "op": "join", "name": "daemon", "pid": daemon.id() }));
    let ended = answer(&mut user, json!({ "op": "quit", "slot": granted["ok"]["slot"] }));
    let ended_by_root = answer(&mut root, json!({ "op": "quit", "slot": granted["ok"]["slot"] }));
    daemon.kill().expect("killed");
    daemon.wait().expect("reaped");
    assert_eq!(joined["error"]["code"], "not_permitted", "{joined}");
    assert!(joined["error"]["message"].as_str().is_some_and(|why| why.contains("as users 0 and 61001")), "{joined}");
    assert!(granted["ok"]["slot"].is_u64(), "{granted}");
    assert_eq!(ended["error"]["code"], "not_permitted", "{ended}");
    assert!(ended_by_root["ok"].is_object(), "{ended_by_root}");
}

#[test]
fn root_registration_is_ended_by_its_owner_or_by_root() {
    let agent = Agent::start(7545);
    let connect = |uid| {
        let path = agent.socket();
        as_user(uid, move || {
            let mut raw = Raw::try_connect(&path).expect("connected");
            raw.hello();
            (raw, Command::new("sleep").arg("600").spawn().expect("sleep"))
        })
    };
    let Some((mut user, mut child)) = connect(USER) else { return };
    let (mut other, mut others_child) = connect(OTHER_USER).expect("root");
    let mut root = agent.connect();
    root.hello();
    let join =
        |raw: &mut Raw, child: &Child| raw.ok(json!({ "op": "join", "name": "db", "pid": child.id() }))["slot"].clone();
    let slot = join(&mut user, &child);
    assert_eq!(other.refused(json!({ "op": "quit", "slot": slot }))["code"], "not_permitted");
    user.ok(json!({ "op": "quit", "slot": slot }));
    let slot = join(&mut user, &child);
    root.ok(json!({ "op": "quit", "slot": slot }));
    let slot = join(&mut root, &child);
    let refusal = user.refused(json!({ "op": "quit", "slot": slot }));
    assert_eq!(refusal["code"], "not_permitted", "its process, root's registration: {refusal}");
    // The same while no client holds it, until root comes back.
    drop(root);
    let refusal = user.refused(json!({ "op": "join", "name": "db", "pid": child.id() }));
    assert_eq!(refusal["code"], "name_taken", "{refusal}");
    let mut root = agent.connect();
    root.hello();
    let slot = join(&mut root, &child);
    root.ok(json!({ "op": "quit", "slot": slot }));
    for child in [&mut child, &mut others_child] {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
