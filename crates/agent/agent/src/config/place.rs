// SPDX-License-Identifier: Apache-2.0
//! The file and line of a value, so that an error names the file to be changed.

use std::path::PathBuf;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Something in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// A key of `[table]`.
    Key(&'static str, &'static str),
    /// The `[[table]]` with this index, counted over all files.
    Item(&'static str, usize),
}

/// A value that is wrong, or several that contradict each other. Without any, something is missing in the
/// main file.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) at: Vec<At>,
    pub(super) text: String,
}

impl Problem {
    pub(super) fn at(at: &[At], text: impl Into<String>) -> Self {
        Self { at: at.to_vec(), text: text.into() }
    }
}

impl<T: Into<String>> From<T> for Problem {
    fn from(text: T) -> Self {
        Self::at(&[], text)
    }
}

/// The file, and the line if there is one. If there are several values, the error names the one that was
/// read last.
pub(super) fn say(sources: &[Source], at: &[At]) -> String {
    let mut last = None;
    let mut before = vec![0; at.len()];
    for (file, source) in sources.iter().enumerate() {
        let Ok(table) = DeTable::parse(&source.text) else { continue };
        for (at, before) in at.iter().zip(&mut before) {
            if let Some(offset) = find(table.get_ref(), *at, before) {
                last = last.max(Some((file, offset)));
            }
        }
    }
    match last {
        Some((file, offset)) => {
            let Source { path, text } = &sources[file];
            let line = 1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count();
            format!("{}, line {line}", path.display())
        }
        None => sources.first().map(|source| source.path.display().to_string()).unwrap_or_default(),
    }
}

/// The byte at which it begins in a file; `before`: items of such tables in the files before.
fn find(file: &DeTable<'_>, at: At, before: &mut usize) -> Option<usize> {
    match at {
        At::Key(table, key) => {
            let (key, _) = file.get(table)?.get_ref().as_table()?.get_key_value(key)?;
            Some(key.span().start)
        }
        At::Item(table, index) => {
            let items: &[Spanned<DeValue<'_>>] = file.get(table)?.get_ref().as_array()?;
            let found = index.checked_sub(*before).and_then(|index| items.get(index));
            *before += items.len();
            found.map(|item| item.span().start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_file_with_a_value_is_named_with_its_line() {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.to_owned() };
        let sources = [
            source("a", "[cluster]\nheartbeat_us = 5\nport = 1\n\n[[name]]\npattern = \"x\"\n"),
            source("b", "# only the core\n[agent]\ncore = 2\n"),
            source("c", "[[name]]\npattern = \"y\"\n[[name]]\npattern = \"z\"\n[cluster]\nport = 2\n"),
        ];
        for (at, wanted) in [
            (&[At::Key("cluster", "heartbeat_us")][..], "a, line 2"),
            (&[At::Key("agent", "core")], "b, line 3"),
            (&[At::Key("cluster", "port")], "c, line 6"),
            (&[At::Key("agent", "core"), At::Key("cluster", "heartbeat_us")], "b, line 3"),
            (&[At::Item("name", 0)], "a, line 5"),
            (&[At::Item("name", 2)], "c, line 3"),
            (&[At::Item("name", 3)], "a"),
            (&[At::Key("cluster", "name")], "a"),
            (&[], "a"),
        ] {
            assert_eq!(say(&sources, at), wanted, "{at:?}");
        }
    }
}
