// SPDX-License-Identifier: Apache-2.0
//! The last decisions: what somebody lacks whose state is a little older.

use std::collections::{BTreeMap, VecDeque};

use super::entry::{Entry, entries_but_values};
use crate::{
    batch,
    transfer::{self, Identity},
    view::View,
};

/// Payloads that decisions which are kept may name: half of what a host may hold, or small ones would use up the room for new ones.
const NAMES_MAX: usize = transfer::PAYLOADS_MAX / 2;

/// Bytes of values that lie together; few in tests, so that they cross the bounds.
const CHUNK_LEN: usize = if cfg!(test) { 64 } else { 64 << 10 };

/// The values of some positions, one after the other: written and given up in their order, without looking elsewhere.
#[derive(Debug, Clone, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Bytes of values that are not kept any more.
    gone: usize,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    len: u32,
    /// It names a payload: to be looked at again when it goes.
    names: bool,
}

/// The values of the last positions, as many as there is room for.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    /// Position of the last one.
    last: u64,
    values: VecDeque<Kept>,
    chunks: VecDeque<Chunk>,
    /// Bytes of the values as [`Tail::since`] gives them, and of the payloads that they name.
    weight: u64,
    weight_max: u64,
    spare: Vec<Chunk>,
    /// How often the values name a payload.
    names: BTreeMap<Identity, u32>,
    unnamed: Vec<Identity>,
}

impl Tail {
    /// `weight_max`: bytes of values and of payloads; what [`Tail::since`] gives is no longer.
    pub(super) fn new(last: u64, weight_max: u64) -> Self {
        Self {
            last,
            values: VecDeque::new(),
            chunks: VecDeque::new(),
            weight: 0,
            weight_max,
            spare: Vec::new(),
            names: BTreeMap::new(),
            unnamed: Vec::new(),
        }
    }

    /// States at this position or later can be brought up to date.
    pub(super) fn reaches_from(&self) -> u64 {
        self.last - self.values.len() as u64
    }

    pub(super) fn names(&self, identity: &Identity) -> bool {
        self.names.contains_key(identity)
    }

    /// Payloads that the values have named, and do not any more. Taken out.
    pub(super) fn unnamed(&mut self) -> impl Iterator<Item = Identity> {
        self.unnamed.drain(..)
    }

    /// The next decision. The oldest make room for it. The view that it has, if it does.
    ///
    /// # Panics
    /// If the value is longer than 4 GiB.
    pub(super) fn push(&mut self, value: &[u8]) -> Option<View> {
        self.last += 1;
        let fits = self.chunks.back().is_some_and(|chunk| chunk.bytes.len() + value.len() <= CHUNK_LEN);
        if !fits {
            let fresh = self.spare.pop();
            self.chunks.push_back(fresh.unwrap_or_else(|| Chunk { bytes: Vec::with_capacity(CHUNK_LEN), gone: 0 }));
        }
        let bytes = &mut self.chunks.back_mut().expect("one with room").bytes;
        let at = bytes.len();
        bytes.extend_from_slice(value);
        let (mut names, mut next) = (false, None);
        // Of the copy: to look for the next length in what is not in the cache costs more than to copy it first.
        for entry in entries_but_values(&bytes[at..]) {
            match entry {
                Entry::Value(_) => {}
                Entry::Payload(identity) => {
                    names = true;
                    *self.names.entry(identity).or_default() += 1;
                    self.weight = self.weight.saturating_add(identity.len);
                }
                Entry::View(view) => next = Some(view),
            }
        }
        self.weight = self.weight.saturating_add(written_len(value.len()));
        self.values.push_back(Kept { len: u32::try_from(value.len()).expect("a value below 4 GiB"), names });
        while self.weight > self.weight_max || self.names.len() > NAMES_MAX {
            let Some(old) = self.values.pop_front() else {
                self.weight = 0;
                break;
            };
            self.forget(old);
        }
        next
    }

    /// The oldest, taken from its place.
    fn forget(&mut self, Kept { len, names }: Kept) {
        let len = len as usize;
        self.weight = self.weight.saturating_sub(written_len(len));
        if len > 0 {
            self.leave_chunk();
        }
        let Some(chunk) = self.chunks.front_mut() else { return };
        let value = &chunk.bytes[chunk.gone..][..len];
        chunk.gone += len;
        if !names {
            // Not looked at: it has left the cache.
            return;
        }
        for entry in entries_but_values(value) {
            let Entry::Payload(identity) = entry else { continue };
            self.weight = self.weight.saturating_sub(identity.len);
            if let Some(count) = self.names.get_mut(&identity) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(&identity);
                    self.unnamed.push(identity);
                }
            }
        }
    }

    /// Nothing of the first chunk is kept: it begins anew, later.
    fn leave_chunk(&mut self) {
        while let Some(mut chunk) = self.chunks.pop_front_if(|chunk| chunk.gone == chunk.bytes.len()) {
            chunk.bytes.clear();
            chunk.bytes.shrink_to(CHUNK_LEN);
            chunk.gone = 0;
            self.spare.push(chunk);
        }
    }

    /// The values that are kept, in their order.
    fn kept(&self) -> impl Iterator<Item = &[u8]> {
        let mut chunks = self.chunks.iter().map(|chunk| &chunk.bytes[chunk.gone..]);
        let mut rest: &[u8] = &[];
        self.values.iter().map(move |kept| {
            while rest.len() < kept.len as usize {
                rest = chunks.next().expect("every value is in a chunk");
            }
            let (value, after) = rest.split_at(kept.len as usize);
            rest = after;
            value
        })
    }

    /// The decisions after `position`, up to `until`, as a batch; none if they are not all there.
    pub(super) fn since(&self, position: u64, until: u64) -> Option<Vec<u8>> {
        let (skip, count) = (position.checked_sub(self.reaches_from())?, until.checked_sub(position)?);
        if until > self.last {
            return None;
        }
        let (skip, count) = (usize::try_from(skip).ok()?, usize::try_from(count).ok()?);
        let mut out = Vec::new();
        for value in self.kept().skip(skip).take(count) {
            batch::push(&mut out, value, usize::MAX);
        }
        Some(out)
    }
}

fn written_len(len: usize) -> u64 {
    (batch::PREFIX_LEN + len) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::entry;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_last_are_there_in_their_order(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..40), max in 0u64..200) {
            let mut tail = Tail::new(100, max);
            for value in &values {
                tail.push(value);
            }
            let last = 100 + values.len() as u64;
            let from = tail.reaches_from();
            let kept: usize = values[(from - 100) as usize..].iter().map(|value| value.len() + batch::PREFIX_LEN).sum();
            prop_assert!(from >= 100 && kept as u64 <= max);
            prop_assert_eq!(tail.since(from.wrapping_sub(1), last), None);
            prop_assert_eq!(tail.since(from, last + 1), None);
            for position in from..=last {
                let batch = tail.since(position, last).unwrap();
                let want: Vec<&[u8]> = values[(position - 100) as usize..].iter().map(Vec::as_slice).collect();
                prop_assert_eq!(batch::values(&batch).collect::<Vec<_>>(), want);
            }
        }
    }

    #[test]
    fn many_small_payloads_leave_room_for_new_ones() {
        let mut tail = Tail::new(0, 1 << 20);
        let identity = |number: usize| Identity::of(&number.to_le_bytes());
        for number in 0..2 * NAMES_MAX {
            let mut entry = vec![entry::PAYLOAD];
            identity(number).write(&mut entry);
            let mut batch = Vec::new();
            batch::push(&mut batch, &entry, usize::MAX);
            tail.push(&batch);
        }
        assert_eq!(tail.unnamed().collect::<Vec<_>>(), (0..NAMES_MAX).map(identity).collect::<Vec<_>>());
        assert!(tail.names(&identity(NAMES_MAX)) && tail.names(&identity(2 * NAMES_MAX - 1)));
    }

    #[test]
    fn a_payload_is_given_up_with_the_last_decision_that_names_it() {
        let value = |payload: &[u8]| {
            let mut entry = vec![entry::PAYLOAD];
            Identity::of(payload).write(&mut entry);
            let mut batch = Vec::new();
            batch::push(&mut batch, &entry, usize::MAX);
            batch
        };
        let (long, short) = (Identity::of(&[7; 1000]), Identity::of(b"x"));
        let mut tail = Tail::new(0, 1200);
        tail.push(&value(&[7; 1000]));
        tail.push(&value(b"x"));
        assert!(tail.names(&long) && tail.names(&short));
        tail.push(&value(&[7; 1000]));
        assert_eq!((tail.unnamed().count(), tail.reaches_from()), (0, 1), "named again");
        tail.push(&value(&[8; 1100]));
        assert_eq!(tail.unnamed().collect::<Vec<_>>(), [short, long]);
    }
}
