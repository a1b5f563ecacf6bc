// SPDX-License-Identifier: Apache-2.0
//! What the shell stores: the handler's bytes, and beside them the order of requests and the upcalls.

use serde::{Deserialize, Serialize};

use crate::handler::{Handler, RestoreError};
use crate::identity::Identity;
use crate::sequence::{Kept, Sequence, Sequences};
use crate::store::Loaded;
use crate::upcalls::Upcalls;

/// The first byte of a record and of a snapshot. A higher one is refused.
const FORMAT: u8 = 1;

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
    pub(super) upcalls: Vec<(Identity, String)>,
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

fn decode<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, RestoreError> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => {
            postcard::from_bytes(rest).map_err(|e| RestoreError(format!("the stored {what} cannot be read ({e})")))
        }
        Some((found, _)) => Err(RestoreError(format!(
            "the stored {what} has format {found}, this program knows format {FORMAT}; use the program that wrote it"
        ))),
        None => Err(RestoreError(format!("the stored {what} is empty"))),
    }
}

/// Makes `handler` what `loaded` says; the order and the upcalls that go with it.
pub(super) fn restore<H: Handler>(handler: &mut H, loaded: &Loaded) -> Result<(Sequences, Upcalls), RestoreError> {
    let whole: Option<Whole> = loaded.snapshot.as_ref().map(|s| decode("snapshot", &s.state)).transpose()?;
    let entries: Vec<Entry> = loaded.records.iter().map(|r| decode("record", r)).collect::<Result<_, _>>()?;
    let cores: Vec<&[u8]> = entries.iter().filter_map(|entry| entry.core.as_deref()).collect();
    handler.restore(whole.as_ref().map(|whole| &whole.core[..]), &cores)?;
    let (mut sequences, mut upcalls) = whole.map(|w| (w.sequences, w.upcalls)).unwrap_or_default();
    for entry in entries {
        for (peer, after) in entry.acknowledged {
            // What a peer acknowledged was there; if not, it is delivered again.
            let _ = upcalls.acknowledge(peer, after);
        }
        if let Some(Done { peer, sequence, digest, answer }) = entry.done {
            sequences.record(peer, sequence, digest, answer);
        }
        for (peer, body) in entry.upcalls {
            upcalls.push(peer, body).map_err(|e| RestoreError(e.to_string()))?;
        }
        for peer in entry.forget {
            sequences.forget(peer);
            upcalls.forget(peer);
        }
    }
    Ok((sequences, upcalls))
}
