// SPDX-License-Identifier: Apache-2.0
//! Headers, as cbindgen writes them, for C programmers.

/// Rust's `# Safety` sections say what every C programmer knows.
pub(crate) fn without_safety(header: &str) -> String {
    let mut out = String::new();
    let mut skipping = false;
    for line in header.lines() {
        let comment = line.trim_start().starts_with("//");
        skipping = comment && (skipping || line.trim() == "// # Safety");
        if skipping {
            if out.ends_with("//\n") {
                out.truncate(out.trim_end().len() - 2);
            }
            continue;
        }
        out.push_str(line);
        out.push('\n');
    }
    out
}
