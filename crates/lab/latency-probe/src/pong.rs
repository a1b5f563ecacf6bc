// SPDX-License-Identifier: Apache-2.0
//! Host B: answers every ping.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use fide_bpf::{
    XdpMode,
    pingpong::{Mode, PingPong},
};
use fide_jitter_analysis::MISSING;
use fide_sys::clock::mono_ns;
use fide_sys::interface::Interface;
use fide_wire::PAYLOAD_MAX;

use crate::{
    packet::{HEADER, Header, Kind},
    port::{Method, Port, PortError},
};

/// How often it checks whether it should stop.
const LOOK_NS: u64 = 100_000_000;

/// What B did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub pings: u64,
    /// Packets of another form, or pongs.
    pub ignored: u64,
    /// Answers that the kernel refused.
    pub failed: u64,
}

/// Answers until `stop`. By `incarnation`, A sees that another pong answers than before.
///
/// # Errors
/// The kernel's, if nothing can be received any more: the interface went away.
pub fn answer(port: &mut dyn Port, incarnation: u32, stop: &AtomicBool) -> io::Result<Answered> {
    let mut answered = Answered::default();
    let mut buffer = [0; PAYLOAD_MAX];
    while !stop.load(Ordering::Relaxed) {
        let Some(arrived) = port.receive(&mut buffer, mono_ns() + LOOK_NS)? else { continue };
        let ping = Header::parse(&buffer[..arrived.len]).filter(|header| header.kind == Kind::Ping);
        let Some(ping) = ping else {
            answered.ignored += 1;
            continue;
        };
        let len = usize::from(ping.packet_bytes).clamp(HEADER, PAYLOAD_MAX);
        let mut pong = Header {
            kind: Kind::Pong,
            ts2_ns: arrived.at_ns.cast_signed(),
            kernel_ns: arrived.kernel_ns.map_or(MISSING, u64::cast_signed),
            incarnation,
            ..ping
        };
        pong.ts3_ns = mono_ns().cast_signed();
        pong.emit(&mut buffer);
        match port.send(&buffer[..len]) {
            Ok(()) => answered.pings += 1,
            Err(_) => answered.failed += 1,
        }
    }
    Ok(answered)
}

/// Answers within XDP, where packets arrive, until it is dropped ("XDP offload" in the jitter report §2.3).
pub struct Reflector {
    program: PingPong,
    mode: XdpMode,
}

impl Reflector {
    /// Loads the program and attaches it as well as the driver allows. If `generic`, attaches it on the
    /// generic path: some drivers accept the program but drop the packets that it sends back (veth without
    /// GRO at its other end).
    ///
    /// # Errors
    /// [`PortError::Bpf`].
    pub fn attach(interface: &Interface, port: u16, incarnation: u32, generic: bool) -> Result<Self, PortError> {
        let failed = |why| PortError::Bpf { method: Method::Reflect, why };
        let mut program = PingPong::load(port, Mode::Reflect, incarnation).map_err(failed)?;
        if !generic && program.attach(interface.index, XdpMode::Native).is_ok() {
            return Ok(Self { program, mode: XdpMode::Native });
        }
        program.attach(interface.index, XdpMode::Generic).map_err(failed)?;
        Ok(Self { program, mode: XdpMode::Generic })
    }

    /// The method, and where the program is attached.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}, {}", Method::Reflect, self.mode)
    }

    /// What it has done so far.
    #[must_use]
    pub fn answered(&self) -> Answered {
        Answered { pings: self.program.reflected(), ignored: self.program.malformed(), failed: 0 }
    }
}
