// SPDX-License-Identifier: Apache-2.0
//! Draws the network itself, in grey, as the ground for trees; and its broken cables, over the trees.

use std::collections::HashSet;

use fide_planner::{CableId, NodeId, Topology};

use super::layout::{Layout, NAME_MAX, PILL_WIDTH, name_width};
use crate::{
    plan::model::Plan,
    plan::svg::{At, Px, Svg},
    text::Text,
    units::count_of,
};

/// Most cables that are drawn in grey; if there are more, only every n-th is drawn.
pub(crate) const CABLES_DRAWN_MAX: usize = 30_000;
/// Up to this many cables, each has a title with its name.
const CABLES_TITLED_MAX: usize = 300;
/// Up to this many switches, each has a title with its name; if there are more, they are dots.
const SWITCHES_TITLED_MAX: usize = 3_000;
/// Most dots for switches, and for pills.
const DOTS_MAX: usize = 40_000;
/// Most broken cables that have a title with their name.
const BROKEN_TITLED_MAX: usize = 200;
/// Most broken cables that are drawn.
const BROKEN_DRAWN_MAX: usize = 20_000;

/// A network and its layout.
pub(crate) struct Scene<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) layout: Layout,
}

fn cable_ids(topology: &Topology) -> impl Iterator<Item = CableId> {
    (0..u32::try_from(topology.cables().len()).expect("at most MAX_CABLES")).map(CableId)
}

/// A name, cut if it is long.
pub(crate) fn short(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_MAX - 1).chain(['\u{2026}']).collect()
}

impl Scene<'_> {
    pub(crate) fn topology(&self) -> &Topology {
        self.plan.planner.topology()
    }

    /// Half the side of a switch without its name.
    pub(crate) fn half(&self, row: usize) -> f64 {
        (4.5 * self.layout.scale).min(self.layout.spacing[row] * 0.42).max(1.0)
    }

    /// How far below a host its name stands.
    pub(crate) fn name_below(&self) -> f64 {
        10.0 + 14.0 * self.layout.scale
    }

    pub(crate) fn name(&self, node: NodeId) -> &str {
        &self.topology().node(node).name
    }

    /// Box of a switch, with its name in it where there is room: left, top, width, height.
    pub(crate) fn frame(&self, node: NodeId) -> (At, f64, f64) {
        let (at, row) = (self.layout.at(node), self.layout.row(node));
        let (width, height) = if self.layout.named[row] {
            (name_width(self.name(node)) + 14.0, 24.0)
        } else {
            (self.half(row) * 2.0, self.half(row) * 2.0)
        };
        (At { x: at.x - width / 2.0, y: at.y - height / 2.0 }, width, height)
    }

    /// All cables in grey.
    pub(crate) fn lines(&self) -> String {
        let mut svg = Svg::default();
        self.cables(&mut svg);
        self.broken_lines(&mut svg);
        svg.0
    }

    /// All nodes in grey.
    pub(crate) fn nodes(&self) -> String {
        let mut svg = Svg::default();
        self.switches(&mut svg);
        self.hosts(&mut svg);
        svg.0
    }

    fn cables(&self, svg: &mut Svg) {
        let topology = self.topology();
        let mut seen = HashSet::new();
        let drawn: Vec<CableId> =
            cable_ids(topology).filter(|cable| seen.insert(self.layout.drawn_as(topology, *cable))).collect();
        let way = |cable: &CableId| self.layout.way(topology, cable.links()[0]);
        if drawn.len() <= CABLES_TITLED_MAX {
            for cable in &drawn {
                let name = topology.cable_name(*cable);
                svg.put(format_args!("<path class=\"c\" d=\"{}\"><title>{}</title></path>\n", way(cable), Text(&name)));
            }
            return;
        }
        svg.put(format_args!("<path class=\"c\" d=\""));
        for cable in drawn.iter().step_by(drawn.len().div_ceil(CABLES_DRAWN_MAX)) {
            svg.put(format_args!("{}", way(cable)));
        }
        svg.put(format_args!("\"/>\n"));
    }

    fn switches(&self, svg: &mut Svg) {
        let all: Vec<NodeId> = self.layout.order.iter().skip(1).flatten().copied().collect();
        if all.len() > SWITCHES_TITLED_MAX {
            svg.put(format_args!("<path class=\"dots\" d=\""));
            for node in all.iter().step_by(all.len().div_ceil(DOTS_MAX)) {
                svg.put(format_args!("M{}h0", self.layout.at(*node)));
            }
            svg.put(format_args!("\"/>\n"));
            return;
        }
        for node in all {
            let (corner, width, height) = self.frame(node);
            let (topology, at) = (self.topology(), self.layout.at(node));
            let (name, tier) = (self.name(node), topology.node(node).tier);
            let cables = count_of(topology.leaving(node).len(), "cable");
            svg.put(format_args!(
                "<g class=\"s\"><title>{}, tier {tier}, {cables}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" \
                 rx=\"3\"/>",
                Text(name),
                Px(corner.x),
                Px(corner.y),
                Px(width),
                Px(height)
            ));
            if self.layout.named[self.layout.row(node)] {
                svg.put(format_args!(
                    "<text x=\"{}\" y=\"{}\" style=\"font-size:12px\">{}</text>",
                    Px(at.x),
                    Px(at.y + 4.3),
                    Text(&short(name))
                ));
            }
            svg.put(format_args!("</g>\n"));
        }
    }

    fn hosts(&self, svg: &mut Svg) {
        let hosts: Vec<NodeId> = self.layout.order.iter().take(1).flatten().copied().collect();
        let fits = |host: &NodeId| name_width(self.name(*host)) * self.layout.scale + 6.0 <= self.layout.spacing[0];
        let named = self.layout.pills.is_empty() && hosts.iter().all(fits);
        for host in &hosts {
            let at = self.layout.at(*host);
            if named {
                svg.text(At { x: at.x, y: at.y + self.name_below() }, "mid dim", &short(self.name(*host)));
            }
            svg.put(format_args!(
                "<circle class=\"o\" cx=\"{}\" cy=\"{}\" r=\"4\"><title>{}</title></circle>\n",
                Px(at.x),
                Px(at.y),
                Text(self.name(*host))
            ));
        }
        for pill in self.layout.pills.iter().step_by(self.layout.pills.len().div_ceil(DOTS_MAX).max(1)) {
            if self.layout.pills.len() > SWITCHES_TITLED_MAX {
                svg.put(format_args!("<path class=\"dots\" d=\"M{}h0\"/>", pill.at));
                continue;
            }
            let (first, last) = (pill.hosts.first(), pill.hosts.last());
            let ends = first.zip(last).map_or_else(String::new, |(a, b)| match a == b {
                true => self.name(*a).to_owned(),
                false => format!("{}: {} to {}", count_of(pill.hosts.len(), "host"), self.name(*a), self.name(*b)),
            });
            let half = 9.0;
            svg.put(format_args!(
                "<g class=\"p\"><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{PILL_WIDTH}\" height=\"{}\" rx=\"{}\"/>\
                 <text x=\"{}\" y=\"{}\">+{}</text></g>\n",
                Text(&ends),
                Px(pill.at.x - PILL_WIDTH / 2.0),
                Px(pill.at.y - half),
                Px(half * 2.0),
                Px(half),
                Px(pill.at.x),
                Px(pill.at.y + 4.3),
                pill.hosts.len()
            ));
        }
    }

    /// Cables that do not work.
    pub(crate) fn broken(&self) -> Vec<CableId> {
        cable_ids(self.topology()).filter(|cable| !self.plan.planner.works(*cable)).collect()
    }

    /// The lines of broken cables, drawn below the switches.
    fn broken_lines(&self, svg: &mut Svg) {
        for cable in self.broken().into_iter().take(BROKEN_DRAWN_MAX) {
            svg.put(format_args!("<path class=\"d\" d=\"{}\"/>\n", self.layout.way(self.topology(), cable.links()[0])));
        }
    }

    /// Red crosses on broken cables.
    pub(crate) fn crosses(&self) -> String {
        let mut svg = Svg::default();
        let topology = self.topology();
        for (n, cable) in self.broken().into_iter().take(BROKEN_DRAWN_MAX).enumerate() {
            let way = self.layout.way(topology, cable.links()[0]);
            let (At { x, y }, _) = way.point(0.5);
            let arm = 5.0 * self.layout.scale;
            svg.put(format_args!(
                "<path class=\"x\" d=\"M{}L{}M{}L{}\">",
                At { x: x - arm, y: y - arm },
                At { x: x + arm, y: y + arm },
                At { x: x - arm, y: y + arm },
                At { x: x + arm, y: y - arm }
            ));
            if n < BROKEN_TITLED_MAX {
                svg.put(format_args!("<title>{} does not work</title>", Text(&topology.cable_name(cable))));
            }
            svg.put(format_args!("</path>\n"));
        }
        svg.0
    }
}
