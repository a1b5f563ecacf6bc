// SPDX-License-Identifier: Apache-2.0
//! What the keys of the configuration files mean: for a terminal, as JSON, and as a page of the
//! documentation.

use std::{fmt::Write, process::ExitCode};

use fide_types::config_key::{Default, Key};
use serde_json::{Value, json};

use crate::{exit::Done, say::show};

/// A file, and its keys.
struct File {
    name: &'static str,
    about: &'static str,
    keys: &'static [Key],
}

const AGENT: File = File {
    name: "fide.toml",
    about: "The file that every host of a cluster shares, read by `fide agent` and `fide witness`. Drop-ins, fide.toml.d/*.toml, are \
            read after it in the order of their names: a later file overrides single keys of [cluster], [agent] and [limits], and adds \
            [[name]] sections. [[plane]], [[member]] and [controller] belong into fide.toml.",
    keys: fide_agent::config::keys::KEYS,
};
#[cfg(feature = "controller")]
const CONTROLLER: File = File {
    name: "controller.toml",
    about: "The file of `fide controller run`.",
    keys: fide_controller::config::keys::KEYS,
};

/// `fide agent --explain-config`.
pub(crate) fn agent(as_json: bool) -> Done {
    print(&AGENT, as_json)
}

/// `fide controller explain-config`.
#[cfg(feature = "controller")]
pub(crate) fn controller(as_json: bool) -> Done {
    print(&CONTROLLER, as_json)
}

fn print(file: &File, as_json: bool) -> Done {
    if as_json {
        show!("{:#}", in_json(file))?;
    } else {
        show!("{}", text(file).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_json(file: &File) -> Value {
    let key = |key: &Key| {
        let (required, default, otherwise) = match key.default {
            Default::Required => (true, None, None),
            Default::Value(value) => (false, Some(value), None),
            Default::Otherwise(otherwise) => (false, None, Some(otherwise)),
        };
        json!({
            "table": key.table, "key": key.key, "type": key.kind, "required": required, "default": default,
            "otherwise": otherwise, "meaning": key.says,
        })
    };
    json!({ "version": 1, "file": file.name, "keys": file.keys.iter().map(key).collect::<Vec<_>>() })
}

/// What applies if the key is left out.
fn default(key: &Key) -> String {
    match key.default {
        Default::Required => "required".to_owned(),
        Default::Value(value) => format!("default {value}"),
        Default::Otherwise(otherwise) => format!("without it: {otherwise}"),
    }
}

/// Paragraphs of keys under the heads of their tables.
fn text(file: &File) -> String {
    // Writing to a string cannot fail.
    let mut out = String::new();
    for line in wrapped(file.about) {
        let _ = writeln!(out, "{line}");
    }
    let mut table = "";
    for key in file.keys {
        if key.table != table {
            table = key.table;
            let _ = writeln!(out, "\n{table}");
        }
        let _ = writeln!(out, "  {}: {}; {}", key.key, key.kind, default(key));
        for line in wrapped(key.says) {
            let _ = writeln!(out, "      {line}");
        }
    }
    out
}

/// Longest line of a paragraph on a terminal, in characters.
const LINE_MAX: usize = 90;

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("one at least");
        if !line.is_empty() && line.len() + 1 + word.len() > LINE_MAX {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(all(test, feature = "controller"))]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn page() -> String {
        let mut out = "# Configuration keys\n\n\
            Generated from the code: `FIDE_REWRITE=1 cargo test -p fide configuration_page_matches_the_code` writes this page,\n\
            `fide agent --explain-config` and `fide controller explain-config` print it, with `--json` for programs.\n\n\
            A key that does not exist is an error. Times carry their unit in their name: `_us` microseconds, `_ms` milliseconds, `_s`\n\
            seconds. `fide agent --check` and `fide controller check` say whether a file is right, and where it is not.\n"
            .to_owned();
        let cell = |text: &str| text.replace('|', "\\|");
        for file in [AGENT, CONTROLLER] {
            let _ = write!(out, "\n## {}\n\n{}\n", file.name, file.about);
            let mut table = "";
            for key in file.keys {
                if key.table != table {
                    table = key.table;
                    let _ = write!(out, "\n### {table}\n\n| key | type | default | meaning |\n|---|---|---|---|\n");
                }
                let default = match key.default {
                    Default::Required => "required".to_owned(),
                    Default::Value(value) => format!("`{value}`"),
                    Default::Otherwise(otherwise) => format!("none: {otherwise}"),
                };
                let _ =
                    writeln!(out, "| `{}` | {} | {} | {} |", key.key, cell(key.kind), cell(&default), cell(key.says));
            }
        }
        out
    }

    #[test]
    fn configuration_page_matches_the_code() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/operate/configuration-keys.md");
        if std::env::var_os("FIDE_REWRITE").is_some() {
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(&path, page()).expect("written");
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == page(), "{}: run with FIDE_REWRITE=1 and read the difference", path.display());
    }

    #[test]
    fn every_key_is_explained_in_text_and_json() {
        for file in [AGENT, CONTROLLER] {
            let (text, json) = (text(&file), in_json(&file));
            assert_eq!(json["keys"].as_array().map(Vec::len), Some(file.keys.len()));
            for key in file.keys {
                assert!(text.contains(&format!("\n  {}: {}", key.key, key.kind)), "{key:?}");
                assert!(key.says.ends_with('.') && !key.says.contains("  "), "{key:?}");
            }
            assert!(text.lines().all(|line| !line.starts_with("      ") || line.len() <= 6 + LINE_MAX), "{text}");
        }
    }
}
