// SPDX-License-Identifier: Apache-2.0
//! The faults of a run: drawn from a seed, or named, before the run begins.

mod guest;
mod named;

use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use named::{Scenario, scenarios};

use crate::member::Protocol;

/// The host that a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The host that leads when the fault comes.
    Leader,
    /// A host, from 1.
    Host(usize),
    /// The host this many places after the leader, cyclically.
    After(usize),
}

impl Who {
    /// The number of the host, if `leader` leads and there are so many hosts.
    #[must_use]
    pub fn host(self, leader: usize, hosts: usize) -> usize {
        match self {
            Self::Leader => leader,
            Self::Host(host) => host,
            Self::After(places) => (leader - 1 + places) % hosts + 1,
        }
    }
}

/// The host that is an emulated machine, if there is one.
pub const GUEST: Who = Who::Host(5);

/// Processes of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Member,
    Agent,
    /// All processes of a host.
    Both,
}

/// One fault. A process that ends is restarted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL.
    Kill { what: What, who: Who },
    /// SIGKILL for all members at once, and for their agents if `what` is [`What::Both`].
    KillAll { what: What },
    /// SIGSTOP, and SIGCONT after this many milliseconds.
    Stop { what: What, who: Who, ms: u64 },
    /// All hosts are stopped together, as when the machine under them pauses.
    StopAll { ms: u64 },
    /// The host hears no other, and no other hears it.
    Cut { who: Who, ms: u64 },
    /// The same on one plane.
    CutPlane { who: Who, plane: usize, ms: u64 },
    /// Two hosts do not hear each other; all others hear both.
    Part { a: Who, b: Who, ms: u64 },
    /// `by` does not hear `of`, but `of` hears `by`.
    Deaf { by: Who, of: Who, ms: u64 },
    /// A new agent takes over from the running one.
    TakeOver { who: Who },
    /// The guest's monitor stops the guest and continues it: no clock in the guest shows that.
    Freeze {
        ms: u64,
        /// The fault comes when the guest leads, and another host has to lead before it ends.
        leads: bool,
    },
    /// The guest's clock is slewed by clock_adjtime: by its frequency up to 500 ppm, by its tick beyond.
    Slew { ppm: u32, ms: u64 },
}

impl Fault {
    /// Duration of the fault.
    #[must_use]
    pub fn ms(self) -> u64 {
        match self {
            Self::Kill { .. } | Self::KillAll { .. } | Self::TakeOver { .. } => 0,
            Self::Stop { ms, .. }
            | Self::StopAll { ms }
            | Self::Cut { ms, .. }
            | Self::CutPlane { ms, .. }
            | Self::Part { ms, .. }
            | Self::Deaf { ms, .. }
            | Self::Freeze { ms, .. }
            | Self::Slew { ms, .. } => ms,
        }
    }

    /// Hosts whose agents others may exclude because of the fault.
    #[must_use]
    pub fn excludes(self) -> Vec<Who> {
        match self {
            Self::Freeze { .. } => vec![GUEST],
            Self::Kill { what: What::Agent | What::Both, who }
            | Self::Stop { what: What::Agent | What::Both, who, .. }
            | Self::Cut { who, .. } => vec![who],
            // One of the two.
            Self::Part { a, b, .. } => vec![a, b],
            Self::Deaf { by, of, .. } => vec![by, of],
            Self::Kill { what: What::Member, .. }
            | Self::Stop { what: What::Member, .. }
            | Self::StopAll { .. }
            | Self::KillAll { .. }
            | Self::CutPlane { .. }
            | Self::TakeOver { .. }
            | Self::Slew { .. } => vec![],
        }
    }

    /// Hosts whose state is lost for good.
    #[must_use]
    pub fn forgets(self) -> Option<Who> {
        match self {
            Self::Kill { who, .. } => Some(who),
            _ => None,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => write!(f, "leader"),
            Self::Host(host) => write!(f, "h{host}"),
            Self::After(places) => write!(f, "leader+{places}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |what: &What| match what {
            What::Member => "member",
            What::Agent => "agent",
            What::Both => "host",
        };
        match self {
            Self::Kill { what: What::Both, who } => write!(f, "kill agent and member of {who}"),
            Self::Kill { what, who } => write!(f, "kill {} of {who}", name(what)),
            Self::KillAll { what: What::Both } => write!(f, "kill all agents and members"),
            Self::KillAll { what } => write!(f, "kill every {}", name(what)),
            Self::Stop { what, who, ms } => write!(f, "stop {} of {who} for {ms} ms", name(what)),
            Self::StopAll { ms } => write!(f, "stop all hosts for {ms} ms"),
            Self::Cut { who, ms } => write!(f, "cut {who} for {ms} ms"),
            Self::CutPlane { who, plane, ms } => write!(f, "cut plane {plane} of {who} for {ms} ms"),
            Self::Part { a, b, ms } => write!(f, "part {a} from {b} for {ms} ms"),
            Self::Deaf { by, of, ms } => write!(f, "{by} does not hear {of} for {ms} ms"),
            Self::TakeOver { who } => write!(f, "agent of {who} is replaced"),
            Self::Freeze { ms, leads: false } => write!(f, "the monitor stops the guest for {ms} ms"),
            Self::Freeze { ms, leads: true } => write!(f, "the monitor stops the guest, which leads, for {ms} ms"),
            Self::Slew { ppm, ms } => write!(f, "the guest's clock is slewed by {ppm} ppm for {ms} ms"),
        }
    }
}

/// Handling of a fault that would leave fewer whole hosts than the group needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Else {
    /// The fault comes all the same.
    Comes,
    LeftOut,
    /// The fault waits until enough hosts are whole, for some seconds at most.
    Waits,
}

/// A fault and its time, from the beginning of the faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub at_ms: u64,
    pub fault: Fault,
    pub otherwise: Else,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub name: Option<&'static str>,
    pub hosts: usize,
    /// The last host is an emulated machine.
    pub has_guest: bool,
    /// Members store decisions, so that all of them may end at once.
    pub is_durable: bool,
    pub protocol: Protocol,
    /// In order.
    pub steps: Vec<Step>,
}

/// No fault begins later.
const FAULTS_MS: u64 = 2_500;
/// Two lanes of faults, each with one fault after the other: so there are two at a time.
const LANES: u64 = 2;
/// One seed in so many has a third lane: agents that are restarted, and replaced.
const RESTARTS_ONE_IN: u32 = 3;
/// Agents that are killed in the third lane, on any hosts.
pub const RESTARTS: usize = 3;
/// Stream of random numbers of the third lane, so that the other lanes are the same with it and without.
const RESTARTS_STREAM: u64 = 1;
/// The same for the ends of all processes.
const POWER_CUTS_STREAM: u64 = 2;

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let hosts = if random.random_ratio(1, 4) { 3 } else { 5 };
        let protocol = if random.random_ratio(2, 5) { Protocol::Huc } else { Protocol::Hsuc };
        let mut steps = Vec::new();
        for _ in 0..LANES {
            let mut at_ms = random.random_range(0..400);
            while at_ms < FAULTS_MS {
                let fault = fault(&mut random, hosts);
                steps.push(Step { at_ms, fault, otherwise: Else::LeftOut });
                at_ms += fault.ms() + random.random_range(50..600);
            }
        }
        random.set_stream(RESTARTS_STREAM);
        if random.random_ratio(1, RESTARTS_ONE_IN) {
            steps.extend(restarts(&mut random, hosts));
        }
        steps.sort_by_key(|step| step.at_ms);
        Self { seed, name: None, hosts, has_guest: false, is_durable: false, protocol, steps }
    }

    /// The plan of a seed, of members that store decisions: now and then all processes end at once, among the
    /// other faults.
    #[must_use]
    pub fn durable(seed: u64) -> Self {
        let mut plan = Self { is_durable: true, ..Self::of(seed) };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(POWER_CUTS_STREAM);
        for _ in 0..random.random_range(1..=3) {
            let what = if random.random_ratio(2, 3) { What::Both } else { What::Member };
            let at_ms = random.random_range(0..FAULTS_MS);
            plan.steps.push(Step { at_ms, fault: Fault::KillAll { what }, otherwise: Else::Comes });
        }
        plan.steps.sort_by_key(|step| step.at_ms);
        plan
    }
}

/// Kills of agents, with a takeover before one of them: of the leader, of one host twice, or of any.
fn restarts(random: &mut ChaCha8Rng, hosts: usize) -> Vec<Step> {
    let replaced = random.random_range(0..RESTARTS);
    let mut at_ms = random.random_range(0..400);
    let mut steps = Vec::new();
    let mut add = |at_ms: u64, fault| steps.push(Step { at_ms, fault, otherwise: Else::Waits });
    for restart in 0..RESTARTS {
        let who = who(random, hosts);
        if restart == replaced {
            add(at_ms, Fault::TakeOver { who });
            // The new agent sends its first request, has taken over, or is killed together with the running
            // one.
            at_ms += random.random_range(0..60);
        }
        add(at_ms, Fault::Kill { what: What::Agent, who });
        at_ms += random.random_range(100..900);
    }
    steps
}

fn who(random: &mut ChaCha8Rng, hosts: usize) -> Who {
    if random.random_ratio(2, 5) { Who::Leader } else { Who::Host(random.random_range(1..=hosts)) }
}

fn fault(random: &mut ChaCha8Rng, hosts: usize) -> Fault {
    let who = who(random, hosts);
    // Shorter than a timeout, about as long, or long enough for the others to go on without the host.
    let ms = match random.random_range(0..4) {
        0 => random.random_range(5..50),
        1 => random.random_range(50..120),
        _ => random.random_range(120..700),
    };
    let what = [What::Member, What::Agent, What::Both][random.random_range(0..3)];
    // Any other host than `who`.
    let mut other = |who| match who {
        Who::Host(host) => Who::Host((host - 1 + random.random_range(1..hosts)) % hosts + 1),
        Who::Leader | Who::After(_) => Who::After(random.random_range(1..hosts)),
    };
    let b = other(who);
    match random.random_range(0..100) {
        0..30 => Fault::Kill { what, who },
        30..55 => Fault::Stop { what, who, ms },
        55..70 => Fault::Cut { who, ms },
        70..78 => Fault::CutPlane { who, plane: random.random_range(0..2), ms },
        78..90 => Fault::Part { a: who, b, ms },
        90..96 => Fault::Deaf { by: who, of: b, ms },
        _ => Fault::TakeOver { who },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_decides_everything() {
        for seed in 0..200 {
            let plan = Plan::of(seed);
            assert_eq!(plan, Plan::of(seed));
            assert!(plan.steps.len() >= 4 && plan.steps.is_sorted_by_key(|step| step.at_ms), "{plan:?}");
            for step in &plan.steps {
                let pair = match step.fault {
                    Fault::Part { a, b, .. } | Fault::Deaf { by: a, of: b, .. } => Some((a, b)),
                    _ => None,
                };
                for leader in 1..=plan.hosts {
                    let differ = |(a, b): (Who, Who)| a.host(leader, plan.hosts) != b.host(leader, plan.hosts);
                    assert!(pair.is_none_or(differ), "{plan:?}");
                }
            }
        }
        assert_ne!(Plan::of(1), Plan::of(2));
    }

    #[test]
    fn every_kind_of_fault_comes() {
        let all: Vec<String> = (0..300).flat_map(|seed| Plan::of(seed).steps).map(|s| s.fault.to_string()).collect();
        for word in [
            "kill agent of",
            "kill member",
            "kill agent and",
            "stop host",
            "cut h",
            "cut plane",
            "part",
            "hear",
            "replaced",
        ] {
            assert!(all.iter().any(|fault| fault.contains(word)), "{word}");
        }
        let plans: Vec<Plan> = (0..50).map(Plan::of).collect();
        for (hosts, protocol) in [(3, Protocol::Hsuc), (3, Protocol::Huc), (5, Protocol::Hsuc), (5, Protocol::Huc)] {
            assert!(plans.iter().any(|plan| (plan.hosts, plan.protocol) == (hosts, protocol)));
        }
    }

    /// The first seeds run in `make test`.
    #[test]
    fn a_share_of_the_seeds_restarts_three_agents_and_replaces_one() {
        let count = |plan: &Plan, wanted: fn(&Fault) -> bool| {
            plan.steps.iter().filter(|step| step.otherwise == Else::Waits && wanted(&step.fault)).count()
        };
        let kills = |plan: &Plan| count(plan, |fault| matches!(fault, Fault::Kill { what: What::Agent, .. }));
        let plans: Vec<Plan> = (1..=200).map(Plan::of).collect();
        let restarted: Vec<&Plan> = plans.iter().filter(|plan| kills(plan) == RESTARTS).collect();
        assert!((50..=85).contains(&restarted.len()), "{}", restarted.len());
        assert!(restarted.iter().any(|plan| plan.seed <= 7), "none in `make test`");
        for plan in &restarted {
            assert_eq!(count(plan, |fault| matches!(fault, Fault::TakeOver { .. })), 1, "{plan:?}");
        }
        assert!(plans.iter().all(|plan| [0, RESTARTS].contains(&kills(plan))));
    }

    #[test]
    fn hosts_are_counted_round() {
        assert_eq!(Who::Leader.host(4, 5), 4);
        assert_eq!((1..5).map(|places| Who::After(places).host(4, 5)).collect::<Vec<_>>(), [5, 1, 2, 3]);
    }
}
