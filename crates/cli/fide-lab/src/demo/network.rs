// SPDX-License-Identifier: Apache-2.0
//! `fide-lab demo-network`: a network of switches whose trees are planned, installed and repaired by a
//! controller, while every cable and every switch is cut in turn.

mod cuts;
mod drawn;
mod plane;
mod site;

use std::{path::PathBuf, process::ExitCode, time::Instant};

use anyhow::Context;
use fide_testbed::{
    CpuLoad, LOAD_MAX_NS, MAX_FLOOD_PACKETS,
    fabric::{FabricSpec, LinkFlood, LinkFloodSpec, ThreeTier},
    figures::{Figure, Goal, Report, Statistic},
    sys::usable_cores,
};

use super::{interrupted, make_out, say};
use cuts::{Cuts, Outcome};
use fide_cli::exit::{Done, Failure, UNHEALTHY, UNSUPPORTED};
use fide_cli::say::tell;
use site::{RATE_MBIT, Site};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Use edge, aggregation and core switches instead of leaves and spines
    #[arg(long)]
    three_tier: bool,
    /// Use Open vSwitch instead of bridges
    #[arg(long)]
    ovs: bool,
    /// Run without best-effort traffic and without work on the cores
    #[arg(long)]
    idle: bool,
    /// How many times everything is cut
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Directory for the drawings and logs
    #[arg(long, value_name = "DIR", default_value = "target/demo-network")]
    out: PathBuf,
    /// Print every figure as JSON on stdout, and nothing else there
    #[arg(long)]
    json: bool,
}

/// More than a link carries.
const FLOOD_MBIT: u32 = RATE_MBIT * 6 / 5;

/// `Nice=` of the units of agent and controller.
const SERVICE_NICE: i32 = -10;

fn spec(arguments: &Arguments) -> FabricSpec {
    let spec = if arguments.three_tier {
        FabricSpec::three_tier(ThreeTier { hosts: 4, pods: 2, edge_pairs: 1, aggregation: 3, cores: 3 })
    } else {
        FabricSpec::two_tier(4, 2, 3)
    };
    let spec = spec.managed().limited(RATE_MBIT);
    if arguments.ovs { spec.on_ovs() } else { spec }
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    make_out(&arguments.out)?;
    fide_testbed::supported().map_err(|error| Failure::new(UNSUPPORTED, anyhow::Error::from(error)))?;
    ctrlc::set_handler(interrupted).context("waiting for an interrupt")?;
    let begun = Instant::now();
    let spec = spec(arguments);
    say::line(&format!(
        "{} hosts, each on two switches, {} switches ({}), {} cables of {RATE_MBIT} Mbit/s, in network namespaces.\n\
         A controller plans two trees for the heartbeats of each host that share no switch, and installs them.\n\
         Nothing outside these namespaces is touched, and all of it is removed at the end.",
        spec.hosts,
        spec.switches.len(),
        if arguments.ovs { "Open vSwitch" } else { "bridges" },
        spec.links.len(),
    ));
    // The priority that the units in packaging/ give them. Threads and processes started from here on inherit
    // it.
    let own = rustix::process::getpriority_process(None).context("reading the priority")?;
    rustix::process::setpriority_process(None, SERVICE_NICE)
        .context("raising the priority of agents and controller")?;
    let mut site = Site::build(spec)?;
    rustix::process::setpriority_process(None, own).context("lowering the priority")?;
    say::line(&format!("trees are in use after {:.1} s", begun.elapsed().as_secs_f64()));
    // The controller's store waits for this disk, and it should not have to wait for writes that a build left
    // behind.
    rustix::fs::sync();
    let mut cuts = Cuts::new(&arguments.out);
    let mut load = None;
    for round in 0..arguments.rounds {
        if !arguments.idle {
            // A load is bounded in time, so each round has its own.
            drop(load.take());
            load = Some(Load::start(&site)?);
        }
        if round == 0 && load.is_some() {
            say::line(&format!("{FLOOD_MBIT} Mbit/s of best effort on every cable, and a busy thread on every core"));
        }
        cuts.everything(&mut site, round == 0)?;
    }
    let outcome = cuts.done(&mut site)?;
    site.keep_logs(&arguments.out)?;
    drop(load);
    finish(arguments, &outcome)
}

struct Load {
    _flood: LinkFlood,
    _hogs: CpuLoad,
}

impl Load {
    fn start(site: &Site) -> anyhow::Result<Self> {
        let spec = LinkFloodSpec { rate_mbit: FLOOD_MBIT, duration_ns: LOAD_MAX_NS, max_packets: MAX_FLOOD_PACKETS };
        let flood = site.fabric.flood_links(spec).context("flooding the links")?;
        let hogs = CpuLoad::start(&usable_cores(), 1, LOAD_MAX_NS).context("loading the cores")?;
        Ok(Self { _flood: flood, _hogs: hogs })
    }
}

fn finish(arguments: &Arguments, outcome: &Outcome) -> Done {
    let mut report = Report::new(if arguments.ovs { "network-ovs" } else { "network" });
    let restored = Figure::time("redundancy_restored", Statistic::P99, &outcome.restored);
    // The goal is for bridges: with Open vSwitch, each change starts a program.
    let restored = if arguments.ovs { restored } else { restored.goal(Goal::AtMost(100_000.0)) };
    report.add(restored.remark(format!(
        "{} cuts with another path, {} without one; from the cut until all hear every host over both trees",
        outcome.restored.n(),
        outcome.without
    )));
    report.add(
        Figure::count("false_verdicts", outcome.false_verdicts.len() as u64, outcome.cuts).goal(Goal::AtMost(0.0)),
    );
    report.add(Figure::count("not_restored", outcome.not_restored.len() as u64, outcome.cuts).goal(Goal::AtMost(0.0)));
    report.add(Figure::count("host_cut_off_not_told", u64::from(!outcome.cut_off_notified), 1).goal(Goal::AtMost(0.0)));
    if arguments.json {
        tell!("{}", serde_json::to_string_pretty(&report).context("writing JSON")?);
    } else {
        tell!("\n{report}");
        for line in outcome.false_verdicts.iter().chain(&outcome.not_restored) {
            tell!("{line}");
        }
        tell!("drawings and logs in {}", arguments.out.display());
    }
    report.write().context("writing the figures")?;
    let bad = !outcome.false_verdicts.is_empty() || !outcome.not_restored.is_empty() || !outcome.cut_off_notified;
    Ok(if bad { ExitCode::from(UNHEALTHY) } else { ExitCode::SUCCESS })
}
