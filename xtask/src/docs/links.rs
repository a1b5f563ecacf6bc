// SPDX-License-Identifier: Apache-2.0
//! Checks that every relative link and anchor of the documentation leads somewhere, and every path in
//! backticks too.

use super::{files_below, read, shown};
use crate::run::root_dir;
use std::path::{Component, Path, PathBuf};

/// A word in backticks that begins like one of these is a path from the root of the repository.
const ROOTS: [&str; 7] = ["crates/", "docs/", "spec/", "baselines/", "examples/", "packaging/", "xtask/"];
/// A newcomer's first page; its questions are answered in three hops from the README.
const CONTRIBUTING: &str = "CONTRIBUTING.md";
const HOPS_MAX: usize = 3;
/// Documents of other projects that our comments name.
const FOREIGN: [&str; 1] = ["redb's docs/design.md"];

/// Documents whose links are checked. The changelog names paths as they were at each release.
fn documents() -> Vec<PathBuf> {
    let root = root_dir();
    const PAGES: [&str; 6] =
        ["README.md", CONTRIBUTING, "ARCHITECTURE.md", "CHANGELOG.md", "spec/README.md", "baselines/clients/README.md"];
    let mut all: Vec<PathBuf> = PAGES.iter().map(|name| root.join(name)).collect();
    all.extend(files_below(&root.join("docs"), &["md"]));
    all
}

/// Lines outside of fenced code, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((index + 1, line))
    })
}

/// The text between backticks, and the whole line without the backticks.
fn split_code(line: &str) -> (Vec<&str>, String) {
    let (mut code, mut rest) = (Vec::new(), String::new());
    for (index, part) in line.split('`').enumerate() {
        if index % 2 == 1 {
            code.push(part);
        }
        // Within a heading or the text of a link, code counts as plain text.
        rest.push_str(part);
    }
    (code, rest)
}

/// Targets of `[text](target)`.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((_, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else { break };
        found.push(target);
        rest = after;
    }
    found
}

/// The anchor that GitHub and mdBook give to a heading.
fn slug(heading: &str) -> String {
    let (_, text) = split_code(heading);
    // A link in a heading counts as its text.
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

fn anchors(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug = slug(heading);
        let before = all.iter().filter(|other| **other == slug).count();
        all.push(if before == 0 { slug } else { format!("{slug}-{before}") });
    }
    all
}

/// `a/b/../c` as `a/c`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn braces(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(head, rest)| rest.split_once('}').map(|(middle, tail)| (head, middle, tail)))
    {
        Some((head, middle, tail)) => middle.split(',').map(|part| format!("{head}{part}{tail}")).collect(),
        None => vec![path.to_owned()],
    }
}

/// What is wrong with a path in backticks.
fn path_problem(code: &str) -> Option<String> {
    if !ROOTS.iter().any(|root| code.starts_with(root)) {
        return None;
    }
    let end = code.find(|c: char| c.is_whitespace() || ":#()".contains(c)).unwrap_or(code.len());
    braces(&code[..end]).into_iter().find_map(|path| {
        // If the path has a pattern, only the part before the pattern has to exist.
        let fixed = path.split(['*', '<']).next().unwrap_or_default();
        let fixed = if fixed.len() < path.len() { &fixed[..fixed.rfind('/').map_or(0, |at| at + 1)] } else { fixed };
        (!root_dir().join(fixed).exists()).then(|| format!("`{path}` is not there"))
    })
}

/// What is wrong with the target of a link in `document`.
fn link_problem(document: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = match file {
        "" => document.to_owned(),
        _ => normal(&document.parent().unwrap_or(document).join(file)),
    };
    if !path.exists() {
        return Some(format!("({target}) leads to {}, which is not there", shown(&path)));
    }
    let docs = root_dir().join("docs");
    if document.starts_with(&docs) && !path.starts_with(&docs) {
        return Some(format!("({target}) leads out of the book; write `{}` instead", shown(&path)));
    }
    let anchor = anchor?;
    let there = anchors(&read(&path));
    (!there.iter().any(|have| have == anchor))
        .then(|| format!("({target}): {} has no heading for #{anchor}; it has {}", shown(&path), there.join(", ")))
}

#[test]
fn links_and_paths_of_the_documentation_lead_somewhere() {
    let mut problems = Vec::new();
    for document in documents() {
        let text = read(&document);
        let is_history = document.ends_with("CHANGELOG.md");
        for (number, line) in prose(&text) {
            let (code, _) = split_code(line);
            let paths = code.into_iter().filter(|_| !is_history).filter_map(path_problem);
            let links = targets(line).into_iter().filter_map(|target| link_problem(&document, target));
            problems.extend(paths.chain(links).map(|problem| format!("{}:{number}: {problem}", shown(&document))));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Each row of the reading test gives its hops as links, the last one possibly as a path, and each hop is
/// named on the page before it.
#[test]
fn newcomers_find_their_answers_within_three_hops() {
    let root = root_dir();
    let text = read(&root.join(CONTRIBUTING));
    let (_, section) = text.split_once("## The reading test").expect("the section");
    let (mut rows, mut problems) = (0, Vec::new());
    for row in section.lines().filter(|line| line.starts_with("| ") && line.contains('?')) {
        let hops: Vec<&str> = row.rsplit('|').nth(1).unwrap_or_default().split(" → ").map(str::trim).collect();
        rows += 1;
        if hops.len() > HOPS_MAX || hops.len() < 2 {
            problems.push(format!("{} hops: {row}", hops.len()));
        }
        let mut page = root.join("README.md");
        for hop in hops {
            let next = targets(hop).first().copied().or_else(|| split_code(hop).0.first().copied()).unwrap_or_default();
            let next = root.join(next.split('#').next().unwrap_or_default());
            let dir = page.parent().unwrap_or(&root).to_owned();
            let from_root = shown(&next);
            let names = read(&page);
            let linked = targets(&names).iter().any(|to| normal(&dir.join(to.split('#').next().unwrap_or(to))) == next);
            let named = split_words(&names).iter().flat_map(|word| braces(word)).any(|word| word == from_root);
            if !(linked || named) || !next.is_file() {
                problems.push(format!("{} does not lead to {from_root}: {row}", shown(&page)));
                break;
            }
            page = next;
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    assert!(rows >= 6, "{rows} questions: has the table's form changed?");
}

/// The words in backticks on any line.
fn split_words(text: &str) -> Vec<&str> {
    text.lines().flat_map(|line| split_code(line).0).collect()
}

#[test]
fn every_page_is_in_the_summary_of_the_book() {
    let docs = root_dir().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let listed: Vec<&str> = targets(&summary);
    let missing: Vec<String> = files_below(&docs, &["md"])
        .iter()
        .filter_map(|path| Some(path.strip_prefix(&docs).ok()?.display().to_string()))
        .filter(|name| name != "SUMMARY.md" && !listed.contains(&name.as_str()))
        .collect();
    let lines: Vec<String> = missing.iter().map(|name| format!("- [Its title]({name})")).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list:\n{}", lines.join("\n"));
}

#[test]
fn documents_named_by_the_source_exist() {
    let mut problems = Vec::new();
    for dir in ["crates", "xtask", "spec", "packaging", "examples", "baselines"] {
        let extensions = ["rs", "c", "h", "toml", "tla", "go", "service", "md", "sh"];
        for path in files_below(&root_dir().join(dir), &extensions) {
            let text = FOREIGN.iter().fold(read(&path), |text, foreign| text.replace(foreign, ""));
            for (at, _) in text.match_indices("docs/") {
                let name: &str =
                    text[at..].split(|c: char| !(c.is_alphanumeric() || "/-_.".contains(c))).next().unwrap_or("");
                let name = name.trim_end_matches('.');
                if name.ends_with(".md") && !root_dir().join(name).exists() {
                    problems.push(format!("{}: {name} is not there", shown(&path)));
                }
            }
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Pages that name, in backticks, the test that shows each promise.
const NAMES_TESTS: [&str; 3] =
    ["docs/internals/promises.md", "docs/operate/security.md", "docs/internals/simulator.md"];

/// Whether a word in backticks looks like the name of a test: several words in snake case.
fn is_test_name(code: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    code.matches('_').count() >= 4 && code.chars().all(fits) && code.starts_with(|c: char| c.is_ascii_lowercase())
}

#[test]
fn tests_named_by_promises_exist() {
    let source: String = files_below(&root_dir().join("crates"), &["rs"]).iter().map(|path| read(path)).collect();
    let mut problems = Vec::new();
    for page in NAMES_TESTS {
        for (number, line) in prose(&read(&root_dir().join(page))) {
            let named = split_code(line).0.into_iter().filter(|code| is_test_name(code));
            let missing = named.filter(|name| !source.contains(&format!("fn {name}(")));
            problems.extend(missing.map(|name| format!("{page}:{number}: there is no test {name}")));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn links_are_judged_as_a_reader_follows_them() {
    assert_eq!(targets("a [b](c.md#d) and [e](f)"), ["c.md#d", "f"]);
    assert_eq!(slug(" What a `[cluster]` is, in short"), "what-a-cluster-is-in-short");
    assert_eq!(slug(" The [README](../README.md): why"), "the-readme-why");
    assert_eq!(anchors("# A\n```\n# no\n```\n## A\n#no"), ["a", "a-1"]);
    assert_eq!(braces("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
    assert_eq!(normal(Path::new("/a/b/../c/./d")), Path::new("/a/c/d"));
    assert_eq!(path_problem("xtask/src/*.rs"), None);
    assert_eq!(path_problem("xtask/src/docs.rs:12"), None);
    assert_eq!(path_problem("fide status"), None);
    assert!(path_problem("xtask/src/nothing.rs").is_some());
}
