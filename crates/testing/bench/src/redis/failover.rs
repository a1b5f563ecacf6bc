// SPDX-License-Identifier: Apache-2.0
//! From `kill -9` of the leader to the next write that a waiting client is acknowledged.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fide_sys::clock::mono_ns;
use fide_testbed::figures::Samples;

use super::cluster::Cluster;

pub(super) const REQUEST: &[u8] = b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n";
const LIMIT: Duration = Duration::from_secs(20);
/// Between two questions of the client to the same server.
const PAUSE: Duration = Duration::from_micros(100);

/// Asks the servers in turn until one acknowledges the write. Returns its number.
pub(super) fn write(streams: &mut [UnixStream]) -> anyhow::Result<i64> {
    let until = Instant::now() + LIMIT;
    let mut buffer = [0; 1024];
    while Instant::now() < until {
        for stream in streams.iter_mut() {
            stream.write_all(REQUEST)?;
            let len = stream.read(&mut buffer)?;
            let reply = std::str::from_utf8(&buffer[..len]).unwrap_or_default();
            if let Some(number) = reply.strip_prefix(':') {
                return number.trim().parse().context("a number");
            }
        }
        std::thread::sleep(PAUSE);
    }
    bail!("no server has acknowledged a write within {LIMIT:?}")
}

/// Kills the leader again and again; each comes back before the next one is killed.
pub(super) fn measure(cluster: &mut Cluster, kills: usize) -> anyhow::Result<Samples> {
    kill_all(cluster, kills).map_err(|why| cluster.explain(&why))
}

fn kill_all(cluster: &mut Cluster, kills: usize) -> anyhow::Result<Samples> {
    let (mut samples, mut count) = (Samples::default(), 0);
    for kill in 1..=kills {
        eprint!("\rredis_failover: {kill} of {kills}");
        let leader = cluster.await_ready()?;
        let others: Vec<usize> = cluster.running().into_iter().filter(|host| *host != leader).collect();
        let connect = |host: &usize| -> anyhow::Result<UnixStream> {
            let stream = UnixStream::connect(cluster.socket(*host)?)?;
            stream.set_read_timeout(Some(LIMIT))?;
            Ok(stream)
        };
        let mut streams: Vec<UnixStream> = others.iter().map(connect).collect::<anyhow::Result<_>>()?;
        let mut of_leader = UnixStream::connect(cluster.socket(leader)?)?;
        count = write(std::slice::from_mut(&mut of_leader))?.max(count);
        let killed_ns = cluster.kill(leader)?;
        let number = write(&mut streams)?;
        samples.add(mono_ns() - killed_ns);
        if number <= count {
            bail!("a write that was acknowledged is lost: {number} follows {count}");
        }
        count = number;
        cluster.add(leader)?;
    }
    eprintln!();
    Ok(samples)
}
