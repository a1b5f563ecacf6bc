// SPDX-License-Identifier: Apache-2.0
//! Where the dynamic linker finds the libraries of a program: as it looks for them (ld.so(8)), without running anything.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    env, fs,
    path::{Path, PathBuf},
};

use super::elf::Elf;

/// Libraries of one program that are looked at.
pub(super) const LIBRARIES_MAX: usize = 512;
/// Bytes of the linker's cache that are read at most.
const CACHE_BYTES_MAX: usize = 16 << 20;
const CACHE: &str = "/etc/ld.so.cache";
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Bytes of the cache's head, and of an entry.
const HEAD_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// Where it looks last; the last two are of Debian.
const LAST: [&str; 6] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu"];

/// A library that was found, or not.
pub(super) struct Library {
    pub(super) path: PathBuf,
    pub(super) elf: Elf,
}

/// All libraries that a program needs, and the names of those that are not found.
pub(super) fn all(program: &Path, elf: &Elf) -> (Vec<Library>, Vec<String>) {
    let cache = fs::read(CACHE).ok().filter(|bytes| bytes.len() <= CACHE_BYTES_MAX);
    let cache = cache.map(|bytes| cached(&bytes)).unwrap_or_default();
    let by_environment = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let by_environment: Vec<PathBuf> =
        by_environment.split([':', ';']).filter(|dir| !dir.is_empty()).map(PathBuf::from).collect();
    let of_program = directories(program, elf);
    let mut open: VecDeque<(String, Vec<PathBuf>)> =
        elf.needed.iter().map(|name| (name.clone(), of_program.clone())).collect();
    let (mut found, mut missing, mut known) = (Vec::new(), Vec::new(), HashSet::new());
    while let Some((name, directories)) = open.pop_front() {
        if known.len() >= LIBRARIES_MAX || !known.insert(name.clone()) {
            continue;
        }
        let by_cache = cache.get(&name).into_iter().flatten().cloned();
        let places = directories.iter().chain(&by_environment).map(|dir| dir.join(&name));
        let last = LAST.iter().map(|dir| Path::new(dir).join(&name));
        // A name with a slash is a path.
        let places: Vec<PathBuf> =
            if name.contains('/') { vec![name.clone().into()] } else { places.chain(by_cache).chain(last).collect() };
        let ours = places.into_iter().find_map(|path| match Elf::read(&path) {
            Ok(Some(elf)) if elf.is_ours => Some(Library { path, elf }),
            _ => None,
        });
        let Some(library) = ours else {
            missing.push(name);
            continue;
        };
        // RPATH holds for the libraries of libraries, too.
        let mut theirs = self::directories(&library.path, &library.elf);
        theirs.extend(of_program.iter().cloned());
        open.extend(library.elf.needed.iter().map(|name| (name.clone(), theirs.clone())));
        found.push(library);
    }
    (found, missing)
}

/// Its RPATH and RUNPATH, with `$ORIGIN` replaced.
fn directories(path: &Path, elf: &Elf) -> Vec<PathBuf> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let origin = real.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
    let replaced = |dir: &String| dir.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
    elf.paths.iter().filter(|dir| !dir.is_empty()).map(replaced).map(PathBuf::from).collect()
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

/// Paths by name, of the linker's cache. What is broken in it is left out.
fn cached(bytes: &[u8]) -> HashMap<String, Vec<PathBuf>> {
    let mut all: HashMap<String, Vec<PathBuf>> = HashMap::new();
    // An older format may stand before this one.
    let Some(begin) = bytes.windows(CACHE_MAGIC.len()).position(|part| part == CACHE_MAGIC) else { return all };
    let bytes = &bytes[begin..];
    let string = |at: usize| {
        let text = bytes.get(at..)?;
        let end = text.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&text[..end]).into_owned())
    };
    let entries = number(bytes, CACHE_MAGIC.len()).unwrap_or(0).min(bytes.len() / ENTRY_BYTES);
    for at in (0..entries).map(|entry| HEAD_BYTES + entry * ENTRY_BYTES) {
        let name = number(bytes, at + 4).and_then(string);
        let path = number(bytes, at + 8).and_then(string);
        if let (Some(name), Some(path)) = (name, path) {
            all.entry(name).or_default().push(path.into());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of these names and paths.
    fn cache(of: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = [CACHE_MAGIC, &u32::try_from(of.len()).unwrap().to_le_bytes(), &[0; 24]].concat();
        let (mut strings, begin) = (Vec::new(), HEAD_BYTES + of.len() * ENTRY_BYTES);
        for (name, path) in of {
            let mut add = |text: &str| {
                let at = u32::try_from(begin + strings.len()).unwrap();
                strings.extend_from_slice(text.as_bytes());
                strings.push(0);
                at.to_le_bytes()
            };
            let (name, path) = (add(name), add(path));
            bytes.extend([&[0; 4][..], &name, &path, &[0; 12]].concat());
        }
        [bytes, strings].concat()
    }

    #[test]
    fn cache_of_the_linker_is_read_and_a_broken_one_does_no_harm() {
        let bytes = cache(&[("liba.so.1", "/lib/liba.so.1"), ("libb.so", "/x/libb.so"), ("liba.so.1", "/y/liba.so.1")]);
        let read = cached(&[b"something before it", &bytes[..]].concat());
        assert_eq!(read["liba.so.1"], [PathBuf::from("/lib/liba.so.1"), "/y/liba.so.1".into()]);
        assert_eq!(read["libb.so"], [PathBuf::from("/x/libb.so")]);
        for len in 0..bytes.len() {
            let _ = cached(&bytes[..len]);
        }
        let mut many = bytes;
        many[CACHE_MAGIC.len()..][..4].fill(0xff);
        let _ = cached(&many);
    }

    #[test]
    fn origin_is_where_the_file_lies() {
        let elf = Elf { paths: vec!["$ORIGIN/../lib".into(), "${ORIGIN}".into(), String::new()], ..Elf::default() };
        let found = directories(Path::new("/nowhere/bin/p"), &elf);
        assert_eq!(found, [PathBuf::from("/nowhere/bin/../lib"), "/nowhere/bin".into()]);
    }
}
