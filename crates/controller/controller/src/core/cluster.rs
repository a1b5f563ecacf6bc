// SPDX-License-Identifier: Apache-2.0
//! Which programs are in the cluster, and which hosts monitor them (FiDe §3.1, Listing 1). Every monitored
//! host has one lane of heartbeats, to all hosts that monitor it. Its size and period follow the most
//! demanding of them.

use std::collections::BTreeSet;

use fide_controller_api::Code;
use fide_controller_api::cluster::{self as api, App, Cluster, Join, MonitorRequest, Monitored};
use fide_controller_api::event::Event as Upcall;
use fide_controller_api::identity::{Identity, Role};
use fide_controller_api::network::Myself;
use fide_planner::Request as LaneRequest;
use serde_json::Value;

use super::Core;
use super::Out;
use super::asked::{Done, parse};
use super::state::{Monitor, Purpose, Record};
use crate::handler::{Answer, Peer};

/// Largest piggyback (FiDe §3.1).
const PBSIZE_MAX: u64 = fide_wire::PIGGYBACK_MAX as u64;
/// Programs of one host.
const APPS_MAX: usize = fide_wire::MAX_PROCESSES;
/// Longest timeout.
const TIMEOUT_MAX_NS: u64 = 60_000_000_000;
/// Periods that are tried, each twice the one before, until a heartbeat lane can be granted.
const TRIES: u32 = 8;

impl Core {
    pub(super) fn join(&mut self, out: &mut Out, peer: &Peer, body: &Value) -> Done<App> {
        let Join { app } = parse(body)?;
        let host = peer.identity.name.as_str().to_owned();
        self.known_host(&host)?;
        if let Err(error) = app.parse::<fide_wire::Name>() {
            let app: String = app.chars().take(64).collect();
            return Err(Answer::error(422, Code::BadRequest, format!("app \"{}\": {error}", app.escape_debug())));
        }
        if self.state.apps.keys().filter(|(other, _)| *other == host).count() >= APPS_MAX {
            return Err(Answer::error(409, Code::Full, format!("{host} has {APPS_MAX} programs already")));
        }
        self.apply(out, Record::App(host.clone(), app.clone(), true));
        Ok(App { app: format!("{app}@{host}") })
    }

    fn known_host(&self, host: &str) -> Result<(), Answer> {
        match self.topology.find(host) {
            Some(node) if self.topology.is_host(node) => Ok(()),
            _ => Err(Answer::error(
                409,
                Code::NotInTopology,
                format!("the network has no host {host}; add it to the topology"),
            )),
        }
    }

    pub(super) fn quit(&mut self, out: &mut Out, peer: &Peer, app: &str) -> Done<App> {
        let host = peer.identity.name.as_str().to_owned();
        if !self.state.apps.contains_key(&(host.clone(), app.to_owned())) {
            let app: String = app.chars().take(64).collect();
            return Err(Answer::error(
                404,
                Code::NoSuchApp,
                format!("\"{}\" has not joined on {host}", app.escape_debug()),
            ));
        }
        self.apply(out, Record::App(host.clone(), app.to_owned(), false));
        let watching: Vec<_> = self.state.monitors.keys().filter(|(_, h, a)| *h == host && a == app).cloned().collect();
        for key in watching {
            self.apply(out, Record::Monitor(key, None));
        }
        self.fit_less(out, &host);
        Ok(App { app: format!("{app}@{host}") })
    }

    fn target(app: &str) -> Result<(String, String), Answer> {
        let shown = || app.chars().take(80).collect::<String>();
        let (app, host) = app.split_once('@').ok_or_else(|| {
            Answer::error(
                422,
                Code::BadRequest,
                format!("\"{}\" names no program; write NAME@HOST", shown().escape_debug()),
            )
        })?;
        Ok((host.to_owned(), app.to_owned()))
    }

    pub(super) fn monitor(&mut self, out: &mut Out, peer: &Peer, body: &Value) -> Done<Monitored> {
        let MonitorRequest { app, timeout_ns, pbsize } = parse(body)?;
        let watcher = peer.identity.name.as_str().to_owned();
        self.known_host(&watcher)?;
        let (host, program) = Core::target(&app)?;
        if !self.state.apps.contains_key(&(host.clone(), program.clone())) {
            return Err(Answer::error(404, Code::NoSuchApp, format!("{app} has not joined; it joins first")));
        }
        if host == watcher {
            let message = format!("{app} is on the same host; its exit is seen by the kernel, no heartbeat is needed");
            return Err(Answer::error(422, Code::BadRequest, message));
        }
        if pbsize > PBSIZE_MAX || !(1..=TIMEOUT_MAX_NS).contains(&timeout_ns) {
            let message = format!(
                "pbsize {pbsize} and timeout_ns {timeout_ns}: at most {PBSIZE_MAX} bytes, and 1 to {TIMEOUT_MAX_NS} ns"
            );
            return Err(Answer::error(422, Code::BadRequest, message));
        }
        let key = (watcher.clone(), host.clone(), program);
        let before = self.state.monitors.get(&key).cloned();
        let notified_timeout_ns = before.as_ref().map_or(0, |monitor| monitor.notified_timeout_ns);
        let record = Record::Monitor(key.clone(), Some(Monitor { timeout_ns, pbsize, notified_timeout_ns }));
        // The monitor stays only if it can be granted.
        self.state.apply(&record);
        if let Err(answer) = self.fit_heartbeat(out, &host) {
            self.state.apply(&Record::Monitor(key, before));
            return Err(answer);
        }
        out.records.insert(0, record);
        let granted_ns = self.timeout_ns(&host, &watcher).unwrap_or(timeout_ns);
        if let Some(monitor) = self.state.monitors.get(&key).cloned() {
            self.apply(out, Record::Monitor(key, Some(Monitor { notified_timeout_ns: granted_ns, ..monitor })));
        }
        let pbsize_now = self.state.heartbeats.get(&host).map_or(pbsize, |(_, size)| *size);
        if let Ok(identity) = Identity::host(&host) {
            let event = Upcall::MonitorRequest { app: app.clone(), from: watcher, pbsize: pbsize_now };
            out.upcalls.push((identity, event));
        }
        let lane = self.state.heartbeats.get(&host).map(|(lane, _)| *lane);
        Ok(Monitored { app, timeout_ns: granted_ns, pbsize: pbsize_now, lane })
    }

    pub(super) fn unmonitor(&mut self, out: &mut Out, peer: &Peer, app: &str) -> Done<App> {
        let (host, program) = Core::target(app)?;
        let key = (peer.identity.name.as_str().to_owned(), host.clone(), program);
        if !self.state.monitors.contains_key(&key) {
            return Err(Answer::error(404, Code::NoSuchMonitor, format!("{} does not monitor {app}", peer.identity)));
        }
        self.apply(out, Record::Monitor(key, None));
        self.fit_less(out, &host);
        Ok(App { app: app.to_owned() })
    }

    /// Plans smaller heartbeats after a watcher has gone. If that fails just now, they stay as they were.
    fn fit_less(&mut self, out: &mut Out, host: &str) {
        if let Err(answer) = self.fit_heartbeat(out, host) {
            tracing::warn!("heartbeats of {host} stay as they were: {}", answer.body);
        }
    }

    /// Opens, changes or ends the heartbeats of a host, to match its watchers' requests.
    fn fit_heartbeat(&mut self, out: &mut Out, host: &str) -> Result<(), Answer> {
        let of_host = |(key, _): &(&(String, String, String), &Monitor)| key.1 == host;
        let watchers: BTreeSet<String> =
            self.state.monitors.iter().filter(of_host).map(|((watcher, ..), _)| watcher.clone()).collect();
        let known = self.state.heartbeats.get(host).copied();
        if watchers.is_empty() {
            if let Some((lane, _)) = known {
                self.end_lane(out, lane, "nobody monitors it any more");
                self.apply(out, Record::Heartbeat(host.to_owned(), None));
            }
            return Ok(());
        }
        let monitors = || self.state.monitors.iter().filter(of_host).map(|(_, monitor)| monitor);
        let timeout_ns = monitors().map(|monitor| monitor.timeout_ns).min().unwrap_or(TIMEOUT_MAX_NS);
        let mut pbsize = monitors().map(|monitor| monitor.pbsize).max().unwrap_or(0);
        let owner =
            Identity { role: Role::Host, ..Identity::host(host).map_err(|e| Answer::error(422, Code::BadRequest, e))? };
        // Half of the timeout is for the heartbeat's way, to begin with.
        let mut period_min_ns = (timeout_ns / 2).max(self.options.heartbeat_min_ns);
        let mut refusal = None;
        for _ in 0..TRIES {
            let request = LaneRequest {
                name: format!("heartbeat.{host}"),
                sender: host.to_owned(),
                receivers: watchers.iter().cloned().collect(),
                size_max_bytes: heartbeat_bytes(watchers.len(), pbsize),
                period_min_ns,
                priority: 0,
                redundancy: 2,
                latency_max_ns: None,
            };
            let done = match known {
                Some((lane, _)) if self.state.lanes[&lane].request == request => Ok(lane),
                Some((lane, _)) => self.replan_lane(out, lane, request, None).map(|()| lane),
                None => self.open_lane(out, owner, Purpose::Heartbeat, request, None),
            };
            match done {
                Ok(lane) => {
                    let notified = known.map(|(_, size)| size);
                    self.apply(out, Record::Heartbeat(host.to_owned(), Some((lane, pbsize))));
                    if notified != Some(pbsize) {
                        out.upcalls.push((owner, Upcall::PbsizeChanged { pbsize }));
                    }
                    self.notify_timeouts(out, lane);
                    return Ok(());
                }
                Err(answer) => refusal = Some(answer),
            }
            // Less: first smaller messages that ride along, then longer periods.
            pbsize /= 2;
            period_min_ns = period_min_ns.saturating_mul(2);
        }
        Err(refusal.expect("it was tried"))
    }

    pub(super) fn cluster(&self) -> Cluster {
        let apps = self.state.apps.keys().map(|(host, app)| format!("{app}@{host}")).collect();
        let monitors = self.state.monitors.iter().map(|((watcher, host, app), monitor)| api::Monitor {
            from: watcher.clone(),
            app: format!("{app}@{host}"),
            asked_timeout_ns: monitor.timeout_ns,
            timeout_ns: monitor.notified_timeout_ns,
            pbsize: monitor.pbsize,
        });
        Cluster { apps, monitors: monitors.collect() }
    }

    /// The peer's own identity.
    pub(super) fn about(&self, peer: &Peer) -> Myself {
        Myself { identity: peer.identity, in_topology: self.known_host(peer.identity.name.as_str()).is_ok() }
    }
}

/// A heartbeat with acknowledgements for all watchers and one piggyback.
fn heartbeat_bytes(watchers: usize, pbsize: u64) -> u64 {
    let fixed = fide_wire::HEADER_LEN + fide_wire::ACK_LEN * watchers + fide_wire::SECTION_HEADER_LEN + 4;
    // Roster changes and views ride along too.
    let sections =
        fide_wire::ROSTER_LEN + fide_wire::MAX_NAME + 2 * fide_wire::SECTION_HEADER_LEN + fide_wire::VIEW_STEADY_LEN;
    (fixed as u64 + sections as u64 + pbsize).min(fide_wire::PAYLOAD_MAX as u64)
}
