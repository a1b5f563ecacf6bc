// SPDX-License-Identifier: Apache-2.0
//! A change of the cluster's key, during which no packet is refused.

use std::time::{Duration, Instant};

use fide_types::Time;
use fide_wire::{Key, Keys};

use super::Control;
use crate::{
    command::{Command, EngineGone},
    key,
};

/// A change of keys that is under way.
#[derive(Clone, Copy)]
pub(super) struct KeyChange {
    next: Key,
    old: Key,
    /// Whether the new key is in use.
    used: bool,
    due: Instant,
}

impl Control {
    pub(super) fn set_keys(&mut self, keys: Keys) -> Result<(), EngineGone> {
        self.parts.keys = keys;
        self.parts.exchange.call(Command::SetKeys(keys)).map(drop)
    }

    /// Reads the key file again. A bad file leaves the present key in force.
    ///
    /// No host may send under a key that another does not accept yet, so a change takes two steps:
    /// for `key_overlap_ms` the new key is accepted and the old one still used, then the new one is
    /// used and the old one still accepted for as long. The file must reach all hosts within that time.
    pub(super) fn reload_key(&mut self) {
        if self.key_change.is_some() {
            // Read again when the present change is done: the stamp stays as it was.
            return;
        }
        self.key_stamp = key::stamp(&self.parts.config.key_file);
        let next = match key::load(&self.parts.config.key_file) {
            Ok(key) => key,
            Err(error) => {
                tracing::error!("the present key stays in force: {error}");
                return;
            }
        };
        let present = self.parts.keys.current;
        if next == present {
            return;
        }
        let overlap = self.key_overlap();
        if self.set_keys(Keys { current: present, previous: Some(next) }).is_ok() {
            self.key_change = Some(KeyChange { next, old: present, used: false, due: Instant::now() + overlap });
            tracing::info!(
                "a new key is accepted; it is used in {}, until when every host needs it",
                Time::from(overlap)
            );
        }
    }

    /// How long a change of keys still lasts, if one is under way.
    pub(super) fn key_change_left(&self) -> Option<Duration> {
        let change = self.key_change.as_ref()?;
        let rest = if change.used { Duration::ZERO } else { self.key_overlap() };
        Some(change.due.saturating_duration_since(Instant::now()) + rest)
    }

    fn key_overlap(&self) -> Duration {
        Duration::from_millis(self.parts.config.key_overlap_ms)
    }

    /// Takes the next step of a change of keys, when it is due.
    pub(super) fn change_key(&mut self) -> Result<(), EngineGone> {
        let overlap = self.key_overlap();
        let Some(change) = self.key_change.as_mut().filter(|change| Instant::now() >= change.due) else {
            return Ok(());
        };
        if change.used {
            let next = change.next;
            self.key_change = None;
            tracing::info!("the old key is not accepted any more");
            return self.set_keys(Keys { current: next, previous: None });
        }
        change.used = true;
        change.due = Instant::now() + overlap;
        let keys = Keys { current: change.next, previous: Some(change.old) };
        tracing::info!("the new key is in use; the old one is accepted for {} more", Time::from(overlap));
        self.set_keys(keys)
    }
}
