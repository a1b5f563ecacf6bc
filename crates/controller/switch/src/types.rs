// SPDX-License-Identifier: Apache-2.0
//! Rules, lanes, ranges of groups, and differences.

use crate::DriverError;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

/// Most sub-lanes of one switch: priorities of HTB less the last, which is best effort's, and one of reserve.
pub const MAX_SUB_LANES: usize = 6;
const DSCP_MAX: u8 = 63;
/// DSCP CS7 and EF.
const CS7: u8 = 56;
const EF: u8 = 46;

/// Where packets of a group leave the switch. A packet never leaves where it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Multicast group of one (sender, tree).
    pub group: Ipv4Addr,
    /// Names of the ports.
    pub ports: BTreeSet<String>,
}

impl Rule {
    /// As it reads.
    pub fn new<P: Into<String>>(group: Ipv4Addr, ports: impl IntoIterator<Item = P>) -> Rule {
        Rule { group, ports: ports.into_iter().map(Into::into).collect() }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {{{}}}", self.group, join(&self.ports))
    }
}

pub(crate) fn join(words: &BTreeSet<String>) -> String {
    words.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The multicast groups that are a driver's own: `239.71.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRange {
    network: u32,
    prefix: u8,
}

impl GroupRange {
    /// All groups that share the first `prefix` bits of `network`.
    ///
    /// # Errors
    /// If it is not all multicast (within 224.0.0.0/4), or holds link-local groups (224.0.0.0/24), which
    /// switches flood.
    pub fn new(network: Ipv4Addr, prefix: u8) -> Result<GroupRange, DriverError> {
        let range = GroupRange { network: u32::from(network) & mask(prefix), prefix };
        let local = GroupRange { network: u32::from(Ipv4Addr::new(224, 0, 0, 0)), prefix: 24 };
        let within = (4..=32).contains(&prefix) && network.is_multicast();
        if !within || range.contains(local.network.into()) || local.contains(network) {
            return Err(DriverError::Range(format!(
                "{network}/{prefix} is no range of groups; give one within 224.0.0.0/4 and without 224.0.0.0/24, as \
                 239.71.0.0/16"
            )));
        }
        Ok(range)
    }

    /// Whether a group is one of them.
    pub fn contains(&self, group: Ipv4Addr) -> bool {
        u32::from(group) & mask(self.prefix) == self.network
    }

    /// Refuses the first rule that is not within.
    pub(crate) fn check<'a>(&self, groups: impl IntoIterator<Item = &'a Ipv4Addr>) -> Result<(), DriverError> {
        match groups.into_iter().find(|g| !self.contains(**g)) {
            Some(group) => Err(DriverError::Range(format!(
                "group {group} is not within {self}, which is all that this driver was given; open it with another range"
            ))),
            None => Ok(()),
        }
    }

    /// Place of a group in the range, from 0.
    pub(crate) fn offset(&self, group: Ipv4Addr) -> u32 {
        u32::from(group) & !mask(self.prefix)
    }

    /// Network and prefix length.
    pub(crate) fn parts(&self) -> (Ipv4Addr, u8) {
        (self.network.into(), self.prefix)
    }
}

impl fmt::Display for GroupRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.network), self.prefix)
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

/// Which packets are served first at every port, and how fast the ports are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lanes {
    /// DSCP codepoints of each sub-lane, the highest priority first. A sub-lane's packet never waits for one
    /// of a later sub-lane, but for the one that is being sent (X-Lane §3.2). 1 to [`MAX_SUB_LANES`].
    pub sub_lanes: Vec<Vec<u8>>,
    /// Rate of the ports in bit/s. None: they send as fast as their devices take packets. A rate below the
    /// device's own keeps the queue here, where it has priorities, instead of in a device that has none.
    pub rate_bps: Option<u64>,
    /// The same for ports that differ, by name.
    pub port_rate_bps: BTreeMap<String, u64>,
}

impl Default for Lanes {
    /// CS7 before EF, at the devices' own rate.
    fn default() -> Self {
        Lanes { sub_lanes: vec![vec![CS7], vec![EF]], rate_bps: None, port_rate_bps: BTreeMap::new() }
    }
}

impl Lanes {
    /// Checks that a switch could be set to this.
    ///
    /// # Errors
    /// [`DriverError::Lanes`], with what it is and what would be right.
    pub fn check(&self) -> Result<(), DriverError> {
        let mut seen = BTreeSet::new();
        let all = self.sub_lanes.iter().flatten();
        let fits = all.clone().all(|d| *d <= DSCP_MAX && seen.insert(*d));
        let filled = self.sub_lanes.iter().all(|l| !l.is_empty());
        if !(1..=MAX_SUB_LANES).contains(&self.sub_lanes.len()) || !fits || !filled {
            return Err(DriverError::Lanes(format!(
                "{:?}; there are 1 to {MAX_SUB_LANES} sub-lanes, each with codepoints of 0 to {DSCP_MAX} of its own",
                self.sub_lanes
            )));
        }
        let mut rates = self.rate_bps.iter().chain(self.port_rate_bps.values());
        if rates.any(|r| *r < 8) {
            return Err(DriverError::Lanes("a rate below 8 bit/s lets nothing through; give more, or none".into()));
        }
        Ok(())
    }

    pub(crate) fn rate_of(&self, port: &str) -> Option<u64> {
        self.port_rate_bps.get(port).copied().or(self.rate_bps)
    }
}

/// A port's limits, as far as the switch's own software decides them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Egress {
    /// Bit/s that its queueing discipline (HTB or TBF) lets out, whichever program made it. None: no limit.
    pub limit_bps: Option<u64>,
    /// Packets that a lane's queue holds there, once the switch is prepared. None: the interface does not
    /// report a length.
    pub queue_packets: Option<u32>,
}

/// A group's limit through a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Packets per second, at least 1.
    pub packets_per_s: u32,
    /// Packets that may come at once, at least 1.
    pub burst_packets: u32,
}

/// A difference between what a switch should do and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Drift {
    /// The group is not there at all.
    Missing {
        /// Which.
        group: Ipv4Addr,
    },
    /// The group is there, but not with these ports.
    Ports {
        /// Which.
        group: Ipv4Addr,
        /// Ports that should get its packets, and do not.
        missing: BTreeSet<String>,
        /// Ports that get its packets, and should not.
        extra: BTreeSet<String>,
    },
    /// The group is in the driver's range, and no rule wants it.
    Extra {
        /// Which.
        group: Ipv4Addr,
    },
    /// A port no longer serves the lanes first.
    Priority {
        /// Its name.
        port: String,
        /// The part that is not as prepared.
        why: String,
    },
    /// Rules are there, but the switch does not apply them.
    Inert {
        /// The setting that is switched off.
        why: String,
    },
    /// A group's limit is missing, or differs.
    Meter {
        /// Which.
        group: Ipv4Addr,
        /// The part that is not as set.
        why: String,
    },
}

/// The result of [`crate::Driver::install`].
#[must_use]
#[derive(Debug, Default)]
pub struct Installed {
    /// Groups whose rule is not in force, or only in part, and the switch's first error.
    pub refused: Vec<(Ipv4Addr, DriverError)>,
}

impl Installed {
    /// # Errors
    /// The first refused rule's.
    pub fn complete(self) -> Result<(), DriverError> {
        self.refused.into_iter().next().map_or(Ok(()), |(_, why)| Err(why))
    }
}

/// The result of [`crate::Driver::repair`].
#[must_use]
#[derive(Debug, Default)]
pub struct Repaired {
    /// All differences that were found.
    pub found: Vec<Drift>,
    /// The differences that could not be repaired, or only in part, and the switch's first error.
    pub refused: Vec<(Drift, DriverError)>,
    /// How these differ now, as far as this repair has changed them.
    pub left: Vec<Drift>,
}

impl Repaired {
    /// `differs`: how rules differ now from the wanted ones.
    pub(crate) fn new(found: Vec<Drift>, refused: Vec<(Drift, DriverError)>, differs: Vec<Drift>) -> Repaired {
        let others = refused.iter().map(|(drift, _)| drift).filter(|drift| drift.group().is_none()).cloned();
        let groups: BTreeSet<_> = refused.iter().filter_map(|(drift, _)| drift.group()).collect();
        let is_refused = |drift: &Drift| drift.group().is_some_and(|group| groups.contains(&group));
        let left = differs.into_iter().filter(is_refused).chain(others).collect();
        Repaired { found, refused, left }
    }
}

impl Drift {
    /// Whether both are about the same port, limit or switch.
    #[must_use]
    pub fn is_at_the_same(&self, other: &Drift) -> bool {
        match (self, other) {
            (Drift::Priority { port, .. }, Drift::Priority { port: other, .. }) => port == other,
            (Drift::Meter { group, .. }, Drift::Meter { group: other, .. }) => group == other,
            (Drift::Inert { .. }, Drift::Inert { .. }) => true,
            _ => false,
        }
    }

    /// The group, if the difference is about a rule.
    #[must_use]
    pub fn group(&self) -> Option<Ipv4Addr> {
        match self {
            Drift::Missing { group } | Drift::Ports { group, .. } | Drift::Extra { group } => Some(*group),
            Drift::Priority { .. } | Drift::Inert { .. } | Drift::Meter { .. } => None,
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drift::Missing { group } => write!(f, "group {group} is missing"),
            Drift::Ports { group, missing, extra } => {
                write!(f, "group {group} lacks ports {{{}}} and has {{{}}} too many", join(missing), join(extra))
            }
            Drift::Extra { group } => write!(f, "group {group} is not wanted"),
            Drift::Priority { port, why } => write!(f, "port {port} does not serve the lanes first: {why}"),
            Drift::Inert { why } => write!(f, "rules have no effect: {why}"),
            Drift::Meter { group, why } => write!(f, "the limit of group {group}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_contains_exactly_its_groups() {
        let range = GroupRange::new(Ipv4Addr::new(239, 71, 9, 9), 16).unwrap();
        assert_eq!(range.to_string(), "239.71.0.0/16");
        assert!(range.contains(Ipv4Addr::new(239, 71, 255, 1)) && !range.contains(Ipv4Addr::new(239, 72, 0, 1)));
        assert_eq!(range.offset(Ipv4Addr::new(239, 71, 1, 2)), 258);
        let why = range.check(&[Ipv4Addr::new(239, 70, 0, 1)]).unwrap_err().to_string();
        assert!(why.contains("239.70.0.1 is not within 239.71.0.0/16"), "{why}");
        for (network, prefix) in [([10, 0, 0, 0], 8), ([224, 0, 0, 5], 32), ([224, 0, 0, 0], 4), ([239, 0, 0, 0], 33)] {
            assert!(GroupRange::new(network.into(), prefix).is_err(), "{network:?}/{prefix}");
        }
        assert!(GroupRange::new(Ipv4Addr::new(239, 1, 2, 3), 32).unwrap().contains(Ipv4Addr::new(239, 1, 2, 3)));
    }

    #[test]
    fn impossible_lanes_are_refused_with_a_remedy() {
        Lanes::default().check().unwrap();
        let with = |sub_lanes| Lanes { sub_lanes, ..Lanes::default() }.check();
        assert!(with(vec![]).unwrap_err().to_string().contains("1 to 6 sub-lanes"));
        assert!(with(vec![vec![64]]).is_err() && with(vec![vec![]]).is_err());
        assert!(with(vec![vec![1], vec![1]]).is_err() && with(vec![vec![1]; 7]).is_err());
        assert!(Lanes { rate_bps: Some(0), ..Lanes::default() }.check().is_err());
    }
}
