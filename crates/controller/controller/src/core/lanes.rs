// SPDX-License-Identifier: Apache-2.0
//! `requestBandwidth`, `changeBandwidth`, `releaseBandwidth` (X-Lane Listing 1).

use fide_controller_api::identity::{Identity, Role};
use fide_planner::{Changed, Contract, Refusal, Request as LaneRequest};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::state::{Lane, Phase, Purpose, Record, Standing, TreeState};
use super::{Core, LANES_MAX, LANES_PER_HOST, Later, Out, request_id};
use crate::handler::{Answer, Peer};

/// What a host asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    name: String,
    /// Only for those who like to say it: it must be the host that asks.
    sender: Option<String>,
    receivers: Vec<String>,
    size_max_bytes: u64,
    period_min_ns: u64,
    #[serde(default)]
    priority: u8,
    redundancy: Option<u8>,
    latency_max_ns: Option<u64>,
    /// By which its packets name it: receivers are told.
    label: Option<u8>,
}

pub(super) type Done = Result<Value, Answer>;

/// A body as what it should be.
pub(super) fn parse<T: DeserializeOwned>(body: &Value) -> Result<T, Answer> {
    T::deserialize(body).map_err(|error| Answer::error(422, "bad_request", error))
}

fn refused(refusal: &Refusal) -> Answer {
    let code = match refusal {
        Refusal::Request(_) => return Answer::error(422, "bad_request", refusal),
        Refusal::NoTrees(_) => "no_trees",
        Refusal::Link { .. } | Refusal::Full => "no_capacity",
        Refusal::Late { .. } => "too_late",
        Refusal::Harms { .. } => "harms_others",
        Refusal::Unknown(_) => "no_such_lane",
        Refusal::Taken(_) | Refusal::NoSuchTree { .. } | Refusal::Wrong(_) => "fault",
    };
    Answer::error(409, code, refusal)
}

/// Whether somebody's packets may be later than before.
pub(super) fn worse(before: &Contract, after: &Contract) -> bool {
    let later = |(a, b): (&fide_planner::Latency, &fide_planner::Latency)| b.latency_max_ns() > a.latency_max_ns();
    before.receivers.iter().zip(&after.receivers).any(later)
}

impl Core {
    fn asked(&self, peer: &Peer, body: &Value) -> Result<(LaneRequest, Option<u8>), Answer> {
        let asked: Asked = parse(body)?;
        let host = peer.identity.name.as_str();
        if let Some(sender) = asked.sender.filter(|sender| sender != host) {
            let message =
                format!("the certificate is that of {host}, which cannot ask for {sender:?}; leave `sender` out");
            return Err(Answer::error(403, "not_you", message));
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

    /// The lane of this number, if it is the peer's to change.
    pub(super) fn own_lane(&self, peer: &Peer, lane: &str) -> Result<u64, Answer> {
        let id = self.lane_for(peer, lane)?;
        let owner = self.state.lanes[&id].owner;
        if peer.identity.role == Role::Operator || owner == peer.identity {
            return Ok(id);
        }
        Err(Answer::error(
            403,
            "not_yours",
            format!("lane {id} is that of {owner}; {} cannot change it", peer.identity),
        ))
    }

    /// The lane of this number, if the peer sends or receives on it.
    pub(super) fn lane_for(&self, peer: &Peer, lane: &str) -> Result<u64, Answer> {
        let shown: String = lane.chars().take(32).collect();
        let id = lane.parse().ok().filter(|id| self.state.lanes.get(id).is_some_and(|lane| concerns(lane, peer)));
        id.ok_or_else(|| {
            Answer::error(
                404,
                "no_such_lane",
                format!("there is no lane {shown:?} of {}; ask for /v1/lanes", peer.identity),
            )
        })
    }

    pub(super) fn request_lane(&mut self, out: &mut Out, peer: &Peer, body: &Value) -> Done {
        let (request, label) = self.asked(peer, body)?;
        let owned = |lane: &&Lane| lane.owner == peer.identity && lane.purpose == Purpose::Service;
        if self.state.lanes.values().filter(owned).count() >= LANES_PER_HOST {
            let message = format!("{} holds {LANES_PER_HOST} lanes already; release one", peer.identity);
            return Err(Answer::error(409, "full", message));
        }
        let id = self.open_lane(out, peer.identity, Purpose::Service, request, label)?;
        Ok(self.lane_json(id))
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
            return Err(Answer::error(409, "no_capacity", format!("{LANES_MAX} lanes are held; release one")));
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
        self.tell_changed(out, id, changed);
        for tree in 0..trees {
            self.install(out, id, tree);
        }
        Ok(id)
    }

    /// Tells those whose contract is another one. What makes it worse begins after the grace period.
    pub(super) fn tell_changed(&mut self, out: &mut Out, because: u64, changed: Vec<Changed>) {
        let mut anyone_worse = false;
        for Changed { id, before, after } in changed {
            anyone_worse |= worse(&before, &after);
            self.apply(out, Record::Contract(id.0, after));
            self.tell_contract(out, id.0, "TE");
        }
        if anyone_worse {
            self.begin_ns.insert(because, self.now.boot_ns + self.options.grace_ns);
        }
    }

    /// `bandwidthChanged`, to who sends and to who receives.
    pub(super) fn tell_contract(&mut self, out: &mut Out, id: u64, reason: &str) {
        let Some(lane) = self.state.lanes.get(&id) else { return };
        let bounded = lane.standing == Standing::Held;
        let resources = if bounded { resources(&lane.contract) } else { json!("UNBOUNDED") };
        let receivers: Vec<_> = lane
            .request
            .receivers
            .iter()
            .zip(&lane.contract.receivers)
            .map(|(receiver, latency)| json!({"host": receiver, "latency": if bounded { json!(latency) } else { Value::Null }}))
            .collect();
        let body = json!({
            "kind": "bandwidth_changed", "lane": id, "reason": reason, "resources": resources, "receivers": receivers,
            "grace_ns": self.options.grace_ns,
        });
        let members = members(lane);
        let heartbeat = lane.purpose == Purpose::Heartbeat;
        out.upcalls.extend(members.into_iter().map(|host| (host, body.clone())));
        if heartbeat {
            self.tell_timeouts(out, id);
        }
    }

    pub(super) fn change_lane(&mut self, out: &mut Out, peer: &Peer, lane: &str, body: &Value) -> Done {
        let id = self.own_lane(peer, lane)?;
        let (request, label) = self.asked(peer, body)?;
        if self.state.lanes[&id].purpose == Purpose::Heartbeat {
            let message = "heartbeats follow from who monitors whom; change the monitors";
            return Err(Answer::error(409, "heartbeat", message));
        }
        self.replan_lane(out, id, request, label)?;
        Ok(self.lane_json(id))
    }

    /// Another request in place of a lane's. Its trees move as after a fault.
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
            return Err(Answer::error(409, "ended", format!("lane {id} was terminated; ask for a new one")));
        }
        // Kept trees stay where they are if only figures change.
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
                    // What has not been used yet needs no keeping.
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
        let body = json!({"kind": "lane_ended", "lane": id, "why": "this host receives it no longer"});
        out.upcalls.extend(gone.iter().filter_map(|host| Some((Identity::host(host).ok()?, body.clone()))));
        self.tell_changed(out, id, changed);
        self.tell_contract(out, id, "TE");
        for tree in moved {
            self.install(out, id, tree);
        }
        Ok(())
    }

    pub(super) fn release_lane(&mut self, out: &mut Out, peer: &Peer, lane: &str) -> Done {
        let id = self.own_lane(peer, lane)?;
        self.end_lane(out, id, "released");
        Ok(json!({"lane": id, "ended": true}))
    }

    /// Ends a lane: nobody sends on it any more; its groups leave the switches, and others get what it had.
    pub(super) fn end_lane(&mut self, out: &mut Out, id: u64, why: &str) {
        let Some(mut lane) = self.state.lanes.get(&id).cloned().filter(|lane| lane.standing != Standing::Ended) else {
            return;
        };
        lane.standing = Standing::Ended;
        let body = json!({"kind": "bandwidth_terminated", "lane": id, "why": why, "grace_ns": self.options.grace_ns});
        out.upcalls.extend(members(&lane).into_iter().map(|host| (host, body.clone())));
        self.apply(out, Record::Lane(id, Box::new(lane)));
        // What it still sends in the grace period is paid for until then.
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
            self.tell_changed(out, id, changed);
            self.begin_ns.remove(&id);
        }
    }

    pub(super) fn lanes_of(&self, peer: &Peer) -> Vec<Value> {
        let lanes = self.state.lanes.iter().filter(|(_, lane)| concerns(lane, peer));
        lanes.map(|(id, _)| self.lane_json(*id)).collect()
    }

    pub(super) fn lane_json(&self, id: u64) -> Value {
        let lane = &self.state.lanes[&id];
        let receivers: Vec<_> = lane
            .request
            .receivers
            .iter()
            .zip(&lane.contract.receivers)
            .map(|(host, latency)| {
                let bounded = lane.standing == Standing::Held;
                json!({"host": host, "latency": if bounded { json!(latency) } else { Value::Null }})
            })
            .collect();
        let trees: Vec<_> = (0..).zip(&lane.trees).map(|(tree, state)| self.tree_json(lane, tree, state)).collect();
        json!({
            "lane": id, "name": lane.request.name, "purpose": match lane.purpose {
                Purpose::Service => "service", Purpose::Heartbeat => "heartbeat" },
            "sender": lane.request.sender, "priority": lane.request.priority, "label": lane.label,
            "standing": match lane.standing {
                Standing::Held => "held", Standing::Demoted => "demoted", Standing::Ended => "ended" },
            "resources": if lane.standing == Standing::Held { resources(&lane.contract) } else { json!("UNBOUNDED") },
            "receivers": receivers, "trees": trees,
            // Before this the sender does not begin: others have the old contract until then.
            "begins_in_ns": self.begin_ns.get(&id).map_or(0, |at| at.saturating_sub(self.now.boot_ns)),
        })
    }
}

/// `struct resources` of Listing 1, units in the names.
fn resources(contract: &Contract) -> Value {
    let overall = contract.overall();
    json!({
        "size_max_bytes": contract.size_max_bytes, "period_min_ns": contract.period_min_ns,
        "latency_min_ns": overall.latency_min_ns, "jitter_max_ns": overall.jitter_max_ns,
    })
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
