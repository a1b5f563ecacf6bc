// SPDX-License-Identifier: Apache-2.0
//! How fast a path takes packets, and how many may be under way.
//!
//! One trait, and several answers: [`XPace`] is BBR as the paper has it (X-PACE §IV-A2), [`Level`] holds a queue of a
//! part of one packet.

mod bbr;
mod level;

pub use bbr::XPace;
pub use level::Level;

use crate::flight::RateSample;

/// At a pace of less than half of this, packets leave together, as many as are due within it: one call to the kernel for all, and as
/// long a queue on a path that is no faster.
pub(crate) const TOGETHER_NS: u64 = 100_000;

/// FEEDBACK waits for further packets so long at least. Paces of a millisecond and more are seen one by one, and on a short path not
/// each packet wakes its sender.
pub(crate) const FEEDBACK_LEAST_NS: u64 = 500_000;
/// It waits for an eighth of a round trip, but no longer than this.
pub(crate) const FEEDBACK_MOST_NS: u64 = 1_000_000;

/// What one FEEDBACK brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// Bytes that have come with it, and bytes that it showed to be lost.
    pub came_bytes: u64,
    pub lost_bytes: u64,
    /// Packets that came with a mark of congestion (ECN).
    pub marked_packets: u64,
    /// Bytes under way after it.
    pub in_flight_bytes: u64,
    /// Bytes delivered so far, and as its newest packet was sent.
    pub delivered: u64,
    pub delivered_before: u64,
    pub rate: Option<RateSample>,
    /// Of its newest packet: the round trip, and the way there by two clocks that may differ by any constant.
    pub round_trip_us: Option<u64>,
    pub one_way_us: Option<i64>,
    /// When that packet came, by the receiver's clock.
    pub came_us: u64,
    /// When it left.
    pub sent_ns: u64,
    /// Bytes of that packet.
    pub packet_bytes: u64,
    /// An application that asks has been kept waiting since the last feedback: it would send more.
    pub was_held: bool,
}

/// A way to control congestion.
pub trait Congestion: std::fmt::Debug + Send {
    /// For people.
    fn name(&self) -> &'static str;

    /// FEEDBACK has come.
    fn feedback(&mut self, now_ns: u64, feedback: &Feedback);

    /// A packet of so many bytes has left.
    fn sent(&mut self, now_ns: u64, bytes: u64, in_flight_bytes: u64);

    /// No feedback has come for several round trips.
    fn silence(&mut self, now_ns: u64);

    /// Packets leave at this rate.
    fn bytes_per_s(&self) -> u64;

    /// Most bytes under way.
    fn window_bytes(&self) -> u64;

    /// The path's buffer is filled: what it loses then says nothing of how it loses otherwise.
    fn is_full(&self) -> bool {
        false
    }

    /// What the path is believed to take: the rate of the network's pace. None: not known yet.
    fn path_bytes_per_s(&self) -> Option<u64>;
}

/// The time that so many bytes take at a rate.
#[must_use]
pub fn time_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}
