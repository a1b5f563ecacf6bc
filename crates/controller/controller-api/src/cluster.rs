// SPDX-License-Identifier: Apache-2.0
//! The detector's cluster: bodies of requests and answers (FiDe §3.1, Listing 1). A program is written
//! `NAME@HOST`.

use serde::{Deserialize, Serialize};

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    pub apps: Vec<String>,
    pub monitors: Vec<Monitor>,
}

/// A host monitors a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Monitor {
    /// The host that monitors.
    pub from: String,
    pub app: String,
    pub asked_timeout_ns: u64,
    /// The timeout that the network can hold.
    pub timeout_ns: u64,
    pub pbsize: u64,
}

/// `join`: a program of the calling host, without the host's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pub app: String,
}

/// The answer to `join`, `quit` and `unmonitor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    pub app: String,
}

/// `monitor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MonitorRequest {
    pub app: String,
    pub timeout_ns: u64,
    /// Bytes of the largest piggyback.
    #[serde(default)]
    pub pbsize: u64,
}

/// The answer to [`MonitorRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Monitored {
    pub app: String,
    pub timeout_ns: u64,
    pub pbsize: u64,
    /// The lane of the heartbeats.
    pub lane: Option<u64>,
}
