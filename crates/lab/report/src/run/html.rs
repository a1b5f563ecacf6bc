// SPDX-License-Identifier: Apache-2.0
//! Writing HTML.

use std::fmt::{self, Write};

use crate::text::Text;

/// A page, or a part of one.
#[derive(Debug, Default)]
pub(crate) struct Html(pub(crate) String);

impl Html {
    /// Markup of our own.
    pub(crate) fn raw(&mut self, markup: &str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// An element that contains text. `open` is its name and attributes.
    pub(crate) fn element(&mut self, open: &str, text: &str) -> &mut Self {
        let name = open.split(' ').next().unwrap_or(open);
        self.put(format_args!("<{open}>{}</{name}>\n", Text(text)))
    }

    /// Formatted markup of our own.
    pub(crate) fn put(&mut self, markup: fmt::Arguments<'_>) -> &mut Self {
        // Writing to a string does not fail.
        let _ = self.0.write_fmt(markup);
        self
    }
}

/// A cell of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    exact: Option<String>,
    number: bool,
}

impl Cell {
    /// A cell with words.
    pub(crate) fn words(text: impl Into<String>) -> Self {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// A cell with a number, as people read it.
    pub(crate) fn number(text: impl Into<String>) -> Self {
        Cell { text: text.into(), exact: None, number: true }
    }

    /// A cell with a time, ns; its title has the exact value.
    pub(crate) fn time(ns: f64) -> Self {
        Cell { text: crate::units::time_in_column(ns), exact: Some(format!("{ns:.0} ns")), number: true }
    }

    /// A cell without a value.
    pub(crate) fn none() -> Self {
        Cell::number("-")
    }
}

/// A table with a header row.
#[derive(Debug, Default)]
pub(crate) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        Table { heads: heads.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; its first cell names it.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes it, with a name for tests and scripts.
    pub(crate) fn write(&self, name: &str, html: &mut Html) {
        html.put(format_args!("<div class=\"wide\"><table data-table=\"{name}\"><thead><tr>"));
        for (i, head) in self.heads.iter().enumerate() {
            let number = self.rows.first().and_then(|r| r.get(i)).is_some_and(|c| c.number);
            html.put(format_args!("<th scope=\"col\"{}>{}</th>", class(number), Text(head)));
        }
        html.raw("</tr></thead>\n<tbody>\n");
        for cells in &self.rows {
            html.raw("<tr>");
            for (i, cell) in cells.iter().enumerate() {
                let exact = cell.exact.as_ref().map_or(String::new(), |e| format!(" title=\"{}\"", Text(e)));
                let (open, close) = if i == 0 { ("th scope=\"row\"", "th") } else { ("td", "td") };
                html.put(format_args!("<{open}{}{exact}>{}</{close}>", class(cell.number), Text(&cell.text)));
            }
            html.raw("</tr>\n");
        }
        html.raw("</tbody></table></div>\n");
    }
}

fn class(number: bool) -> &'static str {
    if number { " class=\"n\"" } else { "" }
}
