// SPDX-License-Identifier: Apache-2.0
//! What is shown while both flows run, on stderr: on a terminal the delivery times of both, several times a second;
//! elsewhere plain lines.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use fide_sys::clock::mono_ns;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    flows::{Slowest, Taken},
    outcome::delivery_ms,
};
use crate::demo::say;

/// Between two drawings on a terminal, and two looks.
const DRAW: Duration = Duration::from_millis(150);
/// Between two lines where there is no terminal.
const PLAIN: Duration = Duration::from_secs(2);
/// Bars of a flow, and the time that each stands for: the longest delivery time in it. With the figures beside them they fit into
/// 80 columns.
const BARS: usize = 40;
const BAR_NS: u64 = 250_000_000;
/// Time that the figures stand for.
const FIGURES_NS: u64 = 1_000_000_000;
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) struct View<'a> {
    bar: Option<ProgressBar>,
    begun: Instant,
    names: &'a [String; 2],
    taken: &'a [Taken; 2],
    slowest: Option<&'a Slowest>,
}

impl<'a> View<'a> {
    pub(super) fn new(names: &'a [String; 2], taken: &'a [Taken; 2], slowest: Option<&'a Slowest>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            // A template that does not parse only loses the style.
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, begun: Instant::now(), names, taken, slowest }
    }

    /// Draws until the flows end.
    pub(super) fn run(&self, stop: &AtomicBool) {
        let mut said = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(DRAW);
            match &self.bar {
                Some(bar) => bar.set_message(format!("\n{}", self.drawing())),
                None if said.elapsed() > PLAIN => {
                    said = Instant::now();
                    say::line(&format!(
                        "{:>5.1} s  {}",
                        self.begun.elapsed().as_secs_f64(),
                        self.figures().join("   ")
                    ));
                }
                None => {}
            }
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Of each flow: what the last second was like.
    fn figures(&self) -> [String; 2] {
        let from_ns = mono_ns().saturating_sub(FIGURES_NS);
        std::array::from_fn(|at| {
            let messages = self.taken[at].since(from_ns);
            let of = |share: f64| delivery_ms(&messages, share).map_or("    -".to_owned(), |ms| format!("{ms:>5.1}"));
            format!("{:<10} p50 {} p99 {} ms", self.names[at], of(0.5), of(0.99))
        })
    }

    fn drawing(&self) -> String {
        let now_ns = mono_ns();
        let begin_ns = now_ns.saturating_sub(BARS as u64 * BAR_NS);
        let bars: [Vec<u64>; 2] = std::array::from_fn(|at| bars(&self.taken[at].since(begin_ns), begin_ns));
        // One scale for both.
        let most_ns = bars.iter().flatten().copied().max().unwrap_or(1).max(1);
        let figures = self.figures();
        let mut lines: Vec<String> = bars
            .iter()
            .zip(figures)
            .map(|(bars, figures)| format!("  {:<BARS$}  {figures}", blocks(bars, most_ns)))
            .collect();
        let slowest = self.slowest.and_then(|slowest| slowest()).map_or("unknown", fide_pace_socket::Step::name);
        lines.push(format!(
            "  the highest bar is {:.0} ms; the last {} s; X-PACE's slowest step: {slowest}",
            most_ns as f64 / 1e6,
            BARS as u64 * BAR_NS / 1_000_000_000
        ));
        lines.join("\n")
    }
}

/// The longest delivery time of each stretch; 0 for none.
fn bars(messages: &[(u64, u64)], begin_ns: u64) -> Vec<u64> {
    let mut bars = vec![0; BARS];
    for (made_ns, time_ns) in messages {
        let at = (made_ns.saturating_sub(begin_ns) / BAR_NS) as usize;
        if let Some(bar) = bars.get_mut(at) {
            *bar = time_ns.max(bar).to_owned();
        }
    }
    bars
}

/// A character for each time, by its share of the longest.
fn blocks(times: &[u64], most: u64) -> String {
    let of = |time: &u64| BLOCKS[((*time as f64 / most as f64 * 8.0).ceil() as usize).min(8)];
    times.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_is_the_longest_time_of_its_stretch() {
        let messages = [(100, 20), (200, 30), (100 + BAR_NS, 5), (BARS as u64 * BAR_NS + 100, 99)];
        let bars = bars(&messages, 100);
        assert_eq!((bars[0], bars[1], bars[2], bars.len()), (30, 5, 0, BARS), "the last one is of a stretch to come");
        assert_eq!(blocks(&[0, 1, 40, 80], 80), " ▁▄█");
    }
}
