// SPDX-License-Identifier: Apache-2.0
//! This host's lateness: the bound that `fide doctor` or `fide jitter ping` has stored, or else a short
//! calibration.

use std::{io, path::Path, thread};

use fide_host_tuning::{
    bound::{self, Here},
    roots::Roots,
};
use fide_net::isolation::isolate;
use fide_net::jitter::HostKind;
use fide_sys::clock::mono_ns;
use fide_types::Time;

use crate::config::Config;
use crate::timeout::Timeouts;
use fide_agent_api::status::Rung;

/// File of the bound in the agent's state directory.
const BOUND_FILE: &str = "bound.toml";

/// The lateness that timeouts are computed from.
pub(super) struct Lateness {
    pub(super) kind: HostKind,
    pub(super) lateness_ns: u64,
    /// From a long measurement, so that it counts whatever the loop sees. A calibration counts only until
    /// the loop has seen more.
    pub(super) is_stored: bool,
    pub(super) rung: Rung,
}

impl Lateness {
    /// The basis on which timeouts are computed.
    pub(super) fn timeouts(&self, config: &Config) -> Timeouts {
        Timeouts {
            trust: config.trust,
            heartbeat_ns: config.heartbeat_ns,
            kind: self.kind,
            own_lateness_ns: self.lateness_ns,
            poll_ns: config.poll_ns(),
            fixed: config.timeout_ns.is_some(),
        }
    }
}

/// The stored bound of the worst of these interfaces; without any, that of the host alone. Unless each has one, a calibration.
///
/// # Errors
/// If no thread can be started.
pub(super) fn lateness(
    state_dir: &Path,
    core: usize,
    interfaces: &[String],
    heartbeat_ns: u64,
    calibrate_ns: u64,
) -> io::Result<Lateness> {
    match stored(&state_dir.join(BOUND_FILE), core, interfaces) {
        Ok((lateness_ns, text)) => {
            let (kind, _) = calibrate(core, heartbeat_ns, 0)?;
            Ok(Lateness { kind, lateness_ns, is_stored: true, rung: Rung::new(text, None) })
        }
        Err(why) => {
            let (kind, lateness_ns) = calibrate(core, heartbeat_ns, calibrate_ns)?;
            let used = format!("{} late at most in {}", Time::ns(lateness_ns), Time::ns(calibrate_ns));
            Ok(Lateness { kind, lateness_ns, is_stored: false, rung: Rung::new(used, Some(why)) })
        }
    }
}

fn stored(path: &Path, core: usize, interfaces: &[String]) -> Result<(u64, String), String> {
    let roots = Roots::default();
    let kernel = roots.kernel().map_err(|error| error.to_string())?;
    let boot_id = roots.boot_id().map_err(|error| error.to_string())?;
    let mut worst = None;
    // Without a network, that of the host alone counts.
    let alone = interfaces.is_empty().then_some(None);
    for interface in interfaces.iter().cloned().map(Some).chain(alone) {
        let here = Here { kernel: kernel.clone(), boot_id: boot_id.clone(), core, interface };
        let bound = bound::read(path, &here).map_err(|error| error.to_string())?;
        let text = format!(
            "{} late at most, by {} of {} {}",
            Time::ns(bound.jitter_max_ns),
            bound.method,
            bound.packets,
            if bound.method == bound::WAKE_UP { "timers" } else { "packets" }
        );
        worst = worst.max(Some((bound.jitter_max_ns, text)));
    }
    worst.ok_or_else(|| "there is no interface".to_owned())
}

/// Measures how late this host wakes a thread that is isolated as the loop will be.
fn calibrate(core: usize, heartbeat_ns: u64, length_ns: u64) -> io::Result<(HostKind, u64)> {
    let measure = move || {
        let isolation = isolate(core);
        let measures = isolation.measures();
        let kind = match (measures.isolated.held(), measures.priority.held()) {
            (true, true) => HostKind::Isolated,
            (false, true) => HostKind::Shared,
            (_, false) => HostKind::Ordinary,
        };
        let start = mono_ns();
        let mut worst = 0;
        let mut due = start;
        while due < start + length_ns {
            due += heartbeat_ns;
            thread::sleep(std::time::Duration::from_nanos(due.saturating_sub(mono_ns())));
            worst = worst.max(mono_ns().saturating_sub(due));
        }
        (kind, worst)
    };
    let thread = thread::Builder::new().name("fide-calibrate".to_owned()).spawn(measure)?;
    thread.join().map_err(|_| io::Error::other("calibration panicked"))
}
