// SPDX-License-Identifier: Apache-2.0
//! `fide agent` on every host of a testbed or a fabric.

use crate::node::{Cluster, Host};
use crate::{Error, Result, find_binary, retry_until};
use fide_sys::clock::mono_ns;
use fide_sys::seqpacket::{self, Received, Wait};
use rustix::process::{Pid, Signal, kill_process};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit until a started agent answers.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time limit until a stopped agent has ended.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for one answer on the control socket.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Longest message on the control socket.
const MAX_MESSAGE: usize = 64 * 1024;
/// Lines of a log that are shown when something went wrong.
const LOG_TAIL_LINES: usize = 40;

/// The `[agent]` section of one host.
#[derive(Debug, Clone)]
pub struct AgentSpec {
    /// `sleep` or `busy`.
    pub mode: String,
    /// Core of the loop; `None`: the agent chooses.
    pub core: Option<usize>,
    /// `auto`, `xdp`, `xdp-generic`, `af-packet` or `udp`.
    pub receive: String,
    /// `auto`, `bpf` or `pidfd`.
    pub exit_watch: String,
    /// Further lines of this section, as they are.
    pub extra: String,
}

impl Default for AgentSpec {
    fn default() -> Self {
        AgentSpec {
            mode: "sleep".into(),
            core: None,
            receive: "auto".into(),
            exit_watch: "auto".into(),
            extra: String::new(),
        }
    }
}

/// The content of `fide.toml`, except for the addresses, which the testbed gives.
#[derive(Debug, Clone)]
pub struct AgentsSpec {
    /// The `fide` program and leading arguments; empty: the program found beside the running one.
    pub program: Vec<PathBuf>,
    /// Further arguments of every agent (`--force-timeout`).
    pub arguments: Vec<String>,
    /// `lease` or `network`.
    pub trust: String,
    /// `majority` or `network`.
    pub policy: String,
    /// Heartbeat period, microseconds.
    pub heartbeat_us: u32,
    /// Timeout, microseconds; `None`: the agent chooses.
    pub timeout_us: Option<u32>,
    /// UDP port.
    pub port: u16,
    /// Whether to send to multicast groups 239.70.0.&lt;plane+1&gt;, instead of unicast to every member.
    pub multicast: bool,
    /// Further lines of the `[cluster]` section, as they are.
    pub cluster_extra: String,
    /// Further lines of a member's entry (`role = "observer"`), by host number.
    pub member_extra: BTreeMap<usize, String>,
    /// Further sections, as they are; `{host}` stands for the host's name.
    pub sections: String,
    /// The `[agent]` section.
    pub agent: AgentSpec,
    /// The same for hosts that differ, by host number.
    pub overrides: BTreeMap<usize, AgentSpec>,
    /// Environment of every agent.
    pub env: Vec<(String, String)>,
    /// Hosts whose agent [`Agents::start`] starts; empty: all.
    pub hosts: Vec<usize>,
}

impl Default for AgentsSpec {
    fn default() -> Self {
        AgentsSpec {
            program: Vec::new(),
            arguments: Vec::new(),
            trust: "lease".into(),
            policy: "majority".into(),
            heartbeat_us: 1000,
            timeout_us: None,
            port: 7411,
            multicast: true,
            cluster_extra: String::new(),
            member_extra: BTreeMap::new(),
            sections: String::new(),
            agent: AgentSpec::default(),
            overrides: BTreeMap::new(),
            env: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

impl AgentsSpec {
    /// `fide.toml` for one of `hosts`.
    fn toml(&self, hosts: &[Host], host: usize) -> String {
        let mut s = format!(
            "[cluster]\nname = \"testbed\"\nkey_file = \"../cluster.key\"\ntrust = \"{}\"\npolicy = \"{}\"\n\
             heartbeat_us = {}\nport = {}\n",
            self.trust, self.policy, self.heartbeat_us, self.port
        );
        if let Some(timeout_us) = self.timeout_us {
            let _ = writeln!(s, "timeout_us = {timeout_us}");
        }
        let _ = writeln!(s, "{}", self.cluster_extra);
        for plane in 0..hosts.first().map_or(0, |h| h.addresses().len()) {
            s.push_str("[[plane]]\n");
            if self.multicast {
                let _ = writeln!(s, "group = \"239.70.0.{}\"", plane + 1);
            }
        }
        for h in hosts {
            let addresses: Vec<_> = h.addresses().iter().map(|a| format!("\"{a}\"")).collect();
            let extra = self.member_extra.get(&h.index()).map_or("", String::as_str);
            let _ = writeln!(s, "[[member]]\nname = \"{}\"\naddresses = [{}]\n{extra}", h.name(), addresses.join(", "));
        }
        let agent = self.overrides.get(&host).unwrap_or(&self.agent);
        let _ = writeln!(
            s,
            "[agent]\nmode = \"{}\"\nreceive = \"{}\"\nexit_watch = \"{}\"",
            agent.mode, agent.receive, agent.exit_watch
        );
        if let Some(core) = agent.core {
            let _ = writeln!(s, "core = {core}");
        }
        let name = hosts.iter().find(|h| h.index() == host).map_or("", Host::name);
        let _ = writeln!(s, "{}\n{}", agent.extra, self.sections.replace("{host}", name));
        s
    }
}

/// Agents on the hosts of a testbed or a fabric. They are killed when this is dropped; in a panic, the ends
/// of their logs are printed too. Drop it before the testbed.
#[derive(Debug)]
pub struct Agents {
    spec: AgentsSpec,
    hosts: Vec<Host>,
    root: PathBuf,
    children: Vec<Option<Child>>,
    /// New agents that take over from `children`.
    successors: Vec<Option<Child>>,
}

impl Agents {
    /// Writes configuration and key into the testbed's scratch directory, starts the agents, and waits until
    /// each answers.
    pub fn start(bed: &impl Cluster, spec: AgentsSpec) -> Result<Self> {
        let root = bed.scratch().to_path_buf();
        let mut key = [0u8; 16];
        getrandom(&mut key, GetRandomFlags::empty())
            .map_err(|e| Error::io("getrandom for a key", std::io::Error::from(e)))?;
        let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
        // A second set of agents on the same testbed gets a key of its own.
        let _ = fs::remove_file(root.join("cluster.key"));
        write_file(&root.join("cluster.key"), 0o400, &(hex + "\n"))?;
        for host in bed.hosts() {
            let dir = root.join(host.name());
            fs::create_dir_all(dir.join("state")).map_err(|e| Error::io(format!("making {}", dir.display()), e))?;
            write_file(&dir.join("fide.toml"), 0o644, &spec.toml(bed.hosts(), host.index()))?;
        }
        let wanted =
            if spec.hosts.is_empty() { bed.hosts().iter().map(Host::index).collect() } else { spec.hosts.clone() };
        let mut agents =
            Agents { spec, hosts: bed.hosts().to_vec(), root, children: Vec::new(), successors: Vec::new() };
        agents.children.resize_with(bed.hosts().len(), || None);
        agents.successors.resize_with(bed.hosts().len(), || None);
        for host in &wanted {
            agents.spawn(*host)?;
        }
        for host in &wanted {
            agents.await_answer(*host)?;
        }
        Ok(agents)
    }

    fn slot(&self, host: usize) -> usize {
        assert!((1..=self.hosts.len()).contains(&host), "no host {host}: there are 1 to {}", self.hosts.len());
        host - 1
    }

    /// Directory of a host's configuration, log and socket (its `--runtime-dir`).
    pub fn dir(&self, host: usize) -> PathBuf {
        self.root.join(self.hosts[self.slot(host)].name())
    }

    /// The cluster's key, as every host has it.
    pub fn key_file(&self) -> PathBuf {
        self.root.join("cluster.key")
    }

    /// A host's control socket, for clients (`FIDE_SOCKET`).
    pub fn socket(&self, host: usize) -> PathBuf {
        self.dir(host).join("agent.sock")
    }

    /// Process id of a host's agent, if it was started and not yet waited for.
    pub fn pid(&self, host: usize) -> Option<u32> {
        self.children[self.slot(host)].as_ref().map(Child::id)
    }

    fn spawn(&mut self, host: usize) -> Result<()> {
        let child = self.launch(host, &[])?;
        let slot = self.slot(host);
        self.children[slot] = Some(child);
        Ok(())
    }

    fn launch(&self, host: usize, more: &[&str]) -> Result<Child> {
        let slot = self.slot(host);
        let dir = self.dir(host);
        let program = match self.spec.program.first() {
            Some(p) => p.clone(),
            None => find_binary("fide")?,
        };
        let log = File::options()
            .create(true)
            .append(true)
            .open(dir.join("agent.log"))
            .map_err(|e| Error::io(format!("opening {}/agent.log", dir.display()), e))?;
        let err = log.try_clone().map_err(|e| Error::io("duplicating a log's descriptor", e))?;
        self.hosts[slot]
            .command(&program)
            .args(self.spec.program.iter().skip(1))
            .arg(if self.is_witness(host) { "witness" } else { "agent" })
            .arg("--config")
            .arg(dir.join("fide.toml"))
            .args(["--host", self.hosts[slot].name()])
            .arg("--runtime-dir")
            .arg(&dir)
            .arg("--state-dir")
            .arg(dir.join("state"))
            .args(&self.spec.arguments)
            .args(more)
            .envs(self.spec.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err)
            .spawn()
            .map_err(|e| Error::io(format!("starting {}", program.display()), e))
    }

    fn is_witness(&self, host: usize) -> bool {
        self.spec.member_extra.get(&host).is_some_and(|extra| extra.contains("role = \"witness\""))
    }

    fn await_answer(&mut self, host: usize) -> Result<()> {
        let slot = self.slot(host);
        let what = format!("the agent of {}", self.hosts[slot].name());
        let socket = self.socket(host);
        let child = &mut self.children[slot];
        let mut ended = None;
        let answer = retry_until(&what, START_LIMIT, || {
            if let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) {
                ended = Some(status);
                return Ok(());
            }
            ask(&socket, "status", json!({})).map(|_| ())
        });
        let why = match (answer, ended) {
            (Ok(()), None) => return Ok(()),
            (Ok(()), Some(status)) => format!("it ended with {status}"),
            (Err(e), _) => e.to_string(),
        };
        Err(Error::NotReady {
            what,
            after_ms: START_LIMIT.as_millis() as u64,
            why: format!("{why}; its log ends with:\n{}", self.log_tail(host)),
        })
    }

    /// Starts a host's agent (again) and waits until it answers.
    pub fn restart(&mut self, host: usize) -> Result<()> {
        self.kill(host)?;
        self.spawn(host)?;
        self.await_answer(host)
    }

    /// Kills a host's agent and starts it again, without waiting until it answers.
    pub fn start_again(&mut self, host: usize) -> Result<()> {
        self.kill(host)?;
        self.spawn(host)
    }

    /// Starts a new agent that takes over from the running one, without waiting for it. See [`Agents::ended`].
    pub fn take_over(&mut self, host: usize) -> Result<()> {
        let slot = self.slot(host);
        if self.children[slot].is_some() && self.successors[slot].is_none() {
            self.successors[slot] = Some(self.launch(host, &["--takeover"])?);
        }
        Ok(())
    }

    /// How a host's agent has ended, once no agent of the host runs any more. Where agents take over, call
    /// this from time to time: it reaps those that have ended.
    pub fn ended(&mut self, host: usize) -> Option<ExitStatus> {
        let slot = self.slot(host);
        let status = |child: &mut Option<Child>| child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if status(&mut self.successors[slot]).is_some() {
            self.successors[slot] = None;
        }
        let ended = status(&mut self.children[slot])?;
        self.children[slot] = self.successors[slot].take();
        self.children[slot].is_none().then_some(ended)
    }

    /// Asks a host's agent. Returns the `ok` of its answer, or its error unchanged.
    pub fn ask(&self, host: usize, op: &str, arguments: Value) -> std::result::Result<Value, String> {
        ask(&self.socket(host), op, arguments)
    }

    /// Sends SIGTERM and waits for the end. If that takes more than 10 s, kills the agent and returns an
    /// error.
    pub fn stop(&mut self, host: usize) -> Result<()> {
        let slot = self.slot(host);
        let Some(child) = &mut self.children[slot] else {
            return Ok(());
        };
        signal(child, Signal::TERM)?;
        let start = Instant::now();
        while start.elapsed() < STOP_LIMIT {
            if matches!(child.try_wait(), Ok(Some(_))) {
                self.children[slot] = None;
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.kill(host)?;
        Err(Error::NotReady {
            what: format!("the end of {}'s agent", self.hosts[slot].name()),
            after_ms: STOP_LIMIT.as_millis() as u64,
            why: format!("it ignores SIGTERM; its log ends with:\n{}", self.log_tail(host)),
        })
    }

    /// Waits until a host's agent has ended by itself. Returns its status.
    ///
    /// # Errors
    /// [`Error::NotReady`] if it goes on for `limit`.
    pub fn await_end(&mut self, host: usize, limit: Duration) -> Result<ExitStatus> {
        let slot = self.slot(host);
        let start = Instant::now();
        while start.elapsed() < limit {
            let Some(child) = &mut self.children[slot] else {
                return Err(Error::Spec(format!("h{host} has no running agent")));
            };
            if let Ok(Some(status)) = child.try_wait() {
                self.children[slot] = None;
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(Error::NotReady {
            what: format!("the end of {}'s agent", self.hosts[slot].name()),
            after_ms: limit.as_millis() as u64,
            why: format!("it goes on; its log ends with:\n{}", self.log_tail(host)),
        })
    }

    /// Sends SIGKILL and waits for the end. Returns CLOCK_MONOTONIC in ns just before.
    pub fn kill(&mut self, host: usize) -> Result<u64> {
        let slot = self.slot(host);
        let at = mono_ns();
        for mut child in [self.children[slot].take(), self.successors[slot].take()].into_iter().flatten() {
            child.kill().and_then(|()| child.wait()).map_err(|e| Error::io("killing an agent", e))?;
        }
        Ok(at)
    }

    /// Sends SIGSTOP. Returns CLOCK_MONOTONIC in ns just before.
    pub fn pause(&self, host: usize) -> Result<u64> {
        self.signal(host, Signal::STOP)
    }

    /// Sends SIGCONT. Returns CLOCK_MONOTONIC in ns just before.
    pub fn resume(&self, host: usize) -> Result<u64> {
        self.signal(host, Signal::CONT)
    }

    fn signal(&self, host: usize, which: Signal) -> Result<u64> {
        let at = mono_ns();
        match &self.children[self.slot(host)] {
            Some(child) => signal(child, which).map(|()| at),
            None => Err(Error::Spec(format!("h{host} has no running agent to send {which:?} to"))),
        }
    }

    /// A host's whole log.
    pub fn log(&self, host: usize) -> String {
        fs::read_to_string(self.dir(host).join("agent.log")).unwrap_or_default()
    }

    /// The end of a host's log.
    pub fn log_tail(&self, host: usize) -> String {
        let log = self.log(host);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for host in 1..=self.hosts.len() {
            let _ = self.kill(host);
            if std::thread::panicking() {
                eprintln!("---- log of h{host}'s agent ends with\n{}", self.log_tail(host));
            }
        }
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    kill_process(Pid::from_child(child), signal).map_err(|e| Error::io(format!("sending {signal:?} to an agent"), e))
}

fn write_file(path: &Path, mode: u32, text: &str) -> Result<()> {
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)
        .and_then(|mut f| f.write_all(text.as_bytes()))
        .map_err(|e| Error::io(format!("writing {}", path.display()), e))
}

/// Asks one question on a control socket.
fn ask(path: &Path, op: &str, arguments: Value) -> std::result::Result<Value, String> {
    let text = |e: io::Error| format!("{op} at {}: {e}", path.display());
    let socket = seqpacket::connect(path, ANSWER_LIMIT).map_err(|e| text(e.into()))?;
    let mut question = json!({"id": 1, "op": op});
    if let (Some(q), Value::Object(more)) = (question.as_object_mut(), arguments) {
        q.extend(more);
    }
    seqpacket::send(&socket, question.to_string().as_bytes(), &[]).map_err(text)?;
    let mut answer = vec![0u8; MAX_MESSAGE];
    let received = seqpacket::receive(&socket, &mut answer, 0, Wait::For(ANSWER_LIMIT));
    let n = match received.map_err(|e| text(e.into()))? {
        Received::Message(n, _) => n,
        Received::Nothing => return Err(text(io::ErrorKind::TimedOut.into())),
        Received::End => return Err(text(io::ErrorKind::UnexpectedEof.into())),
    };
    let answer: Value = serde_json::from_slice(&answer[..n]).map_err(|e| format!("{op}: not JSON: {e}"))?;
    match answer.get("ok") {
        Some(ok) => Ok(ok.clone()),
        None => Err(answer["error"].to_string()),
    }
}

#[cfg(test)]
mod tests;
