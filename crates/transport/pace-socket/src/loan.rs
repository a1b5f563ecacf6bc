// SPDX-License-Identifier: Apache-2.0
//! An application that sends often looks at the socket itself as it sends, in place of the endpoint's thread: to wake a thread for
//! each FEEDBACK costs more than all else that a message costs.

/// The socket is lent to an application between whose sends there is less time than this in the mean of so many.
const GAP_NS: u64 = 250_000;
const SENDS: u64 = 16;
/// A pause counts as one so long.
const PAUSE_NS: u64 = 10_000_000;
/// The application looks at the socket no more often.
const LOOK_NS: u64 = 250_000;
/// If it sends no more, the thread has the socket back after this time.
const LENT_NS: u64 = 2_000_000;
/// Nor is it lent for so long after somebody has begun to wait for messages.
const KEPT_NS: u64 = 100_000_000;

/// Who looks at the socket: its thread, or for a time those who send.
#[derive(Debug)]
pub(crate) struct Loan {
    /// When something was sent last, and the mean time between two.
    sent_ns: u64,
    gap_ns: u64,
    kept_until_ns: u64,
    looked_ns: u64,
    until_ns: u64,
}

impl Default for Loan {
    fn default() -> Self {
        Self { sent_ns: 0, gap_ns: PAUSE_NS, kept_until_ns: 0, looked_ns: 0, until_ns: 0 }
    }
}

impl Loan {
    /// The application has sent something. Whether it is to look at the socket now.
    pub(crate) fn sends(&mut self, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(std::mem::replace(&mut self.sent_ns, now_ns)).min(PAUSE_NS);
        self.gap_ns = (self.gap_ns * (SENDS - 1) + gap_ns) / SENDS;
        let looks = self.gap_ns < GAP_NS && now_ns >= self.kept_until_ns && now_ns >= self.looked_ns + LOOK_NS;
        if looks {
            (self.looked_ns, self.until_ns) = (now_ns, now_ns + LENT_NS);
        }
        looks
    }

    /// Somebody waits until a time, or for good: to send, or for what others send. Whether the thread is to have the socket back at
    /// once.
    pub(crate) fn waits(&mut self, now_ns: u64, is_to_send: bool, until_ns: Option<u64>) -> bool {
        if until_ns.is_some_and(|until_ns| until_ns <= now_ns + GAP_NS) {
            // It is held, and goes on sending.
            return false;
        }
        if !is_to_send {
            self.kept_until_ns = now_ns + KEPT_NS;
        }
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
        (from_ns..to_ns).step_by(period_ns as usize).filter(|now_ns| loan.sends(*now_ns)).count()
    }

    #[test]
    fn socket_is_lent_to_who_sends_often() {
        let mut loan = Loan::default();
        assert_eq!(sends(&mut loan, 1000 * MS, 1005 * MS, 100 * US), 0, "not yet");
        assert_eq!(loan.until_ns(), 0);
        assert!(sends(&mut loan, 1005 * MS, 1020 * MS, 100 * US) > 0);
        assert_eq!(sends(&mut loan, 1020 * MS, 1050 * MS, 100 * US), 100, "each 300 us");
        assert!(loan.until_ns() > 1050 * MS);
        // It pauses, and begins anew.
        assert_eq!(sends(&mut loan, 1100 * MS, 1102 * MS, 100 * US), 0);
        assert!(loan.until_ns() < 1100 * MS);
        // Woken late now and then it goes on.
        assert!(sends(&mut loan, 1102 * MS, 1110 * MS, 100 * US) > 0);
        assert!(sends(&mut loan, 1111 * MS, 1112 * MS, 100 * US) > 0);
    }

    #[test]
    fn socket_is_not_lent_to_who_sends_rarely() {
        let mut loan = Loan::default();
        assert_eq!(sends(&mut loan, 1000 * MS, 2000 * MS, 300 * US), 0);
        assert_eq!(loan.until_ns(), 0);
    }

    #[test]
    fn who_waits_gives_it_back() {
        let mut loan = Loan::default();
        let at_ns = 1100 * MS;
        assert!(sends(&mut loan, 1000 * MS, at_ns, 100 * US) > 0);
        assert!(!loan.waits(at_ns, true, Some(at_ns + 100 * US)), "that is held until the next packet may leave");
        assert!(loan.until_ns() > at_ns);
        assert!(loan.waits(at_ns, true, None));
        assert_eq!(loan.until_ns(), 0);
        assert!(!loan.waits(at_ns, true, None), "it is back");
        assert!(sends(&mut loan, at_ns, at_ns + MS, 100 * US) > 0, "who waited for room sends on");
        assert!(loan.waits(at_ns + MS, false, None));
        assert_eq!(sends(&mut loan, at_ns + MS, at_ns + MS + KEPT_NS, 100 * US), 0);
        let again_ns = at_ns + MS + KEPT_NS;
        assert!(sends(&mut loan, again_ns, again_ns + MS, 100 * US) > 0);
        assert!(loan.waits(again_ns + MS, false, Some(again_ns + 100 * MS)), "for long");
    }
}
