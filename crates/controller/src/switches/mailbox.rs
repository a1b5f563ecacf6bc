// SPDX-License-Identifier: Apache-2.0
//! Orders on their way to a switch, merged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::GROUPS_MAX;
use crate::core::SwitchOrder;

/// What a group is to become: its ports, or nothing; and the order that said so last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) number: u64,
    pub(super) ports: Option<BTreeSet<String>>,
}

/// All orders since the mailbox was emptied, as one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mail {
    /// Groups that are not named here are to go.
    pub(super) anew: bool,
    /// Of the newest order; 0: there was none.
    pub(super) number: u64,
    pub(super) changes: BTreeMap<Ipv4Addr, Change>,
    /// Orders that were not taken, as there were too many groups.
    pub(super) refused: Vec<u64>,
}

impl Mail {
    fn merge(&mut self, order: SwitchOrder) {
        let SwitchOrder { number, anew, install, remove, .. } = order;
        self.number = number;
        if anew {
            self.anew = true;
            self.changes.clear();
            self.refused.clear();
        }
        let room = GROUPS_MAX.saturating_sub(self.changes.len());
        if install.len() + remove.len() > room {
            let new = install.iter().map(|(group, _)| group).chain(&remove).filter(|g| !self.changes.contains_key(g));
            if new.count() > room {
                self.refused.push(number);
                return;
            }
        }
        self.changes.extend(remove.into_iter().map(|group| (group, Change { number, ports: None })));
        self.changes.extend(install.into_iter().map(|(group, ports)| (group, Change { number, ports: Some(ports) })));
    }
}

#[derive(Debug, Default)]
struct State {
    mail: Mail,
    /// The carriers' thread has lost its watch.
    rewatch: bool,
    /// And whether to restore.
    stop: Option<bool>,
}

/// Why a worker wakes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    Mail,
    Rewatch,
    /// Its deadline.
    Late,
    Stop {
        restore: bool,
    },
}

/// Between the shell and a worker. Its lock is held for no longer than a merge takes.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    wake: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn put(&self, order: SwitchOrder) {
        self.lock().mail.merge(order);
        self.wake.notify_all();
    }

    pub(super) fn take(&self) -> Mail {
        std::mem::take(&mut self.lock().mail)
    }

    pub(super) fn stop(&self, restore: bool) {
        self.lock().stop = Some(restore);
        self.wake.notify_all();
    }

    pub(super) fn rewatch(&self) {
        self.lock().rewatch = true;
        self.wake.notify_all();
    }

    /// Waits until `deadline` at most. `mail`: whether orders are waited for.
    pub(super) fn wait(&self, deadline: Instant, mail: bool) -> Wake {
        let mut state = self.lock();
        loop {
            if let Some(restore) = state.stop {
                return Wake::Stop { restore };
            }
            if std::mem::take(&mut state.rewatch) {
                return Wake::Rewatch;
            }
            if mail && state.mail.number != 0 {
                return Wake::Mail;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Wake::Late;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}
