// SPDX-License-Identifier: Apache-2.0
//! Figures of cables, each with its source: none is made up without a note.

use std::fmt;

use fide_planner::topology::CableSpec;
use serde::Serialize;

/// Where a figure is from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The limit in the controller's file for the switch's ports.
    Driver,
    /// A queueing discipline that limits the port, or the queue of the lane at the port.
    Queue,
    /// Speed of the port's hardware.
    Port,
    /// Announced by the host at the other end.
    Announced,
    /// Given by the operator.
    Given,
    /// Unknown: the planner's usual figure.
    Assumed,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Driver => "limited by the controller's file",
            Source::Queue => "the port's queue",
            Source::Port => "the port's speed",
            Source::Announced => "announced by the host",
            Source::Given => "given",
            Source::Assumed => "assumed",
        })
    }
}

/// A figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Figure {
    pub value: u64,
    pub source: Source,
}

impl Figure {
    /// As it reads.
    #[must_use]
    pub const fn new(value: u64, source: Source) -> Figure {
        Figure { value, source }
    }

    /// The figure that holds for both: the smaller; the first of two that are alike.
    #[must_use]
    pub fn least(one: Option<Figure>, other: Option<Figure>) -> Option<Figure> {
        match (one, other) {
            (Some(one), Some(other)) => Some(if other.value < one.value { other } else { one }),
            (one, other) => one.or(other),
        }
    }

    /// The figure that was found; else the given one; else the assumed one.
    pub(crate) fn or(found: Option<Figure>, given: Option<u64>, assumed: u64) -> Figure {
        let given = given.map(|value| Figure::new(value, Source::Given));
        found.or(given).unwrap_or(Figure::new(assumed, Source::Assumed))
    }
}

/// The operator's figures. Bandwidth and queue are for cables whose ports report none; latencies are never
/// reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    pub bandwidth_bps: Option<u64>,
    pub queue_bytes: Option<u64>,
    /// lambda_min between switches, nanoseconds.
    pub latency_min_ns: Option<u64>,
    /// delta_max between switches, nanoseconds.
    pub jitter_max_ns: Option<u64>,
    /// lambda_min between a host and its switch, nanoseconds.
    pub host_latency_min_ns: Option<u64>,
    /// delta_max between a host and its switch, nanoseconds.
    pub host_jitter_max_ns: Option<u64>,
}

/// Figures that all cables share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Latencies {
    pub latency_min_ns: Figure,
    pub jitter_max_ns: Figure,
    pub host_latency_min_ns: Figure,
    pub host_jitter_max_ns: Figure,
}

impl Latencies {
    pub(crate) fn of(given: &Given) -> Latencies {
        let usual = CableSpec::default();
        Latencies {
            latency_min_ns: Figure::or(None, given.latency_min_ns, usual.latency_min_ns),
            jitter_max_ns: Figure::or(None, given.jitter_max_ns, usual.jitter_max_ns),
            host_latency_min_ns: Figure::or(None, given.host_latency_min_ns, usual.host_latency_min_ns),
            host_jitter_max_ns: Figure::or(None, given.host_jitter_max_ns, usual.host_jitter_max_ns),
        }
    }

    /// By their keys in the planner's file.
    pub fn named(&self) -> [(&'static str, Figure); 4] {
        [
            ("latency_min_ns", self.latency_min_ns),
            ("jitter_max_ns", self.jitter_max_ns),
            ("host_latency_min_ns", self.host_latency_min_ns),
            ("host_jitter_max_ns", self.host_jitter_max_ns),
        ]
    }
}
