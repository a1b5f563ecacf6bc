// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask <verb>`: what `make <verb>` does.
//!
//! It uses the standard library only, because it has to build where nothing but cargo is installed, and to
//! say there what else is needed.
#![forbid(unsafe_code)]

#[cfg(test)]
mod arrows;
mod book;
mod check;
#[cfg(test)]
mod circles;
mod clients;
mod clocks;
mod departures;
#[cfg(test)]
mod docs;
mod headers;
mod histories;
mod link_rack;
mod machine;
mod programs;
mod rdma;
mod redis_suite;
mod run;
mod setup;
mod sim;
mod spec;
mod suites;
mod summary;
mod test;
#[cfg(test)]
mod undeclared;

use run::{Step, root_dir, target_dir};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <verb> [arguments]

  setup [--bench]  check for the Debian packages that are needed; list the missing ones, and install them if root
  check [COMMIT]   format, lints, documents, unit tests of the crates that changed since this branch left main; run it before each commit
  test             format, lints, headers, unit tests, specifications, clusters by seed, end-to-end tests: everything that CI runs
  test-all         the same, and tests that take long and find little in a single change; all tests are built without planted faults too
  spec [--small | --large]  check the TLA+ specifications and their mutants with the model checker; [--trace] [PART OF A LINE]
  sim [SEED] [--seeds N] [...] clusters by seed, or one seed with all its events; --planted all: faults that it has to find
  sim-pace [SEEDS] connections of X-PACE by seed (default 100,000, about an hour)
  deaths [ROUNDS]  40 programs of one host die at once, on ROUNDS fresh clusters of five hosts (default 200); needs root
  histories [...]  registers replicated by real members under faults; porcupine judges what clients saw; --runs N, --seed N, --list
  histories-guest [...]  the same with an emulated machine among five hosts, stopped and slewed; downloads a kernel once
  book             the documentation as a book of HTML pages -> target/book; installs mdBook into target/tools once
  headers          only the check of licence headers and file lengths
  demo [...]       `fide-lab demo`, with its arguments; without root, over loopback; `demo redis` and `demo agreement` lose leaders, `demo pace` shows delivery times; these need root
  demo-network [...] `fide-lab demo-network`, with its arguments; needs root
  bench-detect     detection times and their baselines -> target/bench/detect.json
  bench-jitter     tests of the jitter bench -> target/bench/jitter.json
  bench-planner    the planner's bounds, trees and times -> target/bench/planner.json
  bench-agreement  decisions per second, also beside etcd's raft -> target/bench/agreement.json
  bench-rack       two programs that share memory beside TCP over the loopback -> target/bench/rack.json
  bench-pace       X-PACE beside TCP, QUIC and SRT over emulated links -> target/bench/pace.json, target/bench/pace/*.svg; needs root
  bench            all benches
  test-redis [RUNS] histories of clients of the Redis module under faults (default 200 runs), and Redis' own tests
  test-redis-suite [FILE ...] Redis' own tests against servers with the module, or some of their files (unit/type/list)
  test-rack        rack sockets: calls with the memory before each of them, and programs of others, compared with the same over TCP; minutes
  suites-rack [NAME ...] tests of sockets of CPython, libuv and Go over rack sockets, beside the same over TCP; or some of them (test_ssl, libuv, go)
  soak [...]       100 million heartbeats between three hosts, in as many runs as that takes -> target/soak/state.json; needs root
  rdma             test `fide jitter` by rdma-ud between two emulated hosts; downloads a kernel once
  clocks [...]     suspend, stop and slew a guest, with each time source (or those named); downloads a kernel once
  departures       that the kernel keeps departure times of X-PACE, in a guest; downloads a kernel once
  link-rack        windows and links of rack sockets between two guests that share memory, which is taken away and given back; downloads a kernel once
  man              the manual pages of `fide`, one for each subcommand -> target/man
  clean            cargo clean, and remove network namespaces of dead runs";

/// Crates that need clang and libelf to build, because the kernel programs are built with them.
const NEED_BPF: [&str; 8] = [
    "fide-bpf",
    "fide-host-tuning",
    "fide-agent",
    "fide-latency-probe",
    "fide-selftest",
    "fide-bench",
    "fide",
    "fide-lab",
];

type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (verb, rest) = match args.split_first() {
        Some((verb, rest)) => (verb.as_str(), rest),
        None => ("", &[][..]),
    };
    let outcome = match verb {
        "setup" => setup::setup(rest.iter().any(|a| a == "--bench")),
        "check" => check::check(rest),
        "test" => test::test(test::Extent::Change),
        "test-all" => test::test(test::Extent::All),
        "spec" => spec::spec(rest),
        "sim" => sim::sim(rest),
        "sim-pace" => sim::pace(rest),
        "deaths" => deaths(rest),
        "histories" => need_bpf("it").and_then(|()| histories::histories(rest)),
        "histories-guest" => need_bpf("it").and_then(|()| histories::with_guest(rest)),
        "book" => book::book(),
        "headers" => headers::check(&root_dir()),
        "demo" => demo(rest),
        "demo-network" => demo_network(rest),
        "bench-detect" => bench(&["bench-detect"], rest),
        "bench-jitter" => bench(&["bench-jitter"], rest),
        "bench-planner" => bench(&["bench-planner"], rest),
        "bench-agreement" => bench(&["bench-agreement"], rest),
        "bench-redis" => bench(&["bench-redis"], rest),
        "bench-pace" => bench(&["bench-pace"], rest),
        "bench-rack" => bench(&["bench-rack"], rest),
        "bench" => bench(
            &[
                "bench-detect",
                "bench-jitter",
                "bench-planner",
                "bench-agreement",
                "bench-redis",
                "bench-pace",
                "bench-rack",
            ],
            rest,
        ),
        "test-redis" => test_redis(rest),
        "test-redis-suite" => need_bpf("the Redis module").and_then(|()| redis_suite::run(rest)),
        "test-rack" => test_rack(),
        "suites-rack" => need_bpf("fide").and_then(|()| suites::run(rest)),
        "soak" => soak(rest),
        "rdma" => rdma::test(),
        "clocks" => clocks::test(rest),
        "departures" => departures::test(),
        "link-rack" => link_rack::test(),
        "man" => man(),
        "clean" => clean(),
        // Not for people: cargo runs this in place of each test program.
        programs::NOTE_DOWN => programs::note_down(rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask {verb}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs clusters in which every program of a host dies at once, many more of them than the test does.
fn deaths(args: &[String]) -> Outcome {
    need_bpf("deaths")?;
    if !setup::is_root() {
        return Err("deaths needs root, for network namespaces".into());
    }
    let rounds = args.first().map_or("200", String::as_str);
    if rounds.parse::<u32>().is_err() {
        return Err(format!("{rounds} is not a number of rounds"));
    }
    Step::cargo(&["test", "--quiet", "-p", "fide", "--test", "end_to_end", "--", "--nocapture", "--exact"])
        .args(&["root_end_to_end::sessions::root_death_of_forty_programs_at_once_kills_no_host"])
        .env("FIDE_ROUNDS", rounds)
        .run("40 programs that die at once")
}

fn need_bpf(verb: &str) -> Outcome {
    if setup::prepare(setup::BUILD, "the kernel programs cannot be built") {
        return Ok(());
    }
    Err(format!("{verb} needs the packages named above"))
}

fn demo(args: &[String]) -> Outcome {
    need_bpf("the demo")?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if args.first() == Some(&"redis") {
        setup::prepare(setup::REDIS, "the demo of Redis cannot run");
        // By itself: what other packages want of its dependencies is not for a module.
        Step::cargo(&["build", "--release", "-p", "fide-redis"]).run("build of the Redis module")?;
    }
    let mut step = lab()?.args(&["demo"]);
    // These cannot run over loopback, and say so themselves.
    let needs_hosts = matches!(args.first(), Some(&("agreement" | "redis" | "pace")));
    if !setup::is_root() && !needs_hosts && !args.contains(&"--loopback") {
        println!("not root: no namespaces and no BPF, so the demo runs over loopback with pidfds");
        step = step.args(&["--loopback"]);
    }
    step.args(&args).run("demo")
}

/// `fide-lab`, which starts `fide` on the hosts that it builds.
fn lab() -> Result<Step, String> {
    Step::cargo(&["build", "--release", "-p", "fide", "-p", "fide-lab"]).run("build (the first one takes minutes)")?;
    Ok(Step::new(&target_dir().join("release/fide-lab").to_string_lossy()))
}

fn demo_network(args: &[String]) -> Outcome {
    need_bpf("the demo")?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    lab()?.args(&["demo-network"]).args(&args).run("demo-network")
}

fn bench(names: &[&str], args: &[String]) -> Outcome {
    need_bpf("a bench")?;
    // A missing baseline is not a failure: its figures say why they are missing.
    setup::prepare(setup::BENCH, "some baselines will be missing");
    setup::prepare(setup::REDIS, "the Redis module is not measured");
    if names.contains(&"bench-pace") {
        setup::prepare(setup::PACE, "X-PACE is not measured beside SRT");
    }
    if names.contains(&"bench-rack") {
        setup::prepare(setup::RACK, "rack sockets are measured without the programs that are missing");
    }
    Step::cargo(&["build", "--release", "-p", "fide", "-p", "fide-testbed", "-p", "fide-bench", "-p", "fide-redis"])
        .args(&["-p", "fide-rack-preload"])
        .run("build")?;
    build_go_baselines();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    // A bench that fails does not stop the others.
    let mut failed = Vec::new();
    for name in names {
        let program = target_dir().join("release").join(name);
        let ran = Step::new(&program.to_string_lossy())
            .args(&args)
            .env("FIDE_BENCH_DIR", &root_dir().join("target/bench").to_string_lossy())
            .run(name);
        failed.extend(ran.err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// The Redis module with client libraries, and under faults, by seed: 200 runs, or as many as are asked for; and Redis' own
/// tests.
fn test_redis(args: &[String]) -> Outcome {
    need_bpf("the Redis module")?;
    let runs = args.first().map_or("200", String::as_str);
    if !runs.parse().is_ok_and(|runs: u64| runs > 0) {
        return Err(format!("{runs} is no number of histories: give one, at least 1, or none for 200"));
    }
    if !setup::is_root() {
        return Err("servers run in network namespaces: run this as root".into());
    }
    if !setup::prepare(setup::REDIS, "the Redis module is not tested") {
        return Err("there is no Redis to load the module: see above".into());
    }
    histories::prepare()?;
    clients::prepare(clients::FEW);
    clients::prepare(clients::MORE);
    Step::cargo(&["build", "-p", "fide", "-p", "fide-redis"]).run("build")?;
    let mut step = Step::cargo(&["test", "-p", "fide-redis", "--", "--nocapture", "--test-threads", "1"])
        .env("FIDE_REDIS_RUNS", runs);
    match redis_suite::source() {
        Ok(source) => step = step.env(redis_suite::PLACE, &source.to_string_lossy()),
        Err(why) => return Err(format!("Redis' own tests cannot run: {why}")),
    }
    step.run("the Redis module")
}

/// What `make test` leaves out of the tests of rack sockets: it takes long, or needs programs of others.
fn test_rack() -> Outcome {
    if !setup::prepare(setup::RACK_APPS, "rack sockets are not tested") {
        return Err("programs that are tested are missing: see above".into());
    }
    Step::cargo(&["test", "-p", "fide-rack-preload", "--", "--ignored"]).run("rack sockets")
}

/// Continues where an interrupted run has stopped.
fn soak(args: &[String]) -> Outcome {
    need_bpf("soak")?;
    Step::cargo(&["build", "--release", "-p", "fide", "-p", "fide-testbed", "-p", "fide-bench"]).run("build")?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Step::new(&target_dir().join("release/soak").to_string_lossy())
        .args(&args)
        .env("FIDE_SOAK_DIR", &root_dir().join("target/soak").to_string_lossy())
        .run("soak")
}

/// Baselines that are Go programs: the folder under `baselines`, and the program that is built from it.
const GO_BASELINES: [(&str, &str); 2] = [("memberlist", "memberlist-node"), ("etcd-raft", "etcd-raft-node")];

/// Builds them beside our own programs.
fn build_go_baselines() {
    let found = setup::has_program("go");
    for (name, program) in GO_BASELINES {
        if !found {
            println!("no go: the {name} baseline is left out");
            continue;
        }
        let out = target_dir().join("release").join(program);
        let built = Step::new("go")
            .args(&["build", "-trimpath", "-o", &out.to_string_lossy(), "."])
            .dir(&root_dir().join("baselines").join(name))
            .run(&format!("{name} baseline"));
        if let Err(why) = built {
            println!("{why}: the {name} baseline is left out");
        }
    }
}

/// `fide` generates its manual pages from its own command line.
fn man() -> Outcome {
    need_bpf("fide")?;
    let out = root_dir().join("target/man");
    Step::cargo(&["run", "--quiet", "-p", "fide", "--", "man", "--out", &out.to_string_lossy()]).run("man")
}

fn clean() -> Outcome {
    let sweeper = target_dir().join("debug/fide-sweep");
    if setup::is_root() && sweeper.exists() {
        Step::new(&sweeper.to_string_lossy()).run("sweep")?;
    }
    Step::cargo(&["clean"]).run("clean")
}
