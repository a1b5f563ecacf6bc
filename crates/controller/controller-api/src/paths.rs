// SPDX-License-Identifier: Apache-2.0
//! Paths of the HTTP interface.
//!
//! A path with a parameter is a function here; the server routes by its [`template`].

/// `GET`: the lanes that the caller sends or receives on; for an operator all. `POST`: a new lane.
pub const LANES: &str = "/v1/lanes";
/// `POST`: [reports](crate::lane::Reports) about trees of several lanes.
pub const REPORTS: &str = "/v1/reports";
/// `POST`: a program joins the detector's cluster.
pub const APPS: &str = "/v1/apps";
/// `POST`: the caller monitors a program.
pub const MONITORS: &str = "/v1/monitors";
/// `GET`: the [cluster](crate::cluster::Cluster).
pub const CLUSTER: &str = "/v1/cluster";
/// `GET`: the [network](crate::network::Network).
pub const NETWORK: &str = "/v1/network";
/// `GET`: the [caller](crate::network::Myself) as the controller knows it.
pub const SELF: &str = "/v1/self";
/// `GET`: a [batch](crate::event::Batch) of events, see [`upcalls`].
pub const UPCALLS: &str = "/v1/upcalls";

/// Paths with parameters in braces.
pub mod template {
    pub const LANE: &str = "/v1/lanes/{lane}";
    pub const USAGE: &str = "/v1/lanes/{lane}/usage";
    pub const MOVED: &str = "/v1/lanes/{lane}/moved";
    pub const LANE_REPORTS: &str = "/v1/lanes/{lane}/reports";
    pub const APP: &str = "/v1/apps/{app}";
    pub const MONITOR: &str = "/v1/monitors/{app}";
    pub const CABLE: &str = "/v1/cables/{cable}";
}

/// Parameters of [`UPCALLS`]: the last event that was handled, and how long to wait for another, in
/// milliseconds.
pub const AFTER: &str = "after";
pub const WAIT_MS: &str = "wait_ms";

/// One lane.
#[must_use]
pub fn lane(lane: u64) -> String {
    filled(template::LANE, lane)
}

/// The [usage](crate::lane::Usage) of a lane.
#[must_use]
pub fn usage(lane: u64) -> String {
    filled(template::USAGE, lane)
}

/// The sender of a lane has [moved](crate::lane::Moved) to another generation of a tree.
#[must_use]
pub fn moved(lane: u64) -> String {
    filled(template::MOVED, lane)
}

/// [Reports](crate::lane::TreeReport) about the trees of a lane.
#[must_use]
pub fn lane_reports(lane: u64) -> String {
    filled(template::LANE_REPORTS, lane)
}

/// A program of the calling host.
#[must_use]
pub fn app(name: &str) -> String {
    filled(template::APP, name)
}

/// A program that the caller monitors; `app` is `NAME@HOST`.
#[must_use]
pub fn monitor(app: &str) -> String {
    filled(template::MONITOR, app)
}

/// A cable, as `a--b`.
#[must_use]
pub fn cable(name: &str) -> String {
    filled(template::CABLE, name)
}

/// The events after number `after`, which acknowledges all up to it; waits up to `wait_ms` for the first.
#[must_use]
pub fn upcalls(after: u64, wait_ms: u64) -> String {
    format!("{UPCALLS}?{AFTER}={after}&{WAIT_MS}={wait_ms}")
}

/// A template with its one parameter. Names of hosts, programs and cables have no byte that a path must
/// escape.
fn filled(template: &str, value: impl ToString) -> String {
    let (before, rest) = template.split_once('{').expect("a template has a parameter");
    let (_, after) = rest.split_once('}').expect("a template's parameter ends");
    format!("{before}{}{after}", value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_fill_their_templates() {
        assert_eq!(lane(7), "/v1/lanes/7");
        assert_eq!(usage(7), "/v1/lanes/7/usage");
        assert_eq!(moved(7), "/v1/lanes/7/moved");
        assert_eq!(lane_reports(7), "/v1/lanes/7/reports");
        assert_eq!(app("a"), "/v1/apps/a");
        assert_eq!(monitor("a@h1"), "/v1/monitors/a@h1");
        assert_eq!(cable("h1--s1"), "/v1/cables/h1--s1");
        assert_eq!(upcalls(3, 60), "/v1/upcalls?after=3&wait_ms=60");
    }
}
