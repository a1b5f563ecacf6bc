// SPDX-License-Identifier: Apache-2.0
//! A process made to die: `fide-victim`, and the handle to one.

use crate::node::Host;
use crate::{Error, Lines, Result, find_binary};
use fide_sys::clock::mono_ns;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

mod program;
pub use program::run;

/// The properties of a victim.
#[derive(Debug, Clone, Default)]
pub struct VictimSpec {
    /// Program and leading arguments; empty: the `fide-victim` binary. (A program that links [`run`] may name itself.)
    pub program: Vec<PathBuf>,
    /// Memory to hold, touched page by page, MiB.
    pub resident_mib: usize,
    /// Threads beside the main one.
    pub threads: usize,
    /// TCP connection to hold open.
    pub tcp: Option<SocketAddr>,
    /// Exit code on SIGUSR2.
    pub exit_code: u8,
}

/// A running victim; killed when dropped. SIGUSR1 makes it commit a SIGSEGV, SIGUSR2 exit with its exit code.
#[derive(Debug)]
pub struct Victim {
    child: Child,
    /// Kept apart from the child, because `Child::wait` would close it and so end the victim before its
    /// signal does.
    _lifeline: Option<ChildStdin>,
}

impl Victim {
    /// Starts a victim on a host, or outside of any host, and waits until it holds its memory and connection.
    pub fn spawn(host: Option<&Host>, spec: &VictimSpec) -> Result<Self> {
        let program = match spec.program.first() {
            Some(p) => p.clone(),
            None => find_binary("fide-victim")?,
        };
        let mut command = match host {
            Some(host) => host.command(&program),
            None => Command::new(&program),
        };
        command
            .args(spec.program.iter().skip(1))
            .args(["--resident-mib", &spec.resident_mib.to_string()])
            .args(["--threads", &spec.threads.to_string()])
            .args(["--exit-code", &spec.exit_code.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(to) = spec.tcp {
            command.args(["--tcp", &to.to_string()]);
        }
        let mut child = command.spawn().map_err(|e| Error::io(format!("starting {}", program.display()), e))?;
        let said = child.stdout.take().map_or(Ok(None), |out| Lines::of(out).read());
        if !matches!(&said, Ok(Some(line)) if line.trim() == "ready") {
            let _ = child.kill();
            let status = child.wait();
            return Err(Error::NotReady {
                what: "a victim".into(),
                after_ms: 0,
                why: format!("it said {said:?} and ended with {status:?}"),
            });
        }
        let lifeline = child.stdin.take();
        Ok(Victim { child, _lifeline: lifeline })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Field 22 of its `/proc/PID/stat`: together with the process id it names no other process.
    pub fn start_ticks(&self) -> Option<u64> {
        crate::names::start_ticks(self.pid())
    }

    /// Binds its main thread to one core.
    pub fn bind_to_core(&self, core: usize) -> Result<()> {
        crate::sys::bind_to_core(Some(Pid::from_child(&self.child)), core)
    }

    /// Sends a signal. Returns CLOCK_MONOTONIC in ns just before.
    pub fn signal(&self, signal: Signal) -> Result<u64> {
        let pid = Pid::from_child(&self.child);
        let at = mono_ns();
        kill_process(pid, signal).map_err(|e| Error::io(format!("sending {signal:?} to a victim"), e))?;
        Ok(at)
    }

    /// Sends SIGKILL. Returns CLOCK_MONOTONIC in ns just before.
    pub fn kill(&self) -> Result<u64> {
        self.signal(Signal::KILL)
    }

    /// Waits for its end. Until then, no other process can get its pid.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.child.wait().map_err(|e| Error::io("waiting for a victim", e))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
