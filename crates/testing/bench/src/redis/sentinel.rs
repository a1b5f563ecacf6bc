// SPDX-License-Identifier: Apache-2.0
//! The same fail-over with Redis' own Sentinel: from `kill -9` of the master to the next write of a waiting client.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fide_sys::clock::mono_ns;
use fide_testbed::{REDIS_PORT, RedisServer, figures::Samples, retry_until};

use super::{cluster::Cluster, failover::write};

/// Time without an answer after which a sentinel takes a server for down. A sentinel asks once a second; with a
/// shorter time an answer that is merely late begins a fail-over.
const DOWN_AFTER_MS: u32 = 1000;
/// Between two fail-overs of one master, at least twice this passes.
const FAILOVER_TIMEOUT_MS: u32 = 2000;
const LIMIT: Duration = Duration::from_secs(60);

struct Sentinels(Vec<Child>);

impl Drop for Sentinels {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(cluster: &Cluster, master: usize) -> anyhow::Result<Sentinels> {
    let mut sentinels = Sentinels(Vec::new());
    for host in cluster.running() {
        let dir = cluster.server(host)?.dir().join("sentinel");
        fs::create_dir_all(&dir)?;
        let program = dir.join("redis-sentinel");
        if !program.exists() {
            std::os::unix::fs::symlink(RedisServer::DEBIANS, &program)?;
        }
        let address = cluster.bed.host(master).address(0);
        let conf = format!(
            "port 26379\ndir {}\nprotected-mode no\nsentinel monitor bench {address} {REDIS_PORT} 2\n\
             sentinel down-after-milliseconds bench {DOWN_AFTER_MS}\nsentinel failover-timeout bench {FAILOVER_TIMEOUT_MS}\n",
            dir.display()
        );
        fs::write(dir.join("sentinel.conf"), conf)?;
        let log = fs::File::create(dir.join("sentinel.log"))?;
        let mut command = cluster.bed.host(host).command(&program);
        let command = command.arg(dir.join("sentinel.conf")).stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        sentinels.0.push(command.spawn().context("starting redis-sentinel")?);
    }
    Ok(sentinels)
}

fn role(cluster: &Cluster, host: usize) -> String {
    cluster.ask(host, &["INFO", "replication"]).unwrap_or_default()
}

/// The master that all other servers follow.
fn await_master(cluster: &Cluster) -> anyhow::Result<usize> {
    let wanted = format!("connected_slaves:{}", cluster.running().len() - 1);
    Ok(retry_until("a master and its replicas", LIMIT, || {
        let roles: Vec<(usize, String)> =
            cluster.running().into_iter().map(|host| (host, role(cluster, host))).collect();
        let whole = roles.iter().find(|(_, role)| role.contains("role:master") && role.contains(&wanted));
        whole.map(|(host, _)| *host).ok_or_else(|| format!("{roles:?}"))
    })?)
}

fn connect(path: &Path) -> anyhow::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Kills the master again and again; each comes back as a replica before the next one is killed.
pub(super) fn measure(cluster: &mut Cluster, kills: usize) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    let first = await_master(cluster)?;
    let _sentinels = start(cluster, first)?;
    // They find each other and the replicas.
    std::thread::sleep(Duration::from_secs(12));
    for kill in 1..=kills {
        eprint!("\rSentinel: {kill} of {kills}");
        let master = await_master(cluster)?;
        std::thread::sleep(Duration::from_millis(u64::from(2 * FAILOVER_TIMEOUT_MS)));
        let others: Vec<PathBuf> = cluster
            .running()
            .into_iter()
            .filter(|host| *host != master)
            .map(|host| cluster.socket(host))
            .collect::<anyhow::Result<_>>()?;
        if others.is_empty() {
            bail!("no replica is left");
        }
        let connect = || others.iter().map(|path| connect(path)).collect::<anyhow::Result<Vec<_>>>();
        let mut streams = connect()?;
        let killed_ns = cluster.kill(master)?;
        // Sentinel has a server disconnect its clients when it changes its role.
        let until = Instant::now() + LIMIT;
        while let Err(why) = write(&mut streams) {
            if Instant::now() > until {
                return Err(why);
            }
            streams = connect()?;
        }
        samples.add(mono_ns() - killed_ns);
        cluster.add(master)?;
    }
    eprintln!();
    Ok(samples)
}
