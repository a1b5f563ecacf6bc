// SPDX-License-Identifier: Apache-2.0
//! One direction of a partition, at the host that sends: takes what its programs have written, and sends it in slices.

use std::collections::HashMap;

use crate::{
    carry::{OVER_TCP_AT, READS_RING_AT},
    link::{
        App, BATCH, CONNECTIONS_MAX, Cut, LOOKS, Partition, SLICE_MAX, Slices, Turn,
        frame::{Frame, HEADER, In, Kind, Out, SHORT_MAX, number},
    },
    ring::{Receiver, room},
    stream::{READS_NO_MORE_AT, WRITES_NO_MORE_AT, place},
    window::{Bell, WORD, Window},
};

/// With less room in the other ring a slice is not worth it, if the connection has more to send.
const WORTH: usize = 256;

/// Sends for the connections of a partition.
#[derive(Debug)]
pub struct Tx<A: App> {
    out: Out,
    told: In,
    sends: Vec<Sends<A>>,
    /// Where in `sends` each is.
    at: HashMap<u32, usize>,
    /// Whose turn is next, and how many had nothing since one had something.
    next: usize,
    looked: usize,
    slice: Box<[u8]>,
    /// Bytes that may be on the way before a further slice is sent.
    ahead: u64,
    /// Bytes of data since it began.
    carried: u64,
}

/// One connection.
#[derive(Debug)]
pub struct Sends<A> {
    connection: u32,
    app: A,
    receiver: Receiver,
    /// Bytes of the other host's ring that were written, and read as far as it has told.
    written: u64,
    read: u64,
    ring_len: u64,
    /// Bytes of its longest message.
    most: usize,
    has_told_ring: bool,
    has_told_over_tcp: bool,
    /// The program's end was sent, and has come.
    has_ended: bool,
    is_ended: bool,
    /// The other host's program reads no more.
    is_unread: bool,
    /// The last sleep of the program that was ended, and whether it is still to be said.
    woken: u32,
    is_to_wake: bool,
    /// Bytes that were written as they were last counted, and how many in the time before.
    counted: u64,
    lately: u64,
    moves: Moves,
}

/// Whether a connection goes on in another partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moves {
    No,
    /// The other host is to be told.
    To(usize),
    /// It was, and nothing is sent until its receiver there has it.
    Told(usize),
    /// It has come here, and its receiver is to be told.
    Here,
}

/// What one look at a connection came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Sent,
    Nothing,
    /// The link has no room.
    Full,
    Over,
}

impl<A: App> Tx<A> {
    /// For a partition of which all is empty. `keys`: this host's, and the other one's.
    #[must_use]
    pub fn new(link: &impl Window, partition: Partition, number: u32, keys: [u64; 2], slices: Slices) -> Self {
        let bytes = slices.bytes.clamp(WORTH, SLICE_MAX);
        Self {
            out: Out::new(link, partition.data, keys, 2 * number + 1).told_of_each(),
            told: In::new(link, partition.tells, keys, 2 * number + 2, SHORT_MAX),
            sends: Vec::with_capacity(CONNECTIONS_MAX),
            at: HashMap::with_capacity(CONNECTIONS_MAX),
            next: 0,
            looked: 0,
            ahead: (room(HEADER + bytes) * (slices.ahead.max(1) as u64 - 1)),
            slice: vec![0; HEADER + bytes].into(),
            carried: 0,
        }
    }

    /// Connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sends.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sends.is_empty()
    }

    /// Bytes of data since it began.
    #[must_use]
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// One more connection, of which nothing was sent. Its number is one that no other one had in this session.
    pub fn adds(&mut self, connection: u32, app: A) {
        let place = place(app.window());
        let sends = Sends {
            connection,
            receiver: Receiver::new(app.window(), place),
            app,
            written: 0,
            read: 0,
            ring_len: place.len as u64,
            most: place.most(),
            has_told_ring: false,
            has_told_over_tcp: false,
            has_ended: false,
            is_ended: false,
            is_unread: false,
            woken: 0,
            is_to_wake: false,
            counted: 0,
            lately: 0,
            moves: Moves::No,
        };
        self.puts(sends);
    }

    fn puts(&mut self, sends: Sends<A>) {
        self.at.insert(sends.connection, self.sends.len());
        self.sends.push(sends);
    }

    /// A time is over, by which it is seen how much each connection sends.
    pub fn counts(&mut self) {
        for sends in &mut self.sends {
            sends.lately = sends.written - sends.counted;
            sends.counted = sends.written;
        }
    }

    /// The connection that has sent most of those that have sent no more than so many bytes lately is to go on in another partition. Only one
    /// does at a time.
    pub fn moves(&mut self, to: usize, bytes: u64) {
        if self.sends.iter().any(|sends| matches!(sends.moves, Moves::To(_) | Moves::Told(_))) {
            return;
        }
        let may_go = |sends: &&mut Sends<A>| (1..=bytes).contains(&sends.lately) && sends.moves == Moves::No;
        if let Some(sends) = self.sends.iter_mut().filter(may_go).max_by_key(|sends| sends.lately) {
            sends.moves = Moves::To(to);
        }
    }

    /// One that has come from another partition.
    pub fn takes(&mut self, sends: Sends<A>) {
        self.puts(Sends { moves: Moves::Here, ..sends });
    }

    /// All connections are given up.
    pub fn resets(&mut self) {
        self.at.clear();
        self.sends.drain(..).for_each(|sends| sends.app.resets());
    }

    fn removes(&mut self, at: usize) -> Sends<A> {
        let gone = self.sends.swap_remove(at);
        self.at.remove(&gone.connection);
        if let Some(moved) = self.sends.get(at) {
            self.at.insert(moved.connection, at);
        }
        gone
    }

    /// Takes what was told, and sends what there is: of each direction at most [`BATCH`] frames. `gives`: a
    /// connection to another partition.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn turn(&mut self, link: &impl Window, mut gives: impl FnMut(usize, Sends<A>)) -> Result<Turn, Cut> {
        let mut was_busy = false;
        for _ in 0..BATCH {
            let Some(Frame { connection, kind, carried }) = self.told.next(link)? else { break };
            was_busy = true;
            // One of a connection that is over changes nothing.
            if let Some(at) = self.at.get(&connection).copied() {
                match (kind, self.sends[at].moves) {
                    (Kind::HasMoved, Moves::Told(to)) => gives(to, self.removes(at)),
                    _ => self.sends[at].hears(kind, carried)?,
                }
            }
        }
        let (mut sent, mut idle) = (0, 0);
        while self.out.ahead(link)? <= self.ahead && sent < BATCH && idle < self.sends.len().min(LOOKS) {
            let at = self.next % self.sends.len();
            self.next = at + 1;
            match self.sends[at].look(link, &mut self.out, &mut self.slice, &mut self.carried)? {
                Look::Sent => (sent, idle) = (sent + 1, 0),
                Look::Nothing => idle += 1,
                Look::Full => {
                    // It is its turn again.
                    self.next = at;
                    break;
                }
                Look::Over => _ = self.removes(at),
            }
        }
        let is_busy = was_busy || sent > 0;
        self.looked = if is_busy { 0 } else { self.looked + idle };
        let is_part = self.looked < self.sends.len();
        if !is_part {
            self.looked = 0;
        }
        Ok(Turn::of(is_busy, is_part))
    }
}

impl<A: App> Sends<A> {
    /// Its partition is no more.
    pub fn resets(&self) {
        self.app.resets();
    }

    /// What the other host has told.
    fn hears(&mut self, kind: Kind, carried: &[u8]) -> Result<(), Cut> {
        let window = self.app.window();
        match kind {
            Kind::Read => {
                let read = number(kind, carried)?;
                // Of a program that is hostile it may be anything: the other proxy looks at it before.
                if read < self.read || read > self.written || !read.is_multiple_of(WORD as u64) {
                    return Err(Cut::Frame { kind: kind as u8, len: HEADER + carried.len() });
                }
                self.read = read;
            }
            Kind::ReadsNoMore => {
                window.publish(READS_NO_MORE_AT, 1);
                window.ring(Bell::Room);
                self.is_unread = true;
                self.sees_sleeper();
            }
            // What its program may still write over TCP is not to be mixed with it; that wakes as well.
            Kind::Wake if self.has_told_over_tcp => self.app.wakes(),
            Kind::Wake => {}
            Kind::HasEnded => self.is_ended = true,
            _ => return Err(Cut::Frame { kind: kind as u8, len: HEADER + carried.len() }),
        }
        Ok(())
    }

    /// The program sleeps until there is room: the other host is to wake it.
    fn sees_sleeper(&mut self) {
        let turn = self.app.window().sleeper(Bell::Room);
        if self.app.is_woken_over_tcp() && turn != 0 && turn != self.woken {
            (self.woken, self.is_to_wake) = (turn, true);
        }
    }

    fn look(&mut self, link: &impl Window, out: &mut Out, slice: &mut [u8], all: &mut u64) -> Result<Look, Cut> {
        match self.moves {
            Moves::No => {}
            Moves::To(to) => {
                if !out.send_short(link, self.connection, Kind::Moves, &(to as u64).to_le_bytes())? {
                    return Ok(Look::Full);
                }
                self.moves = Moves::Told(to);
                return Ok(Look::Sent);
            }
            Moves::Told(_) => return Ok(Look::Nothing),
            Moves::Here => {
                if !out.send_short(link, self.connection, Kind::IsHere, &[])? {
                    return Ok(Look::Full);
                }
                self.moves = Moves::No;
            }
        }
        if self.app.is_over() {
            return Ok(Look::Over);
        }
        // Before the other end's program is known to write to the ring, a byte would be one of its own.
        if self.is_to_wake && self.app.is_known_over_tcp() {
            if !out.send_short(link, self.connection, Kind::Wake, &[])? {
                return Ok(Look::Full);
            }
            self.is_to_wake = false;
        }
        let window = self.app.window();
        if self.app.is_gone() && !self.has_told_ring && window.poll(READS_RING_AT) == 0 {
            // It has never taken its memory: TCP says all.
            self.app.is_carried();
            return Ok(Look::Over);
        }
        if !self.has_told_ring && window.poll(READS_RING_AT) != 0 {
            if !out.send_short(link, self.connection, Kind::ReadsRing, &[])? {
                return Ok(Look::Full);
            }
            self.has_told_ring = true;
        }
        if !self.has_told_over_tcp && !self.has_ended {
            // Before the ring: what was written there was written after it.
            let over_tcp = window.poll(OVER_TCP_AT);
            if over_tcp != 0 {
                if !out.send_short(link, self.connection, Kind::OverTcp, &over_tcp.to_le_bytes())? {
                    return Ok(Look::Full);
                }
                self.has_told_over_tcp = true;
            }
        }
        // One that is woken over TCP reads no more only as it closes, and says no more if that was before it wrote to the ring.
        let reads_no_more = || window.poll(READS_NO_MORE_AT) != 0;
        let has_closed = self.app.is_gone() || self.app.is_woken_over_tcp() && reads_no_more();
        let ends = has_closed || window.poll(WRITES_NO_MORE_AT) != 0;
        if self.receiver.has_something(window) {
            return self.sends(link, out, slice, all);
        }
        if ends && !self.has_ended {
            if !out.send_short(link, self.connection, Kind::Ends, &[])? {
                return Ok(Look::Full);
            }
            self.has_ended = true;
            return Ok(Look::Sent);
        }
        if self.is_ended && (has_closed || reads_no_more()) {
            self.app.is_carried();
            return Ok(Look::Over);
        }
        Ok(Look::Nothing)
    }

    /// Sends some of what is there.
    fn sends(&mut self, link: &impl Window, out: &mut Out, slice: &mut [u8], all: &mut u64) -> Result<Look, Cut> {
        let window = self.app.window();
        let free = (self.ring_len - (self.written - self.read)).saturating_sub(2 * WORD as u64);
        let free = usize::try_from(free).unwrap_or(usize::MAX).min(self.most).min(slice.len() - HEADER);
        if self.is_unread {
            // As the kernel of one that does not read does.
            return Ok(match self.receiver.read_some(window, slice) {
                Ok(Some(1..)) => Look::Sent,
                _ => self.is_broken(),
            });
        }
        if free < WORTH {
            return Ok(Look::Nothing);
        }
        if !out.has_room(link, free)? {
            return Ok(Look::Full);
        }
        let (mut len, end) = (0, HEADER + free);
        while len < free {
            match self.receiver.read_some(window, &mut slice[HEADER + len..end]) {
                Ok(Some(more @ 1..)) => len += more,
                Ok(None) => break,
                _ if len > 0 => break,
                _ => return Ok(self.is_broken()),
            }
        }
        self.written += room(len);
        *all += len as u64;
        self.sees_sleeper();
        out.send(link, self.connection, Kind::Data, &mut slice[..HEADER + len])?;
        Ok(Look::Sent)
    }

    /// The program breaks the rules of its window.
    fn is_broken(&self) -> Look {
        self.app.resets();
        Look::Over
    }
}
