// SPDX-License-Identifier: Apache-2.0
//! Which client registered which local process, and whether the process still beats.

use fide_types::MAX_PROCESSES;

use crate::frozen::Owner;

/// Changes between stalled and recovered that may be announced of one process at once; then one in
/// [`CHANGE_NS`]. A program can cause as many changes as it likes, and each is sent to every host.
const CHANGES_MAX: u64 = 4;
const CHANGE_NS: u64 = 1_000_000_000;
/// Stands for the client of a process whose session is over.
const NOBODY: u8 = u8::MAX;

/// The owners of this host's processes, by slot.
pub(super) struct Owners {
    by_slot: Box<[Option<Owner>; MAX_PROCESSES]>,
    last_cookie: u64,
}

impl Owners {
    pub(super) fn new() -> Self {
        Self { by_slot: Box::new([None; MAX_PROCESSES]), last_cookie: 0 }
    }

    /// A process was registered. Returns its cookie, which names this registration for good.
    pub(super) fn register(&mut self, slot: u8, client: u8, beat_timeout_ns: u64, beat: u64, now_raw_ns: u64) -> u64 {
        self.last_cookie += 1;
        self.by_slot[usize::from(slot)] = Some(Owner {
            cookie: self.last_cookie,
            client,
            beat_timeout_ns,
            beat,
            beat_ns: now_raw_ns,
            stalled: false,
            changes_paid_ns: 0,
        });
        self.last_cookie
    }

    /// The registered process belongs to this client from now on. Returns its cookie.
    pub(super) fn adopt(
        &mut self,
        slot: u8,
        client: u8,
        beat_timeout_ns: u64,
        beat: u64,
        now_raw_ns: u64,
    ) -> Option<u64> {
        let owner = self.by_slot.get_mut(usize::from(slot))?.as_mut()?;
        *owner = Owner { client, beat_timeout_ns, beat, beat_ns: now_raw_ns, ..*owner };
        Some(owner.cookie)
    }

    /// A client's session is over. Its processes stay under the kernel's watch, but do not beat any more.
    pub(super) fn orphan(&mut self, client: u8) {
        for owner in self.by_slot.iter_mut().flatten().filter(|owner| owner.client == client) {
            owner.beat_timeout_ns = 0;
            owner.client = NOBODY;
        }
    }

    /// Whether the process in `slot` still belongs to this registration.
    pub(super) fn is_registration(&self, slot: u8, cookie: u64) -> bool {
        self.owner(slot).is_some_and(|owner| owner.cookie == cookie)
    }

    /// The client that registered the process in `slot`, if its session goes on.
    pub(super) fn client_of(&self, slot: u8) -> Option<u8> {
        self.owner(slot).map(|owner| owner.client).filter(|client| *client != NOBODY)
    }

    /// The slots of a client's processes, ascending.
    pub(super) fn slots_of(&self, client: u8) -> impl Iterator<Item = u8> + '_ {
        let owns = move |owner: &Option<Owner>| owner.is_some_and(|owner| owner.client == client);
        (0u8..).zip(self.by_slot.iter()).filter(move |(_, owner)| owns(owner)).map(|(slot, _)| slot)
    }

    fn owner(&self, slot: u8) -> Option<&Owner> {
        self.by_slot.get(usize::from(slot))?.as_ref()
    }

    /// Checks the beat counter of the process in `slot`. `beat_of` reads a client's counter; `None` without
    /// a session. Returns `Some(true)` if the process stalls now, `Some(false)` if it has recovered.
    pub(super) fn beat(&mut self, slot: u8, now_raw_ns: u64, beat_of: impl FnOnce(u8) -> Option<u64>) -> Option<bool> {
        let owner = self.by_slot.get_mut(usize::from(slot))?.as_mut()?;
        // A process that does not beat any more, because its session is over or came back without beats,
        // must not stay stalled for ever.
        let stalled = if owner.beat_timeout_ns == 0 {
            false
        } else {
            let beat = beat_of(owner.client)?;
            if beat != owner.beat {
                (owner.beat, owner.beat_ns) = (beat, now_raw_ns);
            }
            now_raw_ns.saturating_sub(owner.beat_ns) > owner.beat_timeout_ns
        };
        if stalled == owner.stalled || !may_change(owner, now_raw_ns) {
            return None;
        }
        owner.stalled = stalled;
        Some(stalled)
    }

    /// The owners for the next agent.
    pub(super) fn freeze(&self) -> (Vec<Option<Owner>>, u64) {
        (self.by_slot.to_vec(), self.last_cookie)
    }

    pub(super) fn resume(&mut self, owners: Vec<Option<Owner>>, last_cookie: u64) {
        for (mine, theirs) in self.by_slot.iter_mut().zip(owners) {
            *mine = theirs;
        }
        self.last_cookie = last_cookie;
    }
}

/// Whether a change may be announced now; if so, it is counted.
fn may_change(owner: &mut Owner, now_raw_ns: u64) -> bool {
    let paid_ns = owner.changes_paid_ns.max(now_raw_ns);
    let may = paid_ns - now_raw_ns <= (CHANGES_MAX - 1) * CHANGE_NS;
    if may {
        owner.changes_paid_ns = paid_ns + CHANGE_NS;
    }
    may
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn process_stalls_and_recovers_with_its_beats() {
        let mut owners = Owners::new();
        let cookie = owners.register(5, 1, 10 * MS, 0, 0);
        assert!(owners.is_registration(5, cookie) && !owners.is_registration(5, cookie + 1));
        assert_eq!(owners.beat(5, 10 * MS, |_| Some(0)), None);
        assert_eq!(owners.beat(5, 10 * MS + 1, |_| Some(0)), Some(true));
        assert_eq!(owners.beat(5, 11 * MS, |_| Some(0)), None, "known");
        assert_eq!(owners.beat(5, 12 * MS, |_| Some(1)), Some(false));
        assert_eq!(owners.beat(6, 0, |_| Some(1)), None, "no process");
    }

    #[test]
    fn flapping_process_is_announced_at_a_bounded_rate() {
        let mut owners = Owners::new();
        owners.register(0, 1, 10, 0, 0);
        let (mut now, mut beat, mut changes) = (0, 0, 0);
        while now < 10_000 * MS {
            now += MS;
            changes += u64::from(owners.beat(0, now, |_| Some(beat)).is_some());
            beat += u64::from(now.is_multiple_of(2 * MS));
        }
        assert!((10..=10 + CHANGES_MAX).contains(&changes), "{changes}");
    }

    #[test]
    fn processes_of_a_closed_session_have_no_client_until_adopted() {
        let mut owners = Owners::new();
        let cookie = owners.register(0, 1, 10, 0, 0);
        owners.register(3, 1, 0, 0, 0);
        assert_eq!(owners.slots_of(1).collect::<Vec<_>>(), [0, 3]);
        owners.orphan(1);
        assert_eq!((owners.slots_of(1).count(), owners.client_of(0)), (0, None));
        assert_eq!(owners.adopt(0, 2, 0, 9, 5), Some(cookie));
        assert_eq!((owners.client_of(0), owners.adopt(9, 2, 0, 0, 0)), (Some(2), None));
    }
}
