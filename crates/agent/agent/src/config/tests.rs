// SPDX-License-Identifier: Apache-2.0
use fide_types::config_key::Key;

use super::*;

pub(crate) const GOOD: &str = r#"
[cluster]
name = "test"
key_file = "cluster.key"

[[plane]]
group = "239.70.0.1"
[[plane]]
group = "239.70.0.2"

[[member]]
name = "h1"
addresses = ["10.70.1.1", "10.70.2.1"]
[[member]]
name = "h2"
addresses = ["10.70.1.2", "10.70.2.2"]
[[member]]
name = "eye"
addresses = ["10.70.1.3", "10.70.2.3"]
role = "observer"
"#;

pub(crate) fn load(text: &str) -> Result<Config, ConfigError> {
    load_with(text, &[])
}

fn load_with(text: &str, drop_ins: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("fide.toml");
    fs::write(&path, text).expect("written");
    fs::create_dir(dir.path().join("fide.toml.d")).expect("made");
    for (name, text) in drop_ins {
        fs::write(dir.path().join("fide.toml.d").join(name), text).expect("written");
    }
    Config::load(&path)
}

#[test]
fn defaults_are_the_safe_ones() {
    let config = load(GOOD).expect("good");
    assert_eq!((config.trust, config.policy), (Trust::Lease, Policy::Majority));
    assert_eq!((config.heartbeat_ns, config.timeout_ns, config.port), (1_000_000, None, 7411));
    assert_eq!(config.member(1).monitors, [2]);
    assert_eq!(config.member(3).monitors, [1, 2]);
    assert_eq!(config.member(3).role, Role::Observer);
}

#[test]
fn drop_ins_override_in_order_of_their_names() {
    let config = load_with(
        GOOD,
        &[
            ("20-b.toml", "[agent]\ncore = 3\n"),
            ("10-a.toml", "[agent]\ncore = 2\nmode = \"busy\"\n"),
            ("not-read.txt", "nonsense"),
        ],
    )
    .expect("good");
    assert_eq!((config.core, config.mode), (Some(3), Mode::Busy));
}

#[test]
fn rungs_have_the_names_of_the_ladder() {
    for (name, rung) in [
        ("auto", ReceiveRung::Auto),
        ("xdp", ReceiveRung::Xdp),
        ("xdp-generic", ReceiveRung::XdpGeneric),
        ("af-packet", ReceiveRung::AfPacket),
        ("udp", ReceiveRung::Udp),
    ] {
        let config = load(&format!("{GOOD}[agent]\nreceive = \"{name}\"\n")).expect(name);
        assert_eq!(config.receive, rung);
    }
}

#[test]
fn drop_in_cannot_change_the_cluster() {
    for text in ["[[plane]]\ngroup = \"239.1.1.1\"\n", "[controller]\naddresses = []\ncredentials = \"pki\"\n"] {
        let error = load_with(GOOD, &[("x.toml", text)]).expect_err("refused");
        assert!(error.to_string().contains("not into a drop-in"), "{error}");
    }
}

/// Every mistake, and the words that say what would be right.
#[test]
fn mistakes_are_named() {
    let without = |what: &str| GOOD.replace(what, "");
    let with = |from: &str, to: &str| GOOD.replace(from, to);
    for (text, wanted) in [
        (without("key_file = \"cluster.key\""), "lacks key_file"),
        (with("name = \"test\"", "heartbeat = 5"), "unknown field `heartbeat`"),
        (with("name = \"test\"", "heartbeat_us = 5"), "20 to 1000000"),
        (with("name = \"test\"", "timeout_us = 900"), "every heartbeat would be late"),
        (with("name = \"test\"", "drift_ppm = 0"), "1 to 99999"),
        (with("name = \"test\"", "trust = \"faith\""), "`network` or `lease`"),
        (with("name = \"test\"", "port = 0"), "no port"),
        (with("\"h2\"", "\"h1\""), "h1 is used twice"),
        (with("10.70.1.2", "10.70.1.1"), "10.70.1.1 is used twice, by h1 and by h2"),
        (with("[\"10.70.1.2\", \"10.70.2.2\"]", "[\"10.70.1.2\"]"), "one on each of the 2 planes that are networks"),
        (with("239.70.0.2", "10.0.0.1"), "no multicast address"),
        (with("[[plane]]\ngroup = \"239.70.0.2\"", "[[plane]]\n[[plane]]"), "one or two"),
        (with("role = \"observer\"", "monitors = [\"h9\"]"), "no member"),
        (with("role = \"observer\"", "monitors = [\"eye\"]"), "cannot monitor itself"),
        (with("role = \"observer\"", "monitors = [\"h1\"]"), "does not monitor"),
        (with("\"h1\"\naddresses", "\"h 1\"\naddresses"), "member \"h 1\""),
    ] {
        let error = load(&text).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{wanted:?} is not in {error:?}");
        assert!(error.contains("fide.toml"), "names the file: {error}");
    }
}

/// The second plane is memory; of no plane with `networks` 0.
fn with_windows(networks: usize) -> String {
    let networks = "[[plane]]\n".repeat(networks);
    let addresses =
        |host: usize| if networks.is_empty() { String::new() } else { format!("addresses = [\"10.70.1.{host}\"]\n") };
    let member = |host: usize| format!("[[member]]\nname = \"h{host}\"\n{}", addresses(host));
    let members: String = (1..=3).map(member).collect();
    format!("[cluster]\nkey_file = \"cluster.key\"\n{networks}[[plane]]\nwindows = \"w\"\n{members}")
}

#[test]
fn windows_are_named_after_both_hosts_in_the_order_of_the_members() {
    let config = load(&with_windows(1)).expect("good");
    assert_eq!((config.networks(), config.has_windows(), config.poll_ns()), (1, true, 250_000));
    assert!(config.windows(2, 0).is_empty(), "a network");
    let windows = config.windows(2, 1);
    let named: Vec<_> = windows
        .iter()
        .map(|window| (window.peer.as_str(), window.path.file_name().and_then(|name| name.to_str()), window.is_first))
        .collect();
    assert_eq!(named, [("h1", Some("h1+h2"), false), ("h3", Some("h2+h3"), true)]);
    assert!(windows[0].path.parent().is_some_and(|dir| dir.is_absolute() && dir.ends_with("w")), "{windows:?}");
    let busy = load(&format!("{}[agent]\nmode = \"busy\"\n", with_windows(1))).expect("good");
    assert_eq!(busy.poll_ns(), 100_000);
    assert_eq!(load(GOOD).expect("good").poll_ns(), 0);
}

#[test]
fn without_a_network_a_host_is_known_by_its_name() {
    let config = load(&with_windows(0)).expect("good");
    assert_eq!(config.identify(Some("h2"), &[]).expect("found"), 2);
    let error = config.identify(None, &[]).expect_err("refused").to_string();
    assert!(error.contains("--host (h1, h2, h3)"), "{error}");
    // Hosts with other planes do not hear each other.
    let [two, one] = [with_windows(1), with_windows(1).replace("[[plane]]\nwindows = \"w\"\n", "")];
    assert_ne!(load(&two).expect("good").shape(), load(&one).expect("good").shape());
}

#[test]
fn mistakes_in_planes_of_windows_are_named() {
    let with = |networks, from: &str, to: &str| with_windows(networks).replace(from, to);
    for (text, wanted) in [
        (with(1, "windows", "group = \"239.70.0.1\"\nwindows"), "either a network or memory"),
        (with(0, "windows = \"w\"", "windows = \"w\"\n[[plane]]"), "put planes of windows last"),
        (with(0, "windows = \"w\"", "windows = \"w\"\n[[plane]]\nwindows = \"w\""), "give each its own"),
        (with(1, "windows = \"w\"", "windows = \"\""), "no directory"),
        (with(1, "addresses = [\"10.70.1.1\"]\n", ""), "has 0 addresses; it needs one on each of the 1 planes"),
        (with(0, "name = \"h1\"", "name = \"h1\"\naddresses = [\"10.0.0.1\"]"), "needs one on each of the 0 planes"),
        (
            with_windows(1) + "[controller]\naddresses = [\"127.0.0.1:1\"]\ncredentials = \"pki\"\n",
            "leave out `windows`",
        ),
    ] {
        let error = load(&text).expect_err(wanted).to_string();
        assert!(error.contains(wanted) && error.contains("fide.toml"), "{wanted:?} is not in {error:?}");
    }
}

#[test]
fn host_finds_itself_by_name_or_by_its_addresses() {
    let config = load(GOOD).expect("good");
    let local =
        |addresses: &[[u8; 4]]| addresses.iter().map(|a| ("p".to_owned(), Ipv4Addr::from(*a))).collect::<Vec<_>>();
    let h2 = local(&[[127, 0, 0, 1], [10, 70, 1, 2], [10, 70, 2, 2]]);
    assert_eq!(config.identify(None, &h2).expect("found"), 2);
    assert_eq!(config.identify(Some("h1"), &h2).expect("named"), 1);
    let error = config.identify(Some("h7"), &h2).expect_err("none").to_string();
    assert!(error.contains("h1, h2, eye"), "{error}");
    let error = config.identify(None, &local(&[[10, 70, 1, 2]])).expect_err("half").to_string();
    assert!(error.contains("--host"), "{error}");
}

#[test]
fn missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/fide.toml")).expect_err("missing").to_string();
    assert!(error.contains("/nonexistent/fide.toml"), "{error}");
}

#[test]
fn one_witness_at_most_and_only_with_votes() {
    let witness = GOOD.replace("observer", "witness");
    let config = load(&witness).expect("good");
    assert_eq!((config.member(3).role, config.member(1).monitors.as_slice()), (Role::Witness, &[2, 3][..]));
    let says = |text: &str| load(text).expect_err("refused").to_string();
    let network = witness.replace("[cluster]", "[cluster]\npolicy = \"network\"");
    assert!(says(&network).contains("eye is a witness"), "{}", says(&network));
    let two = witness.replace("name = \"h2\"", "name = \"h2\"\nrole = \"witness\"");
    assert!(says(&two).contains("h2 and eye are witnesses"), "{}", says(&two));
}

#[test]
fn hosts_have_a_shape_in_common_and_timeouts_of_their_own() {
    use super::shape::{differences, says};
    let shape = |drop_in: &str| load_with(GOOD, &[("a.toml", drop_in)]).expect("good").shape();
    let here = shape("");
    for alike in ["[cluster]\ntimeout_us = 90000\n", "[cluster]\nkey_overlap_ms = 500\n", "[agent]\ncore = 1\n"] {
        assert_eq!(shape(alike), here, "{alike}");
    }
    let period = differences(&here, &shape("[cluster]\nheartbeat_us = 500\n"));
    assert!(period.len() == 1 && says(&period).contains("another name or heartbeat_us"), "{period:?}");
    let there = shape("[cluster]\ntrust = \"network\"\nname = \"other\"\n");
    let found = differences(&here, &there);
    assert_eq!(found.iter().map(|differs| differs.item.as_str()).collect::<Vec<_>>(), ["cluster", "trust"]);
    assert_eq!(
        says(&found),
        "cluster (another name or heartbeat_us there, this name and heartbeat_us here), trust (network there, lease here)"
    );
    let of = |from: &str, to: &str| load(&GOOD.replace(from, to)).expect("good").shape();
    for (from, to) in [
        ("\"eye\"", "\"ear\""),
        ("10.70.2.3", "10.70.2.4"),
        ("role = \"observer\"", "role = \"voter\""),
        ("role = \"observer\"", "role = \"observer\"\nmonitors = [\"h1\"]"),
    ] {
        let found = differences(&here, &of(from, to));
        assert_eq!(found.len(), 1, "{to}: {found:?}");
        assert_eq!(found[0].item, "members");
    }
    let more = "role = \"observer\"\n[[member]]\nname = \"h4\"\naddresses = [\"10.70.1.4\", \"10.70.2.4\"]";
    assert_eq!(says(&differences(&here, &of("role = \"observer\"", more))), "members (4 there, 3 here)");
}

/// The keys that are listed for a table with an unknown key.
fn accepted(table: &str) -> Vec<String> {
    let error = toml::from_str::<file::File>(&format!("{table}\nno_such_key = 1\n")).expect_err("unknown").to_string();
    let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_key_that_is_read_is_explained() {
    let tables = accepted("");
    assert_eq!(tables.len(), 7, "{tables:?}");
    for name in tables {
        let table =
            if matches!(&*name, "plane" | "member" | "name") { format!("[[{name}]]") } else { format!("[{name}]") };
        let mut read = accepted(&table);
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
    const SECTIONS: [(&str, &str); 7] = [
        ("[cluster]", "key_file = \"k\""),
        ("[agent]", ""),
        ("[limits]", ""),
        ("[[name]]", "pattern = \"x\"\nusers = [\"root\"]\ngroups = [\"root\"]"),
        ("[controller]", "addresses = [\"127.0.0.1:1\"]\ncredentials = \"pki\""),
        ("[[plane]]", ""),
        ("[[member]]", "name = \"h1\"\naddresses = [\"10.0.0.1\"]"),
    ];
    /// All sections; in `table`, `more` replaces `key`.
    fn text(table: &str, key: &str, more: &str) -> String {
        let section = |(head, lines): &(&str, &str)| {
            let is_it = *head == table;
            let kept = lines.lines().filter(|line| !is_it || !line.starts_with(&format!("{key} = ")));
            let kept: Vec<&str> = kept.chain(is_it.then_some(more)).collect();
            format!("{head}\n{}\n", kept.join("\n"))
        };
        SECTIONS.iter().map(section).collect()
    }
    // Paths are relative to a directory that differs each time.
    let read = |text: &str| {
        let mut config = load(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        config.sources.clear();
        config.key_file = "k".into();
        config.controller.as_mut().expect("it has one").credentials = "pki".into();
        config
    };
    for Key { table, key, default, .. } in keys::KEYS {
        let without = text(table, key, "");
        match default {
            Default::Value(value) => {
                assert_eq!(read(&text(table, key, &format!("{key} = {value}"))), read(&without), "{table} {key}");
            }
            Default::Required => assert!(load(&without).is_err(), "{table} {key} is not required"),
            Default::Otherwise(_) => assert_eq!(read(&without), read(&without), "{table} {key}"),
        }
    }
}
