// SPDX-License-Identifier: Apache-2.0
//! The upcalls, where pollers wait for them.
//!
//! The decision thread publishes events here once they are stored; pollers, which are tasks, take them. The
//! lock is held for a copy, never across I/O or an await.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fide_controller_api::identity::Identity;
use tokio::sync::Notify;

use super::{Batch, UpcallError, Upcalls};

/// Why there is nothing to poll here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    #[error(transparent)]
    Refused(#[from] UpcallError),
    #[error("this controller does not lead; ask the one that does")]
    NotServing,
}

#[derive(Debug, Default)]
struct Inner {
    upcalls: Upcalls,
    serving: bool,
    waiting: BTreeMap<Identity, Arc<Notify>>,
    /// Peers whose newest acknowledgement is not stored yet.
    unstored: BTreeSet<Identity>,
}

/// Shared by the decision thread and all pollers.
#[derive(Debug, Clone, Default)]
pub struct Board {
    inner: Arc<Mutex<Inner>>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing under the lock can leave the queues half changed.
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Replaces all queues by the stored ones and opens the board.
    pub fn open(&self, upcalls: Upcalls) {
        let mut inner = self.lock();
        inner.upcalls = upcalls;
        inner.unstored.clear();
        inner.serving = true;
        inner.waiting.values().for_each(|notify| notify.notify_waiters());
    }

    /// Closes the board, because this controller no longer knows the present state. All waiting pollers are
    /// answered.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.serving = false;
        inner.waiting.values().for_each(|notify| notify.notify_waiters());
    }

    /// Publishes a stored event.
    pub fn publish(&self, peer: Identity, body: String) -> Result<u64, UpcallError> {
        let mut inner = self.lock();
        let number = inner.upcalls.push(peer, body)?;
        if let Some(notify) = inner.waiting.get(&peer) {
            notify.notify_waiters();
        }
        Ok(number)
    }

    /// Drops the queue of a peer that was removed for good.
    pub fn forget(&self, peer: Identity) {
        let mut inner = self.lock();
        inner.upcalls.forget(peer);
        inner.unstored.remove(&peer);
        if let Some(notify) = inner.waiting.remove(&peer) {
            notify.notify_waiters();
        }
    }

    /// A copy of all queues, to be stored.
    pub fn copy(&self) -> Upcalls {
        self.lock().upcalls.clone()
    }

    /// Acknowledgements that are not stored yet; they count as stored from here on. A lost acknowledgement
    /// costs only a repeated delivery, so acknowledgements are stored with the next change.
    pub fn take_unstored(&self) -> Vec<(Identity, u64)> {
        let mut inner = self.lock();
        let peers = std::mem::take(&mut inner.unstored);
        peers.into_iter().map(|peer| (peer, inner.upcalls.acknowledged(peer))).collect()
    }

    /// Acknowledges up to `after` and returns the pending events, waiting up to `wait` for one.
    pub async fn poll(&self, peer: Identity, after: u64, wait: Duration) -> Result<Batch, Closed> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let notify = self.lock().waiting.entry(peer).or_default().clone();
            // Armed before the check, so that no event published in between is missed.
            let mut woken = std::pin::pin!(notify.notified());
            woken.as_mut().enable();
            {
                let mut inner = self.lock();
                if !inner.serving {
                    return Err(Closed::NotServing);
                }
                if inner.upcalls.acknowledge(peer, after)? {
                    inner.unstored.insert(peer);
                }
                let batch = inner.upcalls.pending(peer);
                if !batch.is_empty() {
                    return Ok(batch);
                }
            }
            if tokio::time::timeout_at(deadline, woken).await.is_err() {
                return Ok(Batch::default());
            }
        }
    }
}
