// SPDX-License-Identifier: Apache-2.0
//! The VIEW section: who is a member, and the agreement on who is one next.
//!
//! ```text
//!  0 u32 generation   the view the sender holds; both zero: none
//!  4 u32 number
//!    ends here (8 bytes) when nothing is being agreed
//!  8 u8  parts        bit 0 MEMBERS, 1 ACCEPTOR, 2 ACCEPTED, 3 PROPOSER; others 0
//!  9 u8  phase        of PROPOSER: 1 or 2; 0 without it
//! 10 u16 0
//! 12 the parts that are there, in this order:
//!    MEMBERS   {u32 wait_us, membership}      of the view the sender holds, for those who lag; for how long after it is installed
//!                                             leases of older views may run
//!    ACCEPTOR  {u32 promised, u64 suspects}   promised ballot (0 none); members that the sender does not hear, itself if it leaves.
//!                                             Of a sender without a view: none, it takes part in founding one; else itself, and
//!                                             members of the newest view known to it that it does not hear
//!    ACCEPTED  {u32 ballot, u32 binds_us, membership}
//!                                             last accepted; for how long after it was accepted leases may run that the sender knows of
//!    PROPOSER  {u32 ballot} + phase 2: {membership}
//! membership = {u64 hosts (bit id-1), u32 incarnation for each, ascending id}
//! ```
//!
//! ballot = round << 8 | host id of the proposer. ACCEPTOR, ACCEPTED and PROPOSER speak of the view after
//! the one in bytes 0..8.

use crate::section::{SectionError, le32, le64};
use crate::{MAX_HOSTS, VIEW_STEADY_LEN};
use fide_types::host_index;
use serde::{Deserialize, Serialize};

const MEMBERS: u8 = 1;
const ACCEPTOR: u8 = 2;
const ACCEPTED: u8 = 4;
const PROPOSER: u8 = 8;

/// Bytes of the longest VIEW section, its header not counted.
pub const VIEW_MAX_LEN: usize = 12 + 3 * (8 + 4 * MAX_HOSTS) + 4 + 12 + 8 + 4;

/// Which view; ordered, `(0, 0)` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ViewId {
    /// Highest incarnation among the founding members.
    pub generation: u32,
    /// 1 when founded, +1 with every agreed change.
    pub number: u32,
}

impl ViewId {
    pub const NONE: ViewId = ViewId { generation: 0, number: 0 };

    pub fn is_none(self) -> bool {
        self == ViewId::NONE
    }
}

/// A set of (host, incarnation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Bit id-1.
    pub hosts: u64,
    /// By id-1; 0 for a host that is not a member.
    #[serde(with = "serde_big_array::BigArray")]
    pub incarnations: [u32; MAX_HOSTS],
}

impl Membership {
    pub const EMPTY: Membership = Membership { hosts: 0, incarnations: [0; MAX_HOSTS] };

    pub fn len(&self) -> usize {
        self.hosts.count_ones() as usize
    }

    pub fn is_empty(&self) -> bool {
        self.hosts == 0
    }

    /// The member's incarnation; `None` when `id` (1..=[`MAX_HOSTS`]) is not a member.
    pub fn incarnation(&self, id: u16) -> Option<u32> {
        let at = usize::from(id).checked_sub(1).filter(|at| *at < MAX_HOSTS)?;
        (self.hosts >> at & 1 == 1).then(|| self.incarnations[at])
    }

    pub fn contains(&self, id: u16, incarnation: u32) -> bool {
        self.incarnation(id) == Some(incarnation)
    }

    /// Adds or replaces a member. Panics unless `id` is in 1..=[`MAX_HOSTS`].
    pub fn insert(&mut self, id: u16, incarnation: u32) {
        let at = host_index(id);
        self.hosts |= 1 << at;
        self.incarnations[at] = incarnation;
    }

    /// Removes a member. Panics unless `id` is in 1..=[`MAX_HOSTS`].
    pub fn remove(&mut self, id: u16) {
        let at = host_index(id);
        self.hosts &= !(1 << at);
        self.incarnations[at] = 0;
    }

    /// (id, incarnation), ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        places(self.hosts).map(|at| (at as u16 + 1, self.incarnations[at]))
    }

    fn wire_len(&self) -> usize {
        8 + 4 * self.len()
    }

    fn emit(&self, out: &mut [u8]) -> usize {
        out[..8].copy_from_slice(&self.hosts.to_le_bytes());
        let mut at = 8;
        for (_, incarnation) in self.iter() {
            out[at..at + 4].copy_from_slice(&incarnation.to_le_bytes());
            at += 4;
        }
        at
    }

    /// Of bytes that [`take_membership`] took.
    fn parse(b: &[u8]) -> Membership {
        let mut members = Membership { hosts: le64(b, 0), incarnations: [0; MAX_HOSTS] };
        for (nth, at) in places(members.hosts).enumerate() {
            members.incarnations[at] = le32(b, 8 + 4 * nth);
        }
        members
    }
}

/// Of the bits that are set.
fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(at)
    })
}

/// A VIEW section as it lies in a packet, checked. Its lists are long, and copied by who wants them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    pub(crate) fn check(bytes: &'a [u8]) -> Result<Self, SectionError> {
        // Between changes there is nothing else in it.
        if bytes.len() != VIEW_STEADY_LEN {
            Parts::of(bytes)?;
        }
        Ok(View { bytes })
    }

    /// Nothing is being agreed: it is [`ViewRepr::steady`].
    pub fn is_steady(&self) -> bool {
        self.bytes.len() == VIEW_STEADY_LEN
    }

    /// The sender's view.
    pub fn id(&self) -> ViewId {
        ViewId { generation: le32(self.bytes, 0), number: le32(self.bytes, 4) }
    }

    pub fn repr(&self) -> ViewRepr {
        if self.is_steady() {
            return ViewRepr::steady(self.id());
        }
        ViewRepr::parse(self.bytes).expect("it was checked")
    }
}

/// The sender's part as a proposer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    pub ballot: u32,
    /// `None` in phase 1, the proposed membership in phase 2.
    pub value: Option<Membership>,
}

/// A VIEW section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewRepr {
    pub id: ViewId,
    pub members: Option<Membership>,
    /// Beside `members`, else 0: for so long after it installs this view a host drops none of them.
    pub wait_us: u32,
    /// (promised ballot, hosts the sender is ready to drop).
    pub acceptor: Option<(u32, u64)>,
    pub accepted: Option<(u32, Membership)>,
    /// Beside `accepted`, else 0: leases that the sender has granted or holds may have run for so long when
    /// it accepted.
    pub binds_us: u32,
    pub proposal: Option<Proposal>,
}

impl ViewRepr {
    /// Nothing is being agreed.
    pub const fn steady(id: ViewId) -> ViewRepr {
        ViewRepr { id, members: None, wait_us: 0, acceptor: None, accepted: None, binds_us: 0, proposal: None }
    }

    /// Is nothing being agreed?
    pub fn is_steady(&self) -> bool {
        self.members.is_none() && self.acceptor.is_none() && self.accepted.is_none() && self.proposal.is_none()
    }

    /// Bytes of the section, its header not counted.
    pub fn wire_len(&self) -> usize {
        let parts = self.members.as_ref().map_or(0, |m| 4 + m.wire_len())
            + self.acceptor.map_or(0, |_| 12)
            + self.accepted.as_ref().map_or(0, |(_, m)| 8 + m.wire_len())
            + self.proposal.as_ref().map_or(0, |p| 4 + p.value.as_ref().map_or(0, |m| m.wire_len()));
        if parts == 0 { VIEW_STEADY_LEN } else { VIEW_STEADY_LEN + 4 + parts }
    }

    /// Writes the section's bytes; panics if `out` is shorter than [`ViewRepr::wire_len`]. Returns their number.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        out[0..4].copy_from_slice(&self.id.generation.to_le_bytes());
        out[4..8].copy_from_slice(&self.id.number.to_le_bytes());
        if self.is_steady() {
            return VIEW_STEADY_LEN;
        }
        let bit = |there: bool, bit: u8| if there { bit } else { 0 };
        out[8] = bit(self.members.is_some(), MEMBERS)
            | bit(self.acceptor.is_some(), ACCEPTOR)
            | bit(self.accepted.is_some(), ACCEPTED)
            | bit(self.proposal.is_some(), PROPOSER);
        out[9] = self.proposal.as_ref().map_or(0, |p| if p.value.is_some() { 2 } else { 1 });
        out[10..12].fill(0);
        let mut at = 12;
        if let Some(members) = &self.members {
            out[at..at + 4].copy_from_slice(&self.wait_us.to_le_bytes());
            at += 4 + members.emit(&mut out[at + 4..]);
        }
        if let Some((promised, suspects)) = self.acceptor {
            out[at..at + 4].copy_from_slice(&promised.to_le_bytes());
            out[at + 4..at + 12].copy_from_slice(&suspects.to_le_bytes());
            at += 12;
        }
        if let Some((ballot, members)) = &self.accepted {
            out[at..at + 4].copy_from_slice(&ballot.to_le_bytes());
            out[at + 4..at + 8].copy_from_slice(&self.binds_us.to_le_bytes());
            at += 8 + members.emit(&mut out[at + 8..]);
        }
        if let Some(proposal) = &self.proposal {
            out[at..at + 4].copy_from_slice(&proposal.ballot.to_le_bytes());
            at += 4;
            if let Some(members) = &proposal.value {
                at += members.emit(&mut out[at..]);
            }
        }
        at
    }

    pub(crate) fn parse(b: &[u8]) -> Result<ViewRepr, SectionError> {
        let parts = Parts::of(b)?;
        let mut view = ViewRepr::steady(parts.id);
        if let Some((wait_us, members)) = parts.members {
            (view.wait_us, view.members) = (wait_us, Some(Membership::parse(members)));
        }
        view.acceptor = parts.acceptor;
        if let Some((ballot, binds_us, members)) = parts.accepted {
            (view.binds_us, view.accepted) = (binds_us, Some((ballot, Membership::parse(members))));
        }
        if let Some((ballot, value)) = parts.proposal {
            view.proposal = Some(Proposal { ballot, value: value.map(Membership::parse) });
        }
        Ok(view)
    }
}

/// The parts of a section, checked, with memberships as they lie in it.
struct Parts<'a> {
    id: ViewId,
    members: Option<(u32, &'a [u8])>,
    acceptor: Option<(u32, u64)>,
    accepted: Option<(u32, u32, &'a [u8])>,
    proposal: Option<(u32, Option<&'a [u8]>)>,
}

impl<'a> Parts<'a> {
    fn of(mut b: &'a [u8]) -> Result<Self, SectionError> {
        let head = take(&mut b, 8)?;
        let id = ViewId { generation: le32(head, 0), number: le32(head, 4) };
        let mut of = Parts { id, members: None, acceptor: None, accepted: None, proposal: None };
        if b.is_empty() {
            return Ok(of);
        }
        let head = take(&mut b, 4)?;
        let (parts, phase) = (head[0], head[1]);
        if parts == 0 || parts & !(MEMBERS | ACCEPTOR | ACCEPTED | PROPOSER) != 0 || head[2] != 0 || head[3] != 0 {
            return Err(SectionError::View { what: "unknown parts; bits 0 to 3 are known and one must be set" });
        }
        if (parts & PROPOSER != 0) != matches!(phase, 1 | 2) {
            return Err(SectionError::View { what: "the phase must be 1 or 2 with a proposer part, 0 without" });
        }
        if parts & MEMBERS != 0 {
            let wait_us = le32(take(&mut b, 4)?, 0);
            of.members = Some((wait_us, take_membership(&mut b)?));
        }
        if parts & ACCEPTOR != 0 {
            let part = take(&mut b, 12)?;
            of.acceptor = Some((le32(part, 0), le64(part, 4)));
        }
        if parts & ACCEPTED != 0 {
            let head = take(&mut b, 8)?;
            of.accepted = Some((le32(head, 0), le32(head, 4), take_membership(&mut b)?));
        }
        if parts & PROPOSER != 0 {
            let ballot = le32(take(&mut b, 4)?, 0);
            of.proposal = Some((ballot, if phase == 2 { Some(take_membership(&mut b)?) } else { None }));
        }
        if !b.is_empty() {
            return Err(SectionError::View { what: "bytes are left after the last part" });
        }
        Ok(of)
    }
}

/// The bytes of a membership, as long as its hosts are many.
fn take_membership<'a>(b: &mut &'a [u8]) -> Result<&'a [u8], SectionError> {
    let hosts = b.first_chunk().map_or(0, |hosts| u64::from_le_bytes(*hosts));
    take(b, 8 + 4 * hosts.count_ones() as usize)
}

fn take<'a>(b: &mut &'a [u8], len: usize) -> Result<&'a [u8], SectionError> {
    let (head, rest) = b.split_at_checked(len).ok_or(SectionError::View { what: "a part is cut short" })?;
    *b = rest;
    Ok(head)
}
