// SPDX-License-Identifier: Apache-2.0
//! Which trees bring a sender's packets, and which bring them too late (FiDe §3.3: "a receiver that gets only
//! one copy").
//!
//! Every packet is sent over each tree at once, so the copies deliver of each other: a tree that is behind by
//! several packets has lost them, and one whose copies come later than the contract allows is as bad. Nothing
//! is concluded from silence alone: a sender may have nothing to say.

use fide_wire::MAX_PLANES;

/// Packets that the other tree has brought meanwhile.
const MISSED: u64 = 3;
/// And how long nothing has come over this one: trees differ by less.
const MISSED_NS: u64 = 10_000_000;
/// Copies in a row that were late.
const SLOW: u8 = 5;
/// What was found is not found again before so much time, in which the tree may have been replaced, and for
/// as many more packets.
const AGAIN_NS: u64 = 100_000_000;
const AGAIN: u64 = 2 * MISSED;
/// First copies that are remembered.
const FIRST: usize = 16;

/// What the copies deliver of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Its packets do not come.
    Missing,
    /// They come later than they may.
    Slow,
    /// They come again, after [`Finding::Missing`].
    Back,
}

#[derive(Clone, Copy, Debug, Default)]
struct Plane {
    newest: u64,
    rx_ns: u64,
    /// Copies in a row that were late.
    late: u8,
    missing: bool,
    /// When something was found of it last, and the newest packet then.
    found_ns: u64,
    found_at: u64,
}

/// Of one sender's packets over all trees. Numbers grow by one per packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copies {
    planes: [Plane; MAX_PLANES],
    begun_ns: u64,
    /// Number and time of the first copy of a packet, by number.
    first: [(u64, u64); FIRST],
}

impl Copies {
    /// One copy has come at `rx_ns`. `late_max_ns`: how much later than the first a copy may be. What it
    /// tells of which tree.
    pub fn arrived(&mut self, plane: usize, number: u64, rx_ns: u64, late_max_ns: u64) -> Option<(usize, Finding)> {
        if self.begun_ns == 0 || number.abs_diff(self.newest()) > super::ANEW {
            *self = Self { begun_ns: rx_ns.max(1), ..Self::default() };
        }
        let newest = self.newest().max(number);
        let first = &mut self.first[(number % FIRST as u64) as usize];
        let own = self.planes.get_mut(plane)?;
        if number > own.newest {
            own.newest = number;
            own.rx_ns = rx_ns;
        }
        if own.missing && number + MISSED > newest {
            own.missing = false;
            own.late = 0;
            return Some((plane, Finding::Back));
        }
        if first.0 != number {
            *first = (number, rx_ns);
        } else if rx_ns.saturating_sub(first.1) > late_max_ns {
            own.late = own.late.saturating_add(1);
            if own.late >= SLOW && (own.found_ns == 0 || rx_ns.saturating_sub(own.found_ns) >= AGAIN_NS) {
                own.late = 0;
                own.found_ns = rx_ns;
                return Some((plane, Finding::Slow));
            }
        } else {
            own.late = 0;
        }
        self.missing(rx_ns)
    }

    fn newest(&self) -> u64 {
        self.planes.iter().map(|plane| plane.newest).max().unwrap_or(0)
    }

    /// A tree that the other one has left behind.
    fn missing(&mut self, now: u64) -> Option<(usize, Finding)> {
        let (newest, begun_ns) = (self.newest(), self.begun_ns);
        let first = self.first.iter().map(|(number, _)| *number).filter(|number| *number > 0).min().unwrap_or(newest);
        for (index, plane) in self.planes.iter_mut().enumerate() {
            // One that has brought nothing yet has missed what came since the beginning.
            let last = if plane.newest == 0 { first.saturating_sub(1) } else { plane.newest };
            let quiet_ns = now.saturating_sub(plane.rx_ns.max(begun_ns));
            let again =
                !plane.missing || newest >= plane.found_at + AGAIN && now.saturating_sub(plane.found_ns) >= AGAIN_NS;
            if newest >= last + MISSED && quiet_ns >= MISSED_NS && again {
                plane.missing = true;
                plane.found_ns = now;
                plane.found_at = newest;
                return Some((index, Finding::Missing));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
