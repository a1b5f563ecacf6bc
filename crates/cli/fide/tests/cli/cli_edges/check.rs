// SPDX-License-Identifier: Apache-2.0
//! `fide agent --check` refuses the same files as a start, in the same words; it attributes a value in a
//! drop-in to the drop-in.

use super::common::{GOOD, Place, refused, said};

/// Check and start print the same, except for measured values.
fn both_refuse(place: &Place, more: &[&str], code: i32, words: &[&str]) {
    let started = refused(&mut place.agent(more), code, words);
    let checked = refused(&mut place.agent(&[&["--check"], more].concat()), code, words);
    let without_measured = |text: &str| text.split("measured to hold: ").next().unwrap_or_default().to_owned();
    assert_eq!(without_measured(&started), without_measured(&checked));
    assert!(!place.path("agent.sock").exists() && !place.path("incarnation").exists(), "nothing was begun");
}

#[test]
fn check_and_start_refuse_the_same_files() {
    let edited = |from: &str, to: &str| {
        assert!(GOOD.contains(from));
        Place::with(&GOOD.replacen(from, to, 1))
    };
    let one_group = edited("[[plane]]", "[[plane]]\ngroup = \"239.1.1.1\"\n[[plane]]\ngroup = \"239.1.1.1\"");
    both_refuse(&one_group, &[], 2, &["fide.toml, line 8", "planes 0 and 1 have the one group 239.1.1.1"]);
    let no_core = edited("[agent]", "[agent]\ncore = 777");
    both_refuse(&no_core, &[], 2, &["fide.toml, line 14: core = 777: there is no such core", "leave core out"]);
    both_refuse(&Place::new(), &["--host", "nobody"], 2, &["no member is called nobody", "a, b"]);
    let short = edited("heartbeat_us = 5000", "heartbeat_us = 5000\ntimeout_us = 5001");
    both_refuse(&short, &[], 2, &["fide.toml, line 5: timeout_us = 5001", "measured to hold", "--force-timeout"]);
    let forced = said(&mut short.agent(&["--check", "--force-timeout"]));
    // The timeout is too short for a lease, and nothing overrides that.
    assert!(forced.0 == Some(2) && forced.2.contains("trust = \"lease\""), "{forced:?}");
    let elsewhere = edited("127.0.0.1", "192.0.2.77");
    both_refuse(&elsewhere, &[], 2, &["no member's addresses are all on this host", "--host"]);
    both_refuse(&elsewhere, &["--host", "a"], 2, &["no interface of this host has the address 192.0.2.77"]);
    let witness = edited("name = \"a\"", "name = \"a\"\nrole = \"witness\"");
    both_refuse(&witness, &[], 2, &["run `fide witness` here"]);
    let credentials =
        Place::with(&format!("{GOOD}[controller]\naddresses = [\"127.0.0.1:1\"]\ncredentials = \"pki\"\n"));
    refused(&mut credentials.agent(&["--check"]), 2, &["[controller] credentials", "pki/cert.pem"]);
    let keyless = Place::new();
    keyless.mode("cluster.key", 0o444);
    both_refuse(&keyless, &[], 2, &["fide.toml, line 3: key file", "chmod 0400"]);
}

#[test]
fn check_refuses_directories_that_a_start_cannot_write() {
    let place = Place::new();
    place.write("file", "");
    let long = "a".repeat(120);
    let cases: [(&str, &str, &[&str]); 4] = [
        ("file", ".", &["file/incarnation", "file is no directory", "state_dir"]),
        ("file/below", ".", &["file is no directory"]),
        (".", "file", &["file/agent.sock", "file is no directory"]),
        (".", &long, &["agent.sock", "longer than the 107 bytes"]),
    ];
    for (state, runtime, words) in cases {
        let agent = ["agent", "--config", "fide.toml", "--state-dir", state, "--runtime-dir", runtime];
        let started = refused(&mut place.fide(&agent), 2, words);
        assert_eq!(started, refused(place.fide(&agent).arg("--check"), 2, words));
    }
    assert!(!place.path(&long).exists() && !place.path("agent.sock").exists(), "nothing was begun");
    // A start makes what is not there yet.
    let agent = ["agent", "--check", "--config", "fide.toml", "--state-dir", "new/state", "--runtime-dir", "new/run"];
    let (code, _, err) = said(&mut place.fide(&agent));
    assert!(code == Some(0) && !place.path("new").exists(), "{err}");
}

/// Times are counted in nanoseconds: what does not fit there must not become another time.
#[test]
fn times_out_of_range_are_refused_with_their_line() {
    for (key, value) in [
        ("timeout_us", "3600000001"),
        ("timeout_us", "18446744073769552"),
        ("timeout_us", "9223372036854775807"),
        ("key_overlap_ms", "9223372036854775807"),
    ] {
        let place = Place::new();
        place.write("fide.toml.d/times.toml", &format!("[cluster]\n{key} = {value}\n"));
        both_refuse(&place, &[], 2, &["times.toml, line 2: ", &format!("{key} = {value} is ")]);
    }
    for value in ["0", "60001", "18446744073710", "9223372036854775807"] {
        let place = Place::with(&GOOD.replace("calibrate_ms = 10", &format!("calibrate_ms = {value}")));
        both_refuse(&place, &[], 2, &["fide.toml, line 16: ", "is out of range; 1 to 60000 are possible"]);
    }
}

#[test]
fn configuration_without_an_end_is_refused() {
    let place = Place::new();
    let words = ["agent", "--check", "--config", "/dev/zero"];
    refused(&mut place.fide(&words), 2, &["/dev/zero: the file is too long: it has more than 1048576 bytes"]);
}

#[test]
fn check_prints_heartbeat_and_timeout() {
    let place = Place::new();
    let (code, out, err) = said(&mut place.agent(&["--check"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("fide.toml is right") && out.contains("this host is a"), "{out}");
    assert!(out.contains("a heartbeat every 5 ms") && out.contains(", its timeout "), "{out}");
}

#[test]
fn files_of_a_host_elsewhere_can_be_checked() {
    let place = Place::with(&GOOD.replacen("127.0.0.1", "192.0.2.77", 1));
    let (code, out, err) = said(&mut place.agent(&["--check=file", "--host", "a"]));
    assert!(code == Some(0) && out.contains("is right"), "{out}{err}");
    refused(&mut place.agent(&["--check=file", "--host", "nobody"]), 2, &["no member is called nobody"]);
}

#[test]
fn wrong_value_in_a_drop_in_names_its_file_and_line() {
    let place = Place::new();
    place.write("fide.toml.d/10-good.toml", "[cluster]\nport = 7591\n");
    let cases: [(&str, &[&str]); 8] = [
        ("# a host of its own\n[cluster]\nheartbeat_us = 5\n", &["20-odd.toml, line 3: heartbeat_us = 5"]),
        ("[cluster]\n\n\ntimeout_us = 4000\n", &["20-odd.toml, line 4: timeout_us = 4000", "heartbeat_us = 5000"]),
        ("[agent]\ncore = 777\n", &["20-odd.toml, line 2: core = 777"]),
        ("[cluster]\ntimeout_us = 5001\n", &["20-odd.toml, line 2: timeout_us = 5001", "measured to hold"]),
        ("[[name]]\npattern = \"a b\"\nusers = [\"root\"]\n", &["20-odd.toml, line 1: [[name]] pattern \"a b\""]),
        ("[agent]\nmode = \"fast\"\n", &["20-odd.toml: ", "line 2", "fast"]),
        ("[cluster]\nkey_file = \"nosuch\"\n", &["20-odd.toml, line 2: key file nosuch: "]),
        (
            "[controller]\naddresses = []\n",
            &["20-odd.toml: ", "[controller] belong into the file that every host shares"],
        ),
    ];
    for (text, words) in cases {
        place.write("fide.toml.d/20-odd.toml", text);
        let said = refused(&mut place.agent(&["--check"]), 2, words);
        assert!(!said.contains("fide.toml:") && !said.contains("fide.toml,"), "{said}");
    }
}
