// SPDX-License-Identifier: Apache-2.0
//! Runs the program, and writes logs for it.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use fide_jitter_analysis::{Interference, LogWriter, RunInfo, Sample};
use fide_testbed::{Lines, retry_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Bound of every wait; no wait is expected to come near it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn fide(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide"));
    command.arg("jitter").args(arguments);
    command
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().expect("fide runs");
    assert!(output.status.code().is_some(), "{output:?}");
    output
}

pub(crate) fn stderr(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    text
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The report of `fide jitter report` on a log.
pub(crate) struct Reported {
    /// The only run in the JSON.
    pub(crate) run: Value,
    pub(crate) page: String,
    pub(crate) stderr: String,
}

/// Reports on a log; this must succeed.
pub(crate) fn report(log: &Path) -> Reported {
    let page = log.with_extension("html");
    let output = run(fide(&["report", "--json", "--html"]).arg(&page).arg(log));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let value = json(&output);
    assert_eq!((&value["version"], value["runs"].as_array().map(Vec::len)), (&2.into(), Some(1)), "{value}");
    let page = fs::read_to_string(&page).expect("written");
    assert!(page.ends_with("</body></html>\n"), "a whole page");
    Reported { run: value["runs"][0].clone(), page, stderr: stderr(&output) }
}

/// The packets of a log as CSV, without the heading.
pub(crate) fn export(log: &Path) -> Vec<String> {
    let output = run(fide(&["export"]).arg(log));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    stderr(&output);
    String::from_utf8(output.stdout).expect("text").lines().skip(1).map(str::to_owned).collect()
}

/// Writes a log as `fide jitter ping` does.
pub(crate) fn write(path: &Path, info: &RunInfo, rows: &[Sample], events: &[Interference]) -> PathBuf {
    let mut log = LogWriter::create(BufWriter::new(File::create(path).expect("made")), info).expect("begun");
    log.name(0, "backup").expect("written");
    log.restart(7).expect("written");
    rows.iter().for_each(|row| log.sample(row).expect("written"));
    events.iter().for_each(|event| log.event(event).expect("written"));
    log.finish().expect("ended");
    path.to_owned()
}

/// A child that is killed and reaped at the end.
pub(crate) struct Running(Child);

impl Running {
    /// Starts the program with pipes for its output.
    pub(crate) fn start(command: &mut Command) -> Self {
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(pipes.spawn().expect("started"))
    }

    /// Starts a pong, and waits until it answers.
    pub(crate) fn pong(command: &mut Command) -> Self {
        let mut pong = Self::start(command);
        let line = Lines::of(pong.0.stderr.take().expect("piped")).next().expect("a line");
        assert!(line.starts_with("answering on"), "{line}");
        pong
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ctrl-C.
    pub(crate) fn interrupt(&self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).expect("sent");
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("reaped");
    }

    /// Waits for the end of the program. Its output is short enough for its pipes.
    pub(crate) fn finish(mut self) -> Output {
        until("the end of a program", || match self.0.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let stdout = self.0.stdout.take().map(|pipe| Lines::of(pipe).rest().into_bytes()).unwrap_or_default();
        let stderr = self.0.stderr.take().map(|pipe| Lines::of(pipe).rest().into_bytes()).unwrap_or_default();
        Output { status: self.0.wait().expect("ended"), stdout, stderr }
    }

    /// Waits until the program has bound this UDP port.
    pub(crate) fn bound(&self, port: u16) {
        until("a socket", || {
            let text = fs::read_to_string(format!("/proc/{}/net/udp", self.pid())).map_err(|e| e.to_string())?;
            // "sl local_address rem_address ...", hexadecimal.
            let local = text.lines().filter_map(|line| line.split_whitespace().nth(1));
            local.into_iter().any(|at| at.ends_with(&format!(":{port:04X}"))).then_some(()).ok_or(text)
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tries until `probe` succeeds.
pub(crate) fn until<T>(what: &str, probe: impl FnMut() -> Result<T, String>) -> T {
    retry_until(what, LIMIT, probe).unwrap_or_else(|error| panic!("{error}"))
}
