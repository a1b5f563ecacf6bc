// SPDX-License-Identifier: Apache-2.0
//! Sends and hears LLDP at ports of this machine, each in its network namespace, for a bounded time.
//!
//! Frames pass a port's queueing discipline as best effort: they never go before the lane. A port is
//! changed only in that it accepts LLDP's multicast address while the probe listens.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fide_net::link::group_socket;
use fide_sys::{ethtool, interface};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::figures::{Figure, Source};
use crate::lldp::{ETHERTYPE, FRAME_MAX_BYTES, Frame, NEAREST_BRIDGE, Role};
use crate::survey::End;

/// Most ports of one probe; each takes a descriptor.
pub const PORTS_MAX: usize = 4096;
/// Different frames kept of one port; further ones are counted as refused.
pub const HEARD_MAX: usize = 16;
/// Frames read at one port before the others have their turn.
const READS_MAX: usize = 32;
/// How long an announcement holds, seconds: for programs that keep a table of neighbours; the default of
/// IEEE 802.1AB.
const TTL_S: u16 = 120;
/// Between two checks whether the probe has to stop.
const LOOK: Duration = Duration::from_millis(100);

/// A port at which to send and listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The role to announce.
    pub at: End,
    pub role: Role,
    /// Path of its network namespace; none: the caller's own.
    pub netns: Option<PathBuf>,
    /// A limit below its speed.
    pub limit: Option<Figure>,
}

/// How to probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Total duration.
    pub wait: Duration,
    /// Between two frames of one port. Longer than `wait`: one is sent.
    pub period: Duration,
    /// Take announcements back at the end, so that no table keeps them.
    pub farewell: bool,
}

/// The results of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Each different frame once.
    pub frames: Vec<Frame>,
    /// Frames that were wrong, or too many.
    pub refused: u64,
    /// What was wrong with the first of them.
    pub why_refused: Option<String>,
    /// Why sending failed at first, if it did.
    pub unsent: Option<String>,
    /// Limit or speed of the port, the smaller.
    pub rate: Option<Figure>,
}

/// Why ports cannot be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{0} ports; at most {PORTS_MAX} are probed at once")]
    TooMany(usize),
    #[error("entering namespace {}: {why}", path.display())]
    Namespace { path: PathBuf, why: io::Error },
    #[error("{at}: there is no interface of that name{}", place(.netns.as_deref()))]
    NoInterface { at: End, netns: Option<PathBuf> },
    #[error("{at}: opening a socket for LLDP: {why}{}", hint(.why))]
    Open { at: End, why: io::Error },
    #[error("{at}: {why}")]
    Frame { at: End, why: crate::lldp::FrameError },
    #[error("waiting for frames: {0}")]
    Wait(io::Error),
}

impl ProbeError {
    /// Whether a permission is missing.
    #[must_use]
    pub fn denied(&self) -> bool {
        match self {
            ProbeError::Namespace { why, .. } | ProbeError::Open { why, .. } => {
                why.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }
}

fn place(netns: Option<&Path>) -> String {
    netns.map_or_else(|| " in this network namespace".into(), |path| format!(" in namespace {}", path.display()))
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; it needs CAP_NET_RAW",
        _ if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    }
}

struct Open {
    socket: OwnedFd,
    says: Frame,
    bytes: Vec<u8>,
    heard: Heard,
}

/// Sends and listens at all ports until the time is over, or `stop` is set. Returns the frames of each
/// port, in their order.
///
/// # Errors
/// [`ProbeError`], before anything is sent. A port that is down is no error.
pub fn probe(ports: &[Port], pace: Pace, stop: &AtomicBool) -> Result<Vec<Heard>, ProbeError> {
    if ports.len() > PORTS_MAX {
        return Err(ProbeError::TooMany(ports.len()));
    }
    let mut open = open_all(ports)?;
    let end = Instant::now() + pace.wait;
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if now >= next {
            open.iter_mut().for_each(Open::speak);
            next = now + pace.period;
        }
        if now >= end || stop.load(Ordering::Relaxed) {
            break;
        }
        wait(&mut open, next.min(end).saturating_duration_since(now).min(LOOK))?;
    }
    if pace.farewell {
        for port in &mut open {
            if let Ok(bytes) = port.says.shutdown().emit() {
                // At a port that is down there is nobody to take it back from.
                let _ = send(&port.socket, &bytes, SendFlags::DONTWAIT);
            }
        }
    }
    Ok(open.into_iter().map(|port| port.heard).collect())
}

/// Opens all before anything is sent, so that no answer is missed.
fn open_all(ports: &[Port]) -> Result<Vec<Open>, ProbeError> {
    let mut by_place: BTreeMap<Option<&Path>, Vec<usize>> = BTreeMap::new();
    for (n, port) in ports.iter().enumerate() {
        by_place.entry(port.netns.as_deref()).or_default().push(n);
    }
    let mut all: BTreeMap<usize, Open> = BTreeMap::new();
    for (netns, members) in by_place {
        let opened = within(netns, || members.iter().map(|n| open(&ports[*n])).collect::<Result<Vec<_>, _>>())?;
        all.extend(members.into_iter().zip(opened));
    }
    Ok(all.into_values().collect())
}

/// Runs `f` on a thread of a network namespace; sockets opened there stay there.
fn within<T: Send>(netns: Option<&Path>, f: impl FnOnce() -> Result<T, ProbeError> + Send) -> Result<T, ProbeError> {
    let Some(path) = netns else { return f() };
    let wrong = |why| ProbeError::Namespace { path: path.to_owned(), why };
    let ns = File::open(path).map_err(wrong)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|e| wrong(e.into()))?;
            f()
        });
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn open(port: &Port) -> Result<Open, ProbeError> {
    let wrong = |why| ProbeError::Open { at: port.at.clone(), why };
    let name = &port.at.port;
    let (index, hardware) = interface::by_name(name)
        .map_err(wrong)?
        .ok_or_else(|| ProbeError::NoInterface { at: port.at.clone(), netns: port.netns.clone() })?;
    let socket = group_socket(index, ETHERTYPE, NEAREST_BRIDGE).map_err(wrong)?;
    let speed = ethtool::speed_bps(name).map_err(wrong)?;
    let rate = Figure::least(port.limit, speed.map(|bps| Figure::new(bps, Source::Port)));
    let bps = rate.map(|figure| figure.value);
    let says = Frame::ours(port.role, (&port.at.node, name), hardware, TTL_S, bps);
    let bytes = says.emit().map_err(|why| ProbeError::Frame { at: port.at.clone(), why })?;
    Ok(Open { socket, says, bytes, heard: Heard { rate, ..Heard::default() } })
}

/// Waits until there is a frame, or the time is over; takes the frames that are there.
fn wait(open: &mut [Open], time: Duration) -> Result<(), ProbeError> {
    let time = Timespec::try_from(time).map_err(|_| ProbeError::Wait(Errno::INVAL.into()))?;
    let mut polled: Vec<PollFd<'_>> = open.iter().map(|port| PollFd::new(&port.socket, PollFlags::IN)).collect();
    match poll(&mut polled, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(ProbeError::Wait(error.into())),
    }
    let ready: Vec<bool> = polled.iter().map(|port| !port.revents().is_empty()).collect();
    open.iter_mut().zip(ready).filter(|(_, ready)| *ready).for_each(|(port, _)| port.listen());
    Ok(())
}

impl Open {
    fn speak(&mut self) {
        match send(&self.socket, &self.bytes, SendFlags::DONTWAIT) {
            Ok(_) => self.heard.unsent = None,
            Err(error) => self.heard.unsent = Some(io::Error::from(error).to_string()),
        }
    }

    fn listen(&mut self) {
        let mut bytes = [0; FRAME_MAX_BYTES + 1];
        for _ in 0..READS_MAX {
            // A longer frame is cut, and then refused as too long. An interface that went down reports that
            // once.
            let Ok((_, len)) = recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) else {
                return;
            };
            self.heard.take(&bytes[..len.min(bytes.len())], self.says.source);
        }
    }
}

impl Heard {
    /// `own`: a frame from this address is an echo of this port.
    fn take(&mut self, bytes: &[u8], own: [u8; 6]) {
        let why = match Frame::parse(bytes) {
            Ok(frame) if frame.ttl_s == 0 || frame.source == own || self.frames.contains(&frame) => return,
            Ok(frame) if self.frames.len() < HEARD_MAX => return self.frames.push(frame),
            Ok(_) => format!("more than {HEARD_MAX} different ones"),
            Err(error) => error.to_string(),
        };
        self.refused += 1;
        self.why_refused.get_or_insert(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(node: &str) -> Frame {
        Frame::ours(Role::Host, (node, "p0"), [2, 0, 0, 0, 0, 1], TTL_S, None)
    }

    #[test]
    fn heard_frames_are_kept_once_and_bounded() {
        let own = [2, 0, 0, 0, 0, 9];
        let mut heard = Heard::default();
        let mut take = |frame: &Frame| heard.take(&frame.emit().unwrap(), own);
        take(&frame("h1").shutdown());
        take(&Frame { source: own, ..frame("echo") });
        for _ in 0..3 {
            take(&frame("h1"));
        }
        for n in 2..=HEARD_MAX + 2 {
            take(&frame(&format!("h{n}")));
        }
        assert_eq!(heard.frames.len(), HEARD_MAX);
        assert_eq!(heard.frames[0], frame("h1"));
        assert_eq!((heard.refused, heard.why_refused.as_deref()), (2, Some("more than 16 different ones")));
        heard.take(&[0; 3], own);
        assert_eq!(heard.refused, 3);
    }

    #[test]
    fn impossible_probe_reports_why() {
        let port = |name: &str, netns: Option<&str>| Port {
            at: End::new("s1", name),
            role: Role::Switch,
            netns: netns.map(Into::into),
            limit: None,
        };
        let pace = Pace { wait: Duration::ZERO, period: Duration::from_secs(1), farewell: true };
        let said = |ports: &[Port]| probe(ports, pace, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(said(&[port("none-such0", None)]).contains("s1:none-such0: there is no interface of that name"));
        assert!(said(&[port("x", Some("/run/netns/none-such"))]).contains("entering namespace /run/netns/none-such"));
        assert!(said(&vec![port("x", None); PORTS_MAX + 1]).contains("4097 ports; at most 4096"));
        // With the right to open it: it is no Ethernet.
        let error = probe(&[port("lo", None)], pace, &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, ProbeError::Open { .. }), "{error}");
        assert!(error.denied() || error.to_string().contains("no Ethernet frames"), "{error}");
    }
}
