// SPDX-License-Identifier: Apache-2.0
//! Units of the log: all that the leader's clients wrote in one turn of its event loop. A unit is applied as a
//! whole at every replica or at none.
//!
//! A unit is longer than a value of the group may be, so it is cut into fragments, each a proposal:
//!
//! ```text
//!  0 u8  format: 1, 2 for a unit with notes, or 3 for one with remarks
//!  1 u8  bit 0: the first fragment of its unit; bit 1: the last one
//!  2 u64 session: the process that leads, and the state that it began with
//! 10 u64 number of the unit in its session, from 1
//! 18     content: commands in Redis' protocol ([`crate::stream`]); in formats 2 and 3 before them u32 length of the notes, and the
//!        notes ([`crate::once`]); in format 3 before those u32 length of the remarks, and the remarks ([`crate::remark`])
//! ```
//!
//! A leader that dies may leave the first fragments of a unit decided. Nothing of that unit was acknowledged,
//! and the fragments are dropped when the next leader's first unit begins.

use std::borrow::Cow;

/// Bytes before the content of a fragment.
pub const HEADER_LEN: usize = 18;
const FORMAT: u8 = 1;
/// Of the fragments of a unit with notes.
const FORMAT_NOTES: u8 = 2;
/// Of the fragments of a unit with remarks.
const FORMAT_REMARKS: u8 = 3;
/// Bytes of the length of notes, and of remarks.
const PART_LEN: usize = 4;
const FIRST: u8 = 1;
const LAST: u8 = 2;

/// A unit that is complete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unit {
    pub session: u64,
    pub number: u64,
    /// Answers to numbered requests ([`crate::once::Once::keep_all`]).
    pub notes: Vec<u8>,
    /// What the leader says to all servers ([`crate::remark::Remark::read_all`]).
    pub remarks: Vec<u8>,
    pub content: Vec<u8>,
}

/// Why an entry of the log is no fragment: a newer version of this module wrote it, and this process cannot
/// know what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("an entry of {0} bytes; a fragment has {HEADER_LEN} at least")]
    Short(usize),
    #[error("an entry of format {0}; this module reads formats {FORMAT} to {FORMAT_REMARKS}, so update it")]
    Format(u8),
    #[error("a unit of {0} bytes whose notes or remarks are longer than that")]
    Notes(usize),
}

impl Unit {
    /// The format of its fragments, and what they consist of.
    #[allow(clippy::cast_possible_truncation, reason = "notes of one turn, each below 5 kB, and few remarks")]
    fn whole(&self) -> (u8, Cow<'_, [u8]>) {
        let part = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes(), bytes].concat();
        if !self.remarks.is_empty() {
            return (FORMAT_REMARKS, [&part(&self.remarks), &part(&self.notes), &*self.content].concat().into());
        }
        if !self.notes.is_empty() {
            return (FORMAT_NOTES, [&part(&self.notes), &*self.content].concat().into());
        }
        (FORMAT, (&*self.content).into())
    }

    /// Cuts it into fragments of at most `max` bytes each, in order.
    #[must_use]
    pub fn fragments(&self, max: usize) -> Vec<Vec<u8>> {
        let (format, content) = self.whole();
        let room = max.saturating_sub(HEADER_LEN).max(1);
        let count = content.len().div_ceil(room).max(1);
        let fragment = |at: usize| {
            let part = &content[at * room..content.len().min((at + 1) * room)];
            let flags = if at == 0 { FIRST } else { 0 } | if at + 1 == count { LAST } else { 0 };
            let mut fragment = Vec::with_capacity(HEADER_LEN + part.len());
            fragment.extend([format, flags]);
            fragment.extend(self.session.to_le_bytes());
            fragment.extend(self.number.to_le_bytes());
            fragment.extend_from_slice(part);
            fragment
        };
        (0..count).map(fragment).collect()
    }
}

/// Takes a part with its length off the beginning of `bytes`.
fn take_part(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (len, rest) = bytes.split_first_chunk::<PART_LEN>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let part = part.to_vec();
    *bytes = rest.to_vec();
    Some(part)
}

/// A fragment that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    pub session: u64,
    pub number: u64,
    pub is_first: bool,
    pub is_last: bool,
    /// What stands before the unit's commands: so many times a length and as many bytes.
    pub parts: u8,
    pub content: &'a [u8],
}

impl<'a> Part<'a> {
    /// # Errors
    /// [`UnitError`].
    pub fn read(entry: &'a [u8]) -> Result<Self, UnitError> {
        let Some((header, content)) = entry.split_at_checked(HEADER_LEN) else {
            return Err(UnitError::Short(entry.len()));
        };
        if !(FORMAT..=FORMAT_REMARKS).contains(&header[0]) {
            return Err(UnitError::Format(header[0]));
        }
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        Ok(Self {
            session: word(2),
            number: word(10),
            is_first: header[1] & FIRST != 0,
            is_last: header[1] & LAST != 0,
            parts: header[0] - FORMAT,
            content,
        })
    }
}

/// Joins fragments to units, in the order of the log.
#[derive(Debug, Clone, Default)]
pub struct Assembly {
    /// The unit of which fragments have come, but not the last one.
    open: Option<Unit>,
}

impl Assembly {
    /// Whether a unit has begun and not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The next decision has no entry: a new leader has closed a gap that a dead one left. The gap may have been a
    /// fragment of the unit that is open, and later fragments of that unit may still come.
    pub fn gap(&mut self) {
        self.open = None;
    }

    /// The next entry of the log. Returns the unit that it completes.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn push(&mut self, entry: &[u8]) -> Result<Option<Unit>, UnitError> {
        let Part { session, number, is_first, is_last, parts, content } = Part::read(entry)?;
        if is_first {
            self.open = Some(Unit { session, number, ..Unit::default() });
        }
        let Some(open) = self.open.as_mut().filter(|open| (open.session, open.number) == (session, number)) else {
            // The rest of a unit whose beginning nobody decided.
            self.open = None;
            return Ok(None);
        };
        open.content.extend_from_slice(content);
        if !is_last {
            return Ok(None);
        }
        let Some(mut unit) = self.open.take() else { return Ok(None) };
        let too_short = UnitError::Notes(unit.content.len());
        if parts > 1 {
            unit.remarks = take_part(&mut unit.content).ok_or(too_short)?;
        }
        if parts > 0 {
            unit.notes = take_part(&mut unit.content).ok_or(too_short)?;
        }
        Ok(Some(unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unit_of_a_dead_leader_is_dropped_when_the_next_one_begins() {
        let mut assembly = Assembly::default();
        let dead = Unit { session: 1, number: 9, content: vec![7; 100], ..Unit::default() }.fragments(40);
        for fragment in &dead[..dead.len() - 1] {
            assert_eq!(assembly.push(fragment), Ok(None));
        }
        let unit = Unit { session: 2, number: 1, content: b"new".to_vec(), ..Unit::default() };
        assert_eq!(assembly.push(&unit.fragments(40)[0]), Ok(Some(unit)));
        assert_eq!(assembly.push(&dead[dead.len() - 1]), Ok(None), "its beginning is gone");
    }

    #[test]
    fn unit_with_a_gap_is_no_unit() {
        let mut assembly = Assembly::default();
        let dead = Unit { session: 1, number: 9, content: vec![7; 60], ..Unit::default() }.fragments(40);
        assert_eq!(dead.len(), 3);
        assert_eq!(assembly.push(&dead[0]), Ok(None));
        // The second one reached nobody that lives, and the third one did.
        assembly.gap();
        assert_eq!((assembly.push(&dead[2]), assembly.is_open()), (Ok(None), false));
    }

    #[test]
    fn entries_of_other_versions_are_refused() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.push(&[1; 3]), Err(UnitError::Short(3)));
        assert_eq!(assembly.push(&[4; 30]), Err(UnitError::Format(4)));
        for format in [FORMAT_NOTES, FORMAT_REMARKS] {
            let mut short = Unit { content: vec![9, 0, 0, 0, 1], ..Unit::default() }.fragments(40).remove(0);
            short[0] = format;
            assert_eq!(assembly.push(&short), Err(UnitError::Notes(5)));
        }
    }

    #[test]
    fn units_without_notes_and_remarks_are_as_before_there_were_any() {
        let unit = Unit { content: b"x".to_vec(), ..Unit::default() };
        assert_eq!(unit.fragments(40)[0][0], FORMAT);
        let noted = Unit { notes: b"n".to_vec(), ..unit };
        assert_eq!(noted.fragments(40)[0][0], FORMAT_NOTES);
    }

    proptest! {
        #[test]
        fn units_come_back_whole_and_in_order(
            units in prop::collection::vec(
                [0usize..200, 0..50, 0..50].map(|len| prop::collection::vec(any::<u8>(), len)),
                1..6,
            ),
            max in 19usize..80,
        ) {
            let mut assembly = Assembly::default();
            let mut back = Vec::new();
            let unit = |([content, notes, remarks], number): ([Vec<u8>; 3], u64)| Unit { session: 5, number, notes, remarks, content };
            let units: Vec<_> = units.into_iter().zip(1..).map(unit).collect();
            for fragment in units.iter().flat_map(|unit| unit.fragments(max)) {
                prop_assert!(fragment.len() <= max);
                back.extend(assembly.push(&fragment).unwrap());
            }
            prop_assert_eq!(back, units);
        }

        #[test]
        fn any_entry_is_read_or_refused(entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..10)) {
            let mut assembly = Assembly::default();
            for entry in entries {
                let _ = assembly.push(&entry);
            }
        }
    }
}
