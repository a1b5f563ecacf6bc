// SPDX-License-Identifier: Apache-2.0
//! One plot: a frame with marks, and the data as one path per series.
//!
//! Plotters draws the frame. It would write every point as an element of its own, of some 80 bytes, in a
//! fixed colour and without dashes. So the data is added as paths, of 12 bytes a point, which get their look
//! from the page's style by class. In dark mode, the style also replaces the frame's colours, by their
//! values.

use crate::run::html::Html;
use crate::run::scale::{Scale, Unit};
use crate::text::Text as Escaped;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::fmt::Write;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Size of a plot in two columns, and in three, so that text has about the same size in both.
pub(crate) const TWO: (i32, i32) = (560, 290);
pub(crate) const THREE: (i32, i32) = (400, 250);
const LEFT: i32 = 68;
const RIGHT: i32 = 14;
const TOP: i32 = 26;
const BOTTOM: i32 = 44;
/// Plotters takes a font size as the height of a line, and writes 1/1.24 of it.
const SIZE: i32 = 16;
// The colours that `style.css` knows.
const INK: RGBColor = RGBColor(0x22, 0x2b, 0x33);
const FAINT: RGBColor = RGBColor(0x5f, 0x6b, 0x74);
const RULE: RGBColor = RGBColor(0xe3, 0xe7, 0xea);
const BAND: RGBColor = RGBColor(0xf1, 0xf4, 0xf6);
/// Most markers on a line. Markers make lines differ not only in colour.
const MARKERS: usize = 7;

/// An axis.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    pub(crate) scale: Scale,
    pub(crate) unit: Unit,
    pub(crate) words: String,
}

impl Axis {
    pub(crate) fn new(scale: Scale, unit: Unit, words: impl Into<String>) -> Self {
        Axis { scale, unit, words: words.into() }
    }
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A dot for each point.
    Dots,
    /// A line through all, with a few markers.
    Line,
    /// A rectangle between two points.
    Band,
    /// A bar from each point to the next one's place; the last point only ends the last bar.
    Bars,
}

/// A series.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) shape: Shape,
    /// Which colour, dash and marker.
    pub(crate) look: usize,
    /// The run that it belongs to, if it can be hidden with that run.
    pub(crate) run: Option<usize>,
    /// Its name.
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    /// Its name for tests and scripts.
    pub(crate) key: String,
    pub(crate) title: String,
    /// Width and height.
    pub(crate) size: (i32, i32),
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) layers: Vec<Layer>,
}

impl Plot {
    /// Writes it as a figure.
    pub(crate) fn write(&self, html: &mut Html) {
        let frame = match self.frame() {
            Ok(frame) => frame,
            Err(error) => return missing(html, &self.key, &self.title, &format!("it could not be drawn: {error}")),
        };
        // The part after the opening tag, which gets more attributes, and without the closing tag.
        let inside = frame.find('>').map_or("", |at| &frame[at + 1..]);
        let inside = inside.trim_end().strip_suffix("</svg>").unwrap_or(inside);
        html.put(format_args!(
            "<figure class=\"plot\" data-plot=\"{}\"><figcaption>{}</figcaption>\n",
            self.key,
            Escaped(&self.title)
        ));
        html.put(format_args!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}: {} against {}\" data-x=\"{}\" \
             data-y=\"{}\" data-ux=\"{}\" data-uy=\"{}\" data-frame=\"{LEFT} {} {} {TOP}\">\n",
            self.size.0,
            self.size.1,
            Escaped(&self.title),
            Escaped(&self.y.words),
            Escaped(&self.x.words),
            self.x.scale.code(),
            self.y.scale.code(),
            self.x.unit.code(),
            self.y.unit.code(),
            self.bottom(),
            self.right(),
        ));
        html.raw(inside);
        for layer in &self.layers {
            self.layer(layer, html);
        }
        html.raw("</svg></figure>\n");
    }

    fn right(&self) -> i32 {
        self.size.0 - RIGHT
    }

    fn bottom(&self) -> i32 {
        self.size.1 - BOTTOM
    }

    fn x(&self, v: f64) -> f64 {
        f64::from(LEFT) + self.x.scale.unit(v) * f64::from(self.right() - LEFT)
    }

    fn y(&self, v: f64) -> f64 {
        f64::from(self.bottom()) - self.y.scale.unit(v) * f64::from(self.bottom() - TOP)
    }

    fn frame(&self) -> Result<String, Box<dyn Error>> {
        let mut svg = String::new();
        {
            let size = (self.size.0.unsigned_abs(), self.size.1.unsigned_abs());
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            self.draw_frame(&root)?;
            root.present()?;
        }
        Ok(svg)
    }

    fn draw_frame(&self, root: &Area<'_>) -> Drawn {
        let (left, right, top, bottom) = (LEFT, self.right(), TOP, self.bottom());
        let (px, py) = (|v: f64| self.x(v).round() as i32, |v: f64| self.y(v).round() as i32);
        // The parts beyond the linear part of a scale are shaded.
        if let Some((low, high)) = self.y.scale.inner() {
            shade(root, (left, top), (right, py(high)))?;
            shade(root, (left, py(low)), (right, bottom))?;
        }
        if let Some((low, high)) = self.x.scale.inner() {
            shade(root, (left, top), (px(low), bottom))?;
            shade(root, (px(high), top), (right, bottom))?;
        }
        let mut room = i32::MIN;
        let mut marks = self.x.scale.marks(6, self.x.unit);
        marks.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (v, name) in marks {
            let x = px(v);
            line(root, (x, top), (x, bottom), RULE)?;
            let Some(name) = name else { continue };
            let half = 4 * name.len() as i32;
            // No name may overlap another, or go beyond the edge.
            if x - half > room && x + half < self.size.0 {
                room = x + half + 4;
                text(root, (x, bottom + 13), INK, HPos::Center, &name)?;
            }
        }
        let mut marks = self.y.scale.marks(5, self.y.unit);
        // The centre of a bent scale gets its name before others do.
        marks.sort_by(|a, b| (a.0 != 0.0).cmp(&(b.0 != 0.0)).then(a.0.abs().total_cmp(&b.0.abs())));
        let mut taken: Vec<i32> = Vec::new();
        for (v, name) in marks {
            let y = py(v);
            line(root, (left, y), (right, y), RULE)?;
            if let Some(name) = name.filter(|_| taken.iter().all(|t| (t - y).abs() >= 13)) {
                taken.push(y);
                text(root, (left - 6, y), INK, HPos::Right, &name)?;
            }
        }
        line(root, (left, bottom), (right, bottom), FAINT)?;
        line(root, (left, top), (left, bottom), FAINT)?;
        text(root, (4, 10), FAINT, HPos::Left, &self.y.words)?;
        text(root, (right, self.size.1 - 10), FAINT, HPos::Right, &self.x.words)
    }

    fn layer(&self, layer: &Layer, html: &mut Html) {
        let mut d = String::new();
        let mut drawn = 0;
        let mut last = None;
        let points = layer.points.iter().map(|&(x, y)| (round(self.x(x)), round(self.y(y))));
        let floor = self.bottom();
        match layer.shape {
            Shape::Dots => {
                for (x, y) in points {
                    // Dots at the same place are drawn once.
                    if last.replace((x, y)) != Some((x, y)) {
                        let _ = write!(d, "M{x} {y}h0");
                    }
                    drawn += 1;
                }
            }
            Shape::Line => {
                for (x, y) in points {
                    if last.replace((x, y)) != Some((x, y)) {
                        let _ = write!(d, "{}{x} {y}", if d.is_empty() { 'M' } else { 'L' });
                    }
                    drawn += 1;
                }
            }
            Shape::Band => {
                let points: Vec<_> = points.collect();
                if let [(x0, y0), (x1, y1)] = points[..] {
                    // Visible even where it is narrower than a dot.
                    let (top, low) = ((y1.min(y0) - 1.0), (y0.max(y1) + 1.0));
                    let _ = write!(d, "M{x0} {low:.1}L{x0} {top:.1}L{x1} {top:.1}L{x1} {low:.1}z");
                }
            }
            Shape::Bars => {
                let points: Vec<_> = points.collect();
                for w in points.windows(2) {
                    let ((x, y), (next, _)) = (w[0], w[1]);
                    drawn += 1;
                    if y < f64::from(floor) {
                        let next = next.max(x + 1.5);
                        let _ = write!(d, "M{x} {floor}L{x} {y}L{next} {y}L{next} {floor}z");
                    }
                }
            }
        }
        let class = ["dots", "line", "band", "bars"][layer.shape as usize];
        // The script does not look at paths without points.
        let points = if layer.shape == Shape::Band { String::new() } else { format!(" data-points=\"{drawn}\"") };
        let look = look(layer.look);
        let run = layer.run.map_or(String::new(), |run| format!(" run{run}"));
        html.put(format_args!(
            "<path class=\"{class} {look}{run}\"{points} data-name=\"{}\" d=\"{d}\"/>\n",
            Escaped(&layer.name)
        ));
        if layer.shape == Shape::Line {
            html.put(format_args!("<path class=\"marker {look}{run}\" d=\"{}\"/>\n", self.markers(layer)));
        }
    }

    /// Markers evenly along the axis, beginning at a different place for each look; and one at the end, which
    /// is the maximum.
    fn markers(&self, layer: &Layer) -> String {
        let mut d = String::new();
        let every = f64::from(self.right() - LEFT) / MARKERS as f64;
        let mut next = f64::from(LEFT) + every * (0.25 + 0.5 * (layer.look % 5) as f64 / 5.0);
        let mut before: Option<(f64, f64)> = None;
        for &(x, y) in &layer.points {
            let (x, y) = (self.x(x), self.y(y));
            if let Some((x0, y0)) = before {
                while next >= x0 && next < x && x > x0 {
                    let at = (next - x0) / (x - x0);
                    d += &marker(layer.look, next, y0 + at * (y - y0));
                    next += every;
                }
                while next < x0 {
                    next += every;
                }
            }
            before = Some((x, y));
        }
        if let Some((x, y)) = before {
            d += &marker(layer.look, x, y);
        }
        d
    }
}

/// Classes of a look in the sheet: colour and dash, 24 different pairs.
pub(crate) fn look(look: usize) -> String {
    format!("c{} d{}", look % 8, look % 6)
}

/// A piece of line with a look, for legends.
pub(crate) fn swatch(number: usize) -> String {
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 36 12\" aria-hidden=\"true\"><path class=\"line {0}\" d=\"M1 6L35 6\"/><path \
         class=\"marker {0}\" d=\"{1}\"/></svg>",
        look(number),
        marker(number, 18.0, 6.0)
    )
}

/// The outline of a marker.
pub(crate) fn marker(look: usize, x: f64, y: f64) -> String {
    let (dx, dy, outline) = match look % 6 {
        0 => (-3.5, 0.0, "a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"),
        1 => (-3.0, -3.0, "h6v6h-6z"),
        2 => (0.0, -4.0, "l4 7h-8z"),
        3 => (0.0, -4.5, "l4.5 4.5l-4.5 4.5l-4.5 -4.5z"),
        4 => (0.0, 4.0, "l4 -7h-8z"),
        _ => (-4.0, -1.0, "h3v-3h2v3h3v2h-3v3h-2v-3h-3z"),
    };
    format!("M{} {}{outline}", round(x + dx), round(y + dy))
}

/// Writes a figure that says what cannot be drawn, and why.
pub(crate) fn missing(html: &mut Html, key: &str, title: &str, why: &str) {
    html.put(format_args!(
        "<figure class=\"plot none\" data-none=\"{key}\"><figcaption>{}</figcaption><p>Nothing to draw: {}.</p></figure>\n",
        Escaped(title),
        Escaped(why)
    ));
}

fn round(v: f64) -> f64 {
    (v * 10.0).round() / 10.0
}

fn shade(root: &Area<'_>, from: (i32, i32), to: (i32, i32)) -> Drawn {
    if from.0 < to.0 && from.1 < to.1 {
        root.draw(&Rectangle::new([from, to], BAND.filled()))?;
    }
    Ok(())
}

fn line(root: &Area<'_>, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Drawn {
    root.draw(&PathElement::new(vec![from, to], color.stroke_width(1)))?;
    Ok(())
}

fn text(root: &Area<'_>, at: (i32, i32), color: RGBColor, h: HPos, words: &str) -> Drawn {
    let style = ("sans-serif", SIZE).into_font().color(&color).pos(Pos::new(h, VPos::Center));
    root.draw(&Text::new(words.to_owned(), at, style))?;
    Ok(())
}
