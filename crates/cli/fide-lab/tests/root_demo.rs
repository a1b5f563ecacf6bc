// SPDX-License-Identifier: Apache-2.0
//! Runs the demos.

use std::process::Command;

use fide_testbed::supported;

#[test]
fn root_the_demo_kills_leader_after_leader_and_loses_nothing() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let words = ["demo", "agreement", "--json", "--hosts", "3", "--between", "200", "--out"];
    let output = Command::new(env!("CARGO_BIN_EXE_fide-lab"))
        .args(words)
        .arg(dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let gaps = json["gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 2, "{json}");
    for gap in gaps {
        for stage in ["detect", "level", "lead", "decide"] {
            assert!(gap["stages"][format!("{stage}_us")].is_number(), "{gap}");
        }
    }
    assert!(json["counter"].as_u64().unwrap() > 0 && json["counter"] == json["answered"], "{json}");
    let chart = std::fs::read_to_string(dir.path().join("agreement.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("h2 killed"), "{chart:.200}");
}

/// The demo goes on even if the reader of its output goes away: the results have a page of their own.
#[test]
fn root_demo_says_of_each_part_how_long_it_took() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    let words = ["demo", "--trials", "2", "--large-trials", "0", "--silences", "2", "--stretch", "1", "--out"];
    let mut demo = Command::new(env!("CARGO_BIN_EXE_fide-lab"));
    demo.args(words).arg(dir.path()).stdout(unread).stderr(std::process::Stdio::piped());
    let output = demo.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    for part in 1..=3 {
        assert!(
            said.contains(&format!("{part} of 3. ")) && said.contains(&format!("part {part} of 3 took ")),
            "{said}"
        );
    }
    // Whether all expectations hold depends on the machine.
    assert!(matches!(output.status.code(), Some(0 | 1)) && !said.contains("panicked"), "{}: {said}", output.status);
    assert!(std::fs::read_to_string(dir.path().join("demo.html")).unwrap().contains("parts_s"));
}
