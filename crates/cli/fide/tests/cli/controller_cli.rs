// SPDX-License-Identifier: Apache-2.0
//! `fide controller` for its operator: certificates, a configuration that is checked, and a controller on
//! loopback.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fide_testbed::retry_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);

fn fide(dir: &Path, words: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_fide")).arg("controller").args(words).current_dir(dir).output().expect("fide");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn done(dir: &Path, words: &[&str]) -> String {
    let (code, out, err) = fide(dir, words);
    assert_eq!(code, 0, "{words:?}: {out}{err}");
    out
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn refused(dir: &Path, code: i32, words: &[&str], why: &str) {
    let (got, out, err) = fide(dir, words);
    assert_eq!(got, code, "{words:?}: {out}{err}");
    assert!(err.contains(why), "{words:?}: {err}");
}

#[test]
fn certificates_are_made_listed_renewed_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    refused(dir, 2, &["issue", "pki", "host", "h1"], "fide controller init");
    let made = json(&done(dir, &["init", "pki", "--address", "127.0.0.1", "--json"]));
    assert_eq!((&made["identity"], &made["addresses"][0]), (&"controller.c1".into(), &"127.0.0.1".into()));
    refused(dir, 2, &["init", "pki", "--address", "127.0.0.1"], "--overwrite");
    refused(dir, 2, &["issue", "pki", "host", "bad name"], "no identity");
    done(dir, &["issue", "pki", "host", "h1", "--days", "90"]);
    done(dir, &["issue", "pki", "operator", "op", "--days", "10"]);
    let state = |who: &str| {
        let (code, out, _) = fide(dir, &["certificates", "pki", "--json"]);
        let entries = json(&out)["certificates"].as_array().unwrap().clone();
        let entry = entries.into_iter().find(|entry| entry["who"] == who).unwrap();
        (code, entry["state"].as_str().unwrap().to_owned(), entry["serial"].as_str().unwrap().to_owned())
    };
    let (code, ending, _) = state("operator.op");
    assert_eq!((code, ending.as_str()), (1, "ending"));
    done(dir, &["renew", "pki", "operator.op"]);
    let (code, valid, serial) = state("operator.op");
    assert_eq!((code, valid.as_str()), (0, "valid"));
    let said = done(dir, &["revoke", "pki", "operator.op"]);
    assert!(said.contains(&serial), "{said}");
    assert_eq!(state("operator.op"), (0, "revoked".into(), serial));
    assert!(done(dir, &["certificates", "pki"]).contains("authority"));
    refused(dir, 2, &["revoke", "pki", "h1"], "write host.NAME");
    // A new authority, without cutting any host off.
    done(dir, &["rotate", "pki"]);
    assert_eq!(state("host.h1").1, "old");
    refused(dir, 1, &["retire", "pki"], "renew or revoke it first");
    for who in ["host.h1", "controller.c1"] {
        done(dir, &["renew", "pki", who]);
    }
    done(dir, &["retire", "pki"]);
    assert_eq!((state("host.h1").0, state("host.h1").1.as_str()), (0, "valid"));
    let (one, bundle) = (std::fs::read(dir.join("pki/ca.pem")).unwrap(), dir.join("pki/issued/host.h1/ca.pem"));
    assert_eq!(std::fs::read(bundle).unwrap(), one);
}

#[test]
fn impossible_discovery_reports_why() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let discover = |code: i32, more: &[&str], why: &str| {
        refused(dir, code, &[&["discover", "--config", "c.toml"], more].concat(), why);
    };
    discover(2, &[], "c.toml");
    // Neither credentials nor a topology have to exist.
    let head = "[controller]\nlisten = \"127.0.0.1:1\"\ncredentials = \"x\"\nstore = \"x\"\ntopology = \"x\"\n";
    let with = |switches: &str| std::fs::write(dir.join("c.toml"), head.to_owned() + switches).unwrap();
    with("");
    discover(2, &[], "there is no [[switch]]");
    let switch = "[[switch]]\nname = \"s1\"\ndriver = \"linux\"\n";
    with(switch);
    discover(2, &[], "needs `bridge`");
    let switch = switch.to_owned() + "bridge = \"fide-none\"\n";
    with(&switch.repeat(2));
    discover(2, &[], "two [[switch]] called \"s1\"");
    with(&switch.replace("s1", "s 1"));
    discover(2, &[], "name of a [[switch]] is s 1");
    with(&switch);
    discover(2, &["--wait-s", "0"], "0 is not in 1..=600");
    discover(2, &["--compare", "none.toml"], "none.toml: No such file");
    discover(2, &["--out", "c.toml"], "c.toml: exists; --force");
    discover(1, &["--wait-s", "1"], "cannot open bridge fide-none");
    discover(1, &[], "have to be written down");
}

/// A controller; killed when dropped.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_controller_is_checked_asked_reloaded_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    done(dir, &["init", "pki", "--address", "127.0.0.1"]);
    for (role, name) in [("host", "h1"), ("operator", "op"), ("operator", "gone")] {
        done(dir, &["issue", "pki", role, name]);
    }
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let network = "[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n[[switch]]\nname = \"s1\"\n\
                   [[cable]]\na = \"h1\"\nb = \"s1\"\n[[cable]]\na = \"h2\"\nb = \"s1\"\n";
    std::fs::write(dir.join("network.toml"), network).unwrap();
    let head = format!(
        "[controller]\nlisten = \"{address}\"\ncredentials = \"pki/issued/controller.c1\"\nrevoked = \"pki/revoked\"\n\
         store = \"c.redb\"\ntopology = \"network.toml\"\n"
    );
    std::fs::write(dir.join("c.toml"), &head).unwrap();
    refused(dir, 2, &["check", "--config", "c.toml"], "switches without a [[switch]]: s1");
    refused(dir, 2, &["run", "--config", "c.toml"], "switches without a [[switch]]: s1");
    // The bridge does not exist: the controller runs, and keeps trying.
    std::fs::write(
        dir.join("c.toml"),
        head + "[[switch]]\nname = \"s1\"\ndriver = \"linux\"\nbridge = \"fide-none\"\n",
    )
    .unwrap();
    let checked = json(&done(dir, &["check", "--config", "c.toml", "--json"]));
    assert_eq!((&checked["right"], &checked["hosts"], &checked["cables"]), (&true.into(), &2.into(), &2.into()));
    refused(dir, 1, &["check", "--config", "c.toml", "--switches"], "s1: ");

    let log = std::fs::File::create(dir.join("log")).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_fide"))
        .args(["controller", "run", "--config", "c.toml"])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let ask = |who: &str, words: &[&str]| {
        let credentials = format!("pki/issued/{who}");
        let words: Vec<&str> = [words, &["--address", &address, "--credentials", &credentials]].concat();
        fide(dir, &words)
    };
    retry_until("an answer", LIMIT, || match ask("operator.op", &["ask", "GET", "/v1/self"]) {
        (0, out, _) if json(&out)["identity"] == "operator.op" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    // The cable is drained, and put back: two changes in a row by a caller without sequence numbers.
    for in_use in ["false", "true", "false"] {
        let body = format!("{{\"in_use\": {in_use}}}");
        let (code, out, err) = ask("operator.op", &["ask", "PUT", "/v1/cables/h2--s1", &body]);
        assert_eq!((code, json(&out)["in_use"].to_string()), (0, in_use.to_owned()), "{err}");
    }
    let (code, out, _) = ask("operator.op", &["status"]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("1 of 2 cables are not in use") && out.contains("h2--s1: taken out of use"), "{out}");
    assert_eq!(ask("operator.op", &["ask", "PUT", "/v1/cables/x--y", "{\"in_use\": true}"]).0, 2);
    assert_eq!(ask("operator.op", &["ask", "POST", "/v1/lanes", "{}"]).0, 4, "for hosts");
    assert_eq!(ask("operator.op", &["ask", "GET", "/v1/self", "{"]).0, 2);
    assert_eq!(ask("nobody", &["ask", "GET", "/v1/self"]).0, 2);
    // The controller's own lock.
    let (code, _, err) = fide(dir, &["run", "--config", "c.toml"]);
    assert_eq!(code, 1, "{err}");

    assert_eq!(ask("operator.gone", &["ask", "GET", "/v1/self"]).0, 0);
    done(dir, &["revoke", "pki", "operator.gone"]);
    running.signal(Signal::HUP);
    retry_until("the revocation", LIMIT, || {
        match ask("operator.gone", &["ask", "GET", "/v1/self", "--patience-s", "0"]).0 {
            0 => Err("it is still let in".into()),
            _ => Ok(()),
        }
    })
    .unwrap();
    assert_eq!(ask("operator.op", &["ask", "GET", "/v1/self"]).0, 0);

    running.signal(Signal::TERM);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("cannot open bridge fide-none") && log.contains("the certificates are read again"), "{log}");
}
