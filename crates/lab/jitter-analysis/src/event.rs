// SPDX-License-Identifier: Apache-2.0
//! What ran on a core and when: the possible culprits of a late packet.

use crate::sample::Host;
use serde::{Deserialize, Serialize};

/// The kind of interference that took the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CulpritKind {
    /// Hardware interrupt.
    Interrupt,
    /// Softirq.
    Softirq,
    /// Another thread.
    Thread,
    /// The hypervisor.
    Steal,
}

impl CulpritKind {
    /// All kinds, in the order of their codes in a log.
    pub const ALL: [CulpritKind; 4] =
        [CulpritKind::Interrupt, CulpritKind::Softirq, CulpritKind::Thread, CulpritKind::Steal];

    /// `interrupt`, ...
    pub fn name(self) -> &'static str {
        ["interrupt", "softirq", "thread", "steal"][self as usize]
    }
}

/// Something that ran on a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interference {
    /// Its kind.
    pub kind: CulpritKind,
    /// The host of the core.
    pub host: Host,
    /// The core.
    pub cpu: u32,
    /// Index of its name in the log's names.
    pub name: u32,
    /// Start, on the host's clock, ns.
    pub start_ns: i64,
    /// End, ns; not before `start_ns`.
    pub end_ns: i64,
}
