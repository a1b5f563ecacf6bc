// SPDX-License-Identifier: Apache-2.0
//! Many proposals in one instance: each with its length before it, as `u32`, little-endian.

/// Bytes before each proposal.
pub const PREFIX_LEN: usize = 4;

/// Appends a proposal, if the batch stays within `max` bytes.
///
/// # Panics
/// If `value` is longer than 4 GiB.
pub fn push(batch: &mut Vec<u8>, value: &[u8], max: usize) -> bool {
    push_tagged(batch, None, value, max)
}

/// As [`push`], for a proposal with a byte before it.
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

/// The proposals of a batch, in their order; ends where it is no batch any more.
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
        fn what_fits_comes_back_in_its_order(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20), max in 0usize..200) {
            let mut batch = Vec::new();
            let kept: Vec<_> = all.iter().filter(|value| push(&mut batch, value, max)).collect();
            prop_assert!(batch.len() <= max);
            prop_assert_eq!(values(&batch).collect::<Vec<_>>(), kept);
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(values(&bytes).count() <= 25);
        }
    }
}
