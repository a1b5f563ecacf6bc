// SPDX-License-Identifier: Apache-2.0
//! What a process claims about its earlier incarnations, by which an excluded group is founded again
//! ([`super::refounding`]).
//!
//! ```text
//!  0 u32 first incarnation of the last range that the process answers for, u32 last one
//!  8 u32 number of the view that it was let in to and gave up, 0 for none; u32 its incarnation in that view; u64 hosts whose members of
//!        that view were dead by then
//! 24 u32 its incarnation that was a member last, 0 for none, which ends the claim
//! 28 u64 position of the last decision delivered to its user, u64::MAX if that state was given up
//! 36 u32 ballot with which the view was begun if it was the first one, else 0
//! 40 the view
//! ```
//!
//! Where it answers for more ranges than that one, these come before it all, oldest first (version 2):
//!
//! ```text
//!  0 u8 how many, at least one
//!  1 each: u32 first incarnation, u32 last one
//! ```

use fide_types::{
    HostSet,
    planted::{self, Planted},
};

use super::{datagram::DatagramError, incarnations::Incarnations};
use crate::view::View;

/// Bytes of a claim without a membership.
const SHORT_LEN: usize = 28;
/// Bytes of an earlier range.
const RANGE_LEN: usize = 8;

/// What an excluded member kept of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    /// The incarnation that was a member.
    pub(super) incarnation: u32,
    /// Of the last decision delivered to its user; none once that state was given up for a later one.
    pub(super) position: Option<u64>,
    /// The ballot with which the first view was begun; 0 in any other view.
    pub(super) ballot: u32,
    /// The view that it was in; for a member that was taken out, the view without it.
    pub(super) view: View,
}

impl Membership {
    /// Orders memberships by their view, and two first views by their ballot.
    pub(super) fn age(&self) -> (u32, u32) {
        (self.view.number(), if planted::is(Planted::IgnoresBallots) { 0 } else { self.ballot })
    }

    /// Whether something was decided: then a group was founded, and is not founded a second time.
    pub(super) fn proves_a_group(&self) -> bool {
        self.view.number() > 1 || self.position.is_some_and(|position| position > 0)
    }

    /// Whether a state offered by a member of view `number` replaces this one.
    pub(super) fn gives_way_to(&self, number: u32, me: u16) -> bool {
        let nothing_delivered = self.position == Some(0) && !planted::is(Planted::KeepsNothing);
        let taken_out = !self.view.holds(me, self.incarnation);
        number > self.view.number() || (nothing_delivered || taken_out) && number == self.view.number()
    }
}

/// A view that a host was let in to, never began, and gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GaveUp {
    /// Of the view.
    pub(super) number: u32,
    /// The incarnation that was let in.
    pub(super) incarnation: u32,
    /// Hosts whose members of that view were dead by then.
    pub(super) dead: HostSet,
}

/// What a process claims about its incarnations that are over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    /// Incarnations that it answers for, beside those from `first` to `last`, which are higher.
    pub(super) earlier: Incarnations,
    /// The first one of the last range that it answers for.
    pub(super) first: u32,
    /// The last one; below the first one if it answers for none.
    pub(super) last: u32,
    /// One of them was let in to a view, and gave that up.
    pub(super) gave_up: Option<GaveUp>,
    /// The last one of them that was a member; none was.
    pub(super) membership: Option<Membership>,
}

/// What a claim says about an incarnation in the last view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Testimony {
    /// Its user was delivered the decisions up to this position.
    DeliveredUpTo(u64),
    NeverBegan,
}

impl Claim {
    /// Of a process that answers for `own`, all of which are below the present incarnation.
    pub(super) fn new(
        own: &Incarnations,
        incarnation: u32,
        gave_up: Option<GaveUp>,
        membership: Option<Membership>,
    ) -> Self {
        let (first, last) = own.ranges().last().copied().unwrap_or((incarnation, incarnation - 1));
        Self { earlier: own.before(first), first, last, gave_up, membership }
    }

    /// Whether it answers for nothing.
    pub(super) fn says_nothing(&self) -> bool {
        self.membership.is_none() && self.last < self.first
    }

    /// What a process of version 1 understands of it.
    pub(super) fn of_last_range(self) -> Self {
        Self { earlier: Incarnations::default(), ..self }
    }

    fn answers_for(&self, incarnation: u32) -> bool {
        (self.first..=self.last).contains(&incarnation) || self.earlier.contains(incarnation)
    }

    /// What is known of an incarnation in the last view; none if it may be acting, or have acted.
    pub(super) fn testimony(&self, incarnation: u32, last: &Membership) -> Option<Testimony> {
        let member = self.membership.as_ref().map_or(0, |membership| membership.incarnation);
        match &self.membership {
            Some(membership) if membership.incarnation == incarnation => {
                let before = (membership.age() < last.age()).then_some(Testimony::NeverBegan);
                membership.position.map(Testimony::DeliveredUpTo).or(before)
            }
            _ if member < incarnation && self.answers_for(incarnation) => Some(Testimony::NeverBegan),
            _ => None,
        }
    }

    /// The hosts whose members of the last view were dead when this process, which was let in to that view as
    /// host `me`, gave it up.
    pub(super) fn outlived(&self, me: u16, last: &Membership) -> Option<HostSet> {
        let GaveUp { number, incarnation, dead } = self.gave_up.filter(|_| !planted::is(Planted::ForgetsWhoDied))?;
        (number == last.view.number() && last.view.holds(me, incarnation)).then_some(dead)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Self { earlier, first, last, gave_up, membership } = self;
        if !earlier.is_empty() {
            out.push(u8::try_from(earlier.ranges().len()).expect("few"));
            let numbers = earlier.ranges().iter().flat_map(|(first, last)| [first, last]);
            numbers.for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        }
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&last.to_le_bytes());
        let none = GaveUp { number: 0, incarnation: 0, dead: HostSet::EMPTY };
        let GaveUp { number, incarnation, dead } = gave_up.unwrap_or(none);
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&incarnation.to_le_bytes());
        out.extend_from_slice(&dead.0.to_le_bytes());
        let Some(Membership { incarnation, position, ballot, view }) = membership else {
            return out.extend_from_slice(&[0; 4]);
        };
        out.extend_from_slice(&incarnation.to_le_bytes());
        out.extend_from_slice(&position.unwrap_or(u64::MAX).to_le_bytes());
        out.extend_from_slice(&ballot.to_le_bytes());
        view.write(out);
    }

    /// Reads what [`Claim::write`] wrote of a claim with earlier ranges; none if it is too short, or too long.
    pub(super) fn read_with_earlier(content: &[u8]) -> Option<Result<Self, DatagramError>> {
        let (&count, rest) = content.split_first()?;
        let (ranges, rest) = rest.split_at_checked(usize::from(count) * RANGE_LEN).filter(|_| count > 0)?;
        let number = |bytes: &[u8]| Some(u32::from_le_bytes(*bytes.first_chunk()?));
        let range = |bytes: &[u8]| Some((number(bytes)?, number(bytes.get(4..)?)?));
        let ranges: Option<Vec<(u32, u32)>> = ranges.chunks_exact(RANGE_LEN).map(range).collect();
        let claim = match Self::read(rest)? {
            Ok(claim) => claim,
            Err(why) => return Some(Err(why)),
        };
        // The last one follows them.
        let all = Incarnations::from_ranges(ranges?.into_iter().chain([(claim.first, claim.last)]));
        Some(match all {
            Ok(all) => Ok(Self { earlier: all.before(claim.first), ..claim }),
            Err(why) => Err(why.into()),
        })
    }

    /// Reads what [`Claim::write`] wrote of a claim without earlier ranges; none if it is too short, or too long.
    pub(super) fn read(content: &[u8]) -> Option<Result<Self, DatagramError>> {
        let earlier = Incarnations::default();
        let word = |at: usize| Some(u32::from_le_bytes(*content.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*content.get(at..)?.first_chunk()?));
        let (first, last, member) = (word(0)?, word(4)?, word(24)?);
        let gave_up = GaveUp { number: word(8)?, incarnation: word(12)?, dead: HostSet(long(16)?) };
        let is_none = (gave_up.number, gave_up.incarnation, gave_up.dead) == (0, 0, HostSet::EMPTY);
        if gave_up.number == 0 && !is_none {
            return None;
        }
        let gave_up = Some(gave_up).filter(|_| !is_none);
        if member == 0 {
            return (content.len() == SHORT_LEN).then_some(Ok(Self {
                earlier,
                first,
                last,
                gave_up,
                membership: None,
            }));
        }
        let position = Some(long(28)?).filter(|position| *position != u64::MAX);
        let (ballot, view) = (word(36)?, View::read(content.get(40..)?));
        let membership = view.map(|view| Some(Membership { incarnation: member, position, ballot, view }));
        Some(membership.map(|membership| Self { earlier, first, last, gave_up, membership }).map_err(Into::into))
    }
}

/// Hosts whose claim about the last view is not awaited, and which do not found the group again. `by`: each
/// host that gave the last view up, with the hosts that it outlived.
///
/// An outlived host had given the view up, or was excluded, before the host that outlived it said so.
/// Therefore its own word counts for nothing: everybody who founds the group has to come to the same result,
/// whether or not it hears the outlived host.
pub(super) fn outlived(by: impl Iterator<Item = (u16, HostSet)>) -> HostSet {
    let mut by: Vec<(u16, HostSet)> = by.collect();
    let mut all = HostSet::EMPTY;
    // The last survivor first. There is always one, unless two hosts outlived each other, which is never
    // said.
    while let Some(at) = by.iter().position(|(host, _)| !by.iter().any(|(_, dead)| dead.contains(*host))) {
        let (_, dead) = by.remove(at);
        all = all.union(dead);
        by.retain(|(host, _)| planted::is(Planted::HeedsTheOutlived) || !dead.contains(*host));
    }
    all
}
