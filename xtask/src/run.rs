// SPDX-License-Identifier: Apache-2.0
//! Runs programs, with a headline for each.

use crate::setup;
use crate::summary::Total;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{
    Mutex,
    mpsc::{RecvTimeoutError, channel},
};
use std::thread;
use std::time::{Duration, Instant};

/// The workspace's root.
pub(crate) fn root_dir() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root_dir().join(dir),
        None => root_dir().join("target"),
    }
}

/// How long each step that has ended took.
static TOOK: Mutex<Vec<(String, Duration)>> = Mutex::new(Vec::new());

pub(crate) fn note(what: impl Into<String>, since: Instant) {
    TOOK.lock().expect("no step panics").push((what.into(), since.elapsed()));
}

/// Where the time went, longest first; steps below two seconds are left out.
pub(crate) fn took() -> String {
    let mut took = TOOK.lock().expect("no step panics").clone();
    took.retain(|(_, time)| time.as_secs() >= 2);
    took.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    took.iter().map(|(what, time)| format!("{what} {} s", time.as_secs())).collect::<Vec<_>>().join(", ")
}

/// Is this variable one by which cargo describes the package of a program that it runs, here xtask? The build
/// script of ring runs again when one of them changes, and 39 packages of a build depend on ring: a cargo
/// started from here, one started from a shell and one started by a test must all find the same values.
fn is_of_this_package(variable: &str) -> bool {
    variable.starts_with("CARGO_MANIFEST_") || variable.starts_with("CARGO_PKG_")
}

/// One program to run.
pub(crate) struct Step {
    command: Command,
    shown: String,
}

/// A test that prints nothing for this long waits for something that never comes: it is ended and reported,
/// so that the others run.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

/// The processes that a process has started, by number.
fn children(of: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let children: String =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok()).collect();
    children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

fn kill(process: u32) {
    let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
}

/// Ends the tests that a cargo runs; their reapers remove what the tests have made.
fn end_silent(cargo: u32) {
    for child in children(cargo) {
        // A compiler may take its time.
        let program = fs::read_link(format!("/proc/{child}/exe")).unwrap_or_default();
        if !program.starts_with(target_dir()) {
            continue;
        }
        eprintln!("{} has said nothing for {SILENCE_MAX:?} and is ended", program.display());
        kill(child);
    }
}

/// Ends a process, and then those that it has started.
pub(crate) fn end_with_children(process: u32) {
    let left = children(process);
    kill(process);
    left.into_iter().for_each(kill);
}

/// What gives a program idle priority: it stands before the program and its arguments.
pub(crate) fn idle() -> &'static [&'static str] {
    if setup::has_program("chrt") { &["chrt", "--idle", "0"] } else { &["nice", "-n", "19"] }
}

/// Gives a process of idle priority, and those that it has started, the priority of others.
pub(crate) fn hurry(process: u32) {
    for process in [vec![process], children(process)].concat() {
        let _ = Command::new("chrt").args(["--all-tasks", "--other", "--pid", "0", &process.to_string()]).status();
    }
}

impl Step {
    pub(crate) fn new(program: &str) -> Self {
        let mut command = Command::new(program);
        command.current_dir(root_dir());
        Step { command, shown: program.to_string() }
    }

    pub(crate) fn cargo(args: &[&str]) -> Self {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut step = Step::new(&cargo);
        step.shown = "cargo".into();
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_this_package(&name.to_string_lossy())) {
            step.command.env_remove(name);
        }
        step.args(args)
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        for arg in args {
            self.shown.push(' ');
            self.shown.push_str(arg);
        }
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn run(mut self, what: &str) -> Result<(), String> {
        println!("== {what}: {}", self.shown);
        let begun = Instant::now();
        let status = self.command.status().map_err(|e| format!("{what}: `{}` did not start: {e}", self.shown))?;
        note(what, begun);
        if status.success() {
            return Ok(());
        }
        Err(format!("{what} failed ({status}): {}", self.shown))
    }

    /// Runs tests, passes their output on, and adds their summaries up. Failed tests are counted and are not
    /// an error. An error is a run that failed without a failed test (it did not build, it crashed).
    pub(crate) fn run_tests(mut self, what: &str, total: &mut Total) -> Result<(), String> {
        println!("== {what}: {}", self.shown);
        let failed_before = total.failed;
        // Cargo builds all of them before it runs the first.
        let (mut begun, mut is_built) = (Instant::now(), false);
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{what}: `{}` did not start: {e}", self.shown))?;
        if let Some(out) = child.stdout.take() {
            let (to, lines) = channel();
            thread::spawn(move || {
                BufReader::new(out).split(b'\n').map_while(Result::ok).try_for_each(|line| to.send(line))
            });
            loop {
                match lines.recv_timeout(SILENCE_MAX) {
                    Ok(line) => {
                        let line = String::from_utf8_lossy(&line);
                        if !is_built && line.starts_with("running ") {
                            note(format!("build for {what}"), begun);
                            (begun, is_built) = (Instant::now(), true);
                        }
                        total.add(&line);
                        println!("{line}");
                    }
                    Err(RecvTimeoutError::Timeout) => end_silent(child.id()),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        }
        let status = child.wait().map_err(|e| format!("{what}: {e}"))?;
        note(what, begun);
        if status.success() || total.failed > failed_before {
            return Ok(());
        }
        Err(format!("{what} failed ({status}): {}", self.shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;

    #[test]
    fn cargo_is_not_told_of_the_package_that_starts_it() {
        let described = ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_PRE"];
        assert!(described.iter().all(|name| std::env::var_os(name).is_some()), "cargo describes this test's package");
        let step = Step::cargo(&["build"]);
        let removed: Vec<_> =
            step.command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(described.iter().all(|name| removed.contains(&std::ffi::OsStr::new(name))), "{removed:?}");
        assert!(!is_of_this_package("CARGO_INCREMENTAL") && !is_of_this_package("CARGO_TARGET_DIR"));
    }

    /// A shell of its own starts both. The other tests of this process have children too, which run this very
    /// program until they execute another, and hold whatever file it writes.
    #[test]
    fn silent_test_is_ended_and_silent_compiler_is_not() {
        let sleep = target_dir().join(format!("silent-{}", std::process::id()));
        let script = r#"cp /bin/sleep "$0" && { "$0" 600 & silent=$!; /bin/sleep 600 & echo $silent; echo $!; wait $silent; echo $?; }"#;
        let mut shell =
            Command::new("sh").args(["-c", script]).arg(&sleep).stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(shell.stdout.take().expect("a pipe")).lines().map(|line| line.expect("a line"));
        let (silent, compiler) = (lines.next().expect("who says nothing"), lines.next().expect("the compiler"));
        let exe = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let own = fs::canonicalize("/bin/sleep").expect("there");
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while exe(&silent) != sleep || exe(&compiler) != own {
            assert!(std::time::Instant::now() < until, "{:?} and {:?} run", exe(&silent), exe(&compiler));
            thread::sleep(Duration::from_millis(1));
        }
        end_silent(shell.id());
        let status = lines.next();
        let running = exe(&compiler) == own;
        Command::new("kill").args(["-KILL", &compiler]).status().expect("killed");
        shell.wait().expect("ended");
        fs::remove_file(&sleep).expect("removed");
        assert_eq!((status.as_deref(), running), (Some("137"), true));
    }
}
