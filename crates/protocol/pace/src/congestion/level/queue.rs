// SPDX-License-Identifier: Apache-2.0
//! The queue of a path, measured by the one-way delay of packets: what exceeds the base delay.

use super::as_f64;
use crate::windowed::{Smallest, Windowed};

/// How long the shortest one-way delay counts as the base delay.
const BASE_WINDOW_NS: u64 = 10_000_000_000;
/// Samples in a bucket: the standing queue is the shortest of one to two buckets, so that a packet that waited for
/// one of another flow by chance does not count.
const BUCKET_SAMPLES: u32 = 4;
/// Shortest bucket: links that aggregate packets (Wi-Fi) deliver bursts a few milliseconds apart.
const BUCKET_MIN_NS: u64 = 4_000_000;
/// Samples of which the mean change from packet to packet is taken.
const NOISE_SAMPLES: f64 = 64.0;
/// So many without a change count as if they had been before the first.
const CHANGES_BEFORE: f64 = 4.0;
/// A bucket has so many samples more for each target of that change, and at most so many.
const BUCKET_SAMPLES_CHANGE: f64 = 3.0;
const BUCKET_SAMPLES_MAX: f64 = 40.0;
/// Packets of which the shortest queue says early that there is one.
const RECENT: usize = 3;
/// Changes in one direction that may be jitter.
const ONE_WAY_MAX: u32 = 6;
/// Longest bucket with more samples, in buckets.
const BUCKET_MAX: u64 = 4;
/// A standing queue is flat if it changes by at most so many targets.
const FLAT_TARGETS: f64 = 0.5;
/// How much slower a flow has become, at least, for a flat queue to be none; and by how many targets the queue would have
/// become shorter then, if it was one of others whose windows fill it.
const FLAT_SLOWER: f64 = 0.93;
const FLAT_DRAINS: f64 = 1.0;
/// Any constant that makes a difference of two clocks positive.
const CLOCK_ZERO: i64 = 1 << 62;

/// The base delay and the standing queue.
#[derive(Debug)]
pub(super) struct Queue {
    base: Windowed<Smallest>,
    flat: Flat,
    pub(super) last_us: Option<f64>,
    /// The last samples.
    recent_us: [f64; RECENT],
    place: usize,
    /// Mean change of the delay from one sample to the next.
    change_us: f64,
    last_change_us: f64,
    /// Changes in the same direction, one after another.
    one_way: u32,
    changes: f64,
    current: Bucket,
    previous: Bucket,
}

/// The shortest queue of a few samples.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    least_us: f64,
    samples: u32,
    since_ns: u64,
}

/// A standing queue that does not change.
#[derive(Debug, Clone, Copy)]
struct Flat {
    since_ns: u64,
    least_us: f64,
    most_us: f64,
    /// The share of the link that was delivered as it began.
    delivered: f64,
}

/// A one-way delay, and a constant.
fn absolute_us(one_way_us: i64) -> u64 {
    u64::try_from(one_way_us.saturating_add(CLOCK_ZERO)).unwrap_or(0)
}

impl Bucket {
    fn new(now_ns: u64) -> Self {
        Self { least_us: f64::MAX, samples: 0, since_ns: now_ns }
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            base: Windowed::new(BASE_WINDOW_NS),
            flat: Flat { since_ns: 0, least_us: f64::MAX, most_us: 0.0, delivered: 0.0 },
            last_us: None,
            recent_us: [0.0; RECENT],
            place: 0,
            change_us: 0.0,
            last_change_us: 0.0,
            one_way: 0,
            changes: CHANGES_BEFORE,
            current: Bucket::new(0),
            previous: Bucket::new(0),
        }
    }

    /// Takes the one-way delay of a packet, by two clocks that differ by any constant. `bucket_ns`: half a round trip
    /// or so. While it is crowded, what changes from packet to packet is no noise.
    pub(super) fn add(&mut self, now_ns: u64, one_way_us: i64, bucket_ns: u64, target_us: f64, is_crowded: bool) {
        let absolute = absolute_us(one_way_us);
        let before = self.base.get().map(|smallest| smallest.0);
        self.base.update(now_ns, Smallest(absolute));
        let base = self.base.get().map_or(absolute, |smallest| smallest.0);
        if let Some(before) = before.filter(|before| *before > base) {
            // What was measured by the former base.
            let by_us = as_f64(before - base);
            self.current.least_us += by_us;
            self.previous.least_us += by_us;
            self.last_us = self.last_us.map(|us| us + by_us);
        }
        let queue_us = as_f64(absolute - base.min(absolute));
        self.recent_us[self.place % RECENT] = queue_us;
        self.place += 1;
        if let Some(last_us) = self.last_us.replace(queue_us) {
            let change_us = queue_us - last_us;
            let before_us = std::mem::replace(&mut self.last_change_us, change_us);
            if !is_crowded {
                // A queue that grows or shrinks changes one way for long; jitter and bursts do not.
                let is_turn = change_us.is_sign_positive() != before_us.is_sign_positive();
                self.one_way = if is_turn { 0 } else { self.one_way + 1 };
                let noise_us = if self.one_way <= ONE_WAY_MAX { change_us.abs() } else { 0.0 };
                self.changes = (self.changes + 1.0).min(NOISE_SAMPLES);
                self.change_us += (noise_us - self.change_us) / self.changes;
            }
        }
        let wanted = (BUCKET_SAMPLES_CHANGE * self.change_us / target_us.max(1.0)).min(BUCKET_SAMPLES_MAX);
        let age_ns = now_ns.saturating_sub(self.current.since_ns);
        let is_enough =
            f64::from(self.current.samples) >= wanted || age_ns >= BUCKET_MAX * bucket_ns.max(BUCKET_MIN_NS);
        if self.current.samples >= BUCKET_SAMPLES && is_enough && age_ns >= bucket_ns.max(BUCKET_MIN_NS) {
            self.previous = std::mem::replace(&mut self.current, Bucket::new(now_ns));
        }
        self.current.least_us = self.current.least_us.min(queue_us);
        self.current.samples += 1;
    }

    /// What a one-way delay exceeds the base delay by.
    pub(super) fn above_us(&self, one_way_us: i64) -> f64 {
        self.base.get().map_or(0.0, |base| as_f64(absolute_us(one_way_us).saturating_sub(base.0)))
    }

    /// The next delay is the shortest one that is known.
    pub(super) fn forget(&mut self) {
        self.base.clear();
        (self.last_us, self.recent_us) = (None, [0.0; RECENT]);
        (self.current, self.previous) = (Bucket::new(self.current.since_ns), Bucket::new(self.current.since_ns));
    }

    /// A queue drains once less is sent. If the standing queue is the same although less comes, it is no
    /// queue: the path has become longer, or its link slower. `delivered`: as a share of the link. `least_ns`: it has been the same for
    /// so long; none if that says nothing now. Returns whether the base delay was corrected.
    pub(super) fn rebase(
        &mut self,
        now_ns: u64,
        target_us: f64,
        delivered: f64,
        round_trip_us: f64,
        least_ns: Option<u64>,
    ) -> bool {
        let queue_us = self.standing_us();
        let (least_us, most_us) = (self.flat.least_us.min(queue_us), self.flat.most_us.max(queue_us));
        if queue_us <= target_us || most_us - least_us > FLAT_TARGETS * target_us {
            self.flat = Flat { since_ns: now_ns, least_us: queue_us, most_us: queue_us, delivered };
            return false;
        }
        (self.flat.least_us, self.flat.most_us) = (least_us, most_us);
        let Some(least_ns) = least_ns else {
            self.flat.since_ns = now_ns;
            return false;
        };
        let drains_us = (self.flat.delivered - delivered) * round_trip_us;
        let is_slower = delivered <= FLAT_SLOWER * self.flat.delivered && drains_us >= FLAT_DRAINS * target_us;
        if now_ns.saturating_sub(self.flat.since_ns) < least_ns || !is_slower {
            return false;
        }
        let Some(base) = self.base.get() else { return false };
        self.base.clear();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
        self.base.update(now_ns, Smallest(base.0 + least_us as u64));
        self.last_us = None;
        (self.current, self.previous) = (Bucket::new(now_ns), Bucket::new(now_ns));
        true
    }

    /// The shortest queue of one to two buckets: a queue that stands.
    pub(super) fn standing_us(&self) -> f64 {
        let least_us = self.current.least_us.min(self.previous.least_us);
        if least_us == f64::MAX { 0.0 } else { least_us }
    }

    /// The shortest queue of the last few packets: sooner than the standing one, and less sure.
    pub(super) fn recent_us(&self) -> f64 {
        self.recent_us.iter().copied().fold(f64::MAX, f64::min)
    }

    /// How much the delay changes from packet to packet.
    pub(super) fn change_us(&self) -> f64 {
        self.change_us
    }

    /// The same of however few packets.
    pub(super) fn mean_change_us(&self) -> f64 {
        let samples = self.changes - CHANGES_BEFORE;
        if samples > 0.0 { self.change_us * self.changes / samples } else { 0.0 }
    }

    /// The standing queue that a path with jitter, and without a queue, seems to have: the shortest of many delays is
    /// somewhat above the shortest of all.
    pub(super) fn noise_us(&self) -> f64 {
        let samples = self.current.samples.max(self.previous.samples).max(BUCKET_SAMPLES);
        self.change_us / f64::from(samples)
    }
}
