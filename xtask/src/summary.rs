// SPDX-License-Identifier: Apache-2.0
//! One summary for many test binaries, in the format that each of them has.

use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;

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
