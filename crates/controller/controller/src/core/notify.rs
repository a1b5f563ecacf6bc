// SPDX-License-Identifier: Apache-2.0
//! What hosts are notified of: contracts that change, and the timeouts that follow from those of heartbeats.

use fide_controller_api::event::{BandwidthChanged, Event as Upcall, Reason};
use fide_controller_api::identity::Identity;
use fide_controller_api::lane as api;
use fide_planner::{Changed, Contract};

use super::state::{Lane, Monitor, Purpose, Record, Standing};
use super::{Core, Out};

/// Whether packets may be later than before at any receiver.
pub(super) fn worse(before: &Contract, after: &Contract) -> bool {
    let later = |(a, b): (&fide_planner::Latency, &fide_planner::Latency)| b.latency_max_ns() > a.latency_max_ns();
    before.receivers.iter().zip(&after.receivers).any(later)
}

impl Core {
    /// Notifies the lanes whose contracts have changed. The cause of a worse contract begins after the
    /// grace period.
    pub(super) fn notify_changed(&mut self, out: &mut Out, because: u64, changed: Vec<Changed>) {
        let mut anyone_worse = false;
        for Changed { id, before, after } in changed {
            if worse(&before, &after) {
                anyone_worse = true;
            }
            self.apply(out, Record::Contract(id.0, after));
            self.notify_contract(out, id.0, Reason::Te);
        }
        if anyone_worse {
            self.begin_ns.insert(because, self.now.boot_ns + self.options.grace_ns);
        }
    }

    /// Sends `bandwidthChanged` to the lane's sender and receivers.
    pub(super) fn notify_contract(&mut self, out: &mut Out, id: u64, reason: Reason) {
        let Some(lane) = self.state.lanes.get(&id) else { return };
        let event = Upcall::BandwidthChanged(BandwidthChanged {
            lane: id,
            reason,
            resources: resources(lane),
            receivers: receivers(lane),
            grace_ns: self.options.grace_ns,
        });
        let heartbeat = lane.purpose == Purpose::Heartbeat;
        out.upcalls.extend(members(lane).into_iter().map(|host| (host, event.clone())));
        if heartbeat {
            self.notify_timeouts(out, id);
        }
    }

    /// Notifies the watchers whose timeout has changed (`on_timeout_changed`).
    pub(super) fn notify_timeouts(&mut self, out: &mut Out, lane: u64) {
        let Some(lane) = self.state.lanes.get(&lane) else { return };
        let host = lane.request.sender.clone();
        let keys: Vec<_> = self
            .state
            .monitors
            .iter()
            .filter(|((_, h, _), _)| *h == host)
            .map(|(k, m)| (k.clone(), m.clone()))
            .collect();
        for (key, monitor) in keys {
            let new_ns = self.timeout_ns(&host, &key.0).filter(|new_ns| *new_ns != monitor.notified_timeout_ns);
            let Some(timeout_ns) = new_ns else { continue };
            let event = Upcall::TimeoutChanged { app: format!("{}@{}", key.2, key.1), timeout_ns };
            // A watcher that asks just now gets it as the answer.
            if monitor.notified_timeout_ns != 0
                && let Ok(watcher) = Identity::host(&key.0)
            {
                out.upcalls.push((watcher, event));
            }
            self.apply(out, Record::Monitor(key, Some(Monitor { notified_timeout_ns: timeout_ns, ..monitor })));
        }
    }

    /// A watcher's timeout for a host: TO = HB + lambda_min + 2 delta_max (FiDe §3.3).
    pub(super) fn timeout_ns(&self, host: &str, watcher: &str) -> Option<u64> {
        let (lane, _) = self.state.heartbeats.get(host)?;
        let lane = self.state.lanes.get(lane)?;
        let j = lane.request.receivers.iter().position(|receiver| receiver == watcher)?;
        Some(lane.contract.receivers.get(j)?.timeout_ns(lane.contract.period_min_ns))
    }
}

/// What a lane is granted now.
pub(super) fn resources(lane: &Lane) -> api::Resources {
    if lane.standing != Standing::Held {
        return api::Resources::Unbounded;
    }
    let Contract { size_max_bytes, period_min_ns, .. } = lane.contract;
    let fide_planner::Latency { latency_min_ns, jitter_max_ns } = lane.contract.overall();
    api::Resources::Bounded(api::Bounds { size_max_bytes, period_min_ns, latency_min_ns, jitter_max_ns })
}

pub(super) fn receivers(lane: &Lane) -> Vec<api::Receiver> {
    let bounded = lane.standing == Standing::Held;
    let latency = |latency: &fide_planner::Latency| api::Latency {
        latency_min_ns: latency.latency_min_ns,
        jitter_max_ns: latency.jitter_max_ns,
    };
    let receivers = lane.request.receivers.iter().zip(&lane.contract.receivers);
    receivers.map(|(host, of)| api::Receiver { host: host.clone(), latency: bounded.then(|| latency(of)) }).collect()
}

/// Sender and receivers.
pub(super) fn members(lane: &Lane) -> Vec<Identity> {
    let hosts = std::iter::once(&lane.request.sender).chain(&lane.request.receivers);
    hosts.filter_map(|host| Identity::host(host).ok()).collect()
}
