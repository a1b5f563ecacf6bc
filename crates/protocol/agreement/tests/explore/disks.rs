// SPDX-License-Identifier: Apache-2.0
//! A host's disk, as a durable group uses it: a written end may be lost in a crash, or not.

use fide_agreement::{
    View,
    group::{Recalled, RecalledMember, ToStore},
};

/// The last membership: incarnation, ballot, view.
type Member = (u32, u32, View);

#[derive(Clone, Default)]
struct Content {
    first: u32,
    member: Option<Member>,
    /// The state of that membership is here.
    is_whole: bool,
    log: Vec<u64>,
}

impl Content {
    fn append(&mut self, what: &ToStore<'_>, number: u64) {
        match what {
            ToStore::Member { incarnation, ballot, view, start } => {
                self.log.truncate(usize::try_from(*start).expect("small"));
                assert_eq!(self.log.len() as u64, *start, "nothing is missing before a view");
                (self.member, self.is_whole) = (Some((*incarnation, *ballot, (*view).clone())), true);
            }
            ToStore::Decision { position, .. } => {
                self.log.push(number);
                assert_eq!(self.log.len() as u64, *position, "decisions are stored in order");
            }
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Disk {
    synced: Content,
    /// After each write since the last sync.
    written: Vec<Content>,
    /// Of a user's state that replaces the one on disk: collected until it is stored, from this position on.
    pending: Option<(u64, Content)>,
}

impl Disk {
    pub(super) fn new(first: u32) -> Self {
        Self { synced: Content { first, is_whole: true, ..Content::default() }, ..Self::default() }
    }

    pub(super) fn append(&mut self, what: &ToStore<'_>, number: u64) {
        if let Some((_, content)) = &mut self.pending {
            return content.append(what, number);
        }
        let mut content = self.written.last().unwrap_or(&self.synced).clone();
        content.append(what, number);
        self.written.push(content);
    }

    /// Everything that was written is on disk now.
    pub(super) fn sync(&mut self) {
        if let Some(content) = self.written.pop() {
            self.synced = content;
            self.written.clear();
        }
    }

    /// The user has another state. What was on disk stays there until that state is, too.
    pub(super) fn replace(&mut self, position: u64, log: &[u64], recalled: Recalled) {
        let Recalled { first, member } = recalled;
        let member = member.map(|member| (member.incarnation, member.ballot, member.view));
        self.pending = Some((position, Content { first, member, is_whole: false, log: log.to_vec() }));
    }

    /// Where the state begins that is to be stored, if there is one: it is on disk now.
    pub(super) fn store_pending(&mut self) -> Option<u64> {
        let (position, content) = self.pending.take()?;
        self.synced = content;
        self.written.clear();
        Some(position)
    }

    /// The process ends; so many of the last writes are lost. Returns what the next process finds.
    pub(super) fn crash(&mut self, lost: usize) -> (Recalled, Vec<u64>) {
        self.pending = None;
        self.written.truncate(self.written.len().saturating_sub(lost));
        self.sync();
        let Content { first, member, is_whole, log } = self.synced.clone();
        let position = is_whole.then_some(log.len() as u64);
        let member = member.map(|(incarnation, ballot, view)| RecalledMember { incarnation, ballot, view, position });
        let log = if member.is_some() && is_whole { log } else { Vec::new() };
        (Recalled { first, member }, log)
    }
}
