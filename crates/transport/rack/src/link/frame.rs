// SPDX-License-Identifier: Apache-2.0
//! What goes over a link: each frame is one message of a ring.
//!
//! | bytes | |
//! |---|---|
//! | 4 | the connection |
//! | 1 | what it is, [`Kind`] |
//! | 3 | 0 |
//! | 4 | CRC-32C over the session's keys, the ring, the number of the frame, and the frame without these bytes |
//! | … | what it carries |
//!
//! Numbers are little-endian. A bridge may lose anything as its cable is pulled, also the bytes of a frame and not its end. So what is not as
//! it was sent, or is not next, ends the session.

use crate::{
    link::Cut,
    ring::{Place, Receiver, SendError, Sender},
    window::Window,
};

/// Bytes before those that a frame carries.
pub const HEADER: usize = 12;
/// Bytes of the longest frame that is none of data.
pub const SHORT_MAX: usize = HEADER + 64;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of the connection.
    Data = 1,
    /// How many bytes the program has written over TCP, and one.
    OverTcp = 2,
    /// The program writes no more.
    Ends = 3,
    /// The other host's program sleeps.
    Wake = 4,
    /// How much of its ring the program has read, in bytes of the ring.
    Read = 5,
    /// The program reads the ring.
    ReadsRing = 6,
    /// The program reads no more.
    ReadsNoMore = 7,
    /// [`Kind::Ends`] has come, and all before it is in the program's ring.
    HasEnded = 8,
    /// An end of a connection waits for the other one.
    Offer = 9,
    /// It waits no more.
    Withdrawn = 10,
    /// Both are found.
    Open = 11,
    /// It is not to be.
    Refused = 12,
    /// It goes on in another partition, whose number follows.
    Moves = 13,
    /// Whoever receives there has it.
    HasMoved = 14,
    /// Whoever sends there has it.
    IsHere = 15,
}

impl Kind {
    fn of(code: u8) -> Option<Self> {
        use Kind::{
            Data, Ends, HasEnded, HasMoved, IsHere, Moves, Offer, Open, OverTcp, Read, ReadsNoMore, ReadsRing, Refused,
            Wake, Withdrawn,
        };
        let all = [
            Data,
            OverTcp,
            Ends,
            Wake,
            Read,
            ReadsRing,
            ReadsNoMore,
            HasEnded,
            Offer,
            Withdrawn,
            Open,
            Refused,
            Moves,
            HasMoved,
            IsHere,
        ];
        all.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// What both ends of a ring of one session count alike.
#[derive(Debug, Clone, Copy)]
struct Seal {
    seed: u32,
    number: u64,
}

impl Seal {
    /// `keys`: the writer's, and the reader's. `ring`: its number.
    fn new(keys: [u64; 2], ring: u32) -> Self {
        let [writer, reader] = keys.map(u64::to_le_bytes);
        let seed =
            [&writer[..], &reader, &ring.to_le_bytes()].iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        Self { seed, number: 0 }
    }

    /// Of the next frame.
    fn check(&self, head: &[u8], carried: &[u8]) -> u32 {
        let parts = [&self.number.to_le_bytes()[..], head, carried];
        parts.iter().fold(self.seed, |crc, part| crc32c::crc32c_append(crc, part))
    }
}

/// What has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Or the number of an offer.
    pub connection: u32,
    pub kind: Kind,
    pub carried: &'a [u8],
}

/// Sends frames.
#[derive(Debug)]
pub struct Out {
    sender: Sender,
    seal: Seal,
}

/// Receives frames.
#[derive(Debug)]
pub struct In {
    receiver: Receiver,
    seal: Seal,
    /// Of the longest frame, and a byte more.
    frame: Box<[u8]>,
}

impl Out {
    /// For a ring that is empty. `keys`: this end's, and the other one's. `ring`: its number, as the other end has it.
    ///
    /// # Panics
    /// If the place does not lie within the window.
    pub fn new(window: &impl Window, place: Place, keys: [u64; 2], ring: u32) -> Self {
        Self { sender: Sender::new(window, place), seal: Seal::new(keys, ring) }
    }

    /// It is told of each frame that was taken.
    #[must_use]
    pub fn told_of_each(self) -> Self {
        Self { sender: self.sender.asking(), ..self }
    }

    /// Bytes of frames that were not taken yet, with what is around them.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn ahead(&mut self, window: &impl Window) -> Result<u64, Cut> {
        Ok(self.sender.unread(window)?)
    }

    /// Whether there is room for a frame that carries so many bytes.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn has_room(&mut self, window: &impl Window, carried: usize) -> Result<bool, Cut> {
        let len = HEADER + carried;
        // An error is not taken for room.
        Ok(self.sender.has_room(window, len) && self.sender.room(window)?.is_some_and(|room| room >= len))
    }

    /// Sends a frame: `frame` has room for its header before what it carries. False: there is no room.
    ///
    /// # Errors
    /// [`Cut`].
    ///
    /// # Panics
    /// If `frame` is shorter than a header, or longer than the ring takes.
    pub fn send(&mut self, window: &impl Window, connection: u32, kind: Kind, frame: &mut [u8]) -> Result<bool, Cut> {
        let (head, carried) = frame.split_at_mut(HEADER);
        head[..4].copy_from_slice(&connection.to_le_bytes());
        head[4..8].copy_from_slice(&[kind as u8, 0, 0, 0]);
        let check = self.seal.check(&head[..8], carried);
        head[8..].copy_from_slice(&check.to_le_bytes());
        match self.sender.send(window, frame) {
            Ok(()) => {
                self.seal.number += 1;
                Ok(true)
            }
            Err(SendError::Full) => Ok(false),
            Err(SendError::Broken(why)) => Err(why.into()),
            Err(why @ SendError::TooLong { .. }) => panic!("{why}"),
        }
    }

    /// As [`Out::send`], of a few bytes.
    ///
    /// # Errors
    /// [`Cut`].
    ///
    /// # Panics
    /// If they are more than [`SHORT_MAX`] with a header.
    pub fn send_short(
        &mut self,
        window: &impl Window,
        connection: u32,
        kind: Kind,
        carried: &[u8],
    ) -> Result<bool, Cut> {
        let mut frame = [0; SHORT_MAX];
        let len = HEADER + carried.len();
        frame[HEADER..len].copy_from_slice(carried);
        self.send(window, connection, kind, &mut frame[..len])
    }
}

impl In {
    /// For a ring that is empty, with frames that carry at most so many bytes. `keys`: this end's, and the other one's.
    ///
    /// # Panics
    /// If the place does not lie within the window.
    pub fn new(window: &impl Window, place: Place, [own, other]: [u64; 2], ring: u32, carried_max: usize) -> Self {
        let frame = vec![0; HEADER + carried_max + 1].into();
        Self { receiver: Receiver::new(window, place), seal: Seal::new([other, own], ring), frame }
    }

    /// The next frame; none: nothing has come.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn next(&mut self, window: &impl Window) -> Result<Option<Frame<'_>>, Cut> {
        let Some(len) = self.receiver.read_some(window, &mut self.frame)? else { return Ok(None) };
        let number = self.seal.number;
        let Some((head, carried)) = self.frame[..len].split_at_checked(HEADER).filter(|_| len < self.frame.len())
        else {
            return Err(Cut::Check { number });
        };
        if self.seal.check(&head[..8], carried).to_le_bytes() != head[8..] {
            return Err(Cut::Check { number });
        }
        self.seal.number += 1;
        let kind = Kind::of(head[4]).ok_or(Cut::Frame { kind: head[4], len })?;
        let connection = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        Ok(Some(Frame { connection, kind, carried }))
    }
}

/// A number that a frame carries.
///
/// # Errors
/// [`Cut`]: it carries something else.
pub fn number(kind: Kind, carried: &[u8]) -> Result<u64, Cut> {
    let bytes = carried.try_into().map_err(|_| Cut::Frame { kind: kind as u8, len: HEADER + carried.len() })?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{shm::ShmWindow, window::WORD};

    const WORDS: usize = 1024;
    const PLACE: Place = Place { told_at: 0, at: 64, len: WORDS * WORD - 64 };
    const KEYS: [u64; 2] = [7, 9];

    fn ends() -> ([ShmWindow<WORDS>; 2], Out, In) {
        let windows = ShmWindow::pair().unwrap();
        let out = Out::new(&windows[0], PLACE, KEYS, 3);
        let into = In::new(&windows[1], PLACE, [KEYS[1], KEYS[0]], 3, 1000);
        (windows, out, into)
    }

    #[test]
    fn frames_come_as_they_were_sent() {
        let ([here, there], mut out, mut into) = ends();
        for number in 0..1000_u32 {
            let carried: Vec<u8> = (0..number % 60).map(|at| at as u8).collect();
            assert!(out.send_short(&here, number, Kind::Offer, &carried).unwrap());
            assert_eq!(
                into.next(&there).unwrap(),
                Some(Frame { connection: number, kind: Kind::Offer, carried: &carried[..] })
            );
            assert_eq!(into.next(&there).unwrap(), None);
        }
    }

    #[test]
    fn ring_that_is_full_takes_nothing() {
        let ([here, there], mut out, mut into) = ends();
        let mut sent = 0_u64;
        while out.has_room(&here, 8).unwrap() {
            assert!(out.send_short(&here, 1, Kind::Read, &sent.to_le_bytes()).unwrap());
            sent += 1;
        }
        assert!(!out.send_short(&here, 1, Kind::Read, &sent.to_le_bytes()).unwrap());
        for expected in 0..sent {
            let Frame { kind, carried, .. } = into.next(&there).unwrap().unwrap();
            assert_eq!(number(kind, carried), Ok(expected));
        }
        assert!(out.has_room(&here, 8).unwrap());
    }

    /// Of another session, of another ring, or not the next one.
    #[test]
    fn frame_in_the_wrong_place_is_none() {
        for (keys, ring, before) in [([7, 8], 3, 0), ([8, 7], 3, 0), (KEYS, 4, 0), (KEYS, 3, 1)] {
            let ([here, there], _, mut into) = ends();
            let mut out = Out::new(&here, PLACE, keys, ring);
            out.seal.number += before;
            assert!(out.send_short(&here, 1, Kind::Ends, &[]).unwrap());
            assert_eq!(into.next(&there), Err(Cut::Check { number: 0 }));
        }
    }

    #[test]
    fn frames_that_are_too_long_or_too_short_are_none() {
        for len in [0, HEADER - 1, HEADER + 1001, HEADER + 3000] {
            let ([here, there], mut out, mut into) = ends();
            assert!(out.sender.send(&here, &vec![0; len]).is_ok());
            assert_eq!(into.next(&there), Err(Cut::Check { number: 0 }), "{len}");
        }
    }

    proptest! {
        /// Whatever is lost of a frame, or changed: it is not taken.
        #[test]
        fn what_has_changed_is_not_taken(len in 1..900_usize, at in 0..1000_usize, word in any::<u64>()) {
            let ([here, there], mut out, mut into) = ends();
            let mut frame: Vec<u8> = (0..HEADER + len).map(|at| at as u8 | 1).collect();
            prop_assert!(out.send(&here, 5, Kind::Data, &mut frame).unwrap());
            let words = frame.len().div_ceil(WORD);
            let at = PLACE.at + WORD + at % words * WORD;
            let mut before = [0; WORD];
            there.read(at, &mut before);
            here.publish(at, word);
            let changed = u64::from_ne_bytes(before) ^ word;
            // What pads the last word is no part of the frame.
            let pads = if at == PLACE.at + WORD * words { frame.len().next_multiple_of(WORD) - frame.len() } else { 0 };
            let changes = changed & (u64::MAX >> (8 * pads as u32)) != 0;
            prop_assert_eq!(into.next(&there).is_err(), changes);
        }

        /// Whatever lies in the ring.
        #[test]
        fn garbage_is_an_error(writes in prop::collection::vec((0..WORDS, prop_oneof![any::<u64>(), 0..2000_u64]), 1..40)) {
            let ([here, there], mut out, mut into) = ends();
            for (at, word) in writes {
                here.publish(at * WORD, word);
                let _ = into.next(&there);
                there.publish(at * WORD, word);
                let _ = out.send_short(&here, 1, Kind::Ends, &[]);
            }
        }
    }
}
