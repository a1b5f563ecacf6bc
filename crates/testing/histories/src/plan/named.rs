// SPDX-License-Identifier: Apache-2.0
//! Schedules that once broke something, or that are meant to.

use super::{Else, Fault, Plan, Protocol, Step, What, Who};

/// A schedule with a name.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// What it tries to break.
    pub about: &'static str,
    hosts: usize,
    is_durable: bool,
    steps: &'static [(u64, Fault)],
}

impl Scenario {
    #[must_use]
    pub fn plan(&self, seed: u64, protocol: Protocol) -> Plan {
        let steps = self
            .steps
            .iter()
            .map(|(at_ms, fault)| Step { at_ms: *at_ms, fault: *fault, otherwise: Else::Comes })
            .collect();
        Plan {
            seed,
            name: Some(self.name),
            hosts: self.hosts,
            has_guest: false,
            is_durable: self.is_durable,
            protocol,
            steps,
        }
    }
}

const fn kill(what: What, who: Who) -> Fault {
    Fault::Kill { what, who }
}

const fn stop(what: What, who: Who, ms: u64) -> Fault {
    Fault::Stop { what, who, ms }
}

const H1: Who = Who::Host(1);
const H2: Who = Who::Host(2);
const H3: Who = Who::Host(3);

const ALL: &[Scenario] = &[
    Scenario {
        name: "agent-restart",
        about: "the leader's agent is killed and starts again: the old leader must not answer under the new agent's lease",
        hosts: 5,
        is_durable: false,
        steps: &[
            (300, kill(What::Agent, Who::Leader)),
            (1300, kill(What::Agent, Who::Leader)),
            (2300, kill(What::Agent, Who::Leader)),
        ],
    },
    Scenario {
        name: "agent-restart-3",
        about: "the same with three hosts, once",
        hosts: 3,
        is_durable: false,
        steps: &[(300, kill(What::Agent, Who::Leader))],
    },
    Scenario {
        name: "leader-asleep",
        about: "the leader stands still while its host is excluded and let in again",
        hosts: 5,
        is_durable: false,
        steps: &[
            (300, Fault::Cut { who: H1, ms: 300 }),
            (305, stop(What::Member, H1, 1200)),
            (1900, Fault::Cut { who: H2, ms: 300 }),
            (1905, stop(What::Member, H2, 1200)),
        ],
    },
    Scenario {
        name: "leader-paused",
        about: "every process of the leader's host stands still, past its lease",
        hosts: 5,
        is_durable: false,
        steps: &[(300, stop(What::Both, Who::Leader, 400)), (1500, stop(What::Both, Who::Leader, 400))],
    },
    Scenario {
        name: "leader-cut",
        about: "the leader's host is cut off, and clients still reach it",
        hosts: 5,
        is_durable: false,
        steps: &[(300, Fault::Cut { who: Who::Leader, ms: 400 }), (1500, Fault::Cut { who: Who::Leader, ms: 400 })],
    },
    Scenario {
        name: "parted",
        about: "a host is excluded as it does not hear another, and its member starts again before the host is let in",
        hosts: 3,
        is_durable: false,
        steps: &[(300, Fault::Deaf { by: H3, of: H1, ms: 500 }), (1700, Fault::Part { a: H3, b: H1, ms: 500 })],
    },
    Scenario {
        name: "restart-while-parted",
        about: "a host that partial partition excludes has its member restarted before it is let in again",
        hosts: 3,
        is_durable: false,
        steps: &[
            (300, Fault::Part { a: H1, b: H3, ms: 600 }),
            (700, kill(What::Member, H3)),
            (850, kill(What::Member, H3)),
        ],
    },
    Scenario {
        name: "parted-then-stopped",
        about: "h3 is excluded by partial partition, then h1 stands still: nobody dies, so nothing may be lost",
        hosts: 3,
        is_durable: false,
        steps: &[(300, Fault::Part { a: H1, b: H3, ms: 1500 }), (900, stop(What::Both, H1, 400))],
    },
    Scenario {
        name: "parted-then-cut",
        about: "h3 is excluded by partial partition, then h1 is cut off: nobody dies, so nothing may be lost",
        hosts: 3,
        is_durable: false,
        steps: &[(300, Fault::Part { a: H1, b: H3, ms: 1500 }), (900, Fault::Cut { who: H1, ms: 400 })],
    },
    Scenario {
        name: "all-paused",
        about: "all hosts stand still together, past every lease: nobody dies, so nothing may be lost",
        hosts: 5,
        is_durable: false,
        steps: &[(300, Fault::StopAll { ms: 400 }), (1500, Fault::StopAll { ms: 150 })],
    },
    Scenario {
        name: "majority-cut",
        about: "three of five hosts are cut off, each by itself: the group waits, and nothing is lost",
        hosts: 5,
        is_durable: false,
        steps: &[
            (300, Fault::Cut { who: H1, ms: 500 }),
            (300, Fault::Cut { who: H2, ms: 500 }),
            (300, Fault::Cut { who: H3, ms: 500 }),
        ],
    },
    Scenario {
        name: "three-restarts",
        about: "an agent is killed three times in a row, each time before its host is a member again",
        hosts: 5,
        is_durable: false,
        steps: &[
            (300, kill(What::Agent, H2)),
            (500, kill(What::Agent, H2)),
            (700, kill(What::Agent, H2)),
            (1500, kill(What::Both, Who::Leader)),
        ],
    },
    Scenario {
        name: "takeovers",
        about: "new agents take over on the leader's host and on another, and then the leader's member dies",
        hosts: 5,
        is_durable: false,
        steps: &[
            (300, Fault::TakeOver { who: Who::Leader }),
            (600, Fault::TakeOver { who: Who::After(1) }),
            (900, kill(What::Member, Who::Leader)),
            (1500, Fault::TakeOver { who: Who::Leader }),
        ],
    },
    Scenario {
        name: "leaders-killed",
        about: "leader after leader is killed, each as soon as it leads",
        hosts: 5,
        is_durable: false,
        steps: &[
            (300, kill(What::Member, Who::Leader)),
            (330, kill(What::Member, Who::Leader)),
            (700, kill(What::Both, Who::Leader)),
            (730, kill(What::Member, Who::Leader)),
            (1200, kill(What::Member, Who::Leader)),
        ],
    },
    Scenario {
        name: "power-cut",
        about: "all processes of all hosts end at once, again and again: what was answered is on disk",
        hosts: 5,
        is_durable: true,
        steps: &[
            (400, Fault::KillAll { what: What::Both }),
            (2500, Fault::KillAll { what: What::Member }),
            (4000, kill(What::Member, Who::Leader)),
            (4005, Fault::KillAll { what: What::Both }),
        ],
    },
    Scenario {
        name: "power-cut-3",
        about: "the same with three hosts, while one of them was out",
        hosts: 3,
        is_durable: true,
        steps: &[
            (300, Fault::Cut { who: Who::Leader, ms: 700 }),
            (900, Fault::KillAll { what: What::Both }),
            (3000, kill(What::Both, H2)),
            (3100, Fault::KillAll { what: What::Member }),
        ],
    },
];

/// All schedules.
#[must_use]
pub fn scenarios() -> &'static [Scenario] {
    ALL
}
