// SPDX-License-Identifier: Apache-2.0
//! The entries that the shell stores: the handler's bytes, the request numbers and the upcalls.
//!
//! A decision is one record of the store, or several in a row if it is too large for one. Without the last
//! of them it was not made: a leader that was killed in between has answered nobody.

use fide_controller_api::identity::Identity;
use fide_controller_api::sequence::Sequence;
use serde::{Deserialize, Serialize};

use crate::handler::{Handler, RestoreError};
use crate::sequence::{Kept, Sequences};
use crate::store::{self, Loaded};
use crate::upcalls::Upcalls;

/// The first byte of a record and of a snapshot. A higher one is refused.
const FORMAT: u8 = 2;
/// Bytes of one decision. A larger one is taken back.
pub(crate) const ENTRY_MAX: usize = 16 * 1024 * 1024;
/// Bytes of a record's header: format and [`Kind`].
const HEAD: usize = 2;

/// The second byte of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A decision.
    Whole = 0,
    /// The first part of a decision. Earlier parts without an end are ignored.
    First = 1,
    More = 2,
    Last = 3,
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) peer: Identity,
    pub(super) sequence: Sequence,
    pub(super) digest: u64,
    pub(super) answer: Kept,
}

/// One decision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) core: Option<Vec<u8>>,
    pub(super) done: Option<Done>,
    /// Each event with all peers that get the same.
    pub(super) upcalls: Vec<(Vec<Identity>, String)>,
    pub(super) acknowledged: Vec<(Identity, u64)>,
    pub(super) forget: Vec<Identity>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Whole {
    pub(super) core: Vec<u8>,
    pub(super) sequences: Sequences,
    pub(super) upcalls: Upcalls,
}

pub(super) fn encode<T: Serialize>(what: &T) -> Result<Vec<u8>, RestoreError> {
    postcard::to_extend(what, vec![FORMAT]).map_err(|e| RestoreError(e.to_string()))
}

/// The content after the format.
fn body<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a [u8], RestoreError> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => Ok(rest),
        Some((found, _)) => Err(RestoreError(format!(
            "the stored {what} has format {found}, this program knows format {FORMAT}; use the program that wrote it"
        ))),
        None => Err(RestoreError(format!("the stored {what} is empty"))),
    }
}

fn decode<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, RestoreError> {
    postcard::from_bytes(body(what, bytes)?)
        .map_err(|e| RestoreError(format!("the stored {what} cannot be read ({e})")))
}

/// Upcalls in their order; equal ones in a row are grouped.
pub(super) fn grouped(upcalls: &[(Identity, String)]) -> Vec<(Vec<Identity>, String)> {
    let same = upcalls.chunk_by(|(_, one), (_, other)| one == other);
    same.map(|group| (group.iter().map(|(peer, _)| *peer).collect(), group[0].1.clone())).collect()
}

/// The records of `entry`: all but the last, and the last.
pub(super) fn records(entry: &Entry) -> Result<(Vec<Vec<u8>>, Vec<u8>), RestoreError> {
    let wrong = |why: String| RestoreError(why);
    let bytes = postcard::to_allocvec(entry).map_err(|e| wrong(e.to_string()))?;
    let record = |kind: Kind, bytes: &[u8]| [&[FORMAT, kind as u8][..], bytes].concat();
    if bytes.len() > ENTRY_MAX {
        return Err(wrong(format!("a record of {} bytes, at most {ENTRY_MAX} are allowed", bytes.len())));
    }
    if bytes.len() + HEAD <= store::RECORD_MAX {
        return Ok((Vec::new(), record(Kind::Whole, &bytes)));
    }
    let parts: Vec<&[u8]> = bytes.chunks(store::RECORD_MAX - HEAD).collect();
    let (last, before) = parts.split_last().ok_or_else(|| wrong("nothing to store".into()))?;
    let kinds = std::iter::once(Kind::First).chain(std::iter::repeat(Kind::More));
    Ok((kinds.zip(before).map(|(kind, part)| record(kind, part)).collect(), record(Kind::Last, last)))
}

/// The decisions in `records`.
fn entries(records: &[Vec<u8>]) -> Result<Vec<Entry>, RestoreError> {
    let wrong = |why: &str| RestoreError(format!("the stored record {why}"));
    let read = |bytes: &[u8]| postcard::from_bytes(bytes).map_err(|e| wrong(&format!("cannot be read ({e})")));
    let (mut entries, mut begun) = (Vec::new(), None::<Vec<u8>>);
    for record in records {
        let (kind, bytes) = body("record", record)?.split_first().ok_or_else(|| wrong("is empty"))?;
        match (*kind, &mut begun) {
            (kind, _) if kind == Kind::Whole as u8 => {
                begun = None;
                entries.push(read(bytes)?);
            }
            (kind, _) if kind == Kind::First as u8 => begun = Some(bytes.to_vec()),
            (kind, Some(whole)) if kind == Kind::More as u8 => whole.extend_from_slice(bytes),
            (kind, Some(whole)) if kind == Kind::Last as u8 => {
                whole.extend_from_slice(bytes);
                entries.push(read(whole)?);
                begun = None;
            }
            (kind, _) => return Err(wrong(&format!("is of kind {kind}, which does not follow what is before it"))),
        }
        if begun.as_ref().is_some_and(|whole| whole.len() > ENTRY_MAX) {
            return Err(wrong("is longer than any that is written"));
        }
    }
    Ok(entries)
}

/// Restores `handler` from `loaded`. Returns the request numbers and the upcalls.
pub(super) fn restore<H: Handler>(handler: &mut H, loaded: &Loaded) -> Result<(Sequences, Upcalls), RestoreError> {
    let whole: Option<Whole> = loaded.snapshot.as_ref().map(|s| decode("snapshot", &s.state)).transpose()?;
    let entries = entries(&loaded.records)?;
    let cores: Vec<&[u8]> = entries.iter().filter_map(|entry| entry.core.as_deref()).collect();
    handler.restore(whole.as_ref().map(|whole| &whole.core[..]), &cores)?;
    let (mut sequences, mut upcalls) = whole.map(|w| (w.sequences, w.upcalls)).unwrap_or_default();
    for entry in entries {
        for (peer, after) in entry.acknowledged {
            // An acknowledged event was there; if it is not, it is delivered again.
            let _ = upcalls.acknowledge(peer, after);
        }
        if let Some(Done { peer, sequence, digest, answer }) = entry.done {
            sequences.record(peer, sequence, digest, answer);
        }
        for (peers, body) in entry.upcalls {
            for peer in peers {
                upcalls.push(peer, body.clone()).map_err(|e| RestoreError(e.to_string()))?;
            }
        }
        for peer in entry.forget {
            sequences.forget(peer);
            upcalls.forget(peer);
        }
    }
    Ok((sequences, upcalls))
}
