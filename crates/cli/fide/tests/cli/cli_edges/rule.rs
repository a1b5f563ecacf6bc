// SPDX-License-Identifier: Apache-2.0
//! One rule for all error types of this project: an error shows its cause in its text, or returns it as its
//! source, but never both. A chain of causes would print it twice.

use std::{fs, path::Path};

/// The text from `#[error(` up to its closing parenthesis.
fn attribute(text: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted && depth == 1 => return &text[..=at],
            ')' if !quoted => depth -= 1,
            _ => {}
        }
    }
    text
}

/// The field that thiserror would return as the source of this variant: its name, or `0`.
fn source(variant: &str) -> Option<&str> {
    let marked = ["#[from]", "#[source]"].iter().find_map(|mark| variant.split_once(mark));
    match marked {
        Some((_, field)) => {
            let field = field.trim_start();
            let name = field.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let rest = &field[name.len()..];
            Some(if rest.starts_with(':') && !rest.starts_with("::") { name } else { "0" })
        }
        None => {
            variant.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "source").then_some("source")
        }
    }
}

/// Variants of a file that show the cause that they return.
fn shown_and_returned(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("#[error(") {
        let shows = attribute(&text[at..]);
        let rest = &text[at + shows.len()..];
        // Up to the next variant, or the end of the type.
        let end = ["#[error(", "\n}", ";\n"].iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
        let variant = rest[..end].lines().filter(|line| !line.trim_start().starts_with("//")).collect::<String>();
        let Some(source) = source(&variant) else { continue };
        let is_shown = |by: &str| {
            shows
                .match_indices(by)
                .any(|(at, by)| !shows[at + by.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        if is_shown(&format!("{{{source}")) || is_shown(&format!(".{source}")) {
            found.push(format!("{shows} {}", variant.trim()));
        }
    }
    found
}

fn look(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("read").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() && entry.file_name() != Some("target".as_ref()) {
            look(&entry, found);
        } else if entry.extension() == Some("rs".as_ref()) && !entry.ends_with("tests/cli/cli_edges/rule.rs") {
            let text = fs::read_to_string(&entry).expect("text");
            found.extend(shown_and_returned(&text).into_iter().map(|what| format!("{}: {what}", entry.display())));
        }
    }
}

#[test]
fn no_error_shows_its_cause_and_returns_it() {
    let mut found = Vec::new();
    look(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut found);
    assert!(
        found.is_empty(),
        "shown, and returned as source: call the field `why`, convert it by hand instead of #[from], or say `transparent`:\n{}",
        found.join("\n")
    );
}

#[test]
fn errors_that_break_the_rule_are_found() {
    for broken in [
        "#[error(\"{path}: {source}\")]\nRead { path: PathBuf, source: io::Error },",
        "#[error(\"takeover: {0}\")]\nHandover(#[from] HandoverError),",
        "#[error(\"no thread: {0}\")]\nThread(#[from] std::io::Error),",
        "#[error(\"{what}: {why}\")]\nIo { what: String, #[source] why: io::Error },",
        "#[error(\"{} ({})\", .path.display(), .source)]\nOpen { path: PathBuf, source: io::Error },",
    ] {
        assert_eq!(shown_and_returned(broken).len(), 1, "{broken}");
    }
    for right in [
        "#[error(\"{path}: {why}\")]\nRead { path: PathBuf, why: io::Error },",
        "#[error(transparent)]\nIo(#[from] io::Error),",
        "#[error(\"the key (\\\"{path}\\\")\")]\nRead { path: PathBuf, source: io::Error },",
        "#[error(\"{0} bytes\")]\nLong(usize),\n#[error(transparent)]\nIo(#[from] io::Error),",
    ] {
        assert!(shown_and_returned(right).is_empty(), "{right}");
    }
}
