// SPDX-License-Identifier: Apache-2.0
//! Views that are drawn again and again.

use std::time::Duration;

use fide_cli::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two views: "100ms" to "60s".
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    units::duration(text)
        .filter(|time| (Duration::from_millis(100)..=Duration::from_secs(60)).contains(time))
        .ok_or_else(|| format!("'{text}' is not a time from 100ms to 60s; use a number and ms or s, such as 500ms"))
}

/// On a terminal each view takes the place of the one before.
pub(crate) fn drawn() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
    // A template that does not parse only loses the style.
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        bar.set_style(style);
    }
    bar
}
