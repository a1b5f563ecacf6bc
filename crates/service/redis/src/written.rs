// SPDX-License-Identifier: Apache-2.0
//! Which keys are written by what this server has yet to apply, so that a follower answers reads of other keys at
//! once (the argument is in `crates/protocol/agreement/src/group/held.rs`).
//!
//! Three parts of the log are looked at, in order of positions: what was delivered and is not applied yet, a unit of
//! which fragments are missing, and what this member stores and was not delivered.
//!
//! - A key is known by a hash of its name, without its database: equal hashes make a read wait, and nothing wrong. So
//!   `MOVE` and `COPY ... DB` need no care.
//! - Nothing is taken back. What was stored and is replaced by another value makes a read wait as long as its position
//!   is not applied.
//! - A unit is read as a stream, fragment by fragment, and none of it is kept.
//! - Nothing is read while nobody asks: [`INTEREST`].

use std::collections::{HashMap, VecDeque};

use fide_group::{Entry, entries};

use crate::{commands::Keys, unit::Part};

/// Most keys that are remembered; of more, everything may be written.
pub const KEYS_MAX: usize = 16_384;
/// Positions for which delivered units are read after the last question about a key. Before the first question, and
/// after these, all that is delivered may write everything, until it is applied.
pub const INTEREST: u32 = 1024;
/// Most stored values whose reading is remembered: more than a group has under way. Of more, everything may be
/// written.
pub const SEEN_MAX: usize = 4096;
/// Longest name of a command in a unit.
const NAME_MAX: usize = 32;

/// What stands for a key.
#[must_use]
pub fn hash_of(key: &[u8]) -> u64 {
    hash(HASH_BASIS, key)
}

// FNV-1a: it takes a key in parts.
const HASH_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// What cannot be read may write everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unreadable;

/// Where the reading of a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The length of notes or remarks: so many of its bytes have come. `after`: so many of these follow.
    PartLen {
        come: u32,
        len: u32,
        after: u8,
    },
    Part {
        left: u64,
        after: u8,
    },
    /// A line of this kind, `*` or `$`, and the number on it as far as it has come.
    Line {
        kind: u8,
        has_begun: bool,
        number: u64,
    },
    Word {
        left: u64,
    },
    /// The end of a line after a word.
    End {
        left: u64,
    },
}

/// A unit of which fragments were read, and not the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    session: u64,
    number: u64,
    step: Step,
    /// Words of the command, and the place of the one that is read.
    count: usize,
    at: usize,
    name: [u8; NAME_MAX],
    name_len: usize,
    keys: Keys,
    hash: u64,
}

impl Open {
    fn new(part: &Part<'_>) -> Self {
        let line = Step::Line { kind: b'*', has_begun: false, number: 0 };
        Self {
            session: part.session,
            number: part.number,
            step: match part.parts {
                0 => line,
                parts => Step::PartLen { come: 0, len: 0, after: parts - 1 },
            },
            count: 0,
            at: 0,
            name: [0; NAME_MAX],
            name_len: 0,
            keys: Keys::None,
            hash: HASH_BASIS,
        }
    }

    fn begin_line(&mut self, kind: u8) {
        self.step = Step::Line { kind, has_begun: false, number: 0 };
    }

    fn begin_part_or_line(&mut self, parts: u8) {
        match parts {
            0 => self.begin_line(b'*'),
            parts => self.step = Step::PartLen { come: 0, len: 0, after: parts - 1 },
        }
    }

    /// Reads on. `each` is called with the hash of each key.
    fn read(
        &mut self,
        mut bytes: &[u8],
        keys_of: &dyn Fn(&[u8]) -> Keys,
        each: &mut dyn FnMut(u64),
    ) -> Result<(), Unreadable> {
        while let Some((first, rest)) = bytes.split_first() {
            match &mut self.step {
                Step::PartLen { come, len, after } => {
                    *len |= u32::from(*first) << (8 * *come);
                    *come += 1;
                    bytes = rest;
                    if *come == 4 {
                        let (left, after) = (u64::from(*len), *after);
                        self.step = Step::Part { left, after };
                        if left == 0 {
                            self.begin_part_or_line(after);
                        }
                    }
                }
                Step::Part { left, after } => {
                    let _ = take(left, &mut bytes);
                    if *left == 0 {
                        let after = *after;
                        self.begin_part_or_line(after);
                    }
                }
                Step::End { left } => {
                    let _ = take(left, &mut bytes);
                    if *left == 0 {
                        self.end_word();
                    }
                }
                Step::Line { kind, has_begun, number } => {
                    bytes = rest;
                    match first {
                        _ if !*has_begun => {
                            *has_begun = true;
                            if first != kind {
                                return Err(Unreadable);
                            }
                        }
                        b'0'..=b'9' => {
                            let digit = u64::from(first - b'0');
                            *number =
                                number.checked_mul(10).and_then(|ten| ten.checked_add(digit)).ok_or(Unreadable)?;
                        }
                        b'\r' => {}
                        b'\n' => {
                            let (kind, number) = (*kind, *number);
                            self.end_line(kind, number, keys_of, each)?;
                        }
                        _ => return Err(Unreadable),
                    }
                }
                Step::Word { left } => {
                    let part = take(left, &mut bytes);
                    let is_whole = *left == 0;
                    self.take_part(part)?;
                    if is_whole {
                        self.take_word(keys_of, each)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn end_line(
        &mut self,
        kind: u8,
        number: u64,
        keys_of: &dyn Fn(&[u8]) -> Keys,
        each: &mut dyn FnMut(u64),
    ) -> Result<(), Unreadable> {
        if kind == b'*' {
            (self.count, self.at) = (usize::try_from(number).map_err(|_| Unreadable)?, 0);
            self.begin_line(if number == 0 { b'*' } else { b'$' });
            return Ok(());
        }
        (self.step, self.hash) = (Step::Word { left: number }, HASH_BASIS);
        if self.at == 0 {
            self.name_len = 0;
        }
        if number == 0 { self.take_word(keys_of, each) } else { Ok(()) }
    }

    fn is_key(&self) -> bool {
        self.at > 0
            && match self.keys {
                Keys::At(places) => places.holds(self.at, self.count),
                Keys::AnyWord => true,
                Keys::None | Keys::All => false,
            }
    }

    /// A part of a word has come.
    fn take_part(&mut self, part: &[u8]) -> Result<(), Unreadable> {
        if self.at == 0 {
            let end = self.name_len + part.len();
            self.name.get_mut(self.name_len..end).ok_or(Unreadable)?.copy_from_slice(part);
            self.name_len = end;
        } else if self.is_key() {
            self.hash = hash(self.hash, part);
        }
        Ok(())
    }

    /// A word is whole.
    fn take_word(&mut self, keys_of: &dyn Fn(&[u8]) -> Keys, each: &mut dyn FnMut(u64)) -> Result<(), Unreadable> {
        if self.at == 0 {
            self.keys = keys_of(&self.name[..self.name_len]);
            if self.keys == Keys::All {
                return Err(Unreadable);
            }
        } else if self.is_key() {
            each(self.hash);
        }
        self.step = Step::End { left: 2 };
        Ok(())
    }

    fn end_word(&mut self) {
        self.at += 1;
        self.begin_line(if self.at < self.count { b'$' } else { b'*' });
    }
}

/// Up to `left` bytes, which are taken off both.
fn take<'a>(left: &mut u64, bytes: &mut &'a [u8]) -> &'a [u8] {
    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    let (part, rest) = bytes.split_at(len);
    (*bytes, *left) = (rest, *left - len as u64);
    part
}

/// What is known of the unit that may be open after a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chain {
    /// The entries before were not read.
    Unknown,
    Closed,
    Open(Open),
}

/// A stored value that was read.
#[derive(Debug, Clone, Copy)]
struct Seen {
    position: u64,
    view: u32,
    round: u16,
    before: Chain,
    after: Chain,
}

/// Where a walk through the stored values is.
#[derive(Debug, Clone, Copy)]
struct Walk {
    position: u64,
    /// Before that position, and after it.
    before: Chain,
    after: Chain,
}

/// What is written at positions that are not applied yet.
#[derive(Debug)]
pub struct Written {
    /// By hash of a key: the last position at which it is written.
    keys: HashMap<u64, u64>,
    /// The last position at which everything may be written.
    everything: u64,
    /// The position that was delivered last, and the unit that is open after it.
    delivered: u64,
    chain: Chain,
    /// Of positions after that one, in the order in which they were read.
    seen: VecDeque<Seen>,
    walk: Walk,
    /// Positions for which delivered units are still read.
    interest: u32,
}

impl Default for Written {
    fn default() -> Self {
        Self {
            keys: HashMap::new(),
            everything: 0,
            delivered: 0,
            chain: Chain::Unknown,
            seen: VecDeque::new(),
            walk: Walk { position: 0, before: Chain::Unknown, after: Chain::Unknown },
            interest: 0,
        }
    }
}

impl Written {
    /// Somebody asks for a key: what is delivered next is read.
    pub fn take_interest(&mut self) {
        self.interest = INTEREST;
    }

    /// The next decision was delivered. `applied`: the position up to which this server has applied all.
    pub fn deliver(&mut self, position: u64, value: &[u8], applied: u64, keys_of: &dyn Fn(&[u8]) -> Keys) {
        let before = if position == self.delivered + 1 { self.chain } else { Chain::Unknown };
        self.delivered = position;
        while self.seen.front().is_some_and(|seen| seen.position <= position) {
            self.seen.pop_front();
        }
        if self.interest == 0 {
            (self.everything, self.chain) = (position, Chain::Unknown);
            return;
        }
        self.interest -= 1;
        self.chain = self.read(position, value, before, applied, keys_of);
    }

    /// Begins to look at what is stored, after this delivered position.
    pub fn begin_walk(&mut self, delivered: u64) {
        if delivered != self.delivered {
            // The state was replaced by another one.
            (self.delivered, self.chain) = (delivered, Chain::Unknown);
            self.everything = self.everything.max(delivered);
        }
        self.walk = Walk { position: delivered, before: Chain::Unknown, after: self.chain };
    }

    /// The next stored value: of a position, a view and a round, which have one value.
    pub fn visit(
        &mut self,
        (position, view, round): (u64, u32, u16),
        value: &[u8],
        applied: u64,
        keys_of: &dyn Fn(&[u8]) -> Keys,
    ) {
        let is_second = position == self.walk.position;
        let before = match position.checked_sub(self.walk.position) {
            Some(0) => self.walk.before,
            Some(1) => self.walk.after,
            // Nothing is stored at the position before.
            _ => Chain::Unknown,
        };
        let same =
            |seen: &&Seen| (seen.position, seen.view, seen.round) == (position, view, round) && seen.before == before;
        let after = match self.seen.iter().find(same) {
            Some(seen) => seen.after,
            None => {
                let after = self.read(position, value, before, applied, keys_of);
                if self.seen.len() == SEEN_MAX {
                    self.seen.clear();
                    self.everything = self.everything.max(position);
                }
                self.seen.push_back(Seen { position, view, round, before, after });
                after
            }
        };
        // Which of two values is decided is not known.
        let after = if is_second { Chain::Unknown } else { after };
        self.walk = Walk { position, before, after };
    }

    /// The last position at which one of these keys ([`hash_of`]) may be written; 0: none.
    #[must_use]
    pub fn last_of(&self, keys: &[u64]) -> u64 {
        let last = keys.iter().filter_map(|key| self.keys.get(key)).copied().max().unwrap_or(0);
        last.max(self.everything)
    }

    /// Reads the entries of a position.
    fn read(
        &mut self,
        position: u64,
        value: &[u8],
        before: Chain,
        applied: u64,
        keys_of: &dyn Fn(&[u8]) -> Keys,
    ) -> Chain {
        let (mut chain, mut count) = (before, 0);
        for entry in entries(value) {
            count += 1;
            let read = match entry {
                Entry::Value(fragment) => self.read_fragment(position, fragment, &mut chain, applied, keys_of),
                // From a view on the others may go on without this member.
                Entry::View(_) | Entry::Payload(_) => Err(Unreadable),
            };
            if read.is_err() {
                self.everything = self.everything.max(position);
            }
        }
        // As in `Assembly::gap`.
        if count == 0 { Chain::Closed } else { chain }
    }

    fn read_fragment(
        &mut self,
        position: u64,
        fragment: &[u8],
        chain: &mut Chain,
        applied: u64,
        keys_of: &dyn Fn(&[u8]) -> Keys,
    ) -> Result<(), Unreadable> {
        let before = std::mem::replace(chain, Chain::Unknown);
        let part = Part::read(fragment).map_err(|_| Unreadable)?;
        let mut open = match before {
            _ if part.is_first => Open::new(&part),
            Chain::Open(open) if (open.session, open.number) == (part.session, part.number) => open,
            // The rest of a unit whose beginning nobody decided: it is dropped.
            Chain::Open(_) | Chain::Closed => {
                *chain = Chain::Closed;
                return Ok(());
            }
            Chain::Unknown => return Err(Unreadable),
        };
        let Self { keys, everything, .. } = self;
        let read = open.read(part.content, keys_of, &mut |key| note(keys, everything, key, position, applied));
        // What is not read of a unit may be in its later fragments.
        *chain = match (part.is_last, &read) {
            (true, _) => Chain::Closed,
            (false, Ok(())) => Chain::Open(open),
            (false, Err(_)) => Chain::Unknown,
        };
        read
    }
}

/// A key is written at a position.
fn note(keys: &mut HashMap<u64, u64>, everything: &mut u64, key: u64, position: u64, applied: u64) {
    let last = keys.entry(key).or_default();
    *last = position.max(*last);
    if keys.len() <= KEYS_MAX {
        return;
    }
    keys.retain(|_, last| *last > applied);
    // Room for as many again, so that this is not done for each key.
    if keys.len() > KEYS_MAX / 2 {
        *everything = keys.values().copied().max().unwrap_or(0).max(*everything);
        keys.clear();
    }
}

#[cfg(test)]
mod tests;
