// SPDX-License-Identifier: Apache-2.0
//! The contract of a lane at its hosts (X-Lane §2.1, §3.1, §3.3): one packet per period, none larger than agreed.
//!
//! Who plans a lane reserves nothing in the network: it relies on every sender to keep to its size and
//! period. [`Outlet`] is what makes a program keep to them: messages wait for the next packet and share it,
//! and one packet leaves per period, whatever a program does. How many packets may wait is bounded; a message
//! that does not fit is beyond the contract, is dropped and counted. There is room for what a program leaves
//! while this host does not run for [`LATE_NS`], so that only a program that sends too much is blamed, and
//! not one whose agent was late.
//!
//! [`Inlet`] is the other end: the same packet comes over each tree, its messages are delivered once. It
//! takes the messages of a damaged packet that are whole, and the others from the copy on another tree.
//!
//! Pure: they take `now` and bytes.

#![forbid(unsafe_code)]

mod copies;

use fide_wire::{
    PAYLOAD_MAX, Scheme,
    chunk::{ChunkBuildError, ChunkBuilder, ChunkPacket},
    message::{self, Damage, Message},
};

pub use copies::{Copies, Finding};

/// Lanes that one host sends on at a time. Receivers keep an [`Inlet`] for each of them and each host.
pub const LANES_MAX: usize = 16;
/// How late the loop may be without a program's being blamed for it, nanoseconds.
pub const LATE_NS: u64 = 20_000_000;
/// Packets that may wait, at most.
const WAITING_MAX: usize = 32;
/// Packets back from the newest that may still come.
const WINDOW: u64 = 64;
/// Damaged packets beyond the newest whole one that are read.
const AHEAD: u64 = 16;
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
    #[error("{packets} packets wait already, the next one leaves in {wait_ns} ns")]
    Rate { packets: usize, wait_ns: u64 },
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
    /// Messages that wait, in their order: service, length, bytes. Never more than [`WAITING_MAX`] packets'
    /// chunks hold.
    waiting: Box<[u8]>,
    waiting_len: usize,
    /// Packets that they fill, and chunks of the last one.
    packets: usize,
    chunks: usize,
    packet: Box<[u8; PAYLOAD_MAX]>,
    sent: Sent,
}

impl Outlet {
    /// For the lane of this index (below [`LANES_MAX`]) on host `sender`.
    ///
    /// `now` begins the packets' numbers, in microseconds: an outlet that is made later for the same lane
    /// numbers on where no former one of this incarnation has been, as no period is shorter than a
    /// microsecond.
    #[must_use]
    pub fn new(index: u8, sender: u16, terms: Terms, now: u64) -> Self {
        Self {
            terms,
            sender,
            base: u64::from(index) << NUMBER_BITS,
            number: (now / 1000) & NUMBER_MASK,
            next_ns: now,
            waiting: vec![0; WAITING_MAX * PAYLOAD_MAX].into_boxed_slice(),
            waiting_len: 0,
            packets: 0,
            chunks: 0,
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

    /// Packets that may wait: the next one, and those of a time in which this host does not run.
    fn packets_max(&self) -> usize {
        let late = usize::try_from(LATE_NS.div_ceil(self.terms.period_ns.max(1))).unwrap_or(usize::MAX);
        late.saturating_add(1).min(WAITING_MAX)
    }

    /// Other terms. What waits and does not fit them is dropped and counted.
    pub fn change(&mut self, now: u64, terms: Terms) {
        let former = self.next_ns.saturating_sub(self.terms.period_ns);
        self.terms = terms;
        // The last packet left at `former`: the new period counts from there.
        self.next_ns = self.next_ns.min(former + terms.period_ns).max(now);
        let (mut at, end) = (0, std::mem::take(&mut self.waiting_len));
        (self.packets, self.chunks) = (0, 0);
        // In place: what is kept never stands behind where it stood.
        while let Some((service, len)) = prefix(&self.waiting[at..end]) {
            let message = at + PREFIX..at + PREFIX + len;
            at = message.end;
            self.sent.messages -= 1;
            if self.place(now, len).is_ok() {
                let to = self.waiting_len;
                self.waiting.copy_within(message, to + PREFIX);
                self.write_prefix(service, len);
            }
        }
    }

    /// Takes a message for the next packet, or one after it.
    ///
    /// # Errors
    /// [`Exceeded`]: dropped and counted.
    pub fn offer(&mut self, now: u64, service: u8, message: &[u8]) -> Result<(), Exceeded> {
        self.place(now, message.len())?;
        let at = self.waiting_len + PREFIX;
        self.waiting[at..at + message.len()].copy_from_slice(message);
        self.write_prefix(service, message.len());
        Ok(())
    }

    /// Finds the packet of a message; counts it, or that there is none.
    fn place(&mut self, now: u64, len: usize) -> Result<(), Exceeded> {
        let room = message::chunks_in(self.terms.scheme, self.terms.packet_max_bytes);
        let need = message::pieces(self.terms.scheme, len);
        if need > room {
            self.sent.exceeded += 1;
            return Err(Exceeded::Size { len, max: room * message::piece_max(self.terms.scheme) });
        }
        if self.packets > 0 && need <= room.saturating_sub(self.chunks) {
            self.chunks += need;
        } else if self.packets < self.packets_max() {
            self.packets += 1;
            self.chunks = need;
        } else {
            self.sent.exceeded += 1;
            return Err(Exceeded::Rate { packets: self.packets, wait_ns: self.next_ns.saturating_sub(now) });
        }
        self.sent.messages += 1;
        Ok(())
    }

    /// A message takes fewer bytes here than in its chunks: there is room.
    fn write_prefix(&mut self, service: u8, len: usize) {
        let at = &mut self.waiting[self.waiting_len..self.waiting_len + PREFIX];
        at[0] = service;
        at[1..].copy_from_slice(&u16::try_from(len).expect("fits a packet").to_le_bytes());
        self.waiting_len += PREFIX + len;
    }

    /// When the packet that waits may leave; `None` if nothing waits.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        (self.packets > 0).then_some(self.next_ns)
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
        let Terms { scheme, packet_max_bytes, .. } = self.terms;
        let room = message::chunks_in(scheme, packet_max_bytes);
        let seq = self.base | self.number;
        let mut builder = ChunkBuilder::new(&mut self.packet[..], scheme, self.sender, incarnation, seq)?;
        // As they were placed.
        let (mut at, mut chunks) = (0, 0);
        while let Some((service, len)) = prefix(&self.waiting[at..self.waiting_len]) {
            chunks += message::pieces(scheme, len);
            if chunks > room {
                break;
            }
            message::push(&mut builder, scheme, service, &self.waiting[at + PREFIX..at + PREFIX + len])?;
            at += PREFIX + len;
        }
        self.waiting.copy_within(at..self.waiting_len, 0);
        self.waiting_len -= at;
        self.packets -= 1;
        if self.packets == 0 {
            self.chunks = 0;
        }
        let len = builder.finish();
        self.sent.packets += 1;
        Ok(Some(&mut self.packet[..len]))
    }
}

/// Service and length of the message that begins here.
fn prefix(bytes: &[u8]) -> Option<(u8, usize)> {
    let (prefix, _) = bytes.split_at_checked(PREFIX)?;
    Some((prefix[0], usize::from(u16::from_le_bytes([prefix[1], prefix[2]]))))
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
    /// For each of the last packets the places whose messages were delivered; all ones: all of them.
    delivered: [u64; WINDOW as usize],
    /// The same for damaged packets with the next numbers, and the number: what anybody may have written
    /// moves no window.
    ahead: [(u64, u64); AHEAD as usize],
    received: Received,
}

impl Default for Inlet {
    fn default() -> Self {
        Self {
            incarnation: 0,
            newest: 0,
            delivered: [0; WINDOW as usize],
            ahead: [(0, 0); AHEAD as usize],
            received: Received::default(),
        }
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

    /// Goes on after another inlet whose newest packet this was: none up to it is delivered again.
    #[must_use]
    pub fn resumed(incarnation: u32, newest: u64) -> Self {
        Self { incarnation, newest, delivered: [u64::MAX; WINDOW as usize], ..Self::default() }
    }

    /// Takes one copy of a packet, and passes those of its messages that were not delivered yet to `deliver`.
    /// `whole` says that its tag fits; one that is not whole may be anybody's, see [`fide_wire::chunk`]: it
    /// moves no window, and is read only near the newest whole packet. The caller has checked that the
    /// incarnation is the host's present one.
    pub fn take<T: AsRef<[u8]>>(
        &mut self,
        packet: &ChunkPacket<T>,
        whole: bool,
        mut deliver: impl FnMut(Message<'_>),
    ) -> Damage {
        let number = number_of(packet.seq());
        if packet.incarnation() != self.incarnation {
            if !whole {
                return Damage::default();
            }
            *self = Self { incarnation: packet.incarnation(), received: self.received, ..Self::default() };
        }
        if number + WINDOW <= self.newest || !whole && number > self.newest + AHEAD {
            self.received.late += 1;
            return Damage::default();
        }
        if whole && number > self.newest {
            self.advance(number);
        }
        let delivered = if number <= self.newest {
            &mut self.delivered[(number % WINDOW) as usize]
        } else {
            let ahead = &mut self.ahead[(number % AHEAD) as usize];
            if ahead.0 != number {
                *ahead = (number, 0);
            }
            &mut ahead.1
        };
        if *delivered == u64::MAX {
            self.received.duplicates += 1;
            return Damage::default();
        }
        let before = *delivered;
        let damage = message::read(packet, |message| {
            if *delivered & message.places == 0 {
                *delivered |= message.places;
                deliver(message);
            }
        });
        if whole {
            *delivered = u64::MAX;
        }
        self.received.packets += u64::from(before == 0 && *delivered != 0);
        self.received.damaged += damage.damaged as u64;
        damage
    }

    /// A newer packet than any before: what leaves the window without having come is lost.
    fn advance(&mut self, number: u64) {
        let ahead = number - self.newest;
        if self.newest == 0 || ahead > ANEW {
            // Nothing is missed before the first packet.
            self.delivered = [u64::MAX; WINDOW as usize];
        } else {
            for step in 1..=ahead.min(WINDOW) {
                let entering = self.newest + step;
                let salvaged = self.salvaged(entering);
                let left = &mut self.delivered[(entering % WINDOW) as usize];
                self.received.lost += u64::from(*left == 0);
                *left = salvaged;
            }
            self.received.lost += ahead.saturating_sub(WINDOW);
        }
        self.newest = number;
        self.delivered[(number % WINDOW) as usize] = self.salvaged(number);
    }

    /// What was delivered of a packet before the window came to it.
    fn salvaged(&self, number: u64) -> u64 {
        let (of, delivered) = self.ahead[(number % AHEAD) as usize];
        if of == number { delivered } else { 0 }
    }
}

#[cfg(test)]
mod tests;
