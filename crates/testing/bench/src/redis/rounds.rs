// SPDX-License-Identifier: Apache-2.0
//! Rounds of several sides in turns, because this machine is shared and its speed changes within a minute.

use std::time::Duration;

use fide_testbed::figures::{Figure, Samples, Statistic};

use super::{
    Args,
    cluster::Cluster,
    load::{Clients, Measured, redis_benchmark},
};

/// The warm-up of a side is a round that is shorter by this factor.
const WARM_UP_PART: u32 = 5;

/// One side of a comparison: measures a round, or (true) a short one to warm up.
pub(super) type Side<'a> = Box<dyn FnMut(bool) -> anyhow::Result<Measured> + 'a>;

/// Warms up every side, then measures rounds of all in turns. Each round begins with the next side, so that no
/// side always follows the same other one. Element `at` of each result is from round `at`.
pub(super) fn in_turns<const N: usize>(args: &Args, mut sides: [Side<'_>; N]) -> anyhow::Result<[Vec<Measured>; N]> {
    for side in &mut sides {
        side(true)?;
    }
    let mut measured = [const { Vec::new() }; N];
    for round in 0..args.rounds() {
        for at in (0..N).map(|turn| (round + turn) % N) {
            measured[at].push(sides[at](false)?);
        }
    }
    Ok(measured)
}

/// A test of redis-benchmark, with so many commands in each pipeline.
pub(super) fn benchmark<'a>(
    args: &'a Args,
    (cluster, host): (&'a Cluster, usize),
    (test, pipeline): (&'a str, u32),
) -> Side<'a> {
    Box::new(move |is_warm_up| {
        let requests = args.requests(pipeline) / if is_warm_up { u64::from(WARM_UP_PART) } else { 1 };
        let measured = redis_benchmark(cluster.bed.host(host), test, requests, pipeline);
        measured.map_err(|why| cluster.explain(&why))
    })
}

/// Clients of our own.
pub(super) fn clients<'a>(mut clients: Clients, length: Duration) -> Side<'a> {
    Box::new(move |is_warm_up| one_round(&mut clients, if is_warm_up { length / WARM_UP_PART } else { length }))
}

fn one_round(clients: &mut Clients, length: Duration) -> anyhow::Result<Measured> {
    let (per_second, samples) = clients.run(length)?;
    #[allow(clippy::cast_precision_loss, reason = "milliseconds for people")]
    let ms = |ns: u64| ns as f64 / 1e6;
    let [p50_ms, p99_ms] = [0.5, 0.99].map(|p| ms(samples.quantile(p)));
    Ok(Measured { per_second, p50_ms, p99_ms, max_ms: ms(samples.max()) })
}

/// The rate of one side beside that of another, which were measured in turns.
pub(super) fn rate_beside(name: &str, of: &[Measured], baseline: &str, base: &[Measured]) -> Figure {
    let pairs = of.iter().zip(base).map(|(of, base)| (of.per_second, base.per_second));
    rate(name, of).beside(baseline, &rate(baseline, base)).ratio_of_pairs(pairs)
}

/// The median of the rounds' median latencies, beside that of another side, which was measured in turns.
pub(super) fn latency_beside(name: &str, of: &[Measured], baseline: &str, base: &[Measured]) -> Figure {
    let p50 = |rounds: &[Measured]| {
        let mut samples = Samples::default();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds of a benchmark")]
        rounds.iter().for_each(|round| samples.add((round.p50_ms * 1e6) as u64));
        samples
    };
    let pairs = of.iter().zip(base).map(|(of, base)| (of.p50_ms, base.p50_ms));
    let figure = Figure::time(name, Statistic::P50, &p50(of)).against(baseline, Statistic::P50, &p50(base));
    figure.ratio_of_pairs(pairs).remark("median of the rounds' p50, on both sides; n is rounds")
}

/// The rates of some rounds.
fn rate(name: &str, rounds: &[Measured]) -> Figure {
    let mut rates: Vec<f64> = rounds.iter().map(|round| round.per_second).collect();
    rates.sort_by(f64::total_cmp);
    let worst = |of: fn(&Measured) -> f64| rounds.iter().map(of).fold(0.0, f64::max);
    let latency = format!(
        "latency, the longest of the rounds: p50 {} ms, p99 {} ms, max {} ms",
        worst(|round| round.p50_ms),
        worst(|round| round.p99_ms),
        worst(|round| round.max_ms)
    );
    Figure::rate(name, &rates).remark(latency).spread_of(rates)
}
