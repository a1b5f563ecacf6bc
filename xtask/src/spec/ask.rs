// SPDX-License-Identifier: Apache-2.0
//! One question to TLC and its answer.

use super::runs::{Expect, Run, Temporal};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A question that takes longer has no answer.
const LIMIT: Duration = Duration::from_secs(3600);
const POLL: Duration = Duration::from_millis(20);
/// How much of TLC's output is kept.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// TLC's exit values.
const OK: i32 = 0;
const VIOLATES_SAFETY: i32 = 12;
const VIOLATES_LIVENESS: i32 = 13;

pub(super) struct Checker<'a> {
    pub(super) jar: &'a Path,
    pub(super) spec_dir: &'a Path,
    pub(super) work_dir: &'a Path,
    /// Threads.
    pub(super) workers: &'a str,
}

pub(super) struct Answer {
    pub(super) verdict: Verdict,
    /// Distinct states that TLC found.
    pub(super) states: u64,
    pub(super) took: Duration,
    pub(super) sizes: String,
    pub(super) output: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Holds,
    Violated(String),
    /// No answer: a syntax error, no memory.
    Broken(String),
}

impl Checker<'_> {
    /// `lane`: each of the questions that are answered at the same time has a different one.
    pub(super) fn ask(&self, run: &Run, lane: usize) -> Result<Answer, String> {
        let shown = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
        let base = self.spec_dir.join(format!("{}.cfg", run.spec));
        let config = configure(&fs::read_to_string(&base).map_err(|e| shown(&base, e))?, run)
            .map_err(|why| format!("{}: {why}", base.display()))?;
        let config_path = self.work_dir.join(format!("run-{lane}.cfg"));
        fs::write(&config_path, &config).map_err(|e| shown(&config_path, e))?;
        // For TLC's states, and the standard modules that it unpacks.
        let scratch = self.work_dir.join(format!("scratch-{lane}"));
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).map_err(|e| shown(&scratch, e))?;
        let output_path = self.work_dir.join(format!("output-{lane}"));
        let output = fs::File::create(&output_path).map_err(|e| shown(&output_path, e))?;

        // Short questions are over before the better compiler would have paid for itself.
        let java: &[&str] = match run.expect {
            Expect::Holds(_) => &["-XX:+UseParallelGC"],
            _ => &["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        };
        let started = Instant::now();
        let mut child = Command::new("java")
            .args(java)
            .arg(format!("-Djava.io.tmpdir={}", scratch.display()))
            .arg("-cp")
            .arg(self.jar)
            .args(["tlc2.TLC", "-workers", self.workers, "-nowarning", "-metadir"])
            .arg(&scratch)
            .arg("-config")
            .arg(&config_path)
            .arg(run.spec)
            .current_dir(self.spec_dir)
            .stdout(output)
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| format!("java did not start: {e}"))?;
        let status = loop {
            match child.try_wait().map_err(|e| format!("java: {e}"))? {
                Some(status) => break status.code(),
                None if started.elapsed() > LIMIT => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("{}: {}: no answer within {} s", run.spec, run.name, LIMIT.as_secs()));
                }
                None => std::thread::sleep(POLL),
            }
        };
        let took = started.elapsed();
        let mut text = fs::read(&output_path).map_err(|e| shown(&output_path, e))?;
        text.truncate(MAX_OUTPUT_BYTES);
        let output = String::from_utf8_lossy(&text).into_owned();
        Ok(Answer { verdict: verdict(status, &output), states: states(&output), took, sizes: sizes(&config), output })
    }
}

/// The `.cfg` with the run's sizes, and the properties that it asks for.
fn configure(base: &str, run: &Run) -> Result<String, String> {
    let mut lines: Vec<String> = base.lines().map(str::to_owned).collect();
    for (name, value) in run.set {
        let line = lines
            .iter_mut()
            .find(|l| l.trim_start().split_once(" = ").is_some_and(|(left, _)| left == *name))
            .ok_or_else(|| format!("no constant {name} to be set for `{}`", run.name))?;
        *line = format!("    {name} = {value}");
    }
    match &run.expect {
        Expect::Holds(Temporal::Yes) => {}
        Expect::Holds(Temporal::No) | Expect::Rejected => lines.retain(|l| !l.starts_with("PROPERTIES")),
        Expect::RejectedInTime => lines.retain(|l| !l.starts_with("INVARIANTS")),
        Expect::Fails(property) => {
            lines.retain(|l| !l.starts_with("PROPERTIES") && !l.starts_with("INVARIANTS"));
            lines.push(format!("INVARIANT {property}"));
        }
        Expect::HoldsButFor(property) => {
            let dropped = lines.iter().filter(|l| l.split_whitespace().any(|word| word == *property)).count();
            if dropped != 1 {
                return Err(format!("{property} is not one of its invariants"));
            }
            lines.retain(|l| !l.starts_with("PROPERTIES"));
            for line in lines.iter_mut().filter(|l| l.starts_with("INVARIANTS")) {
                *line = line.split_whitespace().filter(|word| word != property).collect::<Vec<_>>().join(" ");
            }
        }
    }
    Ok(lines.join("\n") + "\n")
}

/// The constants in short, except `Without`.
fn sizes(config: &str) -> String {
    let short = |(name, value): (&str, &str)| match name {
        "N" => Some(format!("N={value}")),
        "Instances" => Some(format!("K={value}")),
        "Horizon" => Some(format!("H={value}")),
        "MaxCrashes" => Some(format!("F={value}")),
        "Window" => Some(format!("W={value}")),
        "MaxExcluded" => Some(format!("X={value}")),
        "Proc" => Some(format!("N={}", value.split(',').count())),
        "Senders" => Some(format!("S={}", value.split(',').count())),
        "Count" => Some(format!("B={value}")),
        "Trees" => Some(format!("T={}", value.split(',').count())),
        _ => None,
    };
    config.lines().filter_map(|l| l.trim_start().split_once(" = ")).filter_map(short).collect::<Vec<_>>().join(" ")
}

fn verdict(status: Option<i32>, output: &str) -> Verdict {
    let violated = output.lines().find_map(|l| l.strip_prefix("Error: Invariant ")?.strip_suffix(" is violated."));
    match (status, violated) {
        (Some(OK), None) => Verdict::Holds,
        (Some(VIOLATES_SAFETY), Some(name)) => Verdict::Violated(name.to_owned()),
        (Some(VIOLATES_LIVENESS), _) => Verdict::Violated("a temporal property".into()),
        _ => {
            let error = output.lines().find(|l| l.starts_with("Error:")).unwrap_or("it gave no reason");
            Verdict::Broken(format!("TLC ended with {status:?}: {error}"))
        }
    }
}

/// The number of distinct states in the last line like `15762 states generated, 5766 distinct states found, 0
/// states left on queue.`
fn states(output: &str) -> u64 {
    let of = |line: &str| {
        let (before, _) = line.split_once(" distinct states found")?;
        before.rsplit(", ").next()?.replace(',', "").parse().ok()
    };
    output.lines().filter_map(of).next_back().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "SPECIFICATION Spec\nCONSTANTS\n    N = 2\n    MaxCrashes = 1\n    Without = {}\n\
                          INVARIANTS Validity Integrity\nPROPERTIES Termination\n";

    fn run(expect: Expect) -> Run {
        Run { spec: "hsuc", name: "test", set: &[("N", "3"), ("Without", r#"{"adopt"}"#)], expect }
    }

    #[test]
    fn a_configuration_gets_its_constants_and_properties() {
        let all = configure(CONFIG, &run(Expect::Holds(Temporal::Yes))).unwrap();
        assert!(all.contains("    N = 3\n") && all.contains("    Without = {\"adopt\"}\n"), "{all}");
        assert!(all.ends_with("INVARIANTS Validity Integrity\nPROPERTIES Termination\n"), "{all}");
        assert_eq!(sizes(&all), "N=3 F=1");
        let mutant = configure(CONFIG, &run(Expect::Rejected)).unwrap();
        assert!(mutant.ends_with("INVARIANTS Validity Integrity\n"), "{mutant}");
        let in_time = configure(CONFIG, &run(Expect::RejectedInTime)).unwrap();
        assert!(in_time.ends_with("}\nPROPERTIES Termination\n"), "{in_time}");
        let published = configure(CONFIG, &run(Expect::Fails("Integrity"))).unwrap();
        assert!(published.ends_with("}\nINVARIANT Integrity\n"), "{published}");
        let harmless = configure(CONFIG, &run(Expect::HoldsButFor("Integrity"))).unwrap();
        assert!(harmless.ends_with("}\nINVARIANTS Validity\n"), "{harmless}");
        assert!(configure("CONSTANTS\n", &run(Expect::Rejected)).is_err_and(|why| why.contains('N')));
    }

    #[test]
    fn an_answer_is_read_and_an_error_is_no_answer() {
        let violated =
            "Error: Invariant Validity is violated.\n778 states generated, 486 distinct states found, 87 left";
        assert_eq!(verdict(Some(12), violated), Verdict::Violated("Validity".into()));
        assert_eq!(states(violated), 486);
        assert_eq!(
            states("Progress(11): 5,577 states generated (1 s/min), 1,020,797 distinct states found (2 ds/min)"),
            1_020_797
        );
        assert_eq!(verdict(Some(0), "No error"), Verdict::Holds);
        assert_eq!(verdict(Some(13), "Error: Temporal"), Verdict::Violated("a temporal property".into()));
        for (status, output) in [(Some(12), ""), (Some(0), violated), (Some(150), "Error: Parsing"), (None, violated)] {
            assert!(matches!(verdict(status, output), Verdict::Broken(_)), "{status:?}");
        }
    }
}
