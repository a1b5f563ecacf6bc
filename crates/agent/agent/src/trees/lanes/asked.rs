// SPDX-License-Identifier: Apache-2.0
//! Which lanes programs may ask for, and the controller's request that follows.

use fide_agent_api::{
    protocol::{ErrorCode, LaneAsked, Refusal, check_name},
    session::LANE_MESSAGE_MAX,
};
use fide_controller_api::{Code, client::Answered, lane::LaneRequest};
use fide_lane::Terms;
use fide_net::link::SUB_LANES;
use fide_types::HostId;
use fide_wire::{PAYLOAD_MAX, Scheme, message};

use super::super::LANE;
use crate::config::Config;

/// A request that this host can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) scheme: Scheme,
    pub(super) packet_max_bytes: usize,
    pub(super) redundancy: usize,
    /// Trees that must be installed before the program is answered.
    pub(super) redundancy_needed: usize,
    pub(super) type_of_service: u8,
}

/// The lane's period is shorter than the program's by one part in this many. So packets that waited while
/// this host did not run leave before the next message is due.
const EARLY: u64 = 8;

/// The period to ask the controller for, from the program's.
fn lane_period_ns(program_ns: u64) -> u64 {
    program_ns - program_ns / EARLY
}

/// The period that a program may send at, from the lane's.
pub(super) fn program_period_ns(lane_ns: u64) -> u64 {
    lane_ns + lane_ns.div_ceil(EARLY - 1)
}

impl Checked {
    pub(super) fn terms(&self, asked: &LaneAsked) -> Terms {
        let period_ns = lane_period_ns(asked.period_ns);
        Terms { packet_max_bytes: self.packet_max_bytes, period_ns, scheme: self.scheme }
    }

    /// The request to the controller.
    pub(super) fn body(&self, name: &str, asked: &LaneAsked, label: u8) -> LaneRequest {
        LaneRequest {
            name: name.to_owned(),
            sender: None,
            receivers: asked.receivers.clone(),
            size_max_bytes: self.packet_max_bytes as u64,
            period_min_ns: lane_period_ns(asked.period_ns),
            priority: asked.priority,
            redundancy: Some(u8::try_from(self.redundancy).expect("as many as planes")),
            latency_max_ns: asked.latency_max_ns,
            label: Some(label),
        }
    }
}

pub(super) fn check(
    config: &Config,
    me: HostId,
    asked: &LaneAsked,
    planes: usize,
    largest: usize,
) -> Result<Checked, Refusal> {
    let bad = |message: String, hint: &str| Refusal::new(ErrorCode::BadRequest, message, hint);
    let names: Vec<&str> = config.members.iter().map(|member| member.name.as_str()).collect();
    let own = config.member(me).name.as_str();
    for (at, receiver) in asked.receivers.iter().enumerate() {
        if !names.contains(&receiver.as_str()) {
            let message = format!("no host of this cluster is called {receiver}");
            return Err(Refusal::new(ErrorCode::UnknownHost, message, format!("there are {}", names.join(", "))));
        }
        if receiver == own {
            return Err(bad(format!("{own} is this host itself"), "a lane goes to other hosts"));
        }
        if asked.receivers[..at].contains(receiver) {
            return Err(bad(format!("{receiver} is named twice"), "name each receiver once"));
        }
    }
    if asked.receivers.is_empty() {
        return Err(bad("a lane without receivers".to_owned(), "name the hosts that receive it"));
    }
    let (messages, len) = (asked.messages_max as usize, asked.message_max_bytes as usize);
    let fits = message::best_scheme(messages, len).filter(|(_, bytes)| messages > 0 && *bytes <= largest);
    let Some((scheme, packet_max_bytes)) = fits else {
        let message = format!("{messages} messages of {len} bytes do not fit a packet of {largest} bytes");
        let hint =
            format!("one message of up to {LANE_MESSAGE_MAX} bytes fits {PAYLOAD_MAX}, or 40 of 29, or 55 of 19");
        return Err(bad(message, &hint));
    };
    let Some(type_of_service) = SUB_LANES.get(usize::from(asked.priority)).copied() else {
        let message = format!("there is no sub-lane {}", asked.priority);
        return Err(bad(message, "0 is served first, 1 after it"));
    };
    let redundancy = asked.redundancy.map_or(planes, usize::from);
    if !(1..=planes).contains(&redundancy) {
        return Err(bad(format!("{redundancy} trees, this host has {planes} planes"), "ask for 1 up to that many"));
    }
    Ok(Checked { scheme, packet_max_bytes, redundancy, redundancy_needed: redundancy, type_of_service })
}

pub(super) fn check_lane_name(name: &str) -> Result<(), Refusal> {
    check_name(name).map_err(|error| Refusal::new(ErrorCode::BadRequest, error.to_string(), ""))?;
    if name == LANE {
        let message = format!("{LANE} is the lane of this host's heartbeats");
        return Err(Refusal::new(ErrorCode::NameTaken, message, "choose another name"));
    }
    Ok(())
}

pub(super) fn nonsense(why: &serde_json::Error) -> Refusal {
    let message = format!("the controller's answer makes no sense: {why}");
    Refusal::new(ErrorCode::NotSupported, message, "are agent and controller of one version?")
}

/// The controller's refusal, translated for programs.
pub(super) fn refusal(answered: &Answered) -> Refusal {
    let code = match answered.code() {
        Some(Code::NoCapacity | Code::NoTrees | Code::TooLate | Code::HarmsOthers | Code::Full) => {
            ErrorCode::NoCapacity
        }
        Some(Code::BadRequest) => ErrorCode::BadRequest,
        Some(Code::NoSuchLane | Code::Ended) => ErrorCode::NotFound,
        Some(Code::Forbidden | Code::NotYou | Code::NotYours) => ErrorCode::NotPermitted,
        _ => ErrorCode::NotSupported,
    };
    Refusal::new(code, answered.message(), "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn program_gets_the_period_that_it_asked_for(asked in 1_000u64..60_000_000_000) {
            let lane = lane_period_ns(asked);
            prop_assert!(lane < asked);
            prop_assert!(program_period_ns(lane) >= asked && program_period_ns(lane) <= asked + 2);
        }
    }
}
