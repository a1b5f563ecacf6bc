// SPDX-License-Identifier: Apache-2.0
//! Writing SVG.

use std::fmt::{self, Display, Write};

use crate::text::Text;

/// A place, in pixels.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct At {
    pub(crate) x: f64,
    pub(crate) y: f64,
}

/// A length, written with at most one decimal.
pub(crate) struct Px(pub(crate) f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No NaN may get into a drawing.
        let tenths = if self.0.is_finite() { (self.0 * 10.0).round() } else { 0.0 };
        let whole = (tenths / 10.0).trunc();
        if whole * 10.0 == tenths { write!(f, "{}", whole + 0.0) } else { write!(f, "{:.1}", tenths / 10.0) }
    }
}

impl Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Px(self.x), Px(self.y))
    }
}

/// A drawing, or a part of one.
#[derive(Debug, Default)]
pub(crate) struct Svg(pub(crate) String);

impl Svg {
    /// Formatted markup of our own.
    pub(crate) fn put(&mut self, markup: fmt::Arguments<'_>) -> &mut Self {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(markup);
        self
    }

    /// A line of text.
    pub(crate) fn text(&mut self, at: At, class: &str, text: &str) -> &mut Self {
        self.put(format_args!("<text x=\"{}\" y=\"{}\" class=\"{class}\">{}</text>\n", Px(at.x), Px(at.y), Text(text)))
    }
}
