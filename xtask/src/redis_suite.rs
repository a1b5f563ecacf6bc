// SPDX-License-Identifier: Apache-2.0
//! Redis' own test suite, from Debian's source package of the installed version, unpacked below the target directory.

use crate::Outcome;
use crate::run::{Step, target_dir};
use crate::setup;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs of Debian that the suite expects where its own build would put them.
const PROGRAMS: [&str; 2] = ["redis-cli", "redis-benchmark"];
/// Where apt looks for packages.
const APT: &str = "/etc/apt";
/// The test that runs the suite looks for it here.
pub(crate) const PLACE: &str = "FIDE_REDIS_SUITE";

/// `cargo xtask test-redis-suite`: only the suite, or some of its files.
pub(crate) fn run(units: &[String]) -> Outcome {
    let source = source()?;
    Step::cargo(&["build", "-p", "fide", "-p", "fide-redis"]).run("build")?;
    Step::cargo(&["test", "-p", "fide-redis", "--test", "servers", "--", "--nocapture", "root_suite"])
        .env(PLACE, &source.to_string_lossy())
        .env("FIDE_REDIS_SUITE_UNITS", &units.join(","))
        .run("Redis' own tests")
}

/// The unpacked source; it is fetched if it is not there.
pub(crate) fn source() -> Result<PathBuf, String> {
    if !setup::prepare(setup::REDIS_SUITE, "Redis' own tests do not run") {
        return Err("packages are missing, see above".into());
    }
    let version = source_version()?;
    let dir = target_dir().join("redis-suite");
    let unpacked = dir.join(format!("redis-{}", version.replace([':', '~'], "-")));
    if !unpacked.join("tests/test_helper.tcl").exists() {
        fetch(&dir, &format!("redis={version}"), &unpacked)?;
    }
    for program in PROGRAMS {
        let link = unpacked.join("src").join(program);
        if !link.exists() {
            let program = Path::new("/usr/bin").join(program);
            std::os::unix::fs::symlink(&program, &link).map_err(|why| format!("{}: {why}", link.display()))?;
        }
    }
    Ok(unpacked)
}

/// The version of the source package that the installed server was built from.
fn source_version() -> Result<String, String> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${source:Version}", "redis-tools"])
        .output()
        .map_err(|why| format!("dpkg-query: {why}"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if version.is_empty() { Err("dpkg knows no redis-tools: `make setup` installs it".into()) } else { Ok(version) }
}

/// Fetches a source package, `redis` or `redis=VERSION`, with lists and a cache of its own: the machine's are not changed.
pub(crate) fn fetch(dir: &Path, wanted: &str, unpacked: &Path) -> Outcome {
    let apt = dir.join("apt");
    for folder in ["sources", "lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(folder)).map_err(|why| format!("{}: {why}", apt.display()))?;
    }
    copy_sources(Path::new(APT), &apt.join("sources"))?;
    let place = |option: &str, folder: &str| format!("Dir::{option}={}", apt.join(folder).display());
    let options = [
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        place("Etc::SourceParts", "sources"),
        place("State::Lists", "lists"),
        place("Cache", "cache"),
        // Only root may become apt's own user, and that one may not write here.
        "APT::Sandbox::User=root".to_owned(),
    ];
    let options: Vec<&str> = options.iter().flat_map(|option| ["-o", option.as_str()]).collect();
    Step::new("apt-get").args(&options).args(&["-q", "update"]).dir(dir).run("lists of source packages")?;
    Step::new("apt-get")
        .args(&options)
        .args(&["-q", "source", "--download-only", wanted])
        .dir(dir)
        .run("source package")?;
    let described = find(dir, "dsc")?;
    let _ = fs::remove_dir_all(unpacked);
    Step::new("dpkg-source")
        .args(&["--no-check", "-x", &described.to_string_lossy(), &unpacked.to_string_lossy()])
        .dir(dir)
        .run("unpack")
}

fn find(dir: &Path, extension: &str) -> Result<PathBuf, String> {
    let mut entries = fs::read_dir(dir).map_err(|why| format!("{}: {why}", dir.display()))?;
    let found = entries.find_map(|entry| {
        let path = entry.ok()?.path();
        path.extension().is_some_and(|is| is == extension).then_some(path)
    });
    found.ok_or_else(|| format!("apt-get source has put no .{extension} into {}", dir.display()))
}

/// Where the machine gets its packages from, as places of source packages.
fn copy_sources(from: &Path, to: &Path) -> Outcome {
    let listed = fs::read_dir(from.join("sources.list.d")).into_iter().flatten().filter_map(Result::ok);
    let mut copied = 0;
    for path in listed.map(|entry| entry.path()).chain([from.join("sources.list")]) {
        let is_read = path.extension().is_some_and(|is| is == "list" || is == "sources");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        if !is_read {
            continue;
        }
        let name = to.join(path.file_name().unwrap_or_default());
        fs::write(&name, of_sources(&text)).map_err(|why| format!("{}: {why}", name.display()))?;
        copied += 1;
    }
    if copied == 0 { Err(format!("{} names no place of packages", from.display())) } else { Ok(()) }
}

/// A list of packages as one of source packages, in either form.
fn of_sources(text: &str) -> String {
    let line = |line: &str| match (line.strip_prefix("deb "), line.strip_prefix("Types:")) {
        (Some(rest), _) => format!("deb-src {rest}\n"),
        (_, Some(_)) => "Types: deb-src\n".to_owned(),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_packages_become_those_of_sources() {
        assert_eq!(of_sources("deb http://x bookworm main\n# deb y\n"), "deb-src http://x bookworm main\n# deb y\n");
        assert_eq!(of_sources("Types: deb\nURIs: http://x\n"), "Types: deb-src\nURIs: http://x\n");
    }
}
