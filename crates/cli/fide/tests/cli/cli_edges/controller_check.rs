// SPDX-License-Identifier: Apache-2.0
//! `fide controller check` refuses what `fide controller run` refuses, in the same words.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
};

use super::common::{Place, refused, said};

const NETWORK: &str = "[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n[[switch]]\nname = \"s1\"\n\
                       [[cable]]\na = \"h1\"\nb = \"s1\"\n[[cable]]\na = \"h2\"\nb = \"s1\"\n";

/// A place with certificates, a network and the file of a controller that would start.
struct Site {
    place: Place,
    good: String,
}

impl Site {
    fn new() -> Self {
        let place = Place::new();
        for words in [
            &["controller", "init", "pki", "--address", "127.0.0.1"][..],
            &["controller", "issue", "pki", "host", "h1"],
        ] {
            let (code, out, err) = said(&mut place.fide(words));
            assert_eq!(code, Some(0), "{out}{err}");
        }
        place.write("network.toml", NETWORK);
        let free: SocketAddr =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("loopback");
        let good = format!(
            "[controller]\nlisten = \"{free}\"\ncredentials = \"pki/issued/controller.c1\"\nrevoked = \"pki/revoked\"\n\
             store = \"c.redb\"\ntopology = \"network.toml\"\n\
             [[switch]]\nname = \"s1\"\ndriver = \"linux\"\nbridge = \"fide-none\"\n"
        );
        Self { place, good }
    }

    fn write(&self, from: &str, to: &str) {
        assert!(self.good.contains(from));
        self.place.write("c.toml", &self.good.replacen(from, to, 1));
    }

    /// The log of a controller on its way is not what it is refused with.
    fn both_refuse(&self, from: &str, to: &str, words: &[&str]) {
        self.write(from, to);
        let checked = refused(&mut self.place.fide(&["controller", "check", "--config", "c.toml"]), 2, words);
        let ran = refused(&mut self.place.fide(&["controller", "run", "--config", "c.toml"]), 2, words);
        assert_eq!(checked.lines().last(), ran.lines().last());
        assert!(!self.place.path("c.redb").exists(), "nothing was begun");
    }
}

#[test]
fn sub_lanes_that_no_switch_can_have_are_refused() {
    let site = Site::new();
    for wrong in ["[[64]]", "[]", "[[1], [1]]", "[[]]"] {
        let with = format!("sub_lanes = {wrong}\nstore");
        site.both_refuse("store", &with, &["c.toml: sub_lanes is [", "; there are 1 to 6 sub-lanes"]);
    }
    let slow = "bridge = \"fide-none\"\nrate_bps = 7";
    site.both_refuse("bridge = \"fide-none\"", slow, &["rate_bps of a [[switch]] is 7; give at least 8"]);
}

#[test]
fn credentials_that_no_controller_can_use_are_refused() {
    let site = Site::new();
    let instead = |dir: &str| format!("credentials = \"{dir}\"");
    let good = instead("pki/issued/controller.c1");
    for (dir, says) in [("nosuch", "nosuch/cert.pem: No such file"), ("/etc", "/etc/cert.pem: No such file")] {
        site.both_refuse(&good, &instead(dir), &["credentials: ", says]);
    }
    site.both_refuse(&good, &instead("pki/issued/host.h1"), &["credentials: ", "no authority in ", "host.h1"]);
}

#[test]
fn list_of_revoked_certificates_that_is_none_is_refused_by_its_key() {
    let site = Site::new();
    site.place.write("odd", "no number\n");
    for (list, says) in [("nosuch", "nosuch: No such file"), ("odd", "odd: "), ("pki", "pki: is no file")] {
        let with = format!("revoked = \"{list}\"");
        site.both_refuse("revoked = \"pki/revoked\"", &with, &["fide: revoked: ", says]);
    }
}

#[test]
fn store_that_cannot_be_made_is_refused_by_its_key() {
    let site = Site::new();
    fs::create_dir(site.place.path("dir")).expect("made");
    for (store, says) in [
        ("/nonexistent/x", "/nonexistent: No such file"),
        ("network.toml/x", "network.toml: not a directory"),
        ("dir", " dir: is a directory"),
    ] {
        let with = format!("store = \"{store}\"");
        let remedy = "give a file in a directory where this user may write";
        site.both_refuse("store = \"c.redb\"", &with, &["fide: store: ", says, remedy]);
    }
    let etcd = "[etcd]\nendpoints = [\"https://127.0.0.1:1\"]\nauthorities = \"nosuch\"\n[[switch]]";
    site.place.write("c.toml", &site.good.replace("store = \"c.redb\"\n", "").replace("[[switch]]", etcd));
    for what in ["check", "run"] {
        refused(
            &mut site.place.fide(&["controller", what, "--config", "c.toml"]),
            2,
            &["etcd cannot be called", "nosuch"],
        );
    }
}

#[test]
fn controller_that_would_start_is_right_also_while_it_runs() {
    let site = Site::new();
    site.write("store", "store");
    let (code, out, err) = said(&mut site.place.fide(&["controller", "check", "--config", "c.toml"]));
    assert!(code == Some(0) && out.contains("c.toml is right: 2 hosts"), "{out}{err}");
    assert!(!site.place.path("c.redb").exists() && !site.place.path("c.redb.lock").exists(), "it only looks");
    site.place.write("c.redb", "");
    let (code, out, err) = said(&mut site.place.fide(&["controller", "check", "--config", "c.toml"]));
    assert_eq!(code, Some(0), "{out}{err}");
}
