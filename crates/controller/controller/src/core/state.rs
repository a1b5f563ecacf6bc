// SPDX-License-Identifier: Apache-2.0
//! The stored state.

use std::collections::BTreeMap;

use fide_controller_api::identity::Identity;
use fide_planner::{Contract, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of everything here.
const FORMAT: u8 = 2;

/// A tree's progress from planned to used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Its rules are on the way to the switches.
    Installing,
    /// In every switch; the sender is notified.
    Ready,
    /// The sender uses it.
    Used,
    /// Broken, and there is no other.
    Lost,
}

/// One tree of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TreeState {
    /// Its links, as (from, port, to); `former`: the previous links until they are removed from the
    /// switches.
    pub(super) links: Vec<(String, String, String)>,
    pub(super) former: Vec<(String, String, String)>,
    /// Even and odd generations use one group each.
    pub(super) generation: u32,
    pub(super) phase: Phase,
}

/// Which part of a lane's contract is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Standing {
    Held,
    /// It sent more than its contract allows: without bounds, at the lowest priority (X-Lane §3.3).
    Demoted,
    /// Terminated; its groups leave the switches after the grace period.
    Ended,
}

/// The purpose of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// A lane of a program.
    Service,
    /// Heartbeats of a host, opened by the controller for the hosts that monitor it.
    Heartbeat,
}

/// A lane: a periodic protocol of X-Lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lane {
    pub(super) owner: Identity,
    pub(super) purpose: Purpose,
    /// The position of its groups in the range.
    pub(super) slot: u64,
    pub(super) request: Request,
    pub(super) contract: Contract,
    pub(super) trees: Vec<TreeState>,
    pub(super) standing: Standing,
    pub(super) offences: u32,
    pub(super) unused: u32,
    /// Reports since the last offence.
    pub(super) clean: u32,
    /// The sender's label for the lane, which its packets carry.
    pub(super) label: Option<u8>,
}

/// A monitor: one host watches a program of another (FiDe Listing 1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Monitor {
    /// The requested timeout.
    pub(super) timeout_ns: u64,
    pub(super) pbsize: u64,
    /// The timeout that the watcher was last notified of.
    pub(super) notified_timeout_ns: u64,
}

/// The whole state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// The last lane's number.
    pub(super) last: u64,
    pub(super) lanes: BTreeMap<u64, Lane>,
    /// (host, program)
    pub(super) apps: BTreeMap<(String, String), ()>,
    /// (watching host, watched host, watched program)
    pub(super) monitors: BTreeMap<(String, String, String), Monitor>,
    /// For each host its heartbeats' lane, and the piggyback size that it was last notified of.
    pub(super) heartbeats: BTreeMap<String, (u64, u64)>,
    /// Cables that an operator has taken out of use.
    pub(super) drained: Vec<String>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Record {
    Lane(u64, Box<Lane>),
    LaneGone(u64),
    Contract(u64, Contract),
    Tree(u64, u8, TreeState),
    App(String, String, bool),
    Monitor((String, String, String), Option<Monitor>),
    Heartbeat(String, Option<(u64, u64)>),
    Drained(String, bool),
}

impl State {
    pub(super) fn apply(&mut self, record: &Record) {
        match record.clone() {
            Record::Lane(id, lane) => {
                self.last = self.last.max(id);
                self.lanes.insert(id, *lane);
            }
            Record::LaneGone(id) => {
                self.lanes.remove(&id);
            }
            Record::Contract(id, contract) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.contract = contract;
                }
            }
            Record::Tree(id, tree, state) => {
                if let Some(place) = self.lanes.get_mut(&id).and_then(|lane| lane.trees.get_mut(usize::from(tree))) {
                    *place = state;
                }
            }
            Record::App(host, app, there) => {
                if there {
                    self.apps.insert((host, app), ());
                } else {
                    self.apps.remove(&(host, app));
                }
            }
            Record::Monitor(key, Some(monitor)) => {
                self.monitors.insert(key, monitor);
            }
            Record::Monitor(key, None) => {
                self.monitors.remove(&key);
            }
            Record::Heartbeat(host, Some(lane)) => {
                self.heartbeats.insert(host, lane);
            }
            Record::Heartbeat(host, None) => {
                self.heartbeats.remove(&host);
            }
            Record::Drained(cable, drained) => {
                self.drained.retain(|other| *other != cable);
                if drained {
                    self.drained.push(cable);
                }
            }
        }
    }
}

pub(super) fn encode<T: Serialize>(what: &T) -> Vec<u8> {
    postcard::to_extend(what, vec![FORMAT]).expect("nothing here has no length")
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => postcard::from_bytes(rest).map_err(|error| error.to_string()),
        Some((found, _)) => Err(format!("it has format {found}, this program knows {FORMAT}")),
        None => Err("it is empty".to_owned()),
    }
}
