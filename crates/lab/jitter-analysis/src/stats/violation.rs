// SPDX-License-Identifier: Apache-2.0
//! X-Lane's probability-based metric (§6.3): how likely is a latency above `l` among the next `n` packets?
//!
//! `P1 <= s^2 / (l - avg)^2` with sample mean `avg` and variance `s^2`, and `Pn <= 1 - (1 - P1)^n`. It
//! assumes that latencies are independent and identically distributed, and that mean and variance are close
//! to their true values. It is a rough bound, used only as a metric: the smaller it is, the less prone to
//! outliers a run is.

use super::distribution::Distribution;
use serde::{Deserialize, Serialize};

/// Number of packets in X-Lane's table 2.
pub const TABLE_PACKETS: u64 = 100_000;
/// The limit in X-Lane's table 2, in 99th percentiles.
pub const TABLE_FACTOR: f64 = 10.0;

/// The metric at one limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// The latency that would violate, ns.
    pub limit_ns: f64,
    /// Number of packets considered.
    pub packets: u64,
    /// Bound for one packet.
    pub one: f64,
    /// Bound for at least one among all packets.
    pub any: f64,
}

/// The bound for a latency above `limit_ns` among the next `packets`. 1 (certain) if the limit is not above
/// the mean, where the metric is not defined.
pub fn violation(mean_ns: f64, variance: f64, limit_ns: f64, packets: u64) -> Violation {
    let over = limit_ns - mean_ns;
    let one = if over > 0.0 { (variance / (over * over)).min(1.0) } else { 1.0 };
    // 1 - (1 - one)^n, without losing small values to rounding.
    let any = if packets == 0 { 0.0 } else { -(packets as f64 * (-one).ln_1p()).exp_m1() };
    Violation { limit_ns, packets, one, any }
}

/// As in table 2 of X-Lane: above ten times the 99th percentile, over 100,000 packets. None without samples.
pub fn table_violation(latencies: &Distribution) -> Option<Violation> {
    let limit = TABLE_FACTOR * latencies.quantile(0.99)? as f64;
    Some(violation(latencies.mean(), latencies.variance(), limit, TABLE_PACKETS))
}
