// SPDX-License-Identifier: Apache-2.0
//! Clusters by seed.

use crate::Outcome;
use crate::run::{Step, target_dir};
use crate::summary::Total;

/// Seeds in the test.
const SEEDS: &str = "1000";
/// Seeds within which a planted fault has to be found that the seed which found it before finds no more: what
/// runs has changed.
const PLANTED_SEEDS: &str = "8000";

/// `cargo xtask sim`, with the arguments of the program of that name.
pub(crate) fn sim(args: &[String]) -> Outcome {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run(&["--release"], &args, "sim (what it printed replays it)")
}

/// Crates in which faults can be planted, and those whose tests plant them.
pub(crate) const CRATES: [&str; 4] = ["fide-agreement", "fide-detector", "fide-group", "fide-sim"];
const FEATURES: &str = "fide-sim/planted,fide-group/planted";
/// What names of tests that plant faults begin with.
const PLANTED: &str = "planted_faults";

/// All tests of these crates, those in every order of everything among them. Then seeds without a violation,
/// and planted faults that have to be found by seeds.
///
/// In the profile of tests, which optimises what runs here: what it depends on is compiled, and its debug
/// assertions hold too.
pub(crate) fn test(skipped: &[&str], total: &mut Total) -> Outcome {
    let tests = || {
        let step = Step::cargo(&["test", "--features", FEATURES]).args(&CRATES.map(|name| ["-p", name]).concat());
        step.args(&["--no-fail-fast", "--"]).args(skipped)
    };
    // A fault is planted for a whole process.
    tests().args(&["--skip", PLANTED]).run_tests("tests of what faults are planted in", total)?;
    tests().args(&[PLANTED]).run_tests("planted faults, in tests and in every order of everything", total)?;
    // Built with them: a test of the same crate could start it.
    let program = target_dir().join("debug/sim");
    let run = |args: &[&str], what| Step::new(&program.to_string_lossy()).args(args).run(what);
    run(&["--seeds", SEEDS], "clusters by seed")?;
    run(&["--planted", "all", "--known", "--seeds", PLANTED_SEEDS], "planted faults, by seed")
}

fn run(profile: &[&str], args: &[&str], what: &str) -> Outcome {
    Step::cargo(&["run", "--quiet", "-p", "fide-sim", "--features", "planted", "--bin", "sim"])
        .args(profile)
        .args(&["--"])
        .args(args)
        .run(what)
}
