// SPDX-License-Identifier: Apache-2.0
//! Clusters by seed.

use crate::Outcome;
use crate::run::Step;

/// Seeds in the test.
const SEEDS: &str = "1000";
/// Seeds within which a planted fault has to be found that the seed which found it before finds no more: what runs has changed.
const PLANTED_SEEDS: &str = "8000";

/// `cargo xtask sim`, with the arguments of the program of that name.
pub(crate) fn sim(args: &[String]) -> Outcome {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run(&args, "sim (what it printed replays it)")
}

/// Seeds without a violation, and planted faults that have to be found: by seeds, and in every order of everything.
pub(crate) fn test() -> Outcome {
    run(&["--seeds", SEEDS], "clusters by seed")?;
    run(&["--planted", "all", "--known", "--seeds", PLANTED_SEEDS], "planted faults, by seed")?;
    Step::cargo(&["test", "--release", "-p", "fide-detector", "--features", "planted", "--lib", "planted_faults"])
        .run("planted faults, in the detector's own world")?;
    Step::cargo(&["test", "--release", "-p", "fide-agreement", "--features", "planted", "--lib", "planted_faults"])
        .run("planted faults, in groups")?;
    Step::cargo(&["test", "--release", "-p", "fide-agreement", "--features", "planted", "--test", "explore", "planted"])
        .run("planted faults, in every order")
}

fn run(args: &[&str], what: &str) -> Outcome {
    Step::cargo(&["run", "--release", "--quiet", "-p", "fide-sim", "--features", "planted", "--bin", "sim", "--"])
        .args(args)
        .run(what)
}
