// SPDX-License-Identifier: Apache-2.0
//! How many error patterns of each weight a CRC does not see, exactly.
//!
//! The patterns that a CRC of `w` bits does not see are the code words of its code: the sets of bits whose syndromes
//! `x^i mod g` add up to zero. Two ways lead to their number:
//!
//! - directly, for the lowest weight that occurs ([`first_weight`]). A pattern may be moved as long as it
//!   stays within the n bits, so those that contain bit 0 are enough: one that reaches up to bit t stands for
//!   n - t of them. The k - 1 other bits are split in two, and the two parts' sums are matched.
//! - through the dual code, for all weights ([`dual_weights`], [`macwilliams`]): it has only 2^w words.

use num_bigint::BigInt;

/// Sums of subsets, kept sorted for looking up.
struct Sums {
    /// scattered sum << 16 | highest bit of the subset
    sorted: Vec<u64>,
    /// Where the sums with these `top_bits` begin.
    start: Vec<u32>,
    top_bits: u32,
    /// One bit per value of a sum's low bits, a power of two of them: most look-ups end here.
    filter: Vec<u64>,
}

impl Sums {
    /// Bit 0 and `others` more, in every way.
    fn with_bit_0(h: &[u32], others: usize) -> Sums {
        let mut sorted = vec![];
        subsets(h, others, 1, 0, h[0], &mut |sum, top| {
            sorted.push(u64::from(scattered(sum)) << 16 | top as u64);
            true
        });
        sorted.sort_unstable();
        let mut filter = vec![0; sorted.len().next_power_of_two().min(1 << 20)];
        for entry in &sorted {
            let low = (entry >> 16) as usize & (filter.len() * 64 - 1);
            filter[low / 64] |= 1 << (low % 64);
        }
        let top_bits = sorted.len().ilog2().clamp(1, 20);
        let mut start = vec![0; (1 << top_bits) + 1];
        for entry in &sorted {
            start[(entry >> (48 - top_bits)) as usize + 1] += 1;
        }
        for i in 1..start.len() {
            start[i] += start[i - 1];
        }
        Sums { sorted, start, top_bits, filter }
    }

    fn matches(&self, sum: u32) -> impl Iterator<Item = usize> {
        let sum = scattered(sum);
        let low = sum as usize & (self.filter.len() * 64 - 1);
        let range = if self.filter[low / 64] >> (low % 64) & 1 == 0 {
            0..0
        } else {
            let top = (sum >> (32 - self.top_bits)) as usize;
            self.start[top] as usize..self.start[top + 1] as usize
        };
        self.sorted[range].iter().filter(move |e| (*e >> 16) as u32 == sum).map(|e| (*e & 0xffff) as usize)
    }
}

/// One to one, so that sums of a narrow checksum spread too.
fn scattered(sum: u32) -> u32 {
    sum.wrapping_mul(0x9E37_79B1)
}

/// Calls `f(sum, highest)` for every way to add `count` syndromes from `from` on, while it returns true.
fn subsets(h: &[u32], count: usize, from: usize, top: usize, sum: u32, f: &mut impl FnMut(u32, usize) -> bool) -> bool {
    match count {
        0 => f(sum, top),
        1 => (from..h.len()).all(|i| f(sum ^ h[i], i)),
        _ => (from..h.len()).all(|i| subsets(h, count - 1, i + 1, i, sum ^ h[i], f)),
    }
}

fn choose(n: u64, k: u64) -> u64 {
    (0..k).fold(1, |c, i| c * (n - i) / (i + 1))
}

/// The number of undetected patterns of weight `k`, if there are none of a smaller weight.
fn count(h: &[u32], k: usize) -> u64 {
    let near = ((k - 1) / 2).min(3);
    let sums = Sums::with_bit_0(h, near);
    let mut found = 0;
    subsets(h, k - 1 - near, 1, 0, 0, &mut |sum, top| {
        found += sums.matches(sum).map(|near_top| (h.len() - top.max(near_top)) as u64).sum::<u64>();
        true
    });
    found / choose(k as u64 - 1, near as u64)
}

/// Sums tried for one weight by [`may_detect`]. Where patterns go unseen at all, there mostly are many, and a
/// few tries find one.
const TRIES: u64 = 40_000_000;

/// Whether a pattern of weight `k` that is not seen is found soon.
fn soon_misses(h: &[u32], k: usize) -> bool {
    let near = ((k - 1) / 2).min(2);
    let sums = Sums::with_bit_0(h, near);
    let (mut tries, mut found) = (0, false);
    subsets(h, k - 1 - near, 1, 0, 0, &mut |sum, _| {
        tries += 1;
        found = sums.matches(sum).next().is_some();
        tries < TRIES && !found
    });
    found
}

/// False if a pattern of fewer than `distance` bits is not seen; true says only that none was found soon, and
/// is sure up to distance 7. `even`: g has the factor x + 1, which sees all odd patterns.
pub(crate) fn may_detect(h: &[u32], distance: usize, even: bool) -> bool {
    (2..distance).filter(|k| !even || k % 2 == 0).all(|k| !soon_misses(h, k))
}

/// The lowest weight up to `limit` (at most 8) of a pattern that is not seen, and how many of them there are.
pub(crate) fn first_weight(h: &[u32], limit: usize) -> Option<(usize, u64)> {
    assert!(limit <= 8, "beyond 8 the dual code is the faster way");
    (2..=limit).map(|k| (k, count(h, k))).find(|(_, patterns)| *patterns > 0)
}

const ROWS: usize = 1 << 9;
const LANES: usize = 32;

/// Weights of the dual code: entry i is the number of words of weight i among the 2^`width`.
///
/// A word u has n - 2 weight(u) = sum over the bits i of (-1)^(u . h_i): the Walsh-Hadamard transform of the
/// syndromes' places. Nine bits of u are transformed at once, five more are the lanes of a vector.
pub(crate) fn dual_weights(h: &[u32], width: u32) -> Vec<u64> {
    assert!((14..=32).contains(&width) && h.len() < 4096);
    let n = h.len();
    let mut weights = vec![0u64; n + 1];
    let mut rows = vec![[0i16; LANES]; ROWS];
    for high in 0..1u32 << (width - 14) {
        rows.fill([0; LANES]);
        for s in h {
            let flipped = (s >> 14 & high).count_ones() & 1;
            let row = &mut rows[(s & 511) as usize];
            let signs = &SIGNS[(s >> 9 & 31) as usize | (flipped as usize) << 5];
            for lane in 0..LANES {
                row[lane] = row[lane].wrapping_add(signs[lane]);
            }
        }
        transform(&mut rows);
        let mut four = [[0u32; 4]; 8192];
        for row in &rows {
            for quad in row.chunks_exact(4) {
                for (j, v) in quad.iter().enumerate() {
                    let seen = &mut four[v.wrapping_add(4096) as usize & 8191][j];
                    *seen = seen.wrapping_add(1);
                }
            }
        }
        for (weight, total) in weights.iter_mut().enumerate() {
            *total += four[4096 + n - 2 * weight].iter().map(|c| u64::from(*c)).sum::<u64>();
        }
    }
    weights
}

/// Sign of (-1)^(lane . s) for five bits of s; the second half negated.
const SIGNS: [[i16; LANES]; 64] = {
    let mut signs = [[0; LANES]; 64];
    let mut s = 0;
    while s < 64 {
        let mut lane = 0;
        while lane < LANES {
            let odd = ((s & 31 & lane).count_ones() as usize + (s >> 5)) & 1;
            signs[s][lane] = 1 - 2 * odd as i16;
            lane += 1;
        }
        s += 1;
    }
    signs
};

fn transform(rows: &mut [[i16; LANES]]) {
    let mut half = 1;
    while half < rows.len() {
        for block in rows.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                for lane in 0..LANES {
                    (a[lane], b[lane]) = (a[lane].wrapping_add(b[lane]), a[lane].wrapping_sub(b[lane]));
                }
            }
        }
        half *= 2;
    }
}

/// MacWilliams' identity: weights of the code from those of its dual. A_j = 2^-w sum_i B_i K_j(i), with the Krawtchouk
/// polynomials K_j(i) by their recurrence (j+1) K_{j+1}(i) = (n - 2i) K_j(i) - (n - j + 1) K_{j-1}(i).
pub(crate) fn macwilliams(dual: &[u64], width: u32) -> Vec<BigInt> {
    let n = dual.len() - 1;
    let mut weights = vec![BigInt::ZERO; n + 1];
    for (i, words) in dual.iter().enumerate().filter(|(_, words)| **words > 0) {
        let (mut before, mut k) = (BigInt::ZERO, BigInt::from(1));
        for (j, weight) in weights.iter_mut().enumerate() {
            *weight += &k * *words;
            let next = (&k * (n as i64 - 2 * i as i64) - &before * (n as i64 - j as i64 + 1)) / (j as i64 + 1);
            before = std::mem::replace(&mut k, next);
        }
    }
    for weight in &mut weights {
        let scaled = std::mem::take(weight);
        *weight = &scaled >> width;
        assert_eq!(&*weight << width, scaled, "a weight distribution is integral");
    }
    weights
}
