// SPDX-License-Identifier: Apache-2.0
//! The output of a child process, line by line. Every read has a limit: a line that never comes fails its
//! test, and the error shows the lines before it.

use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Default limit of one read; no read is expected to come near it.
const LIMIT: Duration = Duration::from_secs(60);
/// Lines that are kept for the error; older ones are dropped.
const KEPT_MAX: usize = 100;
/// Most bytes of one read from the pipe.
const READ_BYTES: usize = 4096;

/// Lines of a child's output. Dropping it closes the pipe, as dropping the child's `ChildStdout` does.
#[derive(Debug)]
pub struct Lines {
    pipe: OwnedFd,
    limit: Duration,
    /// Bytes that were read and not yet returned.
    bytes: Vec<u8>,
    is_over: bool,
    /// Lines that were returned, the newest last.
    kept: VecDeque<String>,
}

impl Lines {
    /// Reads a pipe: `ChildStdout` or `ChildStderr`.
    pub fn of(pipe: impl Into<OwnedFd>) -> Self {
        Lines { pipe: pipe.into(), limit: LIMIT, bytes: Vec::new(), is_over: false, kept: VecDeque::new() }
    }

    /// Sets the limit of one read, which is a minute by default.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Lines { limit, ..self }
    }

    /// The next line without its end, or `None` once the output has ended. Bytes that are not UTF-8 are
    /// replaced.
    ///
    /// # Errors
    /// No line came within the limit, or the pipe could not be read. The error shows the lines before.
    pub fn read(&mut self) -> Result<Option<String>> {
        self.read_until(Instant::now() + self.limit)
    }

    /// Drops all lines before the first one that contains `words`, and returns that one.
    ///
    /// # Panics
    /// None came within the limit, or the output has ended. The message shows the lines before.
    #[track_caller]
    pub fn find_words(&mut self, words: &str) -> String {
        let until = Instant::now() + self.limit;
        loop {
            match self.read_until(until) {
                Ok(Some(line)) if line.contains(words) => return line,
                Ok(Some(_)) => {}
                Ok(None) => panic!("the output ended without a line with {words:?}: {}", self.context()),
                Err(error) => panic!("no line with {words:?}: {error}"),
            }
        }
    }

    /// All output until it ends.
    ///
    /// # Panics
    /// It did not end within the limit. The message shows the lines before.
    #[track_caller]
    pub fn rest(&mut self) -> String {
        let until = Instant::now() + self.limit;
        while !self.is_over {
            self.fill(until).unwrap_or_else(|error| panic!("the output does not end: {error}"));
        }
        String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned()
    }

    fn read_until(&mut self, until: Instant) -> Result<Option<String>> {
        let mut looked = 0;
        loop {
            let end = self.bytes[looked..].iter().position(|byte| *byte == b'\n').map(|at| looked + at);
            if let Some(end) = end {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return Ok(Some(self.keep(&line[..end])));
            }
            if self.is_over {
                let last = std::mem::take(&mut self.bytes);
                return Ok((!last.is_empty()).then(|| self.keep(&last)));
            }
            looked = self.bytes.len();
            self.fill(until)?;
        }
    }

    fn keep(&mut self, line: &[u8]) -> String {
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(line.clone());
        line
    }

    /// Waits for bytes, or for the end of the output.
    fn fill(&mut self, until: Instant) -> Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => {
                    let (after_ms, why) = (self.limit.as_millis() as u64, self.context());
                    return Err(Error::NotReady { what: "the next line of a program".into(), after_ms, why });
                }
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::io("waiting for a program's output", errno)),
            }
        }
        let mut bytes = [0; READ_BYTES];
        match rustix::io::read(&self.pipe, &mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(len) => self.bytes.extend_from_slice(&bytes[..len]),
            // EIO: a terminal whose other end is closed.
            Err(rustix::io::Errno::IO) => self.is_over = true,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::io("reading a program's output", errno)),
        }
        Ok(())
    }

    /// What was read so far, for an error message.
    fn context(&self) -> String {
        let begun = match String::from_utf8_lossy(&self.bytes) {
            text if text.is_empty() => String::new(),
            text => format!(", and the beginning of a line: {text:?}"),
        };
        format!("it printed {:#?}{begun}", self.kept)
    }
}

/// The iterator ends when the output ends.
///
/// # Panics
/// No line came within the limit.
impl Iterator for Lines {
    type Item = String;

    #[track_caller]
    fn next(&mut self) -> Option<String> {
        self.read().unwrap_or_else(|error| panic!("{error}"))
    }
}

#[cfg(test)]
mod tests;
