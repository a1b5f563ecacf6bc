// SPDX-License-Identifier: Apache-2.0
//! Agents and members on a testbed. A process that ends is restarted at once, as by a service manager.

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
use fide_sys::clock::mono_ns;
use fide_testbed::{Agents, AgentsSpec, Spec, Testbed};

use crate::{
    MEMBER,
    faults::Held,
    guest::{self, Guest, Heard},
    lines::{Answer, Ask, DATAGRAM_MAX, Reported, Stands, to_bytes},
    member::{Planted, Protocol},
    plan::Plan,
};

/// Shorter than the default: a killed agent is back soon after its host was excluded.
const AGENT: &str = "calibrate_ms = 20";
pub(crate) const GROUP: &str = "registers";
/// Time from a member's end to its next start.
const RESTART: Duration = Duration::from_millis(10);
/// Datagrams of clients that wait for a stopped member.
const QUEUE: &str = "512";
const TURN: Duration = Duration::from_millis(1);

/// Times that depend on the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    heartbeat_us: u32,
    /// Longer than a shared machine keeps a host from running.
    timeout_us: u32,
    /// How long all may take to become members for the first time.
    start: Duration,
    /// How long one answer to a probe may take.
    probe: Duration,
    /// How long it takes after a fault until an excluded host knows it and its member has ended: a few
    /// timeouts.
    pub(crate) known: Duration,
    /// Everything counts as whole after it has been for so long: a fault shows its effect a timeout later.
    pub(crate) stable: Duration,
    /// A waiting fault is left out after this time.
    pub(crate) waits: Duration,
    /// Factor for the waits and pauses of clients.
    pub(crate) patience: u64,
}

const NAMESPACES: Pace = Pace {
    heartbeat_us: 1000,
    timeout_us: 60_000,
    start: Duration::from_secs(20),
    probe: Duration::from_millis(20),
    known: Duration::from_millis(250),
    stable: Duration::from_millis(400),
    waits: Duration::from_secs(4),
    patience: 1,
};

/// A turn of a member waits for its disk, which other programs may keep busy.
const WITH_DISKS: Pace = Pace { probe: Duration::from_millis(300), stable: Duration::from_millis(800), ..NAMESPACES };

/// An emulated processor is about ten times slower, and its emulator is one of many programs on few cores.
const WITH_GUEST: Pace = Pace {
    heartbeat_us: 50_000,
    timeout_us: 600_000,
    start: Duration::from_secs(120),
    probe: Duration::from_millis(200),
    known: Duration::from_millis(2_500),
    stable: Duration::from_millis(2_500),
    waits: Duration::from_secs(15),
    patience: 5,
};

impl Pace {
    /// Longer than any lease.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_micros(u64::from(self.timeout_us))
    }
}

/// The programs of a run.
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
    /// Number of starts.
    life: u32,
    again: Instant,
    /// The member is in the group.
    pub(crate) is_ready: bool,
    /// The member's agent was killed: the member has to be let in again, since the next agent is another
    /// incarnation.
    pub(crate) is_orphan: bool,
}

impl Member {
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

/// All running processes.
#[derive(Debug)]
pub(crate) struct World {
    // Dropped in this order.
    pub(crate) members: Vec<Member>,
    pub(crate) agents: Agents,
    guest: Option<Guest>,
    pub(crate) pace: Pace,
    pub(crate) held: Held,
    probe: UnixDatagram,
    probes: u64,
    to: Sender<(usize, u32, Reported)>,
    reported: Receiver<(usize, u32, Reported)>,
    /// The host that reported last that it leads.
    pub(crate) leader: usize,
    protocol: Protocol,
    is_durable: bool,
    planted: Option<Planted>,
    programs: Programs,
    begun_ns: u64,
    /// Events with their times, as text.
    pub(crate) diary: Vec<String>,
    pub(crate) bed: Testbed,
}

impl World {
    /// Builds and starts everything, and waits until all are members.
    pub(crate) fn start(
        plan: &Plan,
        planted: Option<Planted>,
        programs: &Programs,
        image: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let (hosts, protocol) = (plan.hosts, plan.protocol);
        let pace = match (plan.has_guest, plan.is_durable) {
            (true, _) => WITH_GUEST,
            (false, true) => WITH_DISKS,
            (false, false) => NAMESPACES,
        };
        let bed = Testbed::build(Spec::hosts(hosts))?;
        for host in bed.hosts() {
            host.run_in(|| fs::write("/proc/sys/net/unix/max_dgram_qlen", QUEUE))?
                .context("lengthening the queues of a host's sockets")?;
        }
        let mut spec = AgentsSpec {
            program: vec![programs.agent.clone()],
            // The jitter that an agent measures in so short a time, beside all others, is no reason not to
            // start.
            arguments: vec!["--force-timeout".to_owned()],
            heartbeat_us: pace.heartbeat_us,
            timeout_us: Some(pace.timeout_us),
            ..AgentsSpec::default()
        };
        spec.agent.extra = AGENT.to_owned();
        if plan.has_guest {
            spec.hosts = (1..hosts).collect();
            spec.overrides.insert(hosts, guest::agent());
        }
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
        probe.set_read_timeout(Some(pace.probe))?;
        let guest = match image {
            Some(image) if plan.has_guest => {
                Some(Guest::start(&bed, &agents, image, protocol, planted, pace.timeout())?)
            }
            _ if plan.has_guest => bail!("a plan with a guest needs an image"),
            _ => None,
        };
        let (to, reported) = channel();
        let again = Instant::now();
        let mut world = Self {
            members: (0..hosts)
                .map(|_| Member { child: None, life: 0, again, is_ready: false, is_orphan: false })
                .collect(),
            held: Held::new(hosts),
            agents,
            guest,
            pace,
            probe,
            probes: 0,
            to,
            reported,
            leader: 1,
            protocol,
            is_durable: plan.is_durable,
            planted,
            programs: programs.clone(),
            begun_ns: mono_ns(),
            diary: Vec::new(),
            bed,
        };
        if let Err(why) = world.await_members() {
            bail!("{why:#}\n{}", world.logs());
        }
        world.begun_ns = mono_ns();
        Ok(world)
    }

    fn await_members(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + self.pace.start;
        loop {
            self.turn()?;
            if self.members.iter().all(|member| member.is_ready) && self.is_whole() {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("not all were members after {:?}", self.pace.start);
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
        let since_ns = mono_ns().saturating_sub(self.begun_ns);
        self.diary.push(format!("{:9.3} s  {what}", since_ns as f64 / 1e9));
    }

    /// Takes reports of members, and restarts processes that have ended. Sleeps a little.
    pub(crate) fn turn(&mut self) -> anyhow::Result<()> {
        while let Ok((host, life, reported)) = self.reported.try_recv() {
            if self.members[host - 1].life != life {
                continue;
            }
            self.hear(host, reported);
        }
        self.hear_guest()?;
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
            if !self.is_guest(host) && member.child.is_none() && Instant::now() >= member.again {
                self.spawn(host)?;
            }
        }
        std::thread::sleep(TURN);
        Ok(())
    }

    fn hear(&mut self, host: usize, reported: Reported) {
        match reported {
            Reported::Ready { .. } => {
                let member = &mut self.members[host - 1];
                (member.is_ready, member.is_orphan) = (true, false);
                self.note(&format!("h{host} is a member"));
            }
            Reported::Out { .. } => {
                self.members[host - 1].is_ready = false;
                self.note(&format!("h{host} is out, and asks to be let in"));
            }
            Reported::Leads { .. } => {
                self.leader = host;
                self.note(&format!("h{host} leads"));
            }
        }
    }

    fn is_guest(&self, host: usize) -> bool {
        self.guest.is_some() && host == self.hosts()
    }

    pub(crate) fn guest(&mut self) -> anyhow::Result<&mut Guest> {
        self.guest.as_mut().context("no host is a guest")
    }

    /// Processes in the guest are restarted by the guest itself.
    fn hear_guest(&mut self) -> anyhow::Result<()> {
        let host = self.hosts();
        while let Some(guest) = &mut self.guest
            && let Some(heard) = guest.heard()?
        {
            match heard {
                Heard::Reported(reported) => self.hear(host, reported),
                Heard::MemberEnded(line) => {
                    if std::mem::take(&mut self.members[host - 1].is_ready) {
                        self.note(&format!("the member of h{host} ended: {line}"));
                    }
                }
                Heard::Said(line) => self.note(&format!("h{host}, the guest: {line}")),
            }
        }
        Ok(())
    }

    /// Anything about the guest that differs from the plan.
    pub(crate) fn guest_problem(&self) -> Option<String> {
        self.guest.as_ref()?.problem()
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
        if self.is_durable {
            command.arg("--durable");
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
                let Ok(reported) = serde_json::from_str(&line) else { continue };
                if to.send((host, life, reported)).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Sends SIGKILL to a member; it is restarted in the next turns.
    pub(crate) fn kill_member(&mut self, host: usize) -> anyhow::Result<()> {
        let member = &mut self.members[host - 1];
        if let Some(mut child) = member.child.take() {
            child.kill()?;
            child.wait()?;
        }
        (member.is_ready, member.again) = (false, Instant::now() + RESTART);
        Ok(())
    }

    /// The standing of a member, if it answers.
    pub(crate) fn probe(&mut self, host: usize) -> Option<Stands> {
        self.probes += 1;
        let ask = to_bytes(&Ask::Probe { number: self.probes });
        self.probe.set_nonblocking(true).ok()?;
        self.probe.send_to(&ask, self.socket(host)).ok()?;
        self.probe.set_nonblocking(false).ok()?;
        let mut bytes = [0; DATAGRAM_MAX];
        let until = Instant::now() + self.pace.probe;
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

    /// The standing of all members, as text.
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
                "h{host} agent:\n    {}\nh{host} member:\n    {}\n{}",
                tail(host, "agent.log"),
                tail(host, "member.log"),
                if self.is_guest(host) {
                    format!("h{host} guest:\n    {}\n", tail(host, guest::LOG))
                } else {
                    String::new()
                }
            )
        };
        (1..=self.hosts()).map(both).collect()
    }

    /// Copies all logs to a directory.
    pub(crate) fn keep_logs(&mut self, to: &Path) -> anyhow::Result<()> {
        if let Some(guest) = &mut self.guest {
            guest.fetch_logs()?;
        }
        for host in 1..=self.hosts() {
            for name in ["agent.log", "member.log", guest::LOG] {
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
