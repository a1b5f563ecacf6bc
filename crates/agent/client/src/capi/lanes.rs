// SPDX-License-Identifier: Apache-2.0
//! Lanes (X-Lane, Listing 1), as functions and upcalls.

use super::*;
use crate::{Event, LaneGrant, LaneId, LaneReason, LaneWanted};
use std::time::Duration;

/// The sub-lanes of services and of heartbeats, as the agent counts them.
const SERVICES: u8 = 1;
const HEARTBEATS: u8 = 0;

/// # Safety
/// As fide_lane_open requires of `request`.
unsafe fn request_of(request: *const FideLaneRequest, needs_name: bool) -> Result<LaneWanted, Failure> {
    // SAFETY: by the contract; zero is valid for fide_lane_request (null pointers and numbers).
    let given = unsafe { sized(request, "fide_lane_request") }?.ok_or_else(|| invalid("request is NULL"))?;
    // SAFETY: a NUL-terminated string or NULL, by the contract.
    let name = unsafe { text(given.name, "name") }?;
    if needs_name && name.is_none() {
        return Err(invalid("name is NULL; give the lane a name"));
    }
    if given.receivers.is_null() && given.receivers_len > 0 {
        return Err(invalid("receivers is NULL; pass an array of host names"));
    }
    if given.receivers_len > fide_types::MAX_HOSTS {
        let most = fide_types::MAX_HOSTS;
        return Err(invalid(&format!("receivers_len is {}; a cluster has at most {most} hosts", given.receivers_len)));
    }
    let receivers = (0..given.receivers_len).map(|at| {
        // SAFETY: `receivers_len` pointers are readable at `receivers`, by the contract.
        let receiver = unsafe { given.receivers.add(at).read() };
        // SAFETY: each of them is a NUL-terminated string or NULL, by the contract.
        unsafe { needed(receiver, "a receiver") }.map(str::to_owned)
    });
    let receivers = receivers.collect::<Result<Vec<_>, _>>()?;
    let priority = match given.sub_lane {
        lane if lane == FideSubLane::Services as u32 => SERVICES,
        lane if lane == FideSubLane::Heartbeats as u32 => HEARTBEATS,
        other => return Err(invalid(&format!("sub_lane is {other}; use a fide_sub_lane"))),
    };
    let redundancy = u8::try_from(given.redundancy).map_err(|_| {
        invalid(&format!("redundancy is {}; use 1, 2, or 0 for as many as there are", given.redundancy))
    })?;
    Ok(LaneWanted {
        receivers,
        messages_max: given.messages_max.max(1),
        priority,
        redundancy: (redundancy > 0).then_some(redundancy),
        latency_max: (given.latency_max_ns > 0).then(|| Duration::from_nanos(given.latency_max_ns)),
        ..LaneWanted::new(name.unwrap_or_default(), &[], given.message_max_bytes, Duration::from_nanos(given.period_ns))
    })
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().min(u64::MAX.into()) as u64
}

fn resources_of(grant: &LaneGrant, trees: u8) -> FideLaneResources {
    let bound = |duration: Duration| duration.as_nanos().min(i64::MAX as u128) as i64;
    FideLaneResources {
        period_ns: nanos(grant.period),
        min_latency_ns: grant.latency.map_or(FIDE_UNBOUNDED, |latency| bound(latency.min)),
        max_jitter_ns: grant.latency.map_or(FIDE_UNBOUNDED, |latency| bound(latency.jitter_max)),
        packet_max_bytes: grant.packet_max_bytes,
        message_max_bytes: grant.message_max_bytes,
        bounded: grant.latency.is_some().into(),
        trees,
    }
}

/// Asks for a lane from this host to others (X-Lane, Listing 1: requestBandwidth). `granted` may be NULL.
/// Returns a lane id (> 0) or a negative errno: -EOPNOTSUPP without a controller, -EBUSY if the network
/// cannot hold it (the message names the link), -EEXIST if another lane of this host has that name,
/// -EHOSTUNREACH for an unknown host. Returns when the switches are ready, usually within milliseconds; the
/// handle's other calls and its upcalls wait for that, at most 20 s.
///
/// # Safety
/// `fide` is a live handle; `request` points to a fide_lane_request whose `size` is set, whose `name` is a
/// NUL-terminated string and whose `receivers` are `receivers_len` of them; `granted` is writable or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_lane_open(
    fide: *mut Fide,
    request: *const FideLaneRequest,
    granted: *mut FideLaneResources,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, wanted) = unsafe { (handle(fide)?, request_of(request, true)?) };
        let lane = fide.client().open_lane(wanted)?;
        // SAFETY: writable or null by the contract.
        if let Some(granted) = unsafe { granted.as_mut() } {
            *granted = resources_of(&lane.grant, lane.trees);
        }
        id_of(lane.id.0)
    })
}

/// Asks for other terms for a lane, or for its bounds back (X-Lane, Listing 1: changeBandwidth). Its name
/// stays; the request's name is ignored. 0, or a negative errno like fide_lane_open: then the lane is
/// unchanged.
///
/// # Safety
/// As fide_lane_open; the name may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_lane_change(
    fide: *mut Fide,
    lane: c_int,
    request: *const FideLaneRequest,
    granted: *mut FideLaneResources,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, wanted) = unsafe { (handle(fide)?, request_of(request, false)?) };
        let lane = fide.client().change_lane(LaneId(id_from(lane, "lane")?), wanted)?;
        // SAFETY: writable or null by the contract.
        if let Some(granted) = unsafe { granted.as_mut() } {
            *granted = resources_of(&lane.grant, lane.trees);
        }
        Ok(0)
    })
}

/// Gives a lane back (X-Lane, Listing 1: releaseBandwidth). Messages that have not been sent are lost.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_lane_close(fide: *mut Fide, lane: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let fide = unsafe { handle(fide) }?;
        fide.client().close_lane(LaneId(id_from(lane, "lane")?))?;
        Ok(0)
    })
}

/// Leaves a message of `service` (1 to 255) for a lane's next packet. Returns 0; -EMSGSIZE above the
/// granted length, -EAGAIN while the outbox is full, -ENOTCONN while the agent is away, -ENOENT for a lane
/// that is over. A message beyond the lane's terms is dropped all the same, see on_bandwidth_changed.
///
/// # Safety
/// `fide` is a live handle; `len` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_lane_send(
    fide: *mut Fide,
    lane: c_int,
    service: u8,
    data: *const c_void,
    len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (fide, message) = unsafe { (handle(fide)?, bytes(data, len)?) };
        fide.client().lane_send(LaneId(id_from(lane, "lane")?), service, message)?;
        Ok(0)
    })
}

/// Receives the messages that other hosts send for `service` (1 to 255), as on_lane_message.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_listen(fide: *mut Fide, service: u8) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { handle(fide) }?.client().listen(service)?;
        Ok(0)
    })
}

/// Stops receiving messages for `service`.
///
/// # Safety
/// `fide` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_unlisten(fide: *mut Fide, service: u8) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        unsafe { handle(fide) }?.client().unlisten(service)?;
        Ok(0)
    })
}

/// Calls the function for an event of a lane, if there is one.
pub(super) fn upcall(upcalls: Upcalls, event: &Event) {
    let Upcalls { table, user } = upcalls;
    match event {
        Event::LaneMessage { host_id, incarnation, service, seq, rx_ns, plane, bytes } => {
            let Some(call) = table.on_lane_message else { return };
            let message = FideLaneMessage {
                host_id: *host_id,
                service: *service,
                plane: *plane,
                incarnation: *incarnation,
                seq: *seq,
                rx_ns: *rx_ns,
                data: bytes.as_ptr().cast(),
                len: bytes.len(),
            };
            // SAFETY: fide_set_upcalls was promised that the function may be called with `user`; the message
            // and its bytes live until it returns.
            unsafe { call(user, &message) }
        }
        Event::LaneChanged { lane, grant, reason, grace } => {
            let Some(call) = table.on_bandwidth_changed else { return };
            let reason = match reason {
                LaneReason::Te => FideLaneReason::Te,
                LaneReason::BwExceeded => FideLaneReason::BwExceeded,
                LaneReason::BwUnused => FideLaneReason::BwUnused,
                LaneReason::Other(_) => FideLaneReason::Other,
            };
            // SAFETY: as above, and the resources live until it returns.
            unsafe { call(user, lane.0 as c_int, &resources_of(grant, 0), reason, nanos(*grace)) }
        }
        Event::LaneTerminated { lane, name, why, grace } => {
            let Some(call) = table.on_bandwidth_terminated else { return };
            with_text(name, |name| {
                // SAFETY: as above, and both texts live until it returns.
                with_text(why, |why| unsafe { call(user, lane.0 as c_int, name, why, nanos(*grace)) });
            });
        }
        _ => {}
    }
}
