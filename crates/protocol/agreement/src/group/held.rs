// SPDX-License-Identifier: Apache-2.0
//! What a member stores of the log and was not delivered, for questions about a part of the state.
//!
//! **A question about some keys** may be answered at a member from the state after position `applied`, if no
//! entry that the member stores at a later position, up to [`Group::may_be_decided`], writes one of these keys.
//! Otherwise it waits for the last position with such an entry.
//!
//! *Why that is linearizable.* Let the member check at some moment, and let d be the last position that was
//! delivered anywhere by then. Everything that anybody has seen, or was told is done, is at positions up to d.
//! Each decision up to d is delivered here, or stored here with its decided value: its acknowledgements include
//! that of this member, and a later leader proposes the same value again. So the entries up to d are among those
//! that are checked. If none of them after `applied` writes one of the keys, the state of these keys is the same at all
//! positions from `applied` to d, and the answer is that of position d. It is as if it were given at position d, at that
//! moment. What was written before the question is at a position up to d, what is written after the answer at a later
//! one, and the d of a later question, here or elsewhere, is no smaller. So questions stay in order, whoever asks them,
//! and however many keys each names: all of its keys are those of one position.
//!
//! If an entry after `applied` does write one of the keys, let n be the last such position. Once everything up to n is
//! applied, the state of the keys is that of position d, or of a later one that was delivered by then: no entry between n
//! and d writes them. No second look is needed.
//!
//! *What is not delivered anywhere* may be among the stored entries too. It makes a question wait, and no answer
//! wrong.
//!
//! **What counts as an entry that writes everything:** a view, as the others may go on without this member from there
//! on; a payload, as its bytes are elsewhere; a protocol that does not know its values ([`Group::each_held`] is none).
//! A question that is not about keys (how many there are, which there are) waits for all.

use super::Group;
use crate::{Held, Start, lease::Lease};

impl<P: Start> Group<P> {
    /// Calls `each` with what may be decided at positions after the delivered one, in order: see the module's text
    /// (`group/held.rs`) for what may be answered by it. A position may come twice, with values of two rounds; one at
    /// which nothing is stored does not come, and nobody was delivered it. [`Held::round`] is of the present view.
    ///
    /// Returns [`Group::may_be_decided`]; none if that is none, or if the values are not known: then any position up to
    /// [`Group::may_be_decided`] may write anything.
    pub fn each_held(&self, lease: Lease, each: &mut dyn FnMut(Held<'_>)) -> Option<u64> {
        let until = self.may_be_decided(lease)?;
        let epoch = self.epochs.current().filter(|_| !self.epochs.is_ending())?;
        // Decided, and not on enough disks yet.
        for (value, instance) in self.durable.waiting_values().zip(self.position + 1..) {
            each(Held { instance, round: 0, value });
        }
        let start = epoch.start;
        let is_known = epoch.protocol.each_held(&mut |held| each(Held { instance: start + held.instance, ..held }));
        is_known.then_some(until)
    }
}
