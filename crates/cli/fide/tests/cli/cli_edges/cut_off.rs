// SPDX-License-Identifier: Apache-2.0
//! A file that cannot be written to its end leaves the older one as it was.

use std::{fs, path::PathBuf, process::Command};

use super::common::{Place, program, refused, said};

/// `fide` that may write files of 1 KiB, as a disk that is nearly full.
fn short_of_room(place: &Place, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 2; exec \"$0\" \"$@\""]).arg(program()).args(words);
    command.current_dir(place.dir.path());
    command
}

#[test]
fn older_page_or_drawing_survives_a_disk_without_room() {
    let place = Place::new();
    let examples = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples"));
    let example = |name: &str| examples.join(name).to_str().expect("UTF-8").to_owned();
    let (log, plan) = (example("jitter/disturbed.fjl"), example("fat-tree-k8.toml"));
    for (words, file) in [
        (&["jitter", "report", &log, "--html", "page.html"][..], "page.html"),
        (&["plan", &plan, "--svg", "plan.svg"], "plan.svg"),
    ] {
        let (code, out, err) = said(&mut place.fide(words));
        assert_eq!(code, Some(0), "{out}{err}");
        let older = fs::read(place.path(file)).expect("written");
        assert!(older.len() > 1024);
        let files = || fs::read_dir(place.dir.path()).expect("listed").count();
        let before = files();
        let (code, _, err) = said(&mut short_of_room(&place, words));
        assert!(code == Some(1) && err.contains(&format!("fide: {file}: File too large")), "{code:?} {err}");
        assert!(fs::read(place.path(file)).expect("there") == older, "{file} is as it was");
        assert_eq!(files(), before, "nothing is left behind");
        assert_eq!(said(&mut place.fide(words)).0, Some(0), "an older one is replaced");
    }
    let words = ["jitter", "report", &log, "--html", "none/page.html"];
    refused(&mut place.fide(&words), 2, &["fide: none/page.html: No such file or directory (os error 2)\n"]);
}
