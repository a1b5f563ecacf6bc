// SPDX-License-Identifier: Apache-2.0
//! The programs that share a tunnel, each with a flow: a number that stands before each of its datagrams, so that answers find back.

/// Flows of a tunnel at a time. Another one takes the place of that which was used longest ago.
pub(super) const FLOWS_MAX: usize = 256;

/// Bytes of a flow's number, before its datagram.
pub(super) const FLOW_LEN: usize = 4;

/// No flow's: what two ends say to each other.
pub(super) const NO_FLOW: u32 = u32::MAX;

#[derive(Debug)]
struct Flow<T> {
    number: u32,
    of: T,
    /// Counts uses of all flows.
    used: u64,
}

/// Flows, and what each one is of.
#[derive(Debug)]
pub(super) struct Flows<T> {
    flows: Vec<Flow<T>>,
    uses: u64,
    /// No number is given twice, as late answers of a former flow are not for another program.
    next: u32,
}

impl<T> Default for Flows<T> {
    fn default() -> Self {
        Self { flows: Vec::new(), uses: 0, next: 0 }
    }
}

impl<T> Flows<T> {
    fn find(&mut self, is_it: impl Fn(&Flow<T>) -> bool) -> Option<&mut Flow<T>> {
        self.uses += 1;
        let flow = self.flows.iter_mut().find(|flow| is_it(flow))?;
        flow.used = self.uses;
        Some(flow)
    }

    /// What a flow is of, which is used now.
    pub(super) fn get(&mut self, number: u32) -> Option<&T> {
        self.find(|flow| flow.number == number).map(|flow| &flow.of)
    }

    /// A new one with the other end's number; the one that was used longest ago makes way for it.
    pub(super) fn add(&mut self, number: u32, of: T) {
        if self.flows.len() >= FLOWS_MAX {
            let oldest = (0..self.flows.len()).min_by_key(|at| self.flows[*at].used);
            oldest.map(|at| self.flows.swap_remove(at));
        }
        self.uses += 1;
        self.flows.push(Flow { number, of, used: self.uses });
    }
}

impl<T: PartialEq> Flows<T> {
    /// The number of the flow of this one, which is used now: a new one, if it has none.
    pub(super) fn number_of(&mut self, of: T) -> u32 {
        if let Some(flow) = self.find(|flow| flow.of == of) {
            return flow.number;
        }
        let number = self.next;
        self.next = if number + 1 == NO_FLOW { 0 } else { number + 1 };
        self.add(number, of);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_that_was_used_longest_ago_makes_way_and_its_number_is_not_given_again() {
        let mut flows: Flows<u32> = Flows::default();
        let known = |flows: &mut Flows<u32>, number: u32| flows.get(number).copied();
        let count = u32::try_from(FLOWS_MAX).unwrap();
        for program in 0..count {
            assert_eq!(flows.number_of(program), program);
        }
        assert_eq!((flows.number_of(0), known(&mut flows, 2)), (0, Some(2)));
        // 1 was not used since.
        assert_eq!(flows.number_of(1000), count);
        assert_eq!([0, 1, count].map(|number| known(&mut flows, number)), [Some(0), None, Some(1000)]);
        assert_eq!(flows.flows.len(), FLOWS_MAX);
        assert_eq!(flows.number_of(1), count + 1);
        assert_eq!(known(&mut flows, 3), None, "it was the next one");
    }

    #[test]
    fn what_two_ends_say_is_no_flow() {
        let mut flows = Flows { next: NO_FLOW - 1, ..Flows::default() };
        assert_eq!((flows.number_of("one"), flows.number_of("other")), (NO_FLOW - 1, 0));
    }
}
