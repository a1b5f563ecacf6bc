// SPDX-License-Identifier: Apache-2.0
//! Looks at all servers many times a second: who leads, who follows, and how many SETs the leader executed.

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use fide_sys::clock::mono_ns;
use serde_json::Value;

use super::{
    connection::{Connection, Reply},
    shared::{Place, Shared},
};

/// Between two samples.
pub(super) const EVERY: Duration = Duration::from_millis(20);
/// A server that does not answer within this does not answer.
const PATIENCE: Duration = Duration::from_millis(40);
/// Most samples that are kept: some twenty minutes.
const SAMPLES_MAX: usize = 60_000;

/// The SETs that a leader executed between two samples. Where no server led in two of them, there is no rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    /// CLOCK_MONOTONIC of the samples, ns.
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) sets: u64,
}

impl Rate {
    pub(super) fn per_second(&self) -> f64 {
        self.sets as f64 * 1e9 / self.to_ns.saturating_sub(self.from_ns).max(1) as f64
    }
}

/// What is known of the servers now.
#[derive(Debug, Clone, Default)]
pub(super) struct Now {
    /// By host, from h1: `leader`, `following`, ..., `no answer`, `down`.
    pub(super) modes: Vec<String>,
    pub(super) rates: Vec<Rate>,
}

#[derive(Debug, Default)]
pub(super) struct Samples(Mutex<Now>);

impl Samples {
    pub(super) fn now(&self) -> Now {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One server, as it was seen last.
#[derive(Default)]
struct Seen {
    connection: Option<Connection>,
    mode: String,
    view: u64,
    /// While it leads: when it answered last, and the SETs that it had executed.
    led: Option<(u64, u64)>,
}

/// The number of executed SETs in `INFO commandstats`.
fn sets(info: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls="));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

impl Seen {
    fn look(&mut self, place: &Place) -> Option<(Value, u64)> {
        if self.connection.is_none() {
            self.connection = Connection::at(&place.socket).ok();
        }
        let Some(mut connection) = self.connection.take() else {
            (self.mode, self.led) = ("down".to_owned(), None);
            return None;
        };
        self.mode = "no answer".to_owned();
        connection.send(&["FIDE.STATUS"]).ok()?;
        connection.send(&["INFO", "commandstats"]).ok()?;
        if !connection.is_readable(PATIENCE).ok()? {
            return None;
        }
        let (Ok(Reply::Text(status)), Ok(Reply::Text(info))) = (connection.receive(), connection.receive()) else {
            return None;
        };
        self.connection = Some(connection);
        Some((serde_json::from_str(&status).ok()?, sets(&info)))
    }

    /// Looks at a server. Returns what it has executed since it answered last, if it led then and leads now.
    fn sample(&mut self, place: &Place) -> Option<Rate> {
        let (status, sets) = self.look(place)?;
        let to_ns = mono_ns();
        self.mode = status["mode"].as_str().unwrap_or_default().to_owned();
        self.view = status["view"].as_u64().unwrap_or(0);
        let before = self.led.take();
        // What a follower applies was counted at the leader.
        if self.mode != "leader" {
            return None;
        }
        self.led = Some((to_ns, sets));
        let (from_ns, before) = before?;
        Some(Rate { from_ns, to_ns, sets: sets.checked_sub(before)? })
    }
}

/// Takes samples until the load ends.
pub(super) fn run(shared: &Shared, samples: &Samples) {
    let mut seen: Vec<Seen> = shared.servers.iter().map(|_| Seen::default()).collect();
    while !shared.stops() {
        let begun = Instant::now();
        // A leader that was cut off may not know yet: the one of the latest view counts.
        let of = |(seen, place): (&mut Seen, &Place)| seen.sample(place).map(|rate| (seen.view, rate));
        let rate = seen.iter_mut().zip(&shared.servers).filter_map(of).max_by_key(|(view, _)| *view);
        {
            let mut now = samples.0.lock().unwrap_or_else(PoisonError::into_inner);
            now.modes = seen.iter().map(|seen| seen.mode.clone()).collect();
            if now.rates.len() < SAMPLES_MAX {
                now.rates.extend(rate.map(|(_, rate)| rate));
            }
        }
        thread::sleep(EVERY.saturating_sub(begun.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_set_are_read() {
        let info =
            "# Commandstats\r\ncmdstat_get:calls=3,usec=9\r\ncmdstat_set:calls=1234,usec=5678,usec_per_call=4.6\r\n";
        assert_eq!(sets(info), 1234);
        assert_eq!(sets(""), 0);
    }
}
