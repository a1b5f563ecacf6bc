// SPDX-License-Identifier: Apache-2.0
//! A plan as one SVG.
//!
//! - `order`: the order of the units in each row; `layout`: the places of everything.
//! - `net`: the network in grey, and its broken cables.
//! - `trees`: the trees of one request, drawn over the network. Each request has a panel of its own, so that
//!   trees 0, 1 and 2 look the same everywhere and can be followed.
//! - `load`: how full the cables are, drawn if there are more requests than panels.
//! - `words`, `style`: the texts, and how everything looks.
//!
//! A drawing's size is bounded by the constants named `_MAX` in these files: what exceeds them is thinned out
//! or given as a number.

pub(crate) mod layout;
mod load;
pub(crate) mod net;
pub(crate) mod order;
mod style;
mod trees;
mod words;

use std::collections::{BTreeSet, HashMap};

use fide_planner::{Allocation, NodeId, RequestId};

use crate::{
    plan::figures,
    plan::model::Plan,
    plan::svg::{At, Px, Svg},
    text::{Text, clean},
    units::count_of,
};
use layout::{HOSTS_DRAWN_MAX, Layout};
use net::Scene;
use words::Line;

/// Most requests that are drawn one by one if none is named. With more, cables are coloured by how full they
/// are.
pub const PANELS_MAX: usize = 6;
/// Most requests that may be named.
pub const ONLY_MAX: usize = 12;

/// What to draw of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DrawOptions {
    /// The title above the drawing.
    pub title: String,
    /// Names of requests to draw. If empty: all requests, or how full the cables are.
    pub only: Vec<String>,
}

/// Why a plan cannot be drawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DrawError {
    #[error("no request is called {name:?}; the plan has {held}")]
    Unknown { name: String, held: String },
    #[error("{0} requests are named; at most {ONLY_MAX} are drawn")]
    TooMany(usize),
}

type Held<'a> = (RequestId, &'a Allocation);

/// A part of the drawing: lines of text, and a network below them.
struct Panel<'a> {
    lines: Vec<Line>,
    scene: &'a Scene<'a>,
    /// Drawn over its cables, below its nodes.
    under: String,
    /// Drawn over its nodes.
    over: String,
}

/// Draws the network of a plan with the trees of its requests, or with how full its cables are.
///
/// # Errors
/// [`DrawError`]: a request is named that the plan neither has nor refused.
pub fn draw<'a>(plan: impl Into<Plan<'a>>, view: &DrawOptions) -> Result<String, DrawError> {
    let plan = plan.into();
    known(&[plan], view)?;
    let held = selected(&plan, &view.only);
    let one_by_one = !view.only.is_empty() || held.len() <= PANELS_MAX;
    let shown = if one_by_one { hosts(&plan, &held) } else { BTreeSet::new() };
    let scene = Scene { plan, layout: Layout::of(plan.planner.topology(), &shown) };
    let uses = scene.uses();
    let mut panels: Vec<Panel<'_>> = Vec::new();
    if one_by_one {
        panels.extend(held.iter().map(|held| of_request(&scene, *held, &uses, None, None)));
        if panels.is_empty() {
            panels.push(Panel {
                lines: vec![Line::new("h2", "no request was granted")],
                scene: &scene,
                under: String::new(),
                over: String::new(),
            });
        }
    } else {
        panels.push(Panel {
            lines: words::loads(&scene),
            scene: &scene,
            under: scene.loads(scene.load_top()),
            over: String::new(),
        });
    }
    let columns = if panels.len() > 1 && scene.layout.width <= 640.0 { 2 } else { 1 };
    let top = (!one_by_one).then(|| scene.load_top());
    Ok(page(view, &panels, columns, top, &[&scene]))
}

/// Draws two states of a network side by side, request by request: which trees have moved, and what is
/// broken. If there are more requests than can be drawn, it draws those whose trees have moved; if these are
/// still too many, it draws how full the cables were and are.
///
/// # Errors
/// [`DrawError`]: a request is named that neither plan has or refused.
pub fn draw_before_after<'a>(
    before: impl Into<Plan<'a>>,
    after: impl Into<Plan<'a>>,
    view: &DrawOptions,
) -> Result<String, DrawError> {
    let plans = [before.into(), after.into()];
    known(&plans, view)?;
    let mut held = plans.map(|plan| selected(&plan, &view.only));
    let mut ids: BTreeSet<RequestId> = held.iter().flatten().map(|(id, _)| *id).collect();
    if view.only.is_empty() && ids.len() > PANELS_MAX {
        let trees = |side: usize, id: &RequestId| plans[side].planner.allocation(*id).map(|held| &held.trees);
        let moved: BTreeSet<RequestId> = ids.iter().filter(|id| trees(0, id) != trees(1, id)).copied().collect();
        if (1..=PANELS_MAX).contains(&moved.len()) {
            ids = moved;
        }
    }
    let one_by_one = !view.only.is_empty() || ids.len() <= PANELS_MAX;
    held.iter_mut().for_each(|held| held.retain(|(id, _)| ids.contains(id)));
    // The same hosts are drawn one by one on both sides, so that both look the same.
    let names: BTreeSet<String> = if one_by_one {
        let names = |(plan, held): (&Plan<'_>, &Vec<Held<'_>>)| -> Vec<String> {
            hosts(plan, held).iter().map(|host| plan.planner.topology().node(*host).name.clone()).collect()
        };
        plans.iter().zip(&held).flat_map(names).collect()
    } else {
        BTreeSet::new()
    };
    let scenes = plans.map(|plan| {
        let topology = plan.planner.topology();
        let shown = names.iter().filter_map(|name| topology.find(name)).collect();
        Scene { plan, layout: Layout::of(topology, &shown) }
    });
    let uses = [scenes[0].uses(), scenes[1].uses()];
    let words = ["before", "after"];
    let mut panels = Vec::new();
    if one_by_one {
        for id in &ids {
            let old = held[0].iter().find(|(other, _)| other == id);
            let old_figures = old.map(|(id, allocation)| figures::request(&plans[0], *id, allocation));
            for side in 0..2 {
                panels.push(match held[side].iter().find(|(other, _)| other == id) {
                    Some(held) => {
                        let compare = if side == 1 { old_figures.as_ref() } else { None };
                        of_request(&scenes[side], *held, &uses[side], compare, Some(words[side]))
                    }
                    None => {
                        let name = old.map_or("it", |(_, allocation)| &allocation.request.name);
                        let lines =
                            vec![Line::new("h2", format!("{}: {} is not in the plan", words[side], clean(name)))];
                        Panel { lines, scene: &scenes[side], under: String::new(), over: String::new() }
                    }
                });
            }
        }
    }
    let top = panels.is_empty().then(|| scenes[0].load_top().max(scenes[1].load_top()));
    if let Some(top) = top {
        for (scene, word) in scenes.iter().zip(words) {
            let mut lines = words::loads(scene);
            lines.insert(0, Line::new("h2", word));
            panels.push(Panel { lines, scene, under: scene.loads(top), over: String::new() });
        }
    }
    Ok(page(view, &panels, 2, top, &[&scenes[0], &scenes[1]]))
}

fn known(plans: &[Plan<'_>], view: &DrawOptions) -> Result<(), DrawError> {
    if view.only.len() > ONLY_MAX {
        return Err(DrawError::TooMany(view.only.len()));
    }
    for name in &view.only {
        let there = |plan: &Plan<'_>| {
            plan.planner.allocations().any(|(_, held)| held.request.name == *name)
                || plan.refused.iter().any(|refused| refused.request.name == *name)
        };
        if !plans.iter().any(there) {
            let mut names = plans.iter().flat_map(|plan| plan.planner.allocations());
            let held = match names.next() {
                None => "none".to_owned(),
                Some((_, first)) => {
                    let total: usize = plans.iter().map(|plan| plan.planner.allocations().count()).max().unwrap_or(0);
                    format!("{total}, the first is {:?}", clean(&first.request.name))
                }
            };
            return Err(DrawError::Unknown { name: clean(name), held });
        }
    }
    Ok(())
}

fn selected<'a>(plan: &Plan<'a>, only: &[String]) -> Vec<Held<'a>> {
    let named = |(_, held): &Held<'_>| only.is_empty() || only.contains(&held.request.name);
    let all = plan.planner.allocations().filter(named);
    // A planner may have several requests of the same name.
    if only.is_empty() { all.collect() } else { all.take(ONLY_MAX).collect() }
}

fn hosts(plan: &Plan<'_>, held: &[Held<'_>]) -> BTreeSet<NodeId> {
    let names = held.iter().flat_map(|(_, of)| [&of.request.sender].into_iter().chain(&of.request.receivers));
    names.filter_map(|name| plan.planner.topology().find(name)).collect()
}

fn of_request<'a>(
    scene: &'a Scene<'a>,
    (id, allocation): Held<'_>,
    uses: &HashMap<fide_planner::LinkId, fide_planner::LinkUse>,
    before: Option<&figures::RequestFigures>,
    word: Option<&str>,
) -> Panel<'a> {
    let figures = figures::request(&scene.plan, id, allocation);
    let mut lines = words::request(&figures, before);
    if let (Some(word), Some(first)) = (word, lines.first_mut()) {
        first.text = format!("{word}: {}", first.text);
    }
    let (under, over) = scene.trees(id, allocation, uses);
    Panel { lines, scene, under, over }
}

/// Measures of a page, pixels.
struct Sheet {
    scale: f64,
    margin: f64,
    /// Space between a panel's frame and its content.
    pad: f64,
    /// Width of a panel.
    column: f64,
    /// Width of the page.
    width: f64,
}

impl Sheet {
    fn of(panels: &[Panel<'_>], columns: usize, scenes: &[&Scene<'_>]) -> Self {
        let scale = scenes.iter().map(|scene| scene.layout.scale).fold(1.0, f64::max);
        let (margin, pad) = (22.0 * scale, 18.0 * scale);
        let width_of = |panel: &Panel<'_>| panel.scene.layout.width + 2.0 * pad + 46.0 * scale;
        let column = panels.iter().map(width_of).fold(0.0, f64::max);
        #[allow(clippy::cast_precision_loss, reason = "one or two")]
        let width = margin * 2.0 + column * columns as f64 + margin * (columns - 1) as f64;
        Self { scale, margin, pad, column, width }
    }
}

/// The whole drawing: title, panels in rows, legend.
fn page(view: &DrawOptions, panels: &[Panel<'_>], columns: usize, top: Option<f64>, scenes: &[&Scene<'_>]) -> String {
    let sheet = Sheet::of(panels, columns, scenes);
    let mut body = Svg::default();
    let mut y = sheet.margin;
    if !view.title.is_empty() {
        y += 14.0 * sheet.scale;
        body.text(At { x: sheet.margin, y }, "h1", &clean(&view.title));
    }
    y += 18.0 * sheet.scale;
    body.text(At { x: sheet.margin, y }, "dim", &about(scenes[0]));
    y += 12.0 * sheet.scale;
    let (nets, defs) = networks(scenes);
    let net_of = |panel: &Panel<'_>| {
        nets[scenes.iter().position(|scene| std::ptr::eq(*scene, panel.scene)).unwrap_or(0)].as_str()
    };
    for row in panels.chunks(columns) {
        y += row_of_panels(&mut body, row, y, &sheet, net_of) + sheet.margin * 0.8;
    }
    y += legend(&mut body, y, top, scenes, &sheet) + sheet.margin;
    let cables = scenes.iter().map(|scene| scene.topology().cables().len()).max().unwrap_or(0);
    let style = style::sheet(sheet.scale, cables);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fide-plan\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
         role=\"img\">\n<title>{}</title>\n<style>\n{style}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <defs>\n{}</defs>\n{}</svg>\n",
        Text(if view.title.is_empty() { "Fide plan" } else { &view.title }),
        defs.0,
        body.0,
        w = Px(sheet.width.ceil()),
        h = Px(y.ceil()),
    )
}

/// The network of each scene, defined once, for `<use>` to draw in panels. Returns each scene's id, and the
/// definitions.
fn networks(scenes: &[&Scene<'_>]) -> (Vec<String>, Svg) {
    let mut ids: Vec<String> = Vec::new();
    let mut defs = Svg::default();
    for scene in scenes {
        let (lines, nodes, crosses) = (scene.lines(), scene.nodes(), scene.crosses());
        let id = format!("fide-{:x}", name_of(&[&lines, &nodes, &crosses]));
        // `<use>` applies only the styles of the referenced part itself, so each part needs the class.
        if !ids.contains(&id) {
            defs.put(format_args!(
                "<g id=\"{id}\" class=\"fide-plan\">\n{lines}</g>\n<g id=\"{id}-n\" class=\"fide-plan\">\n{nodes}</g>\n<g id=\"{id}-x\" class=\"fide-plan\">\n{crosses}</g>\n"
            ));
        }
        ids.push(id);
    }
    (ids, defs)
}

/// Draws panels side by side, and returns their height.
fn row_of_panels<'a>(
    body: &mut Svg,
    row: &[Panel<'_>],
    y: f64,
    sheet: &Sheet,
    net_of: impl Fn(&Panel<'_>) -> &'a str,
) -> f64 {
    let Sheet { scale, margin, pad, column, .. } = *sheet;
    let mut heads = Vec::new();
    for panel in row {
        let mut head = Svg::default();
        let height = words::write(&mut head, &panel.lines, pad * 0.4, scale);
        heads.push((head.0, height));
    }
    let head = heads.iter().map(|(_, height)| *height).fold(0.0, f64::max) + 14.0 * scale;
    let net = row.iter().map(|panel| panel.scene.layout.height).fold(0.0, f64::max);
    let high = head + net + pad;
    for (n, (panel, (lines, _))) in row.iter().zip(&heads).enumerate() {
        #[allow(clippy::cast_precision_loss, reason = "one or two")]
        let x = margin + (column + margin) * n as f64;
        let id = net_of(panel);
        body.put(format_args!(
            "<rect class=\"frame\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n\
             <g transform=\"translate({} {})\">\n{lines}<g transform=\"translate({} {})\">\n<use href=\"#{id}\"/>\n{}<use href=\"#{id}-n\"/>\n{}\
             <use href=\"#{id}-x\"/>\n</g>\n</g>\n",
            Px(x),
            Px(y),
            Px(column),
            Px(high),
            Px(x + pad),
            Px(y),
            // Centred in the panel.
            Px((column - 2.0 * pad - panel.scene.layout.width) / 2.0),
            Px(head),
            panel.under,
            panel.over
        ));
    }
    high
}

/// Draws the meaning of the signs, a list of requests if the page shows load, and the refused requests.
/// Returns the height.
fn legend(body: &mut Svg, y: f64, top: Option<f64>, scenes: &[&Scene<'_>], sheet: &Sheet) -> f64 {
    let last = scenes[scenes.len() - 1];
    let width = sheet.width - 2.0 * sheet.margin;
    let mut legend = Svg::default();
    let below = words::signs(&mut legend, last, top, width);
    let mut lines = if top.is_none() { Vec::new() } else { words::list(last) };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a width in characters")]
    let characters = (width / (7.4 * sheet.scale)) as usize;
    for scene in scenes {
        lines.extend(words::refused(scene.plan.refused, characters));
    }
    let height = words::write(&mut legend, &lines, below, sheet.scale);
    body.put(format_args!("<g transform=\"translate({} {})\">\n{}</g>\n", Px(sheet.margin), Px(y), legend.0));
    height
}

/// The network described in one line.
fn about(scene: &Scene<'_>) -> String {
    let topology = scene.topology();
    let hosts = topology.hosts().count();
    let switches = topology.nodes().len() - hosts;
    let few = if hosts > HOSTS_DRAWN_MAX { "; point at anything to see its name and figures" } else { "" };
    format!(
        "{}, {}, {}{few}",
        count_of(hosts, "host"),
        if switches == 1 { "1 switch".to_owned() } else { format!("{switches} switches") },
        count_of(topology.cables().len(), "cable"),
    )
}

/// A page may hold several drawings, so the id of a definition is a hash of its content (FNV-1a).
fn name_of(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
