// SPDX-License-Identifier: Apache-2.0
//! `sim`: clusters by seed. See docs/internals/simulator.md.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use anyhow::{Context, bail};
use clap::Parser;
use fide_sim::cluster::{
    Failure,
    plan::{Features, Plan, WALLS},
    run,
    shrink::shrink,
    world::Stats,
};
use fide_types::planted::Planted;
use serde_json::json;

/// Runs whole clusters in a seeded world: the real detector and the real agreement under drift, pauses, loss,
/// cuts and crashes.
#[derive(Parser)]
struct Arguments {
    /// How many seeds
    #[arg(long, value_name = "N", conflicts_with = "seed")]
    seeds: Option<u64>,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// One seed, with all that happens
    #[arg(value_name = "SEED")]
    seed: Option<u64>,
    /// Plant a fault that has to be found; `all`: each in turn
    #[arg(long, value_name = "FAULT")]
    planted: Option<String>,
    /// Which features runs may have, separated by commas, or `none`; by default all
    #[arg(long, value_name = "FEATURES", value_delimiter = ',')]
    only: Vec<String>,
    /// With `--planted all`: first try the seed that found a fault before
    /// (`crates/testing/sim/planted_seeds.txt`), and search only if it finds the fault no more. With
    /// FIDE_REWRITE=1 in the environment, results are written to that file
    #[arg(long)]
    known: bool,
    /// Only seeds whose group is durable; the others are passed over
    #[arg(long)]
    durable: bool,
    /// With one seed: leave out what the failure does not need
    #[arg(long)]
    shrink: bool,
    /// Lines of a failure's trace that are shown
    #[arg(long, value_name = "N", default_value_t = 60)]
    lines: usize,
    /// Go on after a failure, and name each seed that fails
    #[arg(long)]
    list: bool,
    /// Threads; by default one for each core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Figures as JSON on stdout
    #[arg(long)]
    json: bool,
}

const SEEDS: u64 = 1000;
/// Found by the exploration of the agreement, or by a test of the group or of the member: in a simulated
/// cluster, several things would have to happen within a millisecond.
const ORDERS_ONLY: &[Planted] = &[
    Planted::LetsInTheDead,
    Planted::AnswersForOthers,
    Planted::AnswersForGaps,
    Planted::FoundsBesideAState,
    Planted::BelievesOfTheMet,
    Planted::AdoptsLower,
    Planted::TakesOfTheDead,
    Planted::LevelsWithOld,
    Planted::KeepsNext,
    Planted::WaitsForHosts,
    Planted::TakesPacketsFirst,
    Planted::AsksTheNewAgent,
    Planted::AwaitsWelcome,
    Planted::AwaitsTheLeaving,
    Planted::ForgetsWhoDied,
    Planted::HeedsTheOutlived,
    Planted::OffersWhenAsked,
    Planted::NeverSlows,
    Planted::OffersTakeAll,
    Planted::KeepsNothing,
    Planted::ForgetsItsView,
    Planted::IgnoresBallots,
    Planted::MissesTheFormer,
    Planted::RemovesTheLast,
    Planted::RemovedKeepsNothing,
    Planted::RemovedEndsEarly,
    Planted::TakenOutInSilence,
    Planted::WaitsForTheRecorded,
    Planted::TakesTheReturned,
    Planted::TakesOutSeveral,
    Planted::RaisesItsBallot,
    Planted::TakesEachForFirst,
    Planted::AsksOnlyTheKnown,
    Planted::EntersByWelcome,
    Planted::OverlooksTheUnsure,
    Planted::AnswersUnstored,
    Planted::OverlooksStored,
    Planted::StoresUnleased,
];
/// Found by the detector's own world.
const DETECTORS_ONLY: &[Planted] = &[
    Planted::EndsFormers,
    Planted::DoubtsOnlyTheHeard,
    Planted::BarsTheCrashed,
    Planted::NamesSome,
    Planted::TakesRecordings,
    Planted::FreesSuperseded,
    Planted::FindsStallsLate,
    Planted::FoundsAfterAsking,
    Planted::TrustsLateHeartbeats,
    Planted::DoubtsLate,
    Planted::TakesAcksAccepted,
    Planted::MissesItself,
    Planted::HeedsTheKnownOnly,
    Planted::HeedsRecordings,
    Planted::ExcludedOnly,
    Planted::HeedsTheOld,
    Planted::CountsFromNow,
    Planted::TakesBehindForAhead,
    Planted::PassesThroughFormers,
    Planted::TakesNamingForHearing,
    Planted::TakesNothingForANumber,
    Planted::TakesFormerAcks,
    Planted::ForgetsLonger,
    Planted::EndsWhileLeaving,
];

fn main() -> ExitCode {
    // A panic of the code under test is reported as a violation, with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    match start(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("sim: {why:#}");
            ExitCode::from(2)
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<bool> {
    let planted = match arguments.planted.as_deref() {
        None => None,
        Some(_) if !cfg!(feature = "planted") => bail!("faults are planted in a build with --features planted only"),
        Some("all") => return find_all(arguments),
        Some(name) => {
            let names = || Planted::ALL.iter().map(|fault| format!("{fault:?}")).collect::<Vec<_>>().join(", ");
            let fault = Planted::ALL.iter().find(|fault| format!("{fault:?}") == name);
            Some(*fault.with_context(|| format!("no fault is called {name}; there are: all, {}", names()))?)
        }
    };
    plant(planted);
    match arguments.seed {
        Some(seed) => Ok(replay(&Plan::with(seed, features(arguments)?), arguments)),
        None => sweep(arguments, planted),
    }
}

/// The features that plans may have.
fn features(arguments: &Arguments) -> anyhow::Result<Features> {
    match &arguments.only[..] {
        [] => Ok(Features::ALL),
        [none] if none == "none" => Ok(Features::NONE),
        some => some.iter().try_fold(Features::NONE, |features, wanted| {
            let known = Features::NAMES.iter().find(|(name, _)| name == wanted);
            let names = || Features::NAMES.map(|(name, _)| name).join(", ");
            let (_, feature) = known
                .with_context(|| format!("{wanted} is nothing a run can have; there are: {}, or none", names()))?;
            Ok(features.and(*feature))
        }),
    }
}

#[cfg(feature = "planted")]
fn plant(fault: Option<Planted>) {
    fide_types::planted::arm(fault);
}

#[cfg(not(feature = "planted"))]
fn plant(_: Option<Planted>) {}

/// Runs all seeds. Returns their counts together, and the lowest failing seed.
fn all(
    arguments: &Arguments,
    from: u64,
    count: u64,
    progress: bool,
) -> anyhow::Result<(Stats, Option<(u64, Failure)>)> {
    let (threads, features) = (threads(arguments), features(arguments)?);
    let (next, failed) = (AtomicU64::new(from), AtomicU64::new(u64::MAX));
    let begun = Instant::now();
    let worker = |first: bool| {
        let (mut sum, mut lowest) = (Stats::default(), None::<(u64, Failure)>);
        let mut said = Instant::now();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            // Seeds below a failure still run, because the lowest one is reported.
            let first_failed = if arguments.list { u64::MAX } else { failed.load(Relaxed) };
            if seed >= (from + count).min(first_failed) {
                return (sum, lowest);
            }
            let plan = Plan::with(seed, features);
            if arguments.durable && plan.durable.is_none() {
                continue;
            }
            match run(&plan, None) {
                Ok(stats) => sum.add(&stats),
                Err(failure) => {
                    failed.fetch_min(seed, Relaxed);
                    if arguments.list {
                        println!("{seed}: {} ({})", failure.violation, moment(&failure));
                    }
                    lowest = [lowest, Some((seed, failure))].into_iter().flatten().min_by_key(|(seed, _)| *seed);
                }
            }
            if first && progress && said.elapsed().as_secs() >= 5 {
                said = Instant::now();
                eprintln!("{} of {count} seeds after {:.0} s", seed - from, begun.elapsed().as_secs_f64());
            }
        }
    };
    let parts: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|at| scope.spawn(move || worker(at == 0))).collect();
        started.into_iter().map(|thread| thread.join().expect("a worker")).collect()
    });
    let mut sum = Stats::default();
    let mut lowest = None::<(u64, Failure)>;
    for (stats, failure) in parts {
        sum.add(&stats);
        lowest = [lowest, failure].into_iter().flatten().min_by_key(|(seed, _)| *seed);
    }
    Ok((sum, lowest))
}

fn threads(arguments: &Arguments) -> usize {
    arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
}

fn sweep(arguments: &Arguments, planted: Option<Planted>) -> anyhow::Result<bool> {
    let (count, threads) = (arguments.seeds.unwrap_or(SEEDS), threads(arguments));
    let begun = Instant::now();
    let (sum, failed) = all(arguments, arguments.from, count, true)?;
    let took = begun.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let speed = sum.deliveries as f64 / took / threads as f64;
    if arguments.json {
        let mut figures = json!({
            "seeds": count, "from": arguments.from, "seconds": took, "threads": threads, "sim_speed_per_core": speed,
            "failed": failed.as_ref().map(|(seed, failure)| json!({
                "seed": seed, "property": failure.violation.property, "text": failure.violation.text, "at_ns": failure.at_ns,
            })),
        });
        for (name, value) in sum.named() {
            figures[name] = value.into();
        }
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        println!(
            "{count} seeds from {} in {took:.1} s on {threads} threads, {:.2} million packets per second and core",
            arguments.from,
            speed / 1e6,
        );
        let named: Vec<String> = sum.named().iter().map(|(name, value)| format!("{name} {value}")).collect();
        println!("{}", named.join(", "));
    }
    let Some((seed, failure)) = failed else { return Ok(true) };
    if arguments.list {
        return Ok(false);
    }
    eprintln!("seed {seed}: {} ({})", failure.violation, moment(&failure));
    print_smallest(&Plan::with(seed, features(arguments)?), arguments.lines);
    let only = if arguments.only.is_empty() { String::new() } else { format!(" --only {}", arguments.only.join(",")) };
    eprintln!("replay: cargo xtask sim {seed}{}{only}   (commit {})", plants(planted), commit());
    Ok(false)
}

fn plants(planted: Option<Planted>) -> String {
    planted.map_or_else(String::new, |fault| format!(" --planted {fault:?}"))
}

fn commit() -> String {
    let said = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    said.ok()
        .filter(|said| said.status.success())
        .map_or_else(|| "unknown".to_owned(), |said| String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

#[allow(clippy::cast_precision_loss, reason = "to be read")]
fn moment(failure: &Failure) -> String {
    format!("at {:.4} ms", failure.at_ns as f64 / 1e6)
}

/// Prints the smallest plan that fails in the same way, and the end of its trace.
fn print_smallest(plan: &Plan, lines: usize) {
    let (smallest, failure) = shrink(plan);
    eprintln!("the least that was found to fail alike: {} ({})", failure.violation, moment(&failure));
    tell_plan(&smallest);
    let mut trace = Vec::new();
    let _ = run(&smallest, Some(&mut trace));
    let skipped = trace.len().saturating_sub(lines);
    eprintln!("  ... {skipped} lines");
    trace.iter().skip(skipped).for_each(|line| eprintln!("  {line}"));
}

fn tell_plan(plan: &Plan) {
    eprintln!(
        "  {} hosts{}, {:?}, policy {:?}, timeouts {:?} ns, window {}, latency {} ns and up to {} more, loss {}, repeats {}, stragglers {}, \
         late turns {} per mille, drift bound {} ppm",
        plan.hosts,
        if plan.witness { ", the last a witness" } else { "" },
        plan.protocol,
        plan.policy,
        plan.timeouts.values(),
        plan.window,
        plan.latency_min_ns,
        plan.jitter_max_ns,
        plan.loss_permille,
        plan.duplicate_permille,
        plan.straggle_permille,
        plan.nap_permille,
        plan.drift_ppm,
    );
    if plan.walls.values().iter().flatten().any(|ahead_ns| *ahead_ns > 0) {
        let ahead_s = |walls: &[u64; WALLS]| walls.map(|ahead_ns| ahead_ns / 1_000_000_000);
        let ahead_s: Vec<_> = plan.walls.values().iter().map(ahead_s).collect();
        eprintln!("  wall clocks ahead, by start: {ahead_s:?} s; generations are on disk within {} ns", plan.disk_ns);
    }
    plan.faults.iter().for_each(|fault| eprintln!("  {fault}"));
}

/// One seed, line by line.
fn replay(plan: &Plan, arguments: &Arguments) -> bool {
    tell_plan(plan);
    let mut trace = Vec::new();
    let ended = run(plan, Some(&mut trace));
    if !arguments.shrink {
        trace.iter().for_each(|line| println!("{line}"));
    }
    match ended {
        Ok(stats) => {
            println!("nothing was violated: {stats:?}");
            true
        }
        Err(failure) => {
            eprintln!("{} ({})", failure.violation, moment(&failure));
            if arguments.shrink {
                print_smallest(plan, arguments.lines);
            }
            false
        }
    }
}

/// The first seed that fails with a fault and not without it.
fn find(arguments: &Arguments, limit: u64, fault: Planted) -> anyhow::Result<Option<(u64, Failure)>> {
    let (end, mut from) = (arguments.from + limit, arguments.from);
    while from < end {
        plant(Some(fault));
        let (_, failed) = all(arguments, from, end - from, false)?;
        plant(None);
        let Some((seed, failure)) = failed else { break };
        if run(&Plan::with(seed, features(arguments)?), None).is_ok() {
            return Ok(Some((seed, failure)));
        }
        from = seed + 1;
    }
    Ok(None)
}

/// The seed that found each fault last, one per line.
const KNOWN: &str = include_str!("../../planted_seeds.txt");

fn known(fault: Planted) -> Option<u64> {
    let name = format!("{fault:?}");
    KNOWN.lines().filter_map(|line| line.split_once(' ')).find(|(of, _)| *of == name)?.1.parse().ok()
}

/// The failure of one seed with a fault, if the seed does not fail without it.
fn fails_only_with(arguments: &Arguments, seed: u64, fault: Planted) -> anyhow::Result<Option<(u64, Failure)>> {
    let plan = Plan::with(seed, features(arguments)?);
    plant(Some(fault));
    let failed = run(&plan, None).err();
    plant(None);
    Ok(failed.filter(|_| run(&plan, None).is_ok()).map(|failure| (seed, failure)))
}

fn write_known(found: &BTreeMap<String, Option<(u64, Failure)>>) -> anyhow::Result<()> {
    let lines = found.iter().filter_map(|(fault, failed)| Some(format!("{fault} {}\n", failed.as_ref()?.0)));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/planted_seeds.txt");
    std::fs::write(path, lines.collect::<String>()).with_context(|| format!("writing {path}"))
}

/// Plants each fault, and counts the seeds until it is found.
fn find_all(arguments: &Arguments) -> anyhow::Result<bool> {
    let limit = arguments.seeds.unwrap_or(SEEDS);
    let mut found = BTreeMap::new();
    let elsewhere = [ORDERS_ONLY, DETECTORS_ONLY].concat();
    for fault in Planted::ALL.iter().filter(|fault| !elsewhere.contains(fault)) {
        if std::io::stderr().is_terminal() {
            eprintln!("{fault:?} ...");
        }
        let before = match known(*fault).filter(|_| arguments.known) {
            Some(seed) => fails_only_with(arguments, seed, *fault)?,
            None => None,
        };
        let failed = match before {
            Some(failed) => Some(failed),
            None => find(arguments, limit, *fault)?,
        };
        if !arguments.json {
            match &failed {
                Some((seed, failure)) => println!(
                    "{:<18} found after {:>6} seeds by {:<24} {}",
                    format!("{fault:?}"),
                    seed - arguments.from + 1,
                    failure.violation.property,
                    fault.says()
                ),
                None => println!("{:<18} NOT FOUND in {limit} seeds: {}", format!("{fault:?}"), fault.says()),
            }
        }
        found.insert(format!("{fault:?}"), failed);
    }
    if arguments.json {
        let all: BTreeMap<_, _> = found
            .iter()
            .map(|(fault, failed)| {
                let failed = failed.as_ref();
                let seeds = failed.map(|(seed, _)| seed - arguments.from + 1);
                (fault, json!({"seeds": seeds, "property": failed.map(|(_, failure)| failure.violation.property)}))
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&json!({"limit": limit, "planted": all}))?);
    }
    if arguments.known && std::env::var_os("FIDE_REWRITE").is_some() {
        write_known(&found)?;
    }
    let missed = found.values().filter(|failed| failed.is_none()).count();
    if !arguments.json {
        println!("{} of {} planted faults found", found.len() - missed, found.len());
    }
    Ok(missed == 0)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Source files in which a test plants a fault: `make test` runs tests with such names.
    fn planting(dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                planting(&entry.path(), found);
            } else if entry.path().extension().is_some_and(|ending| ending == "rs") {
                let source = fs::read_to_string(entry.path()).unwrap();
                let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
                let source = code.collect::<Vec<_>>().join("\n");
                if source.contains("fn planted_faults") {
                    found.push(source);
                }
            }
        }
    }

    #[test]
    fn faults_left_out_of_the_search_are_planted_in_other_tests() {
        let mut sources = Vec::new();
        for dir in ["protocol/agreement/src", "protocol/agreement/tests", "protocol/detector/src", "agent/group/src"] {
            planting(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(dir), &mut sources);
        }
        let words = |source: &str, name: &str| source.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
        for fault in [ORDERS_ONLY, DETECTORS_ONLY].concat() {
            let name = format!("{fault:?}");
            assert!(sources.iter().any(|source| words(source, &name)), "no test plants {name}");
        }
    }
}
