// SPDX-License-Identifier: Apache-2.0
//! Doorbells: a client rings when it has left a message that must not wait for the next heartbeat. The loop
//! bounds how often.

use fide_types::{ClientSet, MAX_CLIENTS};

/// Rings of one client per heartbeat period that wake the loop; its further messages wait for the next
/// heartbeat.
pub(super) const RINGS_MAX: u32 = 4;
/// The same for all clients together.
pub(super) const RINGS_ALL_MAX: u32 = 16;

/// How often clients have rung in this period, and which are muted until the next.
#[derive(Debug)]
pub(super) struct Bells {
    rung: ClientSet,
    rings: u32,
    of: [u32; MAX_CLIENTS],
    muted: ClientSet,
    period_ns: u64,
    due_ns: u64,
}

impl Bells {
    pub(super) fn new(period_ns: u64) -> Self {
        Self { rung: ClientSet::EMPTY, rings: 0, of: [0; MAX_CLIENTS], muted: ClientSet::EMPTY, period_ns, due_ns: 0 }
    }

    /// A session begins or ends: its client has not rung.
    pub(super) fn forget(&mut self, client: u8) {
        if let Some(rings) = self.of.get_mut(usize::from(client)) {
            *rings = 0;
        }
        self.muted.remove(client);
        self.rung.remove(client);
    }

    /// A client has rung. Whether it is to be muted: the loop does not wait for it until
    /// [`Bells::next_period`].
    pub(super) fn rung(&mut self, client: u8) -> bool {
        let Some(rings) = self.of.get_mut(usize::from(client)) else { return false };
        *rings += 1;
        self.rings += 1;
        self.rung.insert(client);
        let mutes = !self.muted.contains(client) && (*rings >= RINGS_MAX || self.rings >= RINGS_ALL_MAX);
        if mutes {
            self.muted.insert(client);
        }
        mutes
    }

    /// Begins the next period if it is time. Returns the clients to wait for again.
    pub(super) fn next_period(&mut self, now_raw_ns: u64) -> ClientSet {
        if self.rings == 0 || now_raw_ns < self.due_ns {
            return ClientSet::EMPTY;
        }
        self.due_ns = now_raw_ns + self.period_ns;
        self.rings = 0;
        for client in std::mem::take(&mut self.rung).iter() {
            self.of[usize::from(client)] = 0;
        }
        std::mem::take(&mut self.muted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 1000;

    #[test]
    fn client_that_rings_too_often_is_muted_for_a_period() {
        let mut bells = Bells::new(PERIOD_NS);
        let muted: Vec<bool> = (0..RINGS_MAX + 1).map(|_| bells.rung(3)).collect();
        assert_eq!(muted, [false, false, false, true, false], "once");
        assert_eq!(bells.next_period(5), ClientSet::only(3), "the first period has long been over");
        (0..RINGS_MAX).for_each(|_| _ = bells.rung(3));
        assert!(bells.next_period(5 + PERIOD_NS - 1).is_empty());
        assert_eq!(bells.next_period(5 + PERIOD_NS), ClientSet::only(3));
        assert!(!bells.rung(3));
    }

    #[test]
    fn rings_of_all_clients_are_bounded() {
        let mut bells = Bells::new(PERIOD_NS);
        let muted = (0..32u8).filter(|client| bells.rung(*client)).count();
        assert_eq!(muted, 32 - RINGS_ALL_MAX as usize + 1);
        assert!(!bells.rung(200), "no client");
    }

    #[test]
    fn next_session_of_a_muted_client_is_heard() {
        let mut bells = Bells::new(PERIOD_NS);
        (0..RINGS_MAX).for_each(|_| _ = bells.rung(3));
        bells.forget(3);
        assert!(!bells.rung(3) && bells.next_period(1).is_empty());
    }

    #[test]
    fn rings_of_gone_clients_do_not_count_in_next_period() {
        let mut bells = Bells::new(PERIOD_NS);
        for client in 0..4 {
            (0..RINGS_MAX).for_each(|_| _ = bells.rung(client));
            bells.forget(client);
        }
        assert!(bells.next_period(1).is_empty());
        assert!(!bells.rung(7), "the first ring of the period");
    }
}
