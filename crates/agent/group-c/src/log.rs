// SPDX-License-Identifier: Apache-2.0
//! Waiting, proposals and decisions.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    time::Duration,
};

use fide_client::capi::boundary::{Failure, bytes, fill, guard, invalid, room};
use libc::{c_int, c_void};

use crate::{
    FideGroup, FideGroupDecision, FideGroupEntry, FideGroupIdentity, FideGroupRefusal,
    failure::{failed, refused},
    handle::{Inner, Took, with},
};

/// A descriptor that is readable when fide_group_wait has something to take; for select, poll, epoll or an
/// event library. It belongs to the handle. A program with a loop of its own calls fide_group_wait with a
/// timeout of 0 when it is readable, and at least every `resend_us` (3000 us by default).
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_fd(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok(with!(&group.member, member => member.as_fd().as_raw_fd()))
    })
}

/// Watches a descriptor of the program: fide_group_wait also ends when it is readable or at its end. Closing
/// the descriptor ends that. Returns 0 or a negative errno: -EBADF for no open descriptor, -EEXIST if it is
/// watched already, -EPERM for a plain file, which is always readable.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_watch(group: *mut FideGroup, fd: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        // SAFETY: this call changes no memory, and takes any number.
        if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(Failure(-libc::EBADF, format!("fd is {fd}, which is no open descriptor of this program")));
        }
        // SAFETY: it is open, as was just checked; the program owns it and does not close it during this call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        with!(&group.member, member => member.watch(fd)).map_err(|error| {
            let Failure(code, why) = failed(error);
            Failure(code, format!("descriptor {} cannot be watched: {why}", fd.as_raw_fd()))
        })?;
        Ok(0)
    })
}

/// Sends what has to be sent, then waits until something has come, at most `timeout_ms` (0: not at all,
/// negative: for ever). To be called again and again: everything happens in it. Then take a state with
/// fide_group_poll_install and decisions with fide_group_poll_decision until there is none, and give a state
/// if fide_group_wants_state says so. Returns 1 if a watched descriptor was readable, 0 if not (also after a
/// signal), or a negative errno: this process cannot go on. An agent that has ended, or a full disk, is no
/// error.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_wait(group: *mut FideGroup, timeout_ms: c_int) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let mut group = unsafe { FideGroup::enter(group) }?;
        group.installed = Vec::new();
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        with!(&mut group.member, member => {
            member.wait(timeout).map_err(failed)?;
            Ok(member.take_watched().into())
        })
    })
}

/// Proposes a value for one of the next positions. Under FIDE_GROUP_PROTOCOL_HSUC values that are proposed
/// between two calls of fide_group_wait travel together. A value is decided once fide_group_poll_decision
/// has it; if this member or the leader dies before, it may never be. Returns 0, or a negative errno, and
/// nothing has changed: -EREMOTE if another member leads (fide_group_leader), -EAGAIN until the next
/// decision, -EBUSY while the members change, -ESTALE without a lease or membership, -EMSGSIZE beyond
/// FIDE_GROUP_VALUE_MAX or FIDE_GROUP_HUC_VALUE_MAX.
///
/// # Safety
/// `group` is a live handle; `len` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_propose(group: *mut FideGroup, data: *const c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (mut group, value) = unsafe { (FideGroup::enter(group)?, bytes(data, len)?) };
        with!(&mut group.member, member => member.propose(value)).map_err(refused)?;
        Ok(0)
    })
}

/// Proposes a value of up to `payload_max_bytes`. It is sent ahead, and decided once all live members store
/// it. `identity` may be NULL. Returns as fide_group_propose does, and -ENOSPC or -EAGAIN while too many
/// payloads are under way.
///
/// # Safety
/// `group` is a live handle; `len` bytes at `data` are readable; `identity` is writable or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_propose_payload(
    group: *mut FideGroup,
    data: *const c_void,
    len: usize,
    identity: *mut FideGroupIdentity,
) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (mut group, payload) = unsafe { (FideGroup::enter(group)?, bytes(data, len)?) };
        let named = with!(&mut group.member, member => member.propose_payload(payload.to_vec())).map_err(refused)?;
        // SAFETY: writable or null by the contract.
        if let Some(identity) = unsafe { identity.as_mut() } {
            *identity = named.into();
        }
        Ok(0)
    })
}

/// The next payload of this member that another host does not take: it is not decided. Returns 1 with
/// `*refusal`, 0 if there is none, or a negative errno.
///
/// # Safety
/// `group` is a live handle; `refusal` points to a fide_group_refusal whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_poll_refused(group: *mut FideGroup, refusal: *mut FideGroupRefusal) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (mut group, size) = unsafe { (FideGroup::enter(group)?, room(refusal, "fide_group_refusal")?) };
        let polled = with!(&mut group.member, member => member.poll_refused());
        let Some((host_id, identity, reason)) = polled else { return Ok(0) };
        let filled = FideGroupRefusal { size, identity: identity.into(), reason: reason.into(), host_id };
        // SAFETY: `size` bytes at `refusal` are the caller's, by the contract.
        unsafe { fill(refusal, &filled, size) };
        Ok(1)
    })
}

impl Inner {
    fn poll_decision(&mut self, size: usize) -> Result<Option<FideGroupDecision>, Failure> {
        // Positions without an entry, where a new leader closed a gap, are passed over.
        while self.taken.is_whole() {
            let Self { member, taken, .. } = self;
            let Some(decision) = with!(member, member => member.poll_decision()) else { return Ok(None) };
            taken.begin(decision.instance, decision.value);
        }
        let mut polled = FideGroupDecision {
            size,
            position: self.taken.position(),
            data: ptr::null(),
            len: 0,
            entry: FideGroupEntry::View,
            view_number: 0,
            view_members: 0,
            identity: FideGroupIdentity::NONE,
        };
        match self.taken.next() {
            None => return Ok(None),
            Some(Took::Value(data, len)) => {
                (polled.entry, polled.data, polled.len) = (FideGroupEntry::Value, data.cast(), len);
            }
            Some(Took::Payload(identity)) => {
                // Nothing may follow a payload that is left out, so it stays the next one.
                let payload = with!(&self.member, member => member.payload(&identity)).ok_or_else(|| {
                    Failure(-libc::ENODATA, format!("{identity} was decided and is not here; start this process again"))
                })?;
                (polled.entry, polled.identity) = (FideGroupEntry::Payload, identity.into());
                (polled.data, polled.len) = (payload.as_ptr().cast(), payload.len());
            }
            Some(Took::View(view)) => {
                polled.view_number = view.number();
                polled.view_members = view.members().iter().fold(0, |all, member| all | 1 << (member.host - 1));
            }
        }
        self.taken.advance();
        Ok(Some(polled))
    }
}

/// The next decided entry, the same in the same order at all members. Returns 1 with `*decision`, 0 if there
/// is none now, or a negative errno.
///
/// # Safety
/// `group` is a live handle; `decision` points to a fide_group_decision whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_poll_decision(group: *mut FideGroup, decision: *mut FideGroupDecision) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let (mut group, size) = unsafe { (FideGroup::enter(group)?, room(decision, "fide_group_decision")?) };
        let Some(polled) = group.poll_decision(size)? else { return Ok(0) };
        // SAFETY: `size` bytes at `decision` are the caller's, by the contract.
        unsafe { fill(decision, &polled, size) };
        Ok(1)
    })
}

/// All entries up to this position were taken here; 0 before the first. Negative errno on an error.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_position(group: *const FideGroup) -> i64 {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        let position = with!(&group.member, member => member.position());
        // The member counts a decision as delivered once its first entry can be taken.
        let position = if group.taken.is_whole() { position } else { group.taken.position() - 1 };
        i64::try_from(position).map_err(|_| Failure(-libc::EOVERFLOW, format!("position {position}")))
    })
}

/// Whether a question about the state may be answered from here now: 1 if this member leads, its lease holds,
/// and everything ever decided was taken; 0 if not; negative (so: do not answer) on an error.
///
/// # Safety
/// `group` is a live handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_may_answer(group: *const FideGroup) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        Ok((group.taken.is_whole() && with!(&group.member, member => member.may_answer())).into())
    })
}

/// The position up to which the log may be decided anywhere. A question that is asked now may be answered at
/// any member, once fide_group_position is that far, all of it is applied, and if the standing is
/// FIDE_STANDING_MEMBER then. It may never get that far: after some time, ask the leader. Returns 1
/// with `*position`, 0 if this member may not answer, or a negative errno.
///
/// # Safety
/// `group` is a live handle; `position` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_group_may_be_decided(group: *const FideGroup, position: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let group = unsafe { FideGroup::enter(group) }?;
        // SAFETY: writable or null by the contract.
        let out = unsafe { position.as_mut() };
        let out = out.ok_or_else(|| invalid("position is NULL; pass the address of a uint64_t"))?;
        let Some(position) = with!(&group.member, member => member.may_be_decided()) else { return Ok(0) };
        *out = position;
        Ok(1)
    })
}
