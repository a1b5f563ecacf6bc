// SPDX-License-Identifier: Apache-2.0
//! A wait begins with a look at the ring for a moment, which needs no call of the kernel's.

use std::{io, os::fd::AsFd, sync::atomic::Ordering, time::Instant};

use super::End;
use crate::{
    wait::Patience,
    window::{Bell, Window},
};

/// What was looked for in vain ([`End::looks`]): the wait that follows does not look once more.
#[derive(Debug)]
pub struct Look {
    begun: Instant,
    patience: Patience,
}

impl<W: Window> End<W> {
    /// Looks at the ring for a moment, for as long as that has found something lately: of a call that would wait, before the socket is asked.
    /// None: a read, or a write, goes on, or does not go through the ring.
    #[must_use]
    pub fn looks(&self, bell: Bell) -> Option<Look> {
        if !self.is_on_ring(bell) || self.seems_ready(bell) {
            return None;
        }
        let kept = &self.of().patience[bell as usize];
        let mut look = Look { begun: Instant::now(), patience: Patience::of(kept.load(Ordering::Relaxed)) };
        if !look.patience.looks(|| self.seems_ready(bell)) {
            return Some(look);
        }
        kept.store(look.patience.word(), Ordering::Relaxed);
        None
    }

    /// Waits until a read, or a write, goes on, but no longer than until a time. False: it does not.
    ///
    /// # Errors
    /// As [`End::read`]; `Interrupted`: by a signal.
    pub fn wait(&self, socket: impl AsFd, bell: Bell, until: Option<Instant>) -> io::Result<bool> {
        self.wait_after(None, socket, bell, until)
    }

    /// As [`End::wait`], which looks only if nobody has looked before.
    ///
    /// # Errors
    /// As [`End::wait`].
    pub fn wait_after(
        &self,
        look: Option<Look>,
        socket: impl AsFd,
        bell: Bell,
        until: Option<Instant>,
    ) -> io::Result<bool> {
        let look = look.or_else(|| self.looks(bell));
        if look.is_none() && self.is_on_ring(bell) {
            return Ok(true);
        }
        self.sleeps();
        let is_there = self.sleep(&socket, bell, until);
        self.woke();
        if let Some(Look { begun, mut patience }) = look {
            patience.slept(begun.elapsed());
            self.of().patience[bell as usize].store(patience.word(), Ordering::Relaxed);
        }
        is_there
    }
}
