// SPDX-License-Identifier: Apache-2.0
//! The cabling of the switches' ports, according to LLDP.
//!
//! ```text
//!  [[switch]] ── Driver: ports, limits, queues ──► probe ──► survey ──► a topology, or differences from the one in force
//! ```
//!
//! The ports are interfaces of this machine, in the switches' namespaces; a switch elsewhere is refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fide_discover::lldp::Role;
use fide_discover::probe::{self, Pace, ProbeError};
use fide_discover::survey::Listened;
use fide_discover::{Difference, End, Figure, Given, Source, Survey, compare, survey};
use fide_planner::Topology;
use fide_planner::request::WIRE_MIN_BYTES;
pub use fide_switch::DriverError;

use crate::config::{self, Config, SwitchSection};

/// Between two frames at one port: several within the shortest useful time.
const PERIOD: Duration = Duration::from_millis(500);
/// Differences with a warning each; the rest only as a number.
const WARNINGS_MAX: usize = 32;

/// Why the cabling cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum CablesError {
    #[error("switch {switch}: {why}; cables of a switch whose ports cannot be listened to have to be written down")]
    Switch { switch: String, why: DriverError },
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

/// A port to probe, with its driver's data.
struct Port {
    port: probe::Port,
    carrier: bool,
    queue: Option<Figure>,
}

/// Sends and listens at all ports of the switches for a time, and puts the results together. `hosts` as in
/// [`survey()`].
///
/// # Errors
/// [`CablesError`]; a part of a network is not reported as the whole.
pub fn look(
    switches: &[SwitchSection],
    wait: Duration,
    stop: &AtomicBool,
    hosts: Option<&BTreeSet<String>>,
    given: &Given,
) -> Result<Survey, CablesError> {
    let mut ports = Vec::new();
    for section in switches {
        let listed = list(section).map_err(|why| CablesError::Switch { switch: section.name.clone(), why })?;
        ports.extend(listed);
    }
    let probed: Vec<probe::Port> = ports.iter().map(|port| port.port.clone()).collect();
    let heard = probe::probe(&probed, Pace { wait, period: PERIOD, farewell: true }, stop)?;
    let listened: Vec<Listened> = ports
        .into_iter()
        .zip(heard)
        .map(|(port, heard)| Listened {
            at: port.port.at,
            carrier: port.carrier,
            rate: heard.rate,
            queue: port.queue,
            heard: heard.frames,
            refused: heard.refused,
            why_refused: heard.why_refused,
        })
        .collect();
    let names: Vec<String> = switches.iter().map(|section| section.name.clone()).collect();
    Ok(survey(&names, &listened, hosts, given))
}

fn list(section: &SwitchSection) -> Result<Vec<Port>, DriverError> {
    let mut driver = config::open(section)?;
    let egress = driver.egress()?;
    let configured = section.rate_bps.map(|bps| Figure::new(bps, Source::Driver));
    let ports = driver.ports()?.into_iter().filter_map(|state| {
        // The port has gone between the two queries.
        let egress = egress.get(&state.name)?;
        let limit = Figure::least(configured, egress.limit_bps.map(|bps| Figure::new(bps, Source::Queue)));
        // Packets of any size: as many bytes as that many of the smallest packets.
        let queue = egress.queue_packets.map(|n| Figure::new(u64::from(n) * WIRE_MIN_BYTES, Source::Queue));
        let port = probe::Port {
            at: End::new(section.name.clone(), state.name),
            role: Role::Switch,
            netns: section.netns.clone(),
            limit,
        };
        Some(Port { port, carrier: state.carrier, queue })
    });
    Ok(ports.collect())
}

/// Checks the cables while the controller starts, on a thread of its own: a difference from the topology is
/// a warning, and changes nothing. Hosts need not send frames: only a contradicting frame counts against a
/// host's cable.
pub(crate) struct Looking {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Looking {
    pub(crate) fn start(config: &Config) -> std::io::Result<Looking> {
        let stop = Arc::new(AtomicBool::new(false));
        if config.cables.is_zero() {
            return Ok(Looking { stop, thread: None });
        }
        let (switches, topology) = (config.switches.clone(), config.topology.clone());
        let (wait, stopped) = (config.cables, stop.clone());
        let thread = std::thread::Builder::new().name("fide-cables".into()).spawn(move || {
            match look(&switches, wait, &stopped, None, &Given::default()) {
                // A check that is too short would report cables as missing.
                Ok(_) if stopped.load(Ordering::Relaxed) => {}
                Ok(survey) => warn(&survey, &topology),
                Err(why) => tracing::warn!("whether the cables are as planned is not known: {why}"),
            }
        })?;
        Ok(Looking { stop, thread: Some(thread) })
    }

    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that looks at the cables has failed");
        }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.end();
    }
}

/// Differences that do not follow from a host's silence.
fn warn(survey: &Survey, topology: &Topology) {
    let silent = |end: &End| {
        topology.find(&end.node).is_some_and(|node| topology.is_host(node))
            && !survey.cables.iter().any(|cable| cable.a == *end || cable.b == *end)
    };
    let counts = |difference: &Difference| match difference {
        Difference::Missing { a, b, .. } => !silent(a) && !silent(b),
        _ => true,
    };
    let differences: Vec<Difference> = compare(survey, topology).into_iter().filter(counts).collect();
    for difference in differences.iter().take(WARNINGS_MAX) {
        tracing::warn!("cables are not as planned: {difference}");
    }
    if differences.len() > WARNINGS_MAX {
        tracing::warn!("cables are not as planned: {} more differences", differences.len() - WARNINGS_MAX);
    }
    if differences.is_empty() {
        tracing::info!("the {} cables that were heard of are as planned", survey.cables.len());
    }
}
