// SPDX-License-Identifier: Apache-2.0
//! redis-server and redis-benchmark, as Debian has them.

use std::path::Path;

use anyhow::{Context, Result};
use fide_testbed::figures::Goal;
use rustix::process::Signal;

use super::{App, Bed, Over, Running, Server, output, port};

pub(super) const APP: App = App {
    name: "Redis",
    figures: &[
        ("redis_vs_tcp", "per second", Some(Goal::AtLeast(1.5))),
        ("redis_p50_vs_tcp", "ms", Some(Goal::AtMost(0.5))),
        ("redis_pipelined_vs_tcp", "per second", None),
        ("redis_of_one_vs_tcp", "per second", None),
    ],
    start,
};

/// Clients, commands in each pipeline, and requests of a round.
const LOADS: [(u32, u32, u64); 3] = [(50, 1, 200_000), (50, 16, 1_000_000), (1, 1, 50_000)];
/// A short round has so many times fewer.
const SHORTER: u64 = 10;

fn start(bed: &Bed, over: Over) -> Result<Running> {
    let port = port()?;
    let folder = bed.folder(&format!("redis-{port}"))?;
    let mut command = bed.command(over, None, Path::new("redis-server"));
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(&folder);
    let server = Server::start(command, port, &folder.join("log"), Signal::TERM)?;
    Ok((server, Box::new(move |bed, is_short| round(bed, over, port, is_short))))
}

fn round(bed: &Bed, over: Over, port: u16, is_short: bool) -> Result<Vec<f64>> {
    let mut values = Vec::new();
    for (clients, pipeline, requests) in LOADS {
        let requests = requests / if is_short { SHORTER } else { 1 };
        let mut command = bed.command(over, None, Path::new("redis-benchmark"));
        command.args(["-p", &port.to_string(), "-t", "get", "--csv"]);
        command.args(["-n", &requests.to_string(), "-c", &clients.to_string(), "-P", &pipeline.to_string()]);
        let text = output(command)?;
        let line = text.lines().rfind(|line| line.starts_with("\"GET\"")).with_context(|| text.clone())?;
        let columns: Vec<f64> =
            line.split(',').skip(1).filter_map(|column| column.trim_matches('"').parse().ok()).collect();
        // Requests per second; average, least, p50, p95, p99, greatest latency in ms.
        let [per_second, _, _, p50_ms, ..] = columns[..] else {
            anyhow::bail!("redis-benchmark's columns are not those of 7.0: {text}")
        };
        values.push(per_second);
        if (clients, pipeline) == (50, 1) {
            values.push(p50_ms);
        }
    }
    Ok(values)
}
