// SPDX-License-Identifier: Apache-2.0
//! `make check`: format, lints and unit tests of the crates that a change touches. Run it before each commit.
//!
//! Crates that depend on the changed ones are left to `make test`.

use crate::run::{Step, root_dir};
use crate::{NEED_BPF, Outcome, headers, test};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Branches that a change may be made against; the first that exists counts.
const TRUNKS: [&str; 2] = ["origin/main", "main"];

/// `args`: the commit to compare with; by default, the one where this branch left main. On main itself that
/// is the last commit, or the one before it if nothing has changed since.
pub(crate) fn check(args: &[String]) -> Outcome {
    let base = match args {
        [] => base()?,
        [one] => one.clone(),
        _ => return Err("give one commit to compare with, or none".into()),
    };
    let mut files = git(&["diff", "--name-only", "--no-renames", &base])?;
    files.extend(git(&["ls-files", "--others", "--exclude-standard"])?);
    let (builds_bpf, features) = test::prepare();
    let mut crates = changed(&root_dir(), &files);
    crates.retain(|name, _| builds_bpf || !NEED_BPF.contains(&name.as_str()));
    println!("{} files changed since {base}, in {} crates: {}", files.len(), crates.len(), listed(&crates));

    // All faults are reported together.
    let mut faults: Vec<String> = headers::check(&root_dir()).err().into_iter().collect();
    let mut run = |step: Step, what: &str| faults.extend(step.run(what).err());
    run(Step::cargo(&["fmt", "--all", "--check"]), "format (fix it by cargo fmt --all)");
    // Checks links and paths of the documents, the bounds, and which crate may depend on which.
    run(Step::cargo(&["test", "--quiet", "-p", "xtask"]), "documents");
    let select = |only_libraries: bool| -> Vec<&str> {
        let chosen = crates.iter().filter(|(_, is_library)| **is_library || !only_libraries);
        chosen.flat_map(|(name, _)| ["-p", name]).collect()
    };
    if !crates.is_empty() {
        let features = if crates.contains_key("fide") { features } else { &[] };
        let lints = Step::cargo(&["clippy", "--all-targets"]).args(&select(false)).args(features);
        run(lints.args(&["--", "-D", "warnings"]), "lints");
    }
    if !select(true).is_empty() {
        let tests = Step::cargo(&["test", "--quiet", "--lib"]).args(&select(true)).args(&["--", "--skip", "root_"]);
        run(tests.args(&test::skips(test::Extent::Change)), "unit tests");
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n  ")) }
}

fn listed(crates: &BTreeMap<String, bool>) -> String {
    if crates.is_empty() {
        return "no code".into();
    }
    crates.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn base() -> Result<String, String> {
    for trunk in TRUNKS {
        let Ok(found) = git(&["merge-base", "HEAD", trunk]) else { continue };
        let [base] = &found[..] else { continue };
        if git(&["rev-parse", "HEAD"])?.first() != Some(base) {
            return Ok(base.clone());
        }
    }
    let clean = git(&["status", "--porcelain"])?.is_empty();
    Ok(if clean { "HEAD~1" } else { "HEAD" }.into())
}

/// The lines that git prints.
fn git(args: &[&str]) -> Result<Vec<String>, String> {
    let out = Command::new("git").args(args).current_dir(root_dir()).stderr(Stdio::piped()).output();
    let out = out.map_err(|error| format!("git did not start: {error}"))?;
    if !out.status.success() {
        return Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect())
}

/// The packages that contain these files, and whether each has a library. A deleted file counts for its
/// package as long as its folder exists.
fn changed(root: &Path, files: &[String]) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    for file in files {
        let owner = Path::new(file).ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).find_map(|dir| {
            let manifest = fs::read_to_string(root.join(dir).join("Cargo.toml")).ok()?;
            Some((package(&manifest)?, root.join(dir).join("src/lib.rs").exists()))
        });
        found.extend(owner);
    }
    found
}

/// The package name in a manifest.
fn package(manifest: &str) -> Option<String> {
    let (_, section) = manifest.split_once("[package]")?;
    let line = section.lines().find_map(|line| line.strip_prefix("name = "))?;
    Some(line.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_the_crate_around_it() {
        let of = |files: &[&str]| {
            changed(&root_dir(), &files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>())
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&["crates/cli/fide/tests/cli/main.rs"]), [("fide".to_owned(), true)]);
        assert_eq!(of(&["xtask/src/run.rs", "xtask/src/no_longer_there.rs"]), [("xtask".to_owned(), false)]);
        assert!(of(&["README.md", "docs/concepts.md", "spec/lease.tla", "Cargo.lock"]).is_empty());
    }
}
