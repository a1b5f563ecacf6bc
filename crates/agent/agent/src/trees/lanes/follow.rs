// SPDX-License-Identifier: Apache-2.0
//! What the controller tells of lanes: other terms, trees, an end (X-Lane Listing 1, upcalls).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use fide_agent_api::event::{EventRecord, kind, lane_reason};
use fide_controller_api::Method;
use fide_lane::LANES_MAX;
use fide_sys::clock::mono_ns;
use fide_wire::MAX_PLANES;
use serde_json::{Value, json};
use zerocopy::IntoBytes;

use super::{
    super::{LANE, group},
    Lanes, ORPHAN_LIMIT, byte, code,
    held::Later,
};
use crate::command::Command;

impl Lanes {
    /// Learns what the controller has of this host.
    pub(super) fn learn(&mut self) {
        let (told, stale) = match self.talk.caller.call(Method::Get, "/v1/lanes", None, None, Duration::ZERO) {
            Ok(answered) if answered.status == 200 => (answered.body, answered.stale),
            // It will be said again that it may have changed.
            _ => return,
        };
        self.learnt = true;
        let me = self.talk.config.member(self.talk.me).name.as_str().to_owned();
        let own = |lane: &&Value| {
            lane["sender"] == me.as_str()
                && lane["purpose"] == "service"
                && lane["name"] != LANE
                && lane["standing"] != "ended"
        };
        let lanes: BTreeMap<u64, &Value> = told["lanes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(own)
            .filter_map(|lane| Some((lane["lane"].as_u64()?, lane)))
            .collect();
        for handle in 0..LANES_MAX {
            let Some(number) = self.held[handle].as_ref().filter(|held| !held.ending).map(|held| held.lane) else {
                continue;
            };
            match lanes.get(&number) {
                Some(lane) => {
                    let reason = self.held[handle].as_ref().map_or(0, |held| held.reason_for(lane));
                    if reason != 0 {
                        self.changed(handle, &lane["resources"], reason, 0);
                    }
                    self.follow(handle, lane);
                }
                // A controller that others have followed does not know what was opened since.
                None if stale => {}
                None => self.terminated(handle, "the controller does not know it any more", 0),
            }
        }
        let held: Vec<u64> = self.held.iter().flatten().map(|held| held.lane).collect();
        self.orphans = lanes
            .iter()
            .filter(|(number, _)| !held.contains(number))
            .map(|(number, lane)| (*number, lane["name"].as_str().unwrap_or("").to_owned()))
            .collect();
        self.orphans_until = (!self.orphans.is_empty()).then(|| Instant::now() + ORPHAN_LIMIT);
    }

    pub(super) fn news(&mut self, body: &Value) {
        let number = body["lane"].as_u64();
        let Some(handle) = self.find(|held| Some(held.lane) == number && !held.ending) else { return };
        let grace_ns = body["grace_ns"].as_u64().unwrap_or(0);
        match body["kind"].as_str().unwrap_or("") {
            "tree" => self.tree(handle, body),
            "bandwidth_changed" => {
                let reason = match body["reason"].as_str() {
                    Some("BW_EXCEEDED") => lane_reason::BW_EXCEEDED,
                    Some("BW_UNUSED") => lane_reason::BW_UNUSED,
                    _ => lane_reason::TE,
                };
                self.changed(handle, &body["resources"], reason, grace_ns);
            }
            "bandwidth_terminated" => {
                self.terminated(handle, body["why"].as_str().unwrap_or("the controller does not say why"), grace_ns);
            }
            "redundancy_lost" => {
                let name = self.held[handle].as_ref().map_or("", |held| &held.name);
                tracing::warn!("tree {} of lane {name} is lost ({}), and there is no other", body["tree"], body["why"]);
            }
            _ => {}
        }
    }

    /// `bandwidthChanged`: told at once; what is less begins when the grace period is over, best effort begins now.
    fn changed(&mut self, handle: usize, resources: &Value, reason: u8, grace_ns: u64) {
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

    /// `bandwidthTerminated`: told at once; over when the grace period is.
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

    /// A lane as the controller describes it.
    pub(super) fn follow(&mut self, handle: usize, told: &Value) {
        for tree in told["trees"].as_array().into_iter().flatten() {
            if tree["phase"] == "ready" || tree["phase"] == "used" {
                self.tree(handle, tree);
            }
        }
        self.answer_if_ready(handle);
    }

    /// A tree that is in all switches: sent to from now on.
    fn tree(&mut self, handle: usize, told: &Value) {
        let Some(held) = self.held[handle].as_mut() else { return };
        let tree = told["tree"].as_u64().and_then(|tree| usize::try_from(tree).ok()).filter(|tree| *tree < MAX_PLANES);
        let generation = told["generation"].as_u64().and_then(|generation| u32::try_from(generation).ok());
        let (Some(tree), Some(generation), Some(group)) = (tree, generation, group(&told["group"])) else {
            tracing::warn!("the controller told a tree that is none: {told}");
            return;
        };
        if held.trees[tree].is_some_and(|known| known >= generation) {
            return;
        }
        let port = told["port"].as_str().unwrap_or("");
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
        let body = json!({"tree": tree, "generation": generation});
        if let Err(refusal) = self.request(Method::Post, &format!("/v1/lanes/{lane}/moved"), &body) {
            tracing::warn!("the controller does not hear that lane {lane} has moved: {refusal}");
        }
        self.answer_if_ready(handle);
    }
}
