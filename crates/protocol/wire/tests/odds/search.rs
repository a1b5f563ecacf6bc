// SPDX-License-Identifier: Apache-2.0
//! Candidates for a CRC of 32 bits over n bits.
//!
//! All 2^31 polynomials are too many to judge (Koopman took three months of fifty machines for one length),
//! so two families are searched: the generators of cyclic codes, among which the BCH codes are, to the last
//! one; and a random sample.

use crate::gf2::{degree, irreducibles, mul, order, reciprocal};
use crate::weights::may_detect;
use crate::{gf2, weights};
use std::collections::BTreeSet;

/// Orders up to this are searched: a code of length n is the shortened one of a cyclic code of length N >= n.
const ORDER_MAX: u32 = 520;
/// A factor of higher degree leaves no room for a second one of the same order.
const FACTOR_MAX: u32 = 16;

/// Of the candidates at the greatest distance, so many are ranked by their exact weights, evenly spread over all.
pub(crate) fn ranked_max(width: u32) -> usize {
    if width <= 16 { usize::MAX } else { 40 }
}

/// Every g of degree `width` that divides (x^N - 1) (x + 1)^2 for an odd N in `n..=ORDER_MAX` and has order >= `n`;
/// of a polynomial and its reciprocal, the smaller one.
pub(crate) fn cyclic(width: u32, n: u32) -> Vec<u128> {
    let factors: Vec<(u128, u32)> =
        irreducibles(FACTOR_MAX).into_iter().filter_map(|g| Some((g, order(g, ORDER_MAX)?))).collect();
    let mut found = BTreeSet::new();
    for length in (n | 1..=ORDER_MAX).step_by(2) {
        let fit: Vec<u128> = factors.iter().filter(|(g, e)| *g != 3 && length % e == 0).map(|(g, _)| *g).collect();
        for ones in 0..=3 {
            let even = (0..ones).fold(1, |g, _| mul(g, 3));
            products(&fit, width - ones, even, &mut |g| {
                found.insert(g.min(reciprocal(g)));
            });
        }
    }
    found.into_iter().filter(|g| order(*g, n - 1).is_none()).collect()
}

/// Calls `f` with `so_far` times each product of distinct `factors` (ascending) that has exactly `degree_left`.
fn products(factors: &[u128], degree_left: u32, so_far: u128, f: &mut impl FnMut(u128)) {
    if degree_left == 0 {
        return f(so_far);
    }
    for (i, g) in factors.iter().enumerate() {
        if degree(*g) > degree_left {
            break;
        }
        products(&factors[i + 1..], degree_left - degree(*g), mul(so_far, *g), f);
    }
}

/// `count` polynomials of degree `width`, half of them with the factor x + 1; always the same ones. All, if
/// they are fewer.
///
/// Drawn by hand (xorshift) and not by a library, so that the figures in `docs/internals/chunks.md` stay
/// those of these polynomials.
pub(crate) fn sample(width: u32, count: usize) -> Vec<u128> {
    if 1 << (width - 1) <= count {
        return (1 << width | 1..2 << width).step_by(2).filter(|g| *g <= reciprocal(*g)).collect();
    }
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u128::from(state >> (64 - width) | 1)
    };
    (0..count)
        .map(|i| if i % 2 == 0 { 1 << width | next() } else { mul(3, 1 << (width - 1) | next() >> 1 | 1) })
        .collect()
}

/// What is left of `candidates` at the greatest distance that any of them seems to have (`most` and more look
/// alike), and that distance.
pub(crate) fn best(candidates: &[u128], width: u32, n: usize, most: usize) -> (usize, Vec<u128>) {
    let (mut distance, mut left) = (4, vec![]);
    for &g in candidates {
        let h = gf2::syndromes(g as u32, width, n);
        let even = g.count_ones() % 2 == 0;
        if !may_detect(&h, distance, even) {
            continue;
        }
        while distance < most && may_detect(&h, distance + 1, even) {
            distance += 1;
            left.clear();
        }
        left.push(g);
    }
    (distance, left)
}

/// Exact distance and number of undetected patterns at it.
pub(crate) fn exact(g: u128, width: u32, n: usize) -> (usize, num_bigint::BigInt) {
    let dual = weights::dual_weights(&gf2::syndromes(g as u32, width, n), width);
    let weights = weights::macwilliams(&dual, width);
    let distance = (1..).find(|k| weights[*k] > num_bigint::BigInt::ZERO).unwrap_or(0);
    (distance, weights[distance].clone())
}
