// SPDX-License-Identifier: Apache-2.0
//! Tests of sockets that others have written, over rack sockets and over TCP: what passes without the library passes with it,
//! or is named in a list with the reason.

use crate::Outcome;
use crate::redis_suite::fetch;
use crate::run::{Step, root_dir, target_dir};
use crate::setup;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Debian's, whose tests are in [`setup::SUITES`].
const PYTHON: &str = "/usr/bin/python3.11";
/// Those of vsock need a hypervisor, and wait for one for ever.
const PYTHON_ARGS: &[&str] = &["-m", "test", "-u", "network,-urlfetch", "-i", "*VSOCK*", "--junit-xml"];
/// Seconds that one run of a suite may take.
const LIMIT_S: &str = "400";
/// libuv's tests do not run as root.
const NOBODY: u32 = 65534;
/// Tests that differ, with the reason of each.
const DIFFERS: &str = "crates/transport/rack-preload/suites/differs.toml";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Python,
    Libuv,
    Go,
}

struct Suite {
    name: &'static str,
    kind: Kind,
    /// Some of its connections go over memory.
    uses_memory: bool,
}

const fn suite(name: &'static str, kind: Kind, uses_memory: bool) -> Suite {
    Suite { name, kind, uses_memory }
}

const SUITES: &[Suite] = &[
    suite("test_socket", Kind::Python, true),
    // Its sockets are pairs of Unix sockets.
    suite("test_selectors", Kind::Python, false),
    suite("test_asyncio", Kind::Python, true),
    suite("test_ssl", Kind::Python, true),
    suite("test_socketserver", Kind::Python, true),
    suite("test_httplib", Kind::Python, true),
    suite("test_ftplib", Kind::Python, true),
    suite("libuv", Kind::Libuv, true),
    // It makes its system calls itself: nothing may go over memory.
    suite("go", Kind::Go, false),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Passed,
    Skipped,
    Failed,
}

type Results = BTreeMap<String, Seen>;

/// Where the suites run, which others than root can read.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self, String> {
        let place = Self(std::env::temp_dir().join(format!("fide-suites-{}", std::process::id())));
        fs::create_dir_all(&place.0).map_err(|why| format!("{}: {why}", place.0.display()))?;
        for file in ["fide", "libfide_rack_preload.so"] {
            let from = target_dir().join("release").join(file);
            fs::copy(&from, place.at(file)).map_err(|why| format!("{}: {why}", from.display()))?;
        }
        Ok(place)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A folder that all may write to.
    fn made(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.at(name);
        let is_made =
            fs::create_dir_all(&path).and_then(|()| fs::set_permissions(&path, PermissionsExt::from_mode(0o777)));
        is_made.map(|()| path.clone()).map_err(|why| format!("{}: {why}", path.display()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A monitor, as long as it lives.
struct Monitor {
    child: Child,
    fide: PathBuf,
    socket: PathBuf,
}

impl Monitor {
    fn start(place: &Place) -> Result<Self, String> {
        let (fide, socket) = (place.at("fide"), place.at("monitor.sock"));
        let mut child = Command::new(&fide)
            .args(["rack", "monitor", "--allow-users", "all", "--socket"])
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{}: {why}", fide.display()))?;
        let mut line = String::new();
        let _ = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        if line.starts_with("ready") {
            Ok(Self { child, fide, socket })
        } else {
            Err("the monitor does not start".into())
        }
    }

    /// Ends of connections that have asked.
    fn asked(&self) -> Option<u64> {
        let output = Command::new(&self.fide).args(["rack", "metrics", "--monitor"]).arg(&self.socket).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find_map(|line| line.strip_prefix("fide_rack_asked_total "))?.parse().ok()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A suite that can be run.
struct Ready {
    program: Vec<String>,
    directory: PathBuf,
    as_nobody: bool,
}

fn prepare(suite: &Suite, place: &Place) -> Result<Ready, String> {
    let strings = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    match suite.kind {
        Kind::Python => {
            let directory = place.made(suite.name)?;
            let mut program = strings(&[PYTHON]);
            program.extend(strings(PYTHON_ARGS));
            program.extend([directory.join("results.xml").to_string_lossy().into_owned(), suite.name.into()]);
            Ok(Ready { program, directory, as_nobody: false })
        }
        Kind::Libuv => {
            let dir = target_dir().join("suites");
            let (source, built) = (dir.join("libuv"), dir.join("libuv-built"));
            let (from, to) = (source.to_string_lossy(), built.to_string_lossy());
            fs::create_dir_all(&dir).map_err(|why| format!("{}: {why}", dir.display()))?;
            if !source.join("CMakeLists.txt").exists() {
                fetch(&dir, "libuv1", &source)?;
            }
            Step::new("cmake").args(&["-S", &from, "-B", &to]).run("libuv")?;
            Step::new("cmake").args(&["--build", &to, "--target", "uv_run_tests", "-j2"]).run("libuv's tests")?;
            let directory = place.made("libuv")?;
            fs::copy(built.join("uv_run_tests"), directory.join("uv_run_tests")).map_err(|why| why.to_string())?;
            let fixtures = place.made("libuv/test")?;
            Step::new("cp")
                .args(&["-r", &format!("{from}/test/fixtures"), &fixtures.to_string_lossy()])
                .run("fixtures")?;
            if setup::is_root() {
                Step::new("chown").args(&["-R", &NOBODY.to_string(), &directory.to_string_lossy()]).run("fixtures")?;
            }
            Ok(Ready { program: strings(&["./uv_run_tests"]), directory, as_nobody: setup::is_root() })
        }
        Kind::Go => {
            let root = Command::new("go").args(["env", "GOROOT"]).output().map_err(|why| format!("go: {why}"))?;
            let tests = place.made("go")?.join("net.test").to_string_lossy().into_owned();
            Step::new("go").args(&["test", "-c", "-o", &tests, "net"]).run("Go's tests of net")?;
            let directory = Path::new(String::from_utf8_lossy(&root.stdout).trim()).join("src/net");
            Ok(Ready { program: vec![tests, "-test.v".into(), "-test.short".into()], directory, as_nobody: false })
        }
    }
}

impl Ready {
    /// Runs it to its end: what it says of each test, and how many ends went over to memory.
    fn run(&self, suite: &Suite, place: &Place, with: Option<&Monitor>) -> Result<(Results, u64), String> {
        let stats = place.at("stats");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT_S]);
        if self.as_nobody {
            command.args(["setpriv", &format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
        }
        if let Some(monitor) = with {
            fs::write(&stats, "").map_err(|why| format!("{}: {why}", stats.display()))?;
            chown(&stats, self.as_nobody.then_some(NOBODY), None)
                .map_err(|why| format!("{}: {why}", stats.display()))?;
            command.arg(&monitor.fide).args(["rack", "run", "--monitor"]).arg(&monitor.socket);
            command.arg(if suite.kind == Kind::Go { "--anyway" } else { "--require" });
            command.arg(format!("--stats={}", stats.display())).arg("--");
        }
        let xml = self.directory.join("results.xml");
        let _ = fs::remove_file(&xml);
        let output = command
            .args(&self.program)
            .current_dir(&self.directory)
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .output()
            .map_err(|why| format!("timeout: {why}"))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let results = match suite.kind {
            Kind::Python => of_junit(&fs::read_to_string(&xml).unwrap_or_default()),
            Kind::Libuv => of_tap(&printed),
            Kind::Go => of_go(&printed),
        };
        // One that is ended in the middle, or crashes, has said of no test that it failed.
        let has_failed = results.values().any(|seen| *seen == Seen::Failed);
        if results.is_empty() || !output.status.success() && !has_failed {
            let errors = String::from_utf8_lossy(&output.stderr);
            let rest: Vec<_> = printed.lines().rev().take(5).chain(errors.lines().rev().take(5)).collect();
            return Err(format!("it did not come to its end within {LIMIT_S} s ({}): {rest:?}", output.status));
        }
        let told = fs::read_to_string(&stats).unwrap_or_default();
        Ok((results, told.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()))
    }
}

fn of_junit(text: &str) -> Results {
    let one = |piece: &str| {
        let name = piece.split_once("name=\"")?.1.split('"').next()?;
        let end = piece.find("</testcase>").unwrap_or(piece.len());
        let has = |tag: &str| piece[..end].contains(tag);
        let seen = match () {
            () if has("<error") || has("<failure") => Seen::Failed,
            () if has("<skipped") => Seen::Skipped,
            () => Seen::Passed,
        };
        Some((name.to_owned(), seen))
    };
    text.split("<testcase ").skip(1).filter_map(one).collect()
}

fn of_tap(text: &str) -> Results {
    let one = |line: &str| {
        let (rest, passed) = match line.strip_prefix("not ") {
            Some(rest) => (rest, Seen::Failed),
            None => (line, Seen::Passed),
        };
        let name = rest.strip_prefix("ok ")?.split_once(" - ")?.1;
        Some(match name.split_once(" # SKIP") {
            Some((name, _)) => (name.to_owned(), Seen::Skipped),
            None => (name.to_owned(), passed),
        })
    };
    text.lines().filter_map(one).collect()
}

fn of_go(text: &str) -> Results {
    let one = |line: &str| {
        let (seen, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
        let seen = match seen {
            "PASS" => Seen::Passed,
            "SKIP" => Seen::Skipped,
            _ => Seen::Failed,
        };
        Some((rest.split(' ').next()?.to_owned(), seen))
    };
    text.lines().filter_map(one).collect()
}

/// The reason of each test that may differ: below `[suite]`, lines of `test = "reason"`.
fn listed(text: &str) -> BTreeMap<(String, String), String> {
    let (mut of, mut all) = (String::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut of);
        } else if let Some((test, why)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            all.insert((of.clone(), test.trim_matches('"').to_owned()), why.trim_matches('"').to_owned());
        }
    }
    all
}

/// `cargo xtask suites-rack`: all suites, or those that are named.
pub(crate) fn run(names: &[String]) -> Outcome {
    if let Some(name) = names.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name)) {
        let all: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("{name} is no suite: name some of {}, or none for all", all.join(", ")));
    }
    if !setup::prepare(setup::SUITES, "these suites do not run") {
        return Err("packages are missing, see above".into());
    }
    Step::cargo(&["build", "--release", "-p", "fide", "-p", "fide-rack-preload"]).run("build")?;
    let file = root_dir().join(DIFFERS);
    let listed = listed(&fs::read_to_string(&file).map_err(|why| format!("{}: {why}", file.display()))?);
    let place = Place::new()?;
    let monitor = Monitor::start(&place)?;
    let mut wrong = Vec::new();
    for suite in SUITES.iter().filter(|suite| names.is_empty() || names.iter().any(|name| name == suite.name)) {
        let compared = prepare(suite, &place).and_then(|ready| compare(suite, &ready, (&place, &monitor), &listed));
        if let Err(why) = compared {
            println!("{:<18} {why}", suite.name);
            wrong.push(format!("{}: {why}", suite.name));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn compare(
    suite: &Suite,
    ready: &Ready,
    (place, monitor): (&Place, &Monitor),
    listed: &BTreeMap<(String, String), String>,
) -> Outcome {
    let (plain, _) = ready.run(suite, place, None).map_err(|why| format!("without the library {why}"))?;
    let asked = monitor.asked();
    let (with, ends) = ready.run(suite, place, Some(monitor)).map_err(|why| format!("with the library {why}"))?;
    let passed = |results: &Results| results.iter().filter(|(_, seen)| **seen == Seen::Passed).count();
    let both = plain.iter().filter(|(test, seen)| **seen == Seen::Passed && with.get(*test) == Some(&Seen::Passed));
    println!(
        "{:<18} {} tests, {} passed over TCP, {} with the library, {} in both; {ends} ends over memory",
        suite.name,
        plain.len(),
        passed(&plain),
        passed(&with),
        both.count(),
    );
    let mut wrong = Vec::new();
    for (test, seen) in &plain {
        let now = with.get(test);
        if now == Some(seen) || *seen == Seen::Failed {
            continue;
        }
        let now = now.map_or("not run".to_owned(), |now| format!("{now:?}").to_lowercase());
        match listed.get(&(suite.name.to_owned(), test.clone())) {
            Some(why) => println!("  {test}: {now}, as listed: {why}"),
            None => wrong.push(format!("{test}: {now} with the library")),
        }
    }
    for ((_, test), _) in listed.iter().filter(|((of, _), _)| of == suite.name) {
        if with.get(test) == plain.get(test) {
            println!("  {test} is in {DIFFERS}, and was the same this time");
        }
    }
    if suite.uses_memory && ends == 0 {
        wrong.push("nothing went over memory".to_owned());
    }
    if suite.kind == Kind::Go && monitor.asked() != asked {
        wrong.push("connections of Go were taken for ones of the C library".to_owned());
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("differs, and is not in {DIFFERS}: {}", wrong.join("; "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(results: &Results) -> Vec<(&str, Seen)> {
        results.iter().map(|(test, seen)| (test.as_str(), *seen)).collect()
    }

    #[test]
    fn what_suites_say_is_read() {
        let three = vec![("a.b", Seen::Passed), ("a.c", Seen::Failed), ("a.d", Seen::Skipped)];
        let junit = concat!(
            r#"<testsuite><testcase name="a.b" status="run"><system-out>&lt;error</system-out></testcase>"#,
            r#"<testcase name="a.c"><failure type="x">y</failure></testcase><testcase name="a.d"><skipped /></testcase>"#
        );
        assert_eq!(seen(&of_junit(junit)), three);
        assert_eq!(seen(&of_tap("1..3\nok 1 - a.b\nnot ok 2 - a.c\n# exit code 6\nok 3 - a.d # SKIP why\n")), three);
        let go = "=== RUN a.b\n--- PASS: a.b (0.00s)\n    --- FAIL: a.c (0.1s)\n--- SKIP: a.d (0s)\nPASS\n";
        assert_eq!(seen(&of_go(go)), three);
    }

    #[test]
    fn list_of_what_differs_is_read() {
        let text = fs::read_to_string(root_dir().join(DIFFERS)).unwrap();
        let listed = listed(&text);
        let lines = text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#'));
        assert_eq!(listed.len(), lines.count());
        for ((of, test), why) in &listed {
            assert!(SUITES.iter().any(|suite| suite.name == of), "{of}");
            assert!(!test.is_empty() && why.len() > 10, "{test}");
        }
    }
}
