// SPDX-License-Identifier: Apache-2.0
//! What a member stores and was not delivered, and what a durable one has on disk.

use fide_agreement::{Held, Start};

use super::Member;
use crate::{Error, Recovery, StoredState, core, durable::Disk};

impl<P: Start> Member<P> {
    /// Calls `each` with what may be decided after the delivered position, and returns [`Member::may_be_decided`]: a
    /// question about some keys may be answered at once, or after fewer positions than that one, if nothing that is
    /// stored writes them ([`fide_agreement::Group::each_held`] has the argument, and what none means).
    pub fn each_held(&self, each: &mut dyn FnMut(Held<'_>)) -> Option<u64> {
        if self.is_replaying() {
            return None;
        }
        self.core.group.each_held(self.lease(), each)
    }

    /// Of a durable member whose group was founded again from its disk: the stored state, once. For users that read a long state in their own way, and are not handed it by [`Member::poll_install`]
    /// then.
    pub fn poll_stored_state(&mut self) -> Option<StoredState> {
        self.disk.as_mut()?.take_base()
    }

    /// Whether a durable member's log is long, or its disk has no state to begin with: the user's state is to be
    /// stored. To be asked as [`Member::wants_state`] is.
    #[must_use]
    pub fn wants_base(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.wants_base(&self.core))
    }

    /// The user's state, after every decision that was polled and nothing else: the log begins with it.
    pub fn store_base(&mut self, state: Vec<u8>) {
        let position = self.position();
        if let Some(disk) = &mut self.disk {
            disk.store_base(position, state);
        }
    }

    /// Where a user with a long state writes it, in its own way and time, before [`Member::store_base_file`].
    #[must_use]
    pub fn base_file(&self) -> Option<std::path::PathBuf> {
        Some(self.disk.as_ref()?.base_file())
    }

    /// The user's state after `position` is in [`Member::base_file`], which is taken away. `beside`: what belongs to
    /// it and is not in the file; up to some megabytes. `crc32c`: the file's CRC-32C, by which damage is found before
    /// the group relies on it.
    pub fn store_base_file(&mut self, position: u64, beside: Vec<u8>, crc32c: u32) {
        if let Some(disk) = &mut self.disk {
            disk.store_base_file(position, beside, crc32c);
        }
    }

    /// What a durable member found on its disk when it began.
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.disk.as_ref().map(Disk::recovery)
    }

    /// Whether this durable member's group was founded again from its disk, and its user has yet to be handed
    /// everything that was there.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::has_begun_replay)
    }

    /// The user has yet to be delivered what was on disk.
    pub(super) fn is_replaying(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::is_replaying)
    }

    /// Stores what was decided, if this member is durable. The others are sent what they need to store the same
    /// first.
    pub(super) fn store(&mut self, now_ns: u64) -> Result<(), Error> {
        let Self { core, link, packets, disk: Some(disk), .. } = self else { return Ok(()) };
        let lease = core::Agent::lease(link);
        if disk.take(core, lease) {
            core.send(link, packets);
            disk.store(core, now_ns)?;
            core.send(link, packets);
        }
        disk.begin_replay(core)?;
        Ok(())
    }
}
