// SPDX-License-Identifier: Apache-2.0
//! Replicas on the hosts of a testbed, and other programs that take the same orders.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use fide_sys::clock::mono_ns;
use fide_testbed::{Agents, Host};

use crate::{
    lines::{Order, Reported},
    program::Protocol,
};

/// Expected lines come within this time, or something is wrong.
const LIMIT: Duration = Duration::from_secs(20);

/// A program that takes [`Order`]s and prints [`Reported`] lines.
#[derive(Debug)]
pub struct Node {
    pub host: u16,
    child: Child,
    input: Option<ChildStdin>,
}

impl Node {
    /// Starts the program; its lines go to `to`, with its host.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(host: u16, mut command: Command, to: Sender<(u16, Reported)>) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // Other lines of the program are no reports.
                let Ok(reported) = serde_json::from_str(&line) else { continue };
                if to.send((host, reported)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { host, child, input })
    }

    /// # Errors
    /// It has ended.
    pub fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        let input = self.input.as_mut().ok_or_else(|| anyhow!("the replica of h{} was asked to end", self.host))?;
        input.write_all(&line).with_context(|| format!("the replica of h{} has ended", self.host))
    }

    /// Sends SIGKILL, and returns the CLOCK_MONOTONIC time just before. Does not wait for the end.
    ///
    /// # Errors
    /// It has ended.
    pub fn kill(&mut self) -> anyhow::Result<u64> {
        let at_ns = mono_ns();
        self.child.kill().with_context(|| format!("killing the replica of h{}", self.host))?;
        Ok(at_ns)
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How replicas are started.
#[derive(Debug, Clone)]
pub struct Spec {
    /// A program that calls [`crate::main`], and its leading arguments.
    pub program: Vec<PathBuf>,
    pub group: String,
    pub protocol: Protocol,
    /// Instances of HSUC under way.
    pub window: u64,
}

/// A replica on each host, and their reports.
#[derive(Debug)]
pub struct Replicas {
    spec: Spec,
    pub nodes: Vec<Node>,
    /// How often replicas that are added from now on resend unanswered messages; `None`: the members'
    /// default.
    pub resend: Option<Duration>,
    to: Sender<(u16, Reported)>,
    reported: Receiver<(u16, Reported)>,
}

impl Replicas {
    /// Starts one replica on each host, and waits until all are members.
    ///
    /// # Errors
    /// A replica cannot be started, or is no member in time.
    pub fn start(hosts: &[Host], agents: &Agents, spec: Spec) -> anyhow::Result<Self> {
        let (to, reported) = channel();
        let mut replicas = Self { spec, nodes: Vec::new(), resend: None, to, reported };
        for host in hosts {
            replicas.add(host, hosts, agents)?;
        }
        let mut ready = 0;
        while ready < hosts.len() {
            ready += usize::from(matches!(replicas.wait("a member")?.1, Reported::Ready { .. }));
        }
        Ok(replicas)
    }

    /// Starts a replica on a host that has none.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn add(&mut self, host: &Host, hosts: &[Host], agents: &Agents) -> anyhow::Result<()> {
        let [program, arguments @ ..] = self.spec.program.as_slice() else { bail!("no program was given") };
        let dir = agents.dir(host.index());
        let names: Vec<&str> = hosts.iter().map(Host::name).collect();
        let key_file = agents.dir(hosts[0].index()).join(format!("{}.key", self.spec.group));
        if !key_file.exists() {
            let mut key = [0; 16];
            rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
            let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            fs::File::options()
                .create_new(true)
                .write(true)
                .mode(0o400)
                .open(&key_file)
                .and_then(|mut file| file.write_all(digits.as_bytes()))
                .context("writing the group's key")?;
        }
        let log = fs::File::options().create(true).append(true).open(dir.join("replica.log"))?;
        let mut command = host.command(program);
        command
            .args(arguments)
            .args(["--group", &self.spec.group, "--hosts", &names.join(",")])
            .args(["--protocol", self.spec.protocol.name(), "--window", &self.spec.window.to_string()])
            .arg("--socket")
            .arg(agents.socket(host.index()))
            .arg("--state-dir")
            .arg(dir.join("group"))
            .arg("--key-file")
            .arg(key_file)
            .stderr(log);
        if let Some(resend) = self.resend {
            command.args(["--resend-ms", &resend.as_millis().to_string()]);
        }
        let id = u16::try_from(host.index()).expect("at most 64 hosts");
        self.nodes.push(Node::start(id, command, self.to.clone())?);
        Ok(())
    }

    /// The replica of a host, if it was not removed.
    pub fn node(&mut self, host: u16) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.host == host)
    }

    /// The next report of a replica, and its host.
    ///
    /// # Errors
    /// No report comes.
    pub fn wait(&self, what: &str) -> anyhow::Result<(u16, Reported)> {
        self.reported.recv_timeout(LIMIT).map_err(|_| anyhow!("nothing was reported of {what} within {LIMIT:?}"))
    }

    /// The next report of a replica, if one comes before `until`.
    pub fn poll(&self, until: Instant) -> Option<(u16, Reported)> {
        self.reported.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}
