// SPDX-License-Identifier: Apache-2.0
//! When connections have something to do: a heap with one time of each, at which to look whether it has become a later one. A
//! connection in use puts its timers off with each packet, which costs nothing so.

use std::{cmp::Reverse, collections::BinaryHeap};

use rustc_hash::FxHashMap;

/// Times that do not hold are cleared away when there are so many more than connections.
const STALE_MAX: usize = 64;

/// Times, each with the number of a connection.
#[derive(Debug, Default)]
pub(super) struct Dues {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// The time in the heap that counts for a connection: at that, or later, it has something to do.
    looks: FxHashMap<u32, u64>,
}

impl Dues {
    /// A connection has something to do then. Its earlier times do not hold any more.
    pub(super) fn push(&mut self, due_ns: u64, id: u32) {
        if due_ns < u64::MAX && self.looks.get(&id).is_none_or(|look_ns| due_ns < *look_ns) {
            self.looks.insert(id, due_ns);
            self.heap.push(Reverse((due_ns, id)));
        }
    }

    /// The earliest time that holds, by `of`: the time of a connection as it is now.
    pub(super) fn first(&mut self, count: usize, of: impl Fn(u32) -> Option<u64>) -> Option<(u64, u32)> {
        let Self { heap, looks } = self;
        if heap.len() > 4 * count + STALE_MAX {
            heap.retain(|Reverse((look_ns, id))| looks.get(id) == Some(look_ns));
        }
        loop {
            let Reverse((look_ns, id)) = *self.heap.peek()?;
            if self.looks.get(&id) == Some(&look_ns) {
                match of(id) {
                    Some(due_ns) if due_ns <= look_ns => return Some((due_ns, id)),
                    later => {
                        self.pop();
                        self.push(later.unwrap_or(u64::MAX), id);
                        continue;
                    }
                }
            }
            self.heap.pop();
        }
    }

    /// Takes the earliest one away, until it is pushed again.
    pub(super) fn pop(&mut self) {
        if let Some(Reverse((look_ns, id))) = self.heap.pop()
            && self.looks.get(&id) == Some(&look_ns)
        {
            self.looks.remove(&id);
        }
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
