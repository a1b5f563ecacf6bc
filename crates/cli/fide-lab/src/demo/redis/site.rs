// SPDX-License-Identifier: Apache-2.0
//! Hosts with an agent and a redis-server each, and one more host for the clients.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use fide_testbed::{
    Agents, AgentsSpec, Cluster, Host, REDIS_PORT, RedisGroup, RedisServer, RedisSpec, Spec as BedSpec, Testbed,
    find_binary, retry_until,
};
use serde_json::Value;

use super::shared::Place;

/// A server that comes back has the data, and servers agree, within this.
const LIMIT: Duration = Duration::from_secs(30);
/// Lines of a server's log that are shown when something went wrong.
const LOG_LINES: usize = 20;

/// The hosts that are members: all but the clients' one, which is the last.
struct Members<'a>(&'a Testbed);

impl Cluster for Members<'_> {
    fn hosts(&self) -> &[Host] {
        let hosts = self.0.hosts();
        &hosts[..hosts.len() - 1]
    }

    fn scratch(&self) -> &Path {
        self.0.scratch()
    }
}

pub(super) struct Site {
    /// By host, from h1; none: it does not run.
    servers: Vec<Option<RedisServer>>,
    agents: Agents,
    spec: RedisSpec,
    pub(super) bed: Testbed,
}

/// The programs that the demo starts.
pub(super) struct Programs {
    pub(super) fide: PathBuf,
    pub(super) module: PathBuf,
    /// None: that of Debian's redis-tools.
    pub(super) server: Option<PathBuf>,
}

impl Site {
    pub(super) fn start(programs: Programs, hosts: usize, protocol: &str) -> anyhow::Result<Self> {
        let bed = Testbed::build(BedSpec { hosts: hosts + 1, offloads: true, ..BedSpec::default() })?;
        let spec = AgentsSpec { program: vec![programs.fide], ..AgentsSpec::default() };
        let agents = Agents::start(&Members(&bed), spec)?;
        let names = Members(&bed).hosts().iter().map(|host| host.name().to_owned()).collect();
        let group =
            RedisGroup { module: programs.module, protocol: protocol.to_owned(), hosts: names, arguments: Vec::new() };
        let spec = RedisSpec {
            program: programs.server,
            group: Some(group),
            // For DEBUG DIGEST.
            arguments: vec!["--enable-debug-command".to_owned(), "yes".to_owned()],
        };
        let mut site = Self { servers: (0..hosts).map(|_| None).collect(), agents, spec, bed };
        for host in 1..=hosts {
            site.add(host)?;
        }
        site.await_ready().map_err(|why| site.explain(&why))?;
        Ok(site)
    }

    /// Starts a host's server.
    pub(super) fn add(&mut self, host: usize) -> anyhow::Result<()> {
        self.servers[host - 1] = Some(RedisServer::start(self.bed.host(host), &self.agents, &self.spec)?);
        Ok(())
    }

    /// The host of the clients.
    pub(super) fn clients(&self) -> &Host {
        self.bed.host(self.servers.len() + 1)
    }

    pub(super) fn server(&self, host: usize) -> anyhow::Result<&RedisServer> {
        self.servers[host - 1].as_ref().with_context(|| format!("h{host} has no server"))
    }

    /// SIGKILL. Returns CLOCK_MONOTONIC in ns just before.
    pub(super) fn kill(&mut self, host: usize) -> anyhow::Result<u64> {
        Ok(self.servers[host - 1].take().with_context(|| format!("h{host} has no server"))?.kill())
    }

    pub(super) fn places(&self) -> anyhow::Result<Vec<Place>> {
        let place = |host: usize| {
            let address = SocketAddr::new(IpAddr::V4(self.bed.host(host).address(0)), REDIS_PORT);
            Ok(Place { address, socket: self.server(host)?.socket() })
        };
        self.running().into_iter().map(place).collect()
    }

    pub(super) fn running(&self) -> Vec<usize> {
        (1..=self.servers.len()).filter(|host| self.servers[host - 1].is_some()).collect()
    }

    /// What a server says in one line: a status, a number or a string.
    pub(super) fn ask(&self, host: usize, words: &[&str]) -> anyhow::Result<String> {
        let reply = self.server(host)?.command(words).map_err(|why| anyhow!("h{host}: {}: {why}", words.join(" ")))?;
        Ok(match reply.strip_prefix('$') {
            Some(string) => string.split_once("\r\n").map_or("", |(_, text)| text.trim_end()).to_owned(),
            None => reply.trim_end().trim_start_matches('+').to_owned(),
        })
    }

    /// The number that a key has at a server; none: there is no such key.
    ///
    /// # Errors
    /// The server answers with anything else, an error for one.
    pub(super) fn number(&self, host: usize, key: &str) -> anyhow::Result<Option<u64>> {
        let said = self.server(host)?.command(&["GET", key]).map_err(|why| anyhow!("h{host}: GET {key}: {why}"))?;
        number_of(&said).ok_or_else(|| anyhow!("h{host} answered GET {key} with {said:?}, which is no number"))
    }

    /// FIDE.STATUS; null if it does not answer.
    pub(super) fn status(&self, host: usize) -> Value {
        let said = self.ask(host, &["FIDE.STATUS"]).unwrap_or_default();
        serde_json::from_str(&said).unwrap_or_default()
    }

    /// Waits until one server leads and all others follow. Returns the leader's host.
    pub(super) fn await_ready(&self) -> anyhow::Result<usize> {
        let mode = |host: usize| self.status(host)["mode"].as_str().unwrap_or_default().to_owned();
        Ok(retry_until("a leader, and all others followers", LIMIT, || {
            let modes: Vec<(usize, String)> = self.running().into_iter().map(|host| (host, mode(host))).collect();
            let follows = modes.iter().filter(|(_, mode)| mode == "following").count();
            let leader = modes.iter().find(|(_, mode)| mode == "leader");
            leader.filter(|_| follows + 1 == modes.len()).map(|(host, _)| *host).ok_or(format!("{modes:?}"))
        })?)
    }

    /// The digest of each server's data, once all have applied everything that was decided. They may differ.
    pub(super) fn digests(&self) -> anyhow::Result<Vec<(usize, String)>> {
        retry_until("servers that have applied everything", LIMIT, || {
            let ask = |host| self.ask(host, &["FIDE.STATUS"]).unwrap_or_else(|why| format!("h{host}: {why:#}"));
            let said: Vec<String> = self.running().into_iter().map(ask).collect();
            let applied: Option<Vec<u64>> = said.iter().map(|said| applied_all(said)).collect();
            let is_quiet = applied.is_some_and(|of| of.windows(2).all(|two| two[0] == two[1]));
            if is_quiet { Ok(()) } else { Err(said.join("; ")) }
        })?;
        self.running().into_iter().map(|host| Ok((host, self.ask(host, &["DEBUG", "DIGEST"])?))).collect()
    }

    /// What went wrong, with what the servers and agents said last.
    pub(super) fn explain(&self, why: &anyhow::Error) -> anyhow::Error {
        let tail = |log: &str| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
        };
        let log = |host: usize| {
            let server = self.agents.dir(host).join("redis/redis.log");
            let server = std::fs::read_to_string(server).unwrap_or_default();
            format!("h{host}, redis-server:\n{}\nh{host}, agent:\n{}", tail(&server), tail(&self.agents.log(host)))
        };
        let logs: Vec<String> = (1..=self.servers.len()).map(log).collect();
        anyhow!("{why:#}\n{}", logs.join("\n"))
    }
}

/// The number in a reply to GET; inside, none: there is no such key. Outside, none: it is no such reply.
fn number_of(reply: &str) -> Option<Option<u64>> {
    if reply == "$-1\r\n" {
        return Some(None);
    }
    let (_, text) = reply.strip_prefix('$')?.split_once("\r\n")?;
    text.strip_suffix("\r\n")?.parse().ok().map(Some)
}

/// The decisions that a server knows of, by its FIDE.STATUS; none: it has not applied all, or has answered otherwise.
fn applied_all(said: &str) -> Option<u64> {
    let said: Value = serde_json::from_str(said).ok()?;
    let decided = said["decided"].as_u64()?;
    (said["applied"].as_u64() == Some(decided)).then_some(decided)
}

/// Finds what the demo starts.
///
/// # Errors
/// A program is missing; the error says how to get it.
pub(super) fn programs() -> anyhow::Result<Programs> {
    let ours = |name: &str, package: &str| {
        find_binary(name).with_context(|| {
            format!(
                "{name} is missing: `cargo xtask demo redis` builds it, as `cargo build --release -p {package}` does"
            )
        })
    };
    let server = installed("redis-server");
    let is_there = server.is_some() || Path::new(RedisServer::DEBIANS).exists();
    for (name, is_there) in [("redis-server", is_there), ("redis-benchmark", installed("redis-benchmark").is_some())] {
        if !is_there {
            bail!(
                "{name} is not installed: run `apt-get install redis-tools` on Debian, or install Redis 7.0 or newer"
            );
        }
    }
    Ok(Programs { fide: ours("fide", "fide")?, module: ours("libfide_redis.so", "fide-redis")?, server })
}

/// A program in one of the directories of PATH.
fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::{applied_all, number_of};

    #[test]
    fn error_is_not_taken_for_a_key_that_is_gone() {
        assert_eq!(number_of("$2\r\n17\r\n"), Some(Some(17)));
        assert_eq!(number_of("$-1\r\n"), Some(None));
        for wrong in ["-LOADING no\r\n", "$2\r\nab\r\n", "$0\r\n\r\n", "$2\r\n17", ":17\r\n", ""] {
            assert_eq!(number_of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn server_that_does_not_say_so_has_not_applied_everything() {
        assert_eq!(applied_all(r#"{"decided":7,"applied":7}"#), Some(7));
        for wrong in [r#"{"decided":7,"applied":6}"#, r#"{"decided":"x","applied":"x"}"#, "{}", "-ERR no", ""] {
            assert_eq!(applied_all(wrong), None, "{wrong}");
        }
    }
}
