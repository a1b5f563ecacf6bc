// SPDX-License-Identifier: Apache-2.0
//! The rights in `packaging/fide-controller.service` suffice.

use std::path::Path;
use std::process::Command;

use fide_testbed::{retry_until, supported};

use super::common::{LIMIT, Site};

/// The value of `key` in the unit.
fn setting(key: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/fide-controller.service");
    let text = std::fs::read_to_string(path).expect("the unit");
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("the unit has no {key}")).to_owned()
}

#[test]
fn root_unit_has_only_the_rights_that_a_bridge_needs() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let site = Site::new(1, 2, 0, "store = \"c.redb\"");
    let network = "[[host]]\nname = \"h1\"\n[[host]]\nname = \"h2\"\n[[switch]]\nname = \"s1\"\n\
                   [[cable]]\na = \"h1\"\nb = \"s1\"\n[[cable]]\na = \"h2\"\nb = \"s1\"\n";
    std::fs::write(site.path().join("network.toml"), network).expect("a file");
    let file = site.path().join("c1.toml");
    let mut text = std::fs::read_to_string(&file).expect("a file");
    text += "[[switch]]\nname = \"s1\"\ndriver = \"linux\"\nbridge = \"br0\"\nrate_bps = 10_000_000\n";
    std::fs::write(&file, text).expect("a file");
    let rights: Vec<String> = setting("CapabilityBoundingSet")
        .split_whitespace()
        .map(|right| format!("+{}", right.strip_prefix("CAP_").expect("CAP_").to_lowercase()))
        .collect();
    for (rights, enough) in [(rights.join(","), true), (String::new(), false)] {
        let script = "ip link set lo up && ip link add br0 type bridge && ip link set br0 up && \
                      for port in h1 h2; do ip link add $port type veth peer name x$port && ip link set $port master br0 up || exit 1; done \
                      && exec \"$@\"";
        let bounding = ["-all", &rights].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", script, "sh"])
            .args([
                "setpriv",
                "--pdeathsig",
                "KILL",
                "--no-new-privs",
                "--inh-caps",
                "-all",
                "--bounding-set",
                &bounding,
            ])
            .arg(env!("CARGO_BIN_EXE_fide"));
        let _running = site.start_by("c1", &mut command);
        let says = if enough { "s1: bridge br0" } else { "s1: " };
        let log = retry_until("the switch", LIMIT, || {
            let log = site.log("c1");
            let line = log.lines().find(|line| line.contains(says)).map(str::to_owned);
            line.ok_or(log)
        })
        .expect("the switch");
        assert_eq!(log.contains("is open"), enough, "{log}");
        std::fs::remove_file(site.path().join("c1.log")).expect("a log");
    }
}
