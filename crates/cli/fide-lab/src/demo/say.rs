// SPDX-License-Identifier: Apache-2.0
//! The output while the demo runs: lines and one progress bar at a time, all on stderr.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use fide_cli::say::say;

/// Time between two lines about a running group if there is no terminal to draw a bar on.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// One group of trials, shown while it runs and as one line when it is over.
pub(super) struct Bar {
    bar: ProgressBar,
    title: String,
    plain: bool,
    start: Instant,
    said: Instant,
}

/// A line.
pub(super) fn line(text: &str) {
    say!("{text}");
}

/// Announces a part of the demo, and prints at the end how long it took.
pub(super) struct Part {
    number: u32,
    of: u32,
    start: Instant,
}

impl Part {
    pub(super) fn begin(number: u32, of: u32, text: &str) -> Self {
        say!("\n{number} of {of}. {text}");
        Self { number, of, start: Instant::now() }
    }

    /// Ends the part; returns how many seconds it took.
    pub(super) fn done(self) -> u64 {
        let took_s = self.start.elapsed().as_secs();
        say!("  part {} of {} took {took_s} s", self.number, self.of);
        took_s
    }
}

impl Bar {
    pub(super) fn new(title: &str, steps: u32) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let target = if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(steps.into()), target);
        // A template that does not parse only loses the styling of the bar.
        if let Ok(style) = ProgressStyle::with_template("  {prefix:<40} {bar:24.cyan} {pos:>3}/{len} {msg}") {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.set_prefix(title.to_owned());
        Self { bar, title: title.to_owned(), plain, start: Instant::now(), said: Instant::now() }
    }

    /// One step is done; `text` is the latest news.
    pub(super) fn step(&mut self, text: String) {
        self.bar.inc(1);
        if self.plain && self.said.elapsed() >= PLAIN_EVERY {
            self.said = Instant::now();
            say!("  {:<40} {}/{}", self.title, self.bar.position(), self.bar.length().unwrap_or(0));
        }
        self.bar.set_message(text);
    }

    /// The group is over; its line stays, with the time that it took.
    pub(super) fn done(self, text: &str) {
        self.bar.finish_and_clear();
        say!("  {:<40} {text}; in {} s", self.title, self.start.elapsed().as_secs());
    }
}
