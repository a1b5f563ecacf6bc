// SPDX-License-Identifier: Apache-2.0
//! How sessions end. Steps in which the kernel makes the caller wait run in a thread of their own, so
//! neither the loop nor the control thread waits for them.
//!
//! ```text
//! loop                      control thread          closer
//! watches off, bits cleared
//! memory given back ──────► place is not free ────► ring out of the map: waits until no program
//!                                                   can still write into it; memory is freed
//!                           place is free ◄──────── done
//! ```
//!
//! A kernel program that began before the bits were cleared may still write into the ring of that place.
//! The place is given away only after the ring is out of the map and such programs have ended, so they
//! cannot write into the next client's ring.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use fide_bpf::ClientRings;
use fide_wire::MAX_CLIENTS;

use crate::{command::Memory, privileges};

/// How long to wait for a place. Closing one takes some milliseconds, closing all of them a second.
const LIMIT: Duration = Duration::from_secs(3);

/// The remains of a session.
struct Ended {
    client: u8,
    /// Freed in the closer's thread, because unmapping it takes time.
    _memory: Option<Box<Memory>>,
}

/// The control thread's end.
#[derive(Debug)]
pub(super) struct Closer {
    ended: SyncSender<Ended>,
    free: Receiver<u8>,
    /// Bit c: place c is not free yet.
    closing: u64,
}

impl Closer {
    /// Starts the thread. It ends when this is dropped.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn start(rings: Option<&ClientRings>) -> io::Result<Self> {
        let rings = rings.map(ClientRings::another).transpose().map_err(io::Error::other)?;
        // A place is in a queue at most once.
        let (ended, inbox) = sync_channel::<Ended>(MAX_CLIENTS);
        let (done, free) = sync_channel(MAX_CLIENTS);
        thread::Builder::new().name("fide-closer".to_owned()).spawn(move || {
            let _ = privileges::drop_excess();
            for Ended { client, _memory: memory } in inbox {
                if let Some(rings) = &rings {
                    rings.close(client);
                }
                drop(memory);
                if done.send(client).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { ended, free, closing: 0 })
    }

    /// The place of `client` is free once its ring is gone.
    pub(super) fn close(&mut self, client: u8, memory: Option<Box<Memory>>) {
        self.closing |= 1 << client;
        // The queue is never full, and the thread outlives this sender.
        let _ = self.ended.try_send(Ended { client, _memory: memory });
    }

    /// The first of these places that is free, or else that becomes free.
    pub(super) fn first_free(&mut self, unused: &[u8]) -> Option<u8> {
        let begun = Instant::now();
        loop {
            while let Ok(client) = self.free.try_recv() {
                self.closing &= !(1 << client);
            }
            if let Some(free) = unused.iter().copied().find(|client| self.closing >> client & 1 == 0) {
                return Some(free);
            }
            if unused.is_empty() || !self.wait(begun) {
                return None;
            }
        }
    }

    /// Waits until nothing is being closed any more; false if that takes too long.
    pub(super) fn finish(&mut self) -> bool {
        let begun = Instant::now();
        while self.closing != 0 {
            if !self.wait(begun) {
                return false;
            }
        }
        true
    }

    /// Waits for the next place to become free.
    fn wait(&mut self, begun: Instant) -> bool {
        match self.free.recv_timeout(LIMIT.saturating_sub(begun.elapsed())) {
            Ok(client) => {
                self.closing &= !(1 << client);
                true
            }
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_free_after_its_ring_is_gone() {
        let (ended, inbox) = sync_channel::<Ended>(MAX_CLIENTS);
        let (done, free) = sync_channel(MAX_CLIENTS);
        let mut closer = Closer { ended, free, closing: 0 };
        closer.close(0, None);
        closer.close(2, None);
        assert_eq!(closer.first_free(&[0, 1, 2]), Some(1), "nobody waits while there are others");
        assert_eq!(inbox.try_recv().expect("in order").client, 0);
        done.send(0).expect("room");
        assert_eq!(closer.first_free(&[0, 2]), Some(0));
        assert_eq!(closer.first_free(&[]), None);
        let slow = thread::spawn(move || inbox.recv().map(|ended| done.send(ended.client)));
        assert_eq!(closer.first_free(&[2]), Some(2), "the last one is waited for");
        assert!(slow.join().is_ok());
        assert!(closer.finish());
    }

    #[test]
    fn place_stays_taken_without_a_closer() {
        let (ended, inbox) = sync_channel::<Ended>(MAX_CLIENTS);
        let (done, free) = sync_channel(MAX_CLIENTS);
        let mut closer = Closer { ended, free, closing: 0 };
        closer.close(7, None);
        drop((inbox, done));
        assert_eq!(closer.first_free(&[7]), None);
        assert!(!closer.finish());
    }

    #[test]
    fn all_places_become_free_again() {
        let mut closer = Closer::start(None).expect("a thread");
        let all: Vec<u8> = (0..64).collect();
        for client in &all {
            closer.close(*client, None);
        }
        assert!(closer.first_free(&all).is_some());
        assert!(closer.finish());
    }
}
