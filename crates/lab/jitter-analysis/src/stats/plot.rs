// SPDX-License-Identifier: Apache-2.0
//! Fewer points for a plot, without losing an outlier.

use serde::{Deserialize, Serialize};

/// A point of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Packet number.
    pub id: u64,
    /// Time, ns.
    pub ns: i64,
}

/// At most `2 * buckets` of the points, in their order: the lowest and the highest of each bucket of
/// neighbours.
pub fn thin(points: impl ExactSizeIterator<Item = Point>, buckets: usize) -> Vec<Point> {
    let n = points.len();
    if n <= 2 * buckets {
        return points.collect();
    }
    let mut out = Vec::with_capacity(2 * buckets);
    let mut bucket: Option<(usize, Point, Point)> = None;
    let close = |low: Point, high: Point, out: &mut Vec<Point>| {
        out.push(if low.id <= high.id { low } else { high });
        if low != high {
            out.push(if low.id <= high.id { high } else { low });
        }
    };
    for (i, p) in points.enumerate() {
        let number = (i as u128 * buckets as u128 / n as u128) as usize;
        bucket = match bucket {
            Some((b, low, high)) if b == number => {
                Some((b, if p.ns < low.ns { p } else { low }, if p.ns > high.ns { p } else { high }))
            }
            full => {
                if let Some((_, low, high)) = full {
                    close(low, high, &mut out);
                }
                Some((number, p, p))
            }
        };
    }
    if let Some((_, low, high)) = bucket {
        close(low, high, &mut out);
    }
    out
}
