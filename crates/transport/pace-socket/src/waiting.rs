// SPDX-License-Identifier: Apache-2.0
//! Who waits for a connection, and how it is woken: after the lock is released, since a waker is foreign code that may call the
//! endpoint, or drop a connection.

use std::{
    ops::{Deref, DerefMut},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use crate::{
    driver::{Shared, WAIT_MAX_NS},
    now_ns,
    state::State,
};

/// Shortest sleep: one that is over before it has begun lets nobody else run.
pub(crate) const LEAST_NS: u64 = 10_000;

/// Threads and tasks that wait for one thing.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    changed: Arc<Condvar>,
    threads: usize,
    /// Each with the number of its future.
    wakers: Vec<(u64, Waker)>,
    /// Futures so far.
    futures: u64,
}

/// Threads and tasks that are to be woken once the lock is released.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    threads: Vec<Arc<Condvar>>,
    wakers: Vec<Waker>,
}

/// The state, locked. When it is released those who are to be woken are.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    shared: &'a Shared,
    /// None only while a thread waits, and while this is dropped.
    state: Option<MutexGuard<'a, State>>,
}

impl Waiting {
    /// Wakes a future once; it gets its number with the first call.
    fn add(&mut self, future: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        let number = *future.get_or_insert_with(|| {
            self.futures += 1;
            self.futures
        });
        match self.wakers.iter_mut().find(|(of, _)| *of == number) {
            Some((_, known)) if known.will_wake(waker) => None,
            Some((_, known)) => Some(std::mem::replace(known, waker.clone())),
            None => {
                self.wakers.push((number, waker.clone()));
                None
            }
        }
    }

    fn remove(&mut self, future: u64) -> Option<Waker> {
        let at = self.wakers.iter().position(|(of, _)| *of == future)?;
        Some(self.wakers.swap_remove(at).1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.threads == 0 && self.wakers.is_empty()
    }

    pub(crate) fn wake(&mut self, into: &mut Wakes) {
        let is_known = || into.threads.last().is_some_and(|known| Arc::ptr_eq(known, &self.changed));
        if self.threads > 0 && !is_known() {
            into.threads.push(Arc::clone(&self.changed));
        }
        into.wakers.extend(self.wakers.drain(..).map(|(_, waker)| waker));
    }
}

/// A future that waits. Dropped before it is ready, it is woken no more, and nothing is kept of it. It has no waker itself, which may be
/// the last that keeps its task.
pub(crate) struct Cancels<'a, F: Fn(&mut State) -> Option<&mut Waiting>> {
    shared: &'a Shared,
    /// Where it waits.
    of: F,
    /// Its number there; none: it does not wait.
    future: Option<u64>,
}

impl<'a, F: Fn(&mut State) -> Option<&mut Waiting>> Cancels<'a, F> {
    pub(crate) fn new(shared: &'a Shared, of: F) -> Self {
        Self { shared, of, future: None }
    }

    /// Waits until a look at the state finds what is waited for.
    pub(crate) async fn look<R>(mut self, mut look: impl FnMut(&mut State) -> Option<R>) -> R {
        std::future::poll_fn(|context| {
            let mut state = self.shared.lock();
            if let Some(result) = look(&mut state) {
                self.ends();
                return Poll::Ready(result);
            }
            self.shared.waits(&mut state, None);
            let former = self.begins(&mut state, context.waker());
            drop(state);
            drop(former);
            Poll::Pending
        })
        .await
    }

    /// Waits from now on. Returns the waker of before, to be dropped without the lock, as that may drop a connection.
    #[must_use]
    pub(crate) fn begins(&mut self, state: &mut State, waker: &Waker) -> Option<Waker> {
        (self.of)(state)?.add(&mut self.future, waker)
    }

    /// What it waits for is here.
    pub(crate) fn ends(&mut self) {
        self.future = None;
    }
}

impl<F: Fn(&mut State) -> Option<&mut Waiting>> Drop for Cancels<'_, F> {
    fn drop(&mut self) {
        let Some(future) = self.future else { return };
        let mut state = self.shared.lock();
        let removed = (self.of)(&mut state).and_then(|waiting| waiting.remove(future));
        drop(state);
        drop(removed);
    }
}

impl Wakes {
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.wakers.is_empty()
    }

    fn wake(&mut self) {
        self.threads.drain(..).for_each(|changed| changed.notify_all());
        for waker in self.wakers.drain(..) {
            // One that panics has said so. The others are woken, and the endpoint's thread goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl<'a> Locked<'a> {
    pub(crate) fn new(shared: &'a Shared, state: MutexGuard<'a, State>) -> Self {
        Self { shared, state: Some(state) }
    }

    /// Waits until it is woken by `of`, or until a time. It may return sooner.
    pub(crate) fn wait(mut self, until_ns: Option<u64>, of: impl Fn(&mut State) -> Option<&mut Waiting>) -> Self {
        let shared = self.shared;
        if !self.wakes.is_empty() {
            // These first, and then what is waited for may be here.
            drop(self);
            return shared.lock();
        }
        let Some(waiting) = of(&mut self) else { return self };
        waiting.threads += 1;
        let changed = Arc::clone(&waiting.changed);
        if let Some(state) = self.state.take() {
            let state = match until_ns {
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until_ns) => {
                    // Not `yield_now`: that stands behind whatever else computes on this core, for milliseconds, and before threads of lower
                    // priority. What leaves late by a sleep is caught up.
                    let wait_ns = until_ns.saturating_sub(now_ns()).clamp(LEAST_NS, WAIT_MAX_NS);
                    changed
                        .wait_timeout(state, Duration::from_nanos(wait_ns))
                        .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
                }
            };
            self.state = Some(state);
        }
        if let Some(waiting) = of(&mut self) {
            waiting.threads -= 1;
        }
        self
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_deref().expect("locked until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().expect("locked until it is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        if state.wakes.is_empty() {
            return;
        }
        // Lists are used again, so that nothing is allocated.
        let empty = state.spare.pop().unwrap_or_default();
        let mut wakes = std::mem::replace(&mut state.wakes, empty);
        drop(state);
        wakes.wake();
        self.shared.lock().spare.push(wakes);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Endpoint, ServerKey, now_ns, state::For};

    /// How often this thread has slept.
    fn sleeps() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse().unwrap()
    }

    #[test]
    fn who_waits_for_a_moment_sleeps() {
        const WAITS: u64 = 500;
        let key = ServerKey::Secret([7; 32]);
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), Config::default()).unwrap();
        let client = Endpoint::client().unwrap();
        let here = client.connect(server.local_address().unwrap(), &key.for_clients(), Config::default()).unwrap();
        let before = sleeps();
        for _ in 0..WAITS {
            drop(here.wait(client.shared.lock(), For::Event, Some(now_ns() + 1)));
        }
        let slept = sleeps() - before;
        assert!(
            slept > WAITS / 4,
            "{slept} sleeps of {WAITS} waits: it keeps others from running, or stands behind them"
        );
    }
}
