// SPDX-License-Identifier: Apache-2.0
//! An application that sends often looks at the socket itself as it sends, in place of the endpoint's thread: to wake a thread for
//! each FEEDBACK costs more than all else that a message costs.

/// The socket is lent to an application between whose sends there is less time than this in the mean of so many.
const GAP_NS: u64 = 250_000;
const SENDS: u64 = 16;
/// A pause counts as one so long.
const PAUSE_NS: u64 = 10_000_000;
/// The application looks at the socket no more often: FEEDBACK comes no more often, either.
const LOOK_NS: u64 = 500_000;
/// If it sends no more, the thread has the socket back after this time.
const LENT_NS: u64 = 4_000_000;
/// Messages with a shorter deadline might not be sent again in time if it pauses.
pub(crate) const DEADLINE_LEAST_NS: u64 = 4 * LENT_NS;

/// Who looks at the socket: its thread, or for a time those who send.
#[derive(Debug)]
pub(crate) struct Loan {
    /// When something was sent last, and the mean time between two.
    sent_ns: u64,
    gap_ns: u64,
    looked_ns: u64,
    until_ns: u64,
}

impl Default for Loan {
    fn default() -> Self {
        Self { sent_ns: 0, gap_ns: PAUSE_NS, looked_ns: 0, until_ns: 0 }
    }
}

impl Loan {
    /// The application has sent something. Whether it is to look at the socket now, if nobody waits for what may come.
    pub(crate) fn sends(&mut self, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(std::mem::replace(&mut self.sent_ns, now_ns)).min(PAUSE_NS);
        self.gap_ns = (self.gap_ns * (SENDS - 1) + gap_ns) / SENDS;
        let looks = self.gap_ns < GAP_NS && now_ns >= self.looked_ns + LOOK_NS;
        if looks {
            self.looked_ns = now_ns;
        }
        looks
    }

    /// It looks at the socket from now on, and the thread does not.
    pub(crate) fn begins(&mut self) {
        self.until_ns = self.looked_ns + LENT_NS;
    }

    /// Somebody waits until a time, or for good. Whether the thread is to have the socket back at once.
    pub(crate) fn waits(&mut self, now_ns: u64, until_ns: Option<u64>) -> bool {
        if until_ns.is_some_and(|until_ns| until_ns <= now_ns + GAP_NS) {
            // It is held, and goes on sending.
            return false;
        }
        self.ends(now_ns)
    }

    /// The thread looks at the socket again. Whether it has to be woken for that.
    pub(crate) fn ends(&mut self, now_ns: u64) -> bool {
        std::mem::take(&mut self.until_ns) > now_ns
    }

    /// The thread leaves the socket alone until then.
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    pub(crate) fn sent_ns(&self) -> u64 {
        self.sent_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;
    const MS: u64 = 1_000_000;

    /// Sends at a period, until a time. How often the application looked.
    fn sends(loan: &mut Loan, from_ns: u64, to_ns: u64, period_ns: u64) -> usize {
        let times = (from_ns..to_ns).step_by(usize::try_from(period_ns).unwrap());
        times.filter(|now_ns| loan.sends(*now_ns)).count()
    }

    #[test]
    fn socket_is_lent_to_who_sends_often() {
        let mut loan = Loan::default();
        assert_eq!(sends(&mut loan, 1000 * MS, 1005 * MS, 100 * US), 0, "not yet");
        assert!(sends(&mut loan, 1005 * MS, 1020 * MS, 100 * US) > 0);
        assert_eq!(sends(&mut loan, 1020 * MS, 1050 * MS, 100 * US), 60, "each 500 us");
        // It pauses, and begins anew.
        assert_eq!(sends(&mut loan, 1100 * MS, 1102 * MS, 100 * US), 0);
        // Woken late now and then it goes on.
        assert!(sends(&mut loan, 1102 * MS, 1110 * MS, 100 * US) > 0);
        assert!(sends(&mut loan, 1111 * MS, 1112 * MS, 100 * US) > 0);
    }

    #[test]
    fn socket_is_not_lent_to_who_sends_rarely() {
        assert_eq!(sends(&mut Loan::default(), 1000 * MS, 2000 * MS, 300 * US), 0);
    }

    #[test]
    fn who_waits_gives_it_back() {
        let mut loan = Loan::default();
        let at_ns = 1100 * MS;
        assert!(sends(&mut loan, 1000 * MS, at_ns, 100 * US) > 0);
        assert_eq!(loan.until_ns(), 0);
        loan.begins();
        assert!(loan.until_ns() > at_ns);
        assert!(!loan.waits(at_ns, Some(at_ns + 100 * US)), "that is held until the next packet may leave");
        assert!(loan.until_ns() > at_ns);
        assert!(loan.waits(at_ns, None));
        assert_eq!(loan.until_ns(), 0);
        assert!(!loan.waits(at_ns, None), "it is back");
    }
}
