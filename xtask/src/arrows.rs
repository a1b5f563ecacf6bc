// SPDX-License-Identifier: Apache-2.0
//! Checks which crate may depend on which: by wings, and by what pure crates must not know. It reads what
//! cargo itself makes of the manifests (`cargo metadata`), so that no way of writing a dependency escapes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::circles::without_tests_and_comments;

/// Each wing of the workspace (a directory under `crates`), and the wings that its crates may depend on.
const WINGS: &[(&str, &[&str])] = &[
    ("protocol", &["protocol"]),
    ("platform", &["protocol", "platform"]),
    ("agent", &["protocol", "platform", "agent"]),
    ("controller", &["protocol", "platform", "controller"]),
    ("service", &["protocol", "platform", "agent"]),
    ("transport", &["protocol", "platform", "transport"]),
    ("lab", &["protocol", "platform", "lab"]),
    ("testing", &["protocol", "platform", "agent", "controller", "lab", "transport", "testing", "examples"]),
    ("cli", &["protocol", "platform", "agent", "controller", "lab", "transport", "cli"]),
    ("examples", &["protocol", "platform", "agent", "testing"]),
];
/// Crates of types that cross a boundary between processes, and which wings or crates may use each. They
/// depend on nothing but protocol and platform.
const CONTRACTS: &[(&str, &[&str])] = &[
    // The receive program writes its records.
    ("fide-agent-api", &["agent", "cli", "testing", "examples", "fide-bpf"]),
    ("fide-controller-api", &["agent", "controller", "cli", "testing"]),
];
/// Crates that may depend on more than their wing allows: also on these wings or crates.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    // The jitter bound of this host.
    ("fide-agent", &["fide-host-tuning"]),
    // Demos and the selftest run on the testbed.
    ("fide-lab", &["testing", "examples"]),
];
/// What tests may use in addition.
const FOR_TESTS: &[&str] = &["testing", "examples"];
/// All foreign crates that pure crates may use: formats, checksums, serialisation, codes, ciphers. None of them knows a
/// kernel, a clock, a thread or a random source, but `ring`, whose own must not be named ([`IMPURE`]).
const PURE: &[&str] = &[
    "base64",
    "blake3",
    "crc",
    "postcard",
    "reed-solomon-simd",
    "ring",
    "rustc-hash",
    "serde",
    "serde-big-array",
    "siphasher",
    "snow",
    "thiserror",
    "toml",
];
/// What the sources of pure crates must not name, except in tests.
const IMPURE: &[&str] = &[
    "ring::rand",
    "std::env",
    "std::fs",
    "std::io::std",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os",
    "std::process",
    "std::thread",
    "time::Instant",
    "time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "thread::spawn",
    "thread::sleep",
];
/// Crates that neither an agent nor a client links: they belong to the controller or to a tool.
const NOT_IN_AN_AGENT: &[&str] =
    &["axum", "rcgen", "redb", "ureq", "clap", "plotters", "fide-controller", "fide-testbed"];
/// A crate of fewer lines must say in its first lines why it is a crate.
const LINES_MIN: usize = 300;

/// One crate of the workspace.
struct Crate {
    /// `None`: the crate is in no wing.
    wing: Option<String>,
    dir: PathBuf,
    /// What it needs to be built and to run, by name.
    needs: BTreeSet<String>,
    /// What its tests need in addition.
    tests_need: BTreeSet<String>,
}

/// All violations of the rules.
fn faults(crates: &BTreeMap<String, Crate>) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, found) in crates {
        let Some(wing) = found.wing.as_deref() else {
            faults.push(format!("{name} is in no wing: put it into crates/{{{}}}", wings().join(",")));
            continue;
        };
        for (needs, for_tests) in [(&found.needs, false), (&found.tests_need, true)] {
            let ours = needs.iter().filter_map(|needed| Some((needed, crates.get(needed)?.wing.as_deref()?)));
            faults.extend(ours.filter_map(|(to, other)| wrong_arrow(name, wing, to, other, for_tests)));
        }
        if wing == "protocol" {
            faults.extend(impurities(name, found, crates));
        }
        if lines(&found.dir.join("src")) < LINES_MIN && !begins(&found.dir, |line| line.contains("A crate of its own"))
        {
            faults.push(format!(
                "{name} has fewer than {LINES_MIN} lines: say in its first page why it is \"A crate of its own\""
            ));
        }
    }
    let agents = crates.iter().filter(|(_, found)| found.wing.as_deref() == Some("agent"));
    for (name, needed) in
        agents.flat_map(|(name, _)| closure(crates, name).into_iter().map(move |needed| (name, needed)))
    {
        if NOT_IN_AN_AGENT.contains(&needed.as_str()) {
            faults.push(format!("{name} links {needed}, which no agent and no client needs"));
        }
    }
    faults
}

fn wings() -> Vec<&'static str> {
    WINGS.iter().map(|(wing, _)| *wing).collect()
}

fn wrong_arrow(from: &str, wing: &str, to: &str, other_wing: &str, for_tests: bool) -> Option<String> {
    let of = |table: &[(&str, &'static [&'static str])], key: &str| {
        table.iter().find(|(name, _)| *name == key).map_or(&[][..], |(_, may)| may)
    };
    let is_contract = |name: &str| CONTRACTS.iter().any(|(contract, _)| *contract == name);
    let mut may = if is_contract(from) { vec!["protocol", "platform"] } else { of(WINGS, wing).to_vec() };
    may.extend(of(EXCEPTIONS, from));
    if for_tests {
        may.extend(FOR_TESTS);
    }
    let fits = if is_contract(to) && from != to {
        let users = of(CONTRACTS, to);
        users.contains(&wing) && !is_contract(from) || users.contains(&from)
    } else {
        may.contains(&other_wing) || may.contains(&to)
    };
    let whose = if for_tests { "the tests of " } else { "" };
    (!fits)
        .then(|| format!("{whose}{from} ({wing}) depends on {to} ({other_wing}); it may depend on {}", may.join(", ")))
}

/// Dependencies and names that a pure crate must not have, but has.
fn impurities(name: &str, found: &Crate, crates: &BTreeMap<String, Crate>) -> Vec<String> {
    let foreign = found.needs.iter().filter(|needed| !crates.contains_key(*needed) && !PURE.contains(&needed.as_str()));
    let mut faults: Vec<String> = foreign
        .map(|needed| {
            format!(
                "{name} is pure and depends on {needed}: leave that to a crate of platform, or add it to what pure \
                 crates may take (xtask/src/arrows.rs) if it knows no kernel, clock, thread or random source"
            )
        })
        .collect();
    if !begins(&found.dir, |line| line == "#![forbid(unsafe_code)]") {
        faults
            .push(format!("{name} is pure and does not forbid unsafe code: write #![forbid(unsafe_code)] into lib.rs"));
    }
    let mut sources = Vec::new();
    find_sources(&found.dir.join("src"), &mut sources);
    for path in sources.into_iter().filter(|path| !is_of_tests(path)) {
        let text = without_tests_and_comments(&fs::read_to_string(&path).unwrap_or_default());
        for word in IMPURE.iter().filter(|word| text.contains(**word)) {
            faults.push(format!("{}: a pure crate names {word}: take it as an argument", path.display()));
        }
    }
    faults
}

fn is_of_tests(path: &Path) -> bool {
    path.iter().any(|part| ["tests", "tests.rs", "world.rs"].iter().any(|name| part == *name))
}

fn find_sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            find_sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// All crates that one needs, directly or not.
fn closure(crates: &BTreeMap<String, Crate>, name: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut open = vec![name.to_owned()];
    while let Some(next) = open.pop() {
        for needed in crates.get(&next).into_iter().flat_map(|found| &found.needs) {
            if all.insert(needed.clone()) {
                open.push(needed.clone());
            }
        }
    }
    all
}

/// The crates of the workspace at `root`.
fn read(root: &Path) -> BTreeMap<String, Crate> {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .expect("cargo can be started");
    assert!(cargo.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&cargo.stderr));
    parse(root, &serde_json::from_slice(&cargo.stdout).expect("cargo writes JSON"))
}

fn parse(root: &Path, metadata: &Value) -> BTreeMap<String, Crate> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut crates = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let dir = manifest.parent().unwrap_or(root).to_owned();
        let place: Vec<String> = dir
            .strip_prefix(root)
            .unwrap_or(&dir)
            .components()
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .collect();
        let wing = match &place[..] {
            [top, wing, _] if top == "crates" => Some(wing.clone()),
            [top, _] if top == "examples" => Some(top.clone()),
            // xtask builds and checks all other crates, and belongs to no wing.
            [top] if top == "xtask" => continue,
            _ => None,
        };
        let needed = |for_tests: bool| {
            let all = package["dependencies"].as_array().into_iter().flatten();
            all.filter(move |dependency| (dependency["kind"] == "dev") == for_tests)
                .map(|dependency| text(&dependency["name"]))
                .collect()
        };
        let wing = wing.filter(|wing| wings().contains(&wing.as_str()));
        crates.insert(text(&package["name"]), Crate { wing, dir, needs: needed(false), tests_need: needed(true) });
    }
    crates
}

/// Whether the first file of a crate has a line for which `is` holds.
fn begins(dir: &Path, is: impl Fn(&str) -> bool) -> bool {
    ["src/lib.rs", "src/main.rs"]
        .iter()
        .any(|file| fs::read_to_string(dir.join(file)).is_ok_and(|text| text.lines().any(&is)))
}

fn lines(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let mut count = 0;
    for path in entries.flatten().map(|entry| entry.path()) {
        count += match path.is_dir() {
            true => lines(&path),
            false => fs::read_to_string(&path).map_or(0, |text| text.lines().count()),
        };
    }
    count
}

mod tests {
    use super::*;
    use crate::run::root_dir;

    #[test]
    fn no_crate_has_a_forbidden_dependency() {
        let crates = read(&root_dir());
        assert!(crates.len() > 20, "crates were found");
        let faults = faults(&crates);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn a_wrong_arrow_is_named() {
        let wrong = |from: &str, wing: &str, to: &str, other: &str| wrong_arrow(from, wing, to, other, false);
        let fault = wrong("fide-detector", "protocol", "fide-sys", "platform").expect("wrong");
        assert!(fault.contains("fide-detector (protocol) depends on fide-sys (platform)"), "{fault}");
        assert!(wrong("fide-agent", "agent", "fide-controller", "controller").is_some());
        assert!(wrong("fide", "cli", "fide-testbed", "testing").is_some());
        assert_eq!(wrong_arrow("fide", "cli", "fide-testbed", "testing", true), None);
        assert_eq!(wrong("fide-lab", "cli", "fide-testbed", "testing"), None);
        assert_eq!(wrong("fide-agent", "agent", "fide-controller-api", "controller"), None);
        assert_eq!(wrong("fide-bpf", "platform", "fide-agent-api", "agent"), None);
        assert_eq!(wrong("fide-agent", "agent", "fide-host-tuning", "lab"), None);
        assert!(wrong("fide-agent", "agent", "fide-report", "lab").is_some());
        // Contracts: which crates may use which, and that contracts know neither side.
        assert!(wrong("fide-net", "platform", "fide-controller-api", "controller").is_some());
        assert!(wrong("fide-switch", "controller", "fide-agent-api", "agent").is_some());
        assert!(wrong("fide-agent-api", "agent", "fide-client", "agent").is_some());
        assert!(wrong("fide-controller-api", "controller", "fide-agent-api", "agent").is_some());
        assert!(wrong_arrow("fide-agent", "agent", "fide-controller", "controller", true).is_some());
    }

    /// A workspace as cargo describes it, with build, target, renamed, optional and test dependencies.
    #[test]
    fn every_kind_of_dependency_counts() {
        let dependency = |name: &str, kind: Value| serde_json::json!({"name": name, "kind": kind, "rename": "x"});
        let package = |name: &str, dir: &str, dependencies: &[Value]| {
            let manifest = format!("/w/{dir}/Cargo.toml");
            serde_json::json!({"name": name, "manifest_path": manifest, "dependencies": dependencies})
        };
        let metadata = serde_json::json!({"packages": [
            package("fide-lane", "crates/protocol/lane", &[
                dependency("tokio", Value::Null),
                dependency("fide-agent", "build".into()),
                dependency("fide-testbed", "dev".into()),
                dependency("tempfile", "dev".into()),
            ]),
            package("fide-group", "crates/agent/group", &[dependency("clap", Value::Null)]),
            package("fide-agent", "crates/agent/agent", &[]),
            package("fide-testbed", "crates/testing/testbed", &[]),
            package("evil", "crates/evil/x", &[dependency("fide-agent", Value::Null)]),
        ]});
        let found = faults(&parse(Path::new("/w"), &metadata));
        let has = |words: &str| found.iter().filter(|fault| fault.contains(words)).count();
        assert_eq!(has("fide-lane is pure and depends on tokio"), 1, "{found:#?}");
        assert_eq!(has("fide-lane (protocol) depends on fide-agent (agent)"), 1, "{found:#?}");
        assert_eq!(has("depends on fide-testbed"), 0, "{found:#?}");
        assert_eq!(has("tempfile"), 0, "{found:#?}");
        assert_eq!(has("fide-group links clap"), 1, "{found:#?}");
        assert_eq!(has("evil is in no wing"), 1, "{found:#?}");
    }
}
