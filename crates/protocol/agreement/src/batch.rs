// SPDX-License-Identifier: Apache-2.0
//! A batch: many proposals in one instance. Before each proposal is its length, a little-endian `u32`.

/// Bytes before each proposal.
pub const PREFIX_LEN: usize = 4;

/// Appends a proposal if the batch stays within `max` bytes. Whether it did.
///
/// # Panics
/// If `value` is longer than 4 GiB.
pub fn push(batch: &mut Vec<u8>, value: &[u8], max: usize) -> bool {
    push_tagged(batch, None, value, max)
}

/// As [`push`], for a proposal that consists of a tag byte and `value`.
///
/// # Panics
/// If both together are longer than 4 GiB.
pub fn push_tagged(batch: &mut Vec<u8>, tag: Option<u8>, value: &[u8], max: usize) -> bool {
    let len = usize::from(tag.is_some()) + value.len();
    if batch.len() + PREFIX_LEN + len > max {
        return false;
    }
    batch.extend_from_slice(&u32::try_from(len).expect("a value below 4 GiB").to_le_bytes());
    batch.extend(tag);
    batch.extend_from_slice(value);
    true
}

/// The proposals of a batch, in order. Ends at bytes that are no proposal.
pub fn values(mut batch: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (prefix, rest) = batch.split_at_checked(PREFIX_LEN)?;
        let len = usize::try_from(u32::from_le_bytes(prefix.try_into().ok()?)).ok()?;
        let (value, rest) = rest.split_at_checked(len)?;
        batch = rest;
        Some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn proposals_that_fit_come_back_in_order(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20), max in 0usize..200) {
            let mut batch = Vec::new();
            let kept: Vec<_> = all.iter().filter(|value| push(&mut batch, value, max)).collect();
            prop_assert!(batch.len() <= max);
            prop_assert_eq!(values(&batch).collect::<Vec<_>>(), kept);
        }

        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(values(&bytes).count() <= 25);
        }
    }
}
