// SPDX-License-Identifier: Apache-2.0
//! What ran on a core, from when to when: the possible culprits of a late packet.

use crate::sample::Host;
use serde::{Deserialize, Serialize};

/// What kind of thing took the core.
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
    /// All, by their code in a log.
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
    /// Of which kind.
    pub kind: CulpritKind,
    /// Whose core.
    pub host: Host,
    /// Which core.
    pub cpu: u32,
    /// Index of its name in the log's names.
    pub name: u32,
    /// From, on the host's clock, ns.
    pub start_ns: i64,
    /// To, ns; not before `start_ns`.
    pub end_ns: i64,
}
