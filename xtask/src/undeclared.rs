// SPDX-License-Identifier: Apache-2.0
//! Finds sources that no file declares as a module: the compiler silently ignores them and the tests in them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Directories in which each file is a program of its own.
const OF_PROGRAMS: [&str; 4] = ["tests", "benches", "examples", "bin"];
/// Files that may declare modules beside them.
const ROOTS: [&str; 4] = ["lib.rs", "main.rs", "mod.rs", "build.rs"];

/// Every source that no file declares.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for place in ["crates", "examples", "xtask"] {
        visit(&root.join(place), &mut |path| {
            if !is_declared(path) {
                let path = path.strip_prefix(root).unwrap_or(path).display();
                faults.push(format!(
                    "{path}: no file declares it as a module: add `mod` to the file above it, or remove it"
                ));
            }
        });
    }
    faults
}

fn visit(dir: &Path, each: &mut impl FnMut(&Path)) {
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("target") {
            visit(&path, each);
        } else if path.extension().is_some_and(|end| end == "rs") {
            each(&path);
        }
    }
}

fn is_declared(path: &Path) -> bool {
    let (Some(dir), Some(stem)) = (path.parent(), path.file_stem()) else { return true };
    let is = |names: &[&str], of: &Path| of.file_name().is_some_and(|name| names.iter().any(|known| name == *known));
    if is_program(path, dir) {
        return true;
    }
    // `a/mod.rs` is the module `a` of the directory above.
    let (dir, stem) = match stem.to_string_lossy() {
        stem if stem == "mod" => (dir.parent().unwrap_or(dir), dir.file_name().unwrap_or_default().to_string_lossy()),
        stem => (dir, stem),
    };
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let declares = |from: &PathBuf| {
        let text = fs::read_to_string(from).unwrap_or_default();
        let mut code = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        code.any(|line| {
            let is_mod = line
                .strip_suffix(';')
                .and_then(|line| line.strip_suffix(&*stem))
                .is_some_and(|before| before == "mod " || before.starts_with("pub") && before.ends_with(" mod "));
            is_mod || line.starts_with("#[path") && line.ends_with(&format!("{file}\"]"))
        })
    };
    let siblings = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let roots = siblings.filter(|from| from != path && (is(&ROOTS, from) || is(&OF_PROGRAMS, dir)));
    roots.chain([above(dir)]).any(|from| declares(&from))
}

/// Whether cargo builds this file as a program or library of its own.
fn is_program(path: &Path, dir: &Path) -> bool {
    let is = |names: &[&str], of: &Path| of.file_name().is_some_and(|name| names.iter().any(|known| name == *known));
    let is_part = dir.join("main.rs").exists() || dir.join("mod.rs").exists() || above(dir).exists();
    let is_alone = is(&OF_PROGRAMS, dir) && !is_part;
    let is_of_crate = is(&["lib.rs", "main.rs"], path) && dir.ends_with("src") || is(&["build.rs"], path);
    is_alone || is_of_crate || is_named(path)
}

/// Whether the manifest above a file names it, or the file is where cargo looks by itself:
/// `tests/NAME/main.rs`.
fn is_named(path: &Path) -> bool {
    let Some(root) = path.ancestors().skip(1).find(|dir| dir.join("Cargo.toml").exists()) else { return true };
    let below = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
    let by_itself = match &parts[..] {
        [top, _, main] => OF_PROGRAMS.contains(&&**top) && main == "main.rs",
        [src, bin, _, main] => src == "src" && bin == "bin" && main == "main.rs",
        _ => false,
    };
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    by_itself || manifest.contains(&format!("path = \"{}\"", below.display()))
}

/// The file of the module whose parts are in this directory.
fn above(dir: &Path) -> PathBuf {
    dir.with_extension("rs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::root_dir;

    #[test]
    fn every_source_is_declared() {
        let faults = faults(&root_dir());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn undeclared_test_is_found() {
        let dir = crate::run::target_dir().join("undeclared");
        let _ = fs::remove_dir_all(&dir);
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().expect("below")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("crates/a/src/lib.rs", "mod b;\n");
        write("crates/a/src/b.rs", "mod c;\n");
        write("crates/a/src/b/c.rs", "");
        write("crates/a/tests/alone.rs", "");
        write("crates/a/tests/many/main.rs", "mod one;\n");
        write("crates/a/tests/many/one.rs", "");
        write("crates/a/Cargo.toml", "[[bin]]\nname = \"d\"\npath = \"src/d/main.rs\"\n");
        write("crates/a/src/d/main.rs", "mod e;\n");
        write("crates/a/src/d/e.rs", "");
        write("crates/a/src/f/mod.rs", "");
        write("crates/a/src/lib.rs", "mod b;\npub(crate) mod f;\n");
        assert!(faults(&dir).is_empty(), "{:?}", faults(&dir));
        write("crates/a/tests/many/two.rs", "");
        // Files that only a comment or a text names, and modules in directories.
        write("crates/a/src/b.rs", "mod c;\n// mod in_comment;\nconst TEXT: &str = \"in_text.rs\\\"]\";\n");
        write("crates/a/src/b/in_comment.rs", "");
        write("crates/a/src/b/in_text.rs", "");
        write("crates/a/src/foo/mod.rs", "");
        write("crates/a/src/bar/main.rs", "");
        let mut found = faults(&dir);
        found.sort();
        fs::remove_dir_all(&dir).expect("removed");
        let names: Vec<_> = found.iter().map(|fault| fault.split(": ").next().expect("a path")).collect();
        let wanted =
            ["src/b/in_comment.rs", "src/b/in_text.rs", "src/bar/main.rs", "src/foo/mod.rs", "tests/many/two.rs"];
        assert_eq!(names, wanted.map(|path| format!("crates/a/{path}")), "{found:?}");
    }
}
