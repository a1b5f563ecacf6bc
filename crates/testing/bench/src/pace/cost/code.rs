// SPDX-License-Identifier: Apache-2.0
//! What the one coded packet of a block costs by exclusive or, as X-PACE makes it, beside the Reed-Solomon code that it has for
//! more of them.

use std::{hint::black_box, time::Instant};

use anyhow::{Context, Result};
use fide_pace::block::{BLOCK_MAX, Codec, coded_len};
use fide_testbed::figures::{Goal, Report};
use reed_solomon_simd::ReedSolomonEncoder;

use crate::found::figure;

/// Bytes of a symbol.
const LENS: [usize; 2] = [100, 1400];
/// Rounds of both in turn, of which the shortest counts, and blocks of each.
const ROUNDS: usize = 5;
const BLOCKS: usize = 100;
const BLOCKS_QUICK: usize = 5;

/// One size of block: ns for it by either code.
#[derive(Debug, Clone, Copy)]
struct Row {
    symbols: usize,
    len: usize,
    by_xor: f64,
    by_reed_solomon: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.by_xor / self.by_reed_solomon
    }
}

/// Adds the figure: the median of all blocks.
pub(super) fn measure(report: &mut Report, is_quick: bool) {
    let blocks = if is_quick { BLOCKS_QUICK } else { BLOCKS };
    let sizes = LENS.into_iter().flat_map(|len| (1..=BLOCK_MAX).map(move |symbols| (symbols, len)));
    let rows = sizes.map(|(symbols, len)| row(symbols, len, blocks)).collect::<Result<Vec<Row>>>();
    let rows = rows.map_err(|why| format!("{why:#}")).map(|mut rows| {
        rows.sort_by(|one, other| one.ratio().total_cmp(&other.ratio()));
        rows
    });
    let n = rows.as_ref().map_or(0, |rows| rows.len() * ROUNDS * blocks);
    let median = rows.as_ref().map(|rows| rows[rows.len() / 2].ratio()).map_err(Clone::clone);
    let found = figure("xor_vs_reed_solomon", "ratio", n, median).goal(Goal::AtMost(1.0));
    let said = rows.as_ref().map_or_else(|why| format!("NOT MEASURED: {why}"), |rows| words(rows));
    println!("cost      one coded packet, exclusive or beside Reed-Solomon: {said}");
    report.add(if rows.is_ok() { found.remark(said) } else { found });
}

/// The best and the worst block, and the longest ones. `rows`: by their ratios.
fn words(rows: &[Row]) -> String {
    let of = |row: &Row| {
        let Row { symbols, len, by_xor, by_reed_solomon } = row;
        let [by_xor, by_reed_solomon] = [by_xor, by_reed_solomon].map(|ns| ns / 1e3);
        format!("{symbols} of {len} bytes {:.2} ({by_xor:.2} us beside {by_reed_solomon:.2})", row.ratio())
    };
    let ends = rows.first().into_iter().chain(rows.last());
    let longest = rows.iter().filter(|row| row.symbols == BLOCK_MAX);
    format!(
        "from {}; the longest: {}",
        ends.map(of).collect::<Vec<_>>().join(" to "),
        longest.map(of).collect::<Vec<_>>().join(", ")
    )
}

fn row(symbols: usize, len: usize, blocks: usize) -> Result<Row> {
    #[allow(clippy::cast_possible_truncation, reason = "any bytes do")]
    let block: Vec<Vec<u8>> = (0..symbols).map(|at| (0..len).map(|byte| (at * 31 + byte) as u8).collect()).collect();
    let mut codec = Codec::default();
    let mut reed_solomon = ReedSolomonEncoder::new(symbols, 1, coded_len(len)).context("a Reed-Solomon encoder")?;
    let mut shard = Vec::new();
    let mut row = Row { symbols, len, by_xor: f64::INFINITY, by_reed_solomon: f64::INFINITY };
    for _ in 0..ROUNDS {
        let by_xor = each_ns(blocks, || {
            codec.encode(black_box(&block).iter().map(Vec::as_slice), 1, |_, coded| _ = black_box(coded))?;
            Ok(())
        })?;
        let by_reed_solomon = each_ns(blocks, || encode(&mut reed_solomon, &mut shard, black_box(&block)))?;
        row.by_xor = row.by_xor.min(by_xor);
        row.by_reed_solomon = row.by_reed_solomon.min(by_reed_solomon);
    }
    Ok(row)
}

/// As X-PACE does it for two coded packets and more, but for one.
fn encode(encoder: &mut ReedSolomonEncoder, shard: &mut Vec<u8>, block: &[Vec<u8>]) -> Result<()> {
    let size = coded_len(block.iter().map(Vec::len).max().unwrap_or(0));
    encoder.reset(block.len(), 1, size)?;
    for symbol in block {
        shard.clear();
        shard.extend_from_slice(&u16::try_from(symbol.len()).unwrap_or(u16::MAX).to_be_bytes());
        shard.extend_from_slice(symbol);
        shard.resize(size, 0);
        encoder.add_original_shard(&*shard)?;
    }
    encoder.encode()?.recovery_iter().for_each(|coded| _ = black_box(coded));
    Ok(())
}

fn each_ns(blocks: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    (0..blocks).try_for_each(|_| work())?;
    Ok(begun.elapsed().as_nanos() as f64 / blocks as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_codes_make_a_packet_of_each_block() {
        for (symbols, len) in [(1, 100), (BLOCK_MAX, 1400)] {
            let row = row(symbols, len, 1).expect("coded");
            assert!(row.by_xor > 0.0 && row.by_reed_solomon > 0.0, "{row:?}");
        }
    }
}
