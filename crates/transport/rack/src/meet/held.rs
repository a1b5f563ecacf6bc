// SPDX-License-Identifier: Apache-2.0
//! The connections of a program to other hosts, as the thread has them that has its sockets.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::OwnedFd,
};

use rustix::net::sockopt;

use super::{
    carried::Held,
    guard::{Guard, Guarded},
};

/// Of those of a program it is looked at so many at once whether it has let the memory go.
const LOOKED: usize = 64;

/// A program's connections to other hosts.
#[derive(Debug, Default)]
pub(super) struct Holds {
    all: Vec<Held>,
    /// Where they are, by number.
    at: HashMap<u32, usize>,
    /// Where the last look was.
    looked: usize,
    /// None: nobody guards them.
    guarded: Option<Guarded>,
    /// Of which the guard is still to be told, or which are over. No more than twice as many as there are, and one.
    unguarded: VecDeque<u32>,
}

impl Holds {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// One more.
    pub(super) fn adds(&mut self, held: Held, guard: Option<&Guard>) {
        self.guarded = self.guarded.take().or_else(|| guard?.guarded());
        let is_kept = |guarded: &mut Guarded| guarded.keeps(held.number(), held.socket(), held.memory());
        if guard.is_some() && !self.guarded.as_mut().is_some_and(is_kept) {
            if self.unguarded.len() > 2 * self.all.len() {
                self.unguarded.retain(|number| self.at.contains_key(number));
            }
            self.unguarded.push_back(held.number());
        }
        self.at.insert(held.number(), self.all.len());
        self.all.push(held);
    }

    /// Has the guard keep those for which it had no room.
    fn guards(&mut self, guard: Option<&Guard>) {
        if !self.unguarded.is_empty() {
            self.guarded = self.guarded.take().or_else(|| guard?.guarded());
        }
        let Some(guarded) = &mut self.guarded else { return };
        guarded.pays();
        while let Some(number) = self.unguarded.front() {
            if let Some(held) = self.at.get(number).map(|at| &self.all[*at])
                && !guarded.keeps(*number, held.socket(), held.memory())
            {
                return;
            }
            self.unguarded.pop_front();
        }
    }

    fn takes(&mut self, at: usize) -> Held {
        let held = self.all.swap_remove(at);
        self.at.remove(&held.number());
        if let Some(moved) = self.all.get(at) {
            self.at.insert(moved.number(), at);
        }
        held
    }

    /// Closes it.
    fn ends(&mut self, at: usize) {
        let held = self.takes(at);
        let number = held.number();
        let socket = held.into_socket();
        lets_go(&socket);
        drop(socket);
        if let Some(guarded) = &mut self.guarded {
            guarded.lets_go(number);
        }
    }

    /// Does what their proxies ask for, who have rung for these.
    pub(super) fn serves(&mut self, rung: &[u32]) {
        for number in rung {
            if let Some(at) = self.at.get(number).copied()
                && !self.all[at].serves()
            {
                self.ends(at);
            }
        }
    }

    /// The same for all of them: a socket may have had no room for what wakes, and the guard none for one of them.
    pub(super) fn serves_all(&mut self, guard: Option<&Guard>) {
        for at in (0..self.all.len()).rev() {
            if !self.all[at].serves() {
                self.ends(at);
            }
        }
        self.guards(guard);
    }

    /// The program takes a question back, and has not begun with the memory.
    pub(super) fn cancels(&mut self, id: u32) {
        if let Some(at) = self.all.iter().position(|held| held.id == id && !held.has_begun()) {
            self.all[at].is_refused();
            self.ends(at);
        }
    }

    /// Looks at some of them in turn, whether the program has let the memory go.
    pub(super) fn looks(&mut self) {
        for _ in 0..self.all.len().min(LOOKED) {
            self.looked = (self.looked + 1) % self.all.len();
            let _ = self.all[self.looked].is_left();
        }
    }

    /// Looks at those whose memory somebody had at the last look. False: somebody still has one.
    pub(super) fn are_left(&self) -> bool {
        self.all.iter().fold(true, |are_left, held| held.is_left() & are_left)
    }
}

/// Before a socket is closed.
pub(super) fn lets_go(socket: &OwnedFd) {
    // Its program, if there still is one, knows what it has set. To linger for no time is a reset, for which nobody waits, and which the
    // program may have left to this close.
    if sockopt::socket_linger(socket).is_ok_and(|linger| linger.is_some_and(|linger| !linger.is_zero())) {
        let _ = sockopt::set_socket_linger(socket, None);
    }
}
