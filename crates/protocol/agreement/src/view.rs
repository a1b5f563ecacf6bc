// SPDX-License-Identifier: Apache-2.0
//! Views: the numbered lists of a group's members, on which the members agree.
//!
//! A view lists its members by seniority: a new member comes last. Protocols know members by their place in
//! that list, from 1. So the member that has been in the group for longest leads, and no member that still
//! lacks the state.
//!
//! ```text
//!  0 u32 number, from 1
//!  4 u16 number of members
//!  6 for each: u16 host, u32 incarnation
//! ```

use fide_types::{HostId, HostSet, MAX_HOSTS, PerHost};

/// Bytes of a view without its members.
const HEADER_LEN: usize = 6;
const MEMBER_LEN: usize = 6;

/// A member: one incarnation of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ViewMember {
    /// 1..=64.
    pub host: HostId,
    /// From 1.
    pub incarnation: u32,
}

/// Why this is not a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    #[error("host {host} is in the view twice, as incarnations {first} and {second}")]
    Twice { host: HostId, first: u32, second: u32 },
    #[error("host {host} with incarnation {incarnation}: hosts are 1 to {MAX_HOSTS}, incarnations begin at 1")]
    Member { host: HostId, incarnation: u32 },
    #[error("a view without members")]
    Empty,
    #[error("view 0; views are numbered from 1")]
    Number,
    #[error("{len} bytes, where a view of {members} members has {want}")]
    Length { len: usize, members: usize, want: usize },
}

/// The members of a group from one change to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    number: u32,
    members: Vec<ViewMember>,
}

impl View {
    /// `number` is from 1; `members` are by seniority.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn new(number: u32, members: &[ViewMember]) -> Result<Self, ViewError> {
        if number == 0 {
            return Err(ViewError::Number);
        }
        if members.is_empty() {
            return Err(ViewError::Empty);
        }
        let mut known = PerHost::new(MAX_HOSTS, |_| 0);
        for &ViewMember { host, incarnation } in members {
            let known = known.get_mut(host).filter(|_| incarnation != 0);
            let known = known.ok_or(ViewError::Member { host, incarnation })?;
            if *known != 0 {
                return Err(ViewError::Twice { host, first: *known, second: incarnation });
            }
            *known = incarnation;
        }
        Ok(Self { number, members: members.to_vec() })
    }

    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// By seniority.
    #[must_use]
    pub fn members(&self) -> &[ViewMember] {
        &self.members
    }

    #[must_use]
    pub fn hosts(&self) -> HostSet {
        self.members.iter().map(|member| member.host).collect()
    }

    /// The incarnation of a host that is a member; none if the host is not in the view.
    #[must_use]
    pub fn incarnation(&self, host: HostId) -> Option<u32> {
        self.members.iter().find(|member| member.host == host).map(|member| member.incarnation)
    }

    #[must_use]
    pub fn holds(&self, host: HostId, incarnation: u32) -> bool {
        self.incarnation(host) == Some(incarnation)
    }

    /// The place of a host, from 1.
    #[must_use]
    pub fn place(&self, host: HostId) -> Option<u16> {
        let at = self.members.iter().position(|member| member.host == host)?;
        u16::try_from(at + 1).ok()
    }

    /// The member at a place; none beyond the last one.
    #[must_use]
    pub fn member(&self, place: u16) -> Option<ViewMember> {
        self.members.get(usize::from(place).wrapping_sub(1)).copied()
    }

    /// The hosts of the members at these places.
    #[must_use]
    pub fn hosts_of(&self, places: HostSet) -> HostSet {
        places.iter().filter_map(|place| Some(self.member(place)?.host)).collect()
    }

    /// The number of bytes that [`View::write`] appends.
    #[must_use]
    pub fn written_len(&self) -> usize {
        HEADER_LEN + MEMBER_LEN * self.members.len()
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&(self.members.len() as u16).to_le_bytes());
        for member in &self.members {
            out.extend_from_slice(&member.host.to_le_bytes());
            out.extend_from_slice(&member.incarnation.to_le_bytes());
        }
    }

    /// Reads what [`View::write`] wrote, and nothing after it.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn read(bytes: &[u8]) -> Result<Self, ViewError> {
        let short = ViewError::Length { len: bytes.len(), members: 1, want: HEADER_LEN + MEMBER_LEN };
        let (&[a, b, c, d, e, f], rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        let count = usize::from(u16::from_le_bytes([e, f]));
        if rest.len() != MEMBER_LEN * count {
            return Err(ViewError::Length { len: bytes.len(), members: count, want: HEADER_LEN + MEMBER_LEN * count });
        }
        let member = |bytes: &[u8; MEMBER_LEN]| {
            let &[a, b, c, d, e, f] = bytes;
            ViewMember { host: HostId::from_le_bytes([a, b]), incarnation: u32::from_le_bytes([c, d, e, f]) }
        };
        let members: Vec<ViewMember> = rest.as_chunks().0.iter().map(member).collect();
        Self::new(u32::from_le_bytes([a, b, c, d]), &members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(list: &[(u16, u32)]) -> Vec<ViewMember> {
        list.iter().map(|&(host, incarnation)| ViewMember { host, incarnation }).collect()
    }

    #[test]
    fn view_has_each_host_once() {
        let view = |number, list: &[(u16, u32)]| View::new(number, &members(list)).unwrap_err();
        assert_eq!(view(1, &[(1, 1), (1, 2)]), ViewError::Twice { host: 1, first: 1, second: 2 });
        assert_eq!(view(1, &[(1, 0)]), ViewError::Member { host: 1, incarnation: 0 });
        assert_eq!(view(1, &[(65, 1)]), ViewError::Member { host: 65, incarnation: 1 });
        assert_eq!(view(1, &[]), ViewError::Empty);
        assert_eq!(view(0, &[(1, 1)]), ViewError::Number);
    }

    #[test]
    fn places_go_by_seniority() {
        let view = View::new(3, &members(&[(4, 1), (2, 7)])).unwrap();
        assert_eq!((view.place(4), view.place(2), view.place(1)), (Some(1), Some(2), None));
        assert_eq!((view.member(2), view.member(3), view.member(0)), (Some(members(&[(2, 7)])[0]), None, None));
        assert_eq!(view.hosts_of(HostSet::first(2)), HostSet::from_iter([2, 4]));
        assert!(view.holds(2, 7) && !view.holds(2, 6) && !view.holds(3, 7));
    }

    proptest! {
        #[test]
        fn written_view_reads_back(number in 1u32.., hosts in prop::collection::btree_map(1u16..=64, 1u32.., 1..64)) {
            let list: Vec<_> = hosts.into_iter().map(|(host, incarnation)| ViewMember { host, incarnation }).collect();
            let view = View::new(number, &list).unwrap();
            let mut bytes = Vec::new();
            view.write(&mut bytes);
            prop_assert_eq!(bytes.len(), view.written_len());
            prop_assert_eq!(View::read(&bytes), Ok(view));
            bytes.pop();
            prop_assert!(View::read(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_a_view_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(view) = View::read(&bytes) {
                let mut again = Vec::new();
                view.write(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
