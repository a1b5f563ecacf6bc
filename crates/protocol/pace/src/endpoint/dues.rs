// SPDX-License-Identifier: Apache-2.0
//! When connections have something to do: a heap in which a time that no longer holds stays until it comes to the front.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Times that do not hold are cleared away when there are so many more than connections.
const STALE_MAX: usize = 64;

/// Times, each with the number of a connection.
#[derive(Debug, Default)]
pub(super) struct Dues {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Dues {
    /// A connection has something to do then. Its earlier times do not hold any more.
    pub(super) fn push(&mut self, due_ns: u64, id: u32) {
        if due_ns < u64::MAX {
            self.heap.push(Reverse((due_ns, id)));
        }
    }

    /// The earliest time that holds, by `of`: the time of a connection as it is now.
    pub(super) fn first(&mut self, count: usize, of: impl Fn(u32) -> Option<u64>) -> Option<(u64, u32)> {
        if self.heap.len() > 4 * count + STALE_MAX {
            self.heap.retain(|Reverse((due_ns, id))| of(*id) == Some(*due_ns));
        }
        loop {
            let Reverse((due_ns, id)) = *self.heap.peek()?;
            if of(id) == Some(due_ns) {
                return Some((due_ns, id));
            }
            self.heap.pop();
        }
    }

    /// Takes the earliest one away, until it is pushed again.
    pub(super) fn pop(&mut self) {
        self.heap.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn only_the_latest_time_of_a_connection_holds() {
        let (mut dues, mut now) = (Dues::default(), HashMap::new());
        for turn in 0..10_000_u64 {
            let id = u32::try_from(turn % 7).unwrap();
            let due_ns = 1000 + (turn * 7919) % 1000;
            now.insert(id, due_ns);
            dues.push(due_ns, id);
            let first = dues.first(now.len(), |id| now.get(&id).copied());
            let least = now.values().min().copied();
            assert_eq!(first.map(|(due_ns, _)| due_ns), least);
            assert!(dues.heap.len() <= 4 * 7 + STALE_MAX + 1, "stale ones are cleared away");
        }
        now.clear();
        assert_eq!(dues.first(0, |id| now.get(&id).copied()), None);
        dues.push(u64::MAX, 1);
        assert!(dues.heap.is_empty());
    }
}
