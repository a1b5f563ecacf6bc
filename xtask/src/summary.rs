// SPDX-License-Identifier: Apache-2.0
//! One summary for many test binaries, in the format that each of them has.

use std::time::Duration;

/// Lines of what a failed test printed that are said again: what it panicked with comes first.
const SAID_AGAIN: usize = 40;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Total {
    /// Counts a line if it is a summary (`test result: ok. 3 passed; 0 failed; 1 ignored; ...`).
    pub(crate) fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else {
            return;
        };
        let counts = rest.split_once(". ").map_or("", |(_, c)| c);
        for part in counts.split("; ") {
            let Some((number, kind)) = part.split_once(' ') else {
                continue;
            };
            let number: u64 = number.parse().unwrap_or(0);
            match kind {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    pub(crate) fn add_all(&mut self, other: &Total) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// So many of the failed tests passed when they ran again.
    pub(crate) fn recover(&mut self, tests: u64) {
        self.failed -= tests;
        self.passed += tests;
    }

    pub(crate) fn line(&self, took: Duration) -> String {
        let verdict = if self.failed == 0 { "ok" } else { "FAILED" };
        format!(
            "test result: {verdict}. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out; finished in {:.2}s",
            self.passed,
            self.failed,
            self.ignored,
            took.as_secs_f64()
        )
    }
}

/// Failed tests, and what they have printed, from the output of their program: of each the first lines.
pub(crate) fn failures(output: &str) -> Vec<(String, String)> {
    let mut failures: Vec<(&str, Vec<&str>)> = Vec::new();
    let told = output.lines().skip_while(|line| *line != "failures:").skip(1);
    for line in told.take_while(|line| *line != "failures:") {
        if let Some(test) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            failures.push((test, Vec::new()));
        }
        if let Some((_, said)) = failures.last_mut().filter(|(_, said)| said.len() < SAID_AGAIN) {
            said.push(line);
        }
    }
    let whole = |lines: Vec<&str>| lines.join("\n").trim_end().to_owned();
    failures.into_iter().map(|(test, said)| (test.to_owned(), whole(said))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_printed_is_found() {
        let more = "and so on\n".repeat(100);
        let output = format!(
            "running 3 tests\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\nat a\n\n---- b stdout ----\nat b\n{more}\n\n\
             failures:\n    a\n    b\n\ntest result: FAILED. 1 passed; 2 failed\n"
        );
        let found = failures(&output);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], ("a".to_owned(), "---- a stdout ----\nat a".to_owned()));
        let (test, said) = &found[1];
        assert!(test == "b" && said.starts_with("---- b stdout ----\nat b\nand so on"), "{found:?}");
        assert_eq!(said.lines().count(), SAID_AGAIN);
        assert!(failures("running 1 test\ntest result: ok. 1 passed\n").is_empty());
    }

    #[test]
    fn summaries_add_up_and_other_lines_do_not() {
        let mut total = Total::default();
        total.add("running 3 tests");
        total.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s");
        total.add("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s");
        total.add("test net::tests::one ... ok");
        assert_eq!(
            total.line(Duration::from_millis(2500)),
            "test result: FAILED. 7 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.50s"
        );
    }

    #[test]
    fn its_own_line_reads_back() {
        let total = Total { passed: 9, failed: 0, ignored: 0 };
        let mut again = Total::default();
        again.add(&total.line(Duration::ZERO));
        assert_eq!(again, total);
    }
}
