// SPDX-License-Identifier: Apache-2.0
//! Ends of processes and hosts that an agent before this one reported up ([`fide_detector::former`]).

use fide_agent_api::event::{EventRecord, kind};
use fide_detector::{Former, PeerState};
use fide_types::{HOST_SLOT, HostId, Name, ProcessRef, Reason};

use super::Engine;
use crate::{
    clock::Now,
    command::REATTACH,
    frozen::{OpenFormer, WATCHES_MAX, Watch},
};

/// A process of a host's earlier life may still be named. So its end waits this long beyond the moment at
/// which no lease of it can run any more; for a process of this host, the longer of this and twice the
/// longest timeout.
const LEASES_NS: u64 = 1_000_000_000;
/// Programs of this host have come back to a new agent by then, if they ever do.
const REATTACH_NS: u64 = REATTACH.as_secs() * 1_000_000_000;
/// Between two rounds of checks.
const LOOK_NS: u64 = 5_000_000;
/// Formers checked in one round: each check searches all watches, and all processes of a host for a name.
/// The others follow in the next rounds, so that all 1024 possible ones are checked within a third of a
/// second.
const FORMERS_PER_LOOK: usize = 16;
/// A process number begins with its host's, shifted by this much.
const PROCESS_SHIFT: u32 = 12;

/// The formers of all clients, at most one for each watch.
#[derive(Debug)]
pub(super) struct Formers {
    open: Vec<OpenFormer>,
    next_ns: u64,
    /// The one to be checked next.
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

/// The fate of a former.
enum Why {
    /// Its fate is not known yet.
    Wait,
    /// Its end comes as an ordinary verdict, if it comes.
    AsUsual,
    Over(Reason),
}

/// How many numbers one life of a host is assumed to use: 256 s of the clock that numbers lives. All
/// numbers come round after 12 days. If half of them were assumed, as in [`is_newer`], a process of a life
/// that began a week before would count as one of this life. It still does if that life began within 256 s
/// of a whole round before.
const OF_A_LIFE: u32 = 1 << 20;

/// How many processes one life of a host can number at most: a thousand in each second of 24 days.
const MOST_OF_A_LIFE: u32 = 1 << 31;

/// Whether this life of a host has numbered this process. A life with more processes than [`OF_A_LIFE`] may
/// have numbered it too without this being known: its end is then reported as the end of another life's
/// process, and not before that is certain ([`may_be_of_life`]).
fn is_of_life(process: u32, life: u32) -> bool {
    (1..OF_A_LIFE).contains(&process.wrapping_sub(life << PROCESS_SHIFT))
}

/// Whether a life with more processes than [`OF_A_LIFE`], or one that began six to twelve days before, may
/// have numbered it.
fn may_be_of_life(process: u32, life: u32) -> bool {
    (OF_A_LIFE..MOST_OF_A_LIFE).contains(&process.wrapping_sub(life << PROCESS_SHIFT))
}

/// Whether process `one` was numbered after `other`, in one life of a host. Numbers wrap around.
fn is_newer(one: u32, other: u32) -> bool {
    matches!(one.wrapping_sub(other), 1..0x8000_0000)
}

#[cfg(test)]
mod tests;

impl Engine {
    /// Remembers the subject that a former agent reported to this watch: only the newest for each watch.
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

    /// Delivers the ends that are certain by now, each once. An end that could not be delivered stays.
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
                Why::AsUsual => true,
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

    /// The fate of the `at`-th open former, which is the subject of a watch.
    fn became_of(&mut self, now: Now, at: usize, open: &OpenFormer, name: Option<Name>) -> Why {
        let OpenFormer { subject: ProcessRef { host, slot }, incarnation, timeout_ns, .. } = *open;
        let is_it = |of_host: u32| match slot {
            HOST_SLOT => of_host == incarnation,
            _ => is_of_life(incarnation, of_host),
        };
        let became = self.detector.became_of(now.raw_ns, host, is_it, timeout_ns, self.started_ns);
        match (became, name) {
            // An agent reports nothing about its own host: its programs read in the table that the
            // incarnation has changed.
            (_, None) if host == self.facts.me => Why::AsUsual,
            (_, Some(name)) if host == self.facts.me => self.became_of_own(now.raw_ns, name, incarnation),
            (Former::Unknown, _) => Why::Wait,
            (Former::Here, None) => Why::AsUsual,
            (Former::Over, None) => Why::Over(Reason::HostSilent),
            (Former::Here, Some(name)) => self.became_of_process_here(host, name, incarnation),
            (Former::Over, Some(name)) => match self.find(host, name) {
                Some((_, process)) if process.incarnation == incarnation => Why::AsUsual,
                _ if open.other_since_ns == 0 => {
                    self.formers.open[at].other_since_ns = now.raw_ns;
                    Why::Wait
                }
                _ if now.raw_ns.saturating_sub(open.other_since_ns) < LEASES_NS => Why::Wait,
                Some((_, process)) if is_newer(process.incarnation, incarnation) => Why::Over(Reason::HostSilent),
                // The process may live, and its host may still name it.
                _ if self.may_be_named_yet(host, incarnation) => Why::Wait,
                _ => Why::Over(Reason::HostSilent),
            },
        }
    }

    /// The fate of a process whose host is up, or was: that host's word counts. The host may say
    /// nothing about a process that ended before this agent listened; but it names all live processes, and
    /// says when it has done so.
    fn became_of_process_here(&self, host: HostId, name: Name, incarnation: u32) -> Why {
        match self.find(host, name) {
            Some((_, process)) if process.incarnation == incarnation => Why::AsUsual,
            Some((_, process)) if is_newer(process.incarnation, incarnation) => Why::Over(Reason::Exited(-1)),
            _ if self.detector.all_named(host) => Why::Over(Reason::Exited(-1)),
            _ => match self.detector.peer(host).map(|peer| peer.state) {
                Some(PeerState::Dead) => Why::Over(Reason::HostSilent),
                Some(PeerState::Left) => Why::Over(Reason::Left),
                _ => Why::Wait,
            },
        }
    }

    /// Whether a host may have numbered this process in its present life, and has not named all its
    /// processes since. The host is up, or is a member and not heard yet.
    fn may_be_named_yet(&self, host: HostId, process: u32) -> bool {
        let detector = &self.detector;
        let life = detector.peer(host).and_then(|peer| match peer.state {
            PeerState::Up => Some(peer.incarnation),
            PeerState::Unknown => detector.member_incarnation(host),
            PeerState::Dead | PeerState::Left => None,
        });
        life.is_some_and(|life| may_be_of_life(process, life)) && !detector.all_named(host)
    }

    /// The fate of a process of this host. No other host reports it, and this agent knows all processes of
    /// its own life. A process of an earlier life was granted nothing since that life ended, and lost its
    /// leases with it, as other hosts see it too. Its program may be alive, and may join again under another
    /// number. So this is no exit, and is reported only when the program has had time to join.
    fn became_of_own(&self, now: u64, name: Name, incarnation: u32) -> Why {
        let detector = &self.detector;
        let found = self.find(self.facts.me, name).map(|(_, process)| process.incarnation);
        if found == Some(incarnation) {
            return Why::AsUsual;
        }
        // A witness keeps its incarnation, so its numbers do not distinguish its lives.
        if self.votes.is_some() {
            return Why::Wait;
        }
        if detector.has_numbered(incarnation) {
            // It joined in this life, and its slot was given to others since.
            return Why::Over(Reason::Exited(-1));
        }
        let timeouts = (1..=self.facts.members).filter_map(|host| detector.peer(host)).map(|peer| peer.timeout_ns);
        let longest_ns = timeouts.fold(detector.config().timeout_ns, u64::max);
        let leases_ns = longest_ns.saturating_mul(2).max(LEASES_NS);
        // A process that has the name by now joined in this life.
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
