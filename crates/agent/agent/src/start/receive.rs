// SPDX-License-Identifier: Apache-2.0
//! The receive ladder: XDP native, XDP generic, AF_PACKET, UDP.

use fide_bpf::{Receive, XdpMode};
use fide_net::link::{Destination, Membership, Receiver, Sockets, UdpReceiver};
use fide_sys::interface::Interface;

use super::StartError;
use crate::config::ReceiveRung;
use fide_agent_api::status::Rung;

/// Why a demanded rung is not the best one, and neither may one be that was taken over.
const ASKED: &str = "the configuration asks for it";
const IN_MEMORY: &str = "heartbeats also come through windows, which the kernel's receive program does not see";
const NO_NETWORK: &str = "no plane is a network";
const BEFORE: &str = "the agent before stood there; a restart looks anew";

/// The planes' sockets, and their rungs.
pub(super) struct Planes {
    /// `None` where the receive program takes the packets.
    pub(super) receivers: Vec<Option<Receiver>>,
    /// Group memberships beside the receive program.
    pub(super) joined: Vec<Membership>,
    pub(super) rungs: Vec<Rung>,
    /// Copies for the next agent.
    pub(super) sockets: Vec<Sockets>,
}

/// Attaches XDP to every network in one mode, or to none: the kernel's program judges silence by what it receives, and so has to receive
/// all. Returns the mode, and why it is not a better one.
pub(super) fn attach(
    wanted: ReceiveRung,
    receive: Option<&mut Receive>,
    interfaces: &[Interface],
    no_bpf: Option<&String>,
    has_windows: bool,
) -> Result<(Option<XdpMode>, Option<String>), StartError> {
    let modes: &[XdpMode] = match wanted {
        ReceiveRung::Auto => &[XdpMode::Native, XdpMode::Generic],
        ReceiveRung::Xdp => &[XdpMode::Native],
        ReceiveRung::XdpGeneric => &[XdpMode::Generic],
        ReceiveRung::AfPacket | ReceiveRung::Udp => return Ok((None, Some(ASKED.to_owned()))),
    };
    let mut why = no_bpf.cloned();
    if interfaces.is_empty() {
        why = Some(NO_NETWORK.to_owned());
    } else if has_windows {
        why = Some(IN_MEMORY.to_owned());
    } else if interfaces.iter().any(|interface| interface.loopback) {
        why = Some("a plane is on loopback".to_owned());
    } else if let Some(receive) = receive {
        for mode in modes {
            match interfaces.iter().try_for_each(|interface| receive.attach(interface.index, *mode)) {
                Ok(()) => return Ok((Some(*mode), why)),
                Err(error) => {
                    receive.detach();
                    why = Some(error.to_string());
                }
            }
        }
    }
    match wanted {
        ReceiveRung::Xdp | ReceiveRung::XdpGeneric => {
            Err(StartError::Rung { wanted: demand(wanted), why: why.unwrap_or_default() })
        }
        ReceiveRung::Auto | ReceiveRung::AfPacket | ReceiveRung::Udp => Ok((None, why)),
    }
}

/// Opens what the planes need below XDP, or beside it. `no_xdp`: why `mode` is not better.
pub(super) fn open(
    wanted: ReceiveRung,
    mode: Option<XdpMode>,
    no_xdp: Option<&String>,
    planes: &[(&Interface, &Destination)],
    port: u16,
) -> Result<Planes, StartError> {
    let mut opened = Planes::none();
    for (plane, (interface, destination)) in planes.iter().copied().enumerate() {
        let failed = |why| StartError::Link { plane, what: "nothing can be received", why };
        if let Some(mode) = mode {
            opened.beside(mode, no_xdp, Membership::open(interface, destination, port).map_err(failed)?)?;
            continue;
        }
        let (receiver, no_packet) = match wanted {
            ReceiveRung::Udp => (Receiver::Udp(UdpReceiver::open(interface, destination, port).map_err(failed)?), None),
            _ => Receiver::open(interface, destination, port).map_err(failed)?,
        };
        if let (ReceiveRung::AfPacket, Some(why)) = (wanted, no_packet.clone()) {
            return Err(StartError::Rung { wanted: demand(wanted), why: format!("plane {plane}: {why}") });
        }
        let why: Vec<String> = no_xdp.cloned().into_iter().chain(no_packet).chain(receiver.lacks()).collect();
        opened.from(receiver, (!why.is_empty()).then(|| why.join("; ")))?;
    }
    Ok(opened)
}

/// Goes on with the sockets of the agent before, on its rungs: packets that arrive in between wait in them.
pub(super) fn take_over(mode: Option<XdpMode>, sockets: Vec<Sockets>) -> Result<Planes, StartError> {
    let mut opened = Planes::none();
    let why = BEFORE.to_owned();
    for sockets in sockets {
        match mode {
            Some(XdpMode::Native) => opened.beside(XdpMode::Native, None, Membership::from(sockets.udp))?,
            Some(mode) => opened.beside(mode, Some(&why), Membership::from(sockets.udp))?,
            None => opened.from(Receiver::from(sockets), Some(why.clone()))?,
        }
    }
    Ok(opened)
}

impl Planes {
    fn none() -> Self {
        Self { receivers: Vec::new(), joined: Vec::new(), rungs: Vec::new(), sockets: Vec::new() }
    }

    fn beside(&mut self, mode: XdpMode, why: Option<&String>, joined: Membership) -> Result<(), StartError> {
        self.sockets.push(joined.sockets()?);
        let why = [why.cloned(), joined.lacks()].into_iter().flatten().collect::<Vec<_>>();
        self.joined.push(joined);
        self.receivers.push(None);
        self.rungs.push(Rung::new(format!("xdp {mode}"), (!why.is_empty()).then(|| why.join("; "))));
        Ok(())
    }

    fn from(&mut self, receiver: Receiver, why: Option<String>) -> Result<(), StartError> {
        self.sockets.push(receiver.sockets()?);
        self.rungs.push(Rung::new(receiver.rung(), why));
        self.receivers.push(Some(receiver));
        Ok(())
    }
}

/// The demand as it stands in the configuration.
fn demand(wanted: ReceiveRung) -> &'static str {
    match wanted {
        ReceiveRung::Auto => "receive = \"auto\"",
        ReceiveRung::Xdp => "receive = \"xdp\"",
        ReceiveRung::XdpGeneric => "receive = \"xdp-generic\"",
        ReceiveRung::AfPacket => "receive = \"af-packet\"",
        ReceiveRung::Udp => "receive = \"udp\"",
    }
}
