// SPDX-License-Identifier: Apache-2.0
//! The service's state: given to hosts that join, and taken over from others.

use fide_client::capi::boundary::{Failure, bytes, fill, guard, invalid, room};
use libc::{c_int, c_void};

use crate::{
    FideGroup, FideGroupState,
    failure::no_room,
    handle::{Inner, with},
};

impl Inner {
    fn entries_are_left(&self) -> Result<(), Failure> {
        if self.taken.is_whole() {
            return Ok(());
        }
        let why = "entries are left that were not taken; call fide_group_poll_decision until it returns 0, then give the state";
        Err(Failure(-libc::EBUSY, why.into()))
    }
}

/// Whether a host that joins wants this service's state: 1 or 0. To be asked once
/// fide_group_poll_decision has returned 0 and everything is applied. Negative errno on an error.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_wants_state(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok((group.taken.is_whole() && with!(&group.member, member => member.wants_state())).into())
    })
}

/// Gives the service's state: after every entry that was taken, and nothing else. The bytes are copied.
/// Returns 0, or a negative errno: -EMSGSIZE beyond `payload_max_bytes`, -ENOSPC while there is no room (the
/// host asks again), -EBUSY while entries are left to be taken.
///
/// # Safety
/// `group` is a live handle; `len` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_give_state(group: *mut FideGroup, data: *const c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (mut group, state) = unsafe { (FideGroup::enter(group)?, bytes(data, len)?) };
        group.entries_are_left()?;
        with!(&mut group.member, member => member.give_state(state.to_vec())).map_err(no_room)?;
        Ok(0)
    })
}

/// Whether the service's state is to be stored, as a durable member's log is long, or its disk has no state to
/// begin with: 1 or 0. To be asked as fide_group_wants_state is. Negative errno on an error.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_wants_base(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok((group.taken.is_whole() && with!(&group.member, member => member.wants_base())).into())
    })
}

/// The service's state, with which a durable member's log begins from now on: after every entry that was taken, and
/// nothing else. The bytes are copied, and stored in one of the next calls of fide_group_wait. Returns 0, or
/// -EBUSY while entries are left to be taken, or another negative errno.
///
/// # Safety
/// `group` is a live handle; `len` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_store_base(group: *mut FideGroup, data: *const c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (mut group, state) = unsafe { (FideGroup::enter(group)?, bytes(data, len)?) };
        group.entries_are_left()?;
        with!(&mut group.member, member => member.store_base(state.to_vec()));
        Ok(0)
    })
}

/// A state that has to replace the service's own. From this call on it counts as the service's: the next
/// decisions are those after its position. To be called after each fide_group_wait, before the decisions are
/// taken. Returns 1 with `*state`, 0 if there is none, or a negative errno.
///
/// # Safety
/// `group` is a live handle; `state` points to a fide_group_state whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_poll_install(group: *mut FideGroup, state: *mut FideGroupState) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (mut group, size) = unsafe { (FideGroup::enter(group)?, room(state, "fide_group_state")?) };
        let install = with!(&mut group.member, member => member.poll_install());
        let Some((position, bytes)) = install else { return Ok(0) };
        group.taken.drop_rest();
        group.installed = bytes;
        let (data, len) = (group.installed.as_ptr().cast(), group.installed.len());
        // SAFETY: `size` bytes at `state` are the caller's, by the contract.
        unsafe { fill(state, &FideGroupState { size, position, data, len }, size) };
        Ok(1)
    })
}

/// The state of fide_group_poll_install, to look at: a service may fetch a longer state with what is in it,
/// in its own way, and say so by fide_group_installed_at. It is another one, or none, after each
/// fide_group_wait. Returns 1 with `*state`, 0 if there is none, or a negative errno.
///
/// # Safety
/// `group` is a live handle; `state` points to a fide_group_state whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_offered_state(group: *const FideGroup, state: *mut FideGroupState) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (group, size) = unsafe { (FideGroup::enter(group)?, room(state, "fide_group_state")?) };
        let offered = with!(&group.member, member => member.offered_state());
        let Some((position, bytes)) = offered else { return Ok(0) };
        let filled = FideGroupState { size, position, data: bytes.as_ptr().cast(), len: bytes.len() };
        // SAFETY: `size` bytes at `state` are the caller's, by the contract.
        unsafe { fill(state, &filled, size) };
        Ok(1)
    })
}

/// The service begins to replace its state by the one of fide_group_offered_state, and has none until that
/// is done: the group does not count on its former state any more.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_state_dropped(group: *mut FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        with!(&mut group.member, member => member.state_dropped());
        group.taken.drop_rest();
        Ok(0)
    })
}

/// The service cannot have the state of fide_group_offered_state, for example as the host that it names is
/// dead: another one is asked for. Does nothing if there is no offer. Returns 0, or a negative errno.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_decline_offer(group: *mut FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        with!(&mut group.member, member => member.decline_offer());
        Ok(0)
    })
}

/// The service has replaced its state by the one after the decisions up to `position`, which is at least that
/// of fide_group_offered_state. Returns 0, or -EINVAL if there is no such offer, and nothing has changed.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_installed_at(group: *mut FideGroup, position: u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        if !with!(&mut group.member, member => member.installed_at(position)) {
            return Err(invalid(&format!(
                "no state is offered at position {position} or before; look at fide_group_offered_state first"
            )));
        }
        group.taken.drop_rest();
        Ok(0)
    })
}
