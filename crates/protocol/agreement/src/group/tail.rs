// SPDX-License-Identifier: Apache-2.0
//! The last decisions, while somebody lacks them whose state is a little older, and the payloads that decisions have named.

use std::collections::{BTreeMap, VecDeque};

use super::entry::{Entry, entries_but_values};
use crate::{
    batch,
    transfer::{self, Identity},
    view::View,
};

/// Payloads that decisions may have named and are kept: half of what a host may hold, or small ones would use up the room for new ones.
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

/// The values of the last positions, and payloads, as many as there is room for.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    /// Position of the last one.
    last: u64,
    /// Values are kept. Nobody needs them as long as nobody joins, and to copy them costs a walk through memory.
    keeps: bool,
    /// Lengths of the values that are kept.
    values: VecDeque<u32>,
    chunks: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    /// What was named, at which position.
    payloads: VecDeque<(u64, Identity)>,
    /// What the last decision named.
    last_named: Vec<Identity>,
    /// How often.
    names: BTreeMap<Identity, u32>,
    unnamed: VecDeque<Identity>,
    /// Bytes of the values as [`Tail::since`] gives them, and of the payloads.
    weight: u64,
    weight_max: u64,
}

impl Tail {
    /// `weight_max`: bytes of values and of payloads; what [`Tail::since`] gives is no longer.
    pub(super) fn new(last: u64, weight_max: u64) -> Self {
        Self {
            last,
            keeps: false,
            values: VecDeque::new(),
            chunks: VecDeque::new(),
            spare: Vec::new(),
            payloads: VecDeque::new(),
            last_named: Vec::new(),
            names: BTreeMap::new(),
            unnamed: VecDeque::new(),
            weight: 0,
            weight_max,
        }
    }

    /// Values are kept from now on.
    pub(super) fn keep(&mut self) {
        self.keeps = true;
    }

    /// They are not any more, nor are those that were.
    pub(super) fn keep_nothing(&mut self) {
        let values = self.values.iter().map(|len| written_len(*len as usize));
        self.weight = self.weight.saturating_sub(values.sum());
        (self.values, self.chunks, self.spare) = (VecDeque::new(), VecDeque::new(), Vec::new());
        self.keeps = false;
    }

    pub(super) fn keeps(&self) -> bool {
        self.keeps
    }

    /// States at this position or later can be brought up to date.
    pub(super) fn reaches_from(&self) -> u64 {
        self.last - self.values.len() as u64
    }

    pub(super) fn names(&self, identity: &Identity) -> bool {
        self.names.contains_key(identity)
    }

    /// Payloads that the last decision names.
    pub(super) fn named(&self) -> impl Iterator<Item = &Identity> {
        self.last_named.iter()
    }

    /// A payload that was kept and is not any more. Taken out.
    pub(super) fn pop_unnamed(&mut self) -> Option<Identity> {
        self.unnamed.pop_front()
    }

    /// The next decision. The oldest make room for it. The view that it has, if it does.
    ///
    /// # Panics
    /// If the value is longer than 4 GiB.
    pub(super) fn push(&mut self, value: &[u8]) -> Option<View> {
        self.last += 1;
        // Of the copy, if there is one: to look for the next length in what is not in the cache costs more than to copy it first.
        let value = if self.keeps { Self::copy(&mut self.chunks, &mut self.spare, value) } else { value };
        let mut next = None;
        self.last_named.clear();
        for entry in entries_but_values(value) {
            match entry {
                Entry::Value(_) => {}
                Entry::Payload(identity) => {
                    self.payloads.push_back((self.last, identity));
                    self.last_named.push(identity);
                    *self.names.entry(identity).or_default() += 1;
                    self.weight = self.weight.saturating_add(identity.len);
                }
                Entry::View(view) => next = Some(view),
            }
        }
        if self.keeps {
            self.weight = self.weight.saturating_add(written_len(value.len()));
            self.values.push_back(u32::try_from(value.len()).expect("a value below 4 GiB"));
        }
        while self.weight > self.weight_max || self.payloads.len() > NAMES_MAX {
            self.forget_oldest();
        }
        next
    }

    fn copy<'a>(chunks: &'a mut VecDeque<Chunk>, spare: &mut Vec<Chunk>, value: &[u8]) -> &'a [u8] {
        let fits = chunks.back().is_some_and(|chunk| chunk.bytes.len() + value.len() <= CHUNK_LEN);
        if !fits {
            let fresh = spare.pop();
            chunks.push_back(fresh.unwrap_or_else(|| Chunk { bytes: Vec::with_capacity(CHUNK_LEN), gone: 0 }));
        }
        let bytes = &mut chunks.back_mut().expect("one with room").bytes;
        let at = bytes.len();
        bytes.extend_from_slice(value);
        &bytes[at..]
    }

    /// What the oldest position has here. The value itself is not looked at: it has left the cache.
    fn forget_oldest(&mut self) {
        let value = (!self.values.is_empty()).then(|| self.reaches_from() + 1);
        let payload = self.payloads.front().map(|(position, _)| *position);
        let Some(oldest) = value.into_iter().chain(payload).min() else {
            self.weight = 0;
            return;
        };
        if value == Some(oldest)
            && let Some(len) = self.values.pop_front()
        {
            let len = len as usize;
            self.weight = self.weight.saturating_sub(written_len(len));
            if len > 0 {
                self.leave_chunk();
            }
            if let Some(chunk) = self.chunks.front_mut() {
                chunk.gone += len;
            }
        }
        while let Some((_, identity)) = self.payloads.pop_front_if(|(position, _)| *position == oldest) {
            self.weight = self.weight.saturating_sub(identity.len);
            if let Some(count) = self.names.get_mut(&identity) {
                *count -= 1;
                if *count == 0 {
                    self.names.remove(&identity);
                    self.unnamed.push_back(identity);
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
        self.values.iter().map(move |len| {
            while rest.len() < *len as usize {
                rest = chunks.next().expect("every value is in a chunk");
            }
            let (value, after) = rest.split_at(*len as usize);
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

    fn unnamed(tail: &mut Tail) -> Vec<Identity> {
        std::iter::from_fn(|| tail.pop_unnamed()).collect()
    }

    proptest! {
        #[test]
        fn the_last_are_there_in_their_order(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..40), unkept in 0usize..40, max in 0u64..200) {
            let mut tail = Tail::new(100, max);
            let (before, kept) = values.split_at(unkept.min(values.len()));
            before.iter().for_each(|value| assert_eq!(tail.push(value), None));
            prop_assert_eq!(tail.reaches_from(), 100 + before.len() as u64, "nobody joins");
            tail.keep();
            kept.iter().for_each(|value| assert_eq!(tail.push(value), None));
            let last = 100 + values.len() as u64;
            let from = tail.reaches_from();
            let bytes: usize = values[(from - 100) as usize..].iter().map(|value| value.len() + batch::PREFIX_LEN).sum();
            prop_assert!(from >= 100 + before.len() as u64 && bytes as u64 <= max);
            prop_assert_eq!(tail.since(from.wrapping_sub(1), last), None);
            prop_assert_eq!(tail.since(from, last + 1), None);
            for position in from..=last {
                let batch = tail.since(position, last).unwrap();
                let want: Vec<&[u8]> = values[(position - 100) as usize..].iter().map(Vec::as_slice).collect();
                prop_assert_eq!(batch::values(&batch).collect::<Vec<_>>(), want);
            }
            tail.keep_nothing();
            prop_assert_eq!((tail.reaches_from(), tail.weight), (last, 0));
        }
    }

    fn naming(identity: &Identity) -> Vec<u8> {
        let mut entry = vec![entry::PAYLOAD];
        identity.write(&mut entry);
        let mut batch = Vec::new();
        batch::push(&mut batch, &entry, usize::MAX);
        batch
    }

    #[test]
    fn many_small_payloads_leave_room_for_new_ones() {
        let mut tail = Tail::new(0, 1 << 20);
        let identity = |number: usize| Identity::of(&number.to_le_bytes());
        for number in 0..2 * NAMES_MAX {
            tail.push(&naming(&identity(number)));
        }
        assert_eq!(unnamed(&mut tail), (0..NAMES_MAX).map(identity).collect::<Vec<_>>());
        assert!(tail.names(&identity(NAMES_MAX)) && tail.names(&identity(2 * NAMES_MAX - 1)));
    }

    #[test]
    fn an_empty_payload_that_is_named_for_ever_fills_no_memory() {
        let mut tail = Tail::new(0, 1 << 20);
        let empty = Identity::of(b"");
        (0..3 * NAMES_MAX).for_each(|_| assert_eq!(tail.push(&naming(&empty)), None));
        assert!(tail.names(&empty) && tail.payloads.len() == NAMES_MAX);
    }

    #[test]
    fn a_payload_is_given_up_with_the_last_decision_that_names_it() {
        let value = |payload: &[u8]| naming(&Identity::of(payload));
        let (long, short) = (Identity::of(&[7; 1000]), Identity::of(b"x"));
        for keeps in [false, true] {
            let mut tail = Tail::new(0, 1200);
            if keeps {
                tail.keep();
            }
            tail.push(&value(&[7; 1000]));
            tail.push(&value(b"x"));
            assert!(tail.names(&long) && tail.names(&short));
            tail.push(&value(&[7; 1000]));
            assert_eq!((unnamed(&mut tail).len(), tail.reaches_from()), (0, if keeps { 1 } else { 3 }), "named again");
            tail.push(&value(&[8; 1100]));
            assert_eq!(unnamed(&mut tail), [short, long]);
        }
    }

    #[test]
    fn payloads_outlast_the_values_that_name_them() {
        let mut tail = Tail::new(0, 1200);
        let identity = Identity::of(&[7; 1000]);
        tail.keep();
        tail.push(&naming(&identity));
        tail.push(b"");
        tail.keep_nothing();
        assert!(tail.names(&identity) && tail.weight == 1000 && tail.pop_unnamed().is_none());
        // The oldest goes first, though it is no value any more.
        tail.keep();
        (0..20).for_each(|_| assert_eq!(tail.push(&[0; 10]), None));
        assert_eq!((unnamed(&mut tail), tail.reaches_from()), (vec![identity], 2));
    }
}
