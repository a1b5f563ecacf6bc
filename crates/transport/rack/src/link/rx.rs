// SPDX-License-Identifier: Apache-2.0
//! One direction of a partition, at the host that receives: writes what comes into the rings of its programs, and tells how much they have
//! read.

use std::collections::{HashMap, VecDeque};

use crate::{
    carry::OVER_TCP_AT,
    link::{
        App, BATCH, CONNECTIONS_MAX, Cut, LOOKS, PARTITIONS_MAX, Partition, SLICE_MAX, Turn,
        frame::{Frame, HEADER, In, Kind, Out, number},
    },
    ring::{SendError, Sender},
    stream::{READS_NO_MORE_AT, WRITES_NO_MORE_AT, place},
    window::{Bell, WORD, Window},
};

/// Receives for the connections of a partition.
#[derive(Debug)]
pub struct Rx<A: App> {
    data: In,
    tells: Out,
    gets: Vec<Gets<A>>,
    at: HashMap<u32, usize>,
    next: usize,
    /// How many were looked at since something came.
    looked: usize,
    carried: u64,
    /// Those that have gone to another partition, of which the other host is to be told.
    moved: VecDeque<u32>,
}

/// One connection.
#[derive(Debug)]
pub struct Gets<A> {
    connection: u32,
    app: A,
    sender: Sender,
    /// As it was told.
    read: u64,
    has_told_end: bool,
    /// The other host's program writes no more, which is still to be answered, behind what wakes this one.
    is_to_answer: bool,
    /// The last sleep of the program that was ended, and whether it is still to be said.
    woken: u32,
    is_to_wake: bool,
}

/// Connections that go from one partition to another, where they are received.
pub trait Moves<A> {
    /// To that one. It has it, before this returns.
    fn gives(&mut self, to: usize, gets: Gets<A>);

    /// One that has come from another one.
    fn takes(&mut self, connection: u32) -> Option<Gets<A>>;
}

/// None does.
impl<A> Moves<A> for () {
    fn gives(&mut self, _: usize, _: Gets<A>) {}

    fn takes(&mut self, _: u32) -> Option<Gets<A>> {
        None
    }
}

impl<A: App> Rx<A> {
    /// For a partition of which all is empty. `keys`: this host's, and the other one's.
    #[must_use]
    pub fn new(link: &impl Window, partition: Partition, number: u32, keys: [u64; 2]) -> Self {
        Self {
            data: In::new(link, partition.data, keys, 2 * number + 1, SLICE_MAX),
            tells: Out::new(link, partition.tells, keys, 2 * number + 2),
            gets: Vec::with_capacity(CONNECTIONS_MAX),
            at: HashMap::with_capacity(CONNECTIONS_MAX),
            next: 0,
            looked: 0,
            carried: 0,
            moved: VecDeque::with_capacity(CONNECTIONS_MAX),
        }
    }

    /// Bytes of data since it began.
    #[must_use]
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// One more connection, of which nothing has come. Its number is one that no other one had in this session.
    pub fn adds(&mut self, connection: u32, app: A) {
        let gets = Gets {
            connection,
            sender: Sender::new(app.window(), place(app.window())),
            app,
            read: 0,
            has_told_end: false,
            is_to_answer: false,
            woken: 0,
            is_to_wake: false,
        };
        self.puts(gets);
    }

    fn puts(&mut self, gets: Gets<A>) {
        self.at.insert(gets.connection, self.gets.len());
        self.gets.push(gets);
    }

    /// All connections are given up.
    pub fn resets(&mut self) {
        self.at.clear();
        self.gets.drain(..).for_each(|gets| gets.app.resets());
    }

    fn removes(&mut self, at: usize) -> Gets<A> {
        let gone = self.gets.swap_remove(at);
        self.at.remove(&gone.connection);
        if let Some(moved) = self.gets.get(at) {
            self.at.insert(moved.connection, at);
        }
        gone
    }

    /// Takes what has come, and tells what is to be told: of each direction at most [`BATCH`] frames. `moves`: gives
    /// connections to another partition, and has those that have come from one.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn turn(&mut self, link: &impl Window, moves: &mut impl Moves<A>) -> Result<Turn, Cut> {
        let mut was_busy = false;
        for _ in 0..BATCH {
            // An end is answered at once.
            if self.moved.len() == CONNECTIONS_MAX || !self.tells.has_room(link, 0)? {
                break;
            }
            let Some(Frame { connection, kind, carried }) = self.data.next(link)? else { break };
            was_busy = true;
            if kind == Kind::Data {
                self.carried += carried.len() as u64;
            }
            let at = self.at.get(&connection).copied();
            let at = at.or_else(|| {
                let gets = moves.takes(connection)?;
                self.at.insert(connection, self.gets.len());
                self.gets.push(gets);
                Some(self.gets.len() - 1)
            });
            if kind == Kind::Moves {
                let to = usize::try_from(number(kind, carried)?).ok().filter(|to| *to < PARTITIONS_MAX);
                let to = to.ok_or(Cut::Frame { kind: kind as u8, len: HEADER + carried.len() })?;
                if let Some(at) = at {
                    let gone = self.removes(at);
                    moves.gives(to, gone);
                }
                self.moved.push_back(connection);
            } else if let Some(at) = at {
                self.gets[at].takes(kind, carried)?;
            } else if kind == Kind::Data {
                // It is over here, maybe before the other end had its memory.
                self.tells.send_short(link, connection, Kind::ReadsNoMore, &[])?;
            } else if kind == Kind::Ends {
                // The other host keeps its socket until then.
                self.tells.send_short(link, connection, Kind::HasEnded, &[])?;
            }
        }
        while let Some(connection) = self.moved.front() {
            if !self.tells.send_short(link, *connection, Kind::HasMoved, &[])? {
                return Ok(Turn::Busy);
            }
            self.moved.pop_front();
        }
        for _ in 0..self.gets.len().min(LOOKS) {
            let at = self.next % self.gets.len();
            self.next = at + 1;
            if !self.gets[at].tells(link, &mut self.tells)? {
                self.next = at;
                break;
            }
            if self.gets[at].has_told_end && self.gets[at].app.is_over() {
                let _ = self.removes(at);
                if self.gets.is_empty() {
                    break;
                }
            }
        }
        self.looked = if was_busy { 0 } else { self.looked + LOOKS };
        let is_part = self.looked < self.gets.len();
        if !is_part {
            self.looked = 0;
        }
        Ok(Turn::of(was_busy, is_part))
    }
}

impl<A: App> Gets<A> {
    /// The number of the connection.
    #[must_use]
    pub fn connection(&self) -> u32 {
        self.connection
    }

    /// Its partition is no more.
    pub fn resets(&self) {
        self.app.resets();
    }

    fn takes(&mut self, kind: Kind, carried: &[u8]) -> Result<(), Cut> {
        if self.app.is_over() {
            self.is_to_answer |= kind == Kind::Ends;
            return Ok(());
        }
        let window = self.app.window();
        match kind {
            Kind::Data => match self.sender.send(window, carried) {
                Ok(()) => self.sees_sleeper(),
                // The other proxy knows how much was read.
                Err(SendError::Full | SendError::TooLong { .. }) => {
                    return Err(Cut::Frame { kind: kind as u8, len: HEADER + carried.len() });
                }
                Err(SendError::Broken(_)) => self.app.resets(),
            },
            Kind::OverTcp => {
                window.publish(OVER_TCP_AT, number(kind, carried)?);
                self.app.knows_over_tcp();
            }
            Kind::ReadsRing => self.app.opens(),
            Kind::Ends => {
                window.publish(WRITES_NO_MORE_AT, 1);
                window.ring(Bell::Message);
                self.is_to_answer = true;
                // Else the end of TCP wakes it.
                if self.app.is_known_over_tcp() {
                    self.sees_sleeper();
                }
            }
            Kind::Wake => self.app.wakes(),
            // It is what comes first, and has had it taken.
            Kind::IsHere => {}
            _ => return Err(Cut::Frame { kind: kind as u8, len: HEADER + carried.len() }),
        }
        Ok(())
    }

    /// The program sleeps until something comes: the other host is to wake it.
    fn sees_sleeper(&mut self) {
        let turn = self.app.window().sleeper(Bell::Message);
        if self.app.is_woken_over_tcp() && turn != 0 && turn != self.woken {
            (self.woken, self.is_to_wake) = (turn, true);
        }
    }

    /// Tells what is new. False: there is no room for it.
    fn tells(&mut self, link: &impl Window, out: &mut Out) -> Result<bool, Cut> {
        let window = self.app.window();
        let mut tell = |kind, carried: &[u8]| out.send_short(link, self.connection, kind, carried);
        if self.is_to_wake {
            if !tell(Kind::Wake, &[])? {
                return Ok(false);
            }
            self.is_to_wake = false;
        }
        if self.is_to_answer {
            if !tell(Kind::HasEnded, &[])? {
                return Ok(false);
            }
            self.is_to_answer = false;
        }
        let reads_no_more = || self.app.is_over() || self.app.is_gone() || window.poll(READS_NO_MORE_AT) != 0;
        if !self.has_told_end && reads_no_more() {
            if !tell(Kind::ReadsNoMore, &[])? {
                return Ok(false);
            }
            self.has_told_end = true;
        }
        // What is wrong is seen by the next that is sent.
        let _ = self.sender.room(window);
        let [written, read] = self.sender.numbers();
        debug_assert!(read <= written && read.is_multiple_of(WORD as u64));
        if read != self.read {
            if !tell(Kind::Read, &read.to_le_bytes())? {
                return Ok(false);
            }
            self.read = read;
        }
        Ok(true)
    }
}
