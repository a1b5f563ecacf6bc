// SPDX-License-Identifier: Apache-2.0
//! A member behind a pointer. A handle belongs to one thread at a time: a call while another one runs is
//! refused, as is every call after a panic.

use std::{
    cell::UnsafeCell,
    ffi::CString,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU8, Ordering},
};

use fide_client::capi::boundary::{Failure, invalid};
use fide_group::{Entry, Hsuc, Huc, Identity, Member, View, batch, entries};

const FREE: u8 = 0;
const IN_USE: u8 = 1;
const BROKEN: u8 = 2;

/// A member of a group, or a host that wants to be one.
pub struct FideGroup {
    use_: AtomicU8,
    inner: UnsafeCell<Inner>,
}

const _: fn() = || {
    // A handle may be opened on one thread and used on another.
    fn send<T: Send>() {}
    send::<Inner>();
};

/// A member, of either protocol.
pub(crate) enum AnyMember {
    Hsuc(Box<Member<Hsuc>>),
    Huc(Box<Member<Huc>>),
}

/// Does the same with a member of either protocol.
macro_rules! with {
    ($any:expr, $member:ident => $body:expr) => {
        match $any {
            $crate::handle::AnyMember::Hsuc($member) => $body,
            $crate::handle::AnyMember::Huc($member) => $body,
        }
    };
}
pub(crate) use with;

/// What is behind a handle.
pub(crate) struct Inner {
    pub(crate) member: AnyMember,
    /// Of hosts 1.., for `fide_group_host_name`.
    pub(crate) names: Vec<CString>,
    pub(crate) taken: Taken,
    /// The state that was taken over last, until the next wait.
    pub(crate) installed: Vec<u8>,
    pub(crate) waits_for: CString,
    pub(crate) unstored: CString,
}

/// The decision whose entries the user is taking. The member counts a decision as delivered as a whole; here
/// it is once its last entry was taken.
#[derive(Default)]
pub(crate) struct Taken {
    position: u64,
    value: Vec<u8>,
    /// Bytes of `value` of which the entries were taken.
    at: usize,
}

/// One entry that was taken.
pub(crate) enum Took {
    /// At these bytes of the decision's value.
    Value(*const u8, usize),
    Payload(Identity),
    View(View),
}

impl Taken {
    /// Whether all entries of the decision were taken.
    pub(crate) fn is_whole(&self) -> bool {
        entries(&self.value[self.at..]).next().is_none()
    }

    /// The next entry of the decision, which stays the next one until [`Taken::advance`].
    pub(crate) fn next(&self) -> Option<Took> {
        entries(&self.value[self.at..]).next().map(|entry| match entry {
            Entry::Value(value) => Took::Value(value.as_ptr(), value.len()),
            Entry::Payload(identity) => Took::Payload(identity),
            Entry::View(view) => Took::View(view),
        })
    }

    pub(crate) fn advance(&mut self) {
        while let Some(bytes) = batch::values(&self.value[self.at..]).next() {
            let end = self.at + batch::PREFIX_LEN + bytes.len();
            let was_entry = entries(&self.value[self.at..end]).next().is_some();
            self.at = end;
            if was_entry {
                return;
            }
        }
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn begin(&mut self, position: u64, value: &[u8]) {
        self.position = position;
        self.at = 0;
        self.value.clear();
        self.value.extend_from_slice(value);
    }

    /// The user's state was replaced by one that has this decision.
    pub(crate) fn drop_rest(&mut self) {
        self.at = self.value.len();
    }
}

impl FideGroup {
    pub(crate) fn new(member: AnyMember) -> Self {
        let name =
            |host| with!(&member, member => member.name(host).map(|name| CString::new(name).unwrap_or_default()));
        let names = (1..).map_while(name).collect();
        let inner = Inner {
            member,
            names,
            taken: Taken::default(),
            installed: Vec::new(),
            waits_for: CString::default(),
            unstored: CString::default(),
        };
        Self { use_: AtomicU8::new(FREE), inner: UnsafeCell::new(inner) }
    }

    /// # Safety
    /// `handle` is null, or came from `fide_group_open` and was not closed.
    pub(crate) unsafe fn enter<'a>(handle: *const Self) -> Result<Entered<'a>, Failure> {
        // SAFETY: by the contract.
        let group = unsafe { handle.as_ref() }
            .ok_or_else(|| invalid("the fide_group_t pointer is NULL; use the one that fide_group_open gave"))?;
        match group.use_.compare_exchange(FREE, IN_USE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Entered { group }),
            Err(IN_USE) => Err(Failure(
                -libc::EDEADLK,
                "another thread is in a call with this fide_group_t; use a handle on one thread at a time".into(),
            )),
            Err(_) => Err(Failure(
                -libc::ENOTRECOVERABLE,
                "an earlier call with this fide_group_t met a bug of the library; end this process and start it again"
                    .into(),
            )),
        }
    }
}

/// The use of a handle during one call.
pub(crate) struct Entered<'a> {
    group: &'a FideGroup,
}

impl Deref for Entered<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        // SAFETY: `use_` lets one call in at a time, and this is that call's only access.
        unsafe { &*self.group.inner.get() }
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.group.inner.get() }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let next = if std::thread::panicking() { BROKEN } else { FREE };
        self.group.use_.store(next, Ordering::Release);
    }
}
