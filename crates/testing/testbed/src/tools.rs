// SPDX-License-Identifier: Apache-2.0
//! Runs iproute2 in batches, finds our own programs, and waits with a bound.

use crate::{Error, Result};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Runs `tool args...`, feeding it `input`; iproute2's `-batch -` stops at the first line that fails.
pub(crate) fn batch(tool: &str, args: &[&str], input: &str) -> Result<()> {
    let line = format!("{tool} {}", args.join(" "));
    let mut child = Command::new(tool)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::MissingProgram {
                name: tool.into(),
                looked: "PATH".into(),
                hint: "install Debian's iproute2, or run `cargo xtask setup`".into(),
            },
            _ => Error::io(format!("starting `{line}`"), e),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that fails early closes its stdin; its status tells, not this write.
        let _ = stdin.write_all(input.as_bytes());
    }
    let out = child.wait_with_output().map_err(|e| Error::io(format!("waiting for `{line}`"), e))?;
    if out.status.success() {
        return Ok(());
    }
    Err(Error::Tool {
        tool: line,
        status: out.status.to_string(),
        stderr: String::from_utf8_lossy(&out.stderr).trim().to_string(),
        input: input.to_string(),
    })
}

/// One of our own binaries: `$FIDE_BIN_DIR`, else beside the running program, else one directory up (cargo runs tests
/// from `target/debug/deps`, whose binaries are in `target/debug`).
pub fn find_binary(name: &str) -> Result<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    if let Some(dir) = std::env::var_os("FIDE_BIN_DIR") {
        dirs.push(dir.into());
    }
    if let Ok(exe) = std::env::current_exe() {
        dirs.extend(exe.ancestors().skip(1).take(2).map(PathBuf::from));
    }
    for dir in &dirs {
        let path = dir.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    Err(Error::MissingProgram {
        name: name.into(),
        looked: dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", "),
        hint: "build it with `cargo build --workspace` in the same profile, or name its directory in FIDE_BIN_DIR"
            .into(),
    })
}

/// Calls `probe` until it returns a value, at most for `limit`. Its last reason is part of the error.
pub fn retry_until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> std::result::Result<T, String>,
) -> Result<T> {
    const PAUSE: Duration = Duration::from_millis(5);
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(why) if start.elapsed() >= limit => {
                return Err(Error::NotReady { what: what.into(), after_ms: limit.as_millis() as u64, why });
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Waits for the end of a child, at most for `limit`. It does not kill the child.
///
/// # Errors
/// The child did not end within the limit, or the kernel's error.
pub fn end_within(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let what = format!("the end of process {}", child.id());
    retry_until(&what, limit, || match child.try_wait() {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err("it runs".to_owned()),
        Err(error) => Err(error.to_string()),
    })
}

/// Prints what a test could not check here. The harness hides the output of a passing test; this message is
/// shown anyway.
pub fn say_not_tested(what: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(std::io::stderr(), "not tested by {test}: {what}");
}
/// Sets a flag when it is dropped, even by a panic. A scope waits for its threads, so threads that run until
/// a flag is set would keep a failed test from ending.
#[derive(Debug)]
pub struct Stops<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}
