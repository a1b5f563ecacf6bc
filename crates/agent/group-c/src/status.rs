// SPDX-License-Identifier: Apache-2.0
//! Who leads, who is a member, and what is waited for.

use std::{ffi::CString, ptr};

use fide_client::capi::{
    FidePermit,
    boundary::{Failure, fill, guard, room},
    permit_into,
};
use libc::{c_char, c_int};

use crate::{
    FIDE_GROUP_HOSTS_MAX, FideGroup, FideGroupCounters, FideGroupMember, FideGroupView, FideStanding,
    failure::refused,
    handle::{Inner, with},
};

/// A text for C, or NULL: for none, or for a failure, which `fide_last_error` tells.
fn text_of(find: impl FnOnce() -> Result<Option<*const c_char>, Failure>) -> *const c_char {
    let mut found = ptr::null();
    guard(|| {
        found = find()?.unwrap_or(ptr::null());
        Ok(0)
    });
    found
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// What this host is to its group, as far as it knows: a fide_standing, or a negative errno. The lease
/// is not checked: before any act that others may see, ask fide_group_may_answer or fide_group_may_act.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_standing(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok(FideStanding::from(with!(&group.member, member => member.standing())) as c_int)
    })
}

/// Whether this host leads, as far as it knows: 1, 0, or a negative errno. It says where to propose; whether
/// a question may be answered says fide_group_may_answer.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_leads(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok(with!(&group.member, member => member.leads()).into())
    })
}

/// Id of the host that leads, as far as this one knows: from 1; 0 if none is known; or a negative errno.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_leader(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok(with!(&group.member, member => member.leader()).unwrap_or(0).into())
    })
}

/// Id of this host, from 1, or a negative errno.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_host_id(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok(with!(&group.member, member => member.host()).into())
    })
}

/// Name of a host of the cluster; NULL if there is none with this id, or on an error. Valid until the handle
/// is closed.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_host_name(group: *const FideGroup, host_id: c_int) -> *const c_char {
    text_of(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        let name = usize::try_from(host_id).ok().and_then(|id| group.names.get(id.checked_sub(1)?));
        Ok(name.map(|name| name.as_ptr()))
    })
}

/// The present view: 1 with `*view`, 0 if there is none yet, or a negative errno.
///
/// # Safety
/// `group` is a live handle; `view` points to a fide_group_view whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_members(group: *const FideGroup, view: *mut FideGroupView) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (group, size) = unsafe { (FideGroup::enter(group)?, room(view, "fide_group_view")?) };
        let Some(present) = with!(&group.member, member => member.view()) else { return Ok(0) };
        let none = FideGroupMember { incarnation: 0, host_id: 0, reserved: 0 };
        let mut filled =
            FideGroupView { size, number: present.number(), members_len: 0, members: [none; FIDE_GROUP_HOSTS_MAX] };
        for (place, member) in filled.members.iter_mut().zip(present.members()) {
            *place = FideGroupMember { incarnation: member.incarnation, host_id: member.host, reserved: 0 };
            filled.members_len += 1;
        }
        // SAFETY: `size` bytes at `view` are the caller's, by the contract.
        unsafe { fill(view, &filled, size) };
        Ok(1)
    })
}

/// Whether a decision needs another member, one that is not known to have died: 1, 0, or a negative errno.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_has_others(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok(with!(&group.member, member => member.has_others()).into())
    })
}

/// Whether this host has a record that it was in the group before: 1, 0, or a negative errno.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_was_member(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok(with!(&group.member, member => member.was_member()).into())
    })
}

fn host_of(group: &Inner, host_id: c_int) -> Result<u16, Failure> {
    let known = u16::try_from(host_id).ok().filter(|id| (1..=group.names.len()).contains(&usize::from(*id)));
    known.ok_or_else(|| Failure(-libc::ENOENT, format!("host_id is {host_id}; hosts are 1 to {}", group.names.len())))
}

/// Takes a member out of the group, also this one. To be called at the leader. A member that is taken out
/// goes on calling fide_group_wait until its standing is FIDE_STANDING_REMOVED, and may end then.
/// Returns 0, or a negative errno: -EREMOTE if another member leads, -ENOENT if that host is no member,
/// -EBUSY if this leader is itself being taken out, -ESTALE without a lease or membership.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_remove(group: *mut FideGroup, host_id: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        let host = host_of(&group, host_id)?;
        with!(&mut group.member, member => member.remove(host)).map_err(refused)?;
        Ok(0)
    })
}

/// Has another member lead: the next view has the same members, that one first. To be called at the leader.
/// Returns 0, or a negative errno: -EREMOTE if another member leads, -ENOENT if that host is no member,
/// -EALREADY if it leads, -EHOSTDOWN if it is dead, -EAGAIN if it has not the state yet, -EBUSY while the members change,
/// -ESTALE without a lease or membership.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_hand_over(group: *mut FideGroup, host_id: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        let host = host_of(&group, host_id)?;
        with!(&mut group.member, member => member.hand_over(host)).map_err(refused)?;
        Ok(0)
    })
}

/// As fide_may_act: whether this program may act now, as what, and until when. 1 if it may: `*permit` has the
/// rest. 0 if it is fenced: `*permit` is not changed. Negative (so: do not act) on an error.
///
/// # Safety
/// `group` is a live handle; `permit` points to a fide_permit whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_may_act(group: *const FideGroup, permit: *mut FidePermit) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        // SAFETY: by the contract.
        unsafe { permit_into(permit, || Ok(with!(&group.member, member => member.client().may_act()))) }
    })
}

/// CLOCK_MONOTONIC here when the last death of a member became known, in nanoseconds; 0 for none; or a
/// negative errno.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_death_ns(group: *const FideGroup) -> i64 {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        let death_ns = with!(&group.member, member => member.death_ns());
        Ok(i64::try_from(death_ns).unwrap_or(i64::MAX))
    })
}

/// What a host that is no member yet waits for, for people; NULL if it is a member, or on an error. A wrong
/// key or port is named as the cause after two seconds. Valid until the next call of this function.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_waits_for(group: *mut FideGroup) -> *const c_char {
    text_of(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        let Some(what) = with!(&group.member, member => member.waits_for()) else { return Ok(None) };
        group.waits_for = c_text(&what);
        Ok(Some(group.waits_for.as_ptr()))
    })
}

/// What this member could not store, and why, for people; mostly a full disk. NULL if there is nothing, or on
/// an error. It tries again by itself. Valid until the next call of this function.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_unstored(group: *mut FideGroup) -> *const c_char {
    text_of(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        let Some(what) = with!(&group.member, member => member.unstored()).map(c_text) else { return Ok(None) };
        group.unstored = what;
        Ok(Some(group.unstored.as_ptr()))
    })
}

/// What this member has counted since it began. Returns 0 or a negative errno.
///
/// # Safety
/// `group` is a live handle; `counters` points to a fide_group_counters whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_counters_of(group: *const FideGroup, counters: *mut FideGroupCounters) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (group, size) = unsafe { (FideGroup::enter(group)?, room(counters, "fide_group_counters")?) };
        let counted = with!(&group.member, member => member.counters());
        let filled = FideGroupCounters {
            size,
            packets_refused: counted.packets_refused,
            packets_of_strangers: counted.packets_of_strangers,
            datagrams_refused: counted.datagrams_refused,
            trains_sent: counted.trains_sent,
            trains_lost: counted.trains_lost,
            broadcasts_sent: counted.broadcasts_sent,
            broadcasts_declined: counted.broadcasts_declined,
        };
        // SAFETY: `size` bytes at `counters` are the caller's, by the contract.
        unsafe { fill(counters, &filled, size) };
        Ok(0)
    })
}
