// SPDX-License-Identifier: Apache-2.0
//! Which settings of a connection make sense.

use super::Config;

/// Shortest and longest [`Config::paces_window_ns`]: an end tells its paces each 10 ms, and a pace of before a minute is of another time.
pub const PACES_WINDOW_MIN_NS: u64 = 10_000_000;
pub const PACES_WINDOW_MAX_NS: u64 = 60_000_000_000;

/// A setting that no connection can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "a pace would count for {given_ns} ns (paces_window_ns), and {PACES_WINDOW_MIN_NS} (10 ms) to {PACES_WINDOW_MAX_NS} (a minute) are allowed"
    )]
    PacesWindow { given_ns: u64 },
}

impl Config {
    /// Whether a connection can have these settings.
    ///
    /// # Errors
    /// The first one that it cannot have.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !(PACES_WINDOW_MIN_NS..=PACES_WINDOW_MAX_NS).contains(&self.paces_window_ns) {
            return Err(ConfigError::PacesWindow { given_ns: self.paces_window_ns });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_of_paces_has_bounds() {
        let of = |paces_window_ns| Config { paces_window_ns, ..Config::default() };
        for allowed_ns in [PACES_WINDOW_MIN_NS, Config::default().paces_window_ns, PACES_WINDOW_MAX_NS] {
            assert_eq!(of(allowed_ns).check(), Ok(()));
        }
        for given_ns in [0, PACES_WINDOW_MIN_NS - 1, PACES_WINDOW_MAX_NS + 1, u64::MAX] {
            assert_eq!(of(given_ns).check(), Err(ConfigError::PacesWindow { given_ns }));
        }
        assert_eq!(
            of(5).check().unwrap_err().to_string(),
            "a pace would count for 5 ns (paces_window_ns), and 10000000 (10 ms) to 60000000000 (a minute) are allowed"
        );
    }
}
