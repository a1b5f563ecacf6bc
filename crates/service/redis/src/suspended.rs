// SPDX-License-Identifier: Apache-2.0
//! Clients that this module has suspended and whose answers Redis has not taken over yet.
//!
//! Redis takes over the answer of a suspended client when its loop is about to sleep. A server that is told `REPLICAOF`
//! before that ends the wait of all suspended clients with an error of its own (`-UNBLOCKED`), also one that was a replica
//! already. The client would not be told what became of its request. So these clients are answered first.

use std::cell::Cell;

/// How many clients so far.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    suspended: u64,
    answered: u64,
    /// Of those answered, the clients that were so when the turn began.
    answered_before: u64,
    /// Of those answered, the clients whose answers Redis has surely taken over.
    taken: u64,
}

impl Counts {
    /// Depending on the version, Redis takes answers over before or after it tells modules that it is about to sleep. So an
    /// answer counts as taken over once a whole turn has passed.
    fn begin_turn(&mut self) {
        self.taken = self.answered_before;
        self.answered_before = self.answered;
    }

    fn is_any(self) -> bool {
        self.suspended != self.taken
    }
}

thread_local! {
    static COUNTS: Cell<Counts> = Cell::new(Counts::default());
}

fn change(change: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.get();
    change(&mut counts);
    COUNTS.set(counts);
}

/// A client is suspended.
pub(crate) fn note_suspended() {
    change(|counts| counts.suspended += 1);
}

/// The answer of a suspended client is written.
pub(crate) fn note_answered() {
    change(|counts| counts.answered += 1);
}

/// The loop has slept.
pub(crate) fn begin_turn() {
    change(Counts::begin_turn);
}

/// Whether there is such a client.
pub(crate) fn is_any() -> bool {
    COUNTS.get().is_any()
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn client_is_suspended_until_a_turn_after_its_answer_has_passed() {
        let mut counts = Counts::default();
        assert!(!counts.is_any());
        counts.suspended += 2;
        counts.begin_turn();
        counts.answered += 1;
        counts.begin_turn();
        counts.answered += 1;
        counts.begin_turn();
        assert!(counts.is_any(), "no whole turn has passed since the second answer");
        counts.begin_turn();
        assert!(!counts.is_any());
    }
}
