// SPDX-License-Identifier: Apache-2.0
//! What is kept for each other host: the chunks that it wants, answers that wait to be sent to it, and what
//! became of its offers.

use std::collections::VecDeque;

use super::{ANSWERS_MAX, Identity, OFFERS_MAX, RANGES_MAX, error::Reason, message::TransferMessage};

/// Chunks `next..end` of a payload that a host wants. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) identity: Identity,
    pub(super) next: u32,
    pub(super) end: u32,
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// So old that its offerer has had an answer.
    Old,
    Open,
    Had,
    Refused(Reason),
}

#[derive(Debug, Clone, Default)]
pub(super) struct Peer {
    /// By number modulo [`OFFERS_MAX`]: 0 open, 1 had, else 1 and the reason's code. Empty until the first
    /// offer.
    fates: Vec<u8>,
    /// The highest number of its offers.
    highest: u64,
    /// Ranges of one payload neither overlap nor touch.
    wanted: VecDeque<Wanted>,
    answers: VecDeque<TransferMessage<'static>>,
}

impl Peer {
    /// What became of one of its offers.
    pub(super) fn fate(&self, number: u64) -> Fate {
        if number > self.highest {
            return Fate::Open;
        }
        if self.highest - number >= OFFERS_MAX {
            return Fate::Old;
        }
        match self.fates.get(place(number)).copied().unwrap_or(0) {
            0 => Fate::Open,
            1 => Fate::Had,
            code => Reason::of(u16::from(code) - 1).map_or(Fate::Open, Fate::Refused),
        }
    }

    /// Notes what became of an offer.
    pub(super) fn note(&mut self, number: u64, fate: Fate) {
        if self.fate(number) == Fate::Old {
            return;
        }
        self.fates.resize(place(OFFERS_MAX - 1) + 1, 0);
        // The offers that had the places between are older than the window by now.
        for between in (self.highest.saturating_add(1)..number).rev().take(self.fates.len()) {
            self.fates[place(between)] = 0;
        }
        self.highest = self.highest.max(number);
        self.fates[place(number)] = match fate {
            Fate::Old | Fate::Open => 0,
            Fate::Had => 1,
            Fate::Refused(reason) => 1 + reason.code(),
        };
    }

    /// Queues an answer, unless it is queued already. False if the oldest answer was dropped: it will be
    /// asked for again.
    pub(super) fn answer(&mut self, answer: TransferMessage<'static>) -> bool {
        if self.answers.contains(&answer) {
            return true;
        }
        self.answers.push_back(answer);
        let fits = self.answers.len() <= ANSWERS_MAX;
        if !fits {
            self.answers.pop_front();
        }
        fits
    }

    pub(super) fn next_answer(&mut self) -> Option<TransferMessage<'static>> {
        self.answers.pop_front()
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Notes a wanted range, merged with the ranges that it touches. False if the oldest range was dropped:
    /// it will be wanted again.
    pub(super) fn want(&mut self, mut new: Wanted) -> bool {
        let (mut at, mut first) = (0, None);
        while let Some(old) = self.wanted.get(at).copied() {
            if old.identity == new.identity && old.next <= new.end && new.next <= old.end {
                new.next = new.next.min(old.next);
                new.end = new.end.max(old.end);
                self.wanted.remove(at);
                first.get_or_insert(at);
            } else {
                at += 1;
            }
        }
        self.wanted.insert(first.unwrap_or(self.wanted.len()), new);
        let fits = self.wanted.len() <= RANGES_MAX;
        if !fits {
            self.wanted.pop_front();
        }
        fits
    }

    /// The next chunk to be sent to it: one of each range in turn.
    pub(super) fn next_chunk(&mut self) -> Option<(Identity, u32)> {
        let mut range = self.wanted.pop_front()?;
        let chunk = (range.identity, range.next);
        range.next += 1;
        if range.next < range.end {
            self.wanted.push_back(range);
        }
        Some(chunk)
    }

    pub(super) fn wants_any(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// A payload is not stored here any more.
    pub(super) fn forget(&mut self, identity: &Identity) {
        self.wanted.retain(|range| range.identity != *identity);
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> (usize, usize) {
        (self.wanted.len(), self.answers.len())
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % OFFERS_MAX).expect("below 1024")
}
