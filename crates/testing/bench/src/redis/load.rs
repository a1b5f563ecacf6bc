// SPDX-License-Identifier: Apache-2.0
//! redis-benchmark, and a load of our own for what it cannot send.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use fide_testbed::{Host, REDIS_PORT, figures::Samples};
use rustix::event::{PollFd, PollFlags, poll};

pub(super) const CLIENTS: usize = 50;
const VALUE_BYTES: usize = 25;

/// What redis-benchmark says of one test.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

/// Runs redis-benchmark on a server's own host.
pub(super) fn redis_benchmark(host: &Host, test: &str, requests: u64, pipeline: u32) -> anyhow::Result<Measured> {
    let output = host
        .command("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &REDIS_PORT.to_string(), "-t", test, "-n", &requests.to_string()])
        .args([
            "-c",
            &CLIENTS.to_string(),
            "-d",
            &VALUE_BYTES.to_string(),
            "-P",
            &pipeline.to_string(),
            "-r",
            "100000",
            "--csv",
        ])
        .output()
        .context("redis-benchmark")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.to_ascii_lowercase().starts_with(&format!("\"{test}")));
    let columns: Vec<f64> = line
        .with_context(|| {
            format!("redis-benchmark, {}: {text} {}", output.status, String::from_utf8_lossy(&output.stderr))
        })?
        .split(',')
        .skip(1)
        .filter_map(|column| column.trim_matches('"').parse().ok())
        .collect();
    // Requests per second; average, least, p50, p95, p99, greatest latency in ms.
    let [per_second, _, _, p50_ms, _, p99_ms, max_ms] = columns[..] else {
        anyhow::bail!("redis-benchmark's columns are not those of 7.0: {text}")
    };
    Ok(Measured { per_second, p50_ms, p99_ms, max_ms })
}

/// Of a mix: GETs for each SET, and keys. The first is memtier_benchmark's default.
const GETS: usize = 10;
const KEYS: usize = 1000;
/// Spreads the keys of a mix; a prime.
const STEP: usize = 7919;

/// A request, and the lines of its replies.
#[derive(Debug, Clone)]
struct Request {
    bytes: Vec<u8>,
    lines: usize,
}

/// Closed-loop clients that send the same requests again and again.
pub(super) struct Clients {
    streams: Vec<TcpStream>,
    requests: Vec<Request>,
}

fn command(out: &mut Vec<u8>, words: &[&str]) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    words.iter().for_each(|word| out.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
}

impl Clients {
    fn connect(host: &Host, requests: Vec<Request>) -> anyhow::Result<Self> {
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, REDIS_PORT));
        let streams = host.run_in(|| (0..CLIENTS).map(|_| connect()).collect::<std::io::Result<Vec<_>>>())??;
        for stream in &streams {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        Ok(Self { streams, requests })
    }

    /// SET, and after it WAIT for so many replicas.
    pub(super) fn set(host: &Host, wait_for: Option<u32>) -> anyhow::Result<Self> {
        let mut bytes = Vec::new();
        command(&mut bytes, &["SET", "key", &"x".repeat(VALUE_BYTES)]);
        if let Some(replicas) = wait_for {
            command(&mut bytes, &["WAIT", &replicas.to_string(), "0"]);
        }
        Self::connect(host, vec![Request { bytes, lines: 1 + usize::from(wait_for.is_some()) }])
    }

    /// One SET to ten GETs of keys that are there.
    pub(super) fn mix(host: &Host) -> anyhow::Result<Self> {
        let value = "x".repeat(VALUE_BYTES);
        let request = |at: usize, is_set: bool| {
            let (mut bytes, key) = (Vec::new(), format!("key:{}", at * STEP % KEYS));
            if is_set {
                command(&mut bytes, &["SET", &key, &value]);
            } else {
                command(&mut bytes, &["GET", &key]);
            }
            Request { bytes, lines: 1 + usize::from(!is_set) }
        };
        let mut all = Self::connect(host, (0..KEYS).map(|at| request(at, true)).collect())?;
        all.send_all()?;
        all.requests = (0..KEYS * (GETS + 1)).map(|at| request(at, at % (GETS + 1) == 0)).collect();
        Ok(all)
    }

    /// Sends each request once.
    fn send_all(&mut self) -> anyhow::Result<()> {
        let stream = &mut self.streams[0];
        stream.set_nonblocking(false)?;
        for request in &self.requests {
            stream.write_all(&request.bytes)?;
            let (mut lines, mut buffer) = (0, [0; 256]);
            while lines < request.lines {
                let len = stream.read(&mut buffer)?;
                ensure!(
                    len > 0 && buffer[0] != b'-',
                    "the server refuses: {}",
                    String::from_utf8_lossy(&buffer[..len])
                );
                lines += buffer[..len].iter().filter(|byte| **byte == b'\n').count();
            }
        }
        Ok(stream.set_nonblocking(true)?)
    }

    /// Requests per second, and how long each took.
    pub(super) fn run(&mut self, length: Duration) -> anyhow::Result<(f64, Samples)> {
        let begun = Instant::now();
        let mut sent: Vec<Instant> = vec![begun; self.streams.len()];
        let requests = &self.requests;
        // Each client begins elsewhere.
        let mut next: Vec<usize> = (0..self.streams.len()).map(|at| at * STEP % requests.len()).collect();
        let mut left: Vec<usize> = next.iter().map(|at| requests[*at].lines).collect();
        let (mut samples, mut done, mut buffer) = (Samples::default(), 0_u64, [0; 4096]);
        for (at, stream) in self.streams.iter_mut().enumerate() {
            stream.write_all(&requests[next[at]].bytes)?;
            sent[at] = Instant::now();
        }
        let mut running = self.streams.len();
        while running > 0 {
            let mut polled: Vec<PollFd<'_>> =
                self.streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
            poll(&mut polled, None)?;
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            for at in (0..self.streams.len()).filter(|at| ready[*at]) {
                let len = self.streams[at].read(&mut buffer)?;
                ensure!(len > 0, "the server has closed a connection");
                ensure!(
                    !buffer[..len].contains(&b'-'),
                    "the server refuses: {}",
                    String::from_utf8_lossy(&buffer[..len])
                );
                left[at] -= buffer[..len].iter().filter(|byte| **byte == b'\n').count().min(left[at]);
                if left[at] > 0 {
                    continue;
                }
                samples.add(u64::try_from(sent[at].elapsed().as_nanos()).unwrap_or(u64::MAX));
                done += 1;
                next[at] = (next[at] + 1) % requests.len();
                left[at] = requests[next[at]].lines;
                if begun.elapsed() < length {
                    sent[at] = Instant::now();
                    self.streams[at].write_all(&requests[next[at]].bytes)?;
                } else {
                    running -= 1;
                    left[at] = usize::MAX;
                }
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "a rate")]
        Ok((done as f64 / begun.elapsed().as_secs_f64(), samples))
    }
}
