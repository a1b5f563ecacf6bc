// SPDX-License-Identifier: Apache-2.0
//! The state that the loop begins with: fresh, recalled by a witness, or taken over.

use std::{io, os::fd::OwnedFd};

use fide_agent_api::session::AgentSession;
use fide_agent_api::table::AliveTable;
use fide_detector::{self as detector, Detector, HostSet};
use fide_host_tuning::roots::Roots;
use fide_sys::clock::{mono_ns, raw_ns};
use fide_types::HostId;
use fide_wire::{PAYLOAD_MAX, PIGGYBACK_MAX};

use super::StartError;
use crate::command::{self, Channel, Memory};
use crate::config::Config;
use crate::control::Resumed;
use crate::frozen::Frozen;
use crate::handover::{HandoverError, Successor};
use crate::mtu::{PACKET_HEADERS, payload_max};
use crate::vote::Votes;
use crate::{incarnation, promise};

/// The state that the loop begins with.
pub(super) struct Begin {
    pub(super) detector: Detector,
    pub(super) table: AliveTable,
    pub(super) incarnation: u32,
    pub(super) timeout_ns: u64,
}

/// The state that was taken over from the agent before.
pub(super) struct Taken {
    pub(super) frozen: Frozen,
    pub(super) memories: Vec<(u8, Box<Memory>)>,
    pub(super) listener: OwnedFd,
    pub(super) resumed: Resumed,
}

/// A new incarnation. A witness that remembers its vote keeps its own incarnation, and stores the vote
/// again before it sends anything.
///
/// `longest_ns`: the longest that timeouts may become.
///
/// # Errors
/// [`StartError`].
pub(super) fn fresh(
    config: &Config,
    me: HostId,
    interfaces: &[String],
    timeout_ns: u64,
    stall_slack_ns: u64,
    longest_ns: u64,
    votes: Option<&mut Votes>,
) -> Result<Begin, StartError> {
    let mut votes = votes;
    let recalled = votes.as_mut().and_then(|votes| votes.recall());
    let incarnation = match &recalled {
        Some((vote, _)) => vote.incarnation,
        None => incarnation::next(&config.state_dir)?,
    };
    let settings = settings(config, me, interfaces, incarnation, timeout_ns, stall_slack_ns)?;
    let lease = settings.trust == detector::Trust::Lease;
    let mut detector = match &recalled {
        Some((vote, life)) => Detector::resume(settings, vote, *life, raw_ns())?,
        None => Detector::new(settings, raw_ns())?,
    };
    // Its next incarnation is above these generations.
    detector.keeps_generations_up_to(incarnation::generation(&config.state_dir));
    if lease {
        // This life's possible promise is stored before it is made; earlier promises are over before this
        // life acts against them.
        let boot = Roots::default().boot_id().map_err(|error| io::Error::other(error.to_string()))?;
        let most_us = u32::try_from(longest_ns / 1000).unwrap_or(u32::MAX);
        let now = raw_ns();
        detector.heed_former(now, promise::begin(&config.state_dir, &boot, now, most_us)?);
        detector.set_promise_max(most_us);
    }
    if let Some(votes) = votes {
        votes.store(&detector.vote())?;
        match recalled {
            Some((_, life)) => tracing::info!("this witness goes on as incarnation {incarnation}, its life {life}"),
            None => tracing::warn!(
                "this witness remembers no vote: its first start, or its state_dir was lost; the others have to let it in"
            ),
        }
    }
    let members = u16::try_from(config.members.len()).expect("at most 64");
    let table = AliveTable::create(me, members, incarnation, config.member(me).name.as_str(), mono_ns())?;
    Ok(Begin { detector, table, incarnation, timeout_ns })
}

/// Takes over from the agent before, which is frozen from here on.
///
/// # Errors
/// [`StartError`].
pub(super) fn taken_over(successor: &Successor, name: &str) -> Result<(Begin, Taken), StartError> {
    let (state, fds) = successor.switch()?;
    if state.host != name {
        return Err(HandoverError::Nonsense(format!("it is the agent of {}, this is {name}", state.host)).into());
    }
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(|| HandoverError::Nonsense("descriptors are missing".to_owned()));
    let listener = next()?;
    let table = AliveTable::take_over(next()?)?;
    let mut memories = Vec::new();
    let mut sessions = Vec::new();
    for session in state.sessions {
        let (region, events) = (next()?, next()?);
        let channel = if session.ring { Channel::Ring } else { Channel::Inbox(events.try_clone()?) };
        let doorbell = command::doorbell()?;
        let region_here = AgentSession::take_over(region.try_clone()?)?;
        let memory = Memory { region: region_here, channel, doorbell: doorbell.try_clone()? };
        memories.push((session.client, Box::new(memory)));
        sessions.push((session, region, events, doorbell));
    }
    let mut processes = Vec::new();
    for process in state.processes {
        processes.push((process, next()?));
    }
    let detector = state.frozen.detector().map_err(|error| HandoverError::Nonsense(error.to_string()))?;
    let begin = Begin { detector, table, incarnation: state.incarnation, timeout_ns: state.timeout_ns };
    let resumed = Resumed { sessions, processes, journal: state.journal, names: state.names };
    Ok((begin, Taken { frozen: state.frozen, memories, listener, resumed }))
}

/// The detector's settings, if packets of this cluster fit these interfaces.
pub(super) fn settings(
    config: &Config,
    me: HostId,
    interfaces: &[String],
    incarnation: u32,
    timeout_ns: u64,
    stall_slack_ns: u64,
) -> Result<detector::Config, StartError> {
    let mut settings = detector_config(config, me, incarnation, timeout_ns, stall_slack_ns);
    settings.payload_max = config.payload_max(payload_max(interfaces)?);
    if settings.payload_max < settings.payload_min() {
        return Err(StartError::Mtu {
            names: interfaces.join(", "),
            mtu_bytes: settings.payload_max + PACKET_HEADERS,
            need_bytes: settings.payload_min() + PACKET_HEADERS,
        });
    }
    Ok(settings)
}

fn detector_config(
    config: &Config,
    me: HostId,
    incarnation: u32,
    timeout_ns: u64,
    stall_slack_ns: u64,
) -> detector::Config {
    detector::Config {
        me,
        incarnation,
        members: (1u16..)
            .zip(&config.members)
            .map(|(id, member)| detector::Member {
                id,
                name: member.name,
                role: member.role,
                monitors: member.monitors.iter().copied().collect::<HostSet>(),
            })
            .collect(),
        planes: u8::try_from(config.planes.len()).expect("at most 2"),
        heartbeat_ns: config.heartbeat_ns,
        trust: config.trust,
        policy: config.policy,
        timeout_ns,
        stall_slack_ns,
        drift_ppm: config.drift_ppm,
        piggyback_max: PIGGYBACK_MAX,
        payload_max: PAYLOAD_MAX,
    }
}
