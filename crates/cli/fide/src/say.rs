// SPDX-License-Identifier: Apache-2.0
//! Output for people and programs. `println!` and `eprintln!` panic where their output cannot be written (a
//! full disk, a reader that is gone, a terminal that was hung up); no command may panic there.
//!
//! | macro | where to | where it cannot be written |
//! |---|---|---|
//! | [`show!`] | standard output: what the caller asked for | an error, which ends the command with exit code 1 |
//! | [`tell!`] | standard output, from `fide watch`, `fide run`, `fide guard` and the demos, which must go on | lost |
//! | [`say!`] | standard error | lost |

use std::{
    fmt::Arguments,
    io::{self, ErrorKind, IsTerminal, Write},
};

use anyhow::anyhow;

use crate::exit::{Failure, UNHEALTHY};

/// A line on standard output that the caller asked for; an error if it cannot be written.
#[macro_export]
macro_rules! show {
    ($($words:tt)*) => { $crate::say::show_text(&format!("{}\n", format_args!($($words)*))) };
}

/// A line on standard output, if it can be written.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => { $crate::say::line(&mut std::io::stdout().lock(), format_args!($($words)*)) };
}

/// A line on standard error, if it can be written.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::say::line(&mut std::io::stderr().lock(), format_args!($($words)*)) };
}

pub use {say, show, tell};

/// The log of commands that run for long, on standard error: in colours on a terminal that wants them
/// (<https://no-color.org>), never in a file.
pub fn log() {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("FIDE_LOG").unwrap_or_else(|_| "info".into()))
        .with_target(false)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
}

/// Text on standard output that the caller asked for.
///
/// # Errors
/// It cannot be written. A reader that is gone is no error: it has read enough.
pub fn show_text(text: &str) -> Result<(), Failure> {
    shown(write_all(&mut io::stdout().lock(), text.as_bytes()))
}

/// Judges the result of a write to standard output.
///
/// # Errors
/// The same as [`show_text`].
pub fn shown(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(UNHEALTHY, anyhow!("standard output could not be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes and flushes: nobody would see the loss of a buffer at the end of the process.
fn write_all(to: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Writes one line, in one piece; it is lost where it cannot be written.
pub fn line(to: &mut dyn Write, words: Arguments) {
    let _ = to.write_all(format!("{words}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_a_line_end_is_not_lost_in_a_buffer() {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
        let error = write_all(&mut io::LineWriter::new(full), b"no line").expect_err("full");
        let failure = shown(Err(error)).expect_err("an error");
        assert_eq!(failure.code, UNHEALTHY);
        assert!(failure.to_string().starts_with("standard output could not be written: No space"), "{failure}");
        assert!(shown(Err(ErrorKind::BrokenPipe.into())).is_ok());
    }

    #[test]
    fn line_that_cannot_be_written_is_lost() {
        let mut full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
        line(&mut full, format_args!("words"));
        let mut text = Vec::new();
        line(&mut text, format_args!("words of {}", 2));
        assert_eq!(text, b"words of 2\n");
    }
}
