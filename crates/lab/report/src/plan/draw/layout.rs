// SPDX-License-Identifier: Apache-2.0
//! The places of everything in a drawing.

use std::collections::{BTreeSet, HashMap};

use fide_planner::{CableId, LinkId, NodeId, Topology};

use super::order::Order;
use crate::plan::svg::At;

/// If there are more hosts, the hosts that no drawn request uses are merged into one pill for each set of
/// switches.
pub(crate) const HOSTS_DRAWN_MAX: usize = 48;
/// Widest row whose switches are boxes with their names in them, pixels.
const NAMED_ROW_MAX: f64 = 1500.0;
/// Least width of a drawing.
const WIDTH_MIN: f64 = 520.0;
/// Width of a pill.
pub(crate) const PILL_WIDTH: f64 = 34.0;
/// Names are cut to this many characters.
pub(crate) const NAME_MAX: usize = 24;

/// A pill of hosts that are not drawn one by one.
#[derive(Clone, Debug)]
pub(crate) struct Pill {
    pub(crate) at: At,
    pub(crate) hosts: Vec<NodeId>,
}

/// A network with places in two dimensions.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Factor by which letters and lines are larger, so that a wide drawing can be read.
    pub(crate) scale: f64,
    /// Place of each node; for a collapsed host, the place of its pill.
    places: Vec<At>,
    rows: Vec<usize>,
    /// The pill of each collapsed host.
    pill_of: HashMap<NodeId, usize>,
    pub(crate) pills: Vec<Pill>,
    /// For each row, whether switches are boxes with names.
    pub(crate) named: Vec<bool>,
    /// Nodes of each row from left to right, without collapsed hosts.
    pub(crate) order: Vec<Vec<NodeId>>,
    /// Smallest distance between neighbours in each row.
    pub(crate) spacing: Vec<f64>,
    /// For a cable with parallel cables: how far its middle is moved aside.
    aside: HashMap<CableId, f64>,
}

/// The path of a link in the drawing: a line, or a curve with this control point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Way {
    pub(crate) from: At,
    pub(crate) to: At,
    pub(crate) bend: Option<At>,
}

impl Way {
    /// The point at `t` (0 to 1) on it, and the direction there, of length 1.
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

/// The places nearest to the wishes, in order, no closer than the widths allow, between 0 and `whole`
/// (isotonic regression).
fn place(slots: &[Slot], whole: f64) -> Vec<f64> {
    let mut offsets = Vec::with_capacity(slots.len());
    let mut total = 0.0;
    for slot in slots {
        offsets.push(total + slot.width / 2.0);
        total += slot.width;
    }
    // Blocks of slots that touch: the sum of their wishes, and their number.
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

/// An item at one place of the lowest row.
enum Item {
    Host(NodeId),
    Pill(Vec<NodeId>),
    Gap,
}

/// The lowest row, before it is placed: hosts, pills, and gaps between groups of them.
struct Bottom {
    /// From left to right, each with its width.
    items: Vec<(f64, Item)>,
    /// Width of a host that is drawn by itself.
    single: f64,
    /// Width of the longest name of such a host.
    widest: f64,
}

#[allow(clippy::cast_precision_loss, reason = "sizes of a drawing")]
impl Bottom {
    /// `drawn`: whether a host is drawn by itself.
    fn of(topology: &Topology, order: &Order, drawn: impl Fn(&NodeId) -> bool) -> Self {
        let singles = topology.hosts().filter(&drawn).count();
        let names = topology.hosts().filter(&drawn).map(|host| name_width(&topology.node(host).name));
        let widest = names.fold(0.0, f64::max);
        // Names stand side by side if there are few, else turned.
        let single = if singles as f64 * (widest + 14.0) <= 1100.0 { (widest + 14.0).max(46.0) } else { 19.0 };
        let mut items = Vec::new();
        let mut pod = None;
        for unit in order.rows.first().into_iter().flatten().filter(|unit| order.units[**unit].hosts) {
            let unit_pod = Some(order.pod[*unit]);
            if pod.is_some() {
                items.push((if pod == unit_pod { 8.0 } else { 22.0 }, Item::Gap));
            }
            pod = unit_pod;
            let (own, idle): (Vec<NodeId>, Vec<NodeId>) = order.units[*unit].nodes.iter().partition(|host| drawn(host));
            items.extend(own.into_iter().map(|host| (single, Item::Host(host))));
            if !idle.is_empty() {
                items.push((PILL_WIDTH + 8.0, Item::Pill(idle)));
            }
        }
        Self { items, single, widest }
    }

    fn width(&self) -> f64 {
        self.items.iter().map(|(width, _)| width).sum()
    }

    /// Height below the row, for the names of hosts.
    fn room_below(&self, scale: f64) -> f64 {
        if self.single > 20.0 { 40.0 } else { 30.0 + self.widest.min(name_width("0123456789012345")) * scale }
    }
}

/// Width of a switch that is a box with its name in it.
fn box_width(topology: &Topology, order: &Order, unit: usize) -> f64 {
    name_width(&topology.node(order.units[unit].nodes[0]).name) + 18.0
}

/// How the switches of each row above the lowest are drawn.
struct Upper {
    /// By row: whether switches are boxes with names.
    named: Vec<bool>,
    /// By row: width of a switch without a name.
    widths: Vec<f64>,
    /// Width of the widest row.
    width: f64,
}

#[allow(clippy::cast_precision_loss, reason = "sizes of a drawing")]
impl Upper {
    fn of(topology: &Topology, order: &Order) -> Self {
        let rows = order.rows.len();
        let mut upper = Self { named: vec![false; rows], widths: vec![0.0; rows], width: 0.0 };
        for (number, row) in order.rows.iter().enumerate().skip(1) {
            let names: f64 = row.iter().map(|unit| box_width(topology, order, *unit) + 10.0).sum();
            let is_named = names <= NAMED_ROW_MAX;
            let width = if is_named { 0.0 } else { (2200.0 / row.len() as f64).clamp(3.0, 22.0) };
            upper.named[number] = is_named;
            upper.widths[number] = width;
            upper.width = upper.width.max(if is_named { names } else { width * row.len() as f64 });
        }
        upper
    }

    /// Height above the highest row: names of switches that are not boxes stand turned there.
    fn room_above(&self, topology: &Topology, order: &Order, scale: f64) -> f64 {
        if self.named.iter().skip(1).last().copied().unwrap_or(true) {
            return 30.0;
        }
        let top = order.rows.last().into_iter().flatten();
        let longest = top.map(|unit| box_width(topology, order, *unit)).fold(0.0, f64::max);
        24.0 + longest / 12.0 * (self.widths[order.rows.len().max(1) - 1] * 0.95).clamp(7.0, 12.5 * scale)
    }
}

/// Nodes whose places are determined.
struct Placed {
    /// By node.
    places: Vec<At>,
    pill_of: HashMap<NodeId, usize>,
    pills: Vec<Pill>,
    /// By row, from left to right.
    order: Vec<Vec<NodeId>>,
}

#[allow(clippy::cast_precision_loss, reason = "sizes of a drawing")]
impl Placed {
    fn new(nodes: usize, rows: usize) -> Self {
        Self {
            places: vec![At::default(); nodes],
            pill_of: HashMap::new(),
            pills: Vec::new(),
            order: vec![Vec::new(); rows],
        }
    }

    /// Places the lowest row over the whole width.
    fn bottom_row(&mut self, bottom: Bottom, width: f64, y: f64) {
        let natural = bottom.width();
        let stretch = if natural > 0.0 { width / natural } else { 1.0 };
        let mut x = 0.0;
        for (slot, item) in bottom.items {
            let at = At { x: x + slot * stretch / 2.0, y };
            x += slot * stretch;
            match item {
                Item::Host(host) => {
                    self.places[host.at()] = at;
                    self.order[0].push(host);
                }
                Item::Pill(hosts) => {
                    for host in &hosts {
                        self.places[host.at()] = at;
                        self.pill_of.insert(*host, self.pills.len());
                    }
                    self.pills.push(Pill { at, hosts });
                }
                Item::Gap => {}
            }
        }
    }

    /// Places the switches, row by row upwards, each as near as possible to the middle of its neighbours below.
    fn upper_rows(&mut self, topology: &Topology, order: &Order, upper: &Upper, width: f64, y: impl Fn(usize) -> f64) {
        let x_of = |node: &NodeId| self.places[node.at()].x;
        let middle = |nodes: &[NodeId]| nodes.iter().map(x_of).sum::<f64>() / nodes.len() as f64;
        let mut unit_x: Vec<f64> = order.units.iter().map(|unit| middle(&unit.nodes)).collect();
        for (number, row) in order.rows.iter().enumerate().skip(1) {
            let box_width = |unit: usize| box_width(topology, order, unit);
            let free = (width - row.iter().map(|unit| box_width(*unit)).sum::<f64>()) / (row.len() + 1) as f64;
            let slot = |(n, unit): (usize, &usize)| {
                let below = order.neighbours[*unit].iter().filter(|other| order.units[**other].row < number);
                let (sum, count) = below.fold((0.0, 0.0), |(sum, n), other| (sum + unit_x[*other], n + 1.0));
                let even = width * (n as f64 + 0.5) / row.len() as f64;
                let wish = if count > 0.0 { sum / count } else { even };
                let width = if upper.named[number] {
                    box_width(*unit) + (free * 0.6).clamp(10.0, 90.0)
                } else {
                    upper.widths[number].max((width / (row.len() + 1) as f64 * 0.75).min(60.0))
                };
                Slot { width, wish }
            };
            let slots: Vec<Slot> = row.iter().enumerate().map(slot).collect();
            for (unit, x) in row.iter().zip(place(&slots, width)) {
                unit_x[*unit] = x;
                let node = order.units[*unit].nodes[0];
                self.places[node.at()] = At { x, y: y(number) };
                self.order[number].push(node);
            }
        }
    }

    /// Smallest distance between neighbours in each row.
    fn spacing(&self) -> Vec<f64> {
        let x = |node: NodeId| self.places[node.at()].x;
        let narrowest = |row: &Vec<NodeId>| row.windows(2).map(|two| x(two[1]) - x(two[0])).fold(200.0, f64::min);
        self.order.iter().map(narrowest).collect()
    }
}

#[allow(clippy::cast_precision_loss, reason = "sizes of a drawing")]
impl Layout {
    /// Lays out a network. The hosts in `shown` are drawn one by one, however many hosts there are.
    pub(crate) fn of(topology: &Topology, shown: &BTreeSet<NodeId>) -> Self {
        let order = Order::of(topology);
        let all = topology.hosts().count() <= HOSTS_DRAWN_MAX;
        let bottom = Bottom::of(topology, &order, |host| all || shown.contains(host));
        let upper = Upper::of(topology, &order);
        let rows = order.rows.len().max(1);
        let width = bottom.width().max(WIDTH_MIN).max(upper.width);
        let scale = (width / 1150.0).clamp(1.0, 1.9);
        let gap = if rows > 10 { 64.0 } else { (width / 6.0).clamp(96.0, 380.0) };
        let above = upper.room_above(topology, &order, scale);
        let below = bottom.room_below(scale);
        let y = |row: usize| above + gap * (rows - 1 - row) as f64;
        let mut placed = Placed::new(topology.nodes().len(), rows);
        placed.bottom_row(bottom, width, y(0));
        placed.upper_rows(topology, &order, &upper, width, y);
        Self {
            width,
            height: above + gap * (rows - 1) as f64 + below,
            scale,
            rows: order.unit_of.iter().map(|unit| order.units[*unit].row).collect(),
            spacing: placed.spacing(),
            places: placed.places,
            pill_of: placed.pill_of,
            pills: placed.pills,
            named: upper.named,
            order: placed.order,
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

    /// The pill of a host that is not drawn by itself.
    pub(crate) fn pill(&self, node: NodeId) -> Option<usize> {
        self.pill_of.get(&node).copied()
    }

    /// A key that is the same for cables that are drawn as one line: parallel cables between a pill and a
    /// switch.
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
            // The curve passes over the nodes between them.
            0 => Some(At { x: middle.x, y: middle.y - 48.0 - 0.3 * dx.abs().min(400.0) - 2.0 * aside }),
            1 if aside == 0.0 => None,
            _ => {
                let length = dx.hypot(dy).max(1.0);
                // Both directions bend to the same side.
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
