// SPDX-License-Identifier: Apache-2.0
//! `make test`: everything that CI runs, cheap checks first. `make test-all`: the same, and tests that take
//! long and find little in a single change.
//!
//! Nothing is built twice: all tests are built at once, with the same packages and features, because cargo compiles a
//! crate again for each different selection. Faults can be planted in that build ([`crate::sim`]); none is unless a test
//! does. `make test-all` builds twice: all tests without planted faults, and those of the crates in which faults can be
//! planted with them.
//!
//! Then the test programs run, several beside each other ([`crate::programs`]).

use crate::programs::{Job, Jobs, Kind, Program};
use crate::run::{self, Step, root_dir};
use crate::{NEED_BPF, Outcome, book, clients, headers, histories, programs, setup, sim, spec, summary};
use std::thread;
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// On every change.
    Change,
    All,
}

/// Tests that only `make test-all` runs, each with the tests that `make test` has instead.
pub(crate) const LONG: &[(&str, &str)] = &[
    (
        "huc_leased::three_members_two_proposals",
        "three members with one proposal, two members with three, clusters by seed",
    ),
    ("huc_leased::three_members_and_a_loss", "two members with losses, clusters by seed"),
    ("huc_leased::planted_faults_are_seen", "the same faults, found by seed"),
    ("families::tests::nothing_is_found_in_heavy_noise", "quiet and bursty noise"),
    ("families::tests::planted_noise_is_found_at_200_us", "at 1000 us"),
    ("families::tests::planted_noise_is_found_at_999_us", "at 1000 us"),
    ("families::tests::planted_noise_is_found_at_1001_us", "at 1000 us"),
    ("clocks::tests::more_moving_clocks_make_no_families", "a step, a drift, a slew and all of these"),
    ("clocks::tests::more_moving_clocks_hide_no_disturbance", "a step, a drift, a slew and all of these"),
    (
        "root_versions::root_servers_are_upgraded_one_by_one_while_clients_write",
        "a server two versions apart; what each version says to the other, beside the code",
    ),
    ("root_reads::root_follower_answers_for_other_keys_with_huc_too", "the same with HSUC"),
    ("root_input::root_servers_with_other_settings_have_the_same_data", "random commands"),
    (
        "root_links::root_server_whose_own_link_is_stuck_leaves_the_group_to_the_others",
        "what counts as stuck, beside the code",
    ),
    ("root_libraries::root_session_of_go_redis_outlives_the_leader", "the session of redis-py"),
    ("root_libraries::root_session_of_jedis_outlives_the_leader", "the session of redis-py"),
    ("root_libraries::root_session_of_ioredis_outlives_the_leader", "the session of redis-py"),
    ("crowds::ten_thousand_connections_work", "a thousand connections"),
];

/// Arguments of a test program that leave out what only `make test-all` runs.
pub(crate) fn skips(extent: Extent) -> Vec<&'static str> {
    match extent {
        Extent::Change => LONG.iter().flat_map(|(name, _)| ["--skip", *name]).collect(),
        Extent::All => Vec::new(),
    }
}

/// Threads of a program whose tests wait more than they compute: more than there are cores.
const WAITING: &str = "--test-threads=4";
/// Programs whose tests compute. Each of these uses the cores as it does by itself.
const COMPUTE: &[&str] = &[
    "explore",
    "fide_jitter_analysis",
    "sim",
    "fide_agreement",
    "odds",
    "fide_detector",
    "fide_wire",
    "fide_planner",
    "file",
    "bounds",
];
/// Programs whose tests named `root_` wait most of the time (200 s of processor time in 440 s when one runs at a time),
/// have timeouts that a busy machine keeps, and measure nothing: how many of their tests run at a time. The longest come
/// first. Those of all other programs run one at a time, and beside nothing that could disturb what they measure.
const CLUSTERS: &[(&str, &str)] =
    &[("end_to_end", "--test-threads=3"), ("servers", "--test-threads=3"), ("namespaces", "--test-threads=2")];
/// Programs whose tests named `root_` measure nothing either, and run one at a time: a cluster each.
const ONE_CLUSTER: &[&str] = &["root_histories"];
const ONE_AT_A_TIME: &str = "--test-threads=1";

/// Adds the tests of these programs but those named `root_`; with faults that tests plant, if they can.
fn add_units(jobs: &mut Jobs, programs: &[Program], skipped: &[&str]) {
    let owned = |args: &[&str]| args.iter().chain(skipped).map(|arg| (*arg).to_owned()).collect();
    let of = |program: &Program| COMPUTE.iter().position(|name| *name == program.name());
    let mut programs: Vec<&Program> = programs.iter().collect();
    // Those that compute longest come first.
    programs.sort_by_key(|program| of(program).unwrap_or(COMPUTE.len()));
    for program in programs {
        let (kind, threads) = if of(program).is_some() { (Kind::Computes, None) } else { (Kind::Waits, Some(WAITING)) };
        let plain = [&["--skip", "root_", "--skip", sim::PLANTED], threads.as_slice()].concat();
        let mut add = |what: &str, args: &[&str]| {
            let what = format!("{} ({what})", program.name());
            jobs.add(Job { what, program: program.clone(), args: owned(args), kind });
        };
        if sim::plants(program.dir()) {
            add("planted faults", &[sim::PLANTED]);
        }
        add("unit tests", &plain);
    }
}

/// Adds the tests that are named `root_`: they use namespaces, kernel programs and pinned loops.
fn add_end_to_end(jobs: &mut Jobs, programs: &[Program], skipped: &[&str]) {
    let of = |program: &Program| CLUSTERS.iter().position(|(name, _)| *name == program.name());
    let mut programs: Vec<&Program> = programs.iter().collect();
    programs.sort_by_key(|program| of(program).unwrap_or(CLUSTERS.len()));
    for program in programs {
        let (kind, threads) = match of(program) {
            Some(at) => (Kind::Clusters, CLUSTERS[at].1),
            None if ONE_CLUSTER.contains(&&*program.name()) => (Kind::Clusters, ONE_AT_A_TIME),
            None => (Kind::Measures, ONE_AT_A_TIME),
        };
        let args = ["root_", threads].iter().chain(skipped).map(|arg| (*arg).to_owned()).collect();
        jobs.add(Job { what: format!("{} (root_)", program.name()), program: program.clone(), args, kind });
    }
}

/// What can be built here: whether the kernel's programs can, and the features that are compiled without
/// being tested.
pub(crate) fn prepare() -> (bool, &'static [&'static str]) {
    let builds_bpf = setup::prepare(setup::BUILD, "the kernel programs cannot be built");
    let compiles_rdma = builds_bpf && setup::prepare(setup::RDMA, "the method rdma-ud is not compiled");
    // `make rdma` tests it.
    (builds_bpf, if compiles_rdma { &["--features", "fide/rdma"] } else { &[] })
}

pub(crate) fn test(extent: Extent) -> Outcome {
    let started = Instant::now();
    let (builds_bpf, features) = prepare();
    setup::prepare(setup::REDIS, "the Redis module is not tested");
    clients::prepare(clients::FEW);
    clients::prepare(clients::WHEEL);
    if extent == Extent::All {
        clients::prepare(clients::MORE);
    }
    setup::prepare(
        setup::TEST,
        "the jitter report is not opened in a browser, or Open vSwitch or a video over X-PACE is not tested,",
    );
    let excluded = |names: &[&'static str]| names.iter().flat_map(|name| ["--exclude", *name]).collect::<Vec<_>>();
    let mut scope = vec!["--workspace"];
    if !builds_bpf {
        scope.extend(excluded(&NEED_BPF));
    }
    if !setup::is_root() {
        println!(
            "not root: tests that need namespaces or BPF (root_*) skip themselves; loopback UDP and pidfd are tested"
        );
    }

    headers::check(&root_dir())?;
    println!("headers: ok");
    // It uses the processor time that the other steps leave.
    let specifications = spec::Background::start()?;
    Step::cargo(&["fmt", "--all", "--check"]).run("format (fix it by cargo fmt --all)")?;
    Step::cargo(&["clippy"])
        .args(&scope)
        .args(features)
        .args(&["--all-targets", "--", "-D", "warnings"])
        .run("lints")?;
    // With the features of the dependencies that are checked already: those of examples too, and `fide-lab` would ask for
    // the controller.
    Step::cargo(&["clippy"])
        .args(&scope)
        .args(&["--exclude", "fide-lab", "--no-default-features"])
        .args(features)
        .args(&["--lib", "--bins", "--examples", "--", "-D", "warnings"])
        .run("lints without the features that are on by default")?;
    if extent == Extent::All {
        if builds_bpf {
            Step::cargo(&["clippy", "--package", "fide", "--no-default-features", "--", "-D", "warnings"])
                .run("lints of the agent alone")?;
        }
        book::book()?;
    }
    let planted: &[&str] = if extent == Extent::Change { &["--features", sim::FEATURES] } else { &[] };
    // Go downloads and compiles one program, while cargo compiles hundreds.
    let (built, judged) = thread::scope(|threads| {
        let judge = threads.spawn(histories::prepare_test);
        let built = programs::build(&[&scope, planted].concat(), "build of all tests");
        (built, judge.join().expect("it does not panic"))
    });
    let built = built?;
    judged?;
    let (skipped, mut jobs) = (skips(extent), Jobs::default());
    add_units(&mut jobs, &built, &skipped);
    if extent == Extent::All {
        let crates = sim::CRATES.map(|name| ["-p", name]).concat();
        let built =
            programs::build(&[&crates[..], &["--features", sim::FEATURES]].concat(), "build for planted faults")?;
        add_units(&mut jobs, &built, &skipped);
    }
    sim::add_to(&mut jobs);
    add_end_to_end(&mut jobs, &built, &skipped);
    let mut total = summary::Total::default();
    Step::cargo(&["test", "--doc", "--no-fail-fast"])
        .args(&scope)
        .args(planted)
        .run_tests("examples in documents", &mut total)?;
    let named = jobs.run(&mut total, || specifications.hurry())?;
    specifications.end()?;
    if extent == Extent::Change {
        println!("\nleft to make test-all: {} tests that take long", LONG.len());
    }
    println!("\ntime: {}", run::took());
    println!("\n{}", total.line(started.elapsed()));
    if !named.unsteady.is_empty() {
        println!("unsteady, each passed alone: {}", named.unsteady.join(", "));
    }
    if total.failed > 0 {
        return Err(format!("{} tests failed: {}", total.failed, named.failed.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::{files_below, read};
    use std::path::Path;

    /// A name that matches no test leaves out nothing; a name without its module may leave out other tests
    /// too.
    #[test]
    fn each_skip_leaves_out_one_test() {
        let sources = files_below(&root_dir().join("crates"), &["rs"]);
        for (name, _) in LONG {
            let (module, function) = name.rsplit_once("::").expect("a module and its test");
            let file = format!("{}.rs", module.rsplit("::").next().unwrap_or(module));
            let has = |path: &Path| path.ends_with(&file) && read(path).contains(&format!("fn {function}()"));
            assert_eq!(sources.iter().filter(|path| has(path)).count(), 1, "{name}");
        }
        assert!(skips(Extent::All).is_empty());
    }
}
