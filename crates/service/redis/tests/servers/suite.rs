// SPDX-License-Identifier: Apache-2.0
//! Redis' own test suite, run against servers that are there: what it says, and the list of tests that fail.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use fide_testbed::{Host, REDIS_PORT};

/// The suite gives up after so long without a result, s. Its longest tests take a minute on an idle machine.
const SILENCE_MAX_S: &str = "300";
/// One file takes no longer: the longest takes two minutes on an idle machine.
const UNIT_MAX: Duration = Duration::from_secs(1800);
/// What fails outside of any test, in the list and in reports. In the list, the command or the error follows it.
pub(crate) const OUTSIDE: &str = "(outside of tests)";
/// In the list, before the unit: so many tests do not run, as the step that failed ends their block.
const HIDES: &str = "hides-";

/// What one file of the suite has said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) passed: Vec<String>,
    /// Test, and what was wrong. [`OUTSIDE`]: a step between two tests, which ends the tests that share its server.
    pub(crate) failed: Vec<(String, String)>,
    /// Not run: the suite's own marks say that a server which the suite has not started cannot pass them.
    pub(crate) ignored: usize,
    /// Not run: as the list says.
    pub(crate) skipped: Vec<String>,
    /// It came to its end.
    pub(crate) has_ended: bool,
}

impl Said {
    pub(crate) fn read(output: &str, unit: &str) -> Self {
        let mut said = Self::default();
        let place = format!(" in tests/{unit}.tcl");
        let mut lines = output.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((kind, text)) = line.strip_prefix('[').and_then(|line| line.split_once("]: ")) else {
                said.has_ended |= line.trim() == "The End";
                continue;
            };
            match kind {
                "ok" => said.passed.push(text.rsplit_once(" (").map_or(text, |(name, _)| name).to_owned()),
                "ignore" => said.ignored += 1,
                "skip" => said.skipped.push(text.to_owned()),
                "err" | "exception" | "TIMEOUT" => {
                    let mut why = Vec::new();
                    while let Some(line) = lines.next_if(|line| !line.starts_with('[') && !line.contains("The End")) {
                        why.push(line);
                    }
                    match text.strip_suffix(&place) {
                        Some(name) => said.failed.push((name.to_owned(), why.join("\n"))),
                        None => said.failed.push((OUTSIDE.to_owned(), format!("{kind}: {text}\n{}", why.join("\n")))),
                    }
                }
                _ => {}
            }
        }
        said
    }
}

/// A program in a process group of its own, all of which ends when this is dropped.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Runs one file of the suite on a host, against the server there. Its output is also kept in `log`.
///
/// # Errors
/// It did not start, or did not end.
pub(crate) fn run(source: &Path, host: &Host, unit: &str, skip: &[&str], log: &Path) -> Result<Said, String> {
    let failed = |why: std::io::Error| format!("{unit}: {why}");
    fs::create_dir_all(log.parent().unwrap_or(log)).map_err(failed)?;
    let out = File::create(log).map_err(failed)?;
    let mut command = host.command("tclsh");
    command
        .arg("tests/test_helper.tcl")
        .args(["--host", "127.0.0.1", "--port", &REDIS_PORT.to_string(), "--single", unit])
        .args(["--durable", "--timeout", SILENCE_MAX_S])
        .args(skip.iter().flat_map(|name| ["--skiptest", name]))
        // Without colours.
        .env("TERM", "dumb")
        .current_dir(source)
        .stdin(Stdio::null())
        .stderr(out.try_clone().map_err(failed)?)
        .stdout(out);
    let mut run = Run(command.spawn().map_err(failed)?);
    let until = Instant::now() + UNIT_MAX;
    while run.0.try_wait().map_err(failed)?.is_none() {
        if Instant::now() > until {
            return Err(format!("{unit} has not ended within {UNIT_MAX:?}: {}", log.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = fs::read(log).map_err(failed)?;
    Ok(Said::read(&String::from_utf8_lossy(&output), unit))
}

/// What is known to fail, with reasons.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    entries: BTreeMap<(String, String), Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    /// Not run, as it would disturb those after it or hang.
    is_skipped: bool,
    /// Passes with some timings.
    is_unsteady: bool,
    /// It fails with so many servers; none: with any number.
    servers: Option<usize>,
    /// Tests that do not run because of it, for one outside of tests.
    hides: usize,
    reason: String,
}

/// Whether an entry of the list means this failure. One outside of tests is known by a whole line of what was said:
/// the command (Tcl shows it in quotes) or the error.
fn is_meant(name: &str, failed: &str, why: &str) -> bool {
    if failed != OUTSIDE {
        return name == failed;
    }
    let Some(text) = name.strip_prefix(OUTSIDE).and_then(|rest| rest.strip_prefix(": ")) else { return false };
    why.lines().any(|line| line == text || line.strip_prefix('"').and_then(|line| line.strip_suffix('"')) == Some(text))
}

impl LeftOut {
    /// Lines `unit: test`, each after the `# reason` that holds for it. Before the unit may stand `skip` (it is
    /// not run), `unsteady` (it may pass), `one` or `three` (it fails with so many servers). A step between tests is
    /// `hides-N unit: (outside of tests): the command, or the error`: N tests do not run because of it.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut list = Self::default();
        let mut reason = String::new();
        for (at, line) in text.lines().enumerate() {
            if let Some(words) = line.strip_prefix("# ") {
                reason = words.to_owned();
                continue;
            }
            if line.trim().is_empty() || line.starts_with("//") {
                continue;
            }
            let (head, name) = line.split_once(": ").ok_or(format!("line {}: no `unit: test`: {line}", at + 1))?;
            let mut words: Vec<&str> = head.split(' ').collect();
            let unit = words.pop().unwrap_or_default().to_owned();
            let mut entry =
                Entry { is_skipped: false, is_unsteady: false, servers: None, hides: 0, reason: reason.clone() };
            for word in words {
                if let Some(count) = word.strip_prefix(HIDES) {
                    entry.hides = count.parse().map_err(|_| format!("line {}: {count} is no number", at + 1))?;
                    continue;
                }
                match word {
                    "skip" => entry.is_skipped = true,
                    "unsteady" => entry.is_unsteady = true,
                    "one" => entry.servers = Some(1),
                    "three" => entry.servers = Some(3),
                    _ => return Err(format!("line {}: {word} is none of skip, unsteady, one, three, hides-N", at + 1)),
                }
            }
            let text = name.strip_prefix(OUTSIDE).map(|rest| rest.strip_prefix(": ").unwrap_or_default().trim());
            if text.is_some_and(str::is_empty) || text.is_some() != (entry.hides > 0) {
                return Err(format!(
                    "line {}: a step outside of tests is `hides-N unit: {OUTSIDE}: command`, and nothing else is: {line}",
                    at + 1
                ));
            }
            if reason.is_empty() {
                return Err(format!("line {}: no reason stands above it", at + 1));
            }
            if list.entries.insert((unit, name.to_owned()), entry).is_some() {
                return Err(format!("line {}: it stands there twice: {line}", at + 1));
            }
        }
        Ok(list)
    }

    pub(crate) fn skipped(&self, unit: &str, servers: usize) -> Vec<&str> {
        self.of(unit, servers).filter(|(_, entry)| entry.is_skipped).map(|(name, _)| name).collect()
    }

    fn of(&self, unit: &str, servers: usize) -> impl Iterator<Item = (&str, &Entry)> {
        let is_meant = move |entry: &Entry| entry.servers.is_none_or(|wanted| wanted == servers);
        let of_unit = self.entries.iter().filter(move |((of, _), _)| of == unit);
        of_unit.filter(move |(_, entry)| is_meant(entry)).map(|((_, name), entry)| (name.as_str(), entry))
    }

    /// What the list and a run do not agree on: nothing, if all is as it says.
    pub(crate) fn judge(&self, unit: &str, servers: usize, said: &Said) -> Vec<String> {
        let mut wrong = Vec::new();
        if !said.has_ended {
            wrong.push(format!("{unit}: it did not come to its end"));
        }
        let listed: BTreeMap<&str, &Entry> = self.of(unit, servers).collect();
        for (name, why) in &said.failed {
            if !listed.keys().any(|listed| is_meant(listed, name, why)) {
                wrong.push(format!("{unit}: {name}: failed, and is not on the list: {why}"));
            }
        }
        for (name, entry) in &listed {
            let has_failed = said.failed.iter().any(|(failed, why)| is_meant(name, failed, why));
            let is_skipped = said.skipped.iter().any(|skipped| skipped == name);
            if entry.is_skipped && !is_skipped {
                wrong.push(format!("{unit}: {name}: is on the list to be skipped, and the suite has no such test"));
            }
            if !entry.is_skipped && !entry.is_unsteady && !has_failed {
                wrong.push(format!("{unit}: {name}: is on the list ({}), and did not fail: take it off", entry.reason));
            }
        }
        wrong
    }

    /// How many tests each reason leaves out, by their names: some run twice.
    pub(crate) fn by_reason(&self, servers: usize) -> BTreeMap<&str, usize> {
        let mut count = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| entry.servers.is_none_or(|wanted| wanted == servers)) {
            *count.entry(entry.reason.as_str()).or_default() += entry.hides.max(1);
        }
        count
    }

    /// Failures that the list allows, but does not ask for.
    fn unsteady_failures(&self, unit: &str, servers: usize, said: &Said) -> usize {
        let unsteady: Vec<&str> =
            self.of(unit, servers).filter(|(_, entry)| entry.is_unsteady).map(|(name, _)| name).collect();
        said.failed.iter().filter(|(failed, why)| unsteady.iter().any(|name| is_meant(name, failed, why))).count()
    }
}

/// How many tests of each file pass. Tests that the suite leaves out without a word are missing there.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// By file: with one server, and with three.
    of: BTreeMap<String, [usize; 2]>,
}

impl Passed {
    /// Lines `unit ONE THREE`: the tests that pass with one server, and with three.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut of = BTreeMap::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with("//") && !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            let wrong = || format!("line {}: no `unit ONE THREE`: {line}", at + 1);
            let [unit, one, three] = words[..] else { return Err(wrong()) };
            let count = |word: &str| word.parse::<usize>().map_err(|_| wrong());
            if of.insert(unit.to_owned(), [count(one)?, count(three)?]).is_some() {
                return Err(format!("line {}: {unit} stands there twice", at + 1));
            }
        }
        Ok(Self { of })
    }

    /// What is wrong with the number of tests that have passed in a file.
    pub(crate) fn judge(&self, unit: &str, servers: usize, said: &Said, list: &LeftOut) -> Option<String> {
        let Some(floors) = self.of.get(unit) else {
            return Some(format!("{unit}: no number of tests that pass is recorded; {} have", said.passed.len()));
        };
        let floor = floors[usize::from(servers > 1)];
        let unsteady = list.unsteady_failures(unit, servers, said);
        (said.passed.len() + unsteady < floor).then(|| {
            format!(
                "{unit}: only {} tests passed, of {floor} that are recorded, and {unsteady} failed that may: others did \
                 not run, or were left out without a word",
                said.passed.len()
            )
        })
    }
}

/// The files that are asked for, by names with commas between them; all without a name.
///
/// # Errors
/// The suite has no such file; the error names those that it has.
pub(crate) fn chosen(all: Vec<String>, wanted: &str) -> Result<Vec<String>, String> {
    let wanted: Vec<&str> = wanted.split(',').map(str::trim).filter(|unit| !unit.is_empty()).collect();
    if let Some(unknown) = wanted.iter().find(|wanted| !all.iter().any(|unit| unit == *wanted)) {
        return Err(format!("the suite has no file {unknown:?}; it has {}", all.join(", ")));
    }
    Ok(all.into_iter().filter(|unit| wanted.is_empty() || wanted.contains(&unit.as_str())).collect())
}

/// The suite's files that can run against servers which it has not started.
pub(crate) fn units(source: &Path) -> Vec<String> {
    let mut units: Vec<String> = ["tests/unit", "tests/unit/type"]
        .iter()
        .flat_map(|dir| fs::read_dir(source.join(dir)).unwrap_or_else(|why| panic!("{}: {why}", source.display())))
        .map(|entry| entry.expect("a file").path())
        .chain(["integration/redis-cli"].map(|unit| source.join("tests").join(unit).with_extension("tcl")))
        .filter(|path: &PathBuf| path.extension().is_some_and(|extension| extension == "tcl"))
        .map(|path| path.strip_prefix(source.join("tests")).expect("below it").with_extension(""))
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    units.sort();
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Starting test server at port 21079\n[ready]: 17\nTesting unit/type/incr\n\
        [ok]: INCR (now) (3 ms)\n[err]: DECR in tests/unit/type/incr.tcl\nExpected 1\nto be 2\n[ignore]: MORE: not here\n\
        [skip]: LESS\n[err]: ad, very bad\n    while executing\n[1/1 done]: unit/type/incr (1 seconds)\n\n    The End\n\n\
        *** [err]: DECR in tests/unit/type/incr.tcl\nExpected 1\n";

    #[test]
    fn what_the_suite_says_is_read() {
        let said = Said::read(OUTPUT, "unit/type/incr");
        assert_eq!(said.passed, ["INCR (now)"]);
        assert_eq!((said.ignored, said.skipped.as_slice(), said.has_ended), (1, &["LESS".to_owned()][..], true));
        let names: Vec<&str> = said.failed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["DECR", OUTSIDE]);
        assert_eq!(said.failed[0].1, "Expected 1\nto be 2");
    }

    #[test]
    fn list_and_run_have_to_agree() {
        let said = Said::read(OUTPUT, "unit/type/incr");
        let judge = |list: &str| LeftOut::read(list).expect("a list").judge("unit/type/incr", 3, &said).len();
        let outside = "hides-2 unit/type/incr: (outside of tests): err: ad, very bad";
        assert_eq!(judge(&format!("# known\nunit/type/incr: DECR\n{outside}\n")), 0);
        assert_eq!(judge(&format!("# known\nthree unit/type/incr: DECR\n{outside}\nskip unit/type/incr: LESS\n")), 0);
        assert_eq!(judge(&format!("# known\none unit/type/incr: DECR\n{outside}\n")), 1, "it failed with three");
        assert_eq!(judge("# known\nunit/type/incr: DECR\n"), 1, "the other failure");
        assert_eq!(judge(&format!("# known\nunit/type/incr: DECR\n{outside}\nunit/type/incr: INCR (now)\n")), 1);
        assert_eq!(judge(&format!("# known\nunit/type/incr: DECR\n{outside}\nunsteady unit/type/incr: X\n")), 0);
        assert_eq!(judge(&format!("# known\nunit/type/incr: DECR\n{outside}\nskip unit/type/incr: X\n")), 1);
    }

    #[test]
    fn failure_outside_of_tests_is_known_by_its_text() {
        let output = "[err]: is refused\nERR DEBUG is refused\n    while executing\n\"r debug x 1\"\n    The End\n";
        let said = Said::read(output, "unit/scripting");
        let judge = |text: &str| {
            let list = LeftOut::read(&format!("# known\nhides-2 unit/scripting: (outside of tests): {text}\n"));
            list.expect("a list").judge("unit/scripting", 1, &said).len()
        };
        assert_eq!((judge("r debug x 1"), judge("ERR DEBUG is refused")), (0, 0));
        // The one that failed is not on the list, and the one on the list has not failed.
        assert_eq!((judge("r debug x"), judge("r debug y 1")), (2, 2));
        let refused =
            |line: &str| LeftOut::read(&format!("# known\n{line}\n")).is_err_and(|why| why.contains("hides-N"));
        assert!(refused("unit/scripting: (outside of tests)") && refused("hides-2 unit/scripting: (outside of tests)"));
        assert!(refused("unit/scripting: (outside of tests): r debug x 1") && refused("hides-2 unit/scripting: X"));
    }

    #[test]
    fn fewer_tests_than_recorded_are_a_failure() {
        let said = Said::read(OUTPUT, "unit/type/incr");
        let judge = |recorded: &str, list: &str| {
            let list = LeftOut::read(list).expect("a list");
            Passed::read(recorded).expect("numbers").judge("unit/type/incr", 3, &said, &list)
        };
        assert_eq!(judge("// tests\nunit/type/incr 2 1\n", ""), None);
        assert!(judge("unit/type/incr 1 2\n", "").is_some_and(|why| why.contains("only 1 tests passed, of 2")));
        assert_eq!(judge("unit/type/incr 1 2\n", "# busy\nunsteady three unit/type/incr: DECR\n"), None);
        assert!(judge("unit/type/incr 1 2\n", "# busy\nunsteady one unit/type/incr: DECR\n").is_some());
        assert!(judge("unit/dump 1 2\n", "").is_some_and(|why| why.contains("no number")));
        for wrong in ["unit/dump 1", "unit/dump 1 x", "unit/dump 1 2\nunit/dump 1 2"] {
            assert!(Passed::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mistyped_file_is_refused() {
        let all = || vec!["unit/dump".to_owned(), "unit/multi".to_owned()];
        assert_eq!(chosen(all(), "").as_deref(), Ok(&all()[..]));
        assert_eq!(chosen(all(), "unit/multi").expect("a file"), ["unit/multi"]);
        let why = chosen(all(), "unit/multi,unit/dmup").expect_err("no such file");
        assert!(why.contains("\"unit/dmup\"") && why.contains("unit/dump, unit/multi"), "{why}");
    }

    /// The table in the docs counts what the list leaves out, and what passes.
    #[test]
    fn docs_say_what_the_list_says() {
        let docs = include_str!("../../../../../docs/redis.md");
        let section = docs.split_once("## What Redis' own tests say").expect("the section").1;
        let section = section.split("\n## ").next().expect("its text");
        let list = LeftOut::read(include_str!("../suite/left-out.txt")).expect("the list");
        let passed = Passed::read(include_str!("../suite/passed.txt")).expect("the numbers");
        let left_out: usize = list.by_reason(1).values().sum();
        let passes: usize = passed.of.values().map(|[one, _]| one).sum();
        let thousands = format!("{},{:03}", passes / 1000, passes % 1000);
        let wanted = format!("{thousands} tests pass against a group of one, and {left_out} are left out");
        assert!(section.contains(&wanted), "docs/redis.md has to say: {wanted}");
        let rows = section.split_once("| left out because |").expect("the table").1.lines().skip(2);
        let rows = rows.map_while(|row| row.strip_prefix('|')?.strip_suffix(" |")?.rsplit_once("| "));
        let in_rows: usize = rows.map(|(why, count)| count.parse::<usize>().unwrap_or_else(|_| panic!("{why}"))).sum();
        assert_eq!(in_rows, left_out, "the rows of the table in docs/redis.md, and tests/suite/left-out.txt");
        let unsteady = list.entries.values().filter(|entry| entry.is_unsteady).count();
        assert!(
            section.contains(&format!("Against three servers {unsteady} more may fail")),
            "{unsteady} are unsteady"
        );
    }

    #[test]
    fn entry_without_a_reason_or_with_an_unknown_word_is_refused() {
        assert!(LeftOut::read("unit/dump: X\n").is_err_and(|why| why.contains("reason")));
        assert!(LeftOut::read("# why\nfour unit/dump: X\n").is_err_and(|why| why.contains("four")));
        assert!(LeftOut::read("# why\nunit/dump: X\nunit/dump: X\n").is_err_and(|why| why.contains("twice")));
    }
}
