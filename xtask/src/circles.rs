// SPDX-License-Identifier: Apache-2.0
//! Files of one crate that need each other in a circle: nobody can read one of them without all the others.
//!
//! Read from paths in the source: `crate::`, `super::`, `self::`, and modules that a file declares. A name that a file hands on by `use`
//! counts for the file that defines it. A file that names modules below it, of which it is made, needs nothing by that: what they take of it,
//! and of each other, counts. Tests inside of a file do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A type and the part that implements most of it may need each other, and a third; four are a knot.
const FILES_MAX: usize = 3;
/// A name is handed on by at most so many files.
const HANDED_ON_MAX: usize = 8;

/// A path of modules below the root of a crate.
type Module = Vec<String>;

struct File {
    path: PathBuf,
    /// `lib.rs` or `main.rs`, of which it is a module.
    root: PathBuf,
    module: Module,
    text: String,
    /// Modules that it declares in files of their own.
    children: BTreeSet<String>,
    /// What it brings into scope, and from where.
    imports: BTreeMap<String, Module>,
}

/// Every circle of too many files, with its files.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let mut sources = Vec::new();
    find_sources(&root.join("crates"), &mut sources);
    find_sources(&root.join("examples"), &mut sources);
    let mut faults = Vec::new();
    for (dir, files) in by_crate(sources) {
        let texts = files.into_iter().filter_map(|path| fs::read_to_string(&path).ok().map(|text| (path, text)));
        for circle in circles(&dir, texts.collect()) {
            if circle.len() > FILES_MAX {
                let names: Vec<_> =
                    circle.iter().map(|path| path.strip_prefix(root).unwrap_or(path).display()).collect();
                let names = names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                faults.push(format!("{} files need each other in a circle: {names}", circle.len()));
            }
        }
    }
    faults
}

fn find_sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "target", "benches", "examples"].contains(&name.as_str()) {
            find_sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" && path.components().any(|part| part.as_os_str() == "src")
        {
            found.push(path);
        }
    }
}

/// Sources by the directory of the root they belong to: the nearest above them that has a `lib.rs` or `main.rs`.
fn by_crate(sources: Vec<PathBuf>) -> BTreeMap<PathBuf, Vec<PathBuf>> {
    let is_root =
        |dir: &Path| sources.iter().any(|path| ["lib.rs", "main.rs"].iter().any(|name| *path == dir.join(name)));
    let mut crates: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for path in &sources {
        if let Some(dir) = path.ancestors().skip(1).find(|dir| is_root(dir)) {
            crates.entry(dir.to_owned()).or_default().push(path.clone());
        }
    }
    crates
}

fn circles(dir: &Path, texts: Vec<(PathBuf, String)>) -> Vec<Vec<PathBuf>> {
    let files = files(dir, texts);
    let needs: Vec<BTreeSet<usize>> = (0..files.len()).map(|at| needed_by(&files, at)).collect();
    let reach: Vec<BTreeSet<usize>> = (0..files.len()).map(|at| reached_from(&needs, at)).collect();
    let mut circles = BTreeSet::new();
    for (at, reached) in reach.iter().enumerate().filter(|(at, reached)| reached.contains(at)) {
        let circle: BTreeSet<usize> = reached.iter().copied().filter(|other| reach[*other].contains(&at)).collect();
        circles.insert(circle);
    }
    circles.into_iter().map(|circle| circle.into_iter().map(|at| files[at].path.clone()).collect()).collect()
}

fn reached_from(needs: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(needs[at].iter().filter(|next| reached.insert(**next)));
    }
    reached
}

fn files(dir: &Path, texts: Vec<(PathBuf, String)>) -> Vec<File> {
    let mut files: Vec<File> = texts
        .into_iter()
        .map(|(path, text)| {
            let text = without_tests_and_comments(&text);
            let below = path.strip_prefix(dir).unwrap_or(&path).with_extension("");
            let mut module: Module = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if ["lib", "main", "mod"].contains(&module.last().map_or("", String::as_str)) {
                module.pop();
            }
            let children = declared(&text);
            File { root: dir.join("lib.rs"), path, module, text, children, imports: BTreeMap::new() }
        })
        .collect();
    // Where a crate has both, each module belongs to the one that declares it.
    let main = dir.join("main.rs");
    let of_main = files.iter().find(|file| file.path == main).map(|file| file.children.clone());
    if let Some(of_main) = of_main {
        for file in &mut files {
            if file.path == main || file.module.first().is_some_and(|top| of_main.contains(top)) {
                file.root.clone_from(&main);
            }
        }
    }
    for file in &mut files {
        let imports = paths(file).into_iter().filter(|path| path.is_use);
        file.imports = imports.filter_map(|path| Some((path.name.clone()?, path.segments))).collect();
    }
    files
}

/// Comments and the tests at the end of a file are nobody's need.
pub(crate) fn without_tests_and_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_mod = |next: &&str| next.starts_with("mod ") && next.ends_with('{');
        if line == "#[cfg(test)]" && lines.peek().is_some_and(is_mod) {
            break;
        }
        if !line.trim_start().starts_with("//") {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Modules that a text declares in files of their own.
fn declared(text: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let line = line.trim().strip_suffix(';')?;
        let at = line.find("mod ").filter(|at| *at == 0 || line.starts_with("pub"))?;
        Some(line[at + 4..].to_owned()).filter(|name| name.chars().all(is_word))
    };
    text.lines().filter_map(name).collect()
}

fn needed_by(files: &[File], at: usize) -> BTreeSet<usize> {
    let file = &files[at];
    let found = paths(file).into_iter().filter_map(|path| defined_in(files, &file.root, &path.segments, 0));
    found.filter(|other| *other != at && !files[*other].module.starts_with(&file.module)).collect()
}

/// The file that defines what a path from the root names.
fn defined_in(files: &[File], root: &Path, segments: &[String], handed_on: usize) -> Option<usize> {
    let find = |module: &[String]| files.iter().position(|file| file.root == root && file.module == module);
    let depth = (0..=segments.len()).rev().find(|depth| find(&segments[..*depth]).is_some())?;
    let at = find(&segments[..depth])?;
    let Some(name) = segments.get(depth) else { return Some(at) };
    match files[at].imports.get(name) {
        Some(from) if handed_on < HANDED_ON_MAX => {
            let path = [from, &segments[depth + 1..]].concat();
            defined_in(files, root, &path, handed_on + 1)
        }
        _ => Some(at),
    }
}

/// A path in a source, from the root of its crate.
struct Named {
    segments: Module,
    is_use: bool,
    /// Under which it is in scope.
    name: Option<String>,
}

fn paths(file: &File) -> Vec<Named> {
    let text = &file.text;
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(|c: char| is_word(c)).map(|skip| at + skip) {
        let end = text[start..].find(|c: char| !is_word(c)).map_or(text.len(), |len| start + len);
        at = end;
        let before = text[..start].trim_end();
        let begins = match &text[start..end] {
            "crate" => Some(Vec::new()),
            "self" => Some(file.module.clone()),
            "super" => Some(above(&file.module)),
            word if file.children.contains(word) => Some([&file.module[..], &[word.to_owned()]].concat()),
            _ => None,
        };
        let goes_on = text[end..].starts_with("::") && !before.ends_with("::") && !before.ends_with('.');
        // `pub(in crate::a)` needs nothing.
        if let Some(begins) = begins.filter(|_| goes_on && !before.ends_with("(in")) {
            let is_use = before.ends_with("use");
            at = tree(text, end + 2, begins, is_use, &mut found);
        }
    }
    found
}

/// Reads what follows a `::` up to its end: one path, or a group of them.
fn tree(text: &str, mut at: usize, mut segments: Module, is_use: bool, found: &mut Vec<Named>) -> usize {
    let skip = |at: usize| text[at..].find(|c: char| !c.is_whitespace()).map_or(text.len(), |len| at + len);
    if text[at..].starts_with('{') {
        at += 1;
        loop {
            at = skip(at);
            match text[at..].chars().next() {
                Some(',') => at += 1,
                Some('}') => return at + 1,
                Some(c) if is_word(c) => at = tree(text, at, segments.clone(), is_use, found),
                Some(c) => at += c.len_utf8(),
                None => return at,
            }
        }
    }
    let end = text[at..].find(|c: char| !is_word(c)).map_or(text.len(), |len| at + len);
    let word = &text[at..end];
    match word {
        "self" | "" => {}
        "super" => segments = above(&segments),
        _ => segments.push(word.to_owned()),
    }
    if !word.is_empty() && text[end..].starts_with("::") {
        return tree(text, end + 2, segments, is_use, found);
    }
    let mut name = segments.last().cloned();
    let mut after = end;
    if let Some(rest) = text[end..].strip_prefix(" as ").filter(|_| is_use) {
        let len = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        name = Some(rest[..len].to_owned());
        after = end + 4 + len;
    }
    found.push(Named { segments, is_use, name });
    after
}

fn above(module: &[String]) -> Module {
    module.split_last().map_or(Vec::new(), |(_, rest)| rest.to_vec())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::root_dir;

    fn of(texts: &[(&str, &str)]) -> Vec<Vec<String>> {
        let texts = texts.iter().map(|(path, text)| (Path::new("src").join(path), (*text).to_owned())).collect();
        let name = |path: PathBuf| path.strip_prefix("src").expect("below").display().to_string();
        circles(Path::new("src"), texts).into_iter().map(|circle| circle.into_iter().map(name).collect()).collect()
    }

    #[test]
    fn no_circle_has_more_files_than_a_reader_holds() {
        let faults = faults(&root_dir());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn circle_is_found_through_groups_and_reexports() {
        let found = of(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::C;\n"),
            ("a.rs", "use crate::{\n    b::{self, B},\n};\n"),
            ("b.rs", "use super::C;\n"),
            ("c.rs", "fn f() -> crate::a::A {}\n"),
        ]);
        assert_eq!(found, [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn tests_comments_and_visibility_need_nothing() {
        let found = of(&[
            ("lib.rs", "mod a;\nfn f() { a::g() }\npub struct S;\n"),
            ("a.rs", "//! crate::S\npub(in crate::a) fn g() {}\n#[cfg(test)]\nmod tests {\n    use crate::S;\n}\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn child_module_may_use_its_parent() {
        let lib = ("lib.rs", "mod a;\nmod b;\nfn f() { a::g() }\npub struct S;\n");
        let found = of(&[lib, ("a.rs", "use super::S as T;\n"), ("b.rs", "pub struct B;\n")]);
        assert!(found.is_empty(), "{found:?}");
        let found = of(&[lib, ("a.rs", "use super::{S as T, b::B};\n"), ("b.rs", "fn f() { super::a::g() }\n")]);
        assert_eq!(found, [["a.rs", "b.rs"]]);
    }

    #[test]
    fn modules_of_a_program_beside_a_library_are_its_own() {
        let found = of(&[
            ("lib.rs", "pub mod a;\npub use a::A;\n"),
            ("main.rs", "mod b;\nmod c;\npub use c::A;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::A;\n"),
            ("c.rs", "use crate::b::B;\n"),
        ]);
        assert_eq!(found, [["b.rs", "c.rs"]]);
    }
}
