// SPDX-License-Identifier: Apache-2.0
//! Agents and members on a testbed. Whatever ends is started again at once, as a service manager would.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::OpenOptionsExt, net::UnixDatagram},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use fide_testbed::{Agents, AgentsSpec, Spec, Testbed, sys::now_ns};

use crate::{
    MEMBER,
    faults::Held,
    lines::{Answer, Ask, DATAGRAM_MAX, Stands, Told, to_bytes},
    member::{Planted, Protocol},
};

/// The longest that a shared machine keeps a host from running, and then some.
const TIMEOUT_US: u32 = 60_000;
/// Shorter than the default: an agent that was killed is back soon after its host was excluded.
const AGENT: &str = "calibrate_ms = 20";
const GROUP: &str = "registers";
/// Until all are members for the first time.
const START_LIMIT: Duration = Duration::from_secs(20);
/// From a member's end to its next start.
const RESTART: Duration = Duration::from_millis(10);
/// Datagrams of clients that wait for a member that stands still.
const QUEUE: &str = "512";
/// For one answer to a probe.
const PROBE: Duration = Duration::from_millis(20);
const TURN: Duration = Duration::from_millis(1);

/// Programs that are run.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `fide`.
    pub agent: PathBuf,
    /// `histories`.
    pub histories: PathBuf,
    /// `histories-judge`.
    pub judge: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Member {
    child: Option<Child>,
    /// Counts starts.
    life: u32,
    again: Instant,
    /// It is in the group since its last start.
    pub(crate) is_ready: bool,
    /// Its agent was killed: it will end, as the next agent is another incarnation.
    pub(crate) is_orphan: bool,
}

impl Member {
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

/// All that runs.
#[derive(Debug)]
pub(crate) struct World {
    // Dropped in this order.
    pub(crate) members: Vec<Member>,
    pub(crate) agents: Agents,
    pub(crate) held: Held,
    probe: UnixDatagram,
    probes: u64,
    to: Sender<(usize, u32, Told)>,
    told: Receiver<(usize, u32, Told)>,
    /// The host that said last that it leads.
    pub(crate) leader: usize,
    protocol: Protocol,
    planted: Option<Planted>,
    programs: Programs,
    begun_ns: u64,
    /// What happened when, for people.
    pub(crate) diary: Vec<String>,
    pub(crate) bed: Testbed,
}

impl World {
    /// Builds everything, and waits until all are members.
    pub(crate) fn start(
        hosts: usize,
        protocol: Protocol,
        planted: Option<Planted>,
        programs: &Programs,
    ) -> anyhow::Result<Self> {
        let bed = Testbed::build(Spec::hosts(hosts))?;
        for host in bed.hosts() {
            host.run_in(|| fs::write("/proc/sys/net/unix/max_dgram_qlen", QUEUE))?
                .context("lengthening the queues of a host's sockets")?;
        }
        let mut spec = AgentsSpec {
            program: vec![programs.agent.clone()],
            // What it measures in so short a time, beside all others, is no reason not to start.
            arguments: vec!["--force-timeout".to_owned()],
            timeout_us: Some(TIMEOUT_US),
            ..AgentsSpec::default()
        };
        spec.agent.extra = AGENT.to_owned();
        let agents = Agents::start(&bed, spec)?;
        let mut key = [0; 16];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::File::options()
            .create_new(true)
            .write(true)
            .mode(0o400)
            .open(bed.scratch().join("group.key"))
            .and_then(|mut file| file.write_all(digits.as_bytes()))
            .context("writing the group's key")?;
        let probe = UnixDatagram::bind(bed.scratch().join("probe"))?;
        probe.set_read_timeout(Some(PROBE))?;
        let (to, told) = channel();
        let again = Instant::now();
        let mut world = Self {
            members: (0..hosts)
                .map(|_| Member { child: None, life: 0, again, is_ready: false, is_orphan: false })
                .collect(),
            held: Held::new(hosts),
            agents,
            probe,
            probes: 0,
            to,
            told,
            leader: 1,
            protocol,
            planted,
            programs: programs.clone(),
            begun_ns: now_ns(),
            diary: Vec::new(),
            bed,
        };
        if let Err(why) = world.await_members() {
            bail!("{why:#}\n{}", world.logs());
        }
        world.begun_ns = now_ns();
        Ok(world)
    }

    fn await_members(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + START_LIMIT;
        loop {
            self.turn()?;
            if self.members.iter().all(|member| member.is_ready) && self.is_whole() {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("not all were members after {START_LIMIT:?}");
            }
        }
    }

    pub(crate) fn hosts(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn socket(&self, host: usize) -> PathBuf {
        self.agents.dir(host).join("registers.sock")
    }

    pub(crate) fn note(&mut self, what: &str) {
        let since_ns = now_ns().saturating_sub(self.begun_ns);
        self.diary.push(format!("{:9.3} s  {what}", since_ns as f64 / 1e9));
    }

    /// Takes what members tell, starts again what has ended. Sleeps a little.
    pub(crate) fn turn(&mut self) -> anyhow::Result<()> {
        while let Ok((host, life, told)) = self.told.try_recv() {
            if self.members[host - 1].life != life {
                continue;
            }
            match told {
                Told::Ready { .. } => {
                    self.members[host - 1].is_ready = true;
                    self.note(&format!("h{host} is a member"));
                }
                Told::Leads { .. } => {
                    self.leader = host;
                    self.note(&format!("h{host} leads"));
                }
            }
        }
        for host in 1..=self.hosts() {
            if let Some(status) = self.agents.ended(host) {
                self.note(&format!("the agent of h{host} ended by itself ({status}), and is started again"));
                self.agents.start_again(host)?;
            }
            let member = &mut self.members[host - 1];
            let ended = member.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() {
                if member.is_ready {
                    let line = last_line(&self.agents.dir(host).join("member.log"));
                    self.note(&format!("the member of h{host} ended: {line}"));
                }
                let member = &mut self.members[host - 1];
                (member.child, member.is_ready, member.again) = (None, false, Instant::now() + RESTART);
            }
            let member = &self.members[host - 1];
            if member.child.is_none() && Instant::now() >= member.again {
                self.spawn(host)?;
            }
        }
        std::thread::sleep(TURN);
        Ok(())
    }

    fn spawn(&mut self, host: usize) -> anyhow::Result<()> {
        let dir = self.agents.dir(host);
        let names: Vec<&str> = self.bed.hosts().iter().map(fide_testbed::Host::name).collect();
        let log = fs::File::options().create(true).append(true).open(dir.join("member.log"))?;
        let mut command = self.bed.host(host).command(&self.programs.histories);
        command
            .arg(MEMBER)
            .args(["--group", GROUP, "--hosts", &names.join(","), "--protocol", self.protocol.name()])
            .arg("--agent")
            .arg(self.agents.socket(host))
            .arg("--socket")
            .arg(self.socket(host))
            .arg("--state-dir")
            .arg(dir.join("group"))
            .arg("--key-file")
            .arg(self.bed.scratch().join("group.key"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(planted) = self.planted {
            command.args(["--planted", planted.name()]);
        }
        let mut child = command.spawn().with_context(|| format!("starting {}", self.programs.histories.display()))?;
        let output = BufReader::new(child.stdout.take().ok_or_else(|| anyhow!("a member's output is piped"))?);
        let member = &mut self.members[host - 1];
        member.life += 1;
        member.is_orphan = false;
        member.child = Some(child);
        let (to, life) = (self.to.clone(), member.life);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(told) = serde_json::from_str(&line) else { continue };
                if to.send((host, life, told)).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// SIGKILL to a member; it is started again in the next turns.
    pub(crate) fn kill_member(&mut self, host: usize) -> anyhow::Result<()> {
        let member = &mut self.members[host - 1];
        if let Some(mut child) = member.child.take() {
            child.kill()?;
            child.wait()?;
        }
        (member.is_ready, member.again) = (false, Instant::now() + RESTART);
        Ok(())
    }

    /// How a member stands, if it answers.
    pub(crate) fn probe(&mut self, host: usize) -> Option<Stands> {
        self.probes += 1;
        let ask = to_bytes(&Ask::Probe { number: self.probes });
        self.probe.set_nonblocking(true).ok()?;
        self.probe.send_to(&ask, self.socket(host)).ok()?;
        self.probe.set_nonblocking(false).ok()?;
        let mut bytes = [0; DATAGRAM_MAX];
        let until = Instant::now() + PROBE;
        while Instant::now() < until {
            let Ok(len) = self.probe.recv(&mut bytes) else { break };
            if let Ok(Answer::Probe { number, stands }) = postcard::from_bytes(&bytes[..len])
                && number == self.probes
            {
                return Some(stands);
            }
        }
        None
    }

    /// All are members of one view, and one of them answers.
    pub(crate) fn is_whole(&mut self) -> bool {
        let mut answering = 0;
        for host in 1..=self.hosts() {
            match self.probe(host) {
                Some(stands) if stands.is_member && usize::from(stands.members) == self.hosts() => {
                    answering += usize::from(stands.may_answer);
                }
                _ => return false,
            }
        }
        answering == 1
    }

    /// How all stand, for people.
    pub(crate) fn standing(&mut self) -> String {
        let mut text = String::new();
        for host in 1..=self.hosts() {
            let stands = self.probe(host).map_or("no answer".to_owned(), |stands| format!("{stands:?}"));
            let agent = match self.agents.ask(host, "status", serde_json::json!({})) {
                Ok(status) => format!(
                    "incarnation {}, fenced {}, view {}",
                    status["incarnation"], status["fenced"], status["view"]
                ),
                Err(why) => why,
            };
            text += &format!("h{host}: agent: {agent}\n    member: {stands}\n");
        }
        text
    }

    pub(crate) fn logs(&self) -> String {
        let tail = |host: usize, name: &str| {
            let text = fs::read_to_string(self.agents.dir(host).join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n    ")
        };
        let both = |host| {
            format!(
                "h{host} agent:\n    {}\nh{host} member:\n    {}\n",
                tail(host, "agent.log"),
                tail(host, "member.log")
            )
        };
        (1..=self.hosts()).map(both).collect()
    }

    /// Copies all logs to a directory.
    pub(crate) fn keep_logs(&self, to: &Path) -> anyhow::Result<()> {
        for host in 1..=self.hosts() {
            for name in ["agent.log", "member.log"] {
                let from = self.agents.dir(host).join(name);
                if from.exists() {
                    fs::copy(&from, to.join(format!("h{host}-{name}")))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut child) = member.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn last_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next_back().unwrap_or("it said nothing").to_owned()
}
