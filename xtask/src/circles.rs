// SPDX-License-Identifier: Apache-2.0
//! Finds files of one crate that need each other in a circle: nobody can read one of them without all the
//! others.
//!
//! A file needs the file that defines
//! - what a path names that begins with `crate`, `super`, `self`, a module that the file declares or a name
//!   that its `use` brings,
//! - a name that a glob such as `use super::*` brings, where the file uses that name: a type or a constant
//!   anywhere, a function where it is called. A glob that is not used does not count,
//! - an inherent method that an `impl` block calls as `self.name()` or names as `Self::name`, or that a path
//!   such as `Type::name` names, where another file has that method in an `impl` block of the same type.
//!
//! A name that a file re-exports by `use` counts for the file that defines it. A file that only names the
//! modules below it, of which it is made, does not need them by that; what those modules take from it and
//! from each other does count. Tests inside a file do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A type and the file that implements most of it may need each other, and a third file too; four are a knot.
const FILES_MAX: usize = 3;
/// A name is re-exported by at most this many files.
const HANDED_ON_MAX: usize = 8;

/// A path of modules below the root of a crate.
type Module = Vec<String>;

struct File {
    path: PathBuf,
    /// The `lib.rs` or `main.rs` that the file is a module of.
    root: PathBuf,
    module: Module,
    text: String,
    /// Modules that it declares in files of their own.
    children: BTreeSet<String>,
    /// Items that it defines.
    defined: BTreeSet<String>,
    /// Names that it brings into scope, and from where.
    imports: BTreeMap<String, Module>,
    /// Modules from which it brings every name into scope.
    globs: Vec<Module>,
    /// Names that only globs bring into scope, and from where.
    brought: BTreeMap<String, Module>,
    impls: Vec<Impl>,
}

/// One `impl` block.
struct Impl {
    /// Segments of the path that names the type.
    of: Module,
    /// Methods and constants of an inherent block.
    members: BTreeSet<String>,
    /// What its methods use of the same type.
    takes: BTreeSet<String>,
}

/// Files that need each other.
struct Circle {
    files: Vec<PathBuf>,
    /// Which file takes which name from which file.
    needs: Vec<(PathBuf, PathBuf, String)>,
}

/// Files by number, and the names that are taken from each.
type Needs = BTreeMap<usize, BTreeSet<String>>;

/// A type by the file that defines it, and its name.
type Type = (usize, String);

/// Every circle of too many files, with its files.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let mut sources = Vec::new();
    find_sources(&root.join("crates"), &mut sources);
    find_sources(&root.join("examples"), &mut sources);
    let mut faults = Vec::new();
    for (dir, files) in by_crate(sources) {
        let texts = files.into_iter().filter_map(|path| fs::read_to_string(&path).ok().map(|text| (path, text)));
        for circle in circles(&dir, texts.collect()) {
            if circle.files.len() > FILES_MAX {
                let show = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
                let names = circle.files.iter().map(|path| show(path)).collect::<Vec<_>>().join(", ");
                let mut fault = format!("{} files need each other in a circle: {names}", circle.files.len());
                for (from, to, what) in &circle.needs {
                    fault += &format!("\n  {} takes of {}: {what}", show(from), show(to));
                }
                faults.push(fault);
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

/// Sources by the directory of the root that they belong to: the nearest directory above them that has a
/// `lib.rs` or `main.rs`.
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

fn circles(dir: &Path, texts: Vec<(PathBuf, String)>) -> Vec<Circle> {
    let files = files(dir, texts);
    let methods = methods(&files);
    let needs: Vec<Needs> = (0..files.len()).map(|at| needed_by(&files, &methods, at)).collect();
    let reach: Vec<BTreeSet<usize>> = (0..files.len()).map(|at| reached_from(&needs, at)).collect();
    let mut circles = BTreeSet::new();
    for (at, reached) in reach.iter().enumerate().filter(|(at, reached)| reached.contains(at)) {
        let circle: BTreeSet<usize> = reached.iter().copied().filter(|other| reach[*other].contains(&at)).collect();
        circles.insert(circle);
    }
    let path = |at: usize| files[at].path.clone();
    let of = |circle: BTreeSet<usize>| {
        let inside =
            |from: usize| needs[from].iter().filter(|(to, _)| circle.contains(to)).map(move |need| (from, need));
        let needs = circle.iter().flat_map(|from| inside(*from));
        let needs = needs.map(|(from, (to, what))| {
            (path(from), path(*to), what.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
        });
        Circle { needs: needs.collect(), files: circle.iter().map(|at| path(*at)).collect() }
    };
    circles.into_iter().map(of).collect()
}

fn reached_from(needs: &[Needs], from: usize) -> BTreeSet<usize> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(needs[at].keys().filter(|next| reached.insert(**next)));
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
            let (children, defined, impls) = (declared(&text), items(&text), impls(&text));
            let (root, imports, globs, brought) = (dir.join("lib.rs"), BTreeMap::new(), Vec::new(), BTreeMap::new());
            File { root, path, module, text, children, defined, imports, globs, brought, impls }
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
        let (globs, imports): (Vec<_>, Vec<_>) =
            paths(file).into_iter().filter(|path| path.is_use).partition(|path| path.is_glob);
        file.globs = globs.into_iter().map(|path| path.segments).collect();
        file.imports = imports.into_iter().filter_map(|path| Some((path.name.clone()?, path.segments))).collect();
    }
    let brought: Vec<_> = (0..files.len()).map(|at| brought_by_globs(&files, at)).collect();
    for (file, brought) in files.iter_mut().zip(brought) {
        file.brought = brought;
    }
    files
}

/// Removes comments, and the items of tests, from a formatted text: they count as no need.
pub(crate) fn without_tests_and_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let begun = line.trim_start();
        if begun.starts_with("#[cfg(test)]") || begun.starts_with("#[cfg(all(test,") {
            let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#["));
            if item.is_some_and(|item| !item.ends_with([';', ',', '}'])) {
                let end = format!("{}}}", &line[..line.len() - begun.len()]);
                lines.by_ref().find(|line| line.starts_with(&end));
            }
        } else if !begun.starts_with("//") {
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

/// Items that a text defines outside of every block.
fn items(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| !line.starts_with(' ')).filter_map(item).collect()
}

/// The name of the item that begins in this line.
fn item(line: &str) -> Option<String> {
    const KINDS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules!"];
    const BEFORE: [&str; 4] = ["unsafe", "async", "extern", "\"C\""];
    let mut words = line.split_whitespace().peekable();
    let is_inside = |word: &&str| word.starts_with("pub") || BEFORE.contains(word);
    while words.next_if(is_inside).is_some_and(|word| word != "pub(in" || words.next().is_some()) {}
    let mut kind = words.next()?;
    if kind == "const" {
        kind = words.next_if(|word| ["fn", "unsafe"].contains(word)).unwrap_or(kind);
    }
    if kind == "unsafe" {
        kind = words.next()?;
    }
    let name = words.next()?;
    let end = name.find(|c: char| !is_word(c)).unwrap_or(name.len());
    (KINDS.contains(&kind) && end > 0).then(|| name[..end].to_owned())
}

/// Every `impl` block of a formatted text.
fn impls(text: &str) -> Vec<Impl> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let begun = line.trim_start();
        let indent = &line[..line.len() - begun.len()];
        let begun = begun.strip_prefix("unsafe ").unwrap_or(begun);
        if !begun.strip_prefix("impl").is_some_and(|rest| rest.starts_with([' ', '<'])) {
            continue;
        }
        let mut header = begun.to_owned();
        while !header.ends_with(['{', '}', ';']) {
            let Some(next) = lines.next() else { break };
            header = format!("{header} {}", next.trim());
        }
        let end = format!("{indent}}}");
        let body: Vec<_> =
            if header.ends_with('{') { lines.by_ref().take_while(|line| *line != end).collect() } else { Vec::new() };
        let Some((of, is_inherent)) = type_of(&header) else { continue };
        let is_member = |line: &&&str| line.strip_prefix(indent).is_some_and(|rest| !rest.starts_with("     "));
        let members = body.iter().filter(is_member).filter_map(|line| item(line)).filter(|_| is_inherent).collect();
        found.push(Impl { of, members, takes: taken(&body.join("\n")) });
    }
    found
}

/// The path of the type that an `impl` block is for, and whether the block is inherent (for no trait).
fn type_of(header: &str) -> Option<(Module, bool)> {
    let rest = header.strip_prefix("impl")?;
    let mut depth = 0_u32;
    let generics = rest.char_indices().find(|(at, c)| {
        match c {
            '<' => depth += 1,
            '>' if !rest[..*at].ends_with(['-', '=']) => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    });
    let rest = if rest.starts_with('<') { &rest[generics?.0 + 1..] } else { rest };
    let rest = rest.split(" where ").next()?;
    let (of, is_inherent) = rest.split_once(" for ").map_or((rest, true), |(_, of)| (of, false));
    let of = of.trim_start().trim_start_matches('&').trim_start_matches("mut ");
    let end = of.find(|c: char| !is_word(c) && c != ':').unwrap_or(of.len());
    let of: Module = of[..end].split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    (!of.is_empty()).then_some((of, is_inherent))
}

/// The names that a body calls on `self` or takes from `Self`.
fn taken(body: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (word, mark) in [("self", "."), ("Self", "::")] {
        for (at, _) in body.match_indices(word).filter(|(at, _)| !body[..*at].ends_with(is_word)) {
            let Some(rest) = body[at + word.len()..].trim_start().strip_prefix(mark) else { continue };
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            if word == "Self" || rest[end..].starts_with('(') || rest[end..].starts_with("::<") {
                found.insert(rest[..end].to_owned());
            }
        }
    }
    found
}

/// For each member of a type, the files that have it.
fn methods(files: &[File]) -> BTreeMap<(Type, String), BTreeSet<usize>> {
    let mut methods: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
    for (at, file) in files.iter().enumerate() {
        for block in &file.impls {
            let Some(of) = type_named(files, at, &block.of) else { continue };
            for name in &block.members {
                methods.entry((of.clone(), name.clone())).or_default().insert(at);
            }
        }
    }
    methods
}

/// The type that a path in a file names.
fn type_named(files: &[File], at: usize, path: &[String]) -> Option<Type> {
    let file = &files[at];
    let (first, rest) = path.split_first()?;
    let begins = match first.as_str() {
        "crate" => Vec::new(),
        "self" => file.module.clone(),
        "super" => above(&file.module),
        name => match file.imports.get(name).or_else(|| file.brought.get(name)) {
            Some(from) => from.clone(),
            None => [&file.module[..], &[name.to_owned()]].concat(),
        },
    };
    let (at, item) = resolved(files, &file.root, &[&begins[..], rest].concat(), 0)?;
    Some((at, item.into_iter().next()?))
}

fn needed_by(files: &[File], methods: &BTreeMap<(Type, String), BTreeSet<usize>>, at: usize) -> Needs {
    let file = &files[at];
    let (mut found, mut named) = (Needs::new(), Vec::new());
    let mut members = |of: Type, name: &str| {
        let have = methods.get(&(of, name.to_owned())).filter(|have| !have.contains(&at));
        for other in have.into_iter().flatten() {
            found.entry(*other).or_default().insert(name.to_owned());
        }
    };
    for block in &file.impls {
        let Some(of) = type_named(files, at, &block.of) else { continue };
        block.takes.iter().for_each(|name| members(of.clone(), name));
    }
    for path in paths(file) {
        let Some((other, item)) = resolved(files, &file.root, &path.segments, 0) else { continue };
        if let [name, member, ..] = &item[..] {
            members((other, name.clone()), member);
        }
        named.extend((!item.is_empty() || !path.is_glob).then(|| (other, item.into_iter().next())));
    }
    for (other, name) in named {
        found.entry(other).or_default().insert(name.unwrap_or_else(|| "itself".to_owned()));
    }
    found.retain(|other, _| *other != at && !files[*other].module.starts_with(&file.module));
    found
}

/// The file that defines what a path from the root names, and the rest of the path: the item and what follows
/// it. An empty rest is the file itself.
fn resolved(files: &[File], root: &Path, segments: &[String], handed_on: usize) -> Option<(usize, Module)> {
    let find = |module: &[String]| files.iter().position(|file| file.root == root && file.module == module);
    let depth = (0..=segments.len()).rev().find(|depth| find(&segments[..*depth]).is_some())?;
    let at = find(&segments[..depth])?;
    let file = &files[at];
    let Some((name, rest)) = segments[depth..].split_first() else { return Some((at, Vec::new())) };
    let from = file.imports.get(name).cloned().or_else(|| {
        let bring = |module: &&Module| brings(files, root, module, handed_on + 1).contains(name);
        let module = (!has(file, name)).then(|| file.globs.iter().find(bring))??;
        Some([&module[..], std::slice::from_ref(name)].concat())
    });
    match from {
        Some(from) if handed_on < HANDED_ON_MAX => resolved(files, root, &[&from, rest].concat(), handed_on + 1),
        _ => Some((at, segments[depth..].to_vec())),
    }
}

fn has(file: &File, name: &str) -> bool {
    file.defined.contains(name) || file.children.contains(name)
}

/// Every name in scope in a module.
fn brings(files: &[File], root: &Path, module: &[String], handed_on: usize) -> BTreeSet<String> {
    if handed_on > HANDED_ON_MAX {
        return BTreeSet::new();
    }
    let Some((at, _)) = resolved(files, root, module, handed_on).filter(|(_, item)| item.is_empty()) else {
        return BTreeSet::new();
    };
    let file = &files[at];
    let mut names: BTreeSet<String> = file.defined.union(&file.children).chain(file.imports.keys()).cloned().collect();
    for glob in &file.globs {
        names.extend(brings(files, root, glob, handed_on + 1));
    }
    names
}

/// The names that only globs bring into a file.
fn brought_by_globs(files: &[File], at: usize) -> BTreeMap<String, Module> {
    let file = &files[at];
    let used = used(&file.text);
    let mut brought = BTreeMap::new();
    for module in &file.globs {
        let names = brings(files, &file.root, module, 0).into_iter();
        let names = names.filter(|name| !has(file, name) && !used.contains(name));
        brought.extend(names.map(|name| (name.clone(), [&module[..], &[name]].concat())));
    }
    brought
}

/// Names that `use` brings into scope, also from other crates.
fn used(text: &str) -> BTreeSet<String> {
    let mut found = Vec::new();
    for (at, word) in text.match_indices("use ").filter(|(at, _)| !text[..*at].ends_with(is_word)) {
        tree(text, at + word.len(), Vec::new(), true, &mut found);
    }
    found.into_iter().filter_map(|path| path.name).collect()
}

/// A path in a source, from the root of its crate.
struct Named {
    segments: Module,
    is_use: bool,
    /// Whether it names everything in the module.
    is_glob: bool,
    /// The name under which it is in scope.
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
            word => file.brought.get(word).or_else(|| file.imports.get(word)).cloned(),
        };
        let is_first = !before.ends_with("::") && !before.ends_with('.');
        let goes_on = text[end..].starts_with("::") && is_first;
        let is_whole = text[start..].starts_with(char::is_uppercase) || text[end..].starts_with(['(', '!']);
        if is_first && !goes_on && is_whole && file.brought.contains_key(&text[start..end]) {
            let segments = begins.clone().unwrap_or_default();
            found.push(Named { segments, is_use: false, is_glob: false, name: None });
        }
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
                Some(c) if is_word(c) || c == '*' => at = tree(text, at, segments.clone(), is_use, found),
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
    let is_glob = word.is_empty() && text[end..].starts_with('*');
    let mut name = segments.last().cloned().filter(|_| !is_glob);
    let mut after = end + usize::from(is_glob);
    if let Some(rest) = text[end..].strip_prefix(" as ").filter(|_| is_use) {
        let len = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        name = Some(rest[..len].to_owned());
        after = end + 4 + len;
    }
    found.push(Named { segments, is_use, is_glob, name });
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
        let names = |circle: Circle| circle.files.into_iter().map(name).collect();
        circles(Path::new("src"), texts).into_iter().map(names).collect()
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
    fn what_follows_tests_counts() {
        let lib = ("lib.rs", "mod a;\nmod b;\n");
        let b = ("b.rs", "use crate::a::A;\n");
        let block = "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n";
        let method =
            "impl A {\n    #[cfg(all(test, unix))]\n    #[must_use]\n    fn b() {\n        crate::b::B\n    }\n}\n";
        for tests in [block, method, "#[cfg(test)]\nuse crate::b::B;\n"] {
            let found = of(&[lib, ("a.rs", tests), b]);
            assert!(found.is_empty(), "{tests}: {found:?}");
            let found = of(&[lib, ("a.rs", &format!("{tests}use crate::b::B;\n")), b]);
            assert_eq!(found, [["a.rs", "b.rs"]], "{tests}");
        }
    }

    #[test]
    fn a_glob_needs_what_is_used_of_it() {
        let lib = ("lib.rs", "mod a;\nmod b;\npub use b::*;\n");
        let b = ("b.rs", "use crate::a::A;\npub const B: A = A;\npub struct C;\npub fn make() {}\n");
        let a_with = |text: &str| {
            let found = of(&[lib, ("a.rs", &format!("use super::*;\npub struct A;\n{text}\n")), b]);
            assert!(found.is_empty() || found == [["a.rs", "b.rs"]], "{found:?}");
            !found.is_empty()
        };
        for used in ["fn f(_: C) {}", "const D: A = B;", "fn f() { make() }", "fn f() { b::make() }"] {
            assert!(a_with(used), "{used}");
        }
        // A type of another crate, a function of its own, or only a word.
        for other in ["", "use x::{C, y::B};\nfn f(_: C) {}", "fn make() {}\nfn f() { make() }", "fn f(make: u8) {}"] {
            assert!(!a_with(other), "{other}");
        }
    }

    #[test]
    fn methods_of_one_type_are_needed_across_files() {
        let lib = ("lib.rs", "mod a;\nmod b;\npub struct S<T>(T);\n");
        let b =
            ("b.rs", "impl<T: Fn() -> u8> super::S<T> {\n    pub(crate) fn g(&self) {\n        self.f()\n    }\n}\n");
        let a_with = |of_trait: &str, call: &str| {
            let f = "impl<T> S<T> {\n    pub(crate) const fn f(&self) {}\n}";
            let h = format!(
                "impl<T> {of_trait}S<T>\nwhere\n    T: Copy,\n{{\n    fn h(&self) {{\n        {call};\n    }}\n}}"
            );
            !of(&[lib, b, ("a.rs", &format!("use crate::S;\n{f}\n{h}\n"))]).is_empty()
        };
        assert!(a_with("", "self.g()"));
        assert!(a_with("", "self\n            .g()"));
        assert!(a_with("", "call(Self::g)"));
        assert!(a_with("Default for ", "self.g()"));
        // A field, another object, a method of its own.
        for call in ["self.g", "other.g()", "self.f()", "myself.g()"] {
            assert!(!a_with("", call), "{call}");
        }
        let of_another = ("b.rs", "struct S;\nimpl S {\n    fn g(&self) {\n        crate::a::A\n    }\n}\n");
        let found = of(&[
            lib,
            of_another,
            ("a.rs", "use crate::S;\nimpl<T> S<T> {\n    fn h(&self) {\n        self.g()\n    }\n}\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_path_into_a_type_or_an_imported_module_is_followed() {
        let lib = ("lib.rs", "mod a;\nmod b;\nmod c;\npub struct S;\n");
        let b = ("b.rs", "use crate::S;\nimpl S {\n    pub fn new() -> crate::a::A {}\n}\n");
        let found = of(&[lib, ("a.rs", "use crate::S;\nfn f() { S::new() }\n"), b]);
        assert_eq!(found, [["a.rs", "b.rs"]]);
        let c = ("c.rs", "pub use crate::b::B;\n");
        let b = ("b.rs", "use crate::a::A;\npub struct B;\n");
        let found = of(&[lib, ("a.rs", "use crate::c;\nfn f() -> c::B {}\n"), b, c]);
        assert_eq!(found, [vec!["a.rs", "b.rs", "c.rs"]]);
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
