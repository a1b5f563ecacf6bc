// SPDX-License-Identifier: Apache-2.0
//! `fide pace bench` and `fide pace top` over a link whose delay is known.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
    time::Duration,
};

use fide_link_model::LinkSpec;
use fide_pace_socket::new_secret;
use fide_testbed::{Host, Lines, Spec, Testbed, emulator::Emulator, retry_until, supported};
use serde_json::Value;

const FIDE: &str = env!("CARGO_BIN_EXE_fide");
/// For what takes seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// Of each way.
const DELAY: Duration = Duration::from_millis(15);

/// Ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pace(host: &Host, words: &[&str]) -> Process {
    let mut command = host.command(FIDE);
    command.arg("pace").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    Process(command.spawn().unwrap())
}

#[test]
fn root_bench_and_top_agree_with_the_link() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    fs::write(&key, new_secret().to_text()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    let key = key.to_str().unwrap();
    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).unwrap();
    let (here, there) = (testbed.host(1), testbed.host(2));
    let way = LinkSpec::of(DELAY.as_nanos() as u64);
    let _link = Emulator::between(here, there, [way.with_rate(1_600_000, 18_000), way], 7).unwrap();
    let at = format!("{}:7000", Emulator::address(1));
    let mut accepts = pace(there, &["bench", "--accept", &at, "--key", key]);
    let mut said = Lines::of(accepts.0.stderr.take().unwrap());
    said.find_words("waiting");
    // A busy machine stands still for a while now and then; nothing here is dropped for that.
    let mut sends = pace(here, &["bench", &at, "--key", key, "--size", "921", "--seconds", "60", "--deadline", "10s"]);
    let mut out = Lines::of(sends.0.stdout.take().unwrap());
    // Of the part that has just ended.
    out.find_words("delivery p50");
    out.find_words("delivery p50");
    let top = |of: &Process, words: &[&str]| {
        let pid = of.0.id().to_string();
        let output = Command::new(FIDE).args(["pace", "top", "--once", "--pid", &pid]).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // A thread that did not run for a moment is the slowest step for two seconds.
    let slowest_is_network = |of: &Process, way: &str| {
        retry_until("the network as the slowest step", LIMIT, || {
            let view: Value = serde_json::from_str(&top(of, &["--json"])).unwrap();
            let shown = view["endpoints"][0]["shown"][0].clone();
            if shown[way]["bottleneck"] == "network" { Ok(shown) } else { Err(format!("{shown:#}")) }
        })
        .unwrap()
    };
    let shown = slowest_is_network(&sends, "out");
    println!("{}", top(&sends, &[]));
    let path = &shown["path"];
    // No packet is there sooner than the link lets it.
    let delay_us = DELAY.as_micros() as u64;
    let us = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{shown:#}"));
    assert!(us(&path["shortest_us"]) >= 2 * delay_us, "{shown:#}");
    assert!(path["bytes_per_s"].as_u64().is_some(), "{shown:#}");
    // The clocks are one, but for what is not sure.
    let unsure_us = us(&path["clock_uncertainty_us"]);
    assert!(path["clock_ahead_us"].as_i64().unwrap().unsigned_abs() <= unsure_us, "{shown:#}");
    assert!(us(&shown["out"]["one_way_us"]) + unsure_us >= delay_us, "{shown:#}");
    // So does the receiver find, who asks for what it receives.
    let there_shown = slowest_is_network(&accepts, "in");
    assert!(there_shown["in"]["one_way_us"].as_u64().is_some(), "{there_shown:#}");
    println!("{}", top(&accepts, &[]));
    rustix::process::kill_process(rustix::process::Pid::from_child(&sends.0), rustix::process::Signal::TERM).unwrap();
    println!("{}", out.rest());

    let mut sends = pace(here, &["bench", &at, "--key", key, "--seconds", "2", "--deadline", "10s", "--json"]);
    let whole = Lines::of(sends.0.stdout.take().unwrap()).rest();
    let errors = Lines::of(sends.0.stderr.take().unwrap()).rest();
    let whole: Value = serde_json::from_str(&whole).unwrap_or_else(|why| panic!("{why}: {whole} {errors}"));
    let us = |value: &Value| value.as_u64().unwrap();
    assert!(us(&whole["delivered"]) == us(&whole["sent"]) && us(&whole["lost"]) == 0, "{whole:#}");
    // The clocks are one, and each way takes its delay: what is not sure is at most the rest of the round trip.
    let (uncertain_us, p1_us) = (us(&whole["uncertainty_us"]), us(&whole["delivery"]["p1_us"]));
    assert!(uncertain_us >= delay_us && p1_us + (uncertain_us - delay_us) >= delay_us, "{whole:#}");
}
