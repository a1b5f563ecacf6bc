// SPDX-License-Identifier: Apache-2.0
//! The contract of a lane at its hosts (X-Lane §2.1, §3.1, §3.3): one packet per period, none larger than agreed.
//!
//! Who plans a lane reserves nothing in the network: it relies on every sender to keep to its size and period. [`Outlet`] is
//! what makes a program keep to them: messages wait for the next packet and share it; one that does not fit into that
//! packet is beyond the contract, is dropped and counted. So at most one packet waits, whatever a program does, and a program
//! that sends what one packet carries once a period is never refused, however unevenly it does so within a period.
//!
//! [`Inlet`] is the other end: the same packet comes over each tree, its messages are told once. It takes the messages of a
//! damaged packet that are whole, and the others from the copy on another tree.
//!
//! Pure: they take `now` and bytes.

mod copies;

use fide_wire::{
    PAYLOAD_MAX, Scheme,
    chunk::{ChunkBuildError, ChunkBuilder, ChunkPacket},
    message::{self, Damage, Message},
};

pub use copies::{Copies, Finding};

/// Lanes that one host sends on at a time. Receivers keep an [`Inlet`] for each of them and each host.
pub const LANES_MAX: usize = 16;
/// Packets back from the newest that may still come.
const WINDOW: u64 = 64;
/// Numbers beyond the newest that are a lane used anew, not loss.
const ANEW: u64 = 1 << 16;
/// Bits of a packet's number; the lane's index on its host is in those above.
const NUMBER_BITS: u32 = 56;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
/// Service and length before each message that waits.
const PREFIX: usize = 3;

/// What a lane's sender keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Largest payload of a packet, in bytes.
    pub packet_max_bytes: usize,
    /// Shortest time between two packets.
    pub period_ns: u64,
    pub scheme: Scheme,
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    #[error("{len} bytes are more than a packet of this lane carries: {max}")]
    Size { len: usize, max: usize },
    #[error("this period's packet is full: the next one leaves in {wait_ns} ns")]
    Rate { wait_ns: u64 },
}

/// What an outlet counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sent {
    pub packets: u64,
    pub messages: u64,
    /// Messages dropped because they were beyond the contract.
    pub exceeded: u64,
}

/// The sending end of one lane.
#[derive(Debug)]
pub struct Outlet {
    terms: Terms,
    sender: u16,
    /// Index of the lane on its host, in the upper bits.
    base: u64,
    number: u64,
    /// The next packet may leave.
    next_ns: u64,
    /// Messages that wait: service, length, bytes. Never more than one packet's chunks hold.
    waiting: Box<[u8; PAYLOAD_MAX]>,
    waiting_len: usize,
    waiting_chunks: usize,
    packet: Box<[u8; PAYLOAD_MAX]>,
    sent: Sent,
}

impl Outlet {
    /// For the lane of this index (below [`LANES_MAX`]) on host `sender`.
    ///
    /// `now` begins the packets' numbers, in microseconds: an outlet that is made later for the same lane numbers on where no
    /// former one of this incarnation has been, as no period is shorter than a microsecond.
    #[must_use]
    pub fn new(index: u8, sender: u16, terms: Terms, now: u64) -> Self {
        Self {
            terms,
            sender,
            base: u64::from(index) << NUMBER_BITS,
            number: (now / 1000) & NUMBER_MASK,
            next_ns: now,
            waiting: Box::new([0; PAYLOAD_MAX]),
            waiting_len: 0,
            waiting_chunks: 0,
            packet: Box::new([0; PAYLOAD_MAX]),
            sent: Sent::default(),
        }
    }

    #[must_use]
    pub fn terms(&self) -> Terms {
        self.terms
    }

    #[must_use]
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Other terms. What waits and does not fit them is dropped and counted.
    pub fn change(&mut self, now: u64, terms: Terms) {
        let former = self.next_ns.saturating_sub(self.terms.period_ns);
        self.terms = terms;
        // The last packet left at `former`: the new period counts from there.
        self.next_ns = self.next_ns.min(former + terms.period_ns).max(now);
        let (old, len) = (self.waiting.clone(), std::mem::take(&mut self.waiting_len));
        self.waiting_chunks = 0;
        for (service, bytes) in waiting(&old[..len]) {
            self.sent.messages -= 1;
            // Counted there.
            let _ = self.offer(now, service, bytes);
        }
    }

    /// Takes a message for the next packet.
    ///
    /// # Errors
    /// [`Exceeded`]: dropped and counted.
    pub fn offer(&mut self, now: u64, service: u8, message: &[u8]) -> Result<(), Exceeded> {
        let room = message::chunks_in(self.terms.scheme, self.terms.packet_max_bytes);
        let need = message::pieces(self.terms.scheme, message.len());
        if need > room {
            self.sent.exceeded += 1;
            let max = room * message::piece_max(self.terms.scheme);
            return Err(Exceeded::Size { len: message.len(), max });
        }
        // More than its chunks hold, never: a message takes fewer bytes here than in its chunks.
        if need > room - self.waiting_chunks.min(room) {
            self.sent.exceeded += 1;
            return Err(Exceeded::Rate { wait_ns: self.next_ns.saturating_sub(now) });
        }
        let at = &mut self.waiting[self.waiting_len..self.waiting_len + PREFIX + message.len()];
        at[0] = service;
        at[1..PREFIX].copy_from_slice(&u16::try_from(message.len()).expect("fits a packet").to_le_bytes());
        at[PREFIX..].copy_from_slice(message);
        self.waiting_len += PREFIX + message.len();
        self.waiting_chunks += need;
        self.sent.messages += 1;
        Ok(())
    }

    /// When the packet that waits may leave; `None` if nothing waits.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        (self.waiting_len > 0).then_some(self.next_ns)
    }

    /// The packet that is due, to be sealed ([`fide_wire::chunk::seal`]) and sent over each tree, once.
    ///
    /// # Errors
    /// Cannot happen while messages are only taken by [`Outlet::offer`]; what waited is lost then.
    pub fn poll(&mut self, now: u64, incarnation: u32) -> Result<Option<&mut [u8]>, ChunkBuildError> {
        if self.due_ns().is_none_or(|due| now < due) {
            return Ok(None);
        }
        self.number = (self.number + 1) & NUMBER_MASK;
        self.next_ns = now + self.terms.period_ns;
        let len = std::mem::take(&mut self.waiting_len);
        self.waiting_chunks = 0;
        let scheme = self.terms.scheme;
        let mut builder =
            ChunkBuilder::new(&mut self.packet[..], scheme, self.sender, incarnation, self.base | self.number)?;
        for (service, bytes) in waiting(&self.waiting[..len]) {
            message::push(&mut builder, scheme, service, bytes)?;
        }
        let len = builder.finish();
        self.sent.packets += 1;
        Ok(Some(&mut self.packet[..len]))
    }
}

fn waiting(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (prefix, rest) = bytes.split_at_checked(PREFIX)?;
        let (message, rest) = rest.split_at(usize::from(u16::from_le_bytes([prefix[1], prefix[2]])));
        bytes = rest;
        Some((prefix[0], message))
    })
}

/// Index of the lane on its host that a packet is of.
#[must_use]
pub fn lane_of(seq: u64) -> u8 {
    u8::try_from(seq >> NUMBER_BITS).expect("the upper 8 bits")
}

/// Number of the packet within its lane.
#[must_use]
pub fn number_of(seq: u64) -> u64 {
    seq & NUMBER_MASK
}

/// What an inlet counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Received {
    pub packets: u64,
    /// Copies that brought nothing new.
    pub duplicates: u64,
    /// Packets that came over no tree. Those among the last 64 may still come and do not count yet.
    pub lost: u64,
    /// Chunks that were damaged, in any copy.
    pub damaged: u64,
    /// Copies that came too late to know whether they are news, dropped.
    pub late: u64,
}

/// The receiving end of one lane of one host.
#[derive(Clone, Copy, Debug)]
pub struct Inlet {
    incarnation: u32,
    /// 0: nothing has come yet.
    newest: u64,
    /// For each of the last packets the places whose messages were told; all ones: told whole.
    told: [u64; WINDOW as usize],
    received: Received,
}

impl Default for Inlet {
    fn default() -> Self {
        Self { incarnation: 0, newest: 0, told: [0; WINDOW as usize], received: Received::default() }
    }
}

impl Inlet {
    #[must_use]
    pub fn received(&self) -> Received {
        self.received
    }

    /// The newest packet's incarnation and number, if one has come.
    #[must_use]
    pub fn newest(&self) -> Option<(u32, u64)> {
        (self.newest != 0).then_some((self.incarnation, self.newest))
    }

    /// Goes on after another inlet whose newest packet this was: none up to it is told again.
    #[must_use]
    pub fn resumed(incarnation: u32, newest: u64) -> Self {
        Self { incarnation, newest, told: [u64::MAX; WINDOW as usize], received: Received::default() }
    }

    /// Takes one copy of a packet, and gives those of its messages that have not been told yet to `tell`. `whole` says that its
    /// tag fits; one that is not whole may be anybody's, see [`fide_wire::chunk`]. The caller has checked that the incarnation is
    /// the host's present one.
    pub fn take<T: AsRef<[u8]>>(
        &mut self,
        packet: &ChunkPacket<T>,
        whole: bool,
        mut tell: impl FnMut(Message<'_>),
    ) -> Damage {
        let number = number_of(packet.seq());
        if packet.incarnation() != self.incarnation {
            *self = Self { incarnation: packet.incarnation(), received: self.received, ..Self::default() };
        }
        if number + WINDOW <= self.newest {
            self.received.late += 1;
            return Damage::default();
        }
        if number > self.newest {
            self.advance(number);
        }
        let told = &mut self.told[(number % WINDOW) as usize];
        if *told == u64::MAX {
            self.received.duplicates += 1;
            return Damage::default();
        }
        let before = *told;
        let damage = message::read(packet, |message| {
            if *told & message.places == 0 {
                *told |= message.places;
                tell(message);
            }
        });
        if whole {
            *told = u64::MAX;
        }
        self.received.packets += u64::from(before == 0 && *told != 0);
        self.received.damaged += damage.damaged as u64;
        damage
    }

    /// A newer packet than any before: what leaves the window without having come is lost.
    fn advance(&mut self, number: u64) {
        let ahead = number - self.newest;
        if self.newest == 0 || ahead > ANEW {
            // Nothing is missed before the first packet.
            self.told = [u64::MAX; WINDOW as usize];
        } else {
            for step in 1..=ahead.min(WINDOW) {
                let left = &mut self.told[((self.newest + step) % WINDOW) as usize];
                self.received.lost += u64::from(*left == 0);
                *left = 0;
            }
            self.received.lost += ahead.saturating_sub(WINDOW);
        }
        self.newest = number;
        self.told[(number % WINDOW) as usize] = 0;
    }
}

#[cfg(test)]
mod tests;
