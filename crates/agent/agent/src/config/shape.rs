// SPDX-License-Identifier: Apache-2.0
//! The part of the configuration that all hosts must have in common.

use fide_agent_api::status::Difference;
use fide_wire::{Digest, Shape};

use super::{Config, Policy, Trust};

const NETWORK: u8 = 1;
const LEASE: u8 = 2;
const MAJORITY: u8 = 2;

impl Config {
    /// Name, period of heartbeats, members, trust and policy. Timeouts, keys and everything in `[agent]`
    /// may differ.
    ///
    /// Only the period is used by every host without being announced: each takes the others' period to be
    /// its own, in its timeouts (a heartbeat at a longer period would be late each time) and when it
    /// measures jitter.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let mut cluster = Digest::default();
        cluster.add(self.cluster.as_bytes());
        cluster.add(&self.heartbeat_ns.to_le_bytes());
        let mut list = Digest::default();
        for member in &self.members {
            list.add(member.name.as_bytes());
            list.add(member.role.as_str().as_bytes());
            let addresses: Vec<u8> = member.addresses.iter().flat_map(|address| address.octets()).collect();
            list.add(&addresses);
            let mut monitors = member.monitors.clone();
            monitors.sort_unstable();
            let monitors: Vec<u8> = monitors.iter().flat_map(|id| id.to_le_bytes()).collect();
            list.add(&monitors);
        }
        // Addresses say how many networks there are.
        for _ in self.networks()..self.planes.len() {
            list.add(b"windows");
        }
        Shape {
            trust: match self.trust {
                Trust::Network => NETWORK,
                Trust::Lease => LEASE,
            },
            policy: match self.policy {
                Policy::Network => NETWORK,
                Policy::Majority => MAJORITY,
            },
            members: u8::try_from(self.members.len()).expect("at most 64"),
            cluster: cluster.value(),
            list: list.value(),
        }
    }
}

/// How `there` differs from `here`.
#[must_use]
pub fn differences(here: &Shape, there: &Shape) -> Vec<Difference> {
    let mut all = Vec::new();
    let mut differs = |item: &str, there: String, here: String| {
        all.push(Difference { item: item.to_owned(), there, here });
    };
    if here.cluster != there.cluster {
        let (there, here) = ("another name or heartbeat_us", "this name and heartbeat_us");
        differs("cluster", there.to_owned(), here.to_owned());
    }
    if here.members != there.members {
        differs("members", there.members.to_string(), here.members.to_string());
    } else if here.list != there.list {
        let as_many =
            |whose| format!("{} with {whose} names, addresses, roles, monitors or planes of windows", here.members);
        differs("members", as_many("other"), as_many("these"));
    }
    let trust = |code| if code == NETWORK { "network" } else { "lease" }.to_owned();
    if here.trust != there.trust {
        differs("trust", trust(there.trust), trust(here.trust));
    }
    let policy = |code| if code == NETWORK { "network" } else { "majority" }.to_owned();
    if here.policy != there.policy {
        differs("policy", policy(there.policy), policy(here.policy));
    }
    all
}

/// The same as text.
#[must_use]
pub fn says(differs: &[Difference]) -> String {
    let one = |d: &Difference| format!("{} ({} there, {} here)", d.item, d.there, d.here);
    differs.iter().map(one).collect::<Vec<_>>().join(", ")
}
