// SPDX-License-Identifier: Apache-2.0
//! What can go wrong while a testbed is built or used.

use std::io;

/// Result of the testbed's own operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Every variant says what was wrong and, where there is one, what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This machine cannot hold a testbed at all.
    #[error("no testbed here: {0}")]
    Unsupported(String),
    /// The [`crate::Spec`] asks for something impossible.
    #[error("bad testbed spec: {0}")]
    Spec(String),
    /// A system tool (`ip`, `bridge`, `tc`) failed.
    #[error("`{tool}` failed ({status}): {stderr}\n  it was given:\n{input}")]
    Tool {
        /// The command line.
        tool: String,
        /// How it ended.
        status: String,
        /// What it wrote to stderr.
        stderr: String,
        /// What it was given on stdin.
        input: String,
    },
    /// A program that the testbed runs is missing.
    #[error("`{name}` was not found ({looked}); {hint}")]
    MissingProgram {
        /// File name.
        name: String,
        /// Where it was looked for.
        looked: String,
        /// What to do about it.
        hint: String,
    },
    /// Something that was started did not come up in time.
    #[error("{what} was not ready after {after_ms} ms: {why}")]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long.
        after_ms: u64,
        /// The last reason why it was not ready.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {why}")]
    Io {
        /// What was being done.
        what: String,
        /// The kernel's answer.
        why: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>, why: impl Into<io::Error>) -> Self {
        Error::Io { what: what.into(), why: why.into() }
    }
}
