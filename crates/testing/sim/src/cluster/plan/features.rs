// SPDX-License-Identifier: Apache-2.0
//! Kinds of faults that a plan may have or leave out.

/// Features that a plan may have. Each is drawn separately, so that a plan without it is otherwise the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// A timeout and promise of its own for each host, raised while it runs; views that change while a host is cut off.
    pub const UNEQUAL: Self = Self(1);
    /// Agents and members that are paused, end and begin independently.
    pub const APART: Self = Self(1 << 1);
    /// A service under a keeper.
    pub const SERVICE: Self = Self(1 << 2);
    /// Clocks that are slewed.
    pub const SLEW: Self = Self(1 << 3);
    /// Hosts that are suspended.
    pub const SUSPEND: Self = Self(1 << 4);
    /// Recorded packets that are sent again.
    pub const REPLAY: Self = Self(1 << 5);
    /// Equal payloads, and payloads that are too long.
    pub const EQUAL: Self = Self(1 << 6);
    /// Members that start again before their host is let in.
    pub const HASTY: Self = Self(1 << 7);
    /// Virtual machines that are stopped.
    pub const STOP: Self = Self(1 << 8);
    /// More events at once than a member takes in a turn, or than a ring holds.
    pub const FLOOD: Self = Self(1 << 9);
    /// Wall clocks that differ, and disks that are slow.
    pub const WALLS: Self = Self(1 << 10);
    /// Hosts whose kernel receives heartbeats, and keeps steady ones to itself.
    pub const XDP: Self = Self(1 << 11);
    /// Virtual machines that are put back to a snapshot, or run twice.
    pub const CLONE: Self = Self(1 << 12);
    /// Urgent heartbeats: hosts send between two of the schedule while a view is decided.
    pub const URGENT: Self = Self(1 << 13);
    /// Leaders that hand over.
    pub const HAND: Self = Self(1 << 14);
    /// A durable group: slow and full disks, power cuts, and ends of all members at once.
    pub const DURABLE: Self = Self(1 << 15);
    pub const NONE: Self = Self(0);
    /// All of them.
    pub const ALL: Self = Self((1 << Self::NAMES.len()) - 1);
    pub const NAMES: [(&str, Self); 16] = [
        ("unequal", Self::UNEQUAL),
        ("apart", Self::APART),
        ("service", Self::SERVICE),
        ("slew", Self::SLEW),
        ("suspend", Self::SUSPEND),
        ("replay", Self::REPLAY),
        ("equal", Self::EQUAL),
        ("hasty", Self::HASTY),
        ("stop", Self::STOP),
        ("flood", Self::FLOOD),
        ("walls", Self::WALLS),
        ("xdp", Self::XDP),
        ("clone", Self::CLONE),
        ("urgent", Self::URGENT),
        ("hand", Self::HAND),
        ("durable", Self::DURABLE),
    ];

    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
