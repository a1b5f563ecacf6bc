// SPDX-License-Identifier: Apache-2.0
//! Huge pages for the memory that a measurement writes to: they need fewer entries in the translation cache,
//! so the hot path has fewer misses.

use std::{io, mem::MaybeUninit};

/// Size of a huge page, bytes.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// The kind of pages that memory should lie on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Whatever pages the kernel chooses.
    #[default]
    Usual,
    /// Huge pages where they can be had: reserved ones (`vm.nr_hugepages`) for memory that is shared with a
    /// card, transparent ones for the rest.
    Huge,
}

/// Makes room for `len` values, on huge pages as far as the kernel has them. Also returns a text about the
/// outcome.
pub(crate) fn room<T>(len: usize, pages: Pages) -> (Vec<T>, String) {
    let mut values = Vec::new();
    values.reserve_exact(len);
    if pages == Pages::Usual {
        return (values, "not asked for".to_owned());
    }
    let state = match ask(values.spare_capacity_mut()) {
        Ok(0) => "not for the results: they are smaller than a page".to_owned(),
        Ok(bytes) => format!("asked for, for {} MiB of results", bytes >> 20),
        Err(error) => format!("not for the results: {error}"),
    };
    (values, state)
}

/// Asks for huge pages for the part of `room` that they can cover. Returns how many bytes that is.
fn ask<T>(room: &mut [MaybeUninit<T>]) -> io::Result<usize> {
    let (start, bytes) = (room.as_mut_ptr() as usize, size_of_val(room));
    let from = start.next_multiple_of(HUGE_BYTES);
    let to = (start + bytes) / HUGE_BYTES * HUGE_BYTES;
    if to <= from {
        return Ok(0);
    }
    // SAFETY: the range lies within memory that is borrowed here; the advice changes how the memory is
    // backed, not its content.
    let result = unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_HUGEPAGE) };
    if result == 0 { Ok(to - from) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_has_the_requested_size_and_names_its_pages() {
        let (few, state) = room::<u64>(100, Pages::Huge);
        assert!(few.capacity() >= 100 && state.contains("smaller than a page"), "{state}");
        let (usual, state) = room::<u64>(100, Pages::Usual);
        assert!(usual.capacity() >= 100 && state == "not asked for", "{state}");
        // 8 MiB hold three whole huge pages wherever they begin; a kernel without huge pages says so.
        let (mut many, state) = room::<u64>(1 << 20, Pages::Huge);
        assert!(state == "asked for, for 6 MiB of results" || state.starts_with("not for"), "{state}");
        many.extend(0..1 << 20);
        assert_eq!(many.iter().sum::<u64>(), (1 << 19) * ((1 << 20) - 1));
    }
}
