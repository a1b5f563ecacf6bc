// SPDX-License-Identifier: Apache-2.0
//! The demos, run.

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
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let gaps = told["gaps"].as_array().unwrap();
    assert_eq!(gaps.len(), 2, "{told}");
    for gap in gaps {
        for stage in ["detect", "level", "lead", "decide"] {
            assert!(gap["stages"][format!("{stage}_us")].is_number(), "{gap}");
        }
    }
    assert!(told["counter"].as_u64().unwrap() > 0 && told["counter"] == told["answered"], "{told}");
    let chart = std::fs::read_to_string(dir.path().join("agreement.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("h2 killed"), "{chart:.200}");
}
