// SPDX-License-Identifier: Apache-2.0
//! The names of the measures, and their order in a report.

use crate::run::model::Run;
use fide_jitter_analysis::stats::{Measure, MeasureStats, Reference};
use fide_jitter_analysis::{Schedule, Stamp};

/// All measures; those that readers want first come first.
pub(crate) const ORDER: [Measure; 10] = [
    Measure::RoundTrip,
    Measure::AToB,
    Measure::AtB,
    Measure::BToA,
    Measure::Network,
    Measure::SendLateness,
    Measure::Successive(Stamp::Ts1),
    Measure::Successive(Stamp::Ts2),
    Measure::Successive(Stamp::Ts3),
    Measure::Successive(Stamp::Ts4),
];

/// Measures that are times of a packet, not differences between packets.
pub(crate) const TIMES: [Measure; 6] =
    [Measure::RoundTrip, Measure::AToB, Measure::AtB, Measure::BToA, Measure::Network, Measure::SendLateness];

/// The name in JSON and of plots.
pub(crate) fn key(measure: Measure) -> &'static str {
    match measure {
        Measure::Successive(Stamp::Ts1) => "successive_ts1",
        Measure::Successive(Stamp::Ts2) => "successive_ts2",
        Measure::Successive(Stamp::Ts3) => "successive_ts3",
        Measure::Successive(Stamp::Ts4) => "successive_ts4",
        Measure::SendLateness => "send_lateness",
        Measure::AToB => "a_to_b",
        Measure::AtB => "at_b",
        Measure::BToA => "b_to_a",
        Measure::RoundTrip => "round_trip",
        Measure::Network => "network",
    }
}

/// The name for people.
pub(crate) fn title(measure: Measure) -> String {
    match measure {
        Measure::Successive(stamp) => format!("{} to the next", stamp.name()),
        Measure::SendLateness => "Lateness of sending".into(),
        Measure::AToB => "Ping, A to B".into(),
        Measure::AtB => "Time within B".into(),
        Measure::BToA => "Pong, B to A".into(),
        Measure::RoundTrip => "Round trip".into(),
        Measure::Network => "Round trip without B".into(),
    }
}

/// The exact meaning of a measure in a run.
pub(crate) fn meaning(measure: Measure, run: &Run) -> String {
    let words = match measure {
        Measure::Successive(stamp) => return format!("{} of a packet less that of the packet before", stamp.name()),
        Measure::SendLateness if run.info.schedule == Schedule::Relative => {
            "ts1 less the ts1 before and one period: what the send loop adds to its interval"
        }
        Measure::SendLateness => "ts1 less the time at which the packet was due",
        Measure::AToB => "ts2 - ts1",
        Measure::AtB => "ts3 - ts2",
        Measure::BToA => "ts4 - ts3",
        Measure::RoundTrip => "ts4 - ts1",
        Measure::Network => "(ts4 - ts1) - (ts3 - ts2), to which no clock offset matters",
    };
    if relative(measure, run) {
        return format!(
            "{words}; the clocks of A and B differ, so this is how much longer a packet took than the fastest of some \
             5000 around it, not how long it took"
        );
    }
    words.into()
}

/// Whether it is counted from the run's own baseline, because clocks differ.
pub(crate) fn relative(measure: Measure, run: &Run) -> bool {
    measure.reference(&run.info) == Reference::Baseline
}

/// A measure of a run, if there are any values.
pub(crate) fn of(run: &Run, measure: Measure) -> Option<&MeasureStats> {
    run.stats.measure(measure).filter(|m| m.summary.is_some())
}

/// Why a measure has no values in a run.
pub(crate) fn why_none(run: &Run, measure: Measure) -> String {
    let stats = &run.stats;
    let left_out = stats.measure(measure).map_or(0, |m| m.impossible);
    match (stats.packets, measure) {
        (0, _) => "the log has no packet".into(),
        (1, Measure::Successive(_)) => "the log has one packet: there is no other to compare it with".into(),
        (packets, _) if packets == stats.unsent => "no packet was sent".into(),
        _ if left_out > 0 => format!("all {left_out} values were left out because of what the clocks did"),
        (_, Measure::SendLateness) => "no packet has a time at which it was due".into(),
        _ if stats.answered == 0 => "no packet came back, and the stamps that this needs are missing".into(),
        _ => "the stamps that this needs are missing".into(),
    }
}
