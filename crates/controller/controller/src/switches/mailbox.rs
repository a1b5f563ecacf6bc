// SPDX-License-Identifier: Apache-2.0
//! Orders on their way to a switch, merged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::GROUPS_MAX;
use crate::core::SwitchOrder;

/// The new state of a group: its ports, or nothing; and the newest order about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) number: u64,
    pub(super) ports: Option<BTreeSet<String>>,
}

/// All orders since the mailbox was emptied, as one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mail {
    /// Groups that are not named here have to go.
    pub(super) anew: bool,
    /// Number of the newest order; 0: there was none.
    pub(super) number: u64,
    pub(super) changes: BTreeMap<Ipv4Addr, Change>,
    /// Orders that were refused, because there were too many groups.
    pub(super) refused: Vec<u64>,
}

impl Mail {
    fn merge(&mut self, order: SwitchOrder, groups_max: usize) {
        let SwitchOrder { number, anew, install, remove, .. } = order;
        self.number = number;
        if anew {
            self.anew = true;
            self.changes.clear();
            self.refused.clear();
        }
        let room = groups_max.saturating_sub(self.changes.len());
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
    /// Ends, after restoring the switch if asked to.
    stop: Option<bool>,
}

/// Why a worker wakes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    Mail,
    Rewatch,
    /// The deadline has passed.
    Late,
    Stop {
        restore: bool,
    },
}

/// Between the shell and a worker. Its lock is held only for a merge.
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
        self.lock().mail.merge(order, GROUPS_MAX);
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

    /// Waits until `deadline` at most. `mail`: whether to wait for orders.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(n: u8) -> Ipv4Addr {
        Ipv4Addr::new(239, 64, 0, n)
    }

    fn order(number: u64, anew: bool, install: &[(u8, u8)], remove: &[u8]) -> SwitchOrder {
        SwitchOrder {
            switch: "s".into(),
            number,
            anew,
            install: install.iter().map(|(g, p)| (group(*g), [format!("p{p}")].into())).collect(),
            remove: remove.iter().map(|g| group(*g)).collect(),
        }
    }

    type Table = BTreeMap<Ipv4Addr, BTreeSet<String>>;

    fn apply(table: &mut Table, anew: bool, changes: impl IntoIterator<Item = (Ipv4Addr, Option<BTreeSet<String>>)>) {
        if anew {
            table.clear();
        }
        for (group, ports) in changes {
            match ports {
                Some(ports) => table.insert(group, ports),
                None => table.remove(&group),
            };
        }
    }

    proptest! {
        #[test]
        fn merged_orders_equal_single_orders(
            orders in prop::collection::vec(
                (prop::bool::weighted(0.1), prop::collection::btree_map(0..8_u8, prop::option::of(0..4_u8), 0..4)), 0..12),
            taken in 0..12_usize,
        ) {
            let (mut one_by_one, mut merged) = (Table::new(), Table::new());
            let mut mail = Mail::default();
            for (number, (anew, changes)) in (1..).zip(&orders) {
                let install: Vec<_> = changes.iter().filter_map(|(g, p)| Some((*g, (*p)?))).collect();
                let remove: Vec<_> = changes.iter().filter(|(_, p)| p.is_none()).map(|(g, _)| *g).collect();
                let order = order(number, *anew, &install, &remove);
                let ports = order.install.iter().map(|(g, p)| (*g, Some(p.clone())));
                apply(&mut one_by_one, *anew, order.remove.iter().map(|g| (*g, None)).chain(ports));
                mail.merge(order, GROUPS_MAX);
                prop_assert_eq!(mail.number, number);
                if number as usize == taken {
                    let Mail { anew, changes, .. } = std::mem::take(&mut mail);
                    apply(&mut merged, anew, changes.into_iter().map(|(g, c)| (g, c.ports)));
                }
            }
            apply(&mut merged, mail.anew, mail.changes.into_iter().map(|(g, c)| (g, c.ports)));
            prop_assert_eq!(merged, one_by_one);
        }
    }

    #[test]
    fn order_beyond_the_bound_is_refused_by_number() {
        let mut mail = Mail::default();
        mail.merge(order(1, false, &[(1, 1), (2, 1)], &[]), 3);
        mail.merge(order(2, false, &[(3, 1), (4, 1)], &[]), 3);
        mail.merge(order(3, false, &[(3, 1), (2, 2)], &[]), 3);
        assert_eq!((mail.refused.as_slice(), mail.changes.len(), mail.number), (&[2][..], 3, 3));
        assert_eq!(mail.changes[&group(2)].number, 3);
        mail.merge(order(4, true, &[(1, 1)], &[]), 3);
        assert_eq!((mail.refused.len(), mail.changes.len(), mail.anew), (0, 1, true));
    }

    #[test]
    fn worker_wakes_only_for_awaited_events() {
        let mailbox = Mailbox::default();
        let soon = || Instant::now() + Duration::from_millis(1);
        assert_eq!(mailbox.wait(soon(), true), Wake::Late);
        mailbox.put(order(1, false, &[], &[]));
        assert_eq!(mailbox.wait(soon(), false), Wake::Late);
        assert_eq!(mailbox.wait(soon(), true), Wake::Mail);
        mailbox.rewatch();
        assert_eq!(mailbox.wait(soon(), true), Wake::Rewatch);
        assert_eq!(mailbox.take().number, 1);
        mailbox.stop(true);
        assert_eq!(mailbox.wait(soon(), true), Wake::Stop { restore: true });
    }
}
