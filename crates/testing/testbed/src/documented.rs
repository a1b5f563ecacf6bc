// SPDX-License-Identifier: Apache-2.0
//! For tests: compares the fields of a JSON document with those that a page of `docs/develop` lists, so that
//! every field is documented and every documented field exists.

use std::collections::BTreeSet;

use serde_json::Value;

/// A part of a page: from a heading (`## Ping`) up to the next of the same level.
///
/// # Panics
/// If there is no such heading.
#[must_use]
pub fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let begin = page.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{heading:?} is not in the page"));
    let rest = &page[begin + heading.len() + 2..];
    let level = heading.split(' ').next().unwrap_or("#");
    rest.find(&format!("\n{level} ")).map_or(rest, |end| &rest[..end])
}

/// Paths to all fields: `a.b`, `a[].b` for those in arrays, whichever element has them.
#[must_use]
pub fn fields(value: &Value) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    collect(value, "", &mut out);
    out
}

fn collect(value: &Value, path: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            collect(value, &path, out);
        }),
        Value::Array(all) if all.iter().any(Value::is_object) => {
            all.iter().for_each(|one| collect(one, &format!("{path}[]"), out));
        }
        _ => {
            out.insert(path.to_owned());
        }
    }
}

/// The fields in a page's tables: the first cell of each row, in backquotes.
#[must_use]
pub fn documented(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_owned).collect()
}

/// # Panics
/// If a field is not documented, or a documented field does not exist.
pub fn assert_documented(page: &str, found: &BTreeSet<String>) {
    let written = documented(page);
    let missing: Vec<_> = found.difference(&written).collect();
    let gone: Vec<_> = written.difference(found).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not documented: {missing:#?}\ndocumented, not there: {gone:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_rows_are_the_same() {
        let page = "# A\n## One\n| field | unit |\n|---|---|\n| `a[].b` | ns |\n| `c.d` | |\n## Two\n| `e` | |\n";
        let found = fields(&serde_json::json!({ "a": [{}, { "b": 1 }], "c": { "d": [1, 2] } }));
        assert_documented(section(page, "## One"), &found);
        assert_eq!(documented(page).len(), 3);
        let missing = std::panic::catch_unwind(|| assert_documented(page, &fields(&serde_json::json!({ "f": 1 }))));
        assert!(missing.is_err());
    }
}
