// SPDX-License-Identifier: Apache-2.0
//! Running programs, with a headline each.

use crate::summary::Total;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The workspace's root.
pub(crate) fn root_dir() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root_dir().join(dir),
        None => root_dir().join("target"),
    }
}

/// One program to run.
pub(crate) struct Step {
    command: Command,
    shown: String,
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
        let status = self.command.status().map_err(|e| format!("{what}: `{}` did not start: {e}", self.shown))?;
        if status.success() {
            return Ok(());
        }
        Err(format!("{what} failed ({status}): {}", self.shown))
    }

    /// Runs tests, passing their output on and adding their summaries up. Failed tests are counted, not an error; an
    /// error is a run that failed without one (it did not build, it crashed).
    pub(crate) fn run_tests(mut self, what: &str, total: &mut Total) -> Result<(), String> {
        println!("== {what}: {}", self.shown);
        let failed_before = total.failed;
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{what}: `{}` did not start: {e}", self.shown))?;
        if let Some(out) = child.stdout.take() {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                total.add(&line);
                println!("{line}");
            }
        }
        let status = child.wait().map_err(|e| format!("{what}: {e}"))?;
        if status.success() || total.failed > failed_before {
            return Ok(());
        }
        Err(format!("{what} failed ({status}): {}", self.shown))
    }
}
