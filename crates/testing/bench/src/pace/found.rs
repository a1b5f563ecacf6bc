// SPDX-License-Identifier: Apache-2.0
//! Figures of this bench: what was found, or why nothing was.

use fide_testbed::figures::{Figure, Goal, Report};

/// A figure of one number.
pub(crate) fn figure(name: &str, unit: &str, n: usize, value: Result<f64, String>) -> Figure {
    match value {
        Ok(value) if value.is_finite() => Figure {
            figure: name.into(),
            value: Some(value),
            unit: unit.into(),
            statistic: "total".into(),
            n: n as u64,
            ..Figure::default()
        },
        Ok(value) => Figure::unmeasured(name, unit, format!("it comes to {value}: too little was found")),
        Err(why) => Figure::unmeasured(name, unit, why),
    }
}

/// Adds it.
pub(crate) fn add(
    report: &mut Report,
    name: &str,
    unit: &str,
    n: usize,
    goal: Option<Goal>,
    value: Result<f64, String>,
) {
    let figure = figure(name, unit, n, value);
    report.add(match goal {
        Some(goal) => figure.goal(goal),
        None => figure,
    });
}
