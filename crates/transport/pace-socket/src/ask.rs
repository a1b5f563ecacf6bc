// SPDX-License-Identifier: Apache-2.0
//! What an application may ask of its connection, to be paced by itself (X-PACE §IV-C2).

use std::{
    io,
    sync::Arc,
    task::Poll,
    thread::{self, JoinHandle},
    time::Duration,
};

use fide_pace::{
    endpoint::ConnectionId,
    transport::{Closed, Transport, View},
};

use crate::{
    clock::nanoseconds,
    connection::{Connection, RecvError},
    driver::Shared,
    now_ns,
    state::State,
    waiting::{Cancels, Locked},
};

impl Connection {
    /// The paces of the way from here to there, its slowest step, the delay, and the periods of both applications, as they were at most
    /// a millisecond ago. None: the connection is over.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        self.recent_views().map(|[there, _]| there)
    }

    /// The same of the way from the other end to here: which step is the slowest one for what this application receives, and how long that
    /// is on its way. None: the connection is over.
    #[must_use]
    pub fn incoming_view(&self) -> Option<View> {
        self.recent_views().map(|[_, here]| here)
    }

    /// What the slowest step takes for a message, as far as it is known: the time between two messages that nothing waits
    /// for.
    #[must_use]
    pub fn bottleneck_pace(&self) -> Option<Duration> {
        self.view()?.bottleneck.map(|(_, ns)| Duration::from_nanos(ns))
    }

    /// From now to the delivery of a message that is sent now, if the next feedback finds the path as it is. None: it would
    /// wait for feedback, or the connection is over.
    #[must_use]
    pub fn expected_delay(&self) -> Option<Duration> {
        let delay_ns = |transport: &mut Transport, now_ns: u64| {
            let leaves_ns = transport.may_send_at(now_ns)?;
            Some(leaves_ns - now_ns + transport.view(now_ns).delay_ns)
        };
        self.with(delay_ns).flatten().map(Duration::from_nanos)
    }

    /// When a message would leave at once; none: after the next feedback. An application that sleeps until then, and sends, is
    /// paced to the slowest step. From this call on until it sends, it waits: that time is none of its own work, and it would send
    /// more if the path was faster.
    #[must_use]
    pub fn next_send_in(&self) -> Option<Duration> {
        let wait_ns = |transport: &mut Transport, now_ns: u64| {
            let at_ns = transport.may_send_at(now_ns);
            if at_ns != Some(now_ns) {
                transport.send_waits(now_ns);
            }
            at_ns.map(|at_ns| at_ns - now_ns)
        };
        self.with(wait_ns).flatten().map(Duration::from_nanos)
    }

    /// When the application will send next, if it sends periodically by itself: for those who schedule it. None: it does not,
    /// or has stopped. Zero: it is late.
    #[must_use]
    pub fn expected_send_in(&self) -> Option<Duration> {
        self.time_until(|transport, now_ns| transport.sends().next_ns(now_ns))
    }

    /// When the next message is to be expected, if they come periodically: an application may sleep until then, and have it
    /// at once. Zero: one waits, or is late. None: they do not come periodically, or have stopped.
    #[must_use]
    pub fn next_recv_in(&self) -> Option<Duration> {
        self.time_until(|transport, now_ns| transport.next_message_at(now_ns))
    }

    fn time_until(&self, when: impl FnOnce(&Transport, u64) -> Option<u64>) -> Option<Duration> {
        let in_ns = self.with(|transport, now_ns| Some(when(transport, now_ns)?.saturating_sub(now_ns)));
        in_ns.flatten().map(Duration::from_nanos)
    }

    /// The bottleneck as it is now, once it is known, and each change of it from then on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        let mut state = self.shared.lock();
        if let Some(fate) = state.fates.get_mut(&self.id) {
            fate.watched.get_or_insert_default();
        }
        state.note_change(self.id);
        Changes { shared: Arc::clone(&self.shared), id: self.id, seen: 0 }
    }

    /// Calls back with the bottleneck as it is now, once it is known, and at each change of it, until the connection is over or
    /// dropped: on a thread of its own, so that a callback that takes long delays no packet. Of several changes during one
    /// call the last one is told. Returns the thread, for those who want to wait until it has ended.
    ///
    /// # Errors
    /// The host gives no further thread.
    pub fn on_change(&self, mut callback: impl FnMut(&View) + Send + 'static) -> io::Result<JoinHandle<()>> {
        let mut changes = self.changes();
        let watch = move || {
            while let Ok(view) = changes.wait() {
                callback(&view);
            }
        };
        thread::Builder::new().name("fide-pace-watch".to_owned()).spawn(watch)
    }
}

/// The changes of a connection's bottleneck: another step is the slowest one, or its pace differs by more than an eighth.
/// It does not keep the connection.
#[derive(Debug, Clone)]
pub struct Changes {
    shared: Arc<Shared>,
    id: ConnectionId,
    /// Changes that were told here.
    seen: u64,
}

impl Changes {
    fn next(&mut self, state: &mut State) -> Option<Result<View, RecvError>> {
        let Some(fate) = state.fates.get(&self.id) else {
            // The connection was dropped.
            return Some(Err(RecvError(Closed::Here)));
        };
        let watched = fate.watched.as_ref();
        if let Some((count, view)) = watched.and_then(|watched| watched.last).filter(|(count, _)| *count > self.seen) {
            self.seen = count;
            return Some(Ok(view));
        }
        fate.closed.clone().map(|why| Err(RecvError(why)))
    }

    fn wait_for_change<'a>(&self, state: Locked<'a>, until_ns: Option<u64>) -> Locked<'a> {
        state.wait(until_ns, |state| {
            let watched = state.fates.get_mut(&self.id).and_then(|fate| fate.watched.as_mut());
            watched.map(|watched| &mut watched.waiting)
        })
    }

    /// The next change; waits for it.
    ///
    /// # Errors
    /// The connection is over.
    pub fn wait(&mut self) -> Result<View, RecvError> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if let Some(result) = self.next(&mut state) {
                return result;
            }
            state = self.wait_for_change(state, None);
        }
    }

    /// The next change; waits for it no longer than a time. None: nothing has changed.
    ///
    /// # Errors
    /// The connection is over.
    pub fn wait_timeout(&mut self, within: Duration) -> Result<Option<View>, RecvError> {
        let until_ns = now_ns().saturating_add(nanoseconds(within));
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if let Some(result) = self.next(&mut state) {
                return result.map(Some);
            }
            if now_ns() >= until_ns {
                return Ok(None);
            }
            state = self.wait_for_change(state, Some(until_ns));
        }
    }

    /// [`Changes::wait`], asynchronously.
    ///
    /// # Errors
    /// The connection is over.
    pub async fn wait_async(&mut self) -> Result<View, RecvError> {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        let mut cancels = Cancels::new(&shared, |state: &mut State| {
            state.fates.get_mut(&id).and_then(|fate| fate.watched.as_mut()).map(|watched| &mut watched.waiting)
        });
        std::future::poll_fn(|context| {
            let mut state = shared.lock();
            if let Some(result) = self.next(&mut state) {
                cancels.ends();
                return Poll::Ready(result);
            }
            let former = cancels.begins(&mut state, context.waker());
            drop(state);
            drop(former);
            Poll::Pending
        })
        .await
    }
}
