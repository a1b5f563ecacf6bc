// SPDX-License-Identifier: Apache-2.0
//! Polynomials over GF(2), as bits: bit i is the coefficient of x^i, the top one included.

/// Product; the degrees must add up to less than 128.
pub(crate) fn mul(a: u128, b: u128) -> u128 {
    (0..128).filter(|i| b >> i & 1 == 1).fold(0, |sum, i| sum ^ (a << i))
}

pub(crate) fn degree(a: u128) -> u32 {
    127 - a.leading_zeros()
}

/// Remainder of `a` by `b`, which is not zero.
pub(crate) fn rem(mut a: u128, b: u128) -> u128 {
    while a != 0 && degree(a) >= degree(b) {
        a ^= b << (degree(a) - degree(b));
    }
    a
}

/// `x^i mod g` for i in 0..n: what a flipped bit i adds to the checksum. The top bit x^`width` of `poly` is implied.
pub(crate) fn syndromes(poly: u32, width: u32, n: usize) -> Vec<u32> {
    let mask = u32::MAX >> (32 - width);
    let next = |h: &u32| Some((h << 1 ^ if h >> (width - 1) & 1 == 1 { poly } else { 0 }) & mask);
    std::iter::successors(Some(1), next).take(n).collect()
}

/// The least e > 0 with x^e = 1 mod `g` (which has a constant term), if it is at most `limit`.
pub(crate) fn order(g: u128, limit: u32) -> Option<u32> {
    let mut power = 2;
    for e in 1..=limit {
        power = rem(power, g);
        if power == 1 {
            return Some(e);
        }
        power <<= 1;
    }
    None
}

/// Every irreducible polynomial of degree 1..=`max_degree` other than x, ascending.
pub(crate) fn irreducibles(max_degree: u32) -> Vec<u128> {
    let mut found: Vec<u128> = vec![];
    for g in (3u128..2 << max_degree).step_by(2) {
        if found.iter().take_while(|f| 2 * degree(**f) <= degree(g)).all(|f| rem(g, *f) != 0) {
            found.push(g);
        }
    }
    found
}

/// The reciprocal polynomial: the same code, read backwards.
pub(crate) fn reciprocal(g: u128) -> u128 {
    g.reverse_bits() >> g.leading_zeros()
}
