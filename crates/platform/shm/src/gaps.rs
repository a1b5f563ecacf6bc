// SPDX-License-Identifier: Apache-2.0
//! How long the times between two arrivals were: counts in buckets whose width grows with the time.
//!
//! The layout is that of a BPF map (`struct fide_gaps` in `fide-bpf`), so that whoever counts, a kernel program or a
//! thread, the same code reads it. From 1024 ns to 2^30 ns (1.07 s) there are 16 buckets in every power of two, each
//! 1/16 to 1/32 as wide as its times; shorter and longer times have one bucket each.
//!
//! A timeout of T would have ended as often as there are gaps longer than T ([`Gaps::above`]).

/// Buckets of one power of two.
pub const PER_OCTAVE: usize = 16;
/// Powers of two that are divided.
pub const OCTAVES: usize = 20;
/// Times below this, in ns, are in bucket 0.
pub const FIRST_NS: u64 = 1024;
/// Times from this on, in ns, are in the last bucket.
pub const LAST_NS: u64 = FIRST_NS << OCTAVES;
/// All of them, with that of shorter and that of longer times.
pub const BUCKETS: usize = 2 + PER_OCTAVE * OCTAVES;

/// The gaps between arrivals of one sender. Times in ns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps {
    /// The newest arrival, on the clock of whoever counts; 0: the next one begins anew.
    pub last_ns: u64,
    /// The longest gap, 0 without any.
    pub longest_ns: u64,
    /// When it ended.
    pub longest_at_ns: u64,
    /// Of all gaps.
    pub sum_ns: u64,
    /// Of the sender; gaps between two incarnations do not count.
    pub incarnation: u32,
    pub reserved: u32,
    pub counts: [u64; BUCKETS],
}

impl Default for Gaps {
    fn default() -> Self {
        Self::NONE
    }
}

/// Which bucket counts a gap.
#[must_use]
pub fn bucket(gap_ns: u64) -> usize {
    if gap_ns < FIRST_NS {
        return 0;
    }
    if gap_ns >= LAST_NS {
        return BUCKETS - 1;
    }
    // Between 10 and 29, as the time is in that range.
    let octave = gap_ns.ilog2();
    let part = (gap_ns >> (octave - PER_OCTAVE.ilog2())) as usize % PER_OCTAVE;
    1 + (octave - FIRST_NS.ilog2()) as usize * PER_OCTAVE + part
}

/// The shortest gap of a bucket, ns.
#[must_use]
pub fn least_ns(bucket: usize) -> u64 {
    let Some(above) = bucket.checked_sub(1) else { return 0 };
    let above = above.min(PER_OCTAVE * OCTAVES);
    let part_ns = FIRST_NS / PER_OCTAVE as u64;
    ((PER_OCTAVE + above % PER_OCTAVE) as u64 * part_ns) << (above / PER_OCTAVE)
}

/// The longest gap of a bucket, ns; `u64::MAX` for the last one.
#[must_use]
pub fn most_ns(bucket: usize) -> u64 {
    if bucket + 1 >= BUCKETS { u64::MAX } else { least_ns(bucket + 1) - 1 }
}

impl Gaps {
    /// Nothing has arrived yet.
    pub const NONE: Self = Self {
        last_ns: 0,
        longest_ns: 0,
        longest_at_ns: 0,
        sum_ns: 0,
        incarnation: 0,
        reserved: 0,
        counts: [0; BUCKETS],
    };

    /// Something of this incarnation arrived. The same as the receive program does.
    pub fn arrived(&mut self, incarnation: u32, now_ns: u64) {
        if self.incarnation != incarnation {
            self.incarnation = incarnation;
            self.last_ns = 0;
        }
        // Of two that arrived at once, the later may be counted first.
        if now_ns <= self.last_ns {
            return;
        }
        if self.last_ns != 0 {
            let gap_ns = now_ns - self.last_ns;
            self.counts[bucket(gap_ns)] += 1;
            self.sum_ns += gap_ns;
            if gap_ns > self.longest_ns {
                (self.longest_ns, self.longest_at_ns) = (gap_ns, now_ns);
            }
        }
        self.last_ns = now_ns;
    }

    /// The next arrival ends no gap.
    pub fn begin_anew(&mut self) {
        self.last_ns = 0;
    }

    /// All gaps.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A time that a share (0 to 1) of the gaps does not exceed, at most one bucket's width more than the least such; 0
    /// without gaps.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let count = self.count();
        // The subtraction keeps what the share's binary form adds from asking for one gap more.
        let wanted = ((share.clamp(0.0, 1.0) * count as f64 - 1e-6).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (at, in_bucket) in self.counts.iter().enumerate() {
            seen += in_bucket;
            if seen >= wanted {
                return most_ns(at).min(self.longest_ns);
            }
        }
        0
    }

    /// Gaps that are longer than a timeout, at most: all in its own bucket are counted, which may be up to a
    /// bucket's width shorter; none if the longest of all is no longer.
    #[must_use]
    pub fn above(&self, timeout_ns: u64) -> u64 {
        if timeout_ns >= self.longest_ns {
            return 0;
        }
        self.counts[bucket(timeout_ns)..].iter().sum()
    }

    /// Adds the gaps of another.
    pub fn absorb(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum_ns += other.sum_ns;
        if other.longest_ns > self.longest_ns {
            (self.longest_ns, self.longest_at_ns) = (other.longest_ns, other.longest_at_ns);
        }
    }

    /// The gaps that came after an earlier state of the same counts. The longest one is exact if it is longer
    /// than all before, otherwise it is the longest that its bucket can hold.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = *self;
        later.counts.iter_mut().zip(&earlier.counts).for_each(|(now, before)| *now = now.saturating_sub(*before));
        later.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        if self.longest_ns == earlier.longest_ns {
            let highest = later.counts.iter().rposition(|count| *count > 0);
            later.longest_ns = highest.map_or(0, most_ns).min(self.longest_ns);
            later.longest_at_ns = 0;
        }
        later
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(gaps_ns: &[u64]) -> Gaps {
        let (mut gaps, mut now_ns) = (Gaps::NONE, 1);
        gaps.arrived(7, now_ns);
        for gap_ns in gaps_ns {
            now_ns += gap_ns;
            gaps.arrived(7, now_ns);
        }
        gaps
    }

    #[test]
    fn buckets_are_next_to_each_other_and_a_sixteenth_wide_at_most() {
        assert_eq!((least_ns(0), most_ns(0), least_ns(1)), (0, FIRST_NS - 1, FIRST_NS));
        assert_eq!((least_ns(BUCKETS - 1), most_ns(BUCKETS - 1)), (LAST_NS, u64::MAX));
        for at in 0..BUCKETS {
            assert_eq!((bucket(least_ns(at)), bucket(most_ns(at))), (at, at));
            if (1..BUCKETS - 1).contains(&at) {
                let width_ns = most_ns(at) - least_ns(at) + 1;
                assert!(width_ns * 16 <= least_ns(at) && width_ns * 32 > least_ns(at), "{at}");
            }
        }
    }

    #[test]
    fn new_incarnation_and_a_new_beginning_end_no_gap() {
        let mut gaps = of(&[5000, 7000]);
        gaps.arrived(8, 1_000_000_000);
        gaps.begin_anew();
        gaps.arrived(8, 2_000_000_000);
        assert_eq!((gaps.count(), gaps.longest_ns, gaps.longest_at_ns, gaps.sum_ns), (2, 7000, 12_001, 12_000));
        // One that was overtaken takes nothing back.
        gaps.arrived(8, 1_999_999_999);
        gaps.arrived(8, 2_000_003_000);
        assert_eq!((gaps.count(), gaps.sum_ns), (3, 15_000));
    }

    #[test]
    fn last_of_ten_million_gaps_is_not_within_seven_nines() {
        let mut gaps = of(&[100_000]);
        gaps.counts[bucket(100_000)] = 9_999_999;
        assert_eq!(gaps.count(), 9_999_999);
        gaps.arrived(7, gaps.last_ns + 3_000_000);
        assert_eq!(gaps.count(), 10_000_000);
        assert_eq!(gaps.quantile_ns(0.999_999_9), most_ns(bucket(100_000)));
        assert_eq!((gaps.quantile_ns(1.0), gaps.above(2_000_000), gaps.above(3_000_000)), (3_000_000, 1, 0));
    }

    #[test]
    fn difference_of_two_states_is_what_came_between() {
        let early = of(&[1_000_000, 3000]);
        let mut late = early;
        late.arrived(7, late.last_ns + 50_000);
        let between = late.since(&early);
        assert_eq!((between.count(), between.sum_ns, between.longest_ns), (1, 50_000, most_ns(bucket(50_000))));
        late.arrived(7, late.last_ns + 2_000_000);
        assert_eq!(late.since(&early).longest_ns, 2_000_000);
        assert_eq!(late.since(&late).longest_ns, 0);
    }

    proptest! {
        #[test]
        fn every_gap_is_within_its_bucket_and_every_quantile_within_one_of_the_truth(
            mut gaps_ns in prop::collection::vec(prop_oneof![1..3000u64, 1..10_000_000u64, 1..4_000_000_000u64], 1..200),
            share in 0.0..1.0f64,
            timeout_ns in 0..4_000_000_000u64,
        ) {
            let gaps = of(&gaps_ns);
            for gap_ns in &gaps_ns {
                let at = bucket(*gap_ns);
                prop_assert!(least_ns(at) <= *gap_ns && *gap_ns <= most_ns(at));
            }
            gaps_ns.sort_unstable();
            let true_ns = gaps_ns[((share * gaps_ns.len() as f64 - 1e-6).ceil() as usize).max(1) - 1];
            let said_ns = gaps.quantile_ns(share);
            prop_assert!(true_ns <= said_ns && bucket(said_ns) == bucket(true_ns));
            let exceed = |ns: u64| gaps_ns.iter().filter(|gap| **gap > ns).count() as u64;
            let at = bucket(timeout_ns);
            prop_assert!((exceed(most_ns(at))..=exceed(least_ns(at).saturating_sub(1))).contains(&gaps.above(timeout_ns)));
            prop_assert_eq!(gaps.above(timeout_ns) == 0, exceed(timeout_ns) == 0);
        }
    }
}
