// SPDX-License-Identifier: Apache-2.0
//! Connections between two hosts that see one memory, as a PCIe non-transparent bridge gives it (NTSocks §4).
//!
//! ```text
//!  host A                                                                host B
//!  program ═ its window ═ proxy ═════════ the link's window ═════════ proxy ═ its window ═ program
//!      └────────────────────────── a TCP connection, by the kernels ──────────────────────────┘
//! ```
//!
//! A proxy is the other end of the windows of its host's programs ([`crate::carry`]), which are as those between two programs of one host.
//! It carries what is in their rings, and the words beside them, to the other proxy. No program waits for another one's: each connection has
//! its own ring at both hosts, and as much of it is on the way as there is room at the receiver.
//!
//! | module | what it holds |
//! |---|---|
//! | [`session`] | whether the link stands: the proxies know each other's keys, and each sees the other's beat |
//! | [`frame`] | what goes over the link, and how it is known to be whole |
//! | [`tx`] | one direction of a partition's connections, where they are read |
//! | [`rx`] | and where they are written |
//! | [`offers`] | how the two ends of a connection find each other |
//!
//! **Partitions** (§4.2). The window is cut into some, each with rings of its own both ways: one for data, and one by which the receiver says
//! how much was read (§4.4). A [`tx::Tx`] and an [`rx::Rx`] share nothing, so that they may have a core each, or one together. A connection is
//! in one partition.
//!
//! **Slices** (§4.3). What a connection has is sent in slices of at most [`Slices::bytes`], one for each connection in turn; small writes
//! are put together up to that, and no more slices are on the way than keep both proxies busy. So who sends little waits for a slice or two, however
//! much others send.
//!
//! **Wakes.** A proxy is never woken: it looks. A program that sleeps is, by a byte over its TCP connection, as always
//! ([`crate::carry`]); the other host's proxy sends it, which has the other end's socket. It goes there by another way than the words of the
//! window. So nobody asks for it before the sleeper knows where the bytes of TCP end, and what it is woken for lies in its own ring. A program
//! itself sends none: as it first reads the ring it goes over, too, by which its proxy may.
//!
//! **Ends.** A proxy keeps the socket of its program until all that this one has written is in the other one's ring. So the end of a
//! connection does not overtake its bytes. Where a proxy dies, or the link is lost, the other one resets the connections.
//!
//! Nothing here holds a clock, a thread or a socket.

pub mod frame;
pub mod offers;
pub mod rx;
pub mod session;
pub mod tx;

use crate::{carry::CARRIED_AT, ring::Place, window::Window};

/// Words of each part before all rings, which are those of [`session`].
const BEFORE: usize = 128;
/// Bytes of a ring by which the proxies talk, and of one by which a receiver tells.
const TALK_LEN: usize = 16 << 10;
/// Bytes of a partition before its rings: two words in cache lines of their own.
const TOLD: usize = 128;
/// Bytes of a partition's ring for data, which takes two of the longest slices at once. No longer one, as what lies in it should still be in
/// the cache.
const DATA_LEN: usize = 4 * SLICE_MAX + 4096;
/// Partitions of a link.
pub const PARTITIONS_MAX: usize = 16;
/// Bytes of the longest slice.
pub const SLICE_MAX: usize = 64 << 10;
/// Frames that are sent, or received, in one turn: then the other direction has its turn.
pub const BATCH: usize = 16;
/// Connections that are looked at in one turn.
pub const LOOKS: usize = 64;
/// Connections of a link. Further ones stay with TCP.
pub const CONNECTIONS_MAX: usize = 4096;
/// And of one user of each host.
pub const CONNECTIONS_OF_USER_MAX: usize = CONNECTIONS_MAX / 2;

/// How long the slices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slices {
    /// At most [`SLICE_MAX`].
    pub bytes: usize,
    /// So many of them are sent at most before the other proxy has taken the first one: one that is written while it reads another. What
    /// else is sent waits for those.
    pub ahead: usize,
}

impl Default for Slices {
    fn default() -> Self {
        Self { bytes: 2 << 10, ahead: 2 }
    }
}

/// The other proxy has written what it cannot have, or the memory has lost something: the link is to begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    #[error("the link: {0}")]
    Ring(crate::ring::Broken),
    #[error("the link: frame {number} of a ring is not as it was sent")]
    Check { number: u64 },
    #[error("the link: a frame of kind {kind} and {len} bytes, which none has")]
    Frame { kind: u8, len: usize },
}

impl From<crate::ring::Broken> for Cut {
    fn from(why: crate::ring::Broken) -> Self {
        Self::Ring(why)
    }
}

/// What a turn of a partition came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Busy,
    /// There was nothing at those connections that were looked at, of more than [`LOOKS`].
    Part,
    /// There was nothing at all.
    Idle,
}

impl Turn {
    fn of(is_busy: bool, is_part: bool) -> Self {
        match (is_busy, is_part) {
            (true, _) => Self::Busy,
            (false, true) => Self::Part,
            (false, false) => Self::Idle,
        }
    }

    /// Of both directions.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::of(self == Self::Busy || other == Self::Busy, self == Self::Part || other == Self::Part)
    }
}

/// A window that cannot be used as a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("{0} partitions: a link has 1 to {PARTITIONS_MAX}")]
    Partitions(usize),
    #[error(
        "a window of {len} bytes for each host, where {partitions} partitions need {needs}: take a longer one, or fewer partitions"
    )]
    Short { len: usize, partitions: usize, needs: usize },
}

/// Where all lies in a link's window: the same in both parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    len: usize,
    partitions: usize,
}

/// Where the rings of a partition lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    pub data: Place,
    /// By which the receiver of data tells.
    pub tells: Place,
}

impl Layout {
    /// Of parts of so many bytes.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn new(len: usize, partitions: usize) -> Result<Self, Unfit> {
        if !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(Unfit::Partitions(partitions));
        }
        let needs = BEFORE + TALK_LEN + partitions * (TOLD + TALK_LEN + DATA_LEN);
        if len < needs {
            return Err(Unfit::Short { len, partitions, needs });
        }
        Ok(Self { len, partitions })
    }

    /// Partitions.
    #[must_use]
    pub fn partitions(self) -> usize {
        self.partitions
    }

    /// The ring by which the proxies talk.
    #[must_use]
    pub fn talk(self) -> Place {
        Place { told_at: BEFORE / 2, at: BEFORE, len: TALK_LEN }
    }

    /// Rings of a partition.
    ///
    /// # Panics
    /// If there is none of that number.
    #[must_use]
    pub fn partition(self, number: usize) -> Partition {
        assert!(number < self.partitions, "partition {number} of {}", self.partitions);
        let at = BEFORE + TALK_LEN + number * (TOLD + TALK_LEN + DATA_LEN);
        let (tells_at, data_at) = (at + TOLD, at + TOLD + TALK_LEN);
        Partition {
            data: Place { told_at: at, at: data_at, len: DATA_LEN },
            tells: Place { told_at: at + TOLD / 2, at: tells_at, len: TALK_LEN },
        }
    }

    /// Makes all rings empty that this end writes, and what it has told of those that it reads.
    pub fn empties(self, window: &impl Window) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let end = BEFORE + TALK_LEN + self.partitions * (TOLD + TALK_LEN + DATA_LEN);
        for at in (BEFORE / 2..end).step_by(ZEROS.len()) {
            window.write(at, &ZEROS[..ZEROS.len().min(end - at)]);
        }
    }
}

/// What a proxy knows of a program's end of a connection, besides its window.
pub trait App {
    type Window: Window;

    /// The proxy's end of the program's window.
    fn window(&self) -> &Self::Window;

    /// Whether its ends wake each other over TCP; else by the window.
    fn is_woken_over_tcp(&self) -> bool;

    /// A byte is to be sent by its socket, which wakes the other host's program.
    fn wakes(&self);

    /// The connection is to be reset.
    fn resets(&self);

    /// Nobody has its socket but the proxy.
    fn is_gone(&self) -> bool;

    /// The other host's program reads its ring: this one may write there.
    fn opens(&self);

    /// It was told how much comes over TCP: a byte after that wakes it, and is no other one.
    fn knows_over_tcp(&self);

    /// Whether it was.
    fn is_known_over_tcp(&self) -> bool;

    /// All is carried: its socket may be closed.
    fn is_carried(&self);

    /// It was reset, or carried.
    fn is_over(&self) -> bool;
}

/// The window of a program whose connection goes to another host, from its proxy's end, before the program has it.
pub fn is_of_link(window: &impl Window) {
    window.publish(CARRIED_AT, 1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::window::WORD;

    proptest! {
        /// No two rings, nor words, lie in one place.
        #[test]
        fn nothing_lies_in_the_place_of_another(partitions in 1..=PARTITIONS_MAX, more in 0..3_000_000_usize) {
            let needs = match Layout::new(0, partitions) {
                Err(Unfit::Short { needs, .. }) => needs,
                other => panic!("{other:?}"),
            };
            let len = (needs + more) / WORD * WORD;
            let layout = Layout::new(len, partitions).unwrap();
            let mut places = vec![layout.talk()];
            for number in 0..partitions {
                let Partition { data, tells } = layout.partition(number);
                prop_assert!(data.most() >= SLICE_MAX + frame::HEADER);
                places.extend([data, tells]);
            }
            let mut spans: Vec<_> = places
                .iter()
                .flat_map(|place| [(place.at, place.len), (place.told_at, WORD)])
                .chain([(0, BEFORE / 2)])
                .collect();
            spans.sort_unstable();
            for pair in spans.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
            }
            let last = spans[spans.len() - 1];
            prop_assert!(last.0 + last.1 <= len);
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        assert_eq!(Layout::new(1 << 30, 0), Err(Unfit::Partitions(0)));
        assert_eq!(Layout::new(1 << 30, 17), Err(Unfit::Partitions(17)));
        let why = Layout::new(4096, 2).unwrap_err().to_string();
        assert!(why.contains("4096 bytes") && why.contains("longer"), "{why}");
    }
}
