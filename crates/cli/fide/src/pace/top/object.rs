// SPDX-License-Identifier: Apache-2.0
//! A view of connections for programs.

use fide_pace_socket::{Paces, ShownConnection, ShownEndpoint, Snapshot, Step};
use serde_json::{Map, Value, json};

use super::{Change, View};

/// Times in nanoseconds; null is a pace that is not known.
fn way(paces: &Paces) -> Map<String, Value> {
    let known = |step: Step| Some(paces.get(step)).filter(|ns| *ns > 0);
    let paces_ns: Map<String, Value> =
        Step::ALL.into_iter().map(|step| (step.name().to_owned(), json!(known(step)))).collect();
    let bottleneck = paces.bottleneck().map(|(step, _)| step.name());
    Map::from_iter([("bottleneck".to_owned(), json!(bottleneck)), ("paces_ns".to_owned(), paces_ns.into())])
}

fn connection(endpoint: &ShownEndpoint, shown: &ShownConnection, before: Option<&View>) -> Value {
    let change = Change::new(endpoint, shown.id, &shown.snapshot, before);
    let now: &Snapshot = &shown.snapshot;
    let (sent, received) = (now.counts.sent, now.counts.received);
    let with = |mut way: Map<String, Value>, more: Value| {
        if let Value::Object(more) = more {
            way.extend(more);
        }
        way
    };
    json!({
        "id": shown.id,
        "peer": shown.peer,
        "over": now.is_over,
        "deadline_ns": now.deadline_ns,
        "out": with(way(&now.there), json!({
            "total_ns": now.send_total_ns,
            "one_way_us": now.one_way_us,
            "messages": sent.messages,
            "messages_per_s": change.per_second(|of| of.counts.sent.messages),
            "dropped": sent.dropped,
            "dropped_per_s": change.per_second(|of| of.counts.sent.dropped),
            "packets": sent.symbols,
            "redundancy": sent.redundancy,
            "again": sent.again,
            "given_up": sent.given_up,
            "waiting": now.waiting_to_leave,
            "waiting_there": now.waiting_there,
        })),
        "in": with(way(&now.back), json!({
            "total_ns": now.deliver_total_ns,
            "one_way_us": now.one_way_here_us,
            "messages": received.delivered,
            "messages_per_s": change.per_second(|of| of.counts.received.delivered),
            "lost": received.lost,
            "lost_per_s": change.per_second(|of| of.counts.received.lost),
            "late": received.late,
            "restored": received.restored,
            "waiting": now.waiting_here,
        })),
        "path": {
            "bytes_per_s": now.network_bytes_per_s,
            // Two packets that measure the link leave at once, at no rate.
            "paced_bytes_per_s": (now.paced_bytes_per_s < u64::MAX / 2).then_some(now.paced_bytes_per_s),
            "round_trip_us": now.round_trip_us,
            "shortest_us": now.shortest_us,
            "queue_us": now.round_trip_us.zip(now.shortest_us).map(|(mean, shortest)| mean.saturating_sub(shortest)),
            "clock_ahead_us": now.clock_ahead_us,
            "clock_uncertainty_us": now.clock_uncertainty_us,
            "drift_ppm": now.clock_ahead_us.map(|_| now.drift_ppm),
            "loss": change.loss(),
            "lost_packets": now.lost_packets,
            "came_packets": now.came_packets,
            "in_flight_bytes": now.in_flight_bytes,
            "window_bytes": now.window_bytes,
            "packet_bytes": now.packet_bytes,
            // Who keeps the times at which packets leave.
            "departures": if now.written_ahead_ns > 0 { "kernel" } else { "timer" },
        },
    })
}

pub(super) fn object(view: &View, before: Option<&View>) -> Value {
    let endpoint = |endpoint: &ShownEndpoint| {
        json!({
            "pid": endpoint.pid,
            "program": endpoint.program,
            "local": endpoint.local,
            "accepts": endpoint.is_server,
            "age_ns": view.at_ns.saturating_sub(endpoint.written_ns),
            "connections": endpoint.connections,
            "dropped_datagrams": endpoint.dropped,
            "shown": endpoint.shown.iter().map(|shown| connection(endpoint, shown, before)).collect::<Vec<_>>(),
        })
    };
    json!({
        "at_ns": view.at_ns,
        "endpoints": view.shown.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "of_other_versions": view.shown.of_other_versions,
    })
}
