// SPDX-License-Identifier: Apache-2.0
//! What it costs a reader to ask for its lease: `cargo run --release -p fide-shm --example lease_cost`.

use fide_sys::clock::{Clocks, Lease, mono_ns, tsc};
use std::hint::black_box;

const ROUNDS: usize = 200;
const CALLS: u32 = 10_000;

fn measure(what: &str, mut call: impl FnMut()) {
    let mut ns: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = mono_ns();
            (0..CALLS).for_each(|_| call());
            (mono_ns() - start) as f64 / f64::from(CALLS)
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!(
        "{what:44} p50 {:6.1} ns  p99 {:6.1} ns  max {:6.1} ns",
        ns[ROUNDS / 2],
        ns[ROUNDS * 99 / 100],
        ns[ROUNDS - 1]
    );
}

fn main() {
    let now = Clocks::read(true);
    let lease = Lease { until_raw_ns: u64::MAX - 1, asleep_ns: now.asleep_ns(), ..Lease::default() };
    let witnessed = Lease { tsc_from: 1, tsc_until: u64::MAX, ..lease };
    println!("{ROUNDS} means of {CALLS} calls each");
    measure("CLOCK_MONOTONIC alone, as before version 2", || {
        black_box(mono_ns() > black_box(lease).until_raw_ns);
    });
    measure("lease", || {
        black_box(black_box(lease).left_now_ns());
    });
    measure("lease, the processor's counter a witness", || {
        black_box(black_box(witnessed).left_now_ns());
    });
    measure("the counter alone", || {
        black_box(tsc());
    });
}
