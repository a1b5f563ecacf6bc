// SPDX-License-Identifier: Apache-2.0
//! One table of exit codes for all subcommands: 2 wrong input, 3 not supported by this host, 1 everything
//! else. For 4 see `denied`.

use super::common::{Place, refused};

#[test]
fn wrong_input_ends_with_2() {
    let place = Place::new();
    place.write("empty", "");
    place.write("odd.toml", "[odd]\n");
    let long = "x".repeat(200);
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec!["agent", "--config", "none"], "none"),
        (vec!["agent", "--config", "odd.toml"], "odd"),
        (vec!["agent", "--check", "--config", "none"], "none"),
        (vec!["agent", "--make-key", "cluster.key"], "File exists"),
        (vec!["witness", "--config", "fide.toml"], "is no witness"),
        (vec!["watch", "a"], "'a' is not a target"),
        (vec!["watch", "x y@a"], "'x y' is not a name"),
        (vec!["watch", "@a", "--limit", "soon"], "not a time in seconds"),
        (vec!["run", "--name", "x y", "--", "true"], "'x y' is not a name"),
        (vec!["guard", "--name", "x y", "--pid", "1"], "'x y' is not a name"),
        (vec!["status", "--socket", &long], "107 bytes"),
        (vec!["explain", "--socket", &long], "107 bytes"),
        (vec!["metrics", "--socket", &long], "107 bytes"),
        (vec!["watch", "@a", "--socket", &long], "107 bytes"),
        (vec!["lane", "listen", "0"], "0 is not in"),
        (vec!["lane", "listen", "7", "--socket", &long], "107 bytes"),
        (vec!["plan", "none.toml"], "none.toml"),
        (vec!["plan", "odd.toml"], "odd"),
        (vec!["controller", "check", "--config", "none"], "none"),
        (vec!["controller", "check", "--config", "odd.toml"], "odd"),
        (vec!["controller", "run", "--config", "none"], "none"),
        (vec!["controller", "issue", "none", "host", "h1"], "fide controller init"),
        (vec!["controller", "renew", "none", "h1"], "host.NAME"),
        (vec!["controller", "status", "--credentials", "none", "--address", "127.0.0.1:1"], "none/cert.pem"),
        (vec!["controller", "discover", "--config", "none"], "none"),
        (vec!["controller", "announce", "--config", "none"], "none"),
        (vec!["jitter", "report", "none"], "none"),
        (vec!["jitter", "report", "empty"], "empty"),
        (vec!["jitter", "ping", "--from", "192.0.2.77", "--to", "192.0.2.78"], "192.0.2.77"),
        (vec!["jitter", "pong", "--from", "192.0.2.77"], "192.0.2.77"),
        (vec!["doctor", "--core", "777"], "core 777"),
        (vec!["doctor", "--config", "none"], "none"),
        (vec!["tune", "--plan", "--skip", "none"], "no condition is called none"),
        (vec!["tune", "--plan", "--core", "777"], "core 777"),
    ];
    for (words, says) in cases {
        refused(&mut place.fide(&words), 2, &[says]);
    }
}

#[test]
fn silent_agent_is_no_fault_of_the_command() {
    let place = Place::new();
    let pid = std::process::id().to_string();
    for words in [
        &["status"][..],
        &["explain"],
        &["metrics"],
        &["watch", "@a"],
        &["lane", "listen", "7"],
        &["run", "--name", "x", "--", "true"],
        &["guard", "--name", "x", "--pid", &pid],
    ] {
        let mut command = place.fide(words);
        refused(
            command.env("FIDE_SOCKET", "none.sock"),
            1,
            &["no Fide agent at none.sock", "start one with `fide agent`"],
        );
    }
    refused(&mut place.agent(&["--takeover"]), 1, &["no agent answers", "start without --takeover"]);
}

#[test]
fn unsupported_by_this_host_ends_with_3() {
    let place = Place::new();
    place.write("fide.toml.d/a.toml", "[agent]\nreceive = \"xdp\"\n");
    refused(&mut place.agent(&[]), 3, &["receive = \"xdp\""]);
    let words = ["jitter", "ping", "--from", "127.0.0.1", "--to", "127.0.0.2", "--method", "af-packet", "--no-record"];
    refused(&mut place.fide(&words), 3, &["lo"]);
    let nothing = place.path("empty_root");
    std::fs::create_dir(&nothing).expect("made");
    refused(place.fide(&["doctor", "--root"]).arg(&nothing), 3, &["cannot be read here"]);
}

#[test]
fn help_says_the_codes() {
    let place = Place::new();
    let (code, out, _) = super::common::said(&mut place.fide(&["--help"]));
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, Some(0));
    for says in ["0 done", "1 unhealthy", "2 usage", "3 unsupported here", "4 not permitted"] {
        assert!(words.contains(says), "{out}");
    }
}
