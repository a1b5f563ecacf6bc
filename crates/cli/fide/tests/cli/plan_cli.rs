// SPDX-License-Identifier: Apache-2.0
//! The real `fide plan`: its output, its drawings, and its messages about wrong files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

const PAIR: &str = r#"
[topology]
generator = "leaf_spine"
groups = 1
homing = 2
spines = 0
hosts = 3

[[request]]
name = "heartbeat"
sender = "h1"
receivers = ["h2", "h3"]
size_max_bytes = 1418
period_min_us = 100
"#;

/// Runs the program in a temporary directory.
fn plan(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fide"));
    let output = command.current_dir(dir).arg("plan").args(arguments).output().expect("fide runs");
    assert!(!stderr(&output).contains("panicked"), "{output:?}");
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A directory with one file.
fn with(text: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("plan.toml"), text).expect("written");
    dir
}

fn example(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples").join(name);
    path.canonicalize().expect("it is there").to_string_lossy().into_owned()
}

/// Reads an SVG; returns how many elements of a class it has.
fn drawn(path: &Path, class: &str) -> usize {
    let svg = fs::read_to_string(path).expect("written");
    let document = roxmltree::Document::parse(&svg).expect("XML");
    document.descendants().filter(|node| node.attribute("class") == Some(class)).count()
}

#[test]
fn the_examples_are_planned_and_drawn() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, requests, svg) in [
        ("fat-tree-k8.toml", 6, "fat-tree-k8.svg"),
        ("plan/leaf-spine.toml", 3, "leaf-spine.svg"),
        ("plan/pair.toml", 2, "pair.svg"),
    ] {
        let output = plan(dir.path(), &[&example(name), "--svg", "--odds"]);
        assert_eq!((code(&output), stderr(&output)), (Some(0), format!("written to {svg}\n")));
        let text = stdout(&output);
        for words in ["request", "timeout", "fullest of", "all trees of a request fail together", " years"] {
            assert!(text.contains(words), "{name}: {words} is not in {text}");
        }
        assert!(drawn(&dir.path().join(svg), "t0") > requests, "{name}");
        let output = plan(dir.path(), &[&example(name), "--json"]);
        let json = json(&output);
        assert_eq!((code(&output), &json["format"], &json["version"]), (Some(0), &"fide-plan".into(), &2.into()));
        assert_eq!(json["requests"].as_array().map(Vec::len), Some(requests), "{name}");
        assert!(json["refused"].as_array().is_some_and(Vec::is_empty), "{name}");
    }
    let generator = |name: &str| json(&plan(dir.path(), &[&example(name), "--json"]))["topology"]["generator"].clone();
    assert_eq!(generator("fat-tree-k8.toml"), serde_json::json!({ "name": "fat_tree", "k": 8, "homing": 2 }));
    assert_eq!(generator("plan/pair.toml"), Value::Null);
}

#[test]
fn long_help_states_the_packet_model_of_the_json() {
    let dir = with(PAIR);
    let help = stdout(&plan(dir.path(), &["--help"]));
    let json = json(&plan(dir.path(), &["plan.toml", "--json"]));
    let model = &json["packet_model"];
    let bytes = |key: &str| model[key].as_u64().expect(key);
    for words in [
        format!("{} bytes on the wire", bytes("packet_overhead_bytes")),
        format!("at least {}.", bytes("packet_wire_min_bytes")),
        "Latency begins".to_owned(),
    ] {
        assert!(help.contains(&words), "{words} is not in {help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    assert!(!stdout(&plan(dir.path(), &["-h"])).contains("Latency begins"), "only the long help");
    assert_eq!(json["cables"].as_array().map(Vec::len), json["topology"]["cables"].as_u64().map(|n| n as usize));
}

#[test]
fn refused_request_is_printed_and_fails() {
    let dir = with(&format!(
        "{PAIR}[[request]]\nname = \"too much\"\nsender = \"h2\"\nreceivers = [\"h1\"]\nsize_max_bytes = 8000\n\
         period_min_us = 1\n[[request]]\nname = \"no\\u001b[31mbody\"\nsender = \"h2\"\nreceivers = [\"h7\"]\n\
         size_max_bytes = 100\nperiod_min_us = 100\n"
    ));
    let output = plan(dir.path(), &["plan.toml", "--svg"]);
    assert_eq!(code(&output), Some(1));
    let text = stdout(&output);
    for words in ["refused: 2 requests", "too much: link h2>", "are allowed", "there is no host \"h7\""] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    assert!(!text.contains('\u{1b}'), "what a file says does not reach a terminal as it is: {text}");
    assert!(fs::read_to_string(dir.path().join("plan.svg")).expect("drawn all the same").contains("refused: too much"));
    let output = plan(dir.path(), &["plan.toml", "--json"]);
    assert_eq!((code(&output), json(&output)["refused"].as_array().map(Vec::len)), (Some(1), Some(2)));
    // The exit code covers all requests, whichever are shown.
    let output = plan(dir.path(), &["plan.toml", "--only", "heartbeat"]);
    assert_eq!((code(&output), stdout(&output).contains("too much")), (Some(1), false));
}

#[test]
fn only_some_are_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = example("fat-tree-k8.toml");
    let output = plan(dir.path(), &[&file, "--svg", "one.svg", "--only", "replication", "rack heartbeat"]);
    assert_eq!((code(&output), stderr(&output)), (Some(0), "written to one.svg\n".to_owned()));
    let text = stdout(&output);
    assert!(text.contains("replication") && text.contains("rack heartbeat") && !text.contains("slow"), "{text}");
    assert_eq!(drawn(&dir.path().join("one.svg"), "from"), 2 + 1, "senders, and the legend");
    let output = plan(dir.path(), &[&file, "--only", "nobody"]);
    assert_eq!(code(&output), Some(2));
    assert!(stderr(&output).contains("--only nobody: its requests are heartbeat h-0-0-0, "), "{output:?}");
}

#[test]
fn nothing_else_is_overwritten() {
    let dir = with(PAIR);
    let svg = dir.path().join("plan.svg");
    fs::write(&svg, "<svg>somebody's</svg>").expect("written");
    let output = plan(dir.path(), &["plan.toml", "--svg"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (Some(2), ""));
    assert!(stderr(&output).contains("plan.svg: exists, and is not a drawing of a plan; --force"), "{output:?}");
    assert_eq!(fs::read_to_string(&svg).expect("there"), "<svg>somebody's</svg>");
    for arguments in [&["plan.toml", "--svg", "--force"][..], &["plan.toml", "--svg"]] {
        assert_eq!(code(&plan(dir.path(), arguments)), Some(0), "{arguments:?}");
    }
    assert_eq!(drawn(&svg, "t1"), 3 + 1, "and the legend");
    for (out, words) in [("plan.toml", "is not a drawing"), (".", "directory"), ("nowhere/x.svg", "No such file")] {
        let output = plan(dir.path(), &["plan.toml", "--svg", out]);
        assert_eq!(code(&output), Some(2), "{out}");
        assert!(stderr(&output).contains(words), "{out}: {output:?}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("plan.toml")).expect("there"), PAIR);
}

#[test]
fn the_published_odds_come_out_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = plan(dir.path(), &["--odds"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    for words in
        ["22.6 years", "22.7 years", "11.3 years", "6.01 years", "0.0443", "320 s", "2.31 days", "rounded", "[2]"]
    {
        assert!(text.contains(words), "{words} is not in {text}");
    }
    let output = plan(dir.path(), &["--odds", "--json"]);
    let json = json(&output);
    assert_eq!((&json["format"], &json["version"]), (&"fide-plan-odds".into(), &1.into()));
    for height in json["heights"].as_array().expect("three") {
        let [years, published] =
            ["years_between", "published_years_between"].map(|key| height[key].as_f64().expect(key));
        assert!((years / published - 1.0).abs() < 0.01, "{height}");
    }
    assert!((json["tcp"]["soonest_s"].as_f64().expect("soonest") - 320.0).abs() < 1e-6, "{json}");
}

#[test]
fn a_file_has_rates_of_its_own() {
    let odds = |rates: &str| {
        let dir = with(&format!("{PAIR}{rates}"));
        json(&plan(dir.path(), &["plan.toml", "--json", "--odds"]))["requests"][0]["odds"].clone()
    };
    // Three trunk cables in each tree.
    let p = |odds: &Value| odds["probability_per_year"].as_f64().expect("a number");
    assert!((p(&odds("")) - 3.0 * 0.054 * 0.41).abs() < 1e-12);
    assert!((p(&odds("[rates]\ntrunk_per_year = 0.01\ngroup = 0.5\n")) - 3.0 * 0.01 * 0.5).abs() < 1e-12);
    assert_eq!(
        odds("[rates]\ngroup = 0.0\n"),
        serde_json::json!({ "probability_per_year": 0.0, "years_between": null })
    );
    let dir = with(&format!("{PAIR}[rates]\ngroup = 0.0\n"));
    assert!(stdout(&plan(dir.path(), &["plan.toml", "--odds"])).contains("never"));
}

#[test]
fn file_without_a_plan_is_refused() {
    let cable =
        "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[switch]]\nname = \"s\"\n[[cable]]\na = \"a\"\nb = \"s\"\n";
    let files: [(&str, String, &[&str]); 17] = [
        ("a terminal's commands", "[topology]\nk = \u{1b}[31m\n".into(), &["line 2, column"]),
        ("not TOML", "topology {".into(), &["line 1, column"]),
        (
            "a key nobody knows",
            format!("{PAIR}[limits]\nbandwith_share = 0.5\n"),
            &["line ", "bandwith_share", "bandwidth_share"],
        ),
        ("a word for a number", "[topology]\ngenerator = \"fat_tree\"\nk = \"8\"\n".into(), &["line 3, column", "8"]),
        ("nothing", String::new(), &["there are no hosts"]),
        ("no such generator", "[topology]\ngenerator = \"torus\"\n".into(), &["torus", "leaf_spine"]),
        ("half a generator", "[topology]\ngenerator = \"fat_tree\"\n".into(), &["needs k"]),
        ("an odd fat tree", "[topology]\ngenerator = \"fat_tree\"\nk = 7\n".into(), &["k is 7", "even, 2 to 64"]),
        ("no bandwidth", format!("[cables]\nbandwidth_bps = 0\n{PAIR}"), &["bandwidth_bps is 0; it must be 1000 to"]),
        ("an unknown end", format!("{cable}[[cable]]\na = \"b\"\nb = \"t\"\n"), &["cable 2", "no node \"t\""]),
        ("one name twice", format!("{cable}[[host]]\nname = \"s\"\n"), &["two nodes are called \"s\""]),
        ("a loop", format!("{cable}[[cable]]\na = \"s\"\nb = \"s\"\n"), &["both ends are \"s\""]),
        ("a share above 1", format!("{PAIR}[limits]\nqueue_share = 1.5\n"), &["queue_share is 1.5"]),
        ("a share that is no number", format!("{PAIR}[limits]\nqueue_share = nan\n"), &["queue_share is NaN"]),
        ("a cable that is not there", format!("{PAIR}[limits]\nexclude = [\"h1--h2\"]\n"), &["no cable \"h1--h2\""]),
        ("a rate above 1", format!("{PAIR}[rates]\ngroup = 41.0\n"), &["group is 41", "a probability"]),
        ("one request twice", format!("{PAIR}{}", &PAIR[PAIR.find("[[").expect("a request")..]), &["two requests"]),
    ];
    for (what, text, words) in files {
        let dir = with(&text);
        let output = plan(dir.path(), &["plan.toml", "--svg"]);
        let said = stderr(&output);
        assert_eq!((code(&output), stdout(&output).as_str()), (Some(2), ""), "{what}: {said}");
        assert!(said.starts_with("fide: plan.toml: ") && said.len() < 700, "{what}: {said}");
        assert!(!said.contains('\u{1b}'), "{what}: {said:?}");
        assert!(words.iter().all(|words| said.contains(words)), "{what}: {said}");
        assert!(!dir.path().join("plan.svg").exists(), "{what}");
    }
}

#[test]
fn impossible_request_is_refused_with_the_reason() {
    let island =
        "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[switch]]\nname = \"s\"\n[[cable]]\na = \"a\"\nb = \"s\"\n";
    let ask = |to: &str, more: &str| {
        format!(
            "[[request]]\nname = \"r\"\nsender = \"a\"\nreceivers = [{to}]\nsize_max_bytes = 100\nperiod_min_us = 100\n{more}\n"
        )
    };
    let single = format!("{island}[[cable]]\na = \"b\"\nb = \"s\"\n");
    for (text, words) in [
        (format!("{island}{}", ask("\"b\"", "redundancy = 1")), "b cannot be reached from a"),
        (format!("{single}{}", ask("\"b\"", "")), "1 of the 2 trees are possible"),
        (format!("{single}{}", ask("\"b\"", "redundancy = 9")), "redundancy is 9; it must be 1 to 3"),
        (format!("{single}{}", ask("\"c\"", "")), "there is no host \"c\""),
        (format!("{single}{}", ask("\"s\"", "")), "\"s\" is a switch"),
        (format!("{single}{}", ask("", "")), "0 receivers"),
        (format!("{single}{}", ask("\"b\"", "redundancy = 1\nlatency_max_ns = 10")), "10 are asked for"),
    ] {
        let dir = with(&text);
        let output = plan(dir.path(), &["plan.toml"]);
        let said = stdout(&output);
        assert_eq!((code(&output), stderr(&output).as_str()), (Some(1), ""), "{said}");
        assert!(said.contains("no request was granted") && said.contains("  r: ") && said.contains(words), "{said}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("bytes.toml"), b"[topology]\n\xff\xfe").expect("written");
    let refused: [(&[&str], &[&str]); 7] = [
        (&["nowhere.toml"], &["nowhere.toml: No such file"]),
        (&["."], &[".: ", "directory"]),
        (&["bytes.toml"], &["no text (UTF-8) from byte 11 on"]),
        (&[], &["<FILE>", "Usage"]),
        (&["--json"], &["<FILE>"]),
        (&["--odds", "--svg"], &["<FILE>"]),
        (&["x.toml", "--force"], &["--svg"]),
    ];
    for (arguments, words) in refused {
        let output = plan(dir.path(), arguments);
        let said = stderr(&output);
        assert_eq!((code(&output), stdout(&output).as_str()), (Some(2), ""), "{arguments:?}: {said}");
        assert!(words.iter().all(|words| said.contains(words)), "{arguments:?}: {said}");
    }
}
