// SPDX-License-Identifier: Apache-2.0
//! What becomes of a subcommand when nobody reads its output any more (`fide status | head -1`). None of them panics.
//!
//! | subcommand | without a reader |
//! |---|---|
//! | a question, or a measurement with only its result left to print | ends by SIGPIPE, as `cat` does; a shell shows 141 |
//! | `watch` | the same, as soon as the reader has gone and not at the next event; with `--on-failure` it goes on |
//! | `agent`, `witness`, `run`, `guard`, `controller run`, `rack run`, `rack monitor`, `rack hangup` | goes on: others depend on it |
//! | `plan`, `lane`, `controller discover`, `jitter export` | stops printing; its exit code says what it has found |
//!
//! Why SIGPIPE and not 0: a pipeline that sees 0 would believe that all was printed.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};

/// From here on this process ends when it writes to a pipe that nobody reads. (The Rust runtime makes a
/// process ignore SIGPIPE.)
pub(crate) fn is_needed() {
    // SAFETY: signal(2) with a default action has no preconditions.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Ends this process as a write to a pipe that nobody reads would.
pub(crate) fn end() -> ! {
    is_needed();
    // SAFETY: raise(3) has no preconditions.
    unsafe { libc::raise(libc::SIGPIPE) };
    // Reached only if the parent process has blocked the signal.
    std::process::exit(128 + libc::SIGPIPE)
}

/// Standard output for poll(2), without any requested event: a pipe without a reader reports an error anyway.
pub(crate) fn poll_fd(stdout: &impl AsFd) -> PollFd<'_> {
    PollFd::new(stdout, PollFlags::empty())
}

/// Whether the polled descriptor is a pipe that nobody reads. A terminal that was hung up does not count:
/// somebody who started a program there may still wait for its exit code.
pub(crate) fn has_gone(polled: &PollFd<'_>) -> bool {
    polled.revents().contains(PollFlags::ERR) && !polled.revents().contains(PollFlags::HUP)
}
