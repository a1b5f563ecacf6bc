// SPDX-License-Identifier: Apache-2.0
//! What both flows have shown.

use comfy_table::{CellAlignment, Table, presets};
use fide_testbed::figures::Machine;
use serde_json::{Value, json};

use super::flows::OPTIMUM_NS;

/// A flow that has run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) name: String,
    pub(super) sent: u64,
    /// When each message that came was made (`CLOCK_MONOTONIC`), and how long it was on its way, ns.
    pub(super) messages: Vec<(u64, u64)>,
}

pub(super) struct Outcome {
    pub(super) machine: Machine,
    pub(super) begun_ns: u64,
    pub(super) seconds: u32,
    /// X-PACE's, and TCP's.
    pub(super) runs: Vec<Run>,
}

/// The time that a share of messages does not exceed, ms; none without any.
pub(super) fn delivery_ms(messages: &[(u64, u64)], share: f64) -> Option<f64> {
    let mut times: Vec<u64> = messages.iter().map(|(_, time_ns)| *time_ns).collect();
    times.sort_unstable();
    let at = (times.len() as f64 * share).ceil() as usize;
    times.get(at.saturating_sub(1)).map(|ns| *ns as f64 / 1e6)
}

impl Run {
    fn delivery_ms(&self, share: f64) -> Option<f64> {
        delivery_ms(&self.messages, share)
    }

    fn to_json(&self, begun_ns: u64) -> Value {
        let ms = |ns: u64| ns as f64 / 1e6;
        let each =
            self.messages.iter().map(|(made_ns, time_ns)| json!([ms(made_ns.saturating_sub(begun_ns)), ms(*time_ns)]));
        json!({
            "name": self.name,
            "sent": self.sent,
            "delivered": self.messages.len(),
            "delivery_ms": {
                "p1": self.delivery_ms(0.01),
                "p50": self.delivery_ms(0.5),
                "p99": self.delivery_ms(0.99),
                "longest": self.delivery_ms(1.0),
            },
            "messages": each.collect::<Vec<_>>(),
        })
    }
}

impl Outcome {
    /// `drawing`: where that is.
    pub(super) fn to_json(&self, drawing: &str) -> Value {
        json!({
            "machine": self.machine,
            "seconds": self.seconds,
            "optimum_ms": OPTIMUM_NS as f64 / 1e6,
            "flows": self.runs.iter().map(|run| run.to_json(self.begun_ns)).collect::<Vec<_>>(),
            "drawing": drawing,
        })
    }

    pub(super) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "delivery, ms",
            "p1",
            "p50",
            "p99",
            "longest",
            "messages a second",
        ]);
        for run in &self.runs {
            let of = |share: f64| run.delivery_ms(share).map_or("-".to_owned(), |ms| format!("{ms:.1}"));
            let rate = run.messages.len() as f64 / f64::from(self.seconds);
            table.add_row([run.name.clone(), of(0.01), of(0.5), of(0.99), of(1.0), format!("{rate:.1}")]);
        }
        let optimum = format!("{:.1}", OPTIMUM_NS as f64 / 1e6);
        table.add_row(["at best", &optimum, &optimum, &optimum, &optimum, ""]);
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        table.trim_fmt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_of_messages() {
        let messages: Vec<(u64, u64)> = (1..=100).map(|ms| (0, ms * 1_000_000)).collect();
        assert_eq!(delivery_ms(&messages, 0.01), Some(1.0));
        assert_eq!(delivery_ms(&messages, 0.99), Some(99.0));
        assert_eq!(delivery_ms(&messages, 1.0), Some(100.0));
        assert_eq!(delivery_ms(&[], 0.5), None);
    }
}
