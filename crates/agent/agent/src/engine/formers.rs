// SPDX-License-Identifier: Apache-2.0
//! Ends of what an agent before this one has told to be up ([`fide_detector::former`]).

use fide_agent_api::event::{EventRecord, kind};
use fide_detector::{Former, PeerState};
use fide_types::{HOST_SLOT, Name, ProcessRef, Reason};

use super::Engine;
use crate::{
    clock::Now,
    command::REATTACH,
    frozen::{OpenFormer, WATCHES_MAX, Watch},
};

/// The process of a life before of a host may still be told by name: it waits so long besides, when no lease of it can run any more. On
/// this host, at least: or twice the longest timeout.
const LEASES_NS: u64 = 1_000_000_000;
/// Programs of this host have come back to a new agent by then, if they ever do.
const REATTACH_NS: u64 = REATTACH.as_secs() * 1_000_000_000;
/// Between two looks at them.
const LOOK_NS: u64 = 5_000_000;
/// Looked at in one look: each asks all watches for its own, and all processes of a host for a name. The others have their turn in the
/// next looks, so that all 1024 there may be have one within a third of a second.
const FORMERS_PER_LOOK: usize = 16;
/// A process' number begins with its host's, shifted so far.
const PROCESS_SHIFT: u32 = 12;

/// Those of all clients, one for each watch at most.
#[derive(Debug)]
pub(super) struct Formers {
    open: Vec<OpenFormer>,
    next_ns: u64,
    /// Whose turn it is.
    next: usize,
}

impl Formers {
    pub(super) fn new() -> Self {
        Self { open: Vec::with_capacity(WATCHES_MAX), next_ns: 0, next: 0 }
    }

    pub(super) fn freeze(&self) -> Vec<OpenFormer> {
        self.open.clone()
    }

    pub(super) fn resume(&mut self, open: impl Iterator<Item = OpenFormer>) {
        self.open.extend(open);
    }
}

/// What is done about one.
enum Why {
    /// Not known yet.
    Wait,
    /// Its end is told by name, when it comes.
    ToldByItself,
    Over(Reason),
}

/// Processes that one life of a host is taken to number: 256 s of the clock by which lives are numbered. All numbers come round after 12 days,
/// so that with half of them, which [`is_newer`] goes by, a process of a life that began a week before would be one of this life. Of a life
/// that began within these 256 s of a whole round before, it still would.
const OF_A_LIFE: u32 = 1 << 20;

/// Processes that one life of a host can number at most: a thousand in each second of 24 days.
const MOST_OF_A_LIFE: u32 = 1 << 31;

/// Whether a life of a host has numbered this process. One of more processes than [`OF_A_LIFE`] has numbered it too, and is not known to have:
/// its end is told as that of another life, and not before that is certain ([`may_be_of_life`]).
fn is_of_life(process: u32, life: u32) -> bool {
    (1..OF_A_LIFE).contains(&process.wrapping_sub(life << PROCESS_SHIFT))
}

/// Whether a life of more processes than [`OF_A_LIFE`] may have numbered it, or one that began six to twelve days before.
fn may_be_of_life(process: u32, life: u32) -> bool {
    (OF_A_LIFE..MOST_OF_A_LIFE).contains(&process.wrapping_sub(life << PROCESS_SHIFT))
}

/// Whether process `one` was numbered after `other`, in one life of a host. Numbers go round.
fn is_newer(one: u32, other: u32) -> bool {
    matches!(one.wrapping_sub(other), 1..0x8000_0000)
}

#[cfg(test)]
mod tests;

impl Engine {
    /// Remembers what an agent before has told to this watch. One for each: the newest.
    pub(super) fn note_former(&mut self, client: u8, watch: u32, slot: u8, incarnation: u32, timeout_ns: u64) {
        let Some(Watch { host, .. }) = self.watches.by_id(client, watch) else { return };
        let formers = &mut self.formers;
        formers.open.retain(|open| (open.client, open.watch) != (client, watch));
        if formers.open.len() < WATCHES_MAX {
            let subject = ProcessRef::new(host, slot);
            formers.open.push(OpenFormer { client, watch, subject, incarnation, timeout_ns, other_since_ns: 0 });
        }
        formers.next_ns = 0;
    }

    /// Tells the ends that are certain by now, each once: what could not be told stays.
    pub(super) fn deliver_former_ends(&mut self, now: Now) {
        if self.formers.open.is_empty() || now.raw_ns < self.formers.next_ns {
            return;
        }
        self.formers.next_ns = now.raw_ns + LOOK_NS;
        for _ in 0..FORMERS_PER_LOOK.min(self.formers.open.len()) {
            let at = if self.formers.next < self.formers.open.len() { self.formers.next } else { 0 };
            let Some(open) = self.formers.open.get(at).copied() else { return };
            self.formers.next = at;
            let Some(watched) = self.watches.by_id(open.client, open.watch) else {
                self.formers.open.swap_remove(at);
                continue;
            };
            let done = match self.became_of(now, at, &open, watched.name) {
                Why::Wait => false,
                Why::ToldByItself => true,
                Why::Over(reason) => {
                    let record = end_of(now, open.watch, open.subject, open.incarnation, reason);
                    self.deliver(open.client, record, &[])
                }
            };
            if done {
                self.formers.open.swap_remove(at);
            } else {
                self.formers.next = at + 1;
            }
        }
    }

    /// What became of the subject of a watch, which is at `at` of those that are open.
    fn became_of(&mut self, now: Now, at: usize, open: &OpenFormer, name: Option<Name>) -> Why {
        let OpenFormer { subject: ProcessRef { host, slot }, incarnation, timeout_ns, .. } = *open;
        let is_it = |of_host: u32| match slot {
            HOST_SLOT => of_host == incarnation,
            _ => is_of_life(incarnation, of_host),
        };
        let became = self.detector.became_of(now.raw_ns, host, is_it, timeout_ns, self.started_ns);
        match (became, name) {
            // An agent is not told of its own host: programs of it hear from the table that it is another.
            (_, None) if host == self.facts.me => Why::ToldByItself,
            (_, Some(name)) if host == self.facts.me => self.became_of_own(now.raw_ns, name, incarnation),
            (Former::Unknown, _) => Why::Wait,
            (Former::Here, None) => Why::ToldByItself,
            (Former::Over, None) => Why::Over(Reason::HostSilent),
            (Former::Here, Some(name)) => self.became_of_process_here(host, name, incarnation),
            (Former::Over, Some(name)) => match self.find(host, name) {
                Some((_, process)) if process.incarnation == incarnation => Why::ToldByItself,
                _ if open.other_since_ns == 0 => {
                    self.formers.open[at].other_since_ns = now.raw_ns;
                    Why::Wait
                }
                _ if now.raw_ns.saturating_sub(open.other_since_ns) < LEASES_NS => Why::Wait,
                Some((_, process)) if is_newer(process.incarnation, incarnation) => Why::Over(Reason::HostSilent),
                // It may live, and be named yet.
                _ if self.may_be_named_yet(host, incarnation) => Why::Wait,
                _ => Why::Over(Reason::HostSilent),
            },
        }
    }

    /// Its host is up, or was. What became of a process is what that host says. Of one that ended while nobody listened here
    /// it may say nothing any more; but it names all that live, and says when it has.
    fn became_of_process_here(&self, host: u16, name: Name, incarnation: u32) -> Why {
        match self.find(host, name) {
            Some((_, process)) if process.incarnation == incarnation => Why::ToldByItself,
            Some((_, process)) if is_newer(process.incarnation, incarnation) => Why::Over(Reason::Exited(-1)),
            _ if self.detector.all_named(host) => Why::Over(Reason::Exited(-1)),
            _ => match self.detector.peer(host).map(|peer| peer.state) {
                Some(PeerState::Dead) => Why::Over(Reason::HostSilent),
                Some(PeerState::Left) => Why::Over(Reason::Left),
                _ => Why::Wait,
            },
        }
    }

    /// Whether a host that is up, or is a member and not heard yet, may have numbered this process in its present life, and has not named
    /// all its processes since.
    fn may_be_named_yet(&self, host: u16, process: u32) -> bool {
        let detector = &self.detector;
        let life = detector.peer(host).and_then(|peer| match peer.state {
            PeerState::Up => Some(peer.incarnation),
            PeerState::Unknown => detector.member_incarnation(host),
            PeerState::Dead | PeerState::Left => None,
        });
        life.is_some_and(|life| may_be_of_life(process, life)) && !detector.all_named(host)
    }

    /// What became of a process of this very host. Nobody else says it, and this agent knows all processes of its own life. One of a
    /// life before was granted nothing since: with it ended whatever leases it had, as for others with the host. Its program may
    /// be alive, and joins again under another number; so it is no exit, and is told when the program has had time for that.
    fn became_of_own(&self, now: u64, name: Name, incarnation: u32) -> Why {
        let detector = &self.detector;
        let found = self.find(self.facts.me, name).map(|(_, process)| process.incarnation);
        if found == Some(incarnation) {
            return Why::ToldByItself;
        }
        // A witness keeps its incarnation, so its numbers do not tell its lives apart.
        if self.votes.is_some() {
            return Why::Wait;
        }
        if detector.has_numbered(incarnation) {
            // It joined here, and its place was given to others since.
            return Why::Over(Reason::Exited(-1));
        }
        let timeouts = (1..=self.facts.members).filter_map(|host| detector.peer(host)).map(|peer| peer.timeout_ns);
        let longest_ns = timeouts.fold(detector.config().timeout_ns, u64::max);
        let leases_ns = longest_ns.saturating_mul(2).max(LEASES_NS);
        // Whoever has the name by now joined in this life.
        let wait_ns = if found.is_some() { leases_ns } else { leases_ns.max(REATTACH_NS) };
        if now >= self.started_ns.saturating_add(wait_ns) { Why::Over(Reason::HostSilent) } else { Why::Wait }
    }
}

/// The end of a subject, for one watch.
pub(super) fn end_of(now: Now, watch: u32, subject: ProcessRef, incarnation: u32, why: Reason) -> EventRecord {
    let ProcessRef { host, slot } = subject;
    let record = EventRecord { kind: kind::VERDICT, watch, host, slot, incarnation, ..EventRecord::default() };
    EventRecord { rx_ns: now.mono_ns, ..record }.with_reason(why)
}
