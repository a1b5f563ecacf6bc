// SPDX-License-Identifier: Apache-2.0
//! Fide's own part of the bench: agents on every host, and programs that wait as any program would.
//!
//! The agents run with `trust = "network"` and `policy = "network"`, since the baselines have neither leases
//! nor votes; silent hosts are also measured with the defaults, `trust = "lease"` and `policy = "majority"`.
//! Agents sleep between heartbeats. A program that waits for a verdict sleeps in `wait_event` on an ordinary
//! thread, as the reader of a FIN does.

use anyhow::{Context, bail, ensure};
use fide_client::{Client, ConnectOptions, Event, MonitorId, ProcessId, Verdict, Wanted, now_ns};
use fide_testbed::{Agents, AgentsSpec, Testbed, Victim, find_binary, retry_until};
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const WATCHER_HOST: usize = 1;
const VICTIM_HOST: usize = 2;
const SILENT_HOST: usize = 3;
const HEARTBEAT_US: u32 = 1000;
/// How long all hosts may take to hear each other.
const UP_LIMIT: Duration = Duration::from_secs(20);
/// How long one event may take.
const EVENT_LIMIT: Duration = Duration::from_secs(10);

/// What agents rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As published: the network and the scheduler.
    Published,
    /// The default: leases and agreed views.
    Default,
}

/// On which cores the programs run, and for how long the watcher spins before it sleeps.
pub(crate) struct Layout {
    /// Core of both agents.
    pub(crate) agents: usize,
    /// Core of the watcher.
    pub(crate) watcher: usize,
    pub(crate) spin_ns: u64,
}

/// A notice, in CLOCK_MONOTONIC ns.
pub(crate) struct Noticed {
    /// When the waiting program had it.
    pub(crate) ns: u64,
    /// When the victim's kernel ran the exit hook, and when the watcher's receive program saw the packet.
    pub(crate) stages: Option<(u64, u64)>,
    /// Sent by the receive program itself.
    pub(crate) direct: bool,
}

/// Waits at most so many ns for the notice.
pub(crate) type Waiting = Box<dyn FnOnce(u64) -> Option<Noticed>>;

/// One silence as Fide saw it, CLOCK_MONOTONIC ns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    /// Before the first plane was cut, and after the last one was.
    pub(crate) before_ns: u64,
    pub(crate) after_ns: u64,
    /// When the verdict was given.
    pub(crate) decided_ns: u64,
    /// When the program had it.
    pub(crate) notified_ns: u64,
    /// The timeout in force at the cut.
    pub(crate) timeout_ns: u64,
}

impl Silence {
    /// From before the cut until the program had the verdict, minus the timeout. The last heartbeat before
    /// the cut was sent at most one period earlier.
    pub(crate) fn over_timeout_ns(&self) -> i64 {
        (self.notified_ns as i64 - self.before_ns as i64).saturating_sub(self.timeout_ns as i64)
    }
}

/// Agents as most parts of the bench have them.
pub(crate) fn start_agents(bed: &Testbed) -> anyhow::Result<Agents> {
    start_agents_in(bed, Mode::Published)
}

fn start_agents_in(bed: &Testbed, mode: Mode) -> anyhow::Result<Agents> {
    let agents = Agents::start(bed, spec(mode)?)?;
    await_all_up(&agents, bed.hosts().len())?;
    Ok(agents)
}

fn spec(mode: Mode) -> anyhow::Result<AgentsSpec> {
    let (trust, policy) = match mode {
        Mode::Published => ("network", "network"),
        Mode::Default => ("lease", "majority"),
    };
    Ok(AgentsSpec {
        program: vec![find_binary("fide")?],
        trust: trust.into(),
        policy: policy.into(),
        heartbeat_us: HEARTBEAT_US,
        // All programs of the bench are root's.
        sections: "[limits]\nonly_root = true\n".into(),
        ..AgentsSpec::default()
    })
}

/// Waits until every agent considers all others up.
pub(crate) fn await_all_up(agents: &Agents, hosts: usize) -> anyhow::Result<()> {
    for host in 1..=hosts {
        retry_until(&format!("a cluster seen from h{host}"), UP_LIMIT, || {
            let status = status(agents, host)?;
            let peers = status["peers"].as_array().into_iter().flatten();
            match peers.filter(|p| p["state"] == "up").count() {
                up if up + 1 == hosts => Ok(()),
                up => Err(format!("{up} of {} peers are up", hosts - 1)),
            }
        })?;
    }
    Ok(())
}

pub(crate) fn status(agents: &Agents, host: usize) -> Result<Value, String> {
    agents.ask(host, "status", json!({}))
}

/// The timeout that `host` has for its peer, ns.
pub(crate) fn timeout_ns(agents: &Agents, host: usize, peer: usize) -> anyhow::Result<u64> {
    let status = status(agents, host).map_err(anyhow::Error::msg)?;
    let mut peers = status["peers"].as_array().into_iter().flatten();
    let found = peers.find(|p| p["id"] == json!(peer)).and_then(|p| p["timeout_us"].as_u64());
    Ok(found.with_context(|| format!("h{host} names no timeout for h{peer}"))? * 1000)
}

pub(crate) fn connect(agents: &Agents, host: usize) -> anyhow::Result<Client> {
    let options =
        ConnectOptions { path: Some(agents.socket(host)), program: "bench-detect".into(), ..ConnectOptions::default() };
    Ok(Client::connect(options)?)
}

/// Waits until the target of a monitor is up; returns its incarnation.
pub(crate) fn await_up(client: &mut Client, monitor: MonitorId) -> anyhow::Result<u32> {
    loop {
        match client.wait_event(Some(EVENT_LIMIT))? {
            Some(Event::Up { monitor: of, evidence, .. }) if of == monitor => return Ok(evidence.incarnation),
            Some(_) => {}
            None => bail!("no news of what is to be watched within {} s", EVENT_LIMIT.as_secs()),
        }
    }
}

/// A verdict, when the program had it, and the timeout if that changed while the program waited.
struct Seen {
    notified_ns: u64,
    verdict: Verdict,
    timeout: Option<Duration>,
}

/// Agents on every host, a program on the watcher's host, and one on the victims' host that registers them.
pub(crate) struct Fide {
    // Dropped before the agents, so that the programs do not see their end.
    near: Client,
    far: Arc<Mutex<Client>>,
    agents: Agents,
    silent: Option<MonitorId>,
    last: Option<(ProcessId, MonitorId)>,
    serial: u32,
    /// Core of the thread that waits for verdicts.
    core: Option<usize>,
}

impl Fide {
    /// Starts the agents and connects. The error is the `why` of every figure that is missing because of it.
    pub(crate) fn start(bed: &Testbed, mode: Mode) -> Result<Fide, String> {
        Fide::try_start(bed, mode).map_err(|e| format!("{e:#}"))
    }

    fn try_start(bed: &Testbed, mode: Mode) -> anyhow::Result<Fide> {
        let agents = start_agents_in(bed, mode)?;
        let (near, far) = (connect(&agents, VICTIM_HOST)?, connect(&agents, WATCHER_HOST)?);
        Ok(Fide { near, far: Arc::new(Mutex::new(far)), agents, silent: None, last: None, serial: 0, core: None })
    }

    /// The same, on the cores of `layout`.
    pub(crate) fn start_laid_out(bed: &Testbed, layout: &Layout) -> anyhow::Result<Fide> {
        let agent = fide_testbed::AgentSpec { core: Some(layout.agents), ..Default::default() };
        let agents = Agents::start(bed, AgentsSpec { agent, ..spec(Mode::Published)? })?;
        await_all_up(&agents, bed.hosts().len())?;
        let near = connect(&agents, VICTIM_HOST)?;
        let options = ConnectOptions {
            path: Some(agents.socket(WATCHER_HOST)),
            program: "bench-detect".into(),
            spin_ns: layout.spin_ns,
            ..ConnectOptions::default()
        };
        let far = Arc::new(Mutex::new(Client::connect(options)?));
        Ok(Fide { near, far, agents, silent: None, last: None, serial: 0, core: Some(layout.watcher) })
    }

    fn far(&self) -> MutexGuard<'_, Client> {
        self.far.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits on a separate thread for a final verdict of a monitor.
    fn verdict_of(&self, monitor: MonitorId) -> anyhow::Result<Receiver<Seen>> {
        let (tx, rx) = channel();
        let far = self.far.clone();
        let core = self.core;
        std::thread::Builder::new().name("fide-client".into()).spawn(move || {
            // The library's help for a waiting thread; without it, the thread waits like any other.
            let _ = fide_client::wake_eagerly();
            if let Some(core) = core {
                let _ = fide_testbed::sys::bind_to_core(None, core);
            }
            let mut client = far.lock().unwrap_or_else(|e| e.into_inner());
            let mut timeout = None;
            while let Ok(Some(event)) = client.wait_event(Some(EVENT_LIMIT)) {
                match event {
                    Event::Verdict(verdict) if verdict.monitor == monitor => {
                        let _ = tx.send(Seen { notified_ns: now_ns(), verdict, timeout });
                        return;
                    }
                    Event::TimeoutChanged { monitor: of, timeout: now } if of == monitor => timeout = Some(now),
                    _ => {}
                }
            }
        })?;
        Ok(rx)
    }

    /// Registers a process of host 2, and monitors it from host 1; the returned function waits for its
    /// verdict.
    pub(crate) fn watch(&mut self, victim: &Victim) -> anyhow::Result<Waiting> {
        if let Some((process, monitor)) = self.last.take() {
            self.far().unmonitor(monitor)?;
            self.near.quit(process)?;
        }
        while self.near.poll_event()?.is_some() {}
        self.serial += 1;
        let name = format!("v{}", self.serial);
        let joined = self.near.join_pid(&name, victim.pid(), Duration::ZERO)?;
        let monitor = {
            let mut far = self.far();
            let monitor = far.monitor(&format!("{name}@{}", self.near.agent().host), Wanted::default())?;
            await_up(&mut far, monitor.id)?;
            monitor.id
        };
        self.last = Some((joined.id, monitor));
        let seen = self.verdict_of(monitor)?;
        Ok(Box::new(move |limit_ns| {
            let seen = seen.recv_timeout(Duration::from_nanos(limit_ns)).ok()?;
            let evidence = seen.verdict.evidence;
            Some(Noticed {
                ns: seen.notified_ns,
                stages: Some((evidence.at_ns?, evidence.rx_ns)),
                direct: evidence.direct,
            })
        }))
    }

    /// Isolates host 3, waits for `host_silent` at host 1, and readmits host 3.
    pub(crate) fn silence(&mut self, bed: &Testbed) -> anyhow::Result<Silence> {
        let monitor = match self.silent {
            Some(monitor) => monitor,
            None => {
                let mut far = self.far();
                let monitor = far.monitor(&format!("@{}", bed.host(SILENT_HOST).name()), Wanted::default())?;
                await_up(&mut far, monitor.id)?;
                drop(far);
                self.silent = Some(monitor.id);
                monitor.id
            }
        };
        let timeout_ns = timeout_ns(&self.agents, WATCHER_HOST, SILENT_HOST)?;
        let seen = self.verdict_of(monitor)?;
        // Until the program sleeps.
        std::thread::sleep(Duration::from_millis(2));
        let (before_ns, after_ns) = bed.isolate(SILENT_HOST)?;
        let seen = seen.recv_timeout(EVENT_LIMIT);
        bed.rejoin(SILENT_HOST)?;
        let seen = seen.ok().context("no verdict on a host that is cut off")?;
        await_up(&mut self.far(), monitor).context("the host that was cut off does not come back")?;
        await_all_up(&self.agents, bed.hosts().len())?;
        ensure!(seen.notified_ns >= before_ns, "held silent before it was cut off");
        Ok(Silence {
            before_ns,
            after_ns,
            decided_ns: seen.verdict.evidence.rx_ns,
            notified_ns: seen.notified_ns,
            timeout_ns: seen.timeout.map_or(timeout_ns, |t| t.as_nanos() as u64),
        })
    }
}
