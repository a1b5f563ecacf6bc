// SPDX-License-Identifier: Apache-2.0
//! The same fail-over with Redis' own Sentinel: from `kill -9` of the master to the next write of a waiting client.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use fide_sys::clock::mono_ns;
use fide_testbed::{REDIS_PORT, RedisServer, figures::Samples, retry_until};

use super::{
    cluster::Cluster,
    failover::{REQUEST, write},
};

/// Times without an answer after which a sentinel takes a server for down, ms, in the order in which they are tried.
/// A sentinel asks a server again once its last answer is this old, or a second; it looks every 50 to 100 ms.
const DOWN_AFTER_MS: [u32; 4] = [100, 200, 500, 1000];
/// The port of each sentinel, in its own namespace.
const PORT: u16 = 26379;
/// What a sentinel logs when it begins a fail-over, and when it knows of one that is done.
const BEGUN: &str = "+try-failover";
const DONE: &str = "+switch-master";
/// After a new setting, before anything counts.
const SETTLE: Duration = Duration::from_secs(1);
/// Between two writes of the light load under which a setting is tried.
const PAUSE: Duration = Duration::from_millis(1);
/// Between two fail-overs of one master, at least twice this passes.
const FAILOVER_TIMEOUT_MS: u32 = 2000;
const LIMIT: Duration = Duration::from_secs(60);

/// What was measured, and how.
pub(super) struct Beside {
    pub(super) samples: Samples,
    pub(super) name: String,
    pub(super) remark: String,
}

struct Sentinels {
    children: Vec<Child>,
    logs: Vec<PathBuf>,
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Sentinels {
    /// The most events of a kind that one of them has logged.
    fn logged(&self, event: &str) -> anyhow::Result<usize> {
        let count = |log: &PathBuf| -> anyhow::Result<usize> {
            let text = fs::read(log).with_context(|| format!("reading {}", log.display()))?;
            Ok(String::from_utf8_lossy(&text).matches(event).count())
        };
        let counts: Vec<usize> = self.logs.iter().map(count).collect::<anyhow::Result<_>>()?;
        Ok(counts.into_iter().max().unwrap_or(0))
    }

    /// Has all of them take a server for down after so long.
    fn set_down_after(&self, cluster: &Cluster, ms: u32) -> anyhow::Result<()> {
        for host in cluster.running() {
            let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, PORT));
            let mut stream = cluster.bed.host(host).run_in(connect)?.context("connecting to redis-sentinel")?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(format!("SENTINEL SET bench down-after-milliseconds {ms}\r\n").as_bytes())?;
            let mut reply = [0; 256];
            let len = stream.read(&mut reply)?;
            let reply = String::from_utf8_lossy(&reply[..len]);
            ensure!(reply == "+OK\r\n", "redis-sentinel on h{host} answers {reply:?} to SENTINEL SET");
        }
        Ok(())
    }

    /// Writes lightly to the master for so long, and kills nobody. Then kills the master once: a setting that is
    /// too fast takes the next master for down while it connects to it, and so on. True if no sentinel has begun a
    /// fail-over before that, and all have seen just one after it.
    fn is_safe(&self, cluster: &mut Cluster, ms: u32, length: Duration) -> anyhow::Result<bool> {
        self.set_down_after(cluster, ms)?;
        std::thread::sleep(SETTLE);
        // What a faster setting has begun ends with this one.
        let mut stream = connect(&cluster.socket(await_calm(cluster)?)?)?;
        let (begun, done, until) = (self.logged(BEGUN)?, self.logged(DONE)?, Instant::now() + length);
        let mut reply = [0; 256];
        // A master that a fail-over has made a replica refuses, or has closed the connection.
        while Instant::now() < until
            && stream.write_all(REQUEST).and_then(|()| stream.read(&mut reply)).is_ok_and(|len| len > 0)
            && reply[0] == b':'
        {
            std::thread::sleep(PAUSE);
        }
        if Instant::now() < until || self.logged(BEGUN)? > begun {
            return Ok(false);
        }
        fail_over(cluster)?;
        Ok(await_calm(cluster).is_ok() && self.logged(DONE)? == done + 1)
    }

    /// Tries settings from fast to slow until one has no false fail-over. Returns it, and what was seen.
    fn find_fastest(&self, cluster: &mut Cluster, length: Duration) -> anyhow::Result<(u32, String)> {
        let mut tried = Vec::new();
        for ms in DOWN_AFTER_MS {
            let is_safe = self.is_safe(cluster, ms, length)?;
            let seen = if is_safe { "no false fail-over" } else { "false fail-overs" };
            tried
                .push(format!("down after {ms} ms: {seen} in {} s of light load and after one kill", length.as_secs()));
            eprintln!("Sentinel, {}", tried[tried.len() - 1]);
            if is_safe {
                return Ok((ms, tried.join("; ")));
            }
        }
        bail!("Sentinel has no safe setting: {}", tried.join("; "))
    }
}

fn start(cluster: &Cluster, master: usize) -> anyhow::Result<Sentinels> {
    let mut sentinels = Sentinels { children: Vec::new(), logs: Vec::new() };
    let slowest = DOWN_AFTER_MS[DOWN_AFTER_MS.len() - 1];
    for host in cluster.running() {
        let dir = cluster.server(host)?.dir().join("sentinel");
        fs::create_dir_all(&dir)?;
        let program = dir.join("redis-sentinel");
        if !program.exists() {
            std::os::unix::fs::symlink(RedisServer::DEBIANS, &program)?;
        }
        let address = cluster.bed.host(master).address(0);
        let conf = format!(
            "port {PORT}\ndir {}\nprotected-mode no\nsentinel monitor bench {address} {REDIS_PORT} 2\n\
             sentinel down-after-milliseconds bench {slowest}\nsentinel failover-timeout bench {FAILOVER_TIMEOUT_MS}\n",
            dir.display()
        );
        fs::write(dir.join("sentinel.conf"), conf)?;
        let path = dir.join("sentinel.log");
        let log = fs::File::create(&path)?;
        let mut command = cluster.bed.host(host).command(&program);
        let command = command.arg(dir.join("sentinel.conf")).stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        sentinels.children.push(command.spawn().context("starting redis-sentinel")?);
        sentinels.logs.push(path);
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

/// The master, once it has been one for so long that its death begins a fail-over at once.
fn await_calm(cluster: &Cluster) -> anyhow::Result<usize> {
    let until = Instant::now() + LIMIT;
    loop {
        let master = await_master(cluster)?;
        std::thread::sleep(Duration::from_millis(u64::from(2 * FAILOVER_TIMEOUT_MS)));
        if role(cluster, master).contains("role:master") {
            return Ok(master);
        }
        ensure!(Instant::now() < until, "the master changes again and again though no server dies");
    }
}

fn connect(path: &Path) -> anyhow::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Kills the master, and starts it again. Returns the time to the next write, ns.
fn fail_over(cluster: &mut Cluster) -> anyhow::Result<u64> {
    let master = await_calm(cluster)?;
    let others: Vec<PathBuf> = cluster
        .running()
        .into_iter()
        .filter(|host| *host != master)
        .map(|host| cluster.socket(host))
        .collect::<anyhow::Result<_>>()?;
    ensure!(!others.is_empty(), "no replica is left");
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
    let took_ns = mono_ns() - killed_ns;
    cluster.add(master)?;
    Ok(took_ns)
}

/// Finds Sentinel's fastest setting without a false fail-over, each tried for `length`. Then kills the master again
/// and again; each comes back as a replica before the next one is killed.
pub(super) fn measure(cluster: &mut Cluster, kills: usize, length: Duration) -> anyhow::Result<Beside> {
    let mut samples = Samples::default();
    let first = await_master(cluster)?;
    let sentinels = start(cluster, first)?;
    // They find each other and the replicas.
    std::thread::sleep(Duration::from_secs(12));
    let (down_after_ms, tried) = sentinels.find_fastest(cluster, length)?;
    let before = sentinels.logged(DONE)?;
    for kill in 1..=kills {
        eprint!("\rSentinel: {kill} of {kills}");
        samples.add(fail_over(cluster)?);
    }
    eprintln!();
    await_calm(cluster)?;
    let without_cause = (sentinels.logged(DONE)? - before).saturating_sub(kills);
    let remark = format!("kills with Sentinel: {kills}; fail-overs beyond those: {without_cause}; {tried}");
    Ok(Beside { samples, name: format!("Sentinel, down after {down_after_ms} ms"), remark })
}
