// SPDX-License-Identifier: Apache-2.0
//! Checks that every source file begins with its licence and stays short enough to read.

use std::fs;
use std::path::{Path, PathBuf};

const HEADER: &str = "SPDX-License-Identifier: Apache-2.0";
/// The header of code that is loaded into the kernel.
const BPF_HEADER: &str = "SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause";
/// A longer file should be split in two.
const MAX_LINES: usize = 850;
/// The header stands within this many lines: it may follow a `#!` line.
const HEADER_LINES: usize = 2;
const EXTENSIONS: [&str; 11] = ["rs", "c", "h", "go", "sh", "py", "pyi", "js", "java", "tla", "cfg"];
/// Limits on the directory levels and the files that are checked.
const MAX_DEPTH: usize = 12;
const MAX_FILES: usize = 20_000;

pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut files = vec![root.join("Makefile"), root.join(".ci/run")];
    for dir in ["crates", "baselines", "examples", "spec", "xtask"] {
        collect(&root.join(dir), MAX_DEPTH, &mut files);
    }
    let mut faults = Vec::new();
    for path in files.iter().filter(|p| p.is_file()) {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let shown = path.strip_prefix(root).unwrap_or(path).display().to_string();
        faults.extend(fault(&shown, &text));
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("{} faults\n  {}", faults.len(), faults.join("\n  ")))
}

fn fault(path: &str, text: &str) -> Option<String> {
    let in_kernel = path.ends_with(".bpf.c") || (path.starts_with("crates/platform/bpf/") && path.ends_with(".h"));
    let wanted = if in_kernel { BPF_HEADER } else { HEADER };
    if !text.lines().take(HEADER_LINES).any(|l| l.contains(wanted)) {
        return Some(format!("{path}: begin it with a comment `{wanted}`"));
    }
    let lines = text.lines().count();
    (lines > MAX_LINES).then(|| format!("{path}: {lines} lines; split it, the limit is {MAX_LINES}"))
}

fn collect(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|e| e.path()) {
        let name = path.file_name().map_or_else(Default::default, |n| n.to_string_lossy());
        if path.is_dir() && depth > 0 && name != "target" && !name.starts_with('.') {
            collect(&path, depth - 1, files);
        } else if path.extension().is_some_and(|e| EXTENSIONS.iter().any(|x| e == *x)) && files.len() < MAX_FILES {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_has_a_hint() {
        let ok = format!("// {HEADER}\nfn main() {{}}\n");
        assert_eq!(fault("crates/x/src/lib.rs", &ok), None);
        assert_eq!(fault("baselines/run.sh", &format!("#!/bin/sh\n# {HEADER}\n")), None);
        assert!(fault("crates/x/src/lib.rs", "fn main() {}").unwrap().contains(HEADER));
        assert!(fault("crates/platform/bpf/src/a.bpf.c", &ok).unwrap().contains(BPF_HEADER));
        let long = ok + &"\n".repeat(MAX_LINES);
        assert!(fault("crates/x/src/lib.rs", &long).unwrap().contains("split"));
    }
}
