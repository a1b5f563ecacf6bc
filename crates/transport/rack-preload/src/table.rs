// SPDX-License-Identifier: Apache-2.0
//! What the library knows of descriptors, found without a lock and also by the handler of a signal.
//!
//! A slot has users only for the moment in which one of them counts itself at the entry. An entry that is taken out meanwhile is kept
//! until a later change finds its slot without users.

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, AtomicU32, Ordering},
    },
};

/// Descriptors of one page, and pages: a descriptor beyond is not ours.
const PAGE: usize = 1024;
const PAGES: usize = 1024;
pub(crate) const FDS_MAX: usize = PAGE * PAGES;

struct Slot<T> {
    entry: AtomicPtr<T>,
    users: AtomicU32,
}

type Page<T> = [Slot<T>; PAGE];

/// An entry that was taken out while its slot had users.
struct Retired<T> {
    entry: *const T,
    slot: usize,
    next: *mut Retired<T>,
}

/// Entries by descriptor.
pub(crate) struct Table<T> {
    pages: [AtomicPtr<Page<T>>; PAGES],
    retired: AtomicPtr<Retired<T>>,
    /// One more than the greatest descriptor that was ever in it.
    end: AtomicU32,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            pages: [const { AtomicPtr::new(ptr::null_mut()) }; PAGES],
            retired: AtomicPtr::new(ptr::null_mut()),
            end: AtomicU32::new(0),
        }
    }

    fn slot(&self, fd: i32) -> Option<&Slot<T>> {
        let fd = usize::try_from(fd).ok()?;
        let page = self.pages.get(fd / PAGE)?.load(Ordering::Acquire);
        // SAFETY: a page that is there stays, and was whole before it was stored.
        Some(&(unsafe { page.as_ref() }?)[fd % PAGE])
    }

    /// The entry of a descriptor.
    pub(crate) fn get(&self, fd: i32) -> Option<Arc<T>> {
        let slot = self.slot(fd)?;
        if slot.entry.load(Ordering::Relaxed).is_null() {
            return None;
        }
        slot.users.fetch_add(1, Ordering::SeqCst);
        let entry = slot.entry.load(Ordering::SeqCst);
        let found = (!entry.is_null()).then(|| {
            // SAFETY: the pointer came from `Arc::into_raw`, and the slot's own count is given back only once the slot has no users, of
            // which this is one.
            unsafe {
                Arc::increment_strong_count(entry);
                Arc::from_raw(entry)
            }
        });
        slot.users.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Whether there is an entry.
    pub(crate) fn has(&self, fd: i32) -> bool {
        self.slot(fd).is_some_and(|slot| !slot.entry.load(Ordering::Relaxed).is_null())
    }

    /// Puts an entry there; the one before. Beyond [`FDS_MAX`] nothing is kept.
    pub(crate) fn put(&self, fd: i32, entry: Option<Arc<T>>) -> Option<Arc<T>> {
        let index = usize::try_from(fd).ok().filter(|fd| *fd < FDS_MAX)?;
        if entry.is_none() && !self.has(fd) {
            return None;
        }
        let slot = self.made(index)?;
        let new = entry.map_or(ptr::null_mut(), |entry| Arc::into_raw(entry).cast_mut());
        let old = slot.entry.swap(new, Ordering::SeqCst);
        if old.is_null() {
            return None;
        }
        // SAFETY: as in `get`: the slot's own count is not given back before `free`.
        let before = unsafe {
            Arc::increment_strong_count(old);
            Arc::from_raw(old)
        };
        self.retire(Box::into_raw(Box::new(Retired { entry: old, slot: index, next: ptr::null_mut() })));
        self.free();
        Some(before)
    }

    /// Puts an entry there if there is none.
    pub(crate) fn add(&self, fd: i32, entry: Arc<T>) {
        let Some(index) = usize::try_from(fd).ok().filter(|fd| *fd < FDS_MAX) else { return };
        let Some(slot) = self.made(index) else { return };
        let new = Arc::into_raw(entry).cast_mut();
        if slot.entry.compare_exchange(ptr::null_mut(), new, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            // SAFETY: nobody has seen it.
            drop(unsafe { Arc::from_raw(new) });
        }
    }

    /// The slot of a descriptor, which is there from now on.
    fn made(&self, index: usize) -> Option<&Slot<T>> {
        let page = &self.pages[index / PAGE];
        if page.load(Ordering::Acquire).is_null() {
            let empty = || Slot { entry: AtomicPtr::new(ptr::null_mut()), users: AtomicU32::new(0) };
            let slots: Box<[Slot<T>]> = (0..PAGE).map(|_| empty()).collect();
            let new = Box::into_raw(slots).cast::<Page<T>>();
            if page.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        self.end.fetch_max(u32::try_from(index + 1).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.slot(i32::try_from(index).ok()?)
    }

    fn retire(&self, retired: *mut Retired<T>) {
        let mut head = self.retired.load(Ordering::Relaxed);
        loop {
            // SAFETY: it is this thread's until it is in the list.
            unsafe { (*retired).next = head };
            match self.retired.compare_exchange(head, retired, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn free(&self) {
        let mut at = self.retired.swap(ptr::null_mut(), Ordering::Acquire);
        while !at.is_null() {
            // SAFETY: the list was taken as a whole, and is this thread's.
            let retired = unsafe { Box::from_raw(at) };
            at = retired.next;
            let is_used = self
                .slot(i32::try_from(retired.slot).unwrap_or(-1))
                .is_some_and(|slot| slot.users.load(Ordering::SeqCst) != 0);
            if is_used {
                self.retire(Box::into_raw(retired));
            } else {
                // SAFETY: the slot's own count, once: who counts itself from now on finds another entry there.
                drop(unsafe { Arc::from_raw(retired.entry) });
            }
        }
    }

    /// One more than the greatest descriptor that was ever in it.
    pub(crate) fn end(&self) -> u32 {
        self.end.load(Ordering::Relaxed)
    }

    /// All entries, with their descriptors.
    pub(crate) fn all(&self) -> impl Iterator<Item = (i32, Arc<T>)> {
        let end = i32::try_from(self.end()).unwrap_or(i32::MAX);
        (0..end).filter_map(|fd| Some((fd, self.get(fd)?)))
    }
}

// SAFETY: entries are counted pointers, which are shared and handed on as those of `Arc`.
unsafe impl<T: Send + Sync> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn entries_are_found_replaced_and_freed() {
        let table = Table::new();
        let entry = Arc::new(7);
        for fd in [-1, 0, 3, 1023, 1024, 900_000, i32::MAX] {
            assert!(table.get(fd).is_none());
            assert!(table.put(fd, Some(Arc::clone(&entry))).is_none());
            let is_kept = usize::try_from(fd).is_ok_and(|fd| fd < FDS_MAX);
            assert_eq!(table.get(fd).is_some(), is_kept, "{fd}");
            table.add(fd, Arc::new(8));
            assert_eq!(table.get(fd).is_some_and(|entry| *entry == 7), is_kept, "{fd}");
        }
        assert_eq!(table.all().count(), 5);
        for (fd, _) in table.all() {
            assert!(table.put(fd, None).is_some());
        }
        assert_eq!(Arc::strong_count(&entry), 1);
    }

    #[test]
    fn entry_is_whole_for_those_who_found_it() {
        let table = Table::new();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for number in 0..20_000_u64 {
                        table.put(3, Some(Arc::new([number; 8])));
                        table.put(3, None);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..40_000 {
                        if let Some(entry) = table.get(3) {
                            assert!(entry.iter().all(|number| *number == entry[0]));
                        }
                    }
                });
            }
        });
        table.put(3, None);
        assert!(table.get(3).is_none());
    }
}
