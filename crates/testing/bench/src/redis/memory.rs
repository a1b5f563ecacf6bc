// SPDX-License-Identifier: Apache-2.0
//! Minutes at the memory limit: servers' memory does not grow, and nothing acknowledged is lost. Nobody dies.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use fide_testbed::figures::Figure;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cluster::Cluster;

/// What servers are started with.
pub(super) const SERVER: [&str; 4] = ["--maxmemory", "64mb", "--maxmemory-policy", "noeviction"];
/// What [`reply`] has of a null bulk string.
const NOTHING: &str = "$-1";
/// More than fits.
const KEYS: u32 = 200_000;
const VALUE_BYTES: usize = 1000;
/// Commands of one pipeline.
const BATCH: usize = 64;
/// Keys whose values are numbered and compared.
const PLACES: u64 = 1000;
/// One command in so many deletes, so that others find room again.
const DELETES_ONE_IN: u32 = 3;

fn rss_kib(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// A reply's line; of a bulk string the content.
fn reply(input: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    ensure!(input.read_line(&mut line)? > 0, "the server has closed the connection");
    if let Some(len) = line.strip_prefix('$').and_then(|len| len.trim().parse::<usize>().ok()) {
        let mut content = vec![0; len + 2];
        input.read_exact(&mut content)?;
        return Ok(String::from_utf8_lossy(&content[..len]).into_owned());
    }
    Ok(line.trim_end().to_owned())
}

fn push(out: &mut Vec<u8>, words: &[&str]) {
    out.extend(format!("*{}\r\n", words.len()).bytes());
    words.iter().for_each(|word| out.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
}

/// The number in a reply; 0, which is never written, if it has none.
fn number_of(reply: &str) -> u64 {
    reply.parse().unwrap_or(0)
}

/// Writes for so long. Returns how the greatest server's memory at the end compares with that after a tenth of
/// the time, and how many acknowledged numbers were not there when the next one replaced them at the leader, or at
/// the end at any server.
pub(super) fn measure(cluster: &Cluster, length: Duration) -> anyhow::Result<[Figure; 2]> {
    let leader = cluster.await_ready()?;
    let mut output = UnixStream::connect(cluster.socket(leader)?)?;
    let mut input = BufReader::new(output.try_clone()?);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (begun, mut early, mut said) = (Instant::now(), None, Instant::now());
    let (mut latest, mut acknowledged, mut lost, mut refused) = (BTreeMap::<u64, u64>::new(), 0_u64, 0_u64, 0_u64);
    let mut number = 0_u64;
    let value = "x".repeat(VALUE_BYTES);
    let rss = || -> anyhow::Result<u64> {
        let all: anyhow::Result<Vec<u64>> =
            cluster.running().into_iter().map(|host| rss_kib(cluster.server(host)?.pid())).collect();
        Ok(all?.into_iter().max().unwrap_or(0))
    };
    while begun.elapsed() < length {
        let mut request = Vec::new();
        for _ in 1..BATCH {
            let key = format!("filler:{}", random.random_range(0..KEYS));
            match random.random_range(0..DELETES_ONE_IN) {
                0 => push(&mut request, &["DEL", &key]),
                _ => push(&mut request, &["SET", &key, &value]),
            }
        }
        // The last one of a small set that is written again and again. The answer has the number before it.
        number += 1;
        let place = number % PLACES;
        push(&mut request, &["SET", &format!("number:{place}"), &number.to_string(), "GET"]);
        output.write_all(&request)?;
        let mut last = String::new();
        for at in 1..=BATCH {
            last = reply(&mut input)?;
            match last.as_bytes().first() {
                Some(b'+' | b':') if at < BATCH => {}
                Some(b'0'..=b'9') if at == BATCH => {}
                _ if last == NOTHING && at == BATCH => {}
                _ if last.starts_with("-OOM") => refused += 1,
                _ => bail!("the server answers {last}"),
            }
        }
        if !last.starts_with('-') {
            // A write that found no room has changed nothing.
            lost += u64::from(number_of(&last) != latest.insert(place, number).unwrap_or(0));
            acknowledged += 1;
        }
        if early.is_none() && begun.elapsed() > length / 10 {
            early = Some(rss()?);
        }
        if said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            eprint!("\rredis_memory: {} s of {}, {} KiB", begun.elapsed().as_secs(), length.as_secs(), rss()?);
        }
    }
    eprintln!();
    let (early, late) = (early.context("it was too short")?, rss()?);
    ensure!(refused > 0, "the limit was not reached");
    for host in cluster.running() {
        let mut output = UnixStream::connect(cluster.socket(host)?)?;
        let mut input = BufReader::new(output.try_clone()?);
        for (place, number) in &latest {
            let mut request = Vec::new();
            push(&mut request, &["GET", &format!("number:{place}")]);
            output.write_all(&request)?;
            lost += u64::from(number_of(&reply(&mut input)?) != *number);
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let growth = Figure::share("redis_memory_growth", late as f64 / early as f64, acknowledged).remark(format!(
        "{early} KiB after a tenth of the time, {late} KiB at the end; {refused} writes found no room"
    ));
    let how = format!(
        "no server dies; each of the acknowledged writes was read as the next one at its place replaced it, at the \
         leader, or as the last of its place ({}) at the end, at every server",
        latest.len()
    );
    Ok([growth, Figure::count("redis_memory_lost", lost, acknowledged).remark(how)])
}
