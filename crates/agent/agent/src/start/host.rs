// SPDX-License-Identifier: Apache-2.0
//! What this host can offer: sockets and BPF programs, each on the best rung that works.

use std::os::fd::OwnedFd;

use fide_bpf::{ExitWatch, ExitWatchFds, Receive, ReceiveFds, Settings, XdpMode, intf};
use fide_net::link::{Destination, Membership, Polled, Receiver, Sender, Sockets};
use fide_shm::bpf_ring::BpfRing;
use fide_sys::interface::Interface;
use fide_types::HostId;
use fide_wire::{Keys, MAX_PLANES};

use super::{
    StartError, receive,
    windows::{self, OpenWindows},
};
use crate::config::{Config, ExitRung, ReceiveRung};
use crate::control::Estate;
use crate::engine::Kernel;
use crate::handover::{HandoverError, Inherited};
use fide_agent_api::status::{Rung, Rungs};

/// The rungs that this host offers.
pub(super) struct Host {
    pub(super) senders: Vec<Sender>,
    pub(super) receivers: Vec<Option<Receiver>>,
    /// Planes that are no networks.
    pub(super) polled: Vec<Box<dyn Polled>>,
    pub(super) joined: Vec<Membership>,
    pub(super) kernel: Option<Kernel>,
    pub(super) exit_watch: Option<ExitWatch>,
    pub(super) rungs: Rungs,
    pub(super) estate: EstateBuilder,
}

/// Collects the descriptors that the next agent would take over.
pub(super) struct EstateBuilder {
    sockets: Vec<Sockets>,
    receive: Vec<OwnedFd>,
    links: usize,
    native: bool,
    pub(super) table: Option<OwnedFd>,
}

impl EstateBuilder {
    pub(super) fn complete(self) -> Estate {
        Estate {
            sockets: self.sockets,
            receive: self.receive,
            links: self.links,
            native: self.native,
            table: self.table.expect("set with the table"),
        }
    }
}

/// # Errors
/// [`StartError`]: a demanded rung is not available, or no rung of a ladder is.
pub(super) fn open_host(
    config: &Config,
    me: HostId,
    keys: &Keys,
    interfaces: &[Interface],
    inherited: Option<Inherited>,
    opens_windows: Option<OpenWindows>,
) -> Result<Host, StartError> {
    let mut inherited = inherited;
    let opened = windows::open(config, me, opens_windows)?;
    let destinations: Vec<Destination> = (0..interfaces.len()).map(|plane| destination(config, me, plane)).collect();
    let (senders, send) = open_senders(interfaces, &destinations, config.port)?;

    let maps = inherited.as_mut().map(|inherited| inherited.receive.take());
    let (mut receive, no_bpf) = match load(config, me, keys, interfaces, maps) {
        Ok(receive) => (Some(receive), None),
        // The links would go on with a program that nobody serves.
        Err(why) if inherited.as_ref().is_some_and(|inherited| inherited.mode.is_some()) => {
            return Err(HandoverError::Program(why).into());
        }
        Err(why) => (None, Some(why)),
    };
    let (mode, no_xdp) = match &inherited {
        // The links of the agent before stay, with the new program.
        Some(inherited) => (inherited.mode, None),
        None => receive::attach(config.receive, receive.as_mut(), interfaces, no_bpf.as_ref(), config.has_windows())?,
    };
    let planes = match &mut inherited {
        Some(inherited) => take_over_planes(inherited, mode, interfaces.len())?,
        None => {
            let links: Vec<_> = interfaces.iter().zip(&destinations).collect();
            receive::open(config.receive, mode, no_xdp.as_ref(), &links, config.port)?
        }
    };

    let watched = inherited.and_then(|inherited| inherited.watched);
    let (exit_watch, exit_rung) = exit_watch(config.exit_watch, receive.as_ref(), no_bpf.as_ref(), watched)?;
    let (shared, links) = share(receive.as_ref())?;
    let estate = EstateBuilder {
        sockets: planes.sockets,
        receive: shared,
        links,
        native: mode == Some(XdpMode::Native),
        table: None,
    };
    let kernel = match receive {
        Some(receive) => Some(map_kernel(receive, mode)?),
        None => None,
    };
    let sends = send.into_iter().chain(opened.rungs.iter().map(|_| Rung::new("windows", None))).collect();
    let receives = planes.rungs.into_iter().chain(opened.rungs).collect();
    let rungs = rungs(receives, sends, exit_rung, kernel.as_ref(), no_bpf);
    Ok(Host {
        senders,
        receivers: planes.receivers,
        polled: opened.planes,
        joined: planes.joined,
        kernel,
        exit_watch,
        rungs,
        estate,
    })
}

/// One sender for each plane, and its rung.
fn open_senders(
    interfaces: &[Interface],
    destinations: &[Destination],
    port: u16,
) -> Result<(Vec<Sender>, Vec<Rung>), StartError> {
    let mut senders = Vec::new();
    let mut rungs = Vec::new();
    for (plane, (interface, destination)) in interfaces.iter().zip(destinations).enumerate() {
        let (sender, why) = Sender::open(interface, destination, port).map_err(|why| StartError::Link {
            plane,
            what: "nothing can be sent",
            why,
        })?;
        rungs.push(Rung::new(sender.rung(), why));
        senders.push(sender);
    }
    Ok((senders, rungs))
}

/// Goes on with the sockets of the agent before, which has to have as many planes as this one.
fn take_over_planes(
    inherited: &mut Inherited,
    mode: Option<XdpMode>,
    mine: usize,
) -> Result<receive::Planes, StartError> {
    let theirs = inherited.sockets.len();
    if theirs != mine {
        let what = format!("it has {theirs} planes, the configuration has {mine}");
        return Err(HandoverError::Nonsense(what).into());
    }
    receive::take_over(mode, std::mem::take(&mut inherited.sockets))
}

/// Copies of the receive program's files for the next agent, and how many of them are links.
fn share(receive: Option<&Receive>) -> Result<(Vec<OwnedFd>, usize), StartError> {
    let Some(receive) = receive else { return Ok((Vec::new(), 0)) };
    let mut shared = Vec::new();
    for fd in receive.fds() {
        shared.push(fd.try_clone_to_owned()?);
    }
    Ok((shared, receive.links()))
}

fn map_kernel(receive: Receive, mode: Option<XdpMode>) -> Result<Kernel, StartError> {
    let ring =
        BpfRing::map(receive.wake_fd(), intf::WAKE_RING_BYTES).map_err(|error| StartError::Loop(error.to_string()))?;
    Ok(Kernel { receive, ring, xdp: mode.is_some() })
}

/// The rungs that are known so far; the others stay empty until they are measured or taken.
fn rungs(
    receive: Vec<Rung>,
    send: Vec<Rung>,
    exit_watch: Rung,
    kernel: Option<&Kernel>,
    no_bpf: Option<String>,
) -> Rungs {
    Rungs {
        receive,
        send,
        exit_watch,
        events: match kernel {
            Some(_) => Rung::new("bpf ring", None),
            None => Rung::new("shared memory and timer", no_bpf),
        },
        timer: match kernel {
            Some(kernel) if kernel.xdp => Rung::new("bpf timer", None),
            _ => Rung::new("the loop's own", Some("heartbeats do not come through XDP".to_owned())),
        },
        bound: Rung::new("", None),
        core: Rung::new("", None),
        priority: Rung::new("", None),
        memory: Rung::new("", None),
        c_states: Rung::new("", None),
        isolated: Rung::new("", None),
    }
}

fn destination(config: &Config, me: HostId, plane: usize) -> Destination {
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

/// `maps`: the maps of the agent before; `Some(None)` if it had none, and this one then has none either.
fn load(
    config: &Config,
    me: HostId,
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
        // Regardless of the configuration, because the links stay.
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
