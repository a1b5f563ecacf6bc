// SPDX-License-Identifier: Apache-2.0
//! Runs the simulator: clusters by seed.

use crate::Outcome;
use crate::programs::{self, Job, Jobs, Kind};
use crate::run::{Step, target_dir};
use std::path::Path;

/// Number of seeds in the test.
const SEEDS: &str = "1000";
/// A planted fault may no longer be found by the seed that found it before, because the code has changed. It
/// then has to be found within this many seeds.
const PLANTED_SEEDS: &str = "8000";

/// `cargo xtask sim`, with the arguments of the program of that name.
pub(crate) fn sim(args: &[String]) -> Outcome {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run(&["--release"], &args, "sim (what it printed replays it)")
}

/// Crates in which faults can be planted, and crates whose tests plant them.
pub(crate) const CRATES: [&str; 4] = ["fide-agreement", "fide-detector", "fide-group", "fide-sim"];
pub(crate) const FEATURES: &str = "fide-sim/planted,fide-group/planted";
/// The names of tests that plant faults begin with this. A fault is planted for a whole process, so other tests run
/// in another.
pub(crate) const PLANTED: &str = "planted_faults";

/// Is this the directory of one of [`CRATES`]?
pub(crate) fn plants(dir: &Path) -> bool {
    CRATES.iter().any(|name| dir.file_name().is_some_and(|dir| name.strip_prefix("fide-") == dir.to_str()))
}

/// Runs seeds, which must show no violation, and planted faults, which seeds have to find.
///
/// It uses the profile of tests, which optimises the code that runs here: its dependencies are compiled
/// already, and its debug assertions are checked too.
pub(crate) fn add_to(jobs: &mut Jobs) {
    // The program was built with the tests, because a test of the same crate could start it.
    let program = programs::program(target_dir().join("debug/sim"));
    let mut add = |args: &[&str], what: &str| {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        jobs.add(Job { what: what.to_owned(), program: program.clone(), args, kind: Kind::Computes });
    };
    add(&["--seeds", SEEDS], "clusters by seed");
    add(&["--planted", "all", "--known", "--seeds", PLANTED_SEEDS], "planted faults, by seed");
}

/// Seeds of [`pace`], unless others are asked for.
const PACE_SEEDS: u64 = 100_000;

/// `cargo xtask sim-pace [SEEDS]`: connections of X-PACE by seed.
pub(crate) fn pace(args: &[String]) -> Outcome {
    let seeds = match args {
        [] => PACE_SEEDS,
        [seeds] => seeds.parse().map_err(|_| format!("'{seeds}' is no number of seeds, such as 1000"))?,
        _ => return Err("sim-pace takes one number of seeds".into()),
    };
    Step::cargo(&["test", "--quiet", "-p", "fide-pace", "--test", "sim", "promises", "--", "--nocapture"])
        .env("FIDE_PACE_SEEDS", &format!("0..{seeds}"))
        .run("connections of X-PACE by seed (a failure says how to replay it)")
}

fn run(profile: &[&str], args: &[&str], what: &str) -> Outcome {
    Step::cargo(&["run", "--quiet", "-p", "fide-sim", "--features", "planted", "--bin", "sim"])
        .args(profile)
        .args(&["--"])
        .args(args)
        .run(what)
}
