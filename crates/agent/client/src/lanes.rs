// SPDX-License-Identifier: Apache-2.0
//! Lanes: messages with a latency contract to other hosts (X-Lane Listing 1).
//!
//! A program asks for a lane with [`Client::open_lane`] (`requestBandwidth`), may ask for other terms
//! ([`Client::change_lane`], `changeBandwidth`) and gives it back ([`Client::close_lane`],
//! `releaseBandwidth`). Changes that the controller makes by itself arrive as [`crate::Event::LaneChanged`]
//! (`bandwidthChanged`) and [`crate::Event::LaneTerminated`] (`bandwidthTerminated`), each with a grace
//! period in which the previous terms still hold.
//!
//! A lane carries one packet per period. Messages that are left for it within a period share that packet,
//! including messages of other programs of this host that opened the same lane. A message that does not fit
//! into the packet is beyond the contract: it is dropped, and the lane loses its bounds until its terms are
//! changed. If that happens again and again, the lane is terminated.

use crate::error::ended;
use crate::memory::now_ns;
use crate::{Client, Declined, Error, Event};
use fide_agent_api::event::{Event as AgentEvent, EventRecord, LaneTerms, lane_reason};
use fide_agent_api::protocol::{LaneOk, Op, check_name};
use fide_shm::spsc::PushError;
use rustix::fd::OwnedFd;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

mod terms;

pub use terms::{Lane, LaneGrant, LaneId, LaneLatency, LaneReason, LaneWanted};

/// Lanes of one client.
pub const LANES_MAX: usize = 16;
/// How long the controller and the switches may take.
pub(crate) const LANE_TIMEOUT: Duration = Duration::from_secs(20);

/// A lane as asked for and as granted.
#[derive(Debug)]
pub(crate) struct HeldLane {
    pub(crate) wanted: LaneWanted,
    /// The agent's handle; `None` while the agent does not know of the lane.
    pub(crate) handle: Option<u8>,
    granted: LaneOk,
    /// Terminated: usable until then, on CLOCK_MONOTONIC.
    ends_ns: Option<u64>,
}

/// The result of taking in a record.
pub(crate) enum Fed {
    Event(Event),
    /// The record is about a lane or a service that this client does not have.
    Nobody,
    NotMine,
}

/// A client's lanes and services.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) held: BTreeMap<u32, HeldLane>,
    pub(crate) services: Vec<u8>,
    next_id: u32,
    doorbell: Option<OwnedFd>,
    /// Requests for lanes that were not answered in time; the last [`LANES_MAX`] of them.
    pub(crate) given_up: Vec<u64>,
}

impl Lanes {
    /// The agent, or a new one, has opened a lane.
    fn opened(&mut self, id: u32, granted: LaneOk, mut fds: Vec<OwnedFd>) {
        // The agent gives a handle to another lane once the former lane's grace period is over.
        self.held.retain(|_, held| held.ends_ns.is_none() || held.handle != Some(granted.handle));
        if let Some(held) = self.held.get_mut(&id) {
            held.handle = Some(granted.handle);
            held.granted = granted;
        }
        if let Some(doorbell) = fds.pop() {
            self.doorbell = Some(doorbell);
        }
    }

    /// A new agent has opened the lane again. Its program is notified if the terms have changed.
    pub(crate) fn opened_again(&mut self, id: u32, granted: LaneOk, fds: Vec<OwnedFd>) -> Option<Event> {
        let before = self.held.get(&id).map(|held| grant(&held.granted));
        let now = grant(&granted);
        self.opened(id, granted, fds);
        (before? != now).then_some(Event::LaneChanged {
            lane: LaneId(id),
            grant: now,
            reason: LaneReason::Te,
            grace: Duration::ZERO,
        })
    }

    pub(crate) fn away(&mut self) {
        self.doorbell = None;
        self.held.retain(|_, held| held.ends_ns.is_none());
        for held in self.held.values_mut() {
            held.handle = None;
        }
    }

    /// Forgets terminated lanes whose grace period is over.
    fn forget_ended(&mut self, now: u64) {
        self.held.retain(|_, held| held.ends_ns.is_none_or(|ends| now < ends));
    }

    /// A lane that the present agent does not know of yet.
    pub(crate) fn next_away(&self) -> Option<(u32, Op)> {
        let (id, held) = self.held.iter().find(|(_, held)| held.handle.is_none())?;
        Some((*id, held.wanted.op()))
    }

    fn by_handle(&mut self, handle: i32) -> Option<(LaneId, &mut HeldLane)> {
        let is_it = |held: &HeldLane| held.ends_ns.is_none() && held.handle.is_some_and(|own| i32::from(own) == handle);
        let (id, held) = self.held.iter_mut().find(|(_, held)| is_it(held))?;
        Some((LaneId(*id), held))
    }

    /// Takes in a record if it is about lanes.
    pub(crate) fn feed(&mut self, record: &EventRecord, event: &AgentEvent<'_>) -> Fed {
        let event = match event {
            AgentEvent::LaneMessage { service, bytes } if self.services.contains(service) => Some(Event::LaneMessage {
                host_id: record.host,
                incarnation: record.incarnation,
                service: *service,
                seq: record.seq,
                rx_ns: record.rx_ns,
                plane: record.plane,
                bytes: (*bytes).into(),
            }),
            AgentEvent::LaneMessage { .. } => None,
            AgentEvent::LaneChanged(terms) => self.changed(record.code, terms),
            AgentEvent::LaneTerminated { why } => self.terminated(record, why),
            _ => return Fed::NotMine,
        };
        event.map_or(Fed::Nobody, Fed::Event)
    }

    fn changed(&mut self, handle: i32, terms: &LaneTerms) -> Option<Event> {
        let (lane, held) = self.by_handle(handle)?;
        held.granted.packet_max_bytes = terms.packet_max_bytes;
        held.granted.message_max_bytes = terms.message_max_bytes;
        held.granted.period_ns = terms.period_ns;
        held.granted.bounded = terms.bounded != 0;
        held.granted.latency_min_ns = terms.latency_min_ns;
        held.granted.jitter_max_ns = terms.jitter_max_ns;
        let reason = match terms.reason {
            lane_reason::TE => LaneReason::Te,
            lane_reason::BW_EXCEEDED => LaneReason::BwExceeded,
            lane_reason::BW_UNUSED => LaneReason::BwUnused,
            other => LaneReason::Other(other),
        };
        let grace = Duration::from_nanos(terms.grace_ns);
        Some(Event::LaneChanged { lane, grant: grant(&held.granted), reason, grace })
    }

    fn terminated(&mut self, record: &EventRecord, why: &[u8]) -> Option<Event> {
        let (lane, held) = self.by_handle(record.code)?;
        held.ends_ns = Some(record.rx_ns.saturating_add(record.at_ns));
        let name = Arc::from(held.wanted.name.as_str());
        let why = String::from_utf8_lossy(why).into();
        Some(Event::LaneTerminated { lane, name, why, grace: Duration::from_nanos(record.at_ns) })
    }
}

fn grant(granted: &LaneOk) -> LaneGrant {
    LaneGrant {
        packet_max_bytes: granted.packet_max_bytes,
        message_max_bytes: granted.message_max_bytes,
        period: Duration::from_nanos(granted.period_ns),
        latency: granted.bounded.then(|| LaneLatency {
            min: Duration::from_nanos(granted.latency_min_ns),
            jitter_max: Duration::from_nanos(granted.jitter_max_ns),
        }),
    }
}

impl Client {
    /// Asks for a lane from this host to others (X-Lane `requestBandwidth`). Returns when its trees are
    /// installed in the switches.
    ///
    /// # Errors
    /// [`Error::Refused`]: `not_supported` without a controller, `no_capacity` if the network cannot hold it
    /// (the message names the link), `name_taken` if another lane of this host has that name, `unknown_host`;
    /// [`Error::Name`].
    pub fn open_lane(&mut self, wanted: LaneWanted) -> Result<Lane, Error> {
        check_name(&wanted.name)?;
        self.lanes.forget_ended(now_ns());
        if self.lanes.held.len() >= LANES_MAX {
            return Err(Error::TooMany { what: "lanes", limit: LANES_MAX });
        }
        let asked = self.call_for("open_lane", wanted.op(), LANE_TIMEOUT);
        if matches!(asked, Err(Error::Timeout { .. })) {
            // If the lane is opened after all, it is given back.
            self.lanes.given_up.push(self.next_id);
            let surplus = self.lanes.given_up.len().saturating_sub(LANES_MAX);
            self.lanes.given_up.drain(..surplus);
        }
        let (granted, fds): (LaneOk, _) = asked?;
        self.lanes.next_id += 1;
        let id = self.lanes.next_id;
        self.lanes.held.insert(id, HeldLane { wanted, handle: None, granted: granted.clone(), ends_ns: None });
        Ok(self.opened(id, granted, fds))
    }

    /// Asks for other terms for a lane, or for its bounds back (X-Lane `changeBandwidth`). The name stays.
    ///
    /// # Errors
    /// As [`Client::open_lane`]; the lane is then as it was.
    pub fn change_lane(&mut self, lane: LaneId, wanted: LaneWanted) -> Result<Lane, Error> {
        self.await_attached()?;
        let held = self.lanes.held.get(&lane.0).ok_or(Error::Unregistered("that lane"))?;
        let handle = held.handle.ok_or_else(|| Error::Detached("the lane is being opened again".into()))?;
        let name = held.wanted.name.clone();
        let op = Op::ChangeLane { handle, asked: wanted.terms() };
        let (granted, fds): (LaneOk, _) = self.call_for("change_lane", op, LANE_TIMEOUT)?;
        if let Some(held) = self.lanes.held.get_mut(&lane.0) {
            held.wanted = LaneWanted { name, ..wanted };
        }
        Ok(self.opened(lane.0, granted, fds))
    }

    fn opened(&mut self, id: u32, granted: LaneOk, fds: Vec<OwnedFd>) -> Lane {
        let lane = Lane { id: LaneId(id), number: granted.lane, grant: grant(&granted), trees: granted.trees };
        // The agent may have gone since it answered: then this lane is opened again with the others.
        if self.is_attached() {
            self.lanes.opened(id, granted, fds);
        }
        lane
    }

    /// Gives a lane back (X-Lane `releaseBandwidth`). Messages that have not been sent are lost.
    ///
    /// # Errors
    /// [`Error::Unregistered`], or the connection's errors.
    pub fn close_lane(&mut self, lane: LaneId) -> Result<(), Error> {
        self.await_attached()?;
        self.await_reopened(lane)?;
        let held = self.lanes.held.remove(&lane.0).ok_or(Error::Unregistered("that lane"))?;
        match held.handle {
            Some(handle) => {
                ended(self.call_for("close_lane", Op::CloseLane { handle }, LANE_TIMEOUT).map(|(ok, _)| ok))
            }
            None => Ok(()),
        }
    }

    /// Leaves a message of `service` (1..=255) for a lane's next packet. One system call, to wake the agent.
    ///
    /// # Errors
    /// [`Declined`]. A message that was accepted may still be dropped if it is beyond the lane's terms.
    pub fn lane_send(&mut self, lane: LaneId, service: u8, message: &[u8]) -> Result<(), Declined> {
        let held = self.lanes.held.get(&lane.0).ok_or(Declined::NoLane)?;
        if held.ends_ns.is_some_and(|ends| now_ns() >= ends) {
            return Err(Declined::NoLane);
        }
        let (Some(handle), Some(doorbell)) = (held.handle, &self.lanes.doorbell) else {
            return Err(Declined::Detached);
        };
        let max = held.granted.message_max_bytes;
        if message.len() > max as usize {
            return Err(Declined::MessageTooLarge { len: message.len(), max });
        }
        if service == 0 {
            return Err(Declined::Service);
        }
        self.memory.session.push_lane(handle, service, message).map_err(|error| match error {
            PushError::Full => Declined::Full,
            PushError::TooLong { .. } => Declined::MessageTooLarge { len: message.len(), max },
            PushError::Broken(_) => Declined::Broken,
        })?;
        // A full counter (`EAGAIN`) has rung already.
        let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Receives the messages that other hosts send for `service` (1..=255), as
    /// [`crate::Event::LaneMessage`].
    ///
    /// # Errors
    /// [`Error::Refused`], or the connection's errors.
    pub fn listen(&mut self, service: u8) -> Result<(), Error> {
        let _: crate::protocol::Empty = self.call("listen", Op::Listen { service })?;
        if !self.lanes.services.contains(&service) {
            self.lanes.services.push(service);
        }
        Ok(())
    }

    /// Stops receiving messages for `service`.
    ///
    /// # Errors
    /// The connection's errors.
    pub fn unlisten(&mut self, service: u8) -> Result<(), Error> {
        self.lanes.services.retain(|other| *other != service);
        ended(self.call("unlisten", Op::Unlisten { service }))
    }
}
