// SPDX-License-Identifier: Apache-2.0
//! What a group's log has: each proposal of a batch begins with its kind.
//!
//! ```text
//!  0 u8 kind: 0 a value, 1 a payload that was sent ahead (its identity), 2 the next view
//!  1 its content
//! ```

use crate::{batch, transfer::Identity, view::View};

pub(super) const VALUE: u8 = 0;
pub(super) const PAYLOAD: u8 = 1;
pub(super) const VIEW: u8 = 2;

/// One thing decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry<'a> {
    /// As it was proposed.
    Value(&'a [u8]),
    /// As it was sent ahead: [`super::Group::payload`] has it.
    Payload(Identity),
    /// From the next position on these are the members.
    View(View),
}

impl<'a> Entry<'a> {
    /// None if it is not one, which no member of this version proposes.
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

/// As [`entries`], without the values, as which most are.
pub(super) fn entries_but_values(value: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    batch::values(value).filter(|bytes| bytes.first() != Some(&VALUE)).filter_map(Entry::read)
}

/// What was decided at one position, in its order; empty where a gap was closed.
pub fn entries(value: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    batch::values(value).filter_map(Entry::read)
}
