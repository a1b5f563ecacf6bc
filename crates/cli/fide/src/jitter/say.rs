// SPDX-License-Identifier: Apache-2.0
//! A measurement in a few lines.

use fide_cli::units::{interval, time};
use fide_jitter_analysis::{
    families::Families,
    stats::{Measure, MeasureStats, RunStats},
};
use fide_latency_probe::session::Measurement;
use fide_report::run::{FamilyText, JSON_VERSION};
use serde_json::{Value, json};

use crate::{exit::Failure, say::show};

/// The measures that people look at first.
const SHOWN: [(Measure, &str); 4] = [
    (Measure::SendLateness, "sent late by"),
    (Measure::AToB, "A to B"),
    (Measure::BToA, "B to A"),
    (Measure::RoundTrip, "round trip"),
];

fn percentile(stats: &MeasureStats, share: f64) -> Option<i64> {
    let summary = stats.summary.as_ref()?;
    summary.percentiles.iter().find(|(of, _)| *of == share).map(|(_, ns)| *ns)
}

/// For people.
pub(super) fn summary(measured: &Measurement, stats: &RunStats) -> Result<(), Failure> {
    let info = &measured.info;
    show!(
        "{} to {}, {}, {} bytes every {}, {} schedule",
        info.host_a,
        info.host_b,
        info.method,
        info.packet_bytes,
        interval(info.period_ns),
        info.schedule
    )?;
    show!(
        "{} packets: {} answered, {} lost ({} of them on the way back), {} sent later than {} after they were due",
        stats.packets,
        stats.answered,
        stats.lost,
        stats.lost_after_b,
        stats.late.packets,
        time(stats.late.after_ns as f64)
    )?;
    if let Some(why) = &measured.ended {
        show!("ended early: {why}")?;
    }
    if stats.pongs.len() > 1 {
        show!("the other side was started again {} times", stats.pongs.len() - 1)?;
    }
    show!("{:<14} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "min", "p50", "p99", "max", "jitter")?;
    for (measure, title) in SHOWN {
        let Some(stats) = stats.measure(measure) else { continue };
        let Some(summary) = &stats.summary else {
            show!("{title:<14} no value")?;
            continue;
        };
        let share = |share| percentile(stats, share).map_or("-".to_owned(), |ns| time(ns as f64));
        show!(
            "{title:<14} {:>10} {:>10} {:>10} {:>10} {:>10}{}",
            time(summary.min_ns as f64),
            share(0.5),
            share(0.99),
            time(summary.max_ns as f64),
            time(summary.jitter_ns as f64),
            match stats.reference {
                fide_jitter_analysis::stats::Reference::Absolute => "",
                fide_jitter_analysis::stats::Reference::Baseline => "  above its own minimum (two clocks)",
            }
        )?;
    }
    for (name, state) in &info.isolation {
        show!("  {name}: {state}")?;
    }
    Ok(())
}

/// For programs.
pub(super) fn summary_json(measured: &Measurement, stats: &RunStats, found: &Families) -> Value {
    let of = |measure: Measure| {
        let stats = stats.measure(measure)?;
        let summary = stats.summary.as_ref()?;
        Some(json!({
            "min_ns": summary.min_ns, "p50_ns": percentile(stats, 0.5), "p99_ns": percentile(stats, 0.99),
            "max_ns": summary.max_ns, "jitter_ns": summary.jitter_ns, "n": summary.n, "reference": stats.reference,
        }))
    };
    json!({
        "version": JSON_VERSION,
        "run": measured.info,
        "packets": stats.packets,
        "answered": stats.answered,
        "lost": stats.lost,
        "lost_after_b": stats.lost_after_b,
        "late": stats.late,
        "send_failed": measured.send_failed,
        "ignored": measured.ignored,
        "ended": measured.ended,
        "restarts": stats.pongs.len().saturating_sub(1),
        "send_lateness": of(Measure::SendLateness),
        "a_to_b": of(Measure::AToB),
        "b_to_a": of(Measure::BToA),
        "round_trip": of(Measure::RoundTrip),
        "families": found.families.iter().map(FamilyText::from).collect::<Vec<_>>(),
        "events": measured.events.len(),
        "events_lost": measured.events_lost,
    })
}
