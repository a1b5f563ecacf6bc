// SPDX-License-Identifier: Apache-2.0
//! Agents that tests have started, and what a program hears from them.

use std::{
    path::Path,
    process::Child,
    time::{Duration, Instant},
};

use fide_client::{Client, ConnectOptions, Event};

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A process that ends with the test.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects once there is an agent.
pub(crate) fn client(socket: &Path) -> Client {
    let until = Instant::now() + LIMIT;
    loop {
        match Client::connect(ConnectOptions { path: Some(socket.to_owned()), ..Default::default() }) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn next<T>(client: &mut Client, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    let mut events = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "not notified of {what}; events: {events:#?}");
        let Some(event) = client.wait_event(Some(left)).expect("event") else { continue };
        if let Some(found) = wanted(&event) {
            return found;
        }
        events.push(event);
    }
}
