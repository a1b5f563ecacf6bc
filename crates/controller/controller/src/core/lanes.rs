// SPDX-License-Identifier: Apache-2.0
//! `requestBandwidth`, `changeBandwidth`, `releaseBandwidth` (X-Lane Listing 1).

use fide_controller_api::event::{BandwidthTerminated, Event as Upcall, Reason};
use fide_controller_api::identity::Identity;
use fide_controller_api::limits::LANES_PER_HOST;
use fide_controller_api::{Code, lane as api};
use fide_planner::{Refusal, Request as LaneRequest};
use serde_json::Value;

use super::asked::{Done, concerns, parse};
use super::notify::{members, receivers, resources};
use super::state::{Lane, Phase, Purpose, Record, Standing, TreeState};
use super::{Core, LANES_MAX, Later, Out, request_id};
use crate::handler::{Answer, Peer};

fn refused(refusal: &Refusal) -> Answer {
    let code = match refusal {
        Refusal::Request(_) => return Answer::error(422, Code::BadRequest, refusal),
        Refusal::NoTrees(_) => Code::NoTrees,
        Refusal::Link { .. } | Refusal::Full => Code::NoCapacity,
        Refusal::Late { .. } => Code::TooLate,
        Refusal::Harms { .. } => Code::HarmsOthers,
        Refusal::Unknown(_) => Code::NoSuchLane,
        Refusal::Taken(_) | Refusal::NoSuchTree { .. } | Refusal::Wrong(_) => Code::Fault,
    };
    Answer::error(409, code, refusal)
}

impl Core {
    fn asked(&self, peer: &Peer, body: &Value) -> Result<(LaneRequest, Option<u8>), Answer> {
        let asked: api::LaneRequest = parse(body)?;
        let host = peer.identity.name.as_str();
        if let Some(sender) = asked.sender.filter(|sender| sender != host) {
            let message = format!(
                "the certificate is that of {host}, which cannot ask for \"{}\"; leave `sender` out",
                sender.escape_debug()
            );
            return Err(Answer::error(403, Code::NotYou, message));
        }
        let label = asked.label;
        let request = LaneRequest {
            name: asked.name.chars().take(64).collect(),
            sender: host.to_owned(),
            receivers: asked.receivers,
            size_max_bytes: asked.size_max_bytes,
            period_min_ns: asked.period_min_ns,
            priority: asked.priority,
            redundancy: asked.redundancy.unwrap_or(2),
            latency_max_ns: asked.latency_max_ns,
        };
        Ok((request, label))
    }

    pub(super) fn request_lane(&mut self, out: &mut Out, peer: &Peer, body: &Value) -> Done<api::Lane> {
        let (request, label) = self.asked(peer, body)?;
        let owned = |lane: &&Lane| lane.owner == peer.identity && lane.purpose == Purpose::Service;
        if self.state.lanes.values().filter(owned).count() >= LANES_PER_HOST {
            let message = format!("{} holds {LANES_PER_HOST} lanes already; release one", peer.identity);
            return Err(Answer::error(409, Code::Full, message));
        }
        let id = self.open_lane(out, peer.identity, Purpose::Service, request, label)?;
        Ok(self.lane(id))
    }

    /// Plans a lane and orders its rules.
    pub(super) fn open_lane(
        &mut self,
        out: &mut Out,
        owner: Identity,
        purpose: Purpose,
        request: LaneRequest,
        label: Option<u8>,
    ) -> Result<u64, Answer> {
        let id = self.state.last + 1;
        let used: std::collections::BTreeSet<u64> = self.state.lanes.values().map(|lane| lane.slot).collect();
        let Some(slot) = (0..LANES_MAX).find(|slot| !used.contains(slot)) else {
            return Err(Answer::error(409, Code::NoCapacity, format!("{LANES_MAX} lanes are held; release one")));
        };
        let changed = self.planner.request_as(request_id(id), request.clone()).map_err(|refusal| refused(&refusal))?;
        let lane = Lane {
            owner,
            purpose,
            slot,
            contract: self.planner.allocation(request_id(id)).expect("it is held").contract.clone(),
            trees: (0..request.redundancy)
                .map(|tree| TreeState {
                    links: self.links_of(id, tree),
                    former: Vec::new(),
                    generation: 0,
                    phase: Phase::Installing,
                })
                .collect(),
            request,
            standing: Standing::Held,
            offences: 0,
            unused: 0,
            clean: 0,
            label,
        };
        let trees = lane.request.redundancy;
        self.apply(out, Record::Lane(id, Box::new(lane)));
        self.notify_changed(out, id, changed);
        for tree in 0..trees {
            self.install(out, id, tree);
        }
        Ok(id)
    }

    pub(super) fn change_lane(&mut self, out: &mut Out, peer: &Peer, lane: &str, body: &Value) -> Done<api::Lane> {
        let id = self.own_lane(peer, lane)?;
        let (request, label) = self.asked(peer, body)?;
        if self.state.lanes[&id].purpose == Purpose::Heartbeat {
            let message = "heartbeats follow from who monitors whom; change the monitors";
            return Err(Answer::error(409, Code::Heartbeat, message));
        }
        self.replan_lane(out, id, request, label)?;
        Ok(self.lane(id))
    }

    /// Replaces a lane's request by another. Its trees move as after a fault.
    pub(super) fn replan_lane(
        &mut self,
        out: &mut Out,
        id: u64,
        request: LaneRequest,
        label: Option<u8>,
    ) -> Result<(), Answer> {
        let mut lane = self.state.lanes[&id].clone();
        lane.label = label.or(lane.label);
        if lane.standing == Standing::Ended {
            return Err(Answer::error(409, Code::Ended, format!("lane {id} was terminated; ask for a new one")));
        }
        // Trees stay where they are if only figures change.
        let same_ends = lane.request.receivers == request.receivers && lane.request.redundancy == request.redundancy;
        let held = self.planner.allocation(request_id(id)).is_some();
        let changed = if held {
            self.planner.change(request_id(id), request.clone())
        } else {
            self.planner.request_as(request_id(id), request.clone())
        };
        let changed = changed.map_err(|refusal| refused(&refusal))?;
        lane.contract = self.planner.allocation(request_id(id)).expect("it is held").contract.clone();
        let gone: Vec<_> = lane.request.receivers.iter().filter(|r| !request.receivers.contains(r)).cloned().collect();
        lane.request = request;
        lane.standing = Standing::Held;
        lane.unused = 0;
        let mut moved = Vec::new();
        for tree in 0..lane.request.redundancy {
            let links = self.links_of(id, tree);
            match lane.trees.get_mut(usize::from(tree)) {
                Some(state) if same_ends && state.links == links => {}
                Some(state) => {
                    moved.push(tree);
                    let old = std::mem::replace(&mut state.links, links);
                    // A tree that was not used yet need not be kept.
                    if state.phase == Phase::Used || state.phase == Phase::Ready {
                        state.former = old;
                    }
                    state.generation += 1;
                    state.phase = Phase::Installing;
                }
                None => {
                    moved.push(tree);
                    let (former, generation) = (Vec::new(), 0);
                    lane.trees.push(TreeState { links, former, generation, phase: Phase::Installing });
                }
            }
        }
        let surplus: Vec<TreeState> = lane.trees.split_off(usize::from(lane.request.redundancy).min(lane.trees.len()));
        let slot = lane.slot;
        let first = u8::try_from(lane.trees.len()).expect("at most 3");
        self.apply(out, Record::Lane(id, Box::new(lane)));
        for (tree, state) in (first..).zip(surplus) {
            self.remove_rules(out, Core::group(slot, tree, state.generation), &state.links);
        }
        let event = Upcall::LaneEnded { lane: id, why: "this host receives it no longer".to_owned() };
        out.upcalls.extend(gone.iter().filter_map(|host| Some((Identity::host(host).ok()?, event.clone()))));
        self.notify_changed(out, id, changed);
        self.notify_contract(out, id, Reason::Te);
        for tree in moved {
            self.install(out, id, tree);
        }
        Ok(())
    }

    pub(super) fn release_lane(&mut self, out: &mut Out, peer: &Peer, lane: &str) -> Done<api::Released> {
        let id = self.own_lane(peer, lane)?;
        self.end_lane(out, id, "released");
        Ok(api::Released { lane: id, ended: true })
    }

    /// Terminates a lane: after the grace period its groups leave the switches, and others get its
    /// bandwidth.
    pub(super) fn end_lane(&mut self, out: &mut Out, id: u64, why: &str) {
        let Some(mut lane) = self.state.lanes.get(&id).cloned().filter(|lane| lane.standing != Standing::Ended) else {
            return;
        };
        lane.standing = Standing::Ended;
        let grace_ns = self.options.grace_ns;
        let event = Upcall::BandwidthTerminated(BandwidthTerminated { lane: id, why: why.to_owned(), grace_ns });
        out.upcalls.extend(members(&lane).into_iter().map(|host| (host, event.clone())));
        self.apply(out, Record::Lane(id, Box::new(lane)));
        // Its bandwidth stays allocated, because it still sends in the grace period.
        self.after(self.options.grace_ns, Later::Forget { lane: id });
    }

    pub(super) fn forget(&mut self, out: &mut Out, id: u64) {
        let Some(lane) = self.state.lanes.get(&id).cloned() else { return };
        for (tree, state) in (0..).zip(&lane.trees) {
            self.remove_rules(out, Core::group(lane.slot, tree, state.generation), &state.links);
            self.remove_rules(out, Core::group(lane.slot, tree, state.generation + 1), &state.former);
            self.waits.remove(&(id, tree));
            self.missing.remove(&(id, tree));
        }
        self.begin_ns.remove(&id);
        self.apply(out, Record::LaneGone(id));
        if let Ok(changed) = self.planner.release(request_id(id)) {
            self.notify_changed(out, id, changed);
            self.begin_ns.remove(&id);
        }
    }

    pub(super) fn lanes_of(&self, peer: &Peer) -> api::Lanes {
        let lanes = self.state.lanes.iter().filter(|(_, lane)| concerns(lane, peer));
        api::Lanes { lanes: lanes.map(|(id, _)| self.lane(*id)).collect() }
    }

    pub(super) fn lane_of(&self, peer: &Peer, lane: &str) -> Done<api::Lane> {
        self.lane_for(peer, lane).map(|id| self.lane(id))
    }

    /// A lane, as the API describes it.
    pub(super) fn lane(&self, id: u64) -> api::Lane {
        let lane = &self.state.lanes[&id];
        api::Lane {
            lane: id,
            name: lane.request.name.clone(),
            purpose: match lane.purpose {
                Purpose::Service => api::Purpose::Service,
                Purpose::Heartbeat => api::Purpose::Heartbeat,
            },
            sender: lane.request.sender.clone(),
            priority: lane.request.priority,
            label: lane.label,
            standing: match lane.standing {
                Standing::Held => api::Standing::Held,
                Standing::Demoted => api::Standing::Demoted,
                Standing::Ended => api::Standing::Ended,
            },
            resources: resources(lane),
            receivers: receivers(lane),
            trees: (0..).zip(&lane.trees).map(|(tree, state)| Core::tree(lane, tree, state)).collect(),
            begins_in_ns: self.begin_ns.get(&id).map_or(0, |at| at.saturating_sub(self.now.boot_ns)),
        }
    }
}
