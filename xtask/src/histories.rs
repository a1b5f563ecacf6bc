// SPDX-License-Identifier: Apache-2.0
//! Runs registers under faults, and builds the Go program that judges their histories.

mod guest;

use crate::Outcome;
use crate::run::{Step, root_dir, target_dir};
use crate::setup;

/// Built beside our own programs, where they look for each other.
const JUDGE: &str = "histories-judge";

/// `cargo xtask histories`, with the arguments of the program of that name.
pub(crate) fn histories(args: &[String]) -> Outcome {
    build()?;
    run(args)
}

/// `cargo xtask histories-guest`: the same with an emulated machine as the last of five hosts.
pub(crate) fn with_guest(args: &[String]) -> Outcome {
    if !setup::is_root() {
        return Err("histories-guest needs root, for network namespaces and taps".into());
    }
    if !setup::prepare(setup::EMULATOR, "there is no guest") {
        return Err("packages are missing, see above".into());
    }
    build()?;
    let image = guest::make(&target_dir(), "release")?;
    let mut all = vec!["--guest".to_owned(), image.to_string_lossy().into_owned()];
    all.extend_from_slice(args);
    run(&all)
}

fn build() -> Outcome {
    Step::cargo(&["build", "--release", "-p", "fide", "-p", "fide-testbed", "-p", "fide-histories"]).run("build")?;
    if !build_judge("release") {
        return Err("histories are judged by a Go program, and it could not be built: see above".into());
    }
    Ok(())
}

fn run(args: &[String]) -> Outcome {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let program = target_dir().join("release/histories");
    Step::new(&program.to_string_lossy()).args(&args).run("histories (a failure prints what replays it)")
}

/// As [`prepare_test`], where nothing is to be tested without a judge.
pub(crate) fn prepare() -> Outcome {
    if !build_judge("debug") {
        return Err("histories are judged by a Go program, and it could not be built: see above".into());
    }
    test_judge()
}

/// Builds the judge for the tests, and runs its own tests. Where it cannot be built, tests that need it skip
/// themselves.
pub(crate) fn prepare_test() -> Outcome {
    if !build_judge("debug") {
        return Ok(());
    }
    test_judge()
}

fn test_judge() -> Outcome {
    Step::new("go").args(&["test", "./..."]).dir(&root_dir().join("baselines/histories")).run("the judge of histories")
}

fn build_judge(profile: &str) -> bool {
    if !setup::prepare(setup::JUDGE, "histories are not judged") {
        return false;
    }
    let out = target_dir().join(profile).join(JUDGE);
    let built = Step::new("go")
        .args(&["build", "-trimpath", "-o", &out.to_string_lossy(), "."])
        .dir(&root_dir().join("baselines/histories"))
        .run("the judge of histories");
    if let Err(why) = &built {
        println!("{why}: histories are not judged");
    }
    built.is_ok()
}
