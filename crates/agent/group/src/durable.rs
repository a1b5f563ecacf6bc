// SPDX-License-Identifier: Apache-2.0
//! A durable member: what it stores in each turn, and what it has from its disk when it begins.
//!
//! **A turn** stores everything that was decided in it with one sync. What the others need to store the same is
//! sent before, so that the disks work at the same time.
//!
//! **When the group is founded again from disks**, the founder's user has nothing yet: it is handed the stored state
//! ([`crate::Member::poll_install`]) and the decisions since ([`crate::Member::poll_decision`]), and this member
//! answers nothing before it has them all. A member that takes over the state of others instead never reads its
//! own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fide_agreement::{Identity, Lease, Standing, Start, group::ToStore, group::entries};

use crate::{
    Entry, LogError, StoredState,
    core::Core,
    log::{Found, Log, Replay},
};

/// Bytes that may wait for room on a full disk, beside those of payloads. As long as the group waits for this disk
/// there are fewer.
const BEHIND_MAX: usize = 64 << 20;
/// Between two attempts to store what found no room.
const RETRY_NS: u64 = 20_000_000;

/// What a member found on its disk when it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// Number of the last view that this host was a member of; none if it never was.
    pub view: Option<u32>,
    /// The state after this position can be had from the disk; none if there is no whole one.
    pub position: Option<u64>,
    /// Decisions of those that are in the log, after the stored state.
    pub decisions: u64,
    /// Bytes behind the last whole record, which a crash had left.
    pub torn_bytes: u64,
}

/// A state that is to be stored.
#[derive(Debug)]
enum Base {
    Bytes(u64, Vec<u8>),
    /// The user has written it to the file.
    File {
        position: u64,
        beside: Vec<u8>,
        crc32c: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Disk {
    log: Log,
    /// The group was founded again from this disk, and the user has not been delivered everything.
    replay: Option<Replay>,
    /// The user's state was another one when this member began.
    is_unread: bool,
    /// The user has another state, after this position: the log has to be told.
    replaced: Option<u64>,
    /// A state that could not be stored yet.
    base: Option<Base>,
    /// Bytes of decisions after which the user is asked for its state.
    compact_bytes: u64,
    /// Bytes that may wait for room.
    behind_max: usize,
    recovery: Recovery,
    /// What could not be stored, for people, and when that is tried next.
    unstored: Option<(String, u64)>,
    value: Vec<u8>,
}

impl Disk {
    /// Opens the log of a group in its state folder. `payloads_max`: bytes of all payloads that decisions name which
    /// nobody was delivered. To be called before the member is made a founder or not.
    pub(crate) fn open(
        state_dir: &Path,
        name: &str,
        group: u64,
        incarnation: u32,
        compact_bytes: u64,
        payloads_max: u64,
    ) -> Result<(Self, Found), LogError> {
        let (log, found) = Log::open(&state_dir.join(format!("{name}.log")), group, incarnation)?;
        let member = found.recalled.member.as_ref();
        let recovery = Recovery {
            view: member.map(|member| member.view.number()),
            position: member.and_then(|member| member.position),
            decisions: found.decisions,
            torn_bytes: found.torn,
        };
        let disk = Self {
            log,
            replay: None,
            is_unread: recovery.position.is_some_and(|position| position > 0),
            replaced: None,
            base: None,
            compact_bytes,
            behind_max: BEHIND_MAX.saturating_add(usize::try_from(payloads_max).unwrap_or(usize::MAX)),
            recovery,
            unstored: None,
            value: Vec::new(),
        };
        Ok((disk, found))
    }

    /// For a member that is not durable: refuses a log that it would leave behind, and that would come back later.
    pub(crate) fn refuse(state_dir: &Path, name: &str) -> Result<(), LogError> {
        let path = state_dir.join(format!("{name}.log"));
        if path.exists() { Err(LogError::NotDurable { path }) } else { Ok(()) }
    }

    pub(crate) fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    pub(crate) fn unstored(&self) -> Option<&str> {
        self.unstored.as_ref().map(|(what, _)| what.as_str())
    }

    /// When something is to be stored again that found no room.
    pub(crate) fn due_ns(&self) -> u64 {
        self.unstored.as_ref().map_or(u64::MAX, |(_, again_ns)| *again_ns)
    }

    /// The user has yet to be delivered what was on this disk.
    pub(crate) fn is_replaying(&self) -> bool {
        self.is_unread || self.replay.is_some()
    }

    pub(crate) fn has_begun_replay(&self) -> bool {
        self.replay.is_some()
    }

    /// The position of the user's state, while it is not the group's.
    pub(crate) fn position(&self) -> Option<u64> {
        match &self.replay {
            Some(replay) => Some(replay.position()),
            None => self.is_unread.then_some(0),
        }
    }

    /// Stores the membership of a founder or of a member of the first view, before its record.
    pub(crate) fn store_first<P: Start>(&mut self, core: &Core<P>) -> Result<(), LogError> {
        if let Some(ToStore::Member { incarnation, ballot, view, start }) = core.group.poll_store_first() {
            self.log.append_member(incarnation, ballot, view, start);
        }
        self.log.sync()
    }

    /// Takes what is to be stored. Whether there is anything.
    pub(crate) fn take<P: Start>(&mut self, core: &mut Core<P>, lease: Lease) -> bool {
        // The segment of another state has to begin first.
        if self.replaced.is_some() {
            return true;
        }
        let Self { log, value, .. } = self;
        while let Some(what) = core.group.poll_store(lease) {
            match what {
                ToStore::Member { incarnation, ballot, view, start } => {
                    log.append_member(incarnation, ballot, view, start);
                }
                ToStore::Decision { position, value: decided } => {
                    value.clear();
                    value.extend_from_slice(decided);
                    for entry in entries(value) {
                        if let Entry::Payload(identity) = entry
                            && let Some(payload) = core.group.payload(&identity)
                        {
                            log.append_payload(identity, payload);
                        }
                    }
                    log.append_decision(position, value);
                }
            }
        }
        log.is_unsynced() || self.base.is_some() || self.unstored.is_some()
    }

    /// Stores what was taken. A full disk is no error, it is tried again, until too much waits for it.
    ///
    /// # Errors
    /// [`LogError`]: nobody knows any more what is on disk, or [`LogError::Behind`].
    pub(crate) fn store<P: Start>(&mut self, core: &mut Core<P>, now_ns: u64) -> Result<(), LogError> {
        if self.unstored.as_ref().is_some_and(|(_, again_ns)| now_ns < *again_ns) {
            return Ok(());
        }
        match self.try_store(core) {
            Ok(()) => {
                self.unstored = None;
                Ok(())
            }
            Err(why) if why.is_full() && self.log.waiting_bytes() > self.behind_max => Err(self.log.behind(&why)),
            Err(why) if why.is_full() => {
                let what = "this host cannot store the group's log; make room there, it tries again";
                self.unstored = Some((format!("{what}: {why}"), now_ns.saturating_add(RETRY_NS)));
                Ok(())
            }
            Err(why) => Err(why),
        }
    }

    fn try_store<P: Start>(&mut self, core: &mut Core<P>) -> Result<(), LogError> {
        if let Some(position) = self.replaced {
            self.log.replace_state(position, core.group.recalled())?;
            self.replaced = None;
        }
        self.log.sync()?;
        core.group.stored();
        let position = match &self.base {
            None => return Ok(()),
            Some(Base::Bytes(position, state)) => self.log.store_base(*position, state)?.then_some(*position),
            Some(Base::File { position, beside, crc32c }) => {
                self.log.take_base_file(*position, beside, *crc32c)?.then_some(*position)
            }
        };
        self.base = None;
        if let Some(position) = position {
            core.group.base_stored(position);
        }
        Ok(())
    }

    /// The user's state is that of others now, after `position`.
    pub(crate) fn replaced(&mut self, position: u64) {
        (self.replay, self.is_unread, self.base) = (None, false, None);
        self.replaced = Some(position);
    }

    /// The user's state after `position` is to be stored.
    pub(crate) fn store_base(&mut self, position: u64, state: Vec<u8>) {
        self.base = Some(Base::Bytes(position, state));
    }

    pub(crate) fn store_base_file(&mut self, position: u64, beside: Vec<u8>, crc32c: u32) {
        self.base = Some(Base::File { position, beside, crc32c });
    }

    pub(crate) fn base_file(&self) -> PathBuf {
        self.log.base_file()
    }

    /// Whether the user's state is to be stored, as the disk has none or a long log since.
    pub(crate) fn wants_base<P: Start>(&self, core: &Core<P>) -> bool {
        let is_due = core.group.lacks_base() || self.log.since_base() > self.compact_bytes;
        is_due
            && self.base.is_none()
            && self.replaced.is_none()
            && !self.is_replaying()
            && core.group.standing() == Standing::Member
    }

    /// Begins to hand out what is on disk, once the group goes on from it.
    pub(crate) fn begin_replay<P: Start>(&mut self, core: &Core<P>) -> Result<(), LogError> {
        if self.is_unread && self.replay.is_none() && core.group.standing() == Standing::Member {
            self.replay = Some(Replay::new(&self.log, self.recovery.position.unwrap_or(0))?);
        }
        Ok(())
    }

    /// The stored state, until it is taken.
    pub(crate) fn base(&self) -> Option<&StoredState> {
        self.replay.as_ref()?.base()
    }

    pub(crate) fn take_base(&mut self) -> Option<StoredState> {
        self.replay.as_mut()?.take_base()
    }

    /// Goes on to the next decision of the log, which [`Disk::last`] then has; ends the replay after the last
    /// one. Whether there is one.
    pub(crate) fn next(&mut self) -> Result<bool, LogError> {
        let is_over = self.replay.as_ref().is_some_and(Replay::is_over);
        if is_over {
            (self.replay, self.is_unread) = (None, false);
        }
        match &mut self.replay {
            Some(replay) => replay.next(),
            None => Ok(false),
        }
    }

    /// The decision that was read last.
    pub(crate) fn last(&self) -> Option<(u64, &[u8])> {
        self.replay.as_ref().map(Replay::last)
    }

    /// A payload that the last replayed decision names.
    pub(crate) fn payload(&self, identity: &Identity) -> Option<&[u8]> {
        self.replay.as_ref()?.payload(identity)
    }
}

/// The bytes of a stored state.
pub(crate) fn read_base(path: &Path) -> Result<Vec<u8>, LogError> {
    fs::read(path).map_err(|why| LogError::Io { path: path.to_owned(), why })
}
