// SPDX-License-Identifier: Apache-2.0
//! The same measurements with well-known tools, on the same cores and under the same conditions: sockperf for
//! the round trip, cyclictest for the wake-up.

use anyhow::{Context, anyhow, ensure};
use fide_net::isolation::hold_c_states;
use fide_selftest::run::Cores;
use fide_testbed::{Testbed, figures::Samples, retry_until};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PORT: u16 = 7413;
/// Priority of the bench's own threads.
const PRIORITY: &str = "70";
const SERVER_LIMIT: Duration = Duration::from_secs(5);

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program on one core with a real-time priority.
fn pinned(mut command: Command, core: usize, program: &str) -> Command {
    command.args(["-c", &core.to_string(), "chrt", "-f", PRIORITY, program]);
    command
}

/// Round trips of sockperf's UDP ping-pong: 1024 bytes every millisecond.
pub(crate) fn sockperf(bed: &Testbed, cores: Cores, seconds: u32) -> anyhow::Result<Samples> {
    // As in the bench: neither end's core may sleep.
    let _awake = hold_c_states()?;
    let address = bed.host(2).address(0).to_string();
    let port = PORT.to_string();
    let mut server = pinned(bed.host(2).command("taskset"), cores.b, "sockperf");
    server.args(["server", "-i", &address, "-p", &port]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Killed(server.spawn().context("sockperf")?);
    let table = "/proc/thread-self/net/udp";
    retry_until("sockperf's server", SERVER_LIMIT, || {
        let listening = bed.host(2).run_in(|| std::fs::read_to_string(table).unwrap_or_default());
        match listening.map_err(|e| e.to_string())?.contains(&format!(":{PORT:04X} ")) {
            true => Ok(()),
            false => Err("it does not listen yet".to_owned()),
        }
    })?;
    let log = bed.scratch().join("sockperf.csv");
    let mut client = pinned(bed.host(1).command("taskset"), cores.a, "sockperf");
    client.args(["ping-pong", "-i", &address, "-p", &port, "--msg-size=1024", "--mps=1000"]);
    client.args(["-t", &seconds.to_string(), "--full-log"]).arg(&log);
    let done = client.output().context("sockperf")?;
    ensure!(done.status.success(), "sockperf: {}", String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read_to_string(&log).context("sockperf's log")?;
    let mut samples = Samples::default();
    // Each packet has a line with its number, txTime and rxTime in seconds, half of the difference, after
    // much other output.
    for line in text.lines() {
        let fields: Vec<f64> = line.split(',').filter_map(|field| field.trim().parse().ok()).collect();
        if let [_, sent, received, _] = fields[..] {
            samples.add(((received - sent) * 1e9).max(0.0) as u64);
        }
    }
    ensure!(samples.n() > 0, "sockperf measured nothing: {text:.200}");
    Ok(samples)
}

/// Wake-up latencies of cyclictest: a thread every millisecond. It prints whole microseconds.
pub(crate) fn cyclictest(core: usize, loops: u32) -> anyhow::Result<Samples> {
    const LONGEST_US: u64 = 20_000;
    let mut command = Command::new("cyclictest");
    command.args(["-q", "-m", "-t1", "-i1000", "-p", PRIORITY, "-a", &core.to_string()]);
    command.args(["-l", &loops.to_string(), "-h", &LONGEST_US.to_string()]);
    let done = command.output().context("cyclictest")?;
    ensure!(done.status.success(), "cyclictest: {}", String::from_utf8_lossy(&done.stderr));
    let mut samples = Samples::default();
    for line in String::from_utf8_lossy(&done.stdout).lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(us)), Some(Ok(count))) = (fields.next(), fields.next()) else { continue };
        for _ in 0..count {
            // The middle of the truncated microsecond.
            samples.add(us * 1000 + 500);
        }
    }
    (samples.n() > 0).then_some(samples).ok_or_else(|| anyhow!("cyclictest measured nothing"))
}
