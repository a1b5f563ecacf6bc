// SPDX-License-Identifier: Apache-2.0

use super::*;

const NETWORK: &str = r#"
    [[host]]
    name = "h1"
    [[host]]
    name = "h2"
    [[switch]]
    name = "s1"
    [[switch]]
    name = "s2"
    [[cable]]
    a = "h1"
    b = "s1"
    b_port = "left"
    [[cable]]
    a = "h2"
    b = "s1"
    b_port = "right"
    [[cable]]
    a = "h1"
    b = "s2"
    [[cable]]
    a = "h2"
    b = "s2"
"#;
const HEAD: &str = r#"
    [controller]
    listen = "127.0.0.1:7420"
    credentials = "pki/issued/controller.c1"
    store = "c.redb"
    topology = "network.toml"
"#;
const S1: &str = "[[switch]]\nname = \"s1\"\ndriver = \"linux\"\nbridge = \"br0\"\n";
const S2: &str = "[[switch]]\nname = \"s2\"\ndriver = \"ovs\"\ntarget = \"unix:/x\"\n";

fn load_text(text: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("network.toml"), NETWORK).unwrap();
    let path = dir.path().join("controller.toml");
    std::fs::write(&path, text).unwrap();
    load(&path)
}

fn refused(text: &str, why: &str) {
    let error = load_text(text).unwrap_err().to_string();
    assert!(error.contains(why), "{error}\n  does not say: {why}");
}

#[test]
fn file_is_read_with_its_topology_by_relative_paths() {
    let config =
        load_text(&format!("{HEAD}without_redundancy = \"stop\"\ngrace_ms = 7\nheartbeat_min_us = 30\n{S2}{S1}"))
            .unwrap();
    assert_eq!(config.options.without_redundancy, WithoutRedundancy::Stop);
    assert_eq!((config.options.grace_ns, config.options.heartbeat_min_ns), (7_000_000, 30_000));
    assert_eq!(config.options.gather_ns, Options::default().gather_ns);
    assert_eq!(config.cables.as_millis(), 3000);
    let silent = load_text(&format!("{HEAD}cables_ms = 0\n{S1}{S2}")).unwrap();
    assert!(silent.cables.is_zero());
    refused(&format!("{HEAD}cables_ms = 600001\n{S1}{S2}"), "cables_ms is 600001; give at most 600000");
    assert!(config.credentials.is_absolute() && config.credentials.ends_with("pki/issued/controller.c1"));
    let specs = config.switch_specs();
    assert_eq!(specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["s1", "s2"]);
    assert_eq!(specs[0].ports, ["left".to_owned(), "right".to_owned()].into());
}

#[test]
fn errors_name_the_key_and_the_remedy() {
    refused(&format!("{HEAD}{S1}"), "switches without a [[switch]]: s2");
    refused(&format!("{HEAD}{S1}{S1}{S2}"), "two [[switch]] called \"s1\"");
    refused(&format!("{HEAD}{S1}{S2}[[switch]]\nname = \"s3\"\ndriver = \"linux\"\nbridge = \"b\"\n"), "it has s1, s2");
    refused(&format!("{HEAD}[[switch]]\nname = \"s1\"\ndriver = \"linux\"\n{S2}"), "needs `bridge`");
    refused(&format!("{HEAD}{S1}target = \"x\"\n{S2}"), "has no target");
    refused(&format!("{HEAD}{S1}{S2}bridge = \"x\"\n"), "has no `bridge`");
    refused(&format!("{HEAD}{S1}[[switch]]\nname = \"s2\"\ndriver = \"ovs\"\n"), "needs `target`");
    refused(&format!("{HEAD}{S1}[[switch]]\nname = \"s2\"\ndriver = \"p4\"\n"), "`linux` or `ovs`");
    refused(&format!("{HEAD}colour = 1\n{S1}{S2}"), "unknown field `colour`");
    for wrong in ["[[64]]", "[]", "[[1], [1]]", "[[]]", "[[1],[2],[3],[4],[5],[6],[7]]"] {
        let right = "; there are 1 to 6 sub-lanes, each with codepoints of 0 to 63 of its own";
        refused(&format!("{HEAD}sub_lanes = {wrong}\n{S1}{S2}"), right);
        refused(&format!("{HEAD}sub_lanes = {wrong}\n{S1}{S2}"), "sub_lanes is [");
    }
    refused(&format!("{HEAD}{S1}rate_bps = 7\n{S2}"), "rate_bps of a [[switch]] is 7; give at least 8");
    refused(&format!("{HEAD}retry_ms = 0\n{S1}{S2}"), "retry_ns is 0; give at least 1".replace("_ns", "_ms").as_str());
    refused(&format!("{HEAD}grace_ms = 99999999999\n{S1}{S2}"), "grace_ms is 99999999999; give at most 86400000");
    refused(&format!("{HEAD}audit_ms = 1\n{S1}{S2}"), "audit_ms is 1; give at least 10");
    refused(&format!("{HEAD}{S1}{S2}[etcd]\nendpoints = []\n"), "`store` and [etcd] are both there");
    let headless = HEAD.replace("    store = \"c.redb\"\n", "");
    refused(&format!("{headless}{S1}{S2}"), "neither `store` nor [etcd]");
    refused(&format!("{headless}{S1}{S2}[etcd]\nendpoints = []\nttl_s = 1\n"), "ttl_s is 1; give at least 2");
    refused(&format!("{headless}{S1}{S2}[etcd]\nendpoints = []\nkey = \"k\"\n"), "certificate and key both");
    refused(&HEAD.replace("network.toml", "nowhere.toml"), "nowhere.toml");
    refused(&HEAD.replace("127.0.0.1:7420", "here"), "invalid socket address");
}

fn accepted(table: &str) -> Vec<String> {
    let error = toml::from_str::<File>(&format!("{table}\nno_such_key = 1\n")).unwrap_err().to_string();
    let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_key_that_is_read_is_explained() {
    assert_eq!(accepted(""), ["controller", "etcd", "switch"]);
    for table in ["[controller]", "[etcd]", "[[switch]]"] {
        let mut read = accepted(table);
        let mut explained: Vec<_> =
            keys::KEYS.iter().filter(|key| key.table == table).map(|key| key.key.to_owned()).collect();
        read.sort();
        explained.sort();
        assert_eq!(explained, read, "{table}");
    }
}

#[test]
fn explained_defaults_are_those_that_count() {
    use fide_types::config_key::Default;
    let etcd = HEAD.replace("store = \"c.redb\"", "") + "[etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\n";
    for key in keys::KEYS {
        let head = if key.table == "[etcd]" { &etcd } else { HEAD };
        let (s1, s2) = (S1, S2);
        let all = format!("{head}{s1}{s2}");
        let lines: Vec<&str> =
            all.lines().filter(|line| !line.trim().starts_with(&format!("{} = ", key.key))).collect();
        let without = lines.join("\n") + "\n";
        // Of a temporary directory, another each time.
        let said = |text: &str| {
            let config = load_text(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let place = match &config.place {
                Place::Etcd(etcd) => format!("{etcd:?}"),
                Place::File(_) => String::new(),
            };
            format!("{:?} {place} {:?} {:?} {:?}", config.options, config.audit, config.cables, config.sub_lanes)
        };
        match key.default {
            Default::Value(value) => {
                let head = format!("{}\n", key.table);
                let given = without.replacen(&head, &format!("{head}{} = {value}\n", key.key), 1);
                assert!(given != without, "{} {}", key.table, key.key);
                assert_eq!(said(&given), said(&without), "{} {}", key.table, key.key);
            }
            Default::Required => assert!(load_text(&without).is_err(), "{} {} is not required", key.table, key.key),
            Default::Otherwise(_) => {}
        }
    }
}
