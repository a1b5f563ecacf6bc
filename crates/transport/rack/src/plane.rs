// SPDX-License-Identifier: Apache-2.0
//! Packets to each of several hosts, through a window for each: a plane of a cluster beside its networks, or instead of one.
//!
//! Nobody is woken by a packet. Whoever receives looks as often as a packet may lie there, and a look takes a few reads of the own memory for
//! each window.
//!
//! Nothing is put into a window before the first packet is sent or looked for: a process that is to follow another one may have its windows
//! open while that one still uses them.

use std::sync::Arc;

use crate::{
    packets::{Inbox, Outbox},
    pci::PciWindow,
    window::Window,
};

/// Numbers that are left out as a window takes the place of another one: more than an outbox or inbox has had.
const NUMBERS: u64 = 1 << 40;

/// The window of one host is cut ([`PciWindow::is_cut`]); the others were sent the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory of {count} windows was taken away")]
pub struct Cut {
    pub count: usize,
}

/// One end of each window.
#[derive(Debug)]
pub struct Plane {
    peers: Vec<Peer>,
    /// Whose packet is looked for first.
    next: usize,
    /// The number of the outbox or inbox that begins next.
    number: u64,
}

#[derive(Debug)]
struct Peer {
    window: Arc<PciWindow>,
    /// None: nothing was sent or received yet.
    ends: Option<(Outbox, Inbox)>,
}

impl Peer {
    fn ends(&mut self, number: &mut u64) -> (&PciWindow, &mut Outbox, &mut Inbox) {
        let window = &*self.window;
        let (outbox, inbox) = self.ends.get_or_insert_with(|| {
            *number = number.wrapping_add(1);
            (Outbox::new(window, *number), Inbox::new(window, *number))
        });
        (window, outbox, inbox)
    }
}

/// Bytes of the longest packet that goes through a window whose parts have so many.
#[must_use]
pub fn packet_max(window: &impl Window) -> usize {
    crate::packets::place(window).most()
}

impl Plane {
    /// `number`: another one for each plane that uses these windows, by chance or of a clock in nanoseconds.
    #[must_use]
    pub fn new(windows: impl IntoIterator<Item = Arc<PciWindow>>, number: u64) -> Self {
        let peers = windows.into_iter().map(|window| Peer { window, ends: None }).collect();
        Self { peers, next: 0, number }
    }

    /// Sends a packet through each window, or drops it there: where nobody reads, it is lost as on a wire to a host that is off. It never
    /// waits.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn send(&mut self, packet: &[u8]) -> Result<(), Cut> {
        let mut count = 0;
        for peer in &mut self.peers {
            if peer.window.is_cut() {
                count += 1;
                continue;
            }
            let (window, outbox, _) = peer.ends(&mut self.number);
            let _ = outbox.send(window, packet);
        }
        if count == 0 { Ok(()) } else { Err(Cut { count }) }
    }

    /// Copies a packet into a buffer; of one that is longer, as much as there is room for. None: nothing has come through any window. Each
    /// window has its turn, so that a host which writes without end keeps none of the others' packets back. Take so many at a time, and do
    /// something else.
    pub fn receive(&mut self, into: &mut [u8]) -> Option<usize> {
        for _ in 0..self.peers.len() {
            let at = self.next;
            self.next = (at + 1) % self.peers.len();
            let peer = &mut self.peers[at];
            if peer.window.is_cut() {
                continue;
            }
            let (window, outbox, inbox) = peer.ends(&mut self.number);
            // Of an inbox that has begun meanwhile, so that it misses none of the next packets.
            outbox.answers(window);
            if let Some(len) = inbox.receive(window, into) {
                return Some(len);
            }
        }
        None
    }

    /// Whether the memory of a window was taken away.
    #[must_use]
    pub fn is_cut(&self, peer: usize) -> bool {
        self.peers[peer].window.is_cut()
    }

    /// Goes on through another window to the same host.
    pub fn replace(&mut self, peer: usize, window: Arc<PciWindow>) {
        // What the former ends have left in that memory is none of these's.
        self.number = self.number.wrapping_add(NUMBERS);
        self.peers[peer] = Peer { window, ends: None };
    }
}

#[cfg(test)]
mod tests;
