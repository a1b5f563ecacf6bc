// SPDX-License-Identifier: Apache-2.0
//! Draws how full the cables are, for plans with many requests.

use std::collections::HashMap;

use fide_planner::{CableId, LinkUse};

use super::{
    net::Scene,
    style::{LOADS, load, load_top},
};
use crate::{plan::figures::share, plan::svg::Svg, text::Lines, units};

/// The fullest cables, up to this number, have a title with their figures.
const TITLED_MAX: usize = 3_000;
/// Most cables that are coloured; the emptier ones beyond that stay grey.
const DRAWN_MAX: usize = 30_000;

impl Scene<'_> {
    /// Where the scale of colours ends.
    pub(crate) fn load_top(&self) -> f64 {
        load_top(self.plan.planner.links().map(|used| share(used.lane_bps, used.allowed_bps)).fold(0.0, f64::max))
    }

    /// Cables in use, each in the colour of the fuller direction.
    pub(crate) fn loads(&self, top: f64) -> String {
        let topology = self.topology();
        // Cables that are drawn as one line count as one, as full as the fullest of them.
        let mut lines: HashMap<(u64, u64), (f64, CableId, Vec<LinkUse>)> = HashMap::new();
        for used in self.plan.planner.links() {
            let cable = used.link.cable();
            let share = share(used.lane_bps, used.allowed_bps);
            let line = lines.entry(self.layout.drawn_as(topology, cable)).or_insert((0.0, cable, Vec::new()));
            line.0 = line.0.max(share);
            line.2.push(used);
        }
        let mut lines: Vec<(f64, CableId, Vec<LinkUse>)> = lines.into_values().collect();
        lines.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let (titled, plain) = lines.split_at(lines.len().min(TITLED_MAX));
        let mut svg = Svg::default();
        for class in 0..LOADS.len() {
            let rest: Vec<_> = plain.iter().take(DRAWN_MAX).filter(|line| load(line.0, top) == class).collect();
            if !rest.is_empty() {
                svg.put(format_args!("<path class=\"u{class}\" d=\""));
                for (_, cable, _) in rest {
                    svg.put(format_args!("{}", self.layout.way(topology, cable.links()[0])));
                }
                svg.put(format_args!("\"/>\n"));
            }
        }
        // The fullest are drawn last, on top.
        for (share, cable, uses) in titled.iter().rev() {
            let way = self.layout.way(topology, cable.links()[0]);
            let class = load(*share, top);
            svg.put(format_args!("<path class=\"u{class}\" d=\"{way}\"><title>"));
            let mut uses: Vec<&LinkUse> = uses.iter().collect();
            uses.sort_by_key(|used| (std::cmp::Reverse(used.lane_bps), used.link));
            for (n, used) in uses.iter().take(2).enumerate() {
                let title = format!(
                    "{}{} to {}: {}, {} ({}), queue at most {}",
                    if n > 0 { "\n" } else { "" },
                    self.name(topology.from(used.link)),
                    self.name(topology.to(used.link)),
                    units::count_of(used.trees, "tree"),
                    units::rate(used.lane_bps),
                    units::share(crate::plan::figures::share(used.lane_bps, used.allowed_bps)),
                    units::time(used.delay_max_ps.div_ceil(1000))
                );
                svg.put(format_args!("{}", Lines(&title)));
            }
            if uses.len() > 2 {
                svg.put(format_args!("\nand {} more in this line", uses.len() - 2));
            }
            svg.put(format_args!("</title></path>\n"));
        }
        svg.0
    }
}
