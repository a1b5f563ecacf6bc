// SPDX-License-Identifier: Apache-2.0
//! A value that is replaced now and then while any number of threads read it without a lock.
//!
//! Readers are counted while they look. A replaced value is freed once nobody looks; until then it is kept, at the
//! latest until the cell itself is dropped.

use crate::primitive::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A replaceable `T`. Readers never wait; [`Swap::replace`] may wait for another `replace`.
pub struct Swap<T> {
    current: AtomicPtr<T>,
    readers: AtomicUsize,
    retired: Mutex<Vec<Retired<T>>>,
}

struct Retired<T>(*mut T);

// SAFETY: a retired pointer is the only owner of its value; sending it sends the `T`.
unsafe impl<T: Send> Send for Retired<T> {}

// SAFETY: a Swap hands out `&T` to several threads and drops `T` in whichever thread replaces or drops it.
unsafe impl<T: Send + Sync> Send for Swap<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Swap<T> {}

impl<T> Swap<T> {
    /// A cell holding `value`.
    pub fn new(value: T) -> Self {
        Self {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            readers: AtomicUsize::new(0),
            retired: Mutex::new(Vec::new()),
        }
    }

    /// Calls `look` with the value of this moment. Two atomic additions, no lock. `look` should be short: while it
    /// runs, replaced values stay in memory.
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        struct Leave<'a>(&'a AtomicUsize);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.readers.fetch_add(1, Ordering::SeqCst);
        let _leave = Leave(&self.readers);
        let pointer = self.current.load(Ordering::SeqCst);
        // SAFETY: `pointer` came from Box::into_raw and is freed only by `replace` (or drop, which has no readers)
        // after it was swapped out and `readers` was then seen to be zero. This thread raised `readers` before it
        // loaded the pointer, in the single order of sequentially consistent operations: a zero seen after the swap
        // means that this reader either has left or will load the new pointer.
        look(unsafe { &*pointer })
    }

    /// Replaces the value; frees the replaced ones that nobody looks at any more.
    pub fn replace(&self, value: T) {
        let new = Box::into_raw(Box::new(value));
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        // An exchange, not a plain store: it must be in the single order before the look at `readers`.
        retired.push(Retired(self.current.swap(new, Ordering::SeqCst)));
        if self.readers.fetch_add(0, Ordering::SeqCst) == 0 {
            for old in retired.drain(..) {
                // SAFETY: swapped out above or earlier, and no reader was inside afterwards (see `with`); each
                // pointer is in the list once.
                drop(unsafe { Box::from_raw(old.0) });
            }
        }
    }
}

impl<T> Drop for Swap<T> {
    fn drop(&mut self) {
        // A load, because loom's AtomicPtr has no `get_mut`.
        let current = self.current.load(Ordering::SeqCst);
        // SAFETY: `&mut self` means no reader is inside; the pointer is owned by this cell.
        drop(unsafe { Box::from_raw(current) });
        let retired = self.retired.get_mut().unwrap_or_else(PoisonError::into_inner);
        for old in retired.drain(..) {
            // SAFETY: as above; each pointer is in the list once and is not the current one.
            drop(unsafe { Box::from_raw(old.0) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, atomic::AtomicBool};

    #[test]
    fn readers_always_see_a_live_value_and_nothing_leaks() {
        let witness = Arc::new(());
        let cell = Swap::new((0u64, vec![0u64; 8], Arc::clone(&witness)));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        cell.with(|(n, all, _)| assert!(all.iter().all(|v| v == n)));
                    }
                });
            }
            for n in 1..2_000 {
                cell.replace((n, vec![n; 8], Arc::clone(&witness)));
            }
            stop.store(true, Ordering::Relaxed);
        });
        cell.replace((1, vec![], Arc::clone(&witness)));
        assert_eq!(Arc::strong_count(&witness), 2, "the own one and the current value's");
        drop(cell);
        assert_eq!(Arc::strong_count(&witness), 1);
    }

    #[test]
    fn a_value_in_use_outlives_its_replacement() {
        let cell = Swap::new(String::from("old"));
        cell.with(|old| {
            cell.replace(String::from("new"));
            assert_eq!(old, "old");
        });
        cell.with(|now| assert_eq!(now, "new"));
    }
}
