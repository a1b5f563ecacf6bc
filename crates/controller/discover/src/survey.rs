// SPDX-License-Identifier: Apache-2.0
//! Derives cables from the frames heard at each port.
//!
//! A cable between two switches requires that each end hears the other. A cable between a switch and a host
//! requires that the switch hears the host, at one port alone. Everything else is an [`Oddity`], and no
//! cable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fide_planner::topology::{BANDWIDTH_BPS, CableSpec, name_fits};
use serde::Serialize;

use crate::figures::{Figure, Given, Latencies, Source};
use crate::lldp::{Frame, Role};

#[cfg(test)]
mod tests;

/// A port of a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct End {
    pub node: String,
    pub port: String,
}

impl End {
    /// As it reads.
    pub fn new(node: impl Into<String>, port: impl Into<String>) -> End {
        End { node: node.into(), port: port.into() }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", clean(&self.node), clean(&self.port))
    }
}

/// These characters come from others: control characters must not reach the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A switch's port, and what was heard there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listened {
    pub at: End,
    pub carrier: bool,
    /// Bits per second that it sends, if known.
    pub rate: Option<Figure>,
    /// Wire bytes that the lane's queue there holds, if known.
    pub queue: Option<Figure>,
    /// Each different frame once, except withdrawals.
    pub heard: Vec<Frame>,
    /// Frames that were wrong.
    pub refused: u64,
    /// What was wrong with the first of them.
    pub why_refused: Option<String>,
}

/// A cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cable {
    /// One end; the host, if the cable leads to a host.
    pub a: End,
    pub b: End,
    /// Whether `a` is a host.
    pub host: bool,
    pub bandwidth_bps: Figure,
    pub queue_bytes: Figure,
}

/// An observation that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Oddity {
    /// Nothing was heard there.
    NoNeighbour { at: End, carrier: bool },
    /// Several speakers were heard there: a device in between forwards frames that should stay on one
    /// cable.
    SeveralNeighbours { at: End, neighbours: Vec<End> },
    /// A port hears another, which hears a third one, or nothing.
    EndsDisagree { at: End, hears: End, which_hears: Option<End> },
    /// A host's port is heard at several ports of switches.
    HeardTwice { who: End, at: Vec<End> },
    /// A cable from a switch to itself.
    Loop { at: End, hears: End },
    /// Two hosts have one name.
    NameTwice { name: String, at: Vec<End> },
    /// A speaker that this controller does not drive has the name of a switch that it drives.
    NameTaken { name: String, at: End },
    /// A switch that this controller does not drive.
    UnknownSwitch { who: End, at: End },
    /// A host that is not among the known hosts.
    UnknownHost { who: End, at: End },
    /// A name that the planner does not take.
    Unfit { who: End, at: End },
    /// A rate that no cable has; it is ignored.
    UnfitRate { at: End, bps: u64 },
    /// The ends of a cable are not equally fast.
    RatesDiffer { a: End, a_bps: u64, b: End, b_bps: u64 },
    /// Frames that were no LLDP.
    Refused { at: End, frames: u64, why: String },
    /// There is no path from one to another.
    Islands { islands: Vec<Vec<String>> },
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ends: &[End]| ends.iter().map(End::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Oddity::NoNeighbour { at, carrier: true } => {
                write!(f, "{at} has a carrier, and nobody speaks there; on a host run `fide controller announce`")
            }
            Oddity::NoNeighbour { at, carrier: false } => write!(f, "{at} has no carrier"),
            Oddity::SeveralNeighbours { at, neighbours } => write!(
                f,
                "{at} hears {}: something between them forwards LLDP, or several speak for one port",
                list(neighbours)
            ),
            Oddity::EndsDisagree { at, hears, which_hears: Some(other) } => {
                write!(f, "{at} hears {hears}, which hears {other}")
            }
            Oddity::EndsDisagree { at, hears, which_hears: None } => {
                write!(f, "{at} hears {hears}, which does not hear it")
            }
            Oddity::HeardTwice { who, at } => write!(f, "{who} is heard at {}; it can have one cable", list(at)),
            Oddity::Loop { at, hears } => write!(f, "{at} hears {hears}: a cable from a switch to itself"),
            Oddity::NameTwice { name, at } => {
                write!(f, "two hosts call themselves {}: at {}; give each a name of its own", clean(name), list(at))
            }
            Oddity::NameTaken { name, at } => write!(
                f,
                "at {at} somebody calls itself {}, which is a switch of this controller and another one",
                clean(name)
            ),
            Oddity::UnknownSwitch { who, at } => write!(
                f,
                "{at} hears {who}, which forwards and is no switch of this controller; give it a [[switch]], or name \
                 it as a host"
            ),
            Oddity::UnknownHost { who, at } => write!(f, "{at} hears {who}, a host that is not known"),
            Oddity::Unfit { who, at } => write!(
                f,
                "{at} hears {who}: names of nodes and ports have 1 to 63 of a-z, A-Z, 0-9, '.', '_' and '-', without \
                 \"--\""
            ),
            Oddity::UnfitRate { at, bps } => {
                let (least, most) = (BANDWIDTH_BPS.start(), BANDWIDTH_BPS.end());
                write!(f, "{at} is said to send {bps} bit/s; {least} to {most} count")
            }
            Oddity::RatesDiffer { a, a_bps, b, b_bps } => {
                write!(f, "the ends of one cable differ: {a} sends {a_bps} bit/s, {b} {b_bps}")
            }
            Oddity::Refused { at, frames, why } => {
                write!(f, "{at} got {frames} frames that are no LLDP; the first: {why}")
            }
            Oddity::Islands { islands } => {
                let islands: Vec<String> = islands.iter().map(|names| format!("{{{}}}", names.join(", "))).collect();
                write!(f, "there is no way between {}", islands.join(" and "))
            }
        }
    }
}

/// The cables, and everything that did not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// In natural order.
    pub hosts: Vec<String>,
    /// In the order in which they were given.
    pub switches: Vec<String>,
    /// Hosts' cables first, then in the order of their ports.
    pub cables: Vec<Cable>,
    pub latencies: Latencies,
    pub odd: Vec<Oddity>,
}

/// Puts together what was heard at the ports of `switches`. `hosts`: the names known to be hosts, whatever
/// they announce; none: no host is known in advance.
#[must_use]
pub fn survey(switches: &[String], listened: &[Listened], hosts: Option<&BTreeSet<String>>, given: &Given) -> Survey {
    let mut work = Work { switches, listened, known: hosts, odd: Vec::new() };
    let (between, candidates) = work.neighbours();
    let mut cables = work.of_hosts(&candidates, given);
    cables.extend(work.of_switches(&between, given));
    let mut hosts: Vec<String> = cables.iter().filter(|c| c.host).map(|c| c.a.node.clone()).collect();
    hosts.sort_by_cached_key(|name| (natural(name), name.clone()));
    hosts.dedup();
    work.islands(&hosts, &cables);
    Survey { hosts, switches: switches.to_vec(), cables, latencies: Latencies::of(given), odd: work.odd }
}

struct Work<'a> {
    switches: &'a [String],
    listened: &'a [Listened],
    known: Option<&'a BTreeSet<String>>,
    odd: Vec<Oddity>,
}

/// For each port of a switch the switch port that it hears.
type Between<'a> = BTreeMap<&'a End, End>;
/// For each port of a host, where it is heard, and its frame.
type Candidates<'a> = BTreeMap<End, Vec<(&'a Listened, &'a Frame)>>;

impl<'a> Work<'a> {
    fn neighbours(&mut self) -> (Between<'a>, Candidates<'a>) {
        let (mut between, mut candidates) = (Between::new(), Candidates::new());
        for port in self.listened {
            let at = &port.at;
            if let Some(why) = &port.why_refused {
                self.odd.push(Oddity::Refused { at: at.clone(), frames: port.refused, why: clean(why) });
            }
            let speakers = self.speakers(port);
            let frame = match speakers.as_slice() {
                [] => {
                    self.odd.push(Oddity::NoNeighbour { at: at.clone(), carrier: port.carrier });
                    continue;
                }
                [frame] => *frame,
                several => {
                    let neighbours = several.iter().map(|frame| end(frame)).collect();
                    self.odd.push(Oddity::SeveralNeighbours { at: at.clone(), neighbours });
                    continue;
                }
            };
            let far = end(frame);
            if !name_fits(&far.node) || !name_fits(&far.port) {
                self.odd.push(Oddity::Unfit { who: far, at: at.clone() });
            } else if self.switches.contains(&far.node) {
                if frame.role == Some(Role::Switch) {
                    between.insert(at, far);
                } else {
                    self.odd.push(Oddity::NameTaken { name: far.node, at: at.clone() });
                }
            } else if frame.forwards() && !self.known.is_some_and(|hosts| hosts.contains(&far.node)) {
                self.odd.push(Oddity::UnknownSwitch { who: far, at: at.clone() });
            } else {
                candidates.entry(far).or_default().push((port, frame));
            }
        }
        (between, candidates)
    }

    /// The speakers at a port. If Fide and another program speak for one port, as one hardware address
    /// shows, Fide's frame counts; of one speaker's frames the newest counts.
    fn speakers(&self, port: &'a Listened) -> Vec<&'a Frame> {
        let mut by_name: BTreeMap<(End, [u8; 6]), &Frame> = BTreeMap::new();
        for frame in &port.heard {
            let ours = port.heard.iter().any(|other| other.source == frame.source && other.role.is_some());
            if frame.role.is_some() || !ours {
                by_name.insert((end(frame), frame.source), frame);
            }
        }
        by_name.into_values().collect()
    }

    fn of_hosts(&mut self, candidates: &Candidates<'_>, given: &Given) -> Vec<Cable> {
        let mut cables = Vec::new();
        let mut chassis: BTreeMap<&str, Vec<(&Frame, &End)>> = BTreeMap::new();
        let mut order: Vec<_> = candidates.iter().collect();
        order.sort_by_cached_key(|(far, _)| (natural(&far.node), far.node.clone(), natural(&far.port)));
        for (far, heard) in order {
            heard.iter().for_each(|(port, frame)| chassis.entry(&far.node).or_default().push((frame, &port.at)));
            let [(port, frame)] = heard.as_slice() else {
                let at = heard.iter().map(|(port, _)| port.at.clone()).collect();
                self.odd.push(Oddity::HeardTwice { who: far.clone(), at });
                continue;
            };
            if self.known.is_some_and(|known| !known.contains(&far.node)) {
                self.odd.push(Oddity::UnknownHost { who: far.clone(), at: port.at.clone() });
            }
            let announced = self.credible(far, frame.rate_bps.map(|bps| Figure::new(bps, Source::Announced)));
            let rate = self.credible(&port.at, port.rate);
            self.differ((far, announced), (&port.at, rate));
            let rate = Figure::least(rate, announced);
            cables.push(cable(far.clone(), port.at.clone(), true, rate, port.queue, given));
        }
        for (name, heard) in chassis {
            // Fide's chassis is the name; other programs' chassis distinguish two hosts of one name.
            let others: BTreeSet<_> = heard.iter().filter(|(f, _)| f.role.is_none()).map(|(f, _)| &f.chassis).collect();
            if others.len() > 1 {
                let at = heard.iter().map(|(_, at)| (*at).clone()).collect();
                self.odd.push(Oddity::NameTwice { name: name.to_owned(), at });
            }
        }
        cables
    }

    fn of_switches(&mut self, between: &Between<'_>, given: &Given) -> Vec<Cable> {
        let mut cables = Vec::new();
        let mut done: BTreeSet<&End> = BTreeSet::new();
        for port in self.listened {
            let Some(far) = between.get(&port.at) else { continue };
            let back = between.get(far);
            if far.node == port.at.node {
                // A loop that both ends hear is reported once, at the first of them.
                if back != Some(&port.at) || !done.contains(far) {
                    self.odd.push(Oddity::Loop { at: port.at.clone(), hears: far.clone() });
                }
                done.insert(&port.at);
            } else if back != Some(&port.at) {
                let (at, hears, which_hears) = (port.at.clone(), far.clone(), back.cloned());
                self.odd.push(Oddity::EndsDisagree { at, hears, which_hears });
            } else if !done.contains(&port.at) {
                let Some(other) = self.listened.iter().find(|other| other.at == *far) else { continue };
                done.insert(&other.at);
                let rates = [port, other].map(|end| self.credible(&end.at, end.rate));
                self.differ((&port.at, rates[0]), (&other.at, rates[1]));
                let rate = Figure::least(rates[0], rates[1]);
                let queue = Figure::least(port.queue, other.queue);
                cables.push(cable(port.at.clone(), far.clone(), false, rate, queue, given));
            }
        }
        cables
    }

    fn credible(&mut self, at: &End, rate: Option<Figure>) -> Option<Figure> {
        let bps = rate?.value;
        if !BANDWIDTH_BPS.contains(&bps) {
            self.odd.push(Oddity::UnfitRate { at: at.clone(), bps });
            return None;
        }
        rate
    }

    /// A limit in the controller's file applies to one end; the other end's rate need not be the same.
    fn differ(&mut self, (a, a_rate): (&End, Option<Figure>), (b, b_rate): (&End, Option<Figure>)) {
        let (Some(one), Some(other)) = (a_rate, b_rate) else { return };
        let limited = [one, other].iter().any(|rate| rate.source == Source::Driver);
        if !limited && one.value != other.value {
            let (a, b) = (a.clone(), b.clone());
            self.odd.push(Oddity::RatesDiffer { a, a_bps: one.value, b, b_bps: other.value });
        }
    }

    fn islands(&mut self, hosts: &[String], cables: &[Cable]) {
        let mut island: BTreeMap<&str, usize> =
            hosts.iter().chain(self.switches).map(String::as_str).zip(0..).collect();
        for Cable { a, b, .. } in cables {
            let (one, other) = (island[a.node.as_str()], island[b.node.as_str()]);
            island.values_mut().filter(|island| **island == other).for_each(|island| *island = one);
        }
        let mut islands: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for name in hosts.iter().chain(self.switches) {
            islands.entry(island[name.as_str()]).or_default().push(name.clone());
        }
        if islands.len() > 1 {
            self.odd.push(Oddity::Islands { islands: islands.into_values().collect() });
        }
    }
}

fn end(frame: &Frame) -> End {
    End::new(frame.node(), frame.port_name())
}

fn cable(a: End, b: End, host: bool, rate: Option<Figure>, queue: Option<Figure>, given: &Given) -> Cable {
    let usual = CableSpec::default();
    Cable {
        a,
        b,
        host,
        bandwidth_bps: Figure::or(rate, given.bandwidth_bps, usual.bandwidth_bps),
        queue_bytes: Figure::or(queue, given.queue_bytes, usual.queue_bytes),
    }
}

/// h2 before h10.
fn natural(name: &str) -> Vec<(u64, String)> {
    let mut parts: Vec<(u64, String)> = vec![(0, String::new())];
    let mut in_number = false;
    for c in name.chars() {
        match (c.to_digit(10), in_number) {
            (Some(digit), _) => {
                if !in_number {
                    parts.push((0, String::new()));
                }
                if let Some((number, _)) = parts.last_mut() {
                    *number = number.saturating_mul(10).saturating_add(digit.into());
                }
            }
            (None, _) => {
                if let Some((_, text)) = parts.last_mut() {
                    text.push(c);
                }
            }
        }
        in_number = c.is_ascii_digit();
    }
    parts
}
