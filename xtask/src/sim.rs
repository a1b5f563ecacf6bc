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
    run(&["--release"], &args, "sim (what it printed replays it)")
}

/// Seeds without a violation, and planted faults that have to be found: by seeds, and in every order of everything.
///
/// In the profile of tests, which optimises what runs here: what it depends on is compiled, and its debug assertions hold too.
pub(crate) fn test() -> Outcome {
    run(&[], &["--seeds", SEEDS], "clusters by seed")?;
    run(&[], &["--planted", "all", "--known", "--seeds", PLANTED_SEEDS], "planted faults, by seed")?;
    planted(&["--lib", "planted_faults"], "planted faults, in the detector's own world, in groups and in members")?;
    planted(&["--test", "explore", "planted"], "planted faults, in every order")
}

/// Tests of what exists only where faults can be planted.
fn planted(tests: &[&str], what: &str) -> Outcome {
    let crates = ["-p", "fide-agreement", "-p", "fide-detector", "-p", "fide-group"];
    let features = ["--features", "fide-agreement/planted,fide-detector/planted,fide-group/planted"];
    Step::cargo(&["test"]).args(&crates).args(&features).args(tests).run(what)
}

fn run(profile: &[&str], args: &[&str], what: &str) -> Outcome {
    Step::cargo(&["run", "--quiet", "-p", "fide-sim", "--features", "planted", "--bin", "sim"])
        .args(profile)
        .args(&["--"])
        .args(args)
        .run(what)
}
