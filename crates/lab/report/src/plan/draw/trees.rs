// SPDX-License-Identifier: Apache-2.0
//! Draws the trees of one request over the network.

use std::collections::{BTreeMap, HashMap};

use fide_planner::{Allocation, LinkId, LinkUse, NodeId, RequestId, Tree};

use super::{
    layout::{Way, name_width},
    net::{Scene, short},
};
use crate::{
    plan::figures::RequestFigures,
    plan::svg::{At, Px, Svg},
    text::{Lines, Text, clean},
    units,
};

/// Position of the arrow on a link, 0 to 1.
const ARROW_AT: f64 = 0.6;

impl Scene<'_> {
    /// Use of each link, shown under the pointer.
    pub(crate) fn uses(&self) -> HashMap<LinkId, LinkUse> {
        self.plan.planner.links().map(|link| (link.link, link)).collect()
    }

    /// The trees of `allocation`, to be drawn below all nodes; and its switches, its sender and its
    /// receivers, to be drawn above them.
    pub(crate) fn trees(
        &self,
        id: RequestId,
        allocation: &Allocation,
        uses: &HashMap<LinkId, LinkUse>,
    ) -> (String, String) {
        let mut svg = Svg::default();
        let topology = self.topology();
        let ways: Vec<Vec<(LinkId, Way)>> = allocation
            .trees
            .iter()
            .map(|tree| tree.links().map(|link| (link, self.layout.way(topology, link))).collect())
            .collect();
        // A white outline cuts the lines that cross below, so that the eye does not follow them.
        svg.put(format_args!("<path class=\"w\" d=\""));
        for (_, way) in ways.iter().flatten() {
            svg.put(format_args!("{way}"));
        }
        svg.put(format_args!("\"/>\n"));
        for (n, ways) in ways.iter().enumerate() {
            for (link, way) in ways {
                let title = self.link_title(allocation, n, *link, uses);
                svg.put(format_args!("<path class=\"t{n}\" d=\"{way}\"><title>{}</title></path>\n", Lines(&title)));
            }
        }
        for (n, ways) in ways.iter().enumerate() {
            svg.put(format_args!("<path class=\"a{n}\" d=\""));
            ways.iter().for_each(|(_, way)| self.arrow(&mut svg, way));
            svg.put(format_args!("\"/>\n"));
        }
        let under = std::mem::take(&mut svg.0);
        let mut labels = Svg::default();
        for (n, tree) in allocation.trees.iter().enumerate() {
            self.tree_switches(&mut svg, &mut labels, n, tree);
        }
        self.ends(&mut svg, id, allocation);
        (under, svg.0 + &labels.0)
    }

    fn link_title(&self, allocation: &Allocation, n: usize, link: LinkId, uses: &HashMap<LinkId, LinkUse>) -> String {
        let topology = self.topology();
        let (from, to) = (self.name(topology.from(link)), self.name(topology.to(link)));
        let name = clean(&allocation.request.name);
        let mut title = format!("{name}, tree {n}: {from} to {to}, port {}", topology.port(link));
        if let Some(LinkUse { trees, lane_bps, allowed_bps, delay_max_ps, .. }) = uses.get(&link) {
            title += &format!(
                "\n{} here, {} of {} allowed, at most {} in its queue",
                units::count_of(*trees, "tree"),
                units::rate(*lane_bps),
                units::rate(*allowed_bps),
                units::time(delay_max_ps.div_ceil(1000))
            );
        }
        title
    }

    fn arrow(&self, svg: &mut Svg, way: &Way) {
        let (At { x, y }, d) = way.point(ARROW_AT);
        let size = 6.0 * self.layout.scale;
        let wing = |side: f64| At {
            x: x - d.x * size * 0.7 - d.y * size * 0.75 * side,
            y: y - d.y * size * 0.7 + d.x * size * 0.75 * side,
        };
        svg.put(format_args!("M{}L{}L{}Z", At { x: x + d.x * size, y: y + d.y * size }, wing(1.0), wing(-1.0)));
    }

    fn tree_switches(&self, svg: &mut Svg, labels: &mut Svg, n: usize, tree: &Tree) {
        let mut rows: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        for node in tree.switches(self.topology()) {
            rows.entry(self.layout.row(node)).or_default().push(node);
        }
        for (row, nodes) in rows {
            for node in nodes {
                let (mut corner, mut width, mut height) = self.frame(node);
                let (at, name) = (self.layout.at(node), self.name(node));
                let named = self.layout.named[row];
                if !named {
                    // Larger than switches that are not in the tree.
                    let more = 1.5 * self.layout.scale;
                    corner = At { x: corner.x - more, y: corner.y - more };
                    (width, height) = (width + 2.0 * more, height + 2.0 * more);
                }
                svg.put(format_args!(
                    "<g><title>{}, tree {n}</title><rect class=\"b{n}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" \
                     rx=\"3\"/>",
                    Text(name),
                    Px(corner.x),
                    Px(corner.y),
                    Px(width),
                    Px(height)
                ));
                if named {
                    svg.put(format_args!(
                        "<text class=\"tx\" x=\"{}\" y=\"{}\" style=\"font-size:12px\">{}</text>",
                        Px(at.x),
                        Px(at.y + 4.3),
                        Text(&short(name))
                    ));
                } else {
                    let size = (self.layout.spacing[row] * 0.95).clamp(7.0, 12.5 * self.layout.scale);
                    let at = At { x: at.x + size * 0.3, y: corner.y - 4.0 };
                    turned(labels, at, -55.0, size, &format!("halo x{n}"), &short(name));
                }
                svg.put(format_args!("</g>\n"));
            }
        }
    }

    fn ends(&self, svg: &mut Svg, id: RequestId, allocation: &Allocation) {
        let topology = self.topology();
        let figures = crate::plan::figures::request(&self.plan, id, allocation);
        let RequestFigures { sender, receivers, .. } = &figures;
        // Names stand side by side if they have room, else turned.
        let mut places: Vec<(f64, f64)> = [sender]
            .into_iter()
            .chain(receivers.iter().map(|one| &one.host))
            .filter_map(|name| Some((self.layout.at(topology.find(name)?).x, name_width(name) * self.layout.scale)))
            .collect();
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        let gaps = places.windows(2).map(|two| (two[1].0 - two[0].0, f64::midpoint(two[0].1, two[1].1) + 8.0));
        let turn = gaps.clone().any(|(gap, needed)| gap < needed);
        let narrowest = gaps.map(|(gap, _)| gap).fold(200.0, f64::min);
        let all = [(sender, None)].into_iter().chain(receivers.iter().map(|one| (&one.host, Some(one.times))));
        for (name, times) in all {
            let Some(node) = topology.find(name) else { continue };
            let at = self.layout.at(node);
            let r = (7.5 * self.layout.scale.min(1.5)).min(self.layout.spacing[0].max(12.0) * 0.5);
            let title = match times {
                None => format!("{name} sends"),
                Some(times) => format!(
                    "{name} receives within {} to {}, jitter {}\ntimeout {}",
                    units::time(times.latency_min_ns),
                    units::time(times.latency_max_ns),
                    units::time(times.jitter_max_ns),
                    units::time(times.timeout_ns)
                ),
            };
            svg.put(format_args!("<g><title>{}</title>", Lines(&title)));
            mark(svg, at, r, times.is_none());
            svg.put(format_args!("</g>\n"));
            let below = At { x: at.x, y: at.y + r + 6.0 };
            let at = At { x: at.x, y: at.y + self.name_below() };
            if turn {
                let size = (narrowest * 0.85).clamp(8.0, 12.0 * self.layout.scale);
                let at = At { x: below.x - size * 0.2, y: below.y + size * 0.3 };
                turned(svg, at, 60.0, size, if times.is_none() { "halo h2" } else { "halo" }, &short(name));
            } else {
                let class = if times.is_none() { "mid halo h2" } else { "mid halo" };
                svg.text(at, class, &short(name));
            }
        }
    }
}

/// Draws a sender as a filled square, or a receiver as a ring around a dot.
pub(crate) fn mark(svg: &mut Svg, at: At, r: f64, sends: bool) {
    let (x, y, r2) = (Px(at.x), Px(at.y), Px(r * 2.0));
    if sends {
        let (left, top) = (Px(at.x - r), Px(at.y - r));
        svg.put(format_args!("<rect class=\"from\" x=\"{left}\" y=\"{top}\" width=\"{r2}\" height=\"{r2}\"/>"));
        let size = Px(r * 1.5);
        let down = Px(at.y + r * 0.55);
        svg.put(format_args!("<text class=\"sx\" x=\"{x}\" y=\"{down}\" style=\"font-size:{size}px\">S</text>"));
    } else {
        svg.put(format_args!("<circle class=\"to\" cx=\"{x}\" cy=\"{y}\" r=\"{}\"/>", Px(r - 1.0)));
        svg.put(format_args!("<circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"{}\"/>", Px(r * 0.4)));
    }
}

fn turned(svg: &mut Svg, at: At, degrees: f64, size: f64, class: &str, text: &str) {
    svg.put(format_args!(
        "<text class=\"{class}\" transform=\"translate({} {}) rotate({degrees})\" style=\"font-size:{}px\">{}</text>\n",
        Px(at.x),
        Px(at.y),
        Px(size),
        Text(text)
    ));
}
