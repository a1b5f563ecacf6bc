// SPDX-License-Identifier: Apache-2.0
//! Records of a log's segment, little-endian, each at a multiple of 8:
//!
//! ```text
//!  0 u32 length of kind and content, never 0
//!  4 u32 CRC-32C of the segment's number, of everything after this field, and of nothing of the padding
//!  8 u64 offset up to which the segment was synced when this record was written
//! 16 u8 kind, and its content:
//!     member (1):   u32 incarnation, u32 ballot, u64 position after which the view begins, the view
//!     decision (2): u64 position, the value
//!     payload (3):  identity, the payload; it is named by the next decision
//!     state (4):    nothing; the first record of a segment. What follows belongs to another state of the user
//! ```
//!
//! Behind the last record are zeros.

use fide_agreement::{Identity, View};

/// Bytes of a record before its kind.
const HEAD: usize = 16;
const ALIGN: usize = 8;
/// Longest record: a payload of the longest kind.
const LEN_MAX: usize = 1 << 30;
/// Longest payload of a decision.
pub(crate) const PAYLOAD_MAX: u64 = LEN_MAX as u64 - 64;

/// What a segment begins with, before its number.
const MAGIC: &[u8; 8] = b"FIDELOG1";
/// Bytes before the first record.
pub(super) const SEGMENT_HEAD: usize = 16;

/// The last membership of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) incarnation: u32,
    pub(super) ballot: u32,
    pub(super) view: View,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record<'a> {
    Member { membership: Membership, start: u64 },
    Decision { position: u64, value: &'a [u8] },
    Payload { identity: Identity, bytes: &'a [u8] },
    State,
}

pub(super) fn segment_head(number: u64) -> [u8; SEGMENT_HEAD] {
    let mut head = [0; SEGMENT_HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..].copy_from_slice(&number.to_le_bytes());
    head
}

fn checksum(number: u64, rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), rest)
}

/// Appends a record to `out`, which begins at a multiple of 8 of segment `number`.
pub(super) fn push(out: &mut Vec<u8>, number: u64, synced: u64, record: &Record<'_>) {
    let at = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&synced.to_le_bytes());
    match record {
        Record::Member { membership, start } => {
            out.push(1);
            out.extend_from_slice(&membership.incarnation.to_le_bytes());
            out.extend_from_slice(&membership.ballot.to_le_bytes());
            out.extend_from_slice(&start.to_le_bytes());
            membership.view.write(out);
        }
        Record::Decision { position, value } => {
            out.push(2);
            out.extend_from_slice(&position.to_le_bytes());
            out.extend_from_slice(value);
        }
        Record::Payload { identity, bytes } => {
            out.push(3);
            identity.write(out);
            out.extend_from_slice(bytes);
        }
        Record::State => out.push(4),
    }
    let len = u32::try_from(out.len() - at - HEAD).expect("a record below 4 GiB");
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    let sum = checksum(number, &out[at + 8..]);
    out[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

/// A record that was read, and what is known of the segment by it.
pub(super) struct Read<'a> {
    pub(super) record: Record<'a>,
    pub(super) synced: u64,
    /// Where the next one begins.
    pub(super) end: usize,
}

/// The record at `at`; none if there is no whole one.
pub(super) fn read(segment: &[u8], number: u64, at: usize) -> Option<Read<'_>> {
    let len = whole_len(segment, number, at)?;
    let body = segment.get(at + HEAD..at + HEAD + len)?;
    let synced = u64::from_le_bytes(*segment.get(at + 8..)?.first_chunk()?);
    let (&kind, content) = body.split_first()?;
    let half = |at: usize| Some(u32::from_le_bytes(*content.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_le_bytes(*content.get(at..)?.first_chunk()?));
    let record = match kind {
        1 => {
            let view = View::read(content.get(16..)?).ok()?;
            Record::Member { membership: Membership { incarnation: half(0)?, ballot: half(4)?, view }, start: long(8)? }
        }
        2 => Record::Decision { position: long(0)?, value: content.get(8..)? },
        3 => {
            let (identity, bytes) = content.split_at_checked(Identity::LEN)?;
            Record::Payload { identity: Identity::read(identity).ok()?, bytes }
        }
        4 if content.is_empty() => Record::State,
        _ => return None,
    };
    Some(Read { record, synced, end: (at + HEAD + len).next_multiple_of(ALIGN) })
}

/// Where the records of a segment end, and why.
pub(super) struct End {
    pub(super) at: usize,
    /// The record there was damaged: a later one says that it was synced.
    pub(super) damaged: bool,
    /// The record there is whole, and says something that this version does not know.
    pub(super) is_unknown: bool,
}

/// The length of what a record says, if its checksum fits.
fn whole_len(segment: &[u8], number: u64, at: usize) -> Option<usize> {
    let word = |at: usize| Some(u32::from_le_bytes(*segment.get(at..)?.first_chunk()?));
    let len = word(at)? as usize;
    if len == 0 || len > LEN_MAX {
        return None;
    }
    let sum = checksum(number, segment.get(at + 8..at + HEAD + len)?);
    (word(at + 4)? == sum).then_some(len)
}

/// Whether a segment was not begun: not all of its head is there, and nothing behind it. Once it was, the one before is
/// complete.
pub(super) fn has_no_head(segment: &[u8], number: u64) -> bool {
    let (head, rest) = segment.split_at(segment.len().min(SEGMENT_HEAD));
    let is_part = head.iter().zip(segment_head(number)).all(|(byte, of_head)| *byte == of_head || *byte == 0);
    is_part && head != segment_head(number) && rest.iter().all(|byte| *byte == 0)
}

/// Reads a segment from its beginning. `each` is called with every record and where it begins; it stops the
/// reading by an error.
///
/// # Errors
/// Those of `each`.
pub(super) fn scan<E>(
    segment: &[u8],
    number: u64,
    mut each: impl FnMut(usize, Record<'_>) -> Result<(), E>,
) -> Result<End, E> {
    if segment.get(..SEGMENT_HEAD) != Some(&segment_head(number)) {
        let damaged = segment.iter().any(|byte| *byte != 0) && segment.len() > SEGMENT_HEAD;
        return Ok(End { at: 0, damaged, is_unknown: false });
    }
    let mut at = SEGMENT_HEAD;
    while let Some(read) = read(segment, number, at) {
        each(at, read.record)?;
        at = read.end;
    }
    // A write that was cut off may have left later records whole. None of them was synced. What a record says of
    // itself is looked at before its checksum: there are as many places to look at as there are bytes.
    let is_beyond = |later: usize| {
        let synced = segment.get(later + 8..).and_then(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)));
        let may_be = synced.is_some_and(|synced| synced > at as u64 && synced <= later as u64)
            && matches!(segment.get(later + HEAD), Some(1..=4));
        may_be && read(segment, number, later).is_some_and(|read| read.synced > at as u64)
    };
    let damaged = (at + ALIGN..segment.len()).step_by(ALIGN).any(is_beyond);
    Ok(End { at, damaged, is_unknown: whole_len(segment, number, at).is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_agreement::ViewMember;
    use proptest::prelude::*;

    fn segment(number: u64, values: &[Vec<u8>], synced: usize) -> Vec<u8> {
        let mut bytes = segment_head(number).to_vec();
        let mut done = bytes.len();
        for (at, value) in values.iter().enumerate() {
            push(&mut bytes, number, done as u64, &Record::Decision { position: at as u64 + 1, value });
            if at < synced {
                done = bytes.len();
            }
        }
        bytes.resize(bytes.len() + 64, 0);
        bytes
    }

    fn positions(bytes: &[u8], number: u64) -> (Vec<u64>, End) {
        let mut positions = Vec::new();
        let end = scan(bytes, number, |_, record| {
            if let Record::Decision { position, .. } = record {
                positions.push(position);
            }
            Ok::<_, ()>(())
        });
        (positions, end.unwrap())
    }

    fn any_record() -> impl Strategy<Value = (u8, u64, u32, Vec<u8>)> {
        (0u8..4, any::<u64>(), 1u32.., prop::collection::vec(any::<u8>(), 0..200))
    }

    proptest! {
        #[test]
        fn written_record_reads_back((kind, long, half, bytes) in any_record(), number in any::<u64>()) {
            let view = View::new(half, &[ViewMember { host: 3, incarnation: half }]).unwrap();
            let record = match kind {
                0 => Record::Member { membership: Membership { incarnation: half, ballot: half, view }, start: long },
                1 => Record::Decision { position: long, value: &bytes },
                2 => Record::Payload { identity: Identity::of(&bytes), bytes: &bytes },
                _ => Record::State,
            };
            let mut out = Vec::new();
            push(&mut out, number, long, &record);
            let got = read(&out, number, 0).unwrap();
            prop_assert_eq!((got.record, got.synced, got.end), (record, long, out.len()));
            prop_assert!(read(&out, number.wrapping_add(1), 0).is_none(), "of another segment");
        }

        #[test]
        fn any_bytes_are_records_or_not(mut bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..300) {
            let _ = read(&bytes, 1, at);
            bytes.splice(0..0, segment_head(1));
            scan(&bytes, 1, |_, _| Ok::<_, ()>(())).unwrap();
        }

        /// However a crash leaves the end, all that was synced is read, and no record that was not written.
        #[test]
        fn torn_end_is_cut(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..12), synced in 0usize..12, torn in 0usize..400) {
            let synced = synced.min(values.len() - 1);
            let mut bytes = segment(5, &values, synced);
            // Records up to `synced` were on disk when the next one was written.
            let (mut ends, mut at) = (Vec::new(), SEGMENT_HEAD);
            while let Some(read) = read(&bytes, 5, at) {
                ends.push(read.end);
                at = read.end;
            }
            let kept = if synced == 0 { SEGMENT_HEAD } else { ends[synced - 1] };
            let from = (kept + torn).min(bytes.len());
            bytes[from..].fill(0);
            let (positions, end) = positions(&bytes, 5);
            prop_assert!(positions.len() >= synced && !end.damaged);
            prop_assert_eq!(&positions, &(1..=positions.len() as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn record_of_a_later_version_is_no_torn_end() {
        let mut bytes = segment(1, &[b"one".to_vec()], 1);
        let at = read(&bytes, 1, SEGMENT_HEAD).unwrap().end;
        bytes.truncate(at);
        push(&mut bytes, 1, 0, &Record::State);
        bytes[at + HEAD] = 9;
        let sum = checksum(1, &bytes[at + 8..at + HEAD + 1]);
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        let (read, end) = positions(&bytes, 1);
        assert_eq!((read, end.at, end.is_unknown), (vec![1], at, true));
        bytes[at + HEAD] = 8;
        assert!(!positions(&bytes, 1).1.is_unknown, "its checksum does not fit");
    }

    #[test]
    fn damaged_record_before_a_synced_one_is_told_from_a_torn_end() {
        let values = [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()];
        let mut bytes = segment(1, &values, 3);
        // The second record.
        let at = read(&bytes, 1, SEGMENT_HEAD).unwrap().end;
        bytes[at + 20] ^= 1;
        let (read, end) = positions(&bytes, 1);
        // The third one says that the first two were synced.
        assert_eq!((read, end.at, end.damaged), (vec![1], at, true));
    }
}
