// SPDX-License-Identifier: Apache-2.0
//! An error contains each of its sentences once.

use std::collections::HashSet;

use super::common::{GOOD, Place, said};

/// Sentences, and quoted lines: long enough not to recur by chance.
fn parts(said: &str) -> Vec<String> {
    let split = said.split(['\n', ';']).flat_map(|line| line.split(": ")).flat_map(|part| part.split(". "));
    split.map(|part| part.trim().to_owned()).filter(|part| part.len() >= 8).collect()
}

#[test]
fn no_sentence_of_an_error_appears_twice() {
    let place = Place::new();
    place.write("wrong.toml", "[cluster]\nheartbeat = 5\n");
    place.write("range.toml", &GOOD.replacen("5000", "5", 1));
    place.write("kind.toml", &GOOD.replacen("5000", "\"soon\"", 1));
    place.write("unkeyed.toml", &GOOD.replacen("cluster.key", "no.key", 1));
    place.write("short.key", "0001\n");
    place.mode("short.key", 0o400);
    place.write("short.toml", &GOOD.replacen("cluster.key", "short.key", 1));
    place.write("open.key", "000102030405060708090a0b0c0d0e0f\n");
    place.mode("open.key", 0o644);
    place.write("open.toml", &GOOD.replacen("cluster.key", "open.key", 1));
    place.write("elsewhere.toml", &GOOD.replacen("127.0.0.1", "192.0.2.77", 1));
    place.write("odd.toml", "[controller]\nlisten = 5\n");
    place.write("log.fjl", "no log");
    place.write("no_vote.json", "{}");
    let long = "x".repeat(200);
    let agent = |config: &'static str| vec!["agent", "--config", config, "--state-dir", ".", "--runtime-dir", "."];
    let failures: Vec<Vec<&str>> = vec![
        agent("none.toml"),
        agent("wrong.toml"),
        agent("range.toml"),
        agent("kind.toml"),
        agent("unkeyed.toml"),
        agent("short.toml"),
        agent("open.toml"),
        [agent("elsewhere.toml"), vec!["--host", "a"]].concat(),
        vec!["agent", "--config", "fide.toml", "--runtime-dir", "/proc/none", "--state-dir", "."],
        vec!["agent", "--config", "fide.toml", "--runtime-dir", ".", "--state-dir", "/proc/none"],
        vec!["agent", "--config", "fide.toml", "--runtime-dir", ".", "--state-dir", ".", "--takeover"],
        vec!["agent", "--make-key", "cluster.key"],
        vec!["watch", "@a", "--socket", "none"],
        vec!["watch", "not a target"],
        vec!["status", "--socket", "none"],
        vec!["status", "--socket", &long],
        vec!["explain", "a-1", "--socket", "none"],
        vec!["metrics", "--socket", "none"],
        vec!["run", "--name", "x", "--socket", "none", "--", "true"],
        vec!["lane", "listen", "7", "--socket", "none"],
        vec!["plan", "none.toml"],
        vec!["plan", "wrong.toml"],
        vec!["controller", "check", "--config", "none.toml"],
        vec!["controller", "check", "--config", "odd.toml"],
        vec!["controller", "run", "--config", "none.toml"],
        vec!["controller", "discover", "--config", "none.toml"],
        vec!["controller", "announce", "--config", "none.toml"],
        vec!["controller", "status", "--credentials", "none", "--address", "127.0.0.1:1"],
        vec!["controller", "issue", "none", "host", "h1"],
        vec!["jitter", "report", "none.fjl"],
        vec!["jitter", "report", "log.fjl"],
        vec!["jitter", "ping", "--from", "192.0.2.77", "--to", "192.0.2.78"],
        vec!["jitter", "ping", "--from", "127.0.0.1", "--to", "127.0.0.2", "--out", "none/log.fjl"],
        vec!["doctor", "--config", "wrong.toml"],
        vec!["tune", "--plan", "--config", "none.toml"],
    ];
    assert!(failures.len() >= 18);
    for words in failures {
        let (code, _, err) = said(&mut place.fide(&words));
        assert!(code.is_some_and(|code| code != 0) && err.contains("fide: "), "{words:?}: {code:?} {err}");
        let mut seen = HashSet::new();
        for part in parts(&err) {
            assert!(seen.insert(part.clone()), "{words:?}: {part:?} is said twice in\n{err}");
        }
    }
}

#[test]
fn repetition_would_be_found() {
    let twice =
        "fide: a.toml: TOML parse error at line 2\nunknown field `x`\n: TOML parse error at line 2\nunknown field `x`";
    let all = parts(twice);
    assert!(all.iter().collect::<HashSet<_>>().len() < all.len());
}
