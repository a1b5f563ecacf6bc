// SPDX-License-Identifier: Apache-2.0
//! Units of the log: all that the leader's clients wrote in one turn of its event loop. A unit is applied as a
//! whole at every replica or at none.
//!
//! A unit is longer than a value of the group may be, so it is cut into fragments, each a proposal:
//!
//! ```text
//!  0 u8  format: 1, or 2 for a unit with notes
//!  1 u8  bit 0: the first fragment of its unit; bit 1: the last one
//!  2 u64 session: the process that leads, and the state that it began with
//! 10 u64 number of the unit in its session, from 1
//! 18     content: commands in Redis' protocol ([`crate::stream`]); in format 2 before them u32 length of the notes, and the notes
//!        ([`crate::once`])
//! ```
//!
//! A leader that dies may leave the first fragments of a unit decided. Nothing of that unit was acknowledged,
//! and the fragments are dropped when the next leader's first unit begins.

/// Bytes before the content of a fragment.
pub const HEADER_LEN: usize = 18;
const FORMAT: u8 = 1;
/// Of the fragments of a unit with notes.
const FORMAT_NOTES: u8 = 2;
/// Bytes of the length of the notes.
const NOTES_LEN: usize = 4;
const FIRST: u8 = 1;
const LAST: u8 = 2;

/// A unit that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub session: u64,
    pub number: u64,
    /// Answers to numbered requests ([`crate::once::Once::keep_all`]).
    pub notes: Vec<u8>,
    pub content: Vec<u8>,
}

/// Why an entry of the log is no fragment: a newer version of this module wrote it, and this process cannot
/// know what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("an entry of {0} bytes; a fragment has {HEADER_LEN} at least")]
    Short(usize),
    #[error("an entry of format {0}; this module reads formats {FORMAT} and {FORMAT_NOTES}, so update it")]
    Format(u8),
    #[error("a unit of {0} bytes whose notes are longer than that")]
    Notes(usize),
}

/// What a unit with notes consists of in place of its content ([`fragments`]).
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "notes of one turn, each below 5 kB")]
pub fn with_notes(notes: &[u8], content: &[u8]) -> Vec<u8> {
    [&(notes.len() as u32).to_le_bytes(), notes, content].concat()
}

/// Cuts a unit into fragments of at most `max` bytes each, in order. `has_notes`: its content is that of
/// [`with_notes`].
pub fn fragments(
    session: u64,
    number: u64,
    content: &[u8],
    has_notes: bool,
    max: usize,
) -> impl Iterator<Item = Vec<u8>> {
    let format = if has_notes { FORMAT_NOTES } else { FORMAT };
    let room = max.saturating_sub(HEADER_LEN).max(1);
    let count = content.len().div_ceil(room).max(1);
    (0..count).map(move |at| {
        let part = &content[at * room..content.len().min((at + 1) * room)];
        let flags = if at == 0 { FIRST } else { 0 } | if at + 1 == count { LAST } else { 0 };
        let mut fragment = Vec::with_capacity(HEADER_LEN + part.len());
        fragment.extend([format, flags]);
        fragment.extend(session.to_le_bytes());
        fragment.extend(number.to_le_bytes());
        fragment.extend_from_slice(part);
        fragment
    })
}

/// A fragment that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    pub session: u64,
    pub number: u64,
    pub is_first: bool,
    pub is_last: bool,
    /// The unit's content begins with the length of its notes, and the notes.
    pub has_notes: bool,
    pub content: &'a [u8],
}

impl<'a> Part<'a> {
    /// # Errors
    /// [`UnitError`].
    pub fn read(entry: &'a [u8]) -> Result<Self, UnitError> {
        let Some((header, content)) = entry.split_at_checked(HEADER_LEN) else {
            return Err(UnitError::Short(entry.len()));
        };
        if header[0] != FORMAT && header[0] != FORMAT_NOTES {
            return Err(UnitError::Format(header[0]));
        }
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        Ok(Self {
            session: word(2),
            number: word(10),
            is_first: header[1] & FIRST != 0,
            is_last: header[1] & LAST != 0,
            has_notes: header[0] == FORMAT_NOTES,
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
        let Part { session, number, is_first, is_last, has_notes, content } = Part::read(entry)?;
        if is_first {
            self.open = Some(Unit { session, number, notes: Vec::new(), content: Vec::new() });
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
        if !has_notes {
            return Ok(Some(unit));
        }
        let too_short = UnitError::Notes(unit.content.len());
        let (len, rest) = unit.content.split_first_chunk::<NOTES_LEN>().ok_or(too_short)?;
        let (notes, content) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or(too_short)?;
        (unit.notes, unit.content) = (notes.to_vec(), content.to_vec());
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
        let dead: Vec<_> = fragments(1, 9, &[7; 100], false, 40).collect();
        for fragment in &dead[..dead.len() - 1] {
            assert_eq!(assembly.push(fragment), Ok(None));
        }
        let next = fragments(2, 1, b"new", false, 40).next().unwrap();
        let unit = Unit { session: 2, number: 1, notes: Vec::new(), content: b"new".to_vec() };
        assert_eq!(assembly.push(&next), Ok(Some(unit)));
        assert_eq!(assembly.push(&dead[dead.len() - 1]), Ok(None), "its beginning is gone");
    }

    #[test]
    fn unit_with_a_gap_is_no_unit() {
        let mut assembly = Assembly::default();
        let dead: Vec<_> = fragments(1, 9, &[7; 60], false, 40).collect();
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
        assert_eq!(assembly.push(&[3; 30]), Err(UnitError::Format(3)));
        let short = fragments(1, 1, &[9, 0, 0, 0, 1], true, 40).next().unwrap();
        assert_eq!(assembly.push(&short), Err(UnitError::Notes(5)));
    }

    proptest! {
        #[test]
        fn units_come_back_whole_and_in_order(
            units in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(any::<u8>(), 0..50)), 1..6),
            max in 19usize..80,
        ) {
            let mut assembly = Assembly::default();
            let mut back = Vec::new();
            for ((content, notes), number) in units.iter().zip(1..) {
                let has_notes = !notes.is_empty();
                let content = if has_notes { with_notes(notes, content) } else { content.clone() };
                for fragment in fragments(5, number, &content, has_notes, max) {
                    prop_assert!(fragment.len() <= max);
                    back.extend(assembly.push(&fragment).unwrap());
                }
            }
            let unit = |((content, notes), number)| Unit { session: 5, number, notes, content };
            let want: Vec<_> = units.into_iter().zip(1..).map(unit).collect();
            prop_assert_eq!(back, want);
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
