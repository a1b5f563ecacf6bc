// SPDX-License-Identifier: Apache-2.0
//! systemd's `Type=notify` and its watchdog.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Tells the service manager; silent where there is none.
#[derive(Debug)]
pub struct Notify {
    every: Option<Duration>,
    last: Instant,
}

impl Notify {
    /// From the environment the service manager set.
    #[must_use]
    pub fn from_env() -> Self {
        // Half the time it allows, as sd_watchdog_enabled(3) recommends.
        let mut limit_us = 0;
        let asked = sd_notify::watchdog_enabled(false, &mut limit_us);
        Self { every: asked.then(|| Duration::from_micros(limit_us / 2)), last: Instant::now() }
    }

    /// The agent serves.
    pub fn ready(&self) {
        say(&[NotifyState::Ready]);
    }

    /// The agent leaves.
    pub fn stopping(&self) {
        say(&[NotifyState::Stopping]);
    }

    /// The control thread ran; the loop answered whatever it asked.
    pub fn alive(&mut self) {
        if self.every.is_some_and(|every| self.last.elapsed() >= every) {
            self.last = Instant::now();
            say(&[NotifyState::Watchdog]);
        }
    }
}

fn say(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, state) {
        tracing::warn!("the service manager could not be told: {error}");
    }
}
