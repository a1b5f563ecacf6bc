// SPDX-License-Identifier: Apache-2.0
//! Sources that no file declares as a module: the compiler passes over them without a word, and over the tests in them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Directories whose files are programs of their own.
const OF_PROGRAMS: [&str; 4] = ["tests", "benches", "examples", "bin"];
/// Files that nobody has to declare.
const ROOTS: [&str; 4] = ["lib.rs", "main.rs", "mod.rs", "build.rs"];

/// Every source that no file declares.
pub(crate) fn faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for place in ["crates", "examples", "xtask"] {
        visit(&root.join(place), &mut |path| {
            if !is_declared(path) {
                let path = path.strip_prefix(root).unwrap_or(path).display();
                faults.push(format!("{path}: no file declares it: write `mod` into the one above it, or remove it"));
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
    if is(&ROOTS, path)
        || is(&OF_PROGRAMS, dir)
            && !dir.join("main.rs").exists()
            && !dir.join("mod.rs").exists()
            && !above(dir).exists()
    {
        return true;
    }
    let stem = stem.to_string_lossy();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let declares = |from: &PathBuf| {
        fs::read_to_string(from).is_ok_and(|text| {
            text.contains(&format!("mod {stem};"))
                || text.contains(&format!("/{file}\"]"))
                || text.contains(&format!("\"{file}\"]"))
        })
    };
    let siblings = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let roots = siblings.filter(|from| from != path && (is(&ROOTS, from) || is(&OF_PROGRAMS, dir)));
    roots.chain([above(dir)]).any(|from| declares(&from))
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
        assert!(faults(&dir).is_empty(), "{:?}", faults(&dir));
        write("crates/a/tests/many/two.rs", "");
        let found = faults(&dir);
        fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/a/tests/many/two.rs: no file declares it"), "{found:?}");
    }
}
