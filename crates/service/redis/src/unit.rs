// SPDX-License-Identifier: Apache-2.0
//! Units of the log: all that the leader's clients wrote in one turn of its event loop. A unit is applied as a
//! whole at every replica or at none.
//!
//! A unit is longer than a value of the group may be, so it is cut into fragments, each a proposal:
//!
//! ```text
//!  0 u8  format: 1
//!  1 u8  bit 0: the first fragment of its unit; bit 1: the last one
//!  2 u64 session: the process that leads, and the state that it began with
//! 10 u64 number of the unit in its session, from 1
//! 18     content: commands in Redis' protocol ([`crate::stream`])
//! ```
//!
//! A leader that dies may leave the first fragments of a unit decided. Nothing of that unit was acknowledged,
//! and the fragments are dropped when the next leader's first unit begins.

/// Bytes before the content of a fragment.
pub const HEADER_LEN: usize = 18;
const FORMAT: u8 = 1;
const FIRST: u8 = 1;
const LAST: u8 = 2;

/// A unit that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    pub session: u64,
    pub number: u64,
    pub content: Vec<u8>,
}

/// Why an entry of the log is no fragment: a newer version of this module wrote it, and this process cannot
/// know what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("an entry of {0} bytes; a fragment has {HEADER_LEN} at least")]
    Short(usize),
    #[error("an entry of format {0}; this module reads format {FORMAT}, so update it")]
    Format(u8),
}

/// Cuts a unit into fragments of at most `max` bytes each, in order.
pub fn fragments(session: u64, number: u64, content: &[u8], max: usize) -> impl Iterator<Item = Vec<u8>> {
    let room = max.saturating_sub(HEADER_LEN).max(1);
    let count = content.len().div_ceil(room).max(1);
    (0..count).map(move |at| {
        let part = &content[at * room..content.len().min((at + 1) * room)];
        let flags = if at == 0 { FIRST } else { 0 } | if at + 1 == count { LAST } else { 0 };
        let mut fragment = Vec::with_capacity(HEADER_LEN + part.len());
        fragment.extend([FORMAT, flags]);
        fragment.extend(session.to_le_bytes());
        fragment.extend(number.to_le_bytes());
        fragment.extend_from_slice(part);
        fragment
    })
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

    /// The next entry of the log. Returns the unit that it completes.
    ///
    /// # Errors
    /// [`UnitError`].
    pub fn push(&mut self, entry: &[u8]) -> Result<Option<Unit>, UnitError> {
        let Some((header, part)) = entry.split_at_checked(HEADER_LEN) else {
            return Err(UnitError::Short(entry.len()));
        };
        if header[0] != FORMAT {
            return Err(UnitError::Format(header[0]));
        }
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let (flags, session, number) = (header[1], word(2), word(10));
        if flags & FIRST != 0 {
            self.open = Some(Unit { session, number, content: Vec::new() });
        }
        let Some(open) = self.open.as_mut().filter(|open| (open.session, open.number) == (session, number)) else {
            // The rest of a unit whose beginning nobody decided.
            self.open = None;
            return Ok(None);
        };
        open.content.extend_from_slice(part);
        Ok(if flags & LAST == 0 { None } else { self.open.take() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unit_of_a_dead_leader_is_dropped_when_the_next_one_begins() {
        let mut assembly = Assembly::default();
        let dead: Vec<_> = fragments(1, 9, &[7; 100], 40).collect();
        for fragment in &dead[..dead.len() - 1] {
            assert_eq!(assembly.push(fragment), Ok(None));
        }
        let next = fragments(2, 1, b"new", 40).next().unwrap();
        let unit = Unit { session: 2, number: 1, content: b"new".to_vec() };
        assert_eq!(assembly.push(&next), Ok(Some(unit)));
        assert_eq!(assembly.push(&dead[dead.len() - 1]), Ok(None), "its beginning is gone");
    }

    #[test]
    fn entries_of_other_versions_are_refused() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.push(&[1; 3]), Err(UnitError::Short(3)));
        assert_eq!(assembly.push(&[2; 30]), Err(UnitError::Format(2)));
    }

    proptest! {
        #[test]
        fn units_come_back_whole_and_in_order(units in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6), max in 19usize..80) {
            let mut assembly = Assembly::default();
            let mut back = Vec::new();
            for (content, number) in units.iter().zip(1..) {
                for fragment in fragments(5, number, content, max) {
                    prop_assert!(fragment.len() <= max);
                    back.extend(assembly.push(&fragment).unwrap());
                }
            }
            let want: Vec<_> = units.into_iter().zip(1..).map(|(content, number)| Unit { session: 5, number, content }).collect();
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
