// SPDX-License-Identifier: Apache-2.0
//! A takeover at a bad time.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::json;

use super::common::{Agent, Raw, USER, as_user};

#[test]
fn takeover_in_the_middle_of_a_change_of_keys_is_refused() {
    let agent = Agent::start(7539);
    // The running agent may not have noticed the key yet: the file counts.
    let (new, key) = (agent.dir.path().join("new.key"), agent.dir.path().join("cluster.key"));
    fs::write(&new, "ff0102030405060708090a0b0c0d0e0f").expect("written");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o400)).expect("mode");
    fs::rename(&new, &key).expect("renamed");
    let switch = json!({ "op": "take_over", "phase": "switch", "version": fide_agent::handover::VERSION });
    let refusal = agent.connect().refused(switch.clone());
    let text = refusal.to_string();
    assert!(refusal["code"] == "full" && text.contains("key is being changed"), "{text}");
    assert!(text.contains("take over when that is done"), "{text}");
    agent.serves();
    assert!(agent.log().contains("a new key is accepted"), "{}", agent.log());
    let path = agent.socket();
    if let Some(refusal) = as_user(USER, move || Raw::try_connect(&path).expect("connected").refused(switch)) {
        assert_eq!(refusal["code"], "not_permitted", "{refusal}");
    }
}
