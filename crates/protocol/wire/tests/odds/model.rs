// SPDX-License-Identifier: Apache-2.0
//! From weights to the mean time until something damaged is taken for good.

use num_bigint::BigInt;

const SECONDS_PER_YEAR: f64 = 365.25 * 86_400.0;
/// UDP and IPv4 headers, Ethernet header and FCS; then preamble and the gap between frames.
const FRAME_OVERHEAD: usize = 28 + 18;
const GAP: usize = 20;
/// Bits of an Ethernet frame of MTU 1500, its FCS included.
pub(crate) const ETHERNET_BITS: usize = 8 * 1518;

/// Packets of this UDP payload per second, back to back at 10 Gbit/s.
pub(crate) fn line_rate(payload: usize) -> f64 {
    1e10 / (8 * (payload + FRAME_OVERHEAD + GAP)) as f64
}

/// Independent bit errors: sum over j of A_j p^j (1-p)^(n-j), j > 0.
pub(crate) fn undetected(weights: &[BigInt], p: f64) -> f64 {
    let n = weights.len() as i32 - 1;
    let patterns = |w: &BigInt| w.to_string().parse::<f64>().unwrap_or(f64::NAN);
    (1..=n).map(|j| patterns(&weights[j as usize]) * p.powi(j) * (1.0 - p).powi(n - j)).sum()
}

/// Any damage leaves a random checksum: P(damaged) 2^-width.
pub(crate) fn random_residue(bits: usize, width: u32, p: f64) -> f64 {
    -(bits as f64 * (-p).ln_1p()).exp_m1() * 0.5f64.powi(width as i32)
}

/// 64b/66b: the receiver's descrambler 1 + x^39 + x^58 repeats each line error 39 and 58 bits later. A code
/// of distance 7 or more sees whatever two of them do; three or more within reach of the n bits have at most
/// these odds.
pub(crate) fn scrambled_bound(bits: usize, p: f64) -> f64 {
    let n = (bits + 58) as f64;
    n * (n - 1.0) * (n - 2.0) / 6.0 * p.powi(3)
}

/// Mean time between events with odds `p` each, at `rate` per second.
pub(crate) fn years(p: f64, rate: f64) -> f64 {
    1.0 / (p * rate * SECONDS_PER_YEAR)
}
