// SPDX-License-Identifier: Apache-2.0
//! A group's log on the disk of one host: a model of `crates/agent/group/src/log.rs`.
//!
//! A crash of the host loses any end of what was written and not synced. The end of a process loses nothing
//! that was written; the next process syncs it before it relies on it.

use std::rc::Rc;

use fide_agreement::{
    Identity, View,
    group::{Recalled, RecalledMember},
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{
    check::{Checked, violated},
    state::State,
};

/// A decision, with the payloads that it names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decided {
    pub(super) position: u64,
    pub(super) value: Vec<u8>,
    pub(super) payloads: Vec<(Identity, Vec<u8>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Membership {
    incarnation: u32,
    ballot: u32,
    view: View,
}

#[derive(Debug, Clone)]
enum Entry {
    Member(Membership, u64),
    Decision(Rc<Decided>),
}

/// A record of the log.
#[derive(Debug, Clone)]
pub(super) struct Record(Entry);

impl Record {
    pub(super) fn member(incarnation: u32, ballot: u32, view: &View, start: u64) -> Self {
        Self(Entry::Member(Membership { incarnation, ballot, view: view.clone() }, start))
    }

    pub(super) fn decision(decided: Decided) -> Self {
        Self(Entry::Decision(Rc::new(decided)))
    }
}

/// What is on a disk.
#[derive(Debug, Clone, Default)]
struct Content {
    /// The first incarnation that the log answers for.
    first: u32,
    member: Option<Membership>,
    /// The user's state of that membership is here.
    is_whole: bool,
    /// The user's state that the log begins with.
    base: State,
    /// The decisions since, without gaps.
    log: Vec<Rc<Decided>>,
}

impl Content {
    fn last(&self) -> u64 {
        self.log.last().map_or(self.base.position, |decided| decided.position)
    }

    fn append(&mut self, Record(entry): Record) -> Checked {
        let last = self.last();
        match entry {
            Entry::Member(membership, start) => {
                if start > last || start < self.base.position {
                    let text = format!("a view that begins after {start} is stored after {last}");
                    return violated("log on disk", text);
                }
                self.log.retain(|decided| decided.position <= start);
                (self.member, self.is_whole) = (Some(membership), true);
            }
            Entry::Decision(decided) => {
                if decided.position != last + 1 {
                    return violated("log on disk", format!("decision {} is stored after {last}", decided.position));
                }
                self.log.push(decided);
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    /// What is on disk for certain; none if no durable member ever ran on the host.
    synced: Option<Content>,
    /// Written since.
    written: Vec<Record>,
    /// The user's state was replaced: the log as it goes on, which counts once that state is stored.
    replaced: Option<Content>,
}

impl Store {
    /// A process begins. Returns what it finds. `first`: the present incarnation, which is the first one that
    /// a new log answers for.
    pub(super) fn open(&mut self, first: u32) -> Result<Recalled, super::check::Violation> {
        self.drop_replaced();
        self.sync()?;
        let content = self.synced.get_or_insert_with(|| Content { first, ..Content::default() });
        let position = content.is_whole.then(|| content.last());
        let member = content.member.clone().map(|Membership { incarnation, ballot, view }| RecalledMember {
            incarnation,
            ballot,
            view,
            position,
        });
        Ok(Recalled { first: content.first, member })
    }

    pub(super) fn write(&mut self, records: impl IntoIterator<Item = Record>) {
        self.written.extend(records);
    }

    pub(super) fn is_unsynced(&self) -> bool {
        !self.written.is_empty()
    }

    /// Everything that was written is on disk now.
    pub(super) fn sync(&mut self) -> Checked {
        let Some(content) = self.replaced.as_mut().or(self.synced.as_mut()) else { return Ok(()) };
        self.written.drain(..).try_for_each(|record| content.append(record))
    }

    /// The user's state is another one, after this position, and not stored. `recalled`: what is to be known
    /// of former incarnations once it is.
    pub(super) fn replace(&mut self, position: u64, recalled: Recalled) -> Checked {
        self.sync()?;
        let Recalled { first, member } = recalled;
        // The member may have been let in with that state, and excluded, before the disk was told.
        let is_whole = member.as_ref().is_some_and(|member| member.position == Some(position));
        let member = member.map(|member| Membership {
            incarnation: member.incarnation,
            ballot: member.ballot,
            view: member.view,
        });
        let base = State { position, sum: 0 };
        self.replaced = Some(Content { first, member, is_whole, base, log: Vec::new() });
        Ok(())
    }

    /// The user's state is stored: the log begins with it.
    pub(super) fn set_base(&mut self, state: State) -> Checked {
        self.sync()?;
        let Some(mut content) = self.replaced.take().or(self.synced.take()) else { return Ok(()) };
        if state.position < content.base.position || state.position > content.last() {
            let text = format!("the state at {} is stored where the log ends at {}", state.position, content.last());
            return violated("log on disk", text);
        }
        content.log.retain(|decided| decided.position > state.position);
        content.base = state;
        self.synced = Some(content);
        Ok(())
    }

    /// The state that the log begins with, and the decisions since, up to a position.
    pub(super) fn read(&self, until: u64) -> (State, Vec<Rc<Decided>>) {
        let Some(content) = &self.synced else { return (State::default(), Vec::new()) };
        let log = content.log.iter().filter(|decided| decided.position <= until).cloned().collect();
        (content.base, log)
    }

    /// Number of the last view on disk; 0 for none.
    pub(super) fn view_number(&self) -> u32 {
        let member = self.synced.as_ref().and_then(|content| content.member.as_ref());
        member.map_or(0, |member| member.view.number())
    }

    /// Whether this view is the last one on disk.
    pub(super) fn has_begun(&self, view: &View) -> bool {
        let content = self.synced.as_ref().and_then(|content| content.member.as_ref());
        content.is_some_and(|membership| membership.view == *view)
    }

    /// How many decisions there are since the stored state.
    pub(super) fn since_base(&self) -> usize {
        self.replaced.as_ref().or(self.synced.as_ref()).map_or(0, |content| content.log.len())
    }

    /// The host crashes.
    pub(super) fn crash(&mut self, random: &mut ChaCha8Rng) {
        if !self.written.is_empty() {
            let kept = random.random_range(0..=self.written.len());
            self.written.truncate(kept);
        }
        self.drop_replaced();
    }

    /// Another state that is not stored, and what was written since, counts for nothing.
    fn drop_replaced(&mut self) {
        if self.replaced.take().is_some() {
            self.written.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use fide_agreement::ViewMember;
    use rand::SeedableRng;

    use super::*;

    fn decision(position: u64) -> Record {
        Record::decision(Decided { position, value: vec![position as u8], payloads: Vec::new() })
    }

    fn begun() -> Store {
        let mut store = Store::default();
        assert_eq!(store.open(3), Ok(Recalled { first: 3, member: None }));
        let view = View::new(1, &[ViewMember { host: 1, incarnation: 3 }]).unwrap();
        store.write([Record::member(3, 0, &view, 0), decision(1)]);
        store.sync().unwrap();
        store
    }

    fn position(store: &mut Store) -> Option<u64> {
        store.open(4).unwrap().member.unwrap().position
    }

    #[test]
    fn crash_of_the_host_loses_any_unsynced_end_and_the_end_of_a_process_nothing() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let mut store = begun();
            store.write([decision(2), decision(3)]);
            store.crash(&mut random);
            found.insert(position(&mut store));
        }
        assert_eq!(found, [Some(1), Some(2), Some(3)].into());
        let mut store = begun();
        store.write([decision(2), decision(3)]);
        assert_eq!(position(&mut store), Some(3), "the next process finds it");
        store.crash(&mut random);
        assert_eq!(position(&mut store), Some(3), "and has synced it");
    }

    #[test]
    fn another_state_counts_once_it_is_stored() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for is_stored in [false, true] {
            let mut store = begun();
            store.replace(7, Recalled { first: 4, member: None }).unwrap();
            store.write([decision(8)]);
            store.sync().unwrap();
            if is_stored {
                store.set_base(State { position: 8, sum: 5 }).unwrap();
            }
            store.crash(&mut random);
            let recalled = store.open(9).unwrap();
            assert_eq!((recalled.first, recalled.member.is_some()), if is_stored { (4, false) } else { (3, true) });
            assert_eq!(store.read(9).0.position, if is_stored { 8 } else { 0 });
        }
    }

    #[test]
    fn gap_in_the_log_is_seen() {
        let mut store = begun();
        store.write([decision(3)]);
        assert!(store.sync().is_err());
        let mut store = begun();
        assert!(store.set_base(State { position: 2, sum: 0 }).is_err());
    }
}
