// SPDX-License-Identifier: Apache-2.0
//! Words for people from what has to go on without them. `println!` and `eprintln!` panic where their output cannot be written (a
//! full disk, a reader that is gone, a terminal that was hung up); `fide watch`, `fide run`, `fide guard` and the demos must not.

use std::{
    fmt::Arguments,
    io::{IsTerminal, Write},
};

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

pub use {say, tell};

/// The log of what runs for long, on standard error: in colours on a terminal that wants them (<https://no-color.org>), never in a file.
pub fn log() {
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("FIDE_LOG").unwrap_or_else(|_| "info".into()))
        .with_target(false)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
}

/// One line, in one piece; lost where it cannot be written.
pub fn line(to: &mut dyn Write, words: Arguments) {
    let _ = to.write_all(format!("{words}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_cannot_be_written_is_lost() {
        let mut full = std::fs::File::options().write(true).open("/dev/full").expect("opened");
        line(&mut full, format_args!("words"));
        let mut text = Vec::new();
        line(&mut text, format_args!("words of {}", 2));
        assert_eq!(text, b"words of 2\n");
    }
}
