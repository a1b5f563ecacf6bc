// SPDX-License-Identifier: Apache-2.0
//! The thread that makes the decisions.
//!
//! ```text
//!  server tasks ──► bounded queue ──► [ decide, up to a batch ] ──► [ store, one append ] ──► answers, upcalls, effects
//!                    full: busy          Handler                      Store, under an epoch
//! ```
//!
//! Nothing leaves the thread before it is stored: no answer, no upcall, no effect, and no answer to a read
//! of a state that is not stored yet. If storing fails, the handler and the request numbers are rolled back
//! to the stored state. Every request of the batch is answered that its outcome is unknown, and nothing is
//! decided until the store was loaded again. A peer then repeats its request with the same number: it is
//! carried out, or its former answer is returned.

mod decision_loop;
mod entry;
mod senders;

use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

#[cfg(test)]
pub(crate) use entry::ENTRY_MAX;
#[cfg(test)]
pub(crate) use senders::pipe;
pub use senders::{EventSender, Refused, Reply, RequestSender};

use crate::handler::Handler;
use crate::leader::Leadership;
use crate::store::Store;
use crate::upcalls::Board;

/// Requests and events that may wait for the thread; one more is refused as `busy`.
pub const QUEUE_MAX: usize = 256;
/// Requests and events decided before one append.
pub const TURN_MAX: usize = 32;
/// A snapshot is made after this many records, or bytes of them.
pub const SNAPSHOT_RECORDS: usize = 512;
pub const SNAPSHOT_BYTES: usize = 4 * 1024 * 1024;
/// Records since the last snapshot. If no snapshot can be made, the controller becomes read-only here.
pub const RECORDS_MAX: usize = 4096;
/// How often the thread checks whether it leads, if nothing else happens.
pub const IDLE: Duration = Duration::from_millis(100);
/// Pause after a load that failed.
pub const RELOAD_PAUSE_NS: u64 = 500_000_000;

/// A running shell. When dropped, it decides the requests in its queue and ends.
#[derive(Debug)]
pub struct Shell<E> {
    request_sender: RequestSender,
    event_sender: EventSender<E>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<E: Send + 'static> Shell<E> {
    /// Starts the thread. It calls `act` with each effect once that may happen; `act` must not block.
    pub fn start<H, S, L, A>(handler: H, store: S, leadership: L, act: A) -> std::io::Result<Shell<E>>
    where
        H: Handler<Event = E>,
        S: Store + 'static,
        L: Leadership + 'static,
        A: FnMut(H::Effect) + Send + 'static,
    {
        let (send, jobs) = sync_channel(QUEUE_MAX);
        let (stop, stopped) = channel();
        let board = Board::default();
        let request_sender = RequestSender::new(send.clone(), board.clone(), handler.routes());
        let inner = decision_loop::DecisionLoop::new(handler, store, leadership, act, board);
        let thread =
            std::thread::Builder::new().name("fide-decide".into()).spawn(move || inner.run(&jobs, &stopped))?;
        Ok(Shell { request_sender, event_sender: EventSender::new(send), stop: Some(stop), thread: Some(thread) })
    }

    /// For the server.
    pub fn request_sender(&self) -> RequestSender {
        self.request_sender.clone()
    }

    /// For events outside.
    pub fn event_sender(&self) -> EventSender<E> {
        self.event_sender.clone()
    }

    /// Whether the thread runs. It ends by itself only through a fault in the handler; the program should
    /// end then.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Decides the requests in the queue and ends.
    pub fn stop(self) {
        drop(self);
    }
}

impl<E> Drop for Shell<E> {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
