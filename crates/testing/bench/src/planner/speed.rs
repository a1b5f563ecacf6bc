// SPDX-License-Identifier: Apache-2.0
//! How long planning takes, on one core.

use crate::{Args, spread};
use anyhow::Context;
use fide_planner::topology::{CableSpec, FatTree};
use fide_planner::{Limits, Planner, Request};
use fide_testbed::figures::{Goal, Report};
use plotters::prelude::*;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::time::Instant;

/// Members in FiDe's clusters: a sender and eight receivers.
const MEMBERS: usize = 9;
const REQUESTS: usize = 200;
/// Requests and recoveries timed after them.
const MORE: usize = 100;

fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

fn fat_tree(k: u64) -> Planner {
    let topology = FatTree { k, homing: 2 }.build(&CableSpec::default()).expect("k is even");
    Planner::new(topology, Limits::default()).expect("the defaults are right")
}

fn request(random: &mut ChaCha8Rng, hosts: &[String], number: usize) -> Request {
    let chosen: Vec<String> = hosts.sample(random, MEMBERS).cloned().collect();
    Request {
        name: format!("r{number}"),
        sender: chosen[0].clone(),
        receivers: chosen[1..].to_vec(),
        size_max_bytes: 1472,
        period_min_ns: 100_000,
        priority: u8::from(random.random_range(0..4) == 0),
        redundancy: 2,
        latency_max_ns: None,
    }
}

fn hosts(planner: &Planner) -> Vec<String> {
    let topology = planner.topology();
    topology.hosts().map(|host| topology.node(host).name.clone()).collect()
}

pub(crate) fn run(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(args.seed);
    eprintln!("a fat tree of k = 16, {REQUESTS} requests, then {MORE} more and {MORE} recoveries");
    let mut planner = fat_tree(16);
    let all = hosts(&planner);
    let start = Instant::now();
    let (mut held, mut refused) = (0, 0_u32);
    for number in 0..REQUESTS {
        match planner.request(request(&mut random, &all, number)) {
            Ok(_) => held += 1,
            Err(_) => refused += 1,
        }
    }
    let took = seconds(start);
    let remark = format!("{held} held, {refused} refused");
    report.add(spread("plan_k16_200", "s", "total", vec![took], Goal::AtMost(0.1)).remark(remark));

    let mut times = Vec::new();
    let mut replaced = 0;
    for number in 0..MORE {
        let asked = request(&mut random, &all, REQUESTS + number);
        let start = Instant::now();
        if let Ok((id, _)) = planner.request(asked) {
            times.push(seconds(start) * 1e3);
            planner.release(id).context("it was held")?;
        }
        // A cable between switches fails, and the first tree over it is moved.
        let allocations: Vec<_> = planner.allocations().map(|(id, _)| id).collect();
        let id = allocations[random.random_range(0..allocations.len())];
        let tree = random.random_range(0..2);
        let topology = planner.topology();
        let links = planner.allocation(id).expect("it is held").trees[tree].links();
        let between: Vec<_> = links
            .filter(|link| !topology.is_host(topology.from(*link)) && !topology.is_host(topology.to(*link)))
            .collect();
        let Some(link) = between.choose(&mut random) else { continue };
        let cable = link.cable();
        planner.set_cable(cable, false);
        let start = Instant::now();
        let done = planner.replace(id, tree, &BTreeSet::new());
        times.push(seconds(start) * 1e3);
        replaced += u32::from(done.is_ok());
        planner.set_cable(cable, true);
    }
    let remark = format!("{} requests and recoveries, {replaced} trees replaced", times.len());
    report.add(spread("replan_k16", "ms", "p99", times, Goal::AtMost(5.0)).remark(remark));

    eprintln!("a fat tree of k = 48");
    let mut planner = fat_tree(48);
    let all = hosts(&planner);
    let mut times = Vec::new();
    for number in 0..if args.quick { 3 } else { 30 } {
        let asked = request(&mut random, &all, number);
        let start = Instant::now();
        planner.request(asked).context("a request alone in a fat tree of k = 48")?;
        times.push(seconds(start));
    }
    report.add(spread("plan_k48_1", "s", "max", times, Goal::AtMost(1.0)));
    growth(args, &mut random)
}

/// Time of a request by the size of the network, empty and with a fifth as many requests as hosts.
fn growth(args: &Args, random: &mut ChaCha8Rng) -> anyhow::Result<()> {
    let sizes: &[u64] = if args.quick { &[4, 8] } else { &[4, 8, 12, 16, 24, 32, 40, 48] };
    let (mut empty, mut loaded) = (Vec::new(), Vec::new());
    for k in sizes {
        let mut planner = fat_tree(*k);
        let all = hosts(&planner);
        let count = all.len();
        let timed = |planner: &mut Planner, random: &mut ChaCha8Rng| {
            let asked = request(random, &all, 0);
            let start = Instant::now();
            let held = planner.request(asked);
            (seconds(start) * 1e3, held.is_ok())
        };
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        #[allow(clippy::cast_precision_loss, reason = "at most 27,648")]
        let x = count as f64;
        let mut first = Vec::new();
        for _ in 0..5 {
            let asked = request(random, &all, 0);
            let start = Instant::now();
            let (id, _) = planner.request(asked).context("the first request")?;
            first.push(seconds(start) * 1e3);
            planner.release(id)?;
        }
        empty.push((x, median(first)));
        // The largest networks take long to fill; up to a thousand requests show how the time grows.
        for _ in 0..(count / 5).min(1000) {
            timed(&mut planner, random);
        }
        let last: Vec<f64> = (0..9).map(|_| timed(&mut planner, random).0).collect();
        loaded.push((x, median(last)));
        eprintln!(
            "k = {k}: {count} hosts, {:.2} ms empty, {:.2} ms loaded",
            empty.last().map_or(0.0, |p| p.1),
            loaded.last().map_or(0.0, |p| p.1)
        );
    }
    let dir = std::env::var_os("FIDE_BENCH_DIR").map_or_else(|| "target/bench".into(), std::path::PathBuf::from);
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("planner-growth.svg");
    plot(&path, &empty, &loaded).map_err(|error| anyhow::anyhow!("drawing {}: {error}", path.display()))?;
    println!("drawn to {}", path.display());
    Ok(())
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn plot(path: &std::path::Path, empty: &[(f64, f64)], loaded: &[(f64, f64)]) -> Drawn {
    let root = SVGBackend::new(path, (800, 500)).into_drawing_area();
    root.fill(&WHITE)?;
    let most = loaded.iter().chain(empty).map(|point| point.1).fold(0.1, f64::max) * 1.5;
    let mut chart = ChartBuilder::on(&root)
        .caption("Time to plan one request (9 members, two trees) in a fat tree", ("sans-serif", 18))
        .margin(15)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((10.0..40_000.0).log_scale(), (0.01..most).log_scale())?;
    chart.configure_mesh().x_desc("hosts").y_desc("ms, median").draw()?;
    for (points, colour, name) in
        [(empty, BLUE, "no other requests"), (loaded, RED, "with a request for every fifth host, 1000 at most")]
    {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), &colour).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()?;
    root.present()?;
    Ok(())
}
