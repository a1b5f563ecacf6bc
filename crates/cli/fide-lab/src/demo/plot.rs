// SPDX-License-Identifier: Apache-2.0
//! Drawings of the trials, as SVG.

use std::{error::Error, ops::Range};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::results::{FIDE, Group, PIDFD, Series, TCP_FIN, Timeline, label, time};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn = Result<(), Box<dyn Error>>;

pub(super) const WIDTH: u32 = 1000;
const FONT: &str = "sans-serif";
pub(super) const INK: RGBColor = RGBColor(0x22, 0x2b, 0x33);
pub(super) const FAINT: RGBColor = RGBColor(0x8a, 0x94, 0x9c);
pub(super) const RULE: RGBColor = RGBColor(0xe3, 0xe7, 0xea);
const BAND: RGBColor = RGBColor(0xf5, 0xf7, 0xf8);
pub(super) const BLUE: RGBColor = RGBColor(0x00, 0x62, 0xa8);
pub(super) const ORANGE: RGBColor = RGBColor(0xd5, 0x7a, 0x00);
pub(super) const GREY: RGBColor = RGBColor(0x6f, 0x7b, 0x84);
pub(super) const RED: RGBColor = RGBColor(0xb8, 0x2a, 0x2a);
pub(super) const GREEN: RGBColor = RGBColor(0x1c, 0x82, 0x4a);
/// Room left of a plot for the names of rows.
const NAMES: i32 = 290;
const RIGHT: i32 = 70;
const TOP: i32 = 62;
const BOTTOM: i32 = 52;
const ROW: i32 = 22;
const BETWEEN: i32 = 12;

fn color(watcher: &str) -> RGBColor {
    match watcher {
        PIDFD => ORANGE,
        TCP_FIN => GREY,
        _ => BLUE,
    }
}

pub(super) fn written(draw: impl FnOnce(&Area<'_>) -> Drawn, height: i32) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height.unsigned_abs())).into_drawing_area();
        draw(&root)
            .and_then(|()| root.present().map_err(Into::into))
            .map_err(|error| anyhow::anyhow!("drawing: {error}"))?;
    }
    Ok(svg)
}

pub(super) fn text(root: &Area<'_>, at: (i32, i32), size: i32, ink: RGBColor, h: HPos, words: &str) -> Drawn {
    let style = (FONT, size).into_font().color(&ink).pos(Pos::new(h, VPos::Center));
    root.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

pub(super) fn bold(root: &Area<'_>, at: (i32, i32), words: &str) -> Drawn {
    let style = (FONT, 17, FontStyle::Bold).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    root.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}

pub(super) fn line(root: &Area<'_>, from: (i32, i32), to: (i32, i32), style: impl Into<ShapeStyle>) -> Drawn {
    root.draw(&PathElement::new(vec![from, to], style))?;
    Ok(())
}

/// An axis: maps a time to a position, and has marks.
struct Axis {
    log: bool,
    range_ns: Range<f64>,
    pixels: Range<i32>,
}

impl Axis {
    fn log(groups: &[Group]) -> Self {
        let all = || groups.iter().flat_map(|group| &group.series).flat_map(|series| &series.ns).map(|ns| (*ns).max(1));
        let decade = |ns: i64| (ns as f64).log10();
        let low = 10f64.powf(decade(all().min().unwrap_or(1_000)).floor());
        let high = 10f64.powf(decade(all().max().unwrap_or(1_000_000)).ceil());
        Self { log: true, range_ns: low..high.max(low * 10.0), pixels: NAMES..WIDTH as i32 - RIGHT }
    }

    fn linear(range_ns: Range<f64>) -> Self {
        Self { log: false, range_ns, pixels: NAMES..WIDTH as i32 - RIGHT }
    }

    fn x(&self, ns: f64) -> i32 {
        let Range { start, end } = self.range_ns;
        let share = if self.log {
            (ns.max(start) / start).log10() / (end / start).log10()
        } else {
            (ns - start) / (end - start)
        };
        self.pixels.start + (share.clamp(0.0, 1.0) * f64::from(self.pixels.end - self.pixels.start)).round() as i32
    }

    /// Marks, and whether each has a label.
    fn marks(&self) -> Vec<(f64, bool)> {
        let Range { start, end } = self.range_ns;
        let mut marks = Vec::new();
        if self.log {
            let mut decade = start;
            while decade <= end * 1.001 {
                for step in 1..10 {
                    let mark = decade * f64::from(step);
                    if mark <= end * 1.001 {
                        marks.push((mark, step == 1));
                    }
                }
                decade *= 10.0;
            }
            return marks;
        }
        let rough = (end - start) / 8.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (start / step).ceil() as i64;
        marks.extend((first..).map(|count| (count as f64 * step, true)).take_while(|(mark, _)| *mark <= end));
        marks
    }

    fn draw(&self, root: &Area<'_>, top: i32, bottom: i32, words: &str) -> Drawn {
        for (mark, named) in self.marks() {
            let x = self.x(mark);
            line(root, (x, top), (x, bottom), if named { RULE.filled() } else { RULE.mix(0.5).filled() })?;
            if named {
                let name = if self.log { short(mark) } else { format!("{:.0}", mark / 1e6) };
                text(root, (x, bottom + 14), 13, INK, HPos::Center, &name)?;
            }
        }
        line(root, (self.pixels.start, bottom), (self.pixels.end, bottom), FAINT)?;
        text(root, ((self.pixels.start + self.pixels.end) / 2, bottom + 36), 13, INK, HPos::Center, words)
    }
}

/// "10 us", "1 ms".
fn short(ns: f64) -> String {
    match ns {
        ..999_999.0 => format!("{:.0} us", ns / 1e3),
        ..999_999_999.0 => format!("{:.0} ms", ns / 1e6),
        _ => format!("{:.0} s", ns / 1e9),
    }
}

/// Draws the deaths of processes: every trial is a dot, the median a bar.
pub(super) fn deaths(groups: &[Group]) -> anyhow::Result<String> {
    let rows: i32 = groups.iter().map(|group| group.series.len() as i32 * ROW + BETWEEN).sum();
    written(
        |root| {
            root.fill(&WHITE)?;
            bold(root, (16, 24), "From the death of a process to its notice, every trial")?;
            text(root, (16, 46), 13, FAINT, HPos::Left, "one dot a trial; the bar is the median")?;
            let axis = Axis::log(groups);
            let bottom = TOP + rows;
            bands(root, groups)?;
            axis.draw(
                root,
                TOP,
                bottom,
                "time from just before the event until the waiting program goes on (log scale)",
            )?;
            let mut y = TOP;
            for group in groups {
                let middle = y + BETWEEN / 2 + group.series.len() as i32 * ROW / 2;
                text(root, (16, middle), 14, INK, HPos::Left, &group.title)?;
                y += BETWEEN / 2;
                for series in &group.series {
                    text(
                        root,
                        (NAMES - 12, y + ROW / 2),
                        13,
                        color(series.watcher),
                        HPos::Right,
                        label(series.watcher),
                    )?;
                    strip(root, &axis, series, y + ROW / 2)?;
                    y += ROW;
                }
                y += BETWEEN / 2;
            }
            text(root, (WIDTH as i32 - 8, TOP - 10), 12, FAINT, HPos::Right, "median")?;
            legend(root)
        },
        TOP + rows + BOTTOM,
    )
}

fn legend(root: &Area<'_>) -> Drawn {
    let items =
        [(FIDE, "Fide, on another host"), (PIDFD, "pidfd, on the same host"), (TCP_FIN, "TCP FIN, on another host")];
    for (index, (watcher, words)) in (0..).zip(items) {
        let x = 380 + index * 185;
        root.draw(&Circle::new((x, 46), 4, color(watcher).filled()))?;
        text(root, (x + 10, 46), 13, INK, HPos::Left, words)?;
    }
    Ok(())
}

fn bands(root: &Area<'_>, groups: &[Group]) -> Drawn {
    let mut y = TOP;
    for (index, group) in groups.iter().enumerate() {
        let height = group.series.len() as i32 * ROW + BETWEEN;
        if index % 2 == 1 {
            root.draw(&Rectangle::new([(8, y), (WIDTH as i32 - 8, y + height)], BAND.filled()))?;
        }
        y += height;
    }
    Ok(())
}

fn strip(root: &Area<'_>, axis: &Axis, series: &Series, y: i32) -> Drawn {
    let ink = color(series.watcher);
    for (index, ns) in (0..).zip(&series.ns) {
        // Spread so that equal times are seen side by side; every drawing spreads them alike.
        let spread = (index * 7 % 13) - 6;
        root.draw(&Circle::new((axis.x(*ns as f64), y + spread), 2, ink.mix(0.45).filled()))?;
    }
    if let Some(median) = series.quantile(0.5) {
        let x = axis.x(median as f64);
        root.draw(&Rectangle::new([(x - 1, y - 9), (x + 1, y + 9)], INK.filled()))?;
        text(root, (WIDTH as i32 - 8, y), 13, ink, HPos::Right, &time(median))?;
    }
    if series.failed > 0 {
        let words = format!("{} failed", series.failed);
        text(root, (axis.pixels.end - 4, y), 12, RED, HPos::Right, &words)?;
    }
    Ok(())
}

/// Draws the silences of hosts: every silence is a dot, and beside it stands the timeout that was in force.
pub(super) fn silences(groups: &[Group]) -> anyhow::Result<String> {
    const TALL: i32 = 44;
    let rows = groups.len() as i32 * TALL;
    let notified = |group: &Group| group.of("since_cut").map(|series| series.ns.clone()).unwrap_or_default();
    let over = |group: &Group| group.of("over_timeout").map(|series| series.ns.clone()).unwrap_or_default();
    let longest = groups.iter().flat_map(notified).max().unwrap_or(1_000_000);
    written(
        |root| {
            root.fill(&WHITE)?;
            bold(root, (16, 24), "From the silence of a host to its notice on another, every trial")?;
            let axis = Axis::linear(0.0..longest as f64 * 1.06);
            axis.draw(root, TOP, TOP + rows, "time from just before the event until the waiting program goes on, ms")?;
            root.draw(&Circle::new((20, 46), 4, BLUE.filled()))?;
            text(root, (30, 46), 13, INK, HPos::Left, "notified; the bar is the median")?;
            line(root, (220, 40), (220, 52), ORANGE.stroke_width(2))?;
            text(root, (230, 46), 13, INK, HPos::Left, "the timeout in force at that trial")?;
            text(root, (WIDTH as i32 - 8, TOP - 10), 12, FAINT, HPos::Right, "median")?;
            for (row, group) in (0..).zip(groups) {
                let y = TOP + row * TALL + TALL / 2;
                text(root, (16, y), 14, INK, HPos::Left, &group.title)?;
                for (notified_ns, over_ns) in notified(group).into_iter().zip(over(group)) {
                    let x = axis.x((notified_ns - over_ns) as f64);
                    line(root, (x, y + 4), (x, y + 16), ORANGE.mix(0.6).stroke_width(2))?;
                }
                if let Some(series) = group.of("since_cut") {
                    strip(root, &axis, series, y - 6)?;
                }
            }
            Ok(())
        },
        TOP + rows + BOTTOM,
    )
}

/// Draws what the hosts knew while one of them was cut off.
pub(super) fn timeline(timeline: &Timeline) -> anyhow::Result<String> {
    let Timeline { restored_ns, rejoined_ns, timeout_ns, .. } = *timeline;
    let end_ns = rejoined_ns.max(timeline.up_ns.iter().flatten().copied().max().unwrap_or(0)).max(restored_ns);
    let range = -(end_ns as f64) * 0.06..end_ns as f64 * 1.45;
    let bottom = TOP + 3 * LANE;
    written(
        |root| {
            root.fill(&WHITE)?;
            bold(
                root,
                (16, 24),
                "One silent host: both cables of h3 are cut at 0 and plugged in again (trust = lease)",
            )?;
            let axis = Axis { pixels: 176..WIDTH as i32 - 24, ..Axis::linear(range) };
            axis.draw(root, TOP, bottom, "ms after the cut")?;
            for (lane, name) in (0..).zip(["h3, as h1 sees it", "h3, as h2 sees it", "what h3 may do"]) {
                text(root, (16, lane_y(lane)), 14, INK, HPos::Left, name)?;
            }
            let lanes = Lanes { root, axis };
            for (lane, (notified_ns, up_ns)) in (0..).zip(timeline.notified_ns.into_iter().zip(timeline.up_ns)) {
                if let Some(notified_ns) = notified_ns {
                    lanes.observer(lane_y(lane), notified_ns, up_ns.unwrap_or(end_ns))?;
                }
            }
            lanes.silent_host(lane_y(2), timeline.lease_out_ns, rejoined_ns)?;
            let x = |ns: i64| lanes.x(ns);
            for (at_ns, words) in [(0, "cut"), (restored_ns, "plugged in again")] {
                line(root, (x(at_ns), TOP - 6), (x(at_ns), bottom), INK.stroke_width(1))?;
                text(root, (x(at_ns), TOP - 14), 13, INK, HPos::Center, words)?;
            }
            // The timeout belongs to the observers, so its line ends above the lane of the silent host.
            let at = x(timeout_ns);
            line(root, (at, TOP - 6), (at, TOP + 2 * LANE - 12), ORANGE.stroke_width(1))?;
            text(root, (at + 4, TOP - 14), 13, ORANGE, HPos::Left, &format!("timeout {}", time(timeout_ns)))
        },
        bottom + BOTTOM,
    )
}

/// Height of a lane of the timeline, and of the bar in it.
const LANE: i32 = 78;
const BAR: i32 = 16;

/// The middle of a lane.
fn lane_y(lane: i32) -> i32 {
    TOP + lane * LANE + LANE / 2
}

/// Draws the lanes of the timeline.
struct Lanes<'a, 'b> {
    root: &'a Area<'b>,
    axis: Axis,
}

impl Lanes<'_, '_> {
    fn x(&self, ns: i64) -> i32 {
        self.axis.x(ns as f64)
    }

    /// Draws what another host believes of the silent one.
    fn observer(&self, y: i32, notified_ns: i64, up_ns: i64) -> Drawn {
        let (notified, up) = (self.x(notified_ns), self.x(up_ns));
        let (first, last) = (self.axis.pixels.start, self.axis.pixels.end);
        self.span(y, first, notified, GREEN)?;
        self.span(y, notified, up, FAINT)?;
        self.span(y, up, last, GREEN)?;
        self.note(y, notified, true, INK, &format!("notified: host_silent at {}", time(notified_ns)))?;
        self.inside(y, first, notified, "alive")?;
        self.inside(y, notified, up, "dead")?;
        self.note(y, up, false, GREEN, &format!("up at {}, a new incarnation", time(up_ns)))
    }

    /// Draws what the silent host may do.
    fn silent_host(&self, y: i32, lease_out_ns: i64, rejoined_ns: i64) -> Drawn {
        let (lease_out, rejoined) = (self.x(lease_out_ns), self.x(rejoined_ns));
        let (first, last) = (self.axis.pixels.start, self.axis.pixels.end);
        self.span(y, first, lease_out, GREEN)?;
        self.span(y, lease_out, rejoined, RED)?;
        self.span(y, rejoined, last, GREEN)?;
        self.inside(y, first, lease_out, "act")?;
        self.inside(y, lease_out, rejoined, "nothing: it is fenced")?;
        self.note(y, lease_out, false, RED, &format!("its lease was over at {}", time(lease_out_ns)))?;
        self.note(y, rejoined, true, GREEN, &format!("rejoined at {}", time(rejoined_ns)))
    }

    fn span(&self, y: i32, from: i32, to: i32, ink: RGBColor) -> Drawn {
        let bar = [(from, y - BAR / 2), (to, y + BAR / 2)];
        self.root.draw(&Rectangle::new(bar, ink.mix(0.75).filled()))?;
        Ok(())
    }

    /// Draws a mark with words beside it, above or below the bar.
    fn note(&self, y: i32, at: i32, above: bool, ink: RGBColor, words: &str) -> Drawn {
        let (top, bottom) = if above { (y - 18, y + 8) } else { (y - 8, y + 18) };
        line(self.root, (at, top), (at, bottom), ink.stroke_width(2))?;
        // Near the right edge the words stand on the other side of their mark.
        let (h, x) = if at > self.axis.pixels.end - 200 { (HPos::Right, at - 5) } else { (HPos::Left, at + 5) };
        text(self.root, (x, y + if above { -18 } else { 19 }), 13, ink, h, words)
    }

    /// Draws words in a bar, if there is room for them.
    fn inside(&self, y: i32, from: i32, to: i32, words: &str) -> Drawn {
        if (to - from) < 9 * words.len() as i32 {
            return Ok(());
        }
        text(self.root, ((from + to) / 2, y), 12, WHITE, HPos::Center, words)
    }
}
