// SPDX-License-Identifier: Apache-2.0
//! The texts above and below the networks.

use fide_planner::{Allocation, trees::Method};

use super::{
    net::Scene,
    style::{LOADS, load_from},
    trees::mark,
};
use crate::{
    plan::figures::{Figures, RequestFigures},
    plan::model::Refused,
    plan::svg::{At, Px, Svg},
    text::clean,
    units::{count_of, rate, share, time},
};

/// Most requests that are listed below a drawing of how full cables are.
const REQUESTS_LISTED_MAX: usize = 12;
/// Most refused requests that are listed.
const REFUSED_LISTED_MAX: usize = 6;
/// Most links that are listed, the fullest first.
const LINKS_LISTED_MAX: usize = 5;

/// A line of text. For a tree, a stroke in the tree's style stands before it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Line {
    pub(crate) class: &'static str,
    pub(crate) tree: Option<usize>,
    pub(crate) text: String,
}

impl Line {
    pub(crate) fn new(class: &'static str, text: impl Into<String>) -> Self {
        Self { class, tree: None, text: text.into() }
    }
}

/// `BottomUp` and so on, for people.
pub(crate) fn method(of: Method) -> &'static str {
    match of {
        Method::BottomUp => "bottom-up",
        Method::Negotiated => "negotiated",
        Method::Searched => "searched",
        Method::Kept => "kept",
    }
}

/// Lines about one request. `before`: its earlier figures, to show what has moved.
pub(crate) fn request(of: &RequestFigures, before: Option<&RequestFigures>) -> Vec<Line> {
    let name = clean(&of.name);
    let receivers = match &of.receivers[..] {
        [one] => one.host.clone(),
        all => count_of(all.len(), "receiver"),
    };
    let proved = if of.proved_cheapest { ", proved cheapest" } else { "" };
    let mut lines = vec![
        Line::new("h2", name),
        Line::new(
            "",
            format!(
                "{} to {receivers}: {} bytes every {}, sub-lane {}; {} {}{proved}",
                of.sender,
                of.size_max_bytes,
                time(of.period_min_ns),
                of.priority,
                count_of(of.trees.len(), "tree"),
                method(of.method),
            ),
        ),
        Line::new(
            "",
            format!(
                "within {} to {}, jitter {}; timeout {}",
                time(of.overall.latency_min_ns),
                time(of.overall.latency_max_ns),
                time(of.overall.jitter_max_ns),
                time(of.overall.timeout_ns)
            ),
        ),
        Line::new("dim", together(of)),
    ];
    for (n, tree) in of.trees.iter().enumerate() {
        let moved = before.and_then(|before| before.trees.get(n)).is_some_and(|old| old.links != tree.links);
        let text = format!(
            "tree {n}: {}, within {} to {}{}",
            count_of(tree.links.len(), "cable"),
            time(tree.overall.latency_min_ns),
            time(tree.overall.latency_max_ns),
            if moved { ", moved" } else { "" }
        );
        lines.push(Line { class: "", tree: Some(n), text });
        if tree.broken {
            lines.push(Line::new("bad", format!("tree {n} is broken")));
        }
    }
    lines
}

fn together(of: &RequestFigures) -> String {
    let all = if of.trees.len() == 1 { "its only tree fails" } else { "all its trees fail together" };
    match of.odds.years_between {
        Some(_) => format!("{all} at most {}", of.odds.words()),
        None => format!("{all}: never, by the rates given"),
    }
}

/// Lines about a network with more requests than can be drawn.
pub(crate) fn loads(scene: &Scene<'_>) -> Vec<Line> {
    let planner = scene.plan.planner;
    let mut lines = vec![Line::new(
        "h2",
        format!("{}: share of the allowed bandwidth in use", count_of(planner.allocations().count(), "request")),
    )];
    let figures = Figures { requests: Vec::new(), links: Figures::of(scene.plan).links };
    for link in figures.fullest(LINKS_LISTED_MAX) {
        lines.push(Line::new(
            "",
            format!(
                "{}: {}, {} of {} ({}), {} of the queue, at most {}",
                link.link,
                count_of(link.trees, "tree"),
                rate(link.lane_bps),
                rate(link.allowed_bps),
                share(link.lane_share()),
                share(link.backlog_share()),
                time(link.delay_max_ns)
            ),
        ));
    }
    lines
}

/// Some requests, one line each.
pub(crate) fn list(scene: &Scene<'_>) -> Vec<Line> {
    let planner = scene.plan.planner;
    let mut lines: Vec<Line> = planner
        .allocations()
        .take(REQUESTS_LISTED_MAX)
        .map(|(id, allocation): (_, &Allocation)| {
            let of = crate::plan::figures::request(&scene.plan, id, allocation);
            let times = format!("{} to {}", time(of.overall.latency_min_ns), time(of.overall.latency_max_ns));
            let text = format!(
                "{}: within {times}, timeout {}, {}",
                clean(&of.name),
                time(of.overall.timeout_ns),
                together(&of)
            );
            Line::new("", text)
        })
        .collect();
    let rest = planner.allocations().count().saturating_sub(REQUESTS_LISTED_MAX);
    if rest > 0 {
        lines.push(Line::new("dim", format!("and {rest} more; name some with --only to see their trees")));
    }
    lines
}

/// The refused requests, in lines of at most `width` characters.
pub(crate) fn refused(all: &[Refused], width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for refused in all.iter().take(REFUSED_LISTED_MAX) {
        let text = format!("refused: {}: {}", clean(&refused.request.name), refused.why);
        lines.extend(wrapped(&text, width).into_iter().map(|text| Line::new("bad", text)));
    }
    if all.len() > REFUSED_LISTED_MAX {
        lines.push(Line::new("bad", format!("and {} more refused", all.len() - REFUSED_LISTED_MAX)));
    }
    lines
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    // The reasons are our own texts, but names in them may be long.
    for word in text.split_whitespace().take(200) {
        let last = lines.last_mut().expect("one is there");
        let word: String = word.chars().take(width.max(1)).collect();
        if last.is_empty() {
            *last = word;
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            *last += " ";
            *last += &word;
        } else {
            lines.push(word);
        }
    }
    lines
}

/// Writes lines from `top` on. Returns where they end.
pub(crate) fn write(svg: &mut Svg, lines: &[Line], top: f64, scale: f64) -> f64 {
    let step = 18.0 * scale;
    let mut y = top;
    for line in lines {
        y += if line.class.starts_with('h') { step * 1.25 } else { step };
        let mut x = 0.0;
        if let Some(n) = line.tree {
            let (w, up) = (46.0 * scale, y - 4.0 * scale);
            svg.put(format_args!("<path class=\"t{n}\" d=\"M0 {}h{}\"/>", Px(up), Px(w)));
            let a = 6.0 * scale;
            svg.put(format_args!(
                "<path class=\"a{n}\" d=\"M{}L{}L{}Z\"/>",
                At { x: w * 0.6 + a, y: up },
                At { x: w * 0.6 - a * 0.7, y: up - a * 0.75 },
                At { x: w * 0.6 - a * 0.7, y: up + a * 0.75 }
            ));
            x = w + 8.0 * scale;
        }
        svg.text(At { x, y }, line.class, &line.text);
    }
    y
}

/// Writes what the signs mean, in one row that is wrapped at `width`. Returns its height. `top`: where the
/// scale of loads ends; `None` if trees are drawn.
pub(crate) fn signs(svg: &mut Svg, scene: &Scene<'_>, top: Option<f64>, width: f64) -> f64 {
    let s = scene.layout.scale;
    let (mut x, mut y, step) = (0.0, 14.0 * s, 22.0 * s);
    let mut item = |svg: &mut Svg, wide: f64, text: &str, sign: &dyn Fn(&mut Svg, f64, f64)| {
        #[allow(clippy::cast_precision_loss, reason = "a few words")]
        let all = (wide + 12.0 + text.chars().count() as f64 * 7.0 + 22.0) * s;
        if x > 0.0 && x + all > width {
            (x, y) = (0.0, y + step);
        }
        sign(svg, x, y - 4.0 * s);
        svg.text(At { x: x + (wide + 6.0) * s, y }, "dim", text);
        x += all;
    };
    let stroke = |class: &'static str| {
        move |svg: &mut Svg, x: f64, y: f64| {
            svg.put(format_args!("<path class=\"{class}\" d=\"M{}h{}\"/>", At { x, y }, Px(30.0 * s)));
        }
    };
    match top {
        None => {
            item(svg, 16.0, "sender", &|svg, x, y| mark(svg, At { x: x + 8.0 * s, y }, 7.0 * s, true));
            item(svg, 16.0, "receiver", &|svg, x, y| mark(svg, At { x: x + 8.0 * s, y }, 7.0 * s, false));
        }
        Some(top) => {
            for (n, class) in ["u0", "u1", "u2", "u3", "u4"].into_iter().enumerate().take(LOADS.len()) {
                let words = format!("{} to {}", share(load_from(n, top)), share(load_from(n + 1, top)));
                item(svg, 30.0, &words, &stroke(class));
            }
        }
    }
    item(svg, 30.0, "cable without a tree", &stroke("c"));
    if scene.layout.order.first().is_some_and(|hosts| !hosts.is_empty()) {
        item(svg, 10.0, "host", &|svg, x, y| {
            svg.put(format_args!("<circle class=\"o\" cx=\"{}\" cy=\"{}\" r=\"4\"/>", Px(x + 5.0 * s), Px(y)));
        });
    }
    if !scene.layout.pills.is_empty() {
        item(svg, 22.0, "n hosts on these switches", &|svg, x, y| {
            svg.put(format_args!(
                "<g class=\"p\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/><text x=\"{}\" y=\"{}\">+n</text></g>",
                Px(x),
                Px(y - 7.0 * s),
                Px(22.0 * s),
                Px(14.0 * s),
                Px(7.0 * s),
                Px(x + 11.0 * s),
                Px(y + 3.5 * s)
            ));
        });
    }
    let broken = scene.broken().len();
    if broken > 0 {
        item(svg, 30.0, &format!("{} broken", count_of(broken, "cable")), &|svg, x, y| {
            let a = 4.0 * s;
            let x = x + 15.0 * s;
            svg.put(format_args!("<path class=\"d\" d=\"M{}h{}\"/>", At { x: x - 15.0 * s, y }, Px(30.0 * s)));
            svg.put(format_args!(
                "<path class=\"x\" d=\"M{}l{} {}m0 {}l{} {}\"/>",
                At { x: x - a, y: y - a },
                Px(2.0 * a),
                Px(2.0 * a),
                Px(-2.0 * a),
                Px(-2.0 * a),
                Px(2.0 * a)
            ));
        });
    }
    y + 8.0 * s
}
