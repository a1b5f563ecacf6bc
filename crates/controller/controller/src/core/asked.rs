// SPDX-License-Identifier: Apache-2.0
//! What requests have in common: the answer, the body, and the lane that they name.

use fide_controller_api::identity::Role;
use fide_controller_api::{Code, paths};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Core;
use super::state::Lane;
use crate::handler::{Answer, Peer};

/// The answer's body, or a refusal.
pub(super) type Done<T> = Result<T, Answer>;

/// Parses a request's body.
pub(super) fn parse<T: DeserializeOwned>(body: &Value) -> Done<T> {
    T::deserialize(body).map_err(|error| Answer::error(422, Code::BadRequest, error))
}

pub(super) fn concerns(lane: &Lane, peer: &Peer) -> bool {
    let host = peer.identity.name.as_str();
    peer.identity.role == Role::Operator
        || lane.request.sender == host
        || lane.request.receivers.iter().any(|receiver| receiver == host)
}

impl Core {
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
}
