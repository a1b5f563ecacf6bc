// SPDX-License-Identifier: Apache-2.0
//! Where everything is.

use std::collections::{BTreeSet, HashMap};

use fide_planner::{CableId, LinkId, NodeId, Topology};

use super::order::Order;
use crate::plan::svg::At;

/// With more hosts, those that nobody asks for are one pill for each set of switches.
pub(crate) const HOSTS_DRAWN_MAX: usize = 48;
/// Widest row whose switches are boxes with their names in them, pixels.
const NAMED_ROW_MAX: f64 = 1500.0;
/// Least width of a drawing.
const WIDTH_MIN: f64 = 520.0;
/// Width of a pill.
pub(crate) const PILL_WIDTH: f64 = 34.0;
/// Names are cut to so many characters.
pub(crate) const NAME_MAX: usize = 24;

/// A pill of hosts that are not drawn one by one.
#[derive(Clone, Debug)]
pub(crate) struct Pill {
    pub(crate) at: At,
    pub(crate) hosts: Vec<NodeId>,
}

/// A network on a plane.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// By how much letters and lines are larger, so that a wide drawing can be read.
    pub(crate) scale: f64,
    /// Place of each node; of a collapsed host, that of its pill.
    places: Vec<At>,
    rows: Vec<usize>,
    /// For each collapsed host its pill.
    pill_of: HashMap<NodeId, usize>,
    pub(crate) pills: Vec<Pill>,
    /// For each row whether switches are boxes with names.
    pub(crate) named: Vec<bool>,
    /// Nodes of each row from left to right, without collapsed hosts.
    pub(crate) order: Vec<Vec<NodeId>>,
    /// Distance of neighbours in each row, where it is narrowest.
    pub(crate) spacing: Vec<f64>,
    /// For cables that have a parallel one: how far its middle is moved aside.
    aside: HashMap<CableId, f64>,
}

/// The way of a link: a line, or a curve with this control point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Way {
    pub(crate) from: At,
    pub(crate) to: At,
    pub(crate) bend: Option<At>,
}

impl Way {
    /// A point on it, 0 to 1, and the direction there, of length 1.
    pub(crate) fn point(&self, t: f64) -> (At, At) {
        let (a, b) = (self.from, self.to);
        let c = self.bend.unwrap_or(At { x: (a.x + b.x) / 2.0, y: (a.y + b.y) / 2.0 });
        let mix = |a: f64, c: f64, b: f64| (1.0 - t) * (1.0 - t) * a + 2.0 * t * (1.0 - t) * c + t * t * b;
        let slope = |a: f64, c: f64, b: f64| (1.0 - t) * (c - a) + t * (b - c);
        let (dx, dy) = (slope(a.x, c.x, b.x), slope(a.y, c.y, b.y));
        let length = dx.hypot(dy).max(1e-9);
        (At { x: mix(a.x, c.x, b.x), y: mix(a.y, c.y, b.y) }, At { x: dx / length, y: dy / length })
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bend {
            Some(bend) => write!(f, "M{}Q{} {}", self.from, bend, self.to),
            None => write!(f, "M{}L{}", self.from, self.to),
        }
    }
}

/// Width of a name in a drawing, at a size of 12 pixels.
#[allow(clippy::cast_precision_loss, reason = "a name")]
pub(crate) fn name_width(name: &str) -> f64 {
    name.chars().count().min(NAME_MAX + 1) as f64 * 7.2
}

/// One place in a row.
struct Slot {
    width: f64,
    wish: f64,
}

/// Nearest places to the wishes, in order, not closer than the widths allow, between 0 and `whole`: isotonic regression.
fn place(slots: &[Slot], whole: f64) -> Vec<f64> {
    let mut offsets = Vec::with_capacity(slots.len());
    let mut total = 0.0;
    for slot in slots {
        offsets.push(total + slot.width / 2.0);
        total += slot.width;
    }
    // Blocks of slots that touch: sum of wishes, and how many.
    let mut blocks: Vec<(f64, f64)> = Vec::new();
    for (slot, offset) in slots.iter().zip(&offsets) {
        blocks.push((slot.wish - offset, 1.0));
        while let [.., before, last] = &blocks[..] {
            if before.0 / before.1 <= last.0 / last.1 {
                break;
            }
            let joined = (before.0 + last.0, before.1 + last.1);
            blocks.truncate(blocks.len() - 2);
            blocks.push(joined);
        }
    }
    let mut places = Vec::with_capacity(slots.len());
    for (sum, n) in blocks {
        let at = (sum / n).min(whole - total).max(0.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        places.extend(std::iter::repeat_n(at, n as usize));
    }
    places.iter().zip(&offsets).map(|(at, offset)| at + offset).collect()
}

#[allow(clippy::cast_precision_loss, reason = "sizes of a drawing")]
impl Layout {
    /// `shown` are hosts that are drawn for themselves, however many hosts there are.
    pub(crate) fn of(topology: &Topology, shown: &BTreeSet<NodeId>) -> Self {
        let order = Order::of(topology);
        let all = topology.hosts().count() <= HOSTS_DRAWN_MAX;
        let drawn = |host: &NodeId| all || shown.contains(host);
        let names = |hosts: &mut dyn Iterator<Item = NodeId>| {
            hosts.map(|host| name_width(&topology.node(host).name)).fold(0.0, f64::max)
        };
        let singles = topology.hosts().filter(drawn).count();
        let widest = names(&mut topology.hosts().filter(drawn));
        // Names side by side if there are few, else turned.
        let single = if singles as f64 * (widest + 14.0) <= 1100.0 { (widest + 14.0).max(46.0) } else { 19.0 };
        let mut bottom: Vec<(f64, Result<NodeId, usize>)> = Vec::new();
        let mut pills: Vec<Vec<NodeId>> = Vec::new();
        let mut pod = None;
        for unit in order.rows.first().into_iter().flatten().filter(|unit| order.units[**unit].hosts) {
            let unit_pod = Some(order.pod[*unit]);
            if pod.is_some() {
                // A gap between groups; Err(usize::MAX) is nothing.
                bottom.push((if pod == unit_pod { 8.0 } else { 22.0 }, Err(usize::MAX)));
            }
            pod = unit_pod;
            let (own, idle): (Vec<NodeId>, Vec<NodeId>) = order.units[*unit].nodes.iter().partition(|host| drawn(host));
            bottom.extend(own.into_iter().map(|host| (single, Ok(host))));
            if !idle.is_empty() {
                bottom.push((PILL_WIDTH + 8.0, Err(pills.len())));
                pills.push(idle);
            }
        }
        let mut width = bottom.iter().map(|(width, _)| width).sum::<f64>().max(WIDTH_MIN);
        let mut named = vec![false; order.rows.len()];
        let mut widths = vec![0.0; order.rows.len()];
        let box_width = |unit: usize| name_width(&topology.node(order.units[unit].nodes[0]).name) + 18.0;
        for (number, row) in order.rows.iter().enumerate().skip(1) {
            let names: f64 = row.iter().map(|unit| box_width(*unit) + 10.0).sum();
            named[number] = names <= NAMED_ROW_MAX;
            widths[number] = if named[number] { 0.0 } else { (2200.0 / row.len() as f64).clamp(3.0, 22.0) };
            width = width.max(if named[number] { names } else { widths[number] * row.len() as f64 });
        }
        let rows = order.rows.len().max(1);
        let scale = (width / 1150.0).clamp(1.0, 1.9);
        let gap = if rows > 10 { 64.0 } else { (width / 6.0).clamp(96.0, 380.0) };
        let above = if named.iter().skip(1).last().copied().unwrap_or(true) {
            30.0
        } else {
            // Names of the highest row stand turned above it.
            let top = order.rows.last().into_iter().flatten().map(|unit| box_width(*unit)).fold(0.0, f64::max);
            24.0 + top / 12.0 * (widths[rows - 1] * 0.95).clamp(7.0, 12.5 * scale)
        };
        let y = |row: usize| above + gap * (rows - 1 - row) as f64;
        let mut places = vec![At::default(); topology.nodes().len()];
        let mut made = Vec::new();
        let mut pill_of = HashMap::new();
        let natural: f64 = bottom.iter().map(|(width, _)| width).sum();
        let stretch = if natural > 0.0 { width / natural } else { 1.0 };
        let mut x = 0.0;
        let mut nodes_of: Vec<Vec<NodeId>> = vec![Vec::new(); rows];
        for (slot, what) in bottom {
            let at = At { x: x + slot * stretch / 2.0, y: y(0) };
            x += slot * stretch;
            match what {
                Ok(host) => {
                    places[host.at()] = at;
                    nodes_of[0].push(host);
                }
                Err(pill) if pill < pills.len() => {
                    for host in &pills[pill] {
                        places[host.at()] = at;
                        pill_of.insert(*host, made.len());
                    }
                    made.push(Pill { at, hosts: std::mem::take(&mut pills[pill]) });
                }
                Err(_) => {}
            }
        }
        let mut unit_x: Vec<f64> = order
            .units
            .iter()
            .map(|unit| unit.nodes.iter().map(|node| places[node.at()].x).sum::<f64>() / unit.nodes.len() as f64)
            .collect();
        for (number, row) in order.rows.iter().enumerate().skip(1) {
            let free = (width - row.iter().map(|unit| box_width(*unit)).sum::<f64>()) / (row.len() + 1) as f64;
            let slots: Vec<Slot> = row
                .iter()
                .enumerate()
                .map(|(n, unit)| {
                    let below = order.neighbours[*unit].iter().filter(|other| order.units[**other].row < number);
                    let (sum, count) = below.fold((0.0, 0.0), |(sum, n), other| (sum + unit_x[*other], n + 1.0));
                    let even = width * (n as f64 + 0.5) / row.len() as f64;
                    let wish = if count > 0.0 { sum / count } else { even };
                    let slot = if named[number] {
                        box_width(*unit) + (free * 0.6).clamp(10.0, 90.0)
                    } else {
                        widths[number].max((width / (row.len() + 1) as f64 * 0.75).min(60.0))
                    };
                    Slot { width: slot, wish }
                })
                .collect();
            for (unit, x) in row.iter().zip(place(&slots, width)) {
                unit_x[*unit] = x;
                let node = order.units[*unit].nodes[0];
                places[node.at()] = At { x, y: y(number) };
                nodes_of[number].push(node);
            }
        }
        let spacing = nodes_of
            .iter()
            .map(|row| row.windows(2).map(|two| places[two[1].at()].x - places[two[0].at()].x).fold(200.0, f64::min))
            .collect();
        let rows_of = order.unit_of.iter().map(|unit| order.units[*unit].row).collect();
        let below = if single > 20.0 { 40.0 } else { 30.0 + widest.min(name_width("0123456789012345")) * scale };
        Self {
            width,
            height: above + gap * (rows - 1) as f64 + below,
            scale,
            places,
            rows: rows_of,
            pill_of,
            pills: made,
            named,
            order: nodes_of,
            spacing,
            aside: aside(topology),
        }
    }

    pub(crate) fn at(&self, node: NodeId) -> At {
        self.places[node.at()]
    }

    /// The row of a node; hosts 0.
    pub(crate) fn row(&self, node: NodeId) -> usize {
        self.rows[node.at()]
    }

    /// The pill of a host that is not drawn for itself.
    pub(crate) fn pill(&self, node: NodeId) -> Option<usize> {
        self.pill_of.get(&node).copied()
    }

    /// Cables that are drawn as one have the same: what hangs on a pill is.
    pub(crate) fn drawn_as(&self, topology: &Topology, cable: CableId) -> (u64, u64) {
        let ends = topology.cables()[cable.at()].ends;
        if ends.iter().all(|end| self.pill(*end).is_none()) {
            return (u64::MAX, u64::from(cable.0));
        }
        let end = |node: NodeId| self.pill(node).map_or(u64::from(node.0), |pill| (1 << 32) + pill as u64);
        (end(ends[0]), end(ends[1]))
    }

    pub(crate) fn way(&self, topology: &Topology, link: LinkId) -> Way {
        let (a, b) = (topology.from(link), topology.to(link));
        let (from, to) = (self.at(a), self.at(b));
        let middle = At { x: (from.x + to.x) / 2.0, y: (from.y + to.y) / 2.0 };
        let (dx, dy) = (to.x - from.x, to.y - from.y);
        let rows = self.row(a).abs_diff(self.row(b));
        let aside = self.aside.get(&link.cable()).copied().unwrap_or(0.0);
        let bend = match rows {
            // Over what is between them.
            0 => Some(At { x: middle.x, y: middle.y - 48.0 - 0.3 * dx.abs().min(400.0) - 2.0 * aside }),
            1 if aside == 0.0 => None,
            _ => {
                let length = dx.hypot(dy).max(1.0);
                // The same side for both directions.
                let by = (aside * 2.0 + if rows > 1 { 30.0 } else { 0.0 }) * if a < b { 1.0 } else { -1.0 };
                Some(At { x: middle.x - dy / length * by, y: middle.y + dx / length * by })
            }
        };
        Way { from, to, bend }
    }
}

#[allow(clippy::cast_precision_loss, reason = "few parallel cables")]
fn aside(topology: &Topology) -> HashMap<CableId, f64> {
    let mut alike: HashMap<[NodeId; 2], Vec<CableId>> = HashMap::new();
    for (at, cable) in (0..).zip(topology.cables()) {
        let [a, b] = cable.ends;
        alike.entry([a.min(b), a.max(b)]).or_default().push(CableId(at));
    }
    let parallel = alike.into_values().filter(|cables| cables.len() > 1);
    parallel
        .flat_map(|cables| {
            let middle = (cables.len() - 1) as f64 / 2.0;
            cables.into_iter().enumerate().map(move |(n, cable)| (cable, (n as f64 - middle) * 9.0))
        })
        .collect()
}
