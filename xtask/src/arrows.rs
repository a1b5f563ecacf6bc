// SPDX-License-Identifier: Apache-2.0
//! Which crate may depend on which: by wings, and by what pure crates must not know.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A wing of the house, and the wings that its crates may depend on.
const WINGS: &[(&str, &[&str])] = &[
    ("protocol", &["protocol"]),
    ("platform", &["protocol", "platform", "contract"]),
    ("agent", &["protocol", "platform", "agent", "contract", "host-tuning"]),
    ("controller", &["protocol", "platform", "controller", "contract"]),
    ("lab", &["protocol", "platform", "lab"]),
    ("testing", &["protocol", "platform", "agent", "controller", "lab", "testing", "contract", "examples"]),
    ("cli", &["protocol", "platform", "agent", "controller", "lab", "cli", "contract"]),
    ("examples", &["protocol", "platform", "agent", "contract", "testing"]),
];
/// Crates of types that cross a boundary between processes: both sides may use them.
const CONTRACTS: &[&str] = &["fide-agent-api", "fide-controller-api"];
/// Crates that may depend on more than their wing, and on what.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    // Demos and the selftest run on the testbed.
    ("fide-lab", &["testing", "examples"]),
];
/// What pure crates must not know: the kernel, threads, randomness.
const IMPURE: &[&str] = &[
    "caps",
    "ctrlc",
    "libbpf-rs",
    "libc",
    "netlink-sys",
    "quinn-udp",
    "rand",
    "rand_chacha",
    "ring",
    "rustix",
    "tokio",
];
/// Crates that no agent links: they are the controller's, or a tool's.
const NOT_IN_AN_AGENT: &[&str] =
    &["axum", "rcgen", "redb", "ureq", "clap", "plotters", "fide-controller", "fide-testbed"];
/// A crate of fewer lines says in its first line why it is one.
const LINES_MIN: usize = 300;

/// One crate of the workspace.
struct Crate {
    wing: String,
    dir: PathBuf,
    /// What it needs to run, by name.
    needs: Vec<String>,
}

/// Everything that is wrong.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let crates = read(root);
    let mut faults = Vec::new();
    for (name, found) in &crates {
        for needed in &found.needs {
            if found.wing == "protocol" && IMPURE.contains(&needed.as_str()) {
                faults.push(format!("{name} is pure and depends on {needed}: leave that to a crate of platform"));
            }
            if let Some(other) = crates.get(needed)
                && let Some(fault) = wrong_arrow(name, &found.wing, needed, &other.wing)
            {
                faults.push(fault);
            }
        }
        if found.wing == "protocol" && !says(&found.dir, "#![forbid(unsafe_code)]") {
            faults.push(format!(
                "{name} is pure and does not forbid unsafe code: write #![forbid(unsafe_code)] into lib.rs"
            ));
        }
        if lines(&found.dir.join("src")) < LINES_MIN && !says(&found.dir, "A crate of its own") {
            faults.push(format!(
                "{name} has fewer than {LINES_MIN} lines: say in its first page why it is \"A crate of its own\""
            ));
        }
    }
    for needed in closure(&crates, "fide-agent") {
        if NOT_IN_AN_AGENT.contains(&needed.as_str()) {
            faults.push(format!("fide-agent links {needed}, which no agent needs"));
        }
    }
    faults
}

fn wrong_arrow(from: &str, wing: &str, to: &str, other_wing: &str) -> Option<String> {
    let of = |table: &[(&str, &'static [&'static str])], key: &str| {
        table.iter().find(|(name, _)| *name == key).map_or(&[][..], |(_, may)| may)
    };
    let may = of(WINGS, wing).iter().chain(of(EXCEPTIONS, from)).copied().collect::<Vec<_>>();
    let short = to.strip_prefix("fide-").unwrap_or(to);
    let is_contract = CONTRACTS.contains(&to) && may.contains(&"contract");
    let fits = is_contract || may.contains(&other_wing) || may.contains(&short);
    (!fits).then(|| format!("{from} ({wing}) depends on {to} ({other_wing}); {wing} may depend on {}", may.join(", ")))
}

/// All crates that one needs, directly or not.
fn closure(crates: &BTreeMap<String, Crate>, name: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut open = vec![name.to_owned()];
    while let Some(next) = open.pop() {
        for needed in crates.get(&next).into_iter().flat_map(|found| &found.needs) {
            if !all.contains(needed) {
                all.push(needed.clone());
                open.push(needed.clone());
            }
        }
    }
    all
}

fn read(root: &Path) -> BTreeMap<String, Crate> {
    let mut crates = BTreeMap::new();
    let mut add = |wing: &str, dir: PathBuf| {
        let Ok(manifest) = fs::read_to_string(dir.join("Cargo.toml")) else { return };
        let (name, needs) = parse(&manifest);
        crates.insert(name, Crate { wing: wing.to_owned(), dir, needs });
    };
    for (wing, _) in WINGS {
        let place = if *wing == "examples" { root.join(wing) } else { root.join("crates").join(wing) };
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            add(wing, entry.path());
        }
    }
    crates
}

/// Name of a crate and what it needs to run, from its manifest.
fn parse(manifest: &str) -> (String, Vec<String>) {
    let (mut section, mut name, mut needs) = ("", String::new(), Vec::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let Some(rest) = line.strip_prefix("name = ").filter(|_| section == "[package]") {
            name = rest.trim_matches('"').to_owned();
        } else if section == "[dependencies]" && !line.starts_with('#') {
            let end = line.find(['.', ' ', '=']).unwrap_or(line.len());
            if end > 0 {
                needs.push(line[..end].to_owned());
            }
        }
    }
    (name, needs)
}

/// Whether a crate's first file has these words.
fn says(dir: &Path, words: &str) -> bool {
    ["src/lib.rs", "src/main.rs"]
        .iter()
        .any(|file| fs::read_to_string(dir.join(file)).is_ok_and(|text| text.contains(words)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::root_dir;

    #[test]
    fn no_crate_has_a_forbidden_dependency() {
        let faults = faults(&root_dir());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(read(&root_dir()).len() > 20, "crates were found");
    }

    #[test]
    fn a_wrong_arrow_is_named() {
        let fault = wrong_arrow("fide-detector", "protocol", "fide-sys", "platform").expect("wrong");
        assert!(fault.contains("fide-detector (protocol) depends on fide-sys (platform)"), "{fault}");
        assert!(wrong_arrow("fide-agent", "agent", "fide-controller", "controller").is_some());
        assert!(wrong_arrow("fide", "cli", "fide-testbed", "testing").is_some());
        assert_eq!(wrong_arrow("fide-lab", "cli", "fide-testbed", "testing"), None);
        assert_eq!(wrong_arrow("fide-agent", "agent", "fide-controller-api", "controller"), None);
        assert_eq!(wrong_arrow("fide-bpf", "platform", "fide-agent-api", "agent"), None);
        assert_eq!(wrong_arrow("fide-agent", "agent", "fide-host-tuning", "lab"), None);
        assert!(wrong_arrow("fide-agent", "agent", "fide-report", "lab").is_some());
    }

    #[test]
    fn needs_are_read_in_both_forms() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nb = { workspace = true }\n# c.workspace = true\n\
                        [dev-dependencies]\nd.workspace = true\n";
        assert_eq!(parse(manifest), ("x".to_owned(), vec!["a".to_owned(), "b".to_owned()]));
    }
}
