// SPDX-License-Identifier: Apache-2.0
//! Compares a report with an earlier one: finds changes that are larger than chance.

use super::{Figure, short};
use crate::{Error, Result};
use serde::Deserialize;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What is compared of a figure, and read from an earlier one.
#[derive(Debug, Clone, Deserialize)]
struct Before {
    figure: String,
    value: Option<f64>,
    #[serde(default)]
    baseline_value: Option<f64>,
    #[serde(default)]
    ratio: Option<f64>,
    #[serde(default)]
    spread: Option<[f64; 2]>,
    #[serde(default)]
    ratio_spread: Option<[f64; 2]>,
    #[serde(default)]
    statistic: String,
}

impl From<&Figure> for Before {
    fn from(figure: &Figure) -> Self {
        Self {
            figure: figure.figure.clone(),
            value: figure.value,
            baseline_value: figure.baseline_value,
            ratio: figure.ratio,
            spread: figure.spread,
            ratio_spread: figure.ratio_spread,
            statistic: figure.statistic.clone(),
        }
    }
}

/// An earlier report.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Earlier {
    figures: Vec<Before>,
}

/// A figure to be compared: its ratio to the baseline of its own run if it has one, because the ratio depends
/// less on the machine; else its value.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Compared {
    is_ratio: bool,
    value: f64,
    /// Its least value in the rounds of its run; the value itself if the rounds are not known. `greatest`
    /// likewise.
    least: f64,
    greatest: f64,
}

impl Compared {
    fn of(figure: &Before) -> Option<Self> {
        let ratio = figure.ratio;
        let by = if ratio.is_some() { figure.baseline_value.filter(|base| *base > 0.0)? } else { 1.0 };
        let value = ratio.or(figure.value)?;
        // The pairs' own ratios, where they are known; else the rounds beside the baseline's one value.
        let of_pairs = ratio.and(figure.ratio_spread);
        let of_rounds = figure.spread.map(|spread| spread.map(|value| value / by));
        let [least, greatest] = of_pairs.or(of_rounds).unwrap_or([value; 2]);
        Some(Self { is_ratio: ratio.is_some(), value, least: least.min(value), greatest: greatest.max(value) })
    }
}

impl Earlier {
    /// `path`: the file, or a folder with a file of that name. `None` if the folder has no file of that name,
    /// because that bench did not run then.
    pub(super) fn read(path: &Path, name: &str) -> Result<Option<Self>> {
        let file = if path.is_dir() { path.join(format!("{name}.json")) } else { path.to_owned() };
        if path.is_dir() && !file.exists() {
            return Ok(None);
        }
        let what = |what: &str| format!("{what} {}, which is to be compared with", file.display());
        let text = fs::read_to_string(&file).map_err(|e| Error::io(what("reading"), e))?;
        serde_json::from_str(&text).map(Some).map_err(|e| Error::io(what("reading figures from"), e))
    }

    /// Text for people: first the figures whose change exceeds the spread of both runs, then the missing
    /// ones.
    pub(super) fn against(&self, now: &[Figure]) -> String {
        let (mut text, mut alike, mut unsure, mut new_names) = (String::new(), 0, Vec::new(), Vec::new());
        for figure in now {
            let Some(before) = self.figures.iter().find(|before| before.figure == figure.figure) else {
                new_names.push(figure.figure.as_str());
                continue;
            };
            let (old, new) = (Compared::of(before), Compared::of(&Before::from(figure)));
            let same_kind = before.statistic == figure.statistic;
            let (old, new) = match (old, new) {
                (Some(old), Some(new)) if old.is_ratio == new.is_ratio && same_kind => (old, new),
                (Some(_), None) => {
                    let why = figure.why.as_deref().unwrap_or("it does not say why");
                    let _ = writeln!(text, "{}: not measured this time: {why}", figure.figure);
                    continue;
                }
                (None, None) => continue,
                _ => {
                    let _ = writeln!(text, "{}: another kind of figure than before", figure.figure);
                    continue;
                }
            };
            if new.least <= old.greatest && old.least <= new.greatest {
                alike += 1;
                continue;
            }
            let (is_known, what) =
                (before.spread.is_some() && figure.spread.is_some(), if new.is_ratio { "ratio " } else { "" });
            // A higher one is better where the goal is at least something.
            let judged =
                figure.goal.as_deref().map_or("", |goal| match (goal.starts_with(">="), new.value > old.value) {
                    (true, true) | (false, false) => ", better",
                    _ => ", worse",
                });
            let line = format!("{}: {what}{} -> {}{judged}", figure.figure, short(old.value), short(new.value));
            if is_known {
                let range = |of: Compared| format!("{}..{}", short(of.least), short(of.greatest));
                let _ = writeln!(text, "{line} (rounds {}, then {})", range(old), range(new));
            } else {
                unsure.push(line);
            }
        }
        if !new_names.is_empty() {
            let _ = writeln!(text, "not in the earlier run: {}", new_names.join(", "));
        }
        let gone = self.figures.iter().filter(|before| !now.iter().any(|figure| figure.figure == before.figure));
        for before in gone {
            let _ = writeln!(text, "{}: not in this run", before.figure);
        }
        let mut all = format!("against the earlier run: {alike} figures within the spread of their rounds\n");
        all += &text;
        if !unsure.is_empty() {
            all += "different from before, but without rounds to tell it from chance:\n";
            unsure.iter().for_each(|line| all += &format!("  {line}\n"));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Goal, Report, Samples, Statistic};

    fn time(name: &str, ns: u64, spread: Option<[f64; 2]>) -> Figure {
        let mut samples = Samples::default();
        samples.add(ns);
        Figure { spread, ..Figure::time(name, Statistic::P50, &samples) }
    }

    fn compared(before: &[Figure], now: &[Figure]) -> String {
        let dir = std::env::temp_dir().join(format!("fide-figures-{}", std::process::id()));
        let mut report = Report::new("detect");
        before.iter().for_each(|figure| report.add(figure.clone()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("detect.json");
        fs::write(&path, serde_json::to_string(&report).unwrap()).unwrap();
        let (of_folder, of_file) =
            (Earlier::read(&dir, "detect").unwrap().unwrap(), Earlier::read(&path, "other").unwrap().unwrap());
        assert!(Earlier::read(&dir, "jitter").unwrap().is_none(), "that bench did not run then");
        assert_eq!(of_folder.against(now), of_file.against(now));
        of_folder.against(now)
    }

    /// These are one test, because both parts write the same file.
    #[test]
    fn changes_beyond_the_spread_and_missing_figures_are_reported() {
        let goal = |figure: Figure| figure.goal(Goal::AtMost(100.0));
        let before = [
            goal(time("slower", 10_000, Some([9.0, 11.0]))),
            goal(time("alike", 10_000, Some([9.0, 11.0]))),
            time("unsure", 10_000, None),
            time("gone", 10_000, None),
        ];
        let now = [
            goal(time("slower", 20_000, Some([19.0, 22.0]))),
            goal(time("alike", 11_500, Some([10.5, 12.0]))),
            time("unsure", 11_000, None),
            time("added", 1_000, None),
        ];
        let said = compared(&before, &now);
        let expected = "against the earlier run: 1 figures within the spread of their rounds\n\
                        slower: 10.0 -> 20.0, worse (rounds 9.00..11.0, then 19.0..22.0)\n\
                        not in the earlier run: added\n\
                        gone: not in this run\n\
                        different from before, but without rounds to tell it from chance:\n  unsure: 10.0 -> 11.0\n";
        assert_eq!(said, expected);
        // A ratio is compared as one, whatever both sides were.
        let ratio = |ours: u64, theirs: u64| {
            let mut base = Samples::default();
            base.add(theirs);
            let spread = Some([ours as f64 / 1000.0 * 0.9, ours as f64 / 1000.0 * 1.1]);
            vec![time("vs", ours, spread).against("tcp", Statistic::P50, &base).goal(Goal::AtMost(0.5))]
        };
        assert!(compared(&ratio(10_000, 100_000), &ratio(20_000, 200_000)).starts_with("against the earlier run: 1 "));
        let said = compared(&ratio(20_000, 100_000), &ratio(10_000, 100_000));
        assert!(said.contains("vs: ratio 0.20 -> 0.10, better"), "{said}");
        // Pairs of rounds say more of a ratio than the rounds of one side: 0.9 to 1.1 of 0.2, but pairs alike.
        let paired = |ours: u64, pairs: [(f64, f64); 3]| {
            let figure = ratio(ours, 100_000).remove(0).ratio_of_pairs(pairs);
            vec![figure.goal(Goal::AtMost(0.5))]
        };
        let before = paired(20_000, [(1.0, 5.0), (2.0, 9.5), (3.0, 15.0)]);
        assert!(compared(&before, &paired(20_000, [(1.0, 5.0); 3])).starts_with("against the earlier run: 1 "));
        let said = compared(&before, &paired(20_000, [(1.0, 5.2), (2.0, 10.3), (3.0, 15.7)]));
        assert!(said.contains("vs: ratio 0.20 -> 0.19, better (rounds 0.20..0.21, then 0.19..0.19)"), "{said}");
        let why = Earlier::read(Path::new("/nonexistent/old.json"), "detect").unwrap_err().to_string();
        assert!(why.contains("/nonexistent/old.json"), "{why}");
    }
}
