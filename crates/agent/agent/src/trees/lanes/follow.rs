// SPDX-License-Identifier: Apache-2.0
//! The controller's upcalls about lanes: other terms, trees, an end (X-Lane Listing 1).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use fide_agent_api::event::{EventRecord, kind, lane_reason};
use fide_controller_api::{
    Method,
    event::{BandwidthChanged, BandwidthTerminated, Event, Reason, RedundancyLost, TreeReady},
    lane::{self as api, Generation, Lane, Moved, Purpose, Resources, Standing, Tree},
    paths,
};
use fide_lane::LANES_MAX;
use fide_sys::clock::mono_ns;
use fide_wire::MAX_PLANES;
use zerocopy::IntoBytes;

use super::{
    super::{LANE, is_tree_group},
    Lanes, ORPHAN_LIMIT, byte, code,
    held::Later,
};
use crate::command::Command;

impl Lanes {
    /// Learns which lanes of this host the controller has.
    pub(super) fn learn(&mut self) {
        let answered = match self.talk.caller.call(Method::Get, paths::LANES, None, None, Duration::ZERO) {
            Ok(answered) if answered.is_ok() => answered,
            // A later input says again that the lanes may have changed.
            _ => return,
        };
        let Ok(known) = answered.read::<api::Lanes>().inspect_err(|why| {
            tracing::warn!("what the controller says of this host's lanes makes no sense: {why}");
        }) else {
            return;
        };
        self.learnt = true;
        let me = self.talk.config.member(self.talk.me).name.as_str().to_owned();
        let own = |lane: &&Lane| {
            lane.sender == me
                && lane.purpose == Purpose::Service
                && lane.name != LANE
                && lane.standing != Standing::Ended
        };
        let lanes: BTreeMap<u64, &Lane> = known.lanes.iter().filter(own).map(|lane| (lane.lane, lane)).collect();
        for handle in 0..LANES_MAX {
            let Some(number) = self.held[handle].as_ref().filter(|held| !held.ending).map(|held| held.lane) else {
                continue;
            };
            match lanes.get(&number) {
                Some(lane) => {
                    let reason = self.held[handle].as_ref().map_or(0, |held| held.reason_for(&lane.resources));
                    if reason != 0 {
                        self.changed(handle, &lane.resources, reason, 0);
                    }
                    self.follow(handle, lane);
                }
                // A controller that has been replaced without noticing does not know the lanes opened
                // since.
                None if answered.stale => {}
                None => self.terminated(handle, "the controller does not know it any more", 0),
            }
        }
        let held: Vec<u64> = self.held.iter().flatten().map(|held| held.lane).collect();
        self.orphans = lanes
            .iter()
            .filter(|(number, _)| !held.contains(number))
            .map(|(number, lane)| (*number, lane.name.clone()))
            .collect();
        self.orphans_until = (!self.orphans.is_empty()).then(|| Instant::now() + ORPHAN_LIMIT);
    }

    pub(super) fn news(&mut self, event: &Event) {
        let number = match event {
            Event::Tree(TreeReady { lane, .. })
            | Event::BandwidthChanged(BandwidthChanged { lane, .. })
            | Event::BandwidthTerminated(BandwidthTerminated { lane, .. })
            | Event::RedundancyLost(RedundancyLost { lane, .. }) => *lane,
            _ => return,
        };
        let Some(handle) = self.find(|held| held.lane == number && !held.ending) else { return };
        match event {
            Event::Tree(ready) => self.tree(handle, &ready.tree),
            Event::BandwidthChanged(changed) => {
                let reason = match changed.reason {
                    Reason::BwExceeded => lane_reason::BW_EXCEEDED,
                    Reason::BwUnused => lane_reason::BW_UNUSED,
                    Reason::Te | Reason::Unknown => lane_reason::TE,
                };
                self.changed(handle, &changed.resources, reason, changed.grace_ns);
            }
            Event::BandwidthTerminated(ended) => self.terminated(handle, &ended.why, ended.grace_ns),
            Event::RedundancyLost(RedundancyLost { name, tree, why, .. }) => {
                tracing::warn!("tree {tree} of lane {name} is lost ({why}), and there is no other");
            }
            _ => {}
        }
    }

    /// `bandwidthChanged`: programs are notified at once. A bound that shrinks applies after the grace
    /// period, best effort now.
    fn changed(&mut self, handle: usize, resources: &Resources, reason: u8, grace_ns: u64) {
        let Some(held) = self.held[handle].as_mut() else { return };
        let before = (held.terms(), held.bounded);
        held.granted(resources);
        let record =
            EventRecord { kind: kind::LANE_CHANGED, code: code(handle), rx_ns: mono_ns(), ..EventRecord::default() };
        let (clients, data) = (held.clients, held.event(reason, grace_ns));
        if before.1 != held.bounded {
            held.later = Some((Instant::now(), Later::Terms));
        } else if before.0 != held.terms() {
            held.later = Some((Instant::now() + Duration::from_nanos(grace_ns), Later::Terms));
        }
        self.tell(clients, record, data.as_bytes());
        self.tick_lane(handle);
    }

    /// `bandwidthTerminated`: programs are notified at once; the lane ends after the grace period.
    pub(super) fn terminated(&mut self, handle: usize, why: &str, grace_ns: u64) {
        let Some(held) = self.held[handle].as_mut() else { return };
        tracing::warn!("lane {} ({}) is terminated: {why}", held.lane, held.name);
        held.ending = true;
        held.later = Some((Instant::now() + Duration::from_nanos(grace_ns), Later::Close));
        let record = EventRecord {
            kind: kind::LANE_TERMINATED,
            code: code(handle),
            at_ns: grace_ns,
            rx_ns: mono_ns(),
            ..EventRecord::default()
        };
        let clients = held.clients;
        self.tell(clients, record, why.as_bytes());
        self.tick_lane(handle);
    }

    /// Follows the trees of a lane as the controller describes it.
    pub(super) fn follow(&mut self, handle: usize, described: &Lane) {
        for tree in described.trees.iter().filter(|tree| tree.is_installed()) {
            self.tree(handle, tree);
        }
        self.answer_if_ready(handle);
    }

    /// A tree is installed in all switches: sends to it from now on.
    fn tree(&mut self, handle: usize, installed: &Tree) {
        let Some(held) = self.held[handle].as_mut() else { return };
        let (tree, generation, group) = (usize::from(installed.tree), installed.generation, installed.group);
        if tree >= MAX_PLANES || !is_tree_group(group) {
            tracing::warn!("the controller announced an invalid tree: {installed:?}");
            return;
        }
        if held.trees[tree].is_some_and(|known| known >= generation) {
            return;
        }
        let port = installed.port.as_deref().unwrap_or("");
        let Some(interface) = self.talk.interfaces.iter().position(|name| name == port) else {
            tracing::warn!("lane {}: its tree leaves by {port}, which is no plane of this host", held.name);
            return;
        };
        let (lane, type_of_service) = (held.lane, held.type_of_service());
        let aimed = self.templates[interface].another().and_then(|mut sender| {
            sender.set_type_of_service(type_of_service)?;
            sender.aim(group);
            Ok(sender)
        });
        let sender = match aimed {
            Ok(sender) => Box::new(sender),
            Err(error) => {
                tracing::warn!("lane {lane} cannot be sent by {port}: {error}");
                return;
            }
        };
        if self.call(Command::AimLane { handle: byte(handle), tree: byte(tree), sender }).is_err() {
            return;
        }
        if let Some(held) = self.held[handle].as_mut() {
            held.trees[tree] = Some(generation);
        }
        let body = Moved { tree: installed.tree, generation };
        if let Err(refusal) = self.request::<Generation>(Method::Post, &paths::moved(lane), &body) {
            tracing::warn!("the controller does not hear that lane {lane} has moved: {refusal}");
        }
        self.answer_if_ready(handle);
    }
}
