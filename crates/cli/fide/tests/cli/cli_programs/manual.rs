// SPDX-License-Identifier: Apache-2.0
//! Manual pages and completion scripts.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use super::{fide, said, text};

/// All subcommands and their subcommands, as `--help` lists them.
fn subcommands(of: &[String]) -> Vec<Vec<String>> {
    let mut words: Vec<&str> = of.iter().map(String::as_str).collect();
    words.push("--help");
    let output = fide(&words).output().expect("run");
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    let help = text(&output.stdout);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // A continuation line of a description is indented further.
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let own = names.map(|name| [of, &[name.to_owned()]].concat());
    own.flat_map(|words| [vec![words.clone()], subcommands(&words)].concat()).collect()
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("man1");
    let output = fide(&["man", "--out", pages.to_str().expect("UTF-8")]).output().expect("run");
    assert!(output.status.success(), "{}", said(&output));
    let all = subcommands(&[]);
    for known in [&["run"][..], &["controller", "issue"], &["jitter", "sweep"], &["man"]] {
        assert!(all.iter().any(|words| words == known), "{all:?}");
    }
    for words in all.iter().chain([&Vec::new()]) {
        let name = [&["fide".to_owned()], &words[..]].concat().join("-");
        let page =
            fs::read_to_string(pages.join(format!("{name}.1"))).unwrap_or_else(|error| panic!("{name}: {error}"));
        let title = page.lines().find(|line| line.starts_with(".TH")).unwrap_or_default();
        assert!(title.contains(&name), "{name}: {title}");
    }
    let page = fs::read_to_string(pages.join("fide-run.1")).expect("read");
    assert!(page.contains("fence") && page.contains("Exit codes"), "{page}");
}

/// Lets a shell parse a script without running it.
fn parse(shell: &[&str], script: &Path) {
    let output = Command::new(shell[0]).args(&shell[1..]).arg(script).output().expect("run");
    assert!(output.status.success() && output.stderr.is_empty(), "{shell:?}: {}", said(&output));
}

#[test]
fn completion_scripts_parse_and_complete() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = |shell: &str| {
        let output = fide(&["completions", shell]).output().expect("run");
        assert!(output.status.success(), "{shell}: {}", said(&output));
        let file = dir.path().join(shell);
        fs::write(&file, &output.stdout).expect("written");
        file
    };
    let bash = script("bash");
    parse(&["bash", "-n"], &bash);
    for (shell, words) in [("zsh", &["zsh", "-n"][..]), ("fish", &["fish", "--no-execute"])] {
        let file = script(shell);
        if Command::new(shell).arg("--version").output().is_ok() {
            parse(words, &file);
        }
    }
    let ask = "source \"$0\"; COMP_WORDS=(fide st); COMP_CWORD=1; _fide fide st fide; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", ask]).arg(&bash).output().expect("run");
    assert_eq!(text(&output.stdout).trim(), "status", "{}", said(&output));

    let output = fide(&["completions", "tcsh"]).output().expect("run");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn manual_page_is_good_roff() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = fide(&["man", "--out", dir.path().to_str().expect("UTF-8")]).output().expect("run");
    assert!(output.status.success(), "{}", said(&output));
    let words = ["-man", "-ww", "-z", "-Tutf8", "-k"];
    for entry in fs::read_dir(dir.path()).expect("read") {
        let page = fs::read(entry.expect("read").path()).expect("read");
        let groff = Command::new("groff").args(words).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let Ok(mut groff) = groff else {
            println!("not tested: no groff here");
            return;
        };
        groff.stdin.take().expect("piped").write_all(&page).expect("written");
        let output = groff.wait_with_output().expect("ended");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    }
}
