// SPDX-License-Identifier: Apache-2.0
//! The entries of a group's log. Each proposal of a batch is one entry, which begins with its kind:
//!
//! ```text
//!  0 u8 kind: 0 a value, 1 a payload that was sent ahead (its identity follows), 2 the next view
//!  1 the content
//! ```

use crate::{batch, transfer::Identity, view::View};

pub(super) const VALUE: u8 = 0;
pub(super) const PAYLOAD: u8 = 1;
pub(super) const VIEW: u8 = 2;

/// One decided entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry<'a> {
    /// As it was proposed.
    Value(&'a [u8]),
    /// A payload that was sent ahead: [`super::Group::payload`] has its bytes.
    Payload(Identity),
    /// The members from the next position on.
    View(View),
}

impl<'a> Entry<'a> {
    /// None if it is no entry; members of this version propose none such.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (kind, content) = bytes.split_first()?;
        match *kind {
            VALUE => Some(Self::Value(content)),
            PAYLOAD => Identity::read(content).ok().map(Self::Payload),
            VIEW => View::read(content).ok().map(Self::View),
            _ => None,
        }
    }
}

/// As [`entries`], without the values, which most entries are.
pub(super) fn entries_but_values(value: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    batch::values(value).filter(|bytes| bytes.first() != Some(&VALUE)).filter_map(Entry::read)
}

/// The entries decided at one position, in order; none where a new leader closed a gap.
pub fn entries(value: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    batch::values(value).filter_map(Entry::read)
}
