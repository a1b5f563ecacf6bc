// SPDX-License-Identifier: Apache-2.0
//! The process that removes a testbed, whether its creator drops it, is interrupted, or is killed.
//!
//! The reaper is a shell that reads its standard input to the end. The only writer is the creator, so the end
//! comes when the creator closes the pipe or dies for any reason. It runs in a session of its own and ignores
//! the signals of a terminal.

use crate::{Error, Result};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a drop waits for the removal before it leaves the rest to the next sweep.
const REAP_LIMIT: Duration = Duration::from_secs(20);

// Each step has its own limit, so that one stuck namespace does not hold up the others. There are three
// passes, to catch processes that were forked during the pass before. `rm` comes last, because a process that
// is still dying may write a log line.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT PIPE
creator=$1; scratch=$2; shift 2
keep=
while read -r line; do keep=$line; done
for pass in 1 2 3; do
    found=
    for n in "$@"; do
        for p in $(timeout -s KILL 5 ip netns pids "$n" 2>/dev/null); do
            [ "$p" = "$creator" ] || { kill -KILL "$p"; found=1; }
        done
    done
    [ "$found" ] || break
done
for n in "$@"; do
    timeout -s KILL 5 ip netns del "$n"
done
[ "$keep" = keep ] || rm -rf -- "$scratch"
"#;

#[derive(Debug)]
pub(crate) struct Reaper {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Reaper {
    pub(crate) fn start(namespaces: &[String], scratch: &Path) -> Result<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(SCRIPT)
            .arg("fide-reaper")
            .arg(std::process::id().to_string())
            .arg(scratch)
            .args(namespaces)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: the closure makes one system call, allocates nothing and takes no lock, as a child of a process
        // with threads must not.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|e| Error::io("starting the testbed's reaper (/bin/sh)", e))?;
        let pipe = child.stdin.take();
        Ok(Reaper { child, pipe })
    }

    /// Leaves the scratch directory in place, for the logs in it.
    pub(crate) fn keep_scratch(&mut self) {
        if let Some(pipe) = &mut self.pipe {
            // If the reaper is gone, the next sweep removes the directory.
            let _ = pipe.write_all(b"keep\n");
        }
    }

    /// Makes the reaper remove everything, and waits for it, at most [`REAP_LIMIT`].
    pub(crate) fn finish(&mut self) {
        drop(self.pipe.take());
        let start = Instant::now();
        while start.elapsed() < REAP_LIMIT {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
    }
}
