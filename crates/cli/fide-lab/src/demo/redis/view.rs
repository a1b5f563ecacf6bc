// SPDX-License-Identifier: Apache-2.0
//! What is shown while the demo runs, on stderr: on a terminal the rate and the servers, several times a second;
//! elsewhere plain lines.

use std::{
    io::IsTerminal,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use fide_sys::clock::mono_ns;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{gap::Gap, sample::Samples, shared::Shared, text};
use crate::demo::say;

/// Between two drawings on a terminal, and two looks.
const DRAW: Duration = Duration::from_millis(150);
/// Between two lines where there is no terminal.
const PLAIN: Duration = Duration::from_secs(5);
/// Rates in the small drawing.
const SPARKS: usize = 48;
/// Time that each of them stands for.
const SPARK_NS: u64 = 150_000_000;

/// Time that the rate in figures stands for.
const RATE_NS: u64 = 1_000_000_000;

pub(super) struct View<'a> {
    bar: Option<ProgressBar>,
    begun: Instant,
    said: Mutex<Instant>,
    samples: &'a Samples,
}

impl<'a> View<'a> {
    pub(super) fn new(samples: &'a Samples) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            // A template that does not parse only loses the style.
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, begun: Instant::now(), said: Mutex::new(Instant::now()), samples }
    }

    /// A line that stays.
    pub(super) fn say(&self, text: &str) {
        let line = format!("{:>5.1} s  {text}", self.begun.elapsed().as_secs_f64());
        match &self.bar {
            Some(bar) => bar.suspend(|| say::line(&line)),
            None => say::line(&line),
        }
    }

    /// Another leader has acknowledged a write.
    pub(super) fn gap(&self, gap: &Gap) {
        self.say(&format!("{}: {}", gap.what(), text::stages(gap)));
    }

    pub(super) fn back(&self, gap: &Gap) {
        let after = gap.back_ns.saturating_sub(gap.lost_ns) as f64 / 1e9;
        self.say(&format!("h{} is back and follows, {after:.1} s after it was lost", gap.leader));
    }

    /// Draws until the load ends.
    pub(super) fn run(&self, shared: &Shared) {
        while !shared.stops() {
            thread::sleep(DRAW);
            let is_due = self.bar.is_some() || self.said.lock().is_ok_and(|said| said.elapsed() > PLAIN);
            if !is_due {
                continue;
            }
            let now = self.samples.now();
            let servers: Vec<String> =
                (1..).zip(&now.modes).map(|(host, mode)| format!("h{host} {}", text::mode(mode))).collect();
            let last_ns = mono_ns();
            let spark = |back: u64| {
                let to_ns = last_ns.saturating_sub(back * SPARK_NS);
                text::rate(&now.rates, to_ns.saturating_sub(SPARK_NS), to_ns)
            };
            let sparks: Vec<f64> = (0..SPARKS as u64).rev().map(spark).collect();
            let rate = text::rate(&now.rates, last_ns.saturating_sub(RATE_NS), last_ns);
            let line = format!("{rate:>8.0} SET/s   {}", servers.join(", "));
            match &self.bar {
                Some(bar) => bar.set_message(format!("\n  {:<SPARKS$}\n  {line}", text::sparks(&sparks))),
                None => {
                    if let Ok(mut said) = self.said.lock() {
                        *said = Instant::now();
                    }
                    self.say(&line);
                }
            }
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
