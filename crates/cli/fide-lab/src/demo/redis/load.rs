// SPDX-License-Identifier: Apache-2.0
//! redis-benchmark at the leader. It ends when its server dies, and is started again at the next leader.

use std::{
    process::{Child, Stdio},
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use fide_testbed::{Host, REDIS_PORT};

use super::shared::Shared;

/// Its clients.
pub(super) const CLIENTS: u32 = 50;
/// Bytes of a value, and number of keys.
const VALUE_BYTES: u32 = 25;
const KEYS: u32 = 10_000;
/// Most requests of one run; it is started again after them.
const REQUESTS_MAX: u32 = 20_000_000;
const LOOK: Duration = Duration::from_millis(1);
/// Between two starts.
const PAUSE: Duration = Duration::from_millis(20);

/// A running redis-benchmark, killed when dropped.
struct Running {
    child: Child,
    at: usize,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Loads whoever leads until the load ends. Returns how often redis-benchmark was started.
///
/// # Errors
/// It does not start.
pub(super) fn run(shared: &Shared, from: &Host) -> anyhow::Result<u64> {
    let (mut starts, mut running): (u64, Option<Running>) = (0, None);
    let mut started: Option<Instant> = None;
    while !shared.stops() {
        let leader = shared.leader.load(Relaxed);
        let goes_on = |it: &mut Running| it.at == leader && it.child.try_wait().is_ok_and(|status| status.is_none());
        if !running.as_mut().is_some_and(goes_on) {
            running = None;
            if leader > 0 && started.is_none_or(|at| at.elapsed() > PAUSE) {
                let ip = shared.servers[leader - 1].address.ip().to_string();
                let child = from
                    .command("redis-benchmark")
                    .args(["-h", &ip, "-p", &REDIS_PORT.to_string(), "-t", "set", "-q"])
                    .args(["-n", &REQUESTS_MAX.to_string(), "-c", &CLIENTS.to_string()])
                    .args(["-d", &VALUE_BYTES.to_string(), "-r", &KEYS.to_string()])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?;
                running = Some(Running { child, at: leader });
                started = Some(Instant::now());
                starts += 1;
            }
        }
        thread::sleep(LOOK);
    }
    Ok(starts)
}
