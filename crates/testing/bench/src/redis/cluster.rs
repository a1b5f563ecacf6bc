// SPDX-License-Identifier: Apache-2.0
//! Servers on the hosts of a testbed: alone, replicated as Redis does it, in a group.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, anyhow};
use fide_testbed::{
    Agents, AgentsSpec, REDIS_PORT, RedisGroup, RedisServer, RedisSpec, Spec as BedSpec, Testbed, find_binary,
    retry_until,
};

const LIMIT: Duration = Duration::from_secs(30);
/// Lines of a server's log that are shown when something went wrong.
const LOG_LINES: usize = 400;

/// How the servers are related.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// One server, as Debian has it.
    Alone,
    /// One server, and replicas that follow it.
    Replicas,
    Group(&'static str),
    /// A group that stores before it answers.
    Durable,
    /// Redis of another build with its module, in a folder: `redis-server` and `redisraft.so`.
    Raft(PathBuf),
}

impl Kind {
    fn is_group(&self) -> bool {
        matches!(self, Self::Group(_) | Self::Durable)
    }
}

/// The servers, and where each lives.
pub(super) struct Cluster {
    pub(super) servers: Vec<Option<RedisServer>>,
    pub(super) bed: Testbed,
    agents: Agents,
    spec: RedisSpec,
    raft: Option<PathBuf>,
}

/// The module, built with this program.
fn module() -> anyhow::Result<PathBuf> {
    Ok(find_binary("libfide_redis.so")?)
}

impl Cluster {
    pub(super) fn start(kind: &Kind, hosts: usize, arguments: &[&str]) -> anyhow::Result<Self> {
        let bed = Testbed::build(BedSpec { hosts, offloads: true, ..BedSpec::default() })?;
        let agents = Agents::start(&bed, AgentsSpec { program: vec![find_binary("fide")?], ..AgentsSpec::default() })?;
        let hosts_names = || bed.hosts().iter().map(|host| host.name().to_owned()).collect();
        let group = |protocol: &str, arguments: &[&str]| -> anyhow::Result<Option<RedisGroup>> {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            Ok(Some(RedisGroup { module: module()?, protocol: protocol.to_owned(), hosts: hosts_names(), arguments }))
        };
        let group = match kind {
            Kind::Group(protocol) => group(protocol, &[])?,
            Kind::Durable => group("hsuc", &["durable", "disk"])?,
            _ => None,
        };
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let program = match kind {
            Kind::Raft(folder) => Some(folder.join("redis-server")),
            _ => None,
        };
        let raft = match kind {
            Kind::Raft(folder) => Some(folder.join("redisraft.so")),
            _ => None,
        };
        let spec = RedisSpec { program, group, arguments };
        let mut cluster = Self { servers: (0..hosts).map(|_| None).collect(), bed, agents, spec, raft };
        if !kind.is_group() {
            // What others need no agent for is measured without.
            (1..=hosts).try_for_each(|host| cluster.agents.stop(host))?;
        }
        for host in 1..=hosts {
            cluster.add(host)?;
        }
        if *kind == Kind::Replicas {
            let leader = cluster.bed.host(1).address(0).to_string();
            for host in 2..=hosts {
                cluster.ask(host, &["REPLICAOF", &leader, &REDIS_PORT.to_string()])?;
            }
            let wanted = format!("connected_slaves:{}", hosts - 1);
            retry_until("replicas", LIMIT, || {
                let info = cluster.ask(1, &["INFO", "replication"]).map_err(|why| why.to_string())?;
                if info.contains(&wanted) && info.matches("state=online").count() == hosts - 1 {
                    Ok(())
                } else {
                    Err(info)
                }
            })?;
        }
        if kind.is_group() {
            cluster.await_ready()?;
        }
        if cluster.raft.is_some() {
            cluster.form_raft(hosts)?;
        }
        Ok(cluster)
    }

    pub(super) fn add(&mut self, host: usize) -> anyhow::Result<()> {
        let mut spec = self.spec.clone();
        if let Some(module) = &self.raft {
            let address = format!("{}:{REDIS_PORT}", self.bed.host(host).address(0));
            let module = module.to_string_lossy().into_owned();
            let own = ["--loadmodule", &module, "--raft.addr", &address, "--raft.log-fsync", "no"];
            spec.arguments.extend(own.iter().map(|argument| (*argument).to_owned()));
        }
        self.servers[host - 1] = Some(RedisServer::start(self.bed.host(host), &self.agents, &spec)?);
        Ok(())
    }

    /// The first server founds the cluster, the others join one after the other.
    fn form_raft(&self, hosts: usize) -> anyhow::Result<()> {
        self.ask(1, &["RAFT.CLUSTER", "INIT"])?;
        let first = format!("{}:{REDIS_PORT}", self.bed.host(1).address(0));
        for host in 2..=hosts {
            self.ask(host, &["RAFT.CLUSTER", "JOIN", &first])?;
            retry_until("a member of the raft", LIMIT, || {
                let info = self.ask(1, &["INFO", "raft"]).map_err(|why| why.to_string())?;
                let is_in = info.contains(&format!("raft_num_voting_nodes:{host}"));
                if is_in { Ok(()) } else { Err(info) }
            })?;
        }
        Ok(())
    }

    pub(super) fn server(&self, host: usize) -> anyhow::Result<&RedisServer> {
        self.servers[host - 1].as_ref().with_context(|| format!("h{host} has no server"))
    }

    pub(super) fn running(&self) -> Vec<usize> {
        (1..=self.servers.len()).filter(|host| self.servers[host - 1].is_some()).collect()
    }

    pub(super) fn ask(&self, host: usize, args: &[&str]) -> anyhow::Result<String> {
        self.server(host)?.command(args).map_err(|why| anyhow!("h{host}: {}: {why}", args.join(" ")))
    }

    fn mode(&self, host: usize) -> String {
        let status = self.ask(host, &["FIDE.STATUS"]).unwrap_or_default();
        let mode = status.split("\"mode\":\"").nth(1).and_then(|rest| rest.split('"').next());
        mode.unwrap_or_default().to_owned()
    }

    /// Waits until one server leads and all others follow. Returns the leader's host.
    pub(super) fn await_ready(&self) -> anyhow::Result<usize> {
        Ok(retry_until("a leader, and all others followers", LIMIT, || {
            let modes: Vec<(usize, String)> = self.running().into_iter().map(|host| (host, self.mode(host))).collect();
            let ready = modes.iter().all(|(_, mode)| mode == "leader" || mode == "following");
            let leader = modes.iter().find(|(_, mode)| mode == "leader");
            leader.filter(|_| ready).map(|(host, _)| *host).ok_or(format!("{modes:?}"))
        })?)
    }

    pub(super) fn kill(&mut self, host: usize) -> anyhow::Result<u64> {
        let mut server = self.servers[host - 1].take().context("it runs")?;
        Ok(server.kill())
    }

    pub(super) fn socket(&self, host: usize) -> anyhow::Result<PathBuf> {
        Ok(self.server(host)?.socket())
    }

    /// What went wrong, with what the servers said.
    pub(super) fn explain(&self, why: &anyhow::Error) -> anyhow::Error {
        let tail = |server: &RedisServer| {
            let log = server.log();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
        };
        let logs: Vec<String> = (1..)
            .zip(&self.servers)
            .filter_map(|(host, server)| Some(format!("h{host}:\n{}", tail(server.as_ref()?))))
            .collect();
        anyhow!("{why:#}\n{}", logs.join("\n"))
    }
}
