// SPDX-License-Identifier: Apache-2.0
//! For tests: the fields of a JSON document, and those that a page of `docs/develop` lists.

use std::collections::BTreeSet;

use serde_json::Value;

/// Paths to all fields: `a.b`, `a[].b` for those in arrays, whichever element has them.
pub(crate) fn fields(value: &Value) -> BTreeSet<String> {
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
pub(crate) fn documented(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_owned).collect()
}

/// # Panics
/// If a field is not documented, or documented and not there.
pub(crate) fn assert_documented(page: &str, found: &BTreeSet<String>) {
    let written = documented(page);
    let missing: Vec<_> = found.difference(&written).collect();
    let gone: Vec<_> = written.difference(found).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not documented: {missing:#?}\ndocumented, not there: {gone:#?}");
}
