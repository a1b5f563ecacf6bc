// SPDX-License-Identifier: Apache-2.0
//! From a configuration to a running agent.

mod held;
mod receive;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::mpsc,
    thread,
};

use fide_bpf::{ExitWatch, ExitWatchFds, Receive, ReceiveFds, Settings, XdpMode, intf};
use fide_detector::{self as detector, Detector, HostSet};
use fide_lane::{
    interface::{self, Interface, InterfaceError},
    isolation::{Urgent, default_core, isolate},
    link::{Destination, Membership, Receiver, Sender, Sockets, hear_all_groups},
    now_ns,
    pace::Mode,
};
use fide_shm::{
    bpf_ring::BpfRing,
    region::RegionError,
    session::AgentSession,
    table::{AliveTable, name_bytes},
};
use fide_wire::{Keys, MAX_PLANES, PAYLOAD_MAX, PIGGYBACK_MAX};

use held::{Held, held};

use crate::{
    command::{Channel, Exchange, Memory},
    config::{self, Config, ConfigError, ExitRung, ReceiveRung},
    control::{self, Control, End, Estate, Resumed},
    engine::{self, Engine, Frozen, Kernel},
    handover::{HandoverError, Inherited, Successor},
    incarnation::{self, IncarnationError},
    key::{self, KeyFileError},
    notify::Notify,
    privileges,
    rungs::{Rung, Rungs},
    signals::Signals,
    socket::{ListenError, Listener},
    timeout::{Network, TimeoutTooShort, Timeouts},
    trees::{Trees, TreesError},
    vote::{VoteError, Votes},
};

/// What the command line adds to the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the configuration.
    pub config: PathBuf,
    /// Which member this host is; else found by its addresses.
    pub host: Option<String>,
    /// Instead of the configured ones.
    pub runtime_dir: Option<PathBuf>,
    pub state_dir: Option<PathBuf>,
    /// Take a timeout that this host was measured not to hold.
    pub force_timeout: bool,
    /// Replace the running agent without a missed beat.
    pub takeover: bool,
    /// As the cluster's witness, which this member has to be.
    pub witness: bool,
}

/// Why an agent did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    #[error(transparent)]
    Vote(#[from] VoteError),
    #[error("{}", role_says(name, *is_witness))]
    Role { name: String, is_witness: bool },
    #[error("plane {plane}: {source}")]
    Interface { plane: usize, source: InterfaceError },
    #[error("plane {plane}: {what}: {source}")]
    Link { plane: usize, what: &'static str, source: io::Error },
    /// A rung was demanded and is not to be had.
    #[error("{wanted} was demanded and is not to be had here: {why}; \"auto\" takes the next best")]
    Rung { wanted: &'static str, why: String },
    #[error(
        "interfaces {names}: the smallest MTU is {mtu_bytes} bytes, the heartbeats of this cluster need {need_bytes}: \
         `ip link set INTERFACE mtu {need_bytes}`, or more, or fewer members"
    )]
    Mtu { names: String, mtu_bytes: usize, need_bytes: usize },
    #[error(transparent)]
    Timeout(#[from] TimeoutTooShort),
    #[error(transparent)]
    Detector(#[from] detector::ConfigError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("takeover: {0}")]
    Handover(#[from] HandoverError),
    #[error("trees: {0}")]
    Trees(#[from] TreesError),
    #[error("shared memory: {0}")]
    Memory(#[from] RegionError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the agent's loop ended by itself: {0}")]
    Loop(String),
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

/// Runs an agent in the calling thread until it is told to leave.
///
/// # Errors
/// [`StartError`].
pub fn run(options: &Options) -> Result<(), StartError> {
    let signals = Signals::block()?;
    let mut config = Config::load(&options.config)?;
    if let Some(dir) = &options.runtime_dir {
        config.runtime_dir.clone_from(dir);
    }
    if let Some(dir) = &options.state_dir {
        config.state_dir.clone_from(dir);
    }
    let local = interface::addresses().map_err(|source| StartError::Interface { plane: 0, source })?;
    let me = config.identify(options.host.as_deref(), &local)?;
    let is_witness = config.member(me).role == config::Role::Witness;
    if is_witness != options.witness {
        return Err(StartError::Role { name: config.member(me).name.as_str().to_owned(), is_witness });
    }
    let hosts = || config.members.iter().map(|member| member.name.as_str().to_owned()).collect();
    let mut votes = if is_witness { Some(Votes::open(&config.state_dir, hosts())?) } else { None };
    let keys = Keys::from(key::load(&config.key_file)?);
    let interfaces = interfaces(&config, me)?;
    let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
    let core = config.core.unwrap_or_else(default_core);
    let path = config.runtime_dir.join("agent.sock");

    // Before anything is attached: a second agent must find out without disturbing the first.
    let (successor, inherited, listener) = if options.takeover {
        let (successor, inherited) = Successor::prepare(&path)?;
        (Some(successor), Some(inherited), None)
    } else {
        (None, None, Some(Listener::bind(&path)?))
    };
    let Held { kind, lateness_ns, rung: bound } =
        held(&config.state_dir, core, &names, config.heartbeat_ns, config.calibrate_ns)?;
    let timeouts = Timeouts {
        trust: config.trust,
        heartbeat_ns: config.heartbeat_ns,
        kind,
        own_lateness_ns: lateness_ns,
        fixed: config.timeout_ns.is_some(),
    };
    let timeout_ns = timeout(&config, &timeouts, options.force_timeout)?;
    let mut host = open_host(&config, me, &keys, &interfaces, inherited)?;
    // More of them need rights that are given up soon.
    let templates = host.senders.iter().map(Sender::another).collect::<io::Result<Vec<_>>>()?;
    let hears = if config.controller.is_some() { hear_all(&interfaces)? } else { Vec::new() };
    host.rungs.bound = bound;
    let rings = match &host.kernel {
        Some(kernel) => Some(kernel.receive.client_rings().map_err(|error| StartError::Loop(error.to_string()))?),
        None => None,
    };
    let members = u16::try_from(config.members.len()).expect("at most 64");
    let exchange = Exchange::new()?;
    let name = config.member(me).name.as_str().to_owned();

    // The loop's thread isolates itself now: during a takeover every millisecond counts.
    let (told, isolation) = mpsc::sync_channel(1);
    let (go, may_go) = mpsc::sync_channel::<Engine>(1);
    let loop_thread = thread::Builder::new().name("fide-loop".to_owned()).spawn(move || {
        let isolation = isolate(core);
        let _ = told.send(isolation.measures().clone());
        let _ = privileges::drop_excess();
        may_go.recv().map_or(Ok(()), |engine| engine.run().map(drop))
    })?;
    if let Ok(measures) = isolation.recv() {
        host.rungs.isolate(&measures);
    }

    // The state: fresh, or that of the agent before, which is frozen from here on.
    let urgent = successor.is_some().then(Urgent::begin);
    let begin = match &successor {
        None => {
            let recalled = votes.as_mut().and_then(Votes::recall);
            let incarnation = match &recalled {
                Some((vote, _)) => vote.incarnation,
                None => incarnation::next(&config.state_dir)?,
            };
            let slack_ns = timeouts.stall_slack_ns(lateness_ns);
            let mut detector = detector_config(&config, me, incarnation, timeout_ns, slack_ns);
            detector.payload_max = config.payload_max(payload_max(&names)?);
            if detector.payload_max < detector.payload_min() {
                return Err(StartError::Mtu {
                    names: names.join(", "),
                    mtu_bytes: detector.payload_max + PACKET_HEADERS,
                    need_bytes: detector.payload_min() + PACKET_HEADERS,
                });
            }
            let detector = match &recalled {
                Some((vote, life)) => Detector::resume(detector, vote, *life, now_ns())?,
                None => Detector::new(detector, now_ns())?,
            };
            if let Some(votes) = &mut votes {
                votes.store(&detector.vote())?;
                match recalled {
                    Some((_, life)) => {
                        tracing::info!("this witness goes on as incarnation {incarnation}, its life {life}")
                    }
                    None => tracing::warn!(
                        "this witness remembers no vote: its first start, or its state_dir was lost; the others have to let it in"
                    ),
                }
            }
            Begin {
                detector,
                table: AliveTable::create(me, members, incarnation, &name, now_ns())?,
                incarnation,
                timeout_ns,
                resumed: None,
            }
        }
        Some(successor) => taken_over(successor, &name)?,
    };
    let Begin { detector, table, incarnation, timeout_ns, resumed } = begin;
    let payload_min = detector.config().payload_min();
    let parts = engine::Parts {
        me,
        members,
        monitors: config.member(me).monitors.iter().copied().collect(),
        heartbeat_ns: config.heartbeat_ns,
        timeouts,
        detector,
        senders: host.senders,
        trees: config.controller.is_some(),
        salvage: config.salvage(),
        receivers: host.receivers,
        kernel: host.kernel,
        names: config.members.iter().map(|member| name_bytes(member.name.as_str())).collect(),
        table,
        keys,
        exchange: exchange.clone(),
        mode: match config.mode {
            config::Mode::Sleep => Mode::Sleep,
            config::Mode::Busy => Mode::Busy,
        },
        own_lateness_max_ns: lateness_ns,
        votes,
    };
    let readable = parts.table.read_only_fd()?;
    host.estate.table = Some(parts.table.as_fd().try_clone_to_owned()?);
    let mut engine = Engine::new(parts)?;
    let (listener, resumed) = match resumed {
        None => (listener, None),
        Some(taken) => {
            engine.resume(taken.frozen, taken.memories);
            (Some(Listener::take_over(taken.listener, &path)), Some(taken.resumed))
        }
    };
    let listener = listener.expect("bound, or taken over");

    if let Some(successor) = successor {
        successor.taken()?;
    }
    // The thread waits for it.
    let _ = go.send(engine);
    drop(urgent);

    for (ladder, rung) in host.rungs.all() {
        match &rung.fell_back {
            Some(why) => tracing::warn!("{ladder}: {}, because {why}", rung.used),
            None => tracing::info!("{ladder}: {}", rung.used),
        }
    }
    tracing::info!(
        host = name,
        incarnation,
        timeout_us = timeout_ns / 1000,
        socket = %path.display(),
        takeover = options.takeover,
        "agent is running"
    );
    let _joined = host.joined;
    let _hears = hears;
    let trees = match &config.controller {
        Some(controller) => Some(Trees::start(&config, controller, me, incarnation, &names, templates, payload_min)?),
        None => None,
    };
    let mut control = Control::new(
        control::Parts {
            config,
            me,
            listener,
            exchange,
            rings,
            exit_watch: host.exit_watch,
            table: readable,
            keys,
            rungs: host.rungs,
            incarnation,
            timeout_ns,
            interfaces: names,
            signals,
            estate: host.estate.complete(),
            trees,
        },
        Notify::from_env(),
    )?;
    if let Some(resumed) = resumed {
        control.resume(resumed)?;
    }
    match privileges::drop_excess() {
        Ok(kept) if kept.is_empty() => {}
        Ok(kept) => tracing::info!("of root's rights {} are kept", kept.join(", ")),
        Err(error) => tracing::warn!("rights that are not needed could not be dropped: {error}"),
    }
    let end = control.run()?;
    match (end, loop_thread.join()) {
        (End::Left | End::HandedOver, Ok(Ok(()))) => Ok(()),
        (_, Ok(Err(error))) => Err(StartError::Loop(error.to_string())),
        (_, Err(_)) => Err(StartError::Loop("it panicked".to_owned())),
        (End::EngineGone, Ok(Ok(()))) => Err(StartError::Loop("it stopped".to_owned())),
    }
}

/// Trees change their groups; a host takes in what reaches it.
fn hear_all(interfaces: &[Interface]) -> Result<Vec<OwnedFd>, StartError> {
    let hear = |(plane, interface)| {
        hear_all_groups(interface).map_err(|source| StartError::Link {
            plane,
            what: "planned trees cannot be received",
            source,
        })
    };
    interfaces.iter().enumerate().map(hear).collect()
}

/// What the loop begins with.
struct Begin {
    detector: Detector,
    table: AliveTable,
    incarnation: u32,
    timeout_ns: u64,
    resumed: Option<Taken>,
}

/// What came from the agent before.
struct Taken {
    frozen: Frozen,
    memories: Vec<(u8, Box<Memory>)>,
    listener: OwnedFd,
    resumed: Resumed,
}

fn taken_over(successor: &Successor, name: &str) -> Result<Begin, StartError> {
    let (state, fds) = successor.switch()?;
    if state.host != name {
        return Err(HandoverError::Nonsense(format!("it is the agent of {}, this is {name}", state.host)).into());
    }
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(|| HandoverError::Nonsense("descriptors are missing".to_owned()));
    let listener = next()?;
    let table = AliveTable::take_over(next()?)?;
    let mut memories = Vec::new();
    let mut sessions = Vec::new();
    for session in state.sessions {
        let (region, events) = (next()?, next()?);
        let channel = if session.ring { Channel::Ring } else { Channel::Inbox(events.try_clone()?) };
        let doorbell = control::doorbell()?;
        let region_here = AgentSession::take_over(region.try_clone()?)?;
        let memory = Memory { region: region_here, channel, doorbell: doorbell.try_clone()? };
        memories.push((session.client, Box::new(memory)));
        sessions.push((session, region, events, doorbell));
    }
    let mut processes = Vec::new();
    for process in state.processes {
        processes.push((process, next()?));
    }
    let detector = state.frozen.detector().map_err(|error| HandoverError::Nonsense(error.to_string()))?;
    Ok(Begin {
        detector,
        table,
        incarnation: state.incarnation,
        timeout_ns: state.timeout_ns,
        resumed: Some(Taken {
            frozen: state.frozen,
            memories,
            listener,
            resumed: Resumed { sessions, processes, journal: state.journal },
        }),
    })
}

fn interfaces(config: &Config, me: u16) -> Result<Vec<Interface>, StartError> {
    let addresses = config.member(me).addresses.iter().enumerate();
    addresses
        .map(|(plane, address)| {
            interface::by_address(*address).map_err(|source| StartError::Interface { plane, source })
        })
        .collect()
}

fn timeout(config: &Config, timeouts: &Timeouts, force: bool) -> Result<u64, StartError> {
    let measured_ns = timeouts.for_jitter(0, Network::default());
    match config.timeout_ns {
        None => Ok(measured_ns),
        Some(wanted_ns) if wanted_ns >= measured_ns || force => Ok(wanted_ns),
        Some(wanted_ns) => Err(TimeoutTooShort {
            wanted_ns,
            measured_ns,
            heartbeat_ns: config.heartbeat_ns,
            lateness_ns: timeouts.own_lateness_ns,
            kind: timeouts.kind,
        }
        .into()),
    }
}

fn detector_config(
    config: &Config,
    me: u16,
    incarnation: u32,
    timeout_ns: u64,
    stall_slack_ns: u64,
) -> detector::Config {
    detector::Config {
        me,
        incarnation,
        members: (1u16..)
            .zip(&config.members)
            .map(|(id, member)| detector::Member {
                id,
                name: member.name,
                role: match member.role {
                    config::Role::Voter => detector::Role::Voter,
                    config::Role::Observer => detector::Role::Observer,
                    config::Role::Witness => detector::Role::Witness,
                },
                monitors: member.monitors.iter().copied().collect::<HostSet>(),
            })
            .collect(),
        planes: u8::try_from(config.planes.len()).expect("at most 2"),
        heartbeat_ns: config.heartbeat_ns,
        trust: match config.trust {
            config::Trust::Network => detector::Trust::Network,
            config::Trust::Lease => detector::Trust::Lease,
        },
        policy: match config.policy {
            config::Policy::Network => detector::Policy::Network,
            config::Policy::Majority => detector::Policy::Majority,
        },
        timeout_ns,
        stall_slack_ns,
        drift_ppm: detector::config::DRIFT_PPM,
        piggyback_max: PIGGYBACK_MAX,
        payload_max: PAYLOAD_MAX,
    }
}

/// IPv4 and UDP.
const PACKET_HEADERS: usize = 28;

/// The largest packet that all of these interfaces carry, bytes of UDP payload.
///
/// # Errors
/// The kernel's, if one of them is gone.
pub(crate) fn payload_max(names: &[String]) -> io::Result<usize> {
    names
        .iter()
        .try_fold(PAYLOAD_MAX, |least, name| Ok(interface::mtu_bytes(name)?.saturating_sub(PACKET_HEADERS).min(least)))
}

/// The rungs this host grants.
struct Host {
    senders: Vec<Sender>,
    receivers: Vec<Option<Receiver>>,
    joined: Vec<Membership>,
    kernel: Option<Kernel>,
    exit_watch: Option<ExitWatch>,
    rungs: Rungs,
    estate: EstateBuilder,
}

/// What the next agent would take over, as far as it is known.
struct EstateBuilder {
    sockets: Vec<Sockets>,
    receive: Vec<OwnedFd>,
    links: usize,
    native: bool,
    table: Option<OwnedFd>,
}

impl EstateBuilder {
    fn complete(self) -> Estate {
        Estate {
            sockets: self.sockets,
            receive: self.receive,
            links: self.links,
            native: self.native,
            table: self.table.expect("set with the table"),
        }
    }
}

fn open_host(
    config: &Config,
    me: u16,
    keys: &Keys,
    interfaces: &[Interface],
    inherited: Option<Inherited>,
) -> Result<Host, StartError> {
    let mut inherited = inherited;
    let destinations: Vec<Destination> = (0..interfaces.len()).map(|plane| destination(config, me, plane)).collect();
    let mut senders = Vec::new();
    let mut send = Vec::new();
    for (plane, (interface, destination)) in interfaces.iter().zip(&destinations).enumerate() {
        let (sender, why) = Sender::open(interface, destination, config.port).map_err(|source| StartError::Link {
            plane,
            what: "nothing can be sent",
            source,
        })?;
        send.push(Rung::new(sender.rung(), why));
        senders.push(sender);
    }

    let maps = inherited.as_mut().map(|inherited| inherited.receive.take());
    let (mut receive, no_bpf) = match load(config, me, keys, interfaces, maps) {
        Ok(receive) => (Some(receive), None),
        // Its links would go on with a program that nobody serves.
        Err(why) if inherited.as_ref().is_some_and(|inherited| inherited.mode.is_some()) => {
            return Err(HandoverError::Program(why).into());
        }
        Err(why) => (None, Some(why)),
    };
    let (mode, no_xdp) = match &inherited {
        // The links are those of the agent before, with the new program.
        Some(inherited) => (inherited.mode, None),
        None => receive::attach(config.receive, receive.as_mut(), interfaces, no_bpf.as_ref())?,
    };
    let planes = match &mut inherited {
        Some(inherited) => {
            let (theirs, mine) = (inherited.sockets.len(), interfaces.len());
            if theirs != mine {
                let what = format!("it has {theirs} planes, the configuration has {mine}");
                return Err(HandoverError::Nonsense(what).into());
            }
            receive::take_over(mode, std::mem::take(&mut inherited.sockets))?
        }
        None => {
            let links: Vec<_> = interfaces.iter().zip(&destinations).collect();
            receive::open(config.receive, mode, no_xdp.as_ref(), &links, config.port)?
        }
    };

    let watched = inherited.and_then(|inherited| inherited.watched);
    let (exit_watch, exit_rung) = exit_watch(config.exit_watch, receive.as_ref(), no_bpf.as_ref(), watched)?;
    let mut estate_receive = Vec::new();
    let mut links = 0;
    if let Some(receive) = &receive {
        for fd in receive.fds() {
            estate_receive.push(fd.try_clone_to_owned()?);
        }
        links = receive.links();
    }
    let estate = EstateBuilder {
        sockets: planes.sockets,
        receive: estate_receive,
        links,
        native: mode == Some(XdpMode::Native),
        table: None,
    };
    let kernel = match receive {
        Some(receive) => {
            let ring = BpfRing::map(receive.wake_fd(), intf::WAKE_RING_BYTES)
                .map_err(|error| StartError::Loop(error.to_string()))?;
            Some(Kernel { receive, ring, xdp: mode.is_some() })
        }
        None => None,
    };
    let without = |what: &str| Rung::new(what, no_bpf.clone());
    let rungs = Rungs {
        receive: planes.rungs,
        send,
        exit_watch: exit_rung,
        events: if kernel.is_some() { Rung::new("bpf ring", None) } else { without("shared memory and eventfd") },
        timer: match (&kernel, mode) {
            (Some(_), Some(_)) => Rung::new("bpf timer", None),
            _ => Rung::new("the loop's own", Some("heartbeats do not come through XDP".to_owned())),
        },
        bound: Rung::new("", None),
        core: Rung::new("", None),
        priority: Rung::new("", None),
        memory: Rung::new("", None),
        c_states: Rung::new("", None),
        isolated: Rung::new("", None),
    };
    Ok(Host { senders, receivers: planes.receivers, joined: planes.joined, kernel, exit_watch, rungs, estate })
}

fn destination(config: &Config, me: u16, plane: usize) -> Destination {
    match config.planes[plane].group {
        _ if config.controller.is_some() => {
            let (first, last) = fide_wire::TREE_GROUPS;
            Destination::Trees { first, last }
        }
        Some(group) => Destination::Group(group),
        None => Destination::Peers(
            (1u16..)
                .zip(&config.members)
                .filter(|(id, _)| *id != me)
                .map(|(_, member)| member.addresses[plane])
                .collect(),
        ),
    }
}

/// `maps`: those of the agent before; `Some(None)` if it had none, which is then the rung of this one too.
fn load(
    config: &Config,
    me: u16,
    keys: &Keys,
    interfaces: &[Interface],
    maps: Option<Option<ReceiveFds>>,
) -> Result<Receive, String> {
    let mut ifindex = [0; MAX_PLANES];
    for (slot, interface) in ifindex.iter_mut().zip(interfaces) {
        *slot = interface.index;
    }
    let settings = Settings {
        me,
        members: u16::try_from(config.members.len()).expect("at most 64"),
        port: config.port,
        ifindex,
        any_plane: config.controller.is_some(),
        salvage: config.salvage(),
        key: keys.current.0,
    };
    let maps = match maps {
        Some(None) => return Err("the agent before had no BPF programs".to_owned()),
        // Whatever the configuration asks for: its links stay.
        Some(maps) => maps,
        None => None,
    };
    match (config.receive, config.exit_watch) {
        _ if maps.is_some() => {}
        (ReceiveRung::AfPacket, ExitRung::Pidfd) => return Err("the configuration asks for af-packet and pidfd".into()),
        (ReceiveRung::Udp, ExitRung::Pidfd) => return Err("the configuration asks for udp and pidfd".into()),
        _ => {}
    }
    Receive::load(&settings, maps).map_err(|error| error.to_string())
}

fn exit_watch(
    wanted: ExitRung,
    receive: Option<&Receive>,
    no_bpf: Option<&String>,
    watched: Option<OwnedFd>,
) -> Result<(Option<ExitWatch>, Rung), StartError> {
    let inherited = watched.map(|watched| ExitWatchFds { watched });
    let attached = match (wanted, receive) {
        (ExitRung::Pidfd, _) => Err("the configuration asks for it".to_owned()),
        (_, None) => Err(no_bpf.cloned().unwrap_or_default()),
        (_, Some(_)) if !in_initial_pid_namespace() => {
            Err("this agent runs in a pid namespace, where the kernel's hook sees other process ids".to_owned())
        }
        (_, Some(receive)) => {
            ExitWatch::attach(receive.wake_fd(), receive.stats_fd(), inherited).map_err(|error| error.to_string())
        }
    };
    match (wanted, attached) {
        (_, Ok(watch)) => Ok((Some(watch), Rung::new("sched_process_exit", None))),
        (ExitRung::Bpf, Err(why)) => Err(StartError::Rung { wanted: "exit_watch = \"bpf\"", why }),
        (_, Err(why)) => Ok((None, Rung::new("pidfd", Some(why)))),
    }
}

fn in_initial_pid_namespace() -> bool {
    // include/linux/proc_ns.h: PROC_PID_INIT_INO.
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}
