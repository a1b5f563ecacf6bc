// SPDX-License-Identifier: Apache-2.0
//! `requestBandwidth`, `changeBandwidth`, `releaseBandwidth` (X-Lane Listing 1).

use fide_controller_api::event::{BandwidthChanged, BandwidthTerminated, Event as Upcall, Reason};
use fide_controller_api::identity::{Identity, Role};
use fide_controller_api::limits::LANES_PER_HOST;
use fide_controller_api::{Code, lane as api, paths};
use fide_planner::{Changed, Contract, Refusal, Request as LaneRequest};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::state::{Lane, Phase, Purpose, Record, Standing, TreeState};
use super::{Core, LANES_MAX, Later, Out, request_id};
use crate::handler::{Answer, Peer};

/// The answer's body, or a refusal.
pub(super) type Done<T> = Result<T, Answer>;

/// Parses a request's body.
pub(super) fn parse<T: DeserializeOwned>(body: &Value) -> Done<T> {
    T::deserialize(body).map_err(|error| Answer::error(422, Code::BadRequest, error))
}

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

/// Whether packets may be later than before at any receiver.
pub(super) fn worse(before: &Contract, after: &Contract) -> bool {
    let later = |(a, b): (&fide_planner::Latency, &fide_planner::Latency)| b.latency_max_ns() > a.latency_max_ns();
    before.receivers.iter().zip(&after.receivers).any(later)
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

    /// The lane with this number, if the peer may change it.
    pub(super) fn own_lane(&self, peer: &Peer, lane: &str) -> Result<u64, Answer> {
        let id = self.lane_for(peer, lane)?;
        let owner = self.state.lanes[&id].owner;
        if peer.identity.role == Role::Operator || owner == peer.identity {
            return Ok(id);
        }
        Err(Answer::error(
            403,
            Code::NotYours,
            format!("lane {id} is that of {owner}; {} cannot change it", peer.identity),
        ))
    }

    /// The lane with this number, if the peer sends or receives on it.
    pub(super) fn lane_for(&self, peer: &Peer, lane: &str) -> Result<u64, Answer> {
        let shown: String = lane.chars().take(32).collect();
        let id = lane.parse().ok().filter(|id| self.state.lanes.get(id).is_some_and(|lane| concerns(lane, peer)));
        id.ok_or_else(|| {
            Answer::error(
                404,
                Code::NoSuchLane,
                format!("there is no lane \"{}\" of {}; ask for {}", shown.escape_debug(), peer.identity, paths::LANES),
            )
        })
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

/// The resources that a lane is granted now.
fn resources(lane: &Lane) -> api::Resources {
    if lane.standing != Standing::Held {
        return api::Resources::Unbounded;
    }
    let Contract { size_max_bytes, period_min_ns, .. } = lane.contract;
    let fide_planner::Latency { latency_min_ns, jitter_max_ns } = lane.contract.overall();
    api::Resources::Bounded(api::Bounds { size_max_bytes, period_min_ns, latency_min_ns, jitter_max_ns })
}

fn receivers(lane: &Lane) -> Vec<api::Receiver> {
    let bounded = lane.standing == Standing::Held;
    let latency = |latency: &fide_planner::Latency| api::Latency {
        latency_min_ns: latency.latency_min_ns,
        jitter_max_ns: latency.jitter_max_ns,
    };
    let receivers = lane.request.receivers.iter().zip(&lane.contract.receivers);
    receivers.map(|(host, of)| api::Receiver { host: host.clone(), latency: bounded.then(|| latency(of)) }).collect()
}

fn concerns(lane: &Lane, peer: &Peer) -> bool {
    let host = peer.identity.name.as_str();
    peer.identity.role == Role::Operator
        || lane.request.sender == host
        || lane.request.receivers.iter().any(|receiver| receiver == host)
}

/// Sender and receivers.
pub(super) fn members(lane: &Lane) -> Vec<Identity> {
    let hosts = std::iter::once(&lane.request.sender).chain(&lane.request.receivers);
    hosts.filter_map(|host| Identity::host(host).ok()).collect()
}
