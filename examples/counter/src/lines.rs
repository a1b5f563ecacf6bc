// SPDX-License-Identifier: Apache-2.0
//! Orders to a replica, and its reports: one JSON object in a line. `ns` is CLOCK_MONOTONIC, which all
//! processes of a machine share.

use serde::{Deserialize, Serialize};

/// A client's request: one more, the client's `count`-th.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Add {
    pub client: u32,
    /// From 1.
    pub count: u32,
}

/// An order to a replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Order {
    /// Closed-loop clients in the replica, which has to lead: each proposes a value, waits until it is
    /// delivered, and proposes the next one.
    Run {
        run: String,
        clients: u32,
        value_bytes: u32,
        seconds: f64,
    },
    /// The same load, from when the replica leads until the next order for a load. Only the first decision is reported.
    Takeover {
        takeover: String,
        clients: u32,
        value_bytes: u32,
    },
    /// Ends the run under way, whatever its `seconds` say. Outstanding requests are waited for, and the
    /// result is reported.
    Enough {
        enough: bool,
    },
    /// Requests of clients outside.
    Add {
        add: Vec<Add>,
    },
    State {
        state: bool,
    },
    /// Removes the member of a host from the group. Only the leader's replica does so.
    Remove {
        remove: u16,
    },
}

/// A report of a replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Reported {
    /// The replica is a member.
    Ready { node: u16, ns: u64 },
    /// The replica is in this view; hosts by seniority.
    View { node: u16, number: u32, hosts: Vec<u16> },
    /// The replica was removed, but is still needed.
    Leaving { node: u16 },
    /// The replica was removed, and ends.
    Removed { node: u16 },
    /// Host `id` leads. `died_ns`: when the last death was known here, 0 for none.
    Leader {
        node: u16,
        id: u16,
        ns: u64,
        #[serde(default)]
        died_ns: u64,
    },
    /// The replica speaks for all: everything that an earlier leader may have decided is decided here too.
    /// `died_ns`: when the death was known that made it leader. `knew_ns`: when it knew that it leads.
    Leads { node: u16, died_ns: u64, knew_ns: u64, ns: u64 },
    /// The first decision of its own clients since the replica leads.
    First { node: u16, ns: u64 },
    Result {
        run: String,
        decisions: u64,
        seconds: f64,
        per_second: f64,
        p50_us: f64,
        p99_us: f64,
        max_us: f64,
        clients: u32,
    },
    /// These requests of clients count now, and the value of the counter.
    Counted { node: u16, counted: Vec<Add>, counter: u64, ns: u64 },
    /// Requests were not taken: this host does not lead, or the group has no room.
    Refused { run: String, leader: u16, why: String },
    State {
        node: u16,
        applied: u64,
        hash: String,
        /// Missing from programs that have no counter.
        #[serde(default)]
        counter: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `baselines/etcd-raft` writes and reads them.
    #[test]
    fn another_program_speaks_the_same() {
        let state = r#"{"event":"state","node":1,"applied":1137692,"hash":"fa0a4cdc7962a681"}"#;
        let reported = Reported::State { node: 1, applied: 1_137_692, hash: "fa0a4cdc7962a681".to_owned(), counter: 0 };
        assert_eq!(serde_json::from_str::<Reported>(state).unwrap(), reported);
        let leader = r#"{"event":"leader","node":2,"id":1,"term":2,"ns":7}"#;
        assert_eq!(
            serde_json::from_str::<Reported>(leader).unwrap(),
            Reported::Leader { node: 2, id: 1, ns: 7, died_ns: 0 }
        );
        let run = Order::Run { run: "a".to_owned(), clients: 16, value_bytes: 64, seconds: 5.0 };
        let line = r#"{"run":"a","clients":16,"value_bytes":64,"seconds":5.0}"#;
        assert_eq!(serde_json::to_string(&run).unwrap(), line);
        assert_eq!(serde_json::to_string(&Order::State { state: true }).unwrap(), r#"{"state":true}"#);
        for order in
            [line, r#"{"state":true}"#, r#"{"add":[{"client":1,"count":2}]}"#, r#"{"remove":2}"#, r#"{"enough":true}"#]
        {
            serde_json::from_str::<Order>(order).unwrap();
        }
        assert!(serde_json::from_str::<Order>(r#"{"stop":true}"#).is_err());
    }
}
