// SPDX-License-Identifier: Apache-2.0
//! Keys of the configuration files are explained, and the cluster's key is made.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::Value;

use super::common::{Place, refused, said};

#[test]
fn keys_of_both_files_are_explained() {
    let place = Place::new();
    for (words, known) in [
        (
            &["agent", "--explain-config"][..],
            [("[cluster]", "heartbeat_us"), ("[agent]", "core"), ("[limits]", "only_root")],
        ),
        (
            &["controller", "explain-config"],
            [("[controller]", "grace_ms"), ("[etcd]", "ttl_s"), ("[[switch]]", "netns")],
        ),
    ] {
        let (code, text, err) = said(&mut place.fide(words));
        assert_eq!(code, Some(0), "{err}");
        let (code, out, err) = said(&mut place.fide(&[words, &["--json"]].concat()));
        assert_eq!(code, Some(0), "{err}");
        let json: Value = serde_json::from_str(&out).expect("JSON");
        for (table, key) in known {
            let has = |entry: &Value| entry["table"] == table && entry["key"] == key;
            assert!(json["keys"].as_array().expect("a list").iter().any(has), "{table} {key}: {out}");
            assert!(text.contains(table) && text.contains(&format!("  {key}: ")), "{table} {key}: {text}");
        }
    }
    refused(&mut place.fide(&["agent", "--json"]), 2, &["--explain-config"]);
}

#[test]
fn key_is_made_once_and_for_its_owner_alone() {
    let place = Place::new();
    let (code, out, err) = said(&mut place.fide(&["agent", "--make-key", "new.key"]));
    assert!(code == Some(0) && out.contains("new.key"), "{out}{err}");
    let text = fs::read_to_string(place.path("new.key")).expect("made");
    assert!(text.len() == 33 && text.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()), "{text:?}");
    assert!(!out.contains(text.trim_end()), "a key is not shown");
    let mode = fs::metadata(place.path("new.key")).expect("made").permissions().mode();
    assert_eq!(mode & 0o7777, 0o400);
    refused(&mut place.fide(&["agent", "--make-key", "new.key"]), 2, &["new.key cannot be made", "File exists"]);
    assert_eq!(fs::read_to_string(place.path("new.key")).expect("kept"), text);
    let (code, ..) = said(&mut place.fide(&["agent", "--make-key", "other.key"]));
    assert_eq!(code, Some(0));
    assert_ne!(fs::read_to_string(place.path("other.key")).expect("made"), text, "random");
    // An agent accepts the key.
    place.write("fide.toml", &super::common::GOOD.replacen("cluster.key", "new.key", 1));
    assert_eq!(said(&mut place.agent(&["--check"])).0, Some(0));
}
