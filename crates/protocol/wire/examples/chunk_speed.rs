// SPDX-License-Identifier: Apache-2.0
//! What chunks cost: `cargo run --release -p fide-wire --example chunk_speed`.
//!
//! Builds, seals, verifies and reads full packets; prints the median of several rounds per packet, and per chunk.

use fide_wire::{ChunkBuilder, ChunkPacket, Key, PAYLOAD_MAX, Scheme, chunk, verify};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 31;
const PACKETS_PER_ROUND: u64 = 2_000;

/// Median over the rounds, nanoseconds per call.
fn per_call_ns(mut f: impl FnMut(u64)) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS as u64)
        .map(|round| {
            let start = Instant::now();
            (0..PACKETS_PER_ROUND).for_each(|i| f(round * PACKETS_PER_ROUND + i));
            start.elapsed().as_nanos() as f64 / PACKETS_PER_ROUND as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() {
    let key = Key([7; 16]);
    println!("| scheme | chunks | build ns | seal ns | verify tag ns | read ns | read ns/chunk |");
    for scheme in Scheme::ALL {
        let data = [0x5a; 30];
        let mut buf = [0u8; PAYLOAD_MAX];
        let build = |buf: &mut [u8], seq: u64| {
            let Ok(mut b) = ChunkBuilder::new(buf, scheme, 1, 1, seq) else { return 0 };
            while b.push(9, &data[..scheme.data_max()]).is_ok() {}
            b.finish()
        };
        let build_ns = per_call_ns(|seq| {
            black_box(build(&mut buf, seq));
        });
        let len = build(&mut buf, 1);
        let seal_ns = per_call_ns(|seq| chunk::seal(&mut buf[..len], seq as u8 & 1, &key));
        let verify_ns = per_call_ns(|_| assert!(verify(black_box(&buf[..len]), &key.into()).is_ok()));
        let read_ns = per_call_ns(|_| {
            let good = ChunkPacket::new(black_box(&buf[..len])).map(|p| p.chunks().filter(Result::is_ok).count());
            assert_eq!(good, Ok(scheme.chunks_max()));
        });
        let per_chunk = read_ns / scheme.chunks_max() as f64;
        println!(
            "| {scheme:?} | {} | {build_ns:.0} | {seal_ns:.0} | {verify_ns:.0} | {read_ns:.0} | {per_chunk:.1} |",
            scheme.chunks_max()
        );
    }
}
