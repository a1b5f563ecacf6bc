// SPDX-License-Identifier: Apache-2.0
//! Tests that need hosts and links that can be removed, or a kernel with limited features. Tests that need
//! root and cannot have it print why and pass.

use std::{ffi::CString, fs, os::unix::process::CommandExt, process::Command};

use fide_testbed::{Spec, Testbed, supported};
use serde_json::Value;

use super::common::{Running, json, report, run, stderr, until};

const FROM: &str = "10.70.1.1";
const TO: &str = "10.70.1.2";

fn bed() -> Option<Testbed> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    Some(Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).expect("testbed"))
}

/// `fide jitter` with these arguments on a host.
fn on(bed: &Testbed, host: usize, arguments: &[&str]) -> Command {
    let mut command = bed.host(host).command(env!("CARGO_BIN_EXE_fide"));
    command.arg("jitter").args(arguments);
    command
}

fn pong(bed: &Testbed) -> Running {
    Running::pong(&mut on(bed, 2, &["pong", "--from", TO]))
}

/// Starts a long measurement that is ended from outside; its log is `run.fjl` in the scratch directory.
fn ping(bed: &Testbed, more: &[&str]) -> Running {
    let log = bed.scratch().join("run.fjl");
    let mut command =
        on(bed, 1, &["ping", "--from", FROM, "--to", TO, "--packets", "1000000", "--no-record", "--json"]);
    Running::start(command.args(more).arg("--out").arg(log))
}

/// Datagrams that programs on this host have received.
fn taken(pong: &Running) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/net/snmp", pong.pid())).expect("read");
    // A line of names, and one of numbers.
    let mut udp = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, numbers) = (udp.next().expect("names"), udp.next().expect("numbers"));
    let mut pairs = names.split(' ').zip(numbers.split(' '));
    pairs.find(|(name, _)| *name == "InDatagrams").and_then(|(_, n)| n.parse().ok()).expect("a counter")
}

/// Waits until so many more pings were answered.
fn answered(pong: &Running, before: u64) {
    until("pings", || match taken(pong) {
        now if now >= before + 20 => Ok(()),
        now => Err(format!("{now} datagrams")),
    });
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn root_restarted_pong_is_reported() {
    let Some(bed) = bed() else { return };
    let first = pong(&bed);
    let ping = ping(&bed, &[]);
    answered(&first, 0);
    first.kill();
    let second = pong(&bed);
    answered(&second, taken(&second));
    ping.interrupt();
    let summary = json(&ping.finish());
    assert_eq!((&summary["restarts"], &summary["ended"]), (&1.into(), &"told to stop".into()));
    assert!(number(&summary["answered"]) >= 20, "{summary}");
    let reported = report(&bed.scratch().join("run.fjl"));
    let pongs = reported.run["pongs"].as_array().expect("a list");
    assert_eq!(pongs.len(), 2, "{pongs:?}");
    assert_ne!(pongs[0]["incarnation"], pongs[1]["incarnation"]);
    assert!(number(&pongs[1]["row"]) >= 20, "{pongs:?}");
    assert!(reported.page.contains("The pong restarted 1 times"), "a second run of it is another process");
}

#[test]
fn root_late_pong_is_no_restart() {
    let Some(bed) = bed() else { return };
    let ping = ping(&bed, &[]);
    ping.bound(7412);
    // The kernel of host 2 counts packets without a receiver.
    until("pings that nobody takes", || {
        let text =
            bed.host(2).run_in(|| fs::read_to_string("/proc/thread-self/net/snmp")).map_err(|e| e.to_string())?;
        let text = text.map_err(|e| e.to_string())?;
        let numbers = text.lines().filter_map(|line| line.strip_prefix("Udp: ")).nth(1).ok_or("no counters")?;
        let nobody: u64 = numbers.split(' ').nth(1).and_then(|n| n.parse().ok()).ok_or("no NoPorts")?;
        if nobody >= 20 { Ok(()) } else { Err(text) }
    });
    let late = pong(&bed);
    answered(&late, 0);
    ping.interrupt();
    let summary = json(&ping.finish());
    assert_eq!(summary["restarts"], 0);
    assert!(number(&summary["lost"]) >= 20, "{summary}");
    let reported = report(&bed.scratch().join("run.fjl"));
    let pongs = reported.run["pongs"].as_array().expect("a list");
    assert!(pongs.len() == 1 && number(&pongs[0]["row"]) >= 20, "{pongs:?}");
    assert!(!reported.page.contains("The pong restarted"));
}

#[test]
fn root_lost_link_keeps_the_measurement() {
    for method in ["udp", "af-packet", "xdp-slot", "af-xdp"] {
        let Some(bed) = bed() else { return };
        let pong = pong(&bed);
        let ping = ping(&bed, &["--method", method]);
        answered(&pong, 0);
        let gone = Command::new("ip").args(["-n", bed.host(1).namespace(), "link", "del", "p0"]).status();
        assert!(gone.expect("ip").success());
        let output = ping.finish();
        assert_eq!(output.status.code(), Some(0), "{method}: {}", stderr(&output));
        let summary = json(&output);
        let why = summary["ended"].as_str().unwrap_or_else(|| panic!("{method}: {summary}"));
        assert!(why.contains("no packet was taken") || why.contains("nothing could be received"), "{method}: {why}");
        assert!(number(&summary["answered"]) >= 10, "{method}: {summary}");
        let reported = report(&bed.scratch().join("run.fjl"));
        let packets = &reported.run["packets"];
        // Packets that the kernel refused were never sent, so they are not lost on the way.
        assert_eq!(packets["unsent"], summary["send_failed"], "{method}");
        assert_eq!(packets["logged"], summary["packets"], "{method}");
        assert!(reported.run["conditions"]["isolation"]["log"].is_null(), "{method}: whole");
        assert!(reported.page.contains("ended before its last packet"), "{method}");
    }
}

#[test]
fn root_period_too_short_for_the_method_is_held_or_reported() {
    let Some(bed) = bed() else { return };
    let pong = pong(&bed);
    let log = bed.scratch().join("run.fjl");
    let arguments = ["ping", "--from", FROM, "--to", TO, "--period-us", "20", "--packets", "5000", "--no-record"];
    let output = run(on(&bed, 1, &arguments).args(["--bytes", "1400", "--json", "--out"]).arg(&log));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let summary = json(&output);
    assert_eq!((&summary["packets"], &summary["late"]["after_ns"]), (&5000.into(), &2000.into()));
    let is_reported = report(&log).page.contains("were sent more than 2");
    assert_eq!(is_reported, number(&summary["late"]["packets"]) > 0, "{summary}");
    drop(pong);
}

#[test]
fn root_a_kernel_without_type_information_measures_all_the_same() {
    let Some(bed) = bed() else { return };
    let _pong = pong(&bed);
    let log = bed.scratch().join("run.fjl");
    let mut command = on(&bed, 1, &["ping", "--from", FROM, "--to", TO, "--packets", "50", "--json", "--out"]);
    let output = run(without_btf(command.arg(&log)));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let culprits = json(&output)["run"]["isolation"]["culprits"].as_str().expect("a text").to_owned();
    assert!(culprits.starts_with("not recorded: the kernel did not take the culprit recorder"), "{culprits}");
    let reported = report(&log);
    assert!(reported.run["culprits"].is_null() && reported.page.contains("No culprit is known: not recorded"));
    assert_eq!(reported.run["packets"]["answered"], 50);
}

/// Hides the kernel's description of its trace points from this command.
fn without_btf(command: &mut Command) -> &mut Command {
    let [none, root, tmpfs, btf] = ["none", "/", "tmpfs", "/sys/kernel/btf"].map(|s| CString::new(s).expect("no zero"));
    // SAFETY: plain system calls on strings that the closure keeps; it allocates nothing and takes no lock,
    // as a child of a process with threads must.
    unsafe {
        command.pre_exec(move || {
            let done = libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    none.as_ptr(),
                    root.as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(tmpfs.as_ptr(), btf.as_ptr(), tmpfs.as_ptr(), 0, std::ptr::null()) == 0;
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        })
    }
}

#[test]
fn root_pong_without_its_method_reports_it() {
    let Some(bed) = bed() else { return };
    // veth copies its packets.
    let output = run(&mut on(&bed, 2, &["pong", "--from", TO, "--to", FROM, "--method", "af-xdp-zc"]));
    let said = stderr(&output);
    assert!(output.status.code() == Some(3) && said.contains("af-xdp-zc"), "{said}");
    let output = run(&mut on(&bed, 2, &["pong", "--from", TO, "--to", "10.70.1.99", "--method", "xdp-slot"]));
    let said = stderr(&output);
    assert!(output.status.code() == Some(1) && said.contains("10.70.1.99") && said.contains("p0"), "{said}");
}
