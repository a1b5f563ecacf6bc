// SPDX-License-Identifier: Apache-2.0
//! The member of the group, of either protocol.

use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    time::Duration,
};

use fide_group::{
    Config, ConnectOptions, Entry, Error, HUC_VALUE_MAX, Hsuc, Huc, Recovery, Refused, Standing, Start, StoredState,
    VALUE_MAX, Versions, entries, hsuc, huc,
};

use crate::settings::{Protocol, Settings};

/// Instances of HSUC under way at once: some 340 kB for each round trip.
const WINDOW: u64 = 256;
/// What a group takes of a value besides: the entry's kind and length.
const ENTRY_LEN: usize = 5;
/// What HUC takes of a value besides: the members whose proposals it joins.
const SET_LEN: usize = 8;

/// What comes out of the log.
pub(super) enum Decided<'a> {
    /// All entries of the next position.
    Position(u64, &'a [u8]),
    /// An entry of it that a leader proposed.
    Value(&'a [u8]),
    /// The members from here on.
    View,
    /// It has no entries: a new leader has closed a gap.
    Gap,
}

/// A stored value: its position, its round, and its entries.
pub(super) type Held<'a> = (u64, u16, &'a [u8]);

/// [`fide_group::Member`], without its type parameter.
pub(super) trait Member {
    fn descriptor(&self) -> RawFd;
    fn wait(&mut self, timeout: Duration) -> Result<(), Error>;
    fn propose(&mut self, value: &[u8]) -> Result<(), Refused>;
    /// Hands over what was decided since the last call, each decision's entries in order, until `bytes` of them were
    /// handed over, or `each` has returned false for an entry of the last one. Returns the position.
    fn poll(&mut self, bytes: usize, each: &mut dyn FnMut(Decided<'_>) -> bool) -> u64;
    fn position(&self) -> u64;
    fn may_be_decided(&self) -> Option<u64>;
    /// As [`fide_group::Member::each_held`].
    fn each_held(&self, each: &mut dyn FnMut(Held<'_>)) -> Option<u64>;
    /// Counts up when what [`Member::each_held`] has to say may have changed.
    fn changes(&self) -> u64;
    fn may_answer(&self) -> bool;
    fn leads(&self) -> bool;
    fn leader(&self) -> Option<u16>;
    fn standing(&self) -> Standing;
    fn was_member(&self) -> bool;
    /// The number of the view, and its hosts in order of seniority.
    fn view(&self) -> Option<(u32, Vec<u16>)>;
    fn view_number(&self) -> u32;
    fn has_others(&self) -> bool;
    fn offered_state(&self) -> Option<(u64, Vec<u8>)>;
    fn installed_at(&mut self, position: u64) -> bool;
    fn state_dropped(&mut self);
    fn decline_offer(&mut self);
    fn wants_state(&self) -> bool;
    fn give_state(&mut self, state: Vec<u8>) -> bool;
    fn remove(&mut self, host: u16) -> Result<(), Refused>;
    fn hand_over(&mut self, host: u16) -> Result<(), Refused>;
    fn may_hand_over(&self, host: u16) -> Result<(), Refused>;
    /// Whether a host is another member that is not known to have crashed.
    fn lives(&self, host: u16) -> bool;
    fn waits_for(&self) -> Option<String>;
    /// Of a host that has other settings: which, and what to compare.
    fn differs(&self) -> Option<String>;
    /// The version of this module's messages that all servers speak.
    fn service_version(&self) -> u8;
    /// Servers that are refused, as they speak other versions.
    fn refuses(&self) -> Option<String>;
    fn host(&self) -> u16;
    fn name(&self, host: u16) -> Option<String>;
    /// The first plane's address of a host.
    fn address(&self, host: u16) -> Option<std::net::Ipv4Addr>;
    /// Longest entry that is proposed at once.
    fn entry_max(&self) -> usize;
    /// CLOCK_MONOTONIC of when the last death became known here.
    fn death_ns(&self) -> u64;
    /// The group was founded again from this disk.
    fn is_recovering(&self) -> bool;
    fn poll_stored_state(&mut self) -> Option<StoredState>;
    fn wants_base(&self) -> bool;
    fn base_file(&self) -> Option<std::path::PathBuf>;
    fn store_base_file(&mut self, position: u64, beside: Vec<u8>, crc32c: u32);
    /// What was on disk when this process began; none if nothing is stored.
    fn recovery(&self) -> Option<Recovery>;
}

struct Of<P: Start> {
    member: fide_group::Member<P>,
    entry_max: usize,
    changes: u64,
}

impl<P: Start> Member for Of<P> {
    fn descriptor(&self) -> RawFd {
        self.member.as_fd().as_raw_fd()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        self.changes += 1;
        self.member.wait(Some(timeout))
    }

    fn propose(&mut self, value: &[u8]) -> Result<(), Refused> {
        self.changes += 1;
        self.member.propose(value)
    }

    fn poll(&mut self, bytes: usize, each: &mut dyn FnMut(Decided<'_>) -> bool) -> u64 {
        self.changes += 1;
        let (mut left, mut goes_on) = (bytes, true);
        while left > 0
            && goes_on
            && let Some(decision) = self.member.poll_decision()
        {
            left = left.saturating_sub(decision.value.len().max(1));
            goes_on &= each(Decided::Position(decision.instance, decision.value));
            let mut count = 0;
            for entry in entries(decision.value) {
                count += 1;
                goes_on &= match entry {
                    Entry::Value(value) => each(Decided::Value(value)),
                    Entry::View(_) => each(Decided::View),
                    // This module proposes none.
                    Entry::Payload(_) => true,
                };
            }
            if count == 0 {
                goes_on &= each(Decided::Gap);
            }
        }
        self.member.position()
    }

    fn position(&self) -> u64 {
        self.member.position()
    }

    fn may_be_decided(&self) -> Option<u64> {
        self.member.may_be_decided()
    }

    fn each_held(&self, each: &mut dyn FnMut(Held<'_>)) -> Option<u64> {
        self.member.each_held(&mut |held| each((held.instance, held.round, held.value)))
    }

    fn changes(&self) -> u64 {
        self.changes
    }

    fn may_answer(&self) -> bool {
        self.member.may_answer()
    }

    fn leads(&self) -> bool {
        self.member.leads()
    }

    fn leader(&self) -> Option<u16> {
        self.member.leader()
    }

    fn standing(&self) -> Standing {
        self.member.standing()
    }

    fn was_member(&self) -> bool {
        self.member.was_member()
    }

    fn view(&self) -> Option<(u32, Vec<u16>)> {
        let view = self.member.view()?;
        Some((view.number(), view.members().iter().map(|member| member.host).collect()))
    }

    fn view_number(&self) -> u32 {
        self.member.view().map_or(0, fide_group::View::number)
    }

    fn has_others(&self) -> bool {
        self.member.has_others()
    }

    fn offered_state(&self) -> Option<(u64, Vec<u8>)> {
        self.member.offered_state().map(|(position, state)| (position, state.to_vec()))
    }

    fn installed_at(&mut self, position: u64) -> bool {
        self.member.installed_at(position)
    }

    fn state_dropped(&mut self) {
        self.member.state_dropped();
    }

    fn decline_offer(&mut self) {
        self.member.decline_offer();
    }

    fn wants_state(&self) -> bool {
        self.member.wants_state()
    }

    fn give_state(&mut self, state: Vec<u8>) -> bool {
        self.member.give_state(state).is_ok()
    }

    fn remove(&mut self, host: u16) -> Result<(), Refused> {
        self.member.remove(host)
    }

    fn hand_over(&mut self, host: u16) -> Result<(), Refused> {
        self.member.hand_over(host)
    }

    fn may_hand_over(&self, host: u16) -> Result<(), Refused> {
        self.member.may_hand_over(host)
    }

    fn lives(&self, host: u16) -> bool {
        self.member.lives(host)
    }

    fn waits_for(&self) -> Option<String> {
        self.member.waits_for().or_else(|| self.member.unstored().map(str::to_owned))
    }

    fn differs(&self) -> Option<String> {
        self.member.differs()
    }

    fn service_version(&self) -> u8 {
        self.member.service_version()
    }

    fn refuses(&self) -> Option<String> {
        self.member.refuses()
    }

    fn host(&self) -> u16 {
        self.member.host()
    }

    fn name(&self, host: u16) -> Option<String> {
        self.member.name(host).map(str::to_owned)
    }

    fn address(&self, host: u16) -> Option<std::net::Ipv4Addr> {
        let members = &self.member.client().agent().members;
        members.get(usize::from(host).checked_sub(1)?)?.addresses.first().copied()
    }

    fn entry_max(&self) -> usize {
        self.entry_max
    }

    fn death_ns(&self) -> u64 {
        self.member.death_ns()
    }

    fn is_recovering(&self) -> bool {
        self.member.is_recovering()
    }

    fn poll_stored_state(&mut self) -> Option<StoredState> {
        self.member.poll_stored_state()
    }

    fn wants_base(&self) -> bool {
        self.member.wants_base()
    }

    fn base_file(&self) -> Option<std::path::PathBuf> {
        self.member.base_file()
    }

    fn store_base_file(&mut self, position: u64, beside: Vec<u8>, crc32c: u32) {
        self.member.store_base_file(position, beside, crc32c);
    }

    fn recovery(&self) -> Option<Recovery> {
        self.member.recovery().cloned()
    }
}

/// Joins with the agent of this host.
///
/// # Errors
/// As [`fide_group::Member::open`].
pub(super) fn open(settings: &Settings, state_dir: std::path::PathBuf) -> Result<Box<dyn Member>, Error> {
    fn of<P: Start + 'static>(
        settings: &Settings,
        state_dir: std::path::PathBuf,
        setting: P::Setting,
        entry_max: usize,
    ) -> Result<Box<dyn Member>, Error> {
        let hosts: Vec<&str> = settings.hosts.iter().map(String::as_str).collect();
        let mut config = Config::new(&settings.group, &hosts, settings.key, state_dir, setting);
        config.port = settings.port.unwrap_or(config.port);
        if settings.is_durable {
            config = config.durable();
        }
        config.service = Versions::up_to(settings.version);
        config.compact_bytes = settings.log_bytes.unwrap_or(config.compact_bytes);
        let options = ConnectOptions {
            path: Some(settings.socket.clone()),
            program: "redis-server".to_owned(),
            ..ConnectOptions::default()
        };
        Ok(Box::new(Of { member: fide_group::Member::<P>::open(config, options)?, entry_max, changes: 0 }))
    }
    match settings.protocol {
        Protocol::Hsuc => of::<Hsuc>(settings, state_dir, hsuc(WINDOW), VALUE_MAX - ENTRY_LEN),
        Protocol::Huc => of::<Huc>(settings, state_dir, huc(), HUC_VALUE_MAX - SET_LEN - ENTRY_LEN),
    }
}
