// SPDX-License-Identifier: Apache-2.0
//! The tail of the log: the last decisions, kept while a host joins whose state is a little older, and the
//! payloads that decisions named.

use std::collections::{BTreeMap, VecDeque};

use super::entry::{Entry, entries_but_values};
use crate::{
    batch,
    transfer::{self, Identity},
    view::View,
};

/// Most payloads that are kept because decisions named them: half of what a host may store, or many small
/// ones would use up the room for new ones.
const NAMES_MAX: usize = transfer::PAYLOADS_MAX / 2;

/// Resends of this member without a request to join, after which nothing is kept for hosts that join. A
/// joining host asks at each of its resends, and may be many times slower than this member.
const UNASKED_RESENDS: u32 = 256;

/// Bytes of a chunk of values; few in tests, so that values cross chunks.
const CHUNK_LEN: usize = if cfg!(test) { 64 } else { 64 << 10 };

/// The values of consecutive positions, written and dropped in their order, without touching other memory.
#[derive(Debug, Clone, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Bytes at the beginning that belong to dropped values.
    gone: usize,
}

/// The values of the last positions and the payloads that they name, as many as there is room for.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    /// The last position.
    last: u64,
    /// Whether values are kept. Nobody needs them while no host joins, and copying them costs a walk through
    /// memory.
    keeps: bool,
    /// Resends since a host asked to join, while values are kept.
    unasked: u32,
    /// Lengths of the kept values.
    values: VecDeque<u32>,
    chunks: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    /// The kept payloads, with the position of the decision that named each.
    payloads: VecDeque<(u64, Identity)>,
    /// Payloads that the last decision named.
    last_named: Vec<Identity>,
    /// How often each payload is in `payloads`.
    names: BTreeMap<Identity, u32>,
    /// Payloads that left `names` and were not polled yet.
    unnamed: VecDeque<Identity>,
    /// Bytes of the values as [`Tail::since`] writes them, and of the payloads.
    weight: u64,
    weight_max: u64,
}

impl Tail {
    /// `weight_max`: most bytes of values and payloads; a batch of [`Tail::since`] is no longer than that.
    pub(super) fn new(last: u64, weight_max: u64) -> Self {
        Self {
            last,
            keeps: false,
            unasked: 0,
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

    /// A host asks to join: values are kept from now on.
    pub(super) fn keep(&mut self) {
        self.keeps = true;
        self.unasked = 0;
    }

    /// To be called at each resend: drops all values once no host has asked to join for long. Whether it did.
    pub(super) fn expire(&mut self) -> bool {
        self.unasked += u32::from(self.keeps);
        let is_over = self.unasked >= UNASKED_RESENDS;
        if is_over {
            self.unasked = 0;
            self.keep_nothing();
        }
        is_over
    }

    fn keep_nothing(&mut self) {
        let values = self.values.iter().map(|len| written_len(*len as usize));
        self.weight = self.weight.saturating_sub(values.sum());
        (self.values, self.chunks, self.spare) = (VecDeque::new(), VecDeque::new(), Vec::new());
        self.keeps = false;
    }

    #[cfg(test)]
    pub(super) fn keeps(&self) -> bool {
        self.keeps
    }

    /// A state at this position or later can be brought up to date.
    pub(super) fn reaches_from(&self) -> u64 {
        self.last - self.values.len() as u64
    }

    /// Whether a kept decision names a payload.
    pub(super) fn names(&self, identity: &Identity) -> bool {
        self.names.contains_key(identity)
    }

    /// Payloads that the last decision named.
    pub(super) fn last_named(&self) -> impl Iterator<Item = &Identity> {
        self.last_named.iter()
    }

    /// The next payload that no kept decision names any more.
    pub(super) fn pop_unnamed(&mut self) -> Option<Identity> {
        self.unnamed.pop_front()
    }

    /// Appends the next decision, for which the oldest ones make room. Returns the view that it contains, if
    /// any.
    ///
    /// # Panics
    /// If the value is longer than 4 GiB.
    pub(super) fn push(&mut self, value: &[u8]) -> Option<View> {
        self.last += 1;
        // Reads the copy, if there is one: reading lengths from memory that is not cached costs more than
        // copying it first.
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

    /// Drops the value and the payloads of the oldest position. The value itself is not read, as it has left
    /// the cache.
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
                self.recycle_chunks();
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

    /// Recycles first chunks of which no value is kept.
    fn recycle_chunks(&mut self) {
        while let Some(mut chunk) = self.chunks.pop_front_if(|chunk| chunk.gone == chunk.bytes.len()) {
            chunk.bytes.clear();
            chunk.bytes.shrink_to(CHUNK_LEN);
            chunk.gone = 0;
            self.spare.push(chunk);
        }
    }

    /// The kept values, in order.
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

    /// The decisions after `position` up to `until`, as a batch; none if not all of them are kept.
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
        fn last_values_are_kept_in_order(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..40), unkept in 0usize..40, max in 0u64..200) {
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
    fn empty_payload_named_again_and_again_uses_no_memory() {
        let mut tail = Tail::new(0, 1 << 20);
        let empty = Identity::of(b"");
        (0..3 * NAMES_MAX).for_each(|_| assert_eq!(tail.push(&naming(&empty)), None));
        assert!(tail.names(&empty) && tail.payloads.len() == NAMES_MAX);
    }

    #[test]
    fn payload_is_dropped_with_the_last_decision_that_names_it() {
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
        // The oldest position goes first, though its value is not kept any more.
        tail.keep();
        (0..20).for_each(|_| assert_eq!(tail.push(&[0; 10]), None));
        assert_eq!((unnamed(&mut tail), tail.reaches_from()), (vec![identity], 2));
    }
}
