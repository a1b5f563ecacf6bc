// SPDX-License-Identifier: Apache-2.0
//! From a configuration to a running agent.

mod begin;
mod check;
mod directories;
mod host;
mod lateness;
mod receive;
mod windows;

use crate::clock::Now;
use crate::control::Resumed;
use crate::handover::Inherited;
use begin::Taken;
use fide_agent_api::status::{Rung, Rungs};
use fide_bpf::{ClientRings, ExitWatch};
use fide_net::isolation::Measures;
use fide_net::link::Membership;
use fide_types::HostId;
use fide_wire::Shape;
use host::{EstateBuilder, Host};
use std::path::Path;
use std::sync::Arc;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    panic,
    path::PathBuf,
    process,
    sync::mpsc,
    thread,
    time::Duration,
};

use fide_agent_api::table::name_bytes;
use fide_detector as detector;
use fide_host_tuning::{machine::ClockRate, parse::Cpus, roots::Roots};
use fide_net::isolation::{Urgent, default_core, isolate, pin};
use fide_net::link::{Sender, hear_all_groups};
use fide_net::pace::Mode;
use fide_shm::region::RegionError;
use fide_sys::interface::{self, Interface, InterfaceError};
use fide_wire::Keys;

use begin::Begin;
pub use check::{Checked, check};
use directories::directories;
use host::open_host;
use lateness::{Lateness, lateness};
pub use windows::OpenWindows;

use crate::{
    cgroup,
    clock::{self, Clock, Clocks, HostClocks},
    command::Exchange,
    config::{self, Config, ConfigError, KeyError},
    control::{self, Control, End},
    engine::{self, Engine},
    handover::{HandoverError, Successor},
    incarnation::IncarnationError,
    key,
    notify::{Manager, Notify},
    privileges, rungs,
    signals::Signals,
    socket::{self, ListenError, Listener},
    timeout::{Network, TimeoutTooShort, Timeouts},
    trees::{Trees, TreesError},
    vote::{VoteError, Votes},
};

/// Exit status of an agent that ends by itself.
const FAILED: i32 = 1;

/// Options of the command line, in addition to the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the configuration.
    pub config: PathBuf,
    /// Name of this host's member; without it, the host is found by its addresses.
    pub host: Option<String>,
    /// Replaces the configured directory.
    pub runtime_dir: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    /// Accept a timeout shorter than the measured one.
    pub force_timeout: bool,
    /// Replace the running agent without a missed beat.
    pub takeover: bool,
    /// Run as the cluster's witness, which this member has to be.
    pub witness: bool,
    /// Opens planes of windows; `None`: they are refused.
    pub windows: Option<OpenWindows>,
}

/// Why an agent did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    #[error(transparent)]
    Vote(#[from] VoteError),
    #[error("{}", role_says(name, *is_witness))]
    Role { name: String, is_witness: bool },
    #[error("plane {plane}: {why}")]
    Interface { plane: usize, why: InterfaceError },
    #[error("plane {plane}: {why}")]
    Windows { plane: usize, why: io::Error },
    #[error("plane {plane}: {what}: {why}")]
    Link { plane: usize, what: &'static str, why: io::Error },
    /// The loop would run on any core, and the measurements on its own core would be worthless.
    #[error("{at}: core = {core}: {why}; {have}, or leave core out")]
    Core { at: String, core: usize, why: String, have: String },
    /// A rung was demanded that is not available.
    #[error("{wanted} was demanded and is not to be had here: {why}; \"auto\" takes the next best")]
    Rung { wanted: &'static str, why: String },
    #[error(
        "interfaces {names}: the smallest MTU is {mtu_bytes} bytes, the heartbeats of this cluster need {need_bytes}: \
         `ip link set INTERFACE mtu {need_bytes}`, or more, or fewer members"
    )]
    Mtu { names: String, mtu_bytes: usize, need_bytes: usize },
    #[error("{at}: {why}")]
    Timeout { at: String, why: TimeoutTooShort },
    #[error(transparent)]
    Detector(#[from] detector::ConfigError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("takeover: {0}")]
    Handover(HandoverError),
    #[error("trees: {0}")]
    Trees(TreesError),
    #[error("shared memory: {0}")]
    Memory(RegionError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the agent's loop ended by itself: {0}")]
    Loop(String),
}

impl From<HandoverError> for StartError {
    fn from(why: HandoverError) -> Self {
        Self::Handover(why)
    }
}

impl From<TreesError> for StartError {
    fn from(why: TreesError) -> Self {
        Self::Trees(why)
    }
}

impl From<RegionError> for StartError {
    fn from(why: RegionError) -> Self {
        Self::Memory(why)
    }
}

fn role_says(name: &str, is_witness: bool) -> String {
    if is_witness {
        format!("member {name} is the cluster's witness: run `fide witness` here, not `fide agent`")
    } else {
        format!(
            "member {name} is no witness: run `fide agent` here, or give it role = \"witness\" in the configuration"
        )
    }
}

/// Runs an agent in the calling thread until a signal ends it.
///
/// # Errors
/// [`StartError`].
pub fn run(options: &Options) -> Result<(), StartError> {
    end_on_panic();
    let signals = Signals::block()?;
    let mut plan = Plan::read(options)?;
    // Before anything is attached: a second agent must find out without disturbing the first.
    let (origin, inherited, manager) = Origin::find(options, &plan)?;
    let measured = Measured::take(options, &plan)?;
    let mut host = open_host(&plan.config, plan.me, &plan.keys, &plan.interfaces, inherited, options.windows)?;
    if let Some(kernel) = &host.kernel {
        kernel.receive.set_plain_key(0, Some(&plan.plain.current.0));
    }
    host.rungs.bound = measured.rung.clone();
    let mut rights = Rights::take(&plan, &host)?;
    let exchange = Exchange::new()?;
    let loop_thread = LoopThread::start(plan.core, exchange.clone(), measured.timeout_ns)?;
    if let Some(measures) = &loop_thread.measures {
        rungs::isolate(&mut host.rungs, measures);
    }

    // The state is fresh, or comes from the agent before, which is frozen from here on.
    let urgent = origin.is_takeover().then(Urgent::begin);
    let (state, taken) = origin.begin(&mut plan, &measured)?;
    let (incarnation, timeout_ns) = (state.incarnation, state.timeout_ns);
    let payload_min = state.detector.config().payload_min();
    let table = state.table.read_only_fd()?;
    host.estate.table = Some(state.table.as_fd().try_clone_to_owned()?);
    let (parts, rest) = parts(&mut plan, state, host, &measured, exchange.clone());
    let now = HostClocks.now();
    let mut engine = Engine::new(now, parts)?;
    let (listener, resumed) = origin.hand_to(taken, &mut engine, now, &plan.path)?;
    loop_thread.go(engine);
    drop(urgent);

    log_what_runs(options, &plan, &rest.rungs, incarnation, timeout_ns);
    let trees = start_trees(&plan, &mut rights, incarnation, payload_min)?;
    let mut control = Control::new(
        control::Parts {
            config: plan.config,
            me: plan.me,
            listener,
            exchange: exchange.clone(),
            rings: rights.rings,
            exit_watch: rest.exit_watch,
            table,
            keys: plan.plain,
            key_stamp: plan.key_stamp,
            shape: plan.shape,
            rungs: rest.rungs,
            incarnation,
            timeout_ns,
            interfaces: plan.names,
            signals,
            estate: rest.estate.complete(),
            trees,
        },
        Notify::new(manager),
    )?;
    if let Some(resumed) = resumed {
        control.resume(resumed)?;
    }
    give_up_rights();
    let end = control.run()?;
    // A loop that ended by itself is not joined: its thread may hang.
    check_end(end, exchange.ended())?;
    loop_thread.join();
    Ok(())
}

/// The plan that follows from configuration, key and addresses: the same for every way of starting.
struct Plan {
    config: Config,
    me: HostId,
    /// Only of a witness.
    votes: Option<Votes>,
    key_stamp: Option<key::Stamp>,
    /// The keys as in the file.
    plain: Keys,
    /// Keys of the tags: hosts with another shape are not heard.
    keys: Keys,
    shape: Shape,
    interfaces: Vec<Interface>,
    /// Names of the interfaces.
    names: Vec<String>,
    core: usize,
    /// Path of the socket.
    path: PathBuf,
}

impl Plan {
    fn read(options: &Options) -> Result<Self, StartError> {
        let (config, me) = member(options)?;
        if !config.unknown_users.is_empty() {
            tracing::warn!(
                "[[name]]: this host knows no {}: their names are nobody's here",
                config.unknown_users.join(", ")
            );
        }
        let votes = votes(&config, config.member(me).role == config::Role::Witness)?;
        let key_stamp = key::stamp(&config.key_file);
        let plain = Keys::from(config.key()?);
        let shape = config.shape();
        directories(&config, options.takeover)?;
        let interfaces = interfaces(&config, me)?;
        Ok(Self {
            me,
            votes,
            key_stamp,
            keys: shape.keys(&plain),
            plain,
            shape,
            names: interfaces.iter().map(|interface| interface.name.clone()).collect(),
            interfaces,
            core: core(&config)?,
            path: config.runtime_dir.join(SOCKET),
            config,
        })
    }

    /// Name of this host.
    fn name(&self) -> &str {
        self.config.member(self.me).name.as_str()
    }
}

/// The socket's name in the runtime directory.
const SOCKET: &str = "agent.sock";

/// Where the state comes from.
enum Origin {
    /// No agent runs: the state is fresh.
    Fresh { listener: Listener },
    /// The running agent hands its state over.
    TakeOver { successor: Successor },
}

impl Origin {
    /// Binds the socket, or asks the running agent for what it shares.
    fn find(options: &Options, plan: &Plan) -> Result<(Self, Option<Inherited>, Option<Manager>), StartError> {
        if !options.takeover {
            let listener = socket::listen(&plan.path)?;
            return Ok((Self::Fresh { listener }, None, Manager::from_env()));
        }
        let (successor, mut inherited) = Successor::prepare(&plan.path, &plan.shape)?;
        let manager = match inherited.service.take() {
            Some((manager, pid)) => {
                if let Err(error) = cgroup::join(pid) {
                    tracing::warn!(
                        "this agent is not in its service's control group, so systemd may not notice its end: {error}"
                    );
                }
                Some(manager)
            }
            None => Manager::from_env(),
        };
        Ok((Self::TakeOver { successor }, Some(inherited), manager))
    }

    fn is_takeover(&self) -> bool {
        matches!(self, Self::TakeOver { .. })
    }

    /// The state that the loop begins with, and what else was taken over. The socket stays in `self`: if
    /// this fails, the socket is removed after everything that was attached.
    fn begin(&self, plan: &mut Plan, measured: &Measured) -> Result<(Begin, Option<Box<Taken>>), StartError> {
        let (mut state, taken) = match self {
            Self::Fresh { .. } => {
                let state = begin::fresh(
                    &plan.config,
                    plan.me,
                    &plan.names,
                    measured.timeout_ns,
                    measured.timeouts.stall_slack_ns(measured.lateness_ns),
                    measured.longest_ns(),
                    plan.votes.as_mut(),
                )?;
                (state, None)
            }
            Self::TakeOver { successor } => {
                let (state, taken) = begin::taken_over(successor, plan.name())?;
                (state, Some(Box::new(taken)))
            }
        };
        // A tree has room for one heartbeat in each period.
        let urgent_max = if plan.config.controller.is_some() { 0 } else { detector::URGENT_MAX };
        state.detector.set_urgent_max(urgent_max);
        Ok((state, taken))
    }

    /// Gives the engine the state to resume, and lets the agent before end. Returns the socket, and what
    /// the control thread resumes.
    fn hand_to(
        self,
        taken: Option<Box<Taken>>,
        engine: &mut Engine,
        now: Now,
        path: &Path,
    ) -> Result<(Listener, Option<Resumed>), StartError> {
        match (self, taken) {
            (Self::Fresh { listener }, _) => Ok((listener, None)),
            (Self::TakeOver { successor }, taken) => {
                let taken = taken.expect("a takeover has taken something");
                engine.resume(now, taken.frozen, taken.memories);
                let listener = socket::take_over(taken.listener, path);
                successor.taken()?;
                Ok((listener, Some(taken.resumed)))
            }
        }
    }
}

/// This host's lateness, and the timeouts that follow from it.
struct Measured {
    timeouts: Timeouts,
    timeout_ns: u64,
    lateness_ns: u64,
    is_stored: bool,
    rung: Rung,
}

impl Measured {
    fn take(options: &Options, plan: &Plan) -> Result<Self, StartError> {
        let config = &plan.config;
        let late = lateness(&config.state_dir, plan.core, &plan.names, config.heartbeat_ns, config.calibrate_ns)?;
        let timeouts = late.timeouts(config);
        let timeout_ns = timeout(config, &timeouts, options.force_timeout)?;
        let Lateness { lateness_ns, is_stored, rung, .. } = late;
        Ok(Self { timeouts, timeout_ns, lateness_ns, is_stored, rung })
    }

    /// The longest that timeouts may become. Peers that are later than this, measured or planned, get more
    /// time, but no longer promises.
    fn longest_ns(&self) -> u64 {
        match self.timeouts.fixed {
            true => self.timeout_ns,
            false => self.timeout_ns.max(self.timeouts.for_jitter(u64::MAX, Network::default())),
        }
    }
}

/// What needs rights that are given up soon.
struct Rights {
    /// One sender for each plane, to make more from.
    templates: Vec<Sender>,
    rings: Option<ClientRings>,
    /// While these are open, this host receives the packets of planned trees.
    _hears: Vec<OwnedFd>,
}

impl Rights {
    fn take(plan: &Plan, host: &Host) -> Result<Self, StartError> {
        let rings = match &host.kernel {
            Some(kernel) => Some(kernel.receive.client_rings().map_err(|error| StartError::Loop(error.to_string()))?),
            None => None,
        };
        Ok(Self {
            templates: host.senders.iter().map(Sender::another).collect::<io::Result<Vec<_>>>()?,
            rings,
            _hears: if plan.config.controller.is_some() { hear_all(&plan.interfaces)? } else { Vec::new() },
        })
    }
}

/// The loop's thread, which waits for its engine.
struct LoopThread {
    thread: thread::JoinHandle<()>,
    go: mpsc::SyncSender<Engine>,
    /// The result of its isolation.
    measures: Option<Measures>,
}

impl LoopThread {
    /// The thread isolates itself now: during a takeover every millisecond counts.
    fn start(core: usize, exchange: Arc<Exchange>, timeout_ns: u64) -> io::Result<Self> {
        let (isolated, isolation) = mpsc::sync_channel(1);
        let (go, may_go) = mpsc::sync_channel::<Engine>(1);
        let thread = thread::Builder::new().name("fide-loop".to_owned()).spawn(move || {
            let isolation = isolate(core);
            let _ = isolated.send(isolation.measures().clone());
            let _ = privileges::drop_excess();
            let Ok(engine) = may_go.recv() else { return };
            if let Err(error) = engine.run() {
                exchange.end(error.to_string());
                // The control thread ends the process. If it cannot, the lease is over by then.
                thread::sleep(Duration::from_nanos(timeout_ns));
                process::exit(FAILED);
            }
        })?;
        Ok(Self { thread, go, measures: isolation.recv().ok() })
    }

    fn go(&self, engine: Engine) {
        // The thread is waiting for it.
        let _ = self.go.send(engine);
    }

    fn join(self) {
        // A panic would have ended the process.
        let _ = self.thread.join();
    }
}

/// The parts of the host that the control thread keeps.
struct Rest {
    exit_watch: Option<ExitWatch>,
    rungs: Rungs,
    estate: EstateBuilder,
    _joined: Vec<Membership>,
}

/// The loop's parts, and what is left for the control thread.
fn parts(
    plan: &mut Plan,
    state: Begin,
    host: Host,
    measured: &Measured,
    exchange: Arc<Exchange>,
) -> (engine::Parts, Rest) {
    let clock = Clock::begin();
    if let Some(slow) = clock.slow_says() {
        tracing::warn!("{slow}");
    }
    let config = &plan.config;
    let parts = engine::Parts {
        me: plan.me,
        members: u16::try_from(config.members.len()).expect("at most 64"),
        monitors: config.member(plan.me).monitors.iter().copied().collect(),
        heartbeat_ns: config.heartbeat_ns,
        timeouts: measured.timeouts,
        detector: state.detector,
        senders: host.senders,
        trees: config.controller.is_some(),
        salvage: config.salvage(),
        receivers: host.receivers,
        polled: host.polled,
        poll_ns: config.poll_ns(),
        kernel: host.kernel,
        names: config.members.iter().map(|member| name_bytes(member.name.as_str())).collect(),
        table: state.table,
        keys: plan.keys,
        plain: plan.plain,
        shape: plan.shape,
        name: config.member(plan.me).name,
        exchange,
        mode: match config.mode {
            config::Mode::Sleep => Mode::Sleep,
            config::Mode::Busy => Mode::Busy,
        },
        own_lateness_max_ns: measured.lateness_ns,
        own_lateness_stored_ns: if measured.is_stored { measured.lateness_ns } else { 0 },
        votes: plan.votes.take(),
        clock,
    };
    let Host { exit_watch, rungs, estate, joined, .. } = host;
    (parts, Rest { exit_watch, rungs, estate, _joined: joined })
}

/// Starts the threads that follow the controller, if there is one. They take the senders of `rights`.
fn start_trees(
    plan: &Plan,
    rights: &mut Rights,
    incarnation: u32,
    payload_min: usize,
) -> Result<Option<Trees>, StartError> {
    let Some(controller) = &plan.config.controller else { return Ok(None) };
    let templates = std::mem::take(&mut rights.templates);
    let trees = Trees::start(&plan.config, controller, plan.me, incarnation, &plan.names, templates, payload_min)?;
    Ok(Some(trees))
}

/// # Errors
/// [`StartError::Loop`] unless this agent left or handed over, and its loop did not end by itself (`why`).
fn check_end(end: End, why: Option<&str>) -> Result<(), StartError> {
    match (end, why) {
        (End::Left | End::HandedOver, None) => Ok(()),
        (_, why) => Err(StartError::Loop(why.unwrap_or("it stopped").to_owned())),
    }
}

/// Logs that the agent runs, and on which rungs.
fn log_what_runs(options: &Options, plan: &Plan, rungs: &Rungs, incarnation: u32, timeout_ns: u64) {
    if let Some(warning) = ClockRate::read().ok().and_then(|rate| clock::drift_says(plan.config.drift_ppm, rate)) {
        tracing::warn!("{warning}");
    }
    for (ladder, rung) in rungs::all(rungs) {
        match &rung.fell_back {
            Some(why) => tracing::warn!("{ladder}: {}, because {why}", rung.used),
            None => tracing::info!("{ladder}: {}", rung.used),
        }
    }
    tracing::info!(
        host = plan.name(),
        incarnation,
        timeout_us = timeout_ns / 1000,
        socket = %plan.path.display(),
        takeover = options.takeover,
        "agent is running"
    );
}

fn give_up_rights() {
    match privileges::drop_excess() {
        Ok(kept) if kept.is_empty() => {}
        Ok(kept) => tracing::info!("of root's rights {} are kept", kept.join(", ")),
        Err(error) => tracing::warn!("rights that are not needed could not be dropped: {error}"),
    }
}

/// The configuration with the command line's changes, and which of its members this host is.
fn member(options: &Options) -> Result<(Config, u16), StartError> {
    let mut config = Config::load(&options.config)?;
    if let Some(dir) = &options.runtime_dir {
        config.runtime_dir.clone_from(dir);
    }
    if let Some(dir) = &options.state_dir {
        config.state_dir.clone_from(dir);
    }
    let local = interface::addresses().map_err(|why| StartError::Interface { plane: 0, why })?;
    let me = config.identify(options.host.as_deref(), &local)?;
    let is_witness = config.member(me).role == config::Role::Witness;
    if is_witness != options.witness {
        return Err(StartError::Role { name: config.member(me).name.as_str().to_owned(), is_witness });
    }
    Ok((config, me))
}

fn votes(config: &Config, is_witness: bool) -> Result<Option<Votes>, StartError> {
    let hosts = config.members.iter().map(|member| member.name.as_str().to_owned()).collect();
    Ok(if is_witness { Some(Votes::open(&config.state_dir, hosts)?) } else { None })
}

/// The loop's core, after checking that this process may run there.
fn core(config: &Config) -> Result<usize, StartError> {
    let Some(core) = config.core else { return Ok(default_core()) };
    // In a thread of its own, because this one must stay where it is.
    let pinned = thread::spawn(move || pin(core)).join().map_err(|_| io::Error::other("a thread panicked"))?;
    match pinned {
        Ok(()) => Ok(core),
        Err(error) => {
            let online =
                Roots::default().sys("devices/system/cpu/online").ok().and_then(|list| Cpus::from_list(&list).ok());
            let (why, have) = match online {
                Some(online) if online.holds(core) => {
                    (format!("this process may not run there ({error})"), "name one that it may use".to_owned())
                }
                Some(online) => {
                    ("there is no such core".to_owned(), format!("this host has {online}: name one of these"))
                }
                None => (error.to_string(), "name another".to_owned()),
            };
            Err(StartError::Core { at: config.place_of("agent", "core"), core, why, have })
        }
    }
}

/// Without one of its threads an agent would be half dead: it would keep its socket and its packets, and
/// answer nobody. So a panic ends the whole process, and the kernel takes back what it held.
fn end_on_panic() {
    let says = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        says(panicked);
        let name = thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!("the thread {name} has panicked, and so this agent ends");
        process::exit(FAILED);
    }));
}

/// Trees change their groups, so a host receives every group that reaches it.
fn hear_all(interfaces: &[Interface]) -> Result<Vec<OwnedFd>, StartError> {
    let hear = |(plane, interface)| {
        hear_all_groups(interface).map_err(|why| StartError::Link {
            plane,
            what: "planned trees cannot be received",
            why,
        })
    };
    interfaces.iter().enumerate().map(hear).collect()
}

fn interfaces(config: &Config, me: HostId) -> Result<Vec<Interface>, StartError> {
    let addresses = config.member(me).addresses.iter().enumerate();
    addresses
        .map(|(plane, address)| interface::by_address(*address).map_err(|why| StartError::Interface { plane, why }))
        .collect()
}

fn timeout(config: &Config, timeouts: &Timeouts, force: bool) -> Result<u64, StartError> {
    let measured_ns = timeouts.for_jitter(0, Network::default());
    match config.timeout_ns {
        None => Ok(measured_ns),
        Some(wanted_ns) if wanted_ns >= measured_ns || force => Ok(wanted_ns),
        Some(wanted_ns) => Err(StartError::Timeout {
            at: config.place_of("cluster", "timeout_us"),
            why: TimeoutTooShort {
                wanted_ns,
                measured_ns,
                heartbeat_ns: config.heartbeat_ns,
                lateness_ns: timeouts.own_lateness_ns,
                kind: timeouts.kind,
            },
        }),
    }
}
