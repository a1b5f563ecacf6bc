// SPDX-License-Identifier: Apache-2.0
//! Receiving for the jitter bench: loader of `c/pingpong.bpf.c` and the reader of its slots.

use std::{
    io,
    mem::{MaybeUninit, offset_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::Ordering,
};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    BpfError,
    generated::pingpong as generated,
    map::MappedArray,
    skel::pingpong::PingpongSkelBuilder,
    xdp::{self, XdpMode},
};

pub(crate) use generated::{PpConfig as Config, PpSlot as Slot, PpState as State};

/// Packets that may wait for their reader.
pub const SLOTS: usize = generated::PP_SLOTS as usize;
/// The part of a payload that means something, bytes.
pub const HEADER: usize = generated::PP_HEADER as usize;
/// The first four bytes of a packet.
pub const MAGIC: [u8; 4] = generated::PP_MAGIC.to_le_bytes();
/// The version of a packet's format.
pub const VERSION: u8 = generated::PP_VERSION as u8;
/// The kind of a packet that asks.
pub const PING: u8 = generated::PP_PING as u8;
/// The kind of a packet that answers.
pub const PONG: u8 = generated::PP_PONG as u8;

/// What the program writes in front of a packet that goes to a socket, where there is room, bytes.
pub const STAMP_BYTES: usize = size_of::<generated::PpStamp>();

/// The time of arrival in such bytes, CLOCK_MONOTONIC ns; None if it is none of the program's.
#[must_use]
pub fn stamp_in(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    (word(0)? == generated::PP_STAMP_MAGIC).then(|| word(8))?
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Into a slot that [`PingPong::take`] reads.
    Slot,
    /// Answered where it arrives ("XDP offload" in the jitter report §2.3).
    Reflect,
    /// Into the AF_XDP socket of its queue ([`PingPong::set_socket`]).
    Socket,
}

/// A packet from a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// CLOCK_MONOTONIC when the program ran.
    pub rx_ns: u64,
    pub header: [u8; HEADER],
}

/// The loaded program. Dropping it detaches XDP.
pub struct PingPong {
    slots: MappedArray<Slot>,
    state: MappedArray<State>,
    sockets: MapHandle,
    program: OwnedFd,
    link: Option<OwnedFd>,
    next: u64,
    overwritten: u64,
}

impl PingPong {
    /// Loads the program for packets to UDP `port`; `incarnation` is that of the answering side.
    ///
    /// # Errors
    /// [`BpfError::Load`] without BPF or the privilege.
    pub fn load(port: u16, mode: Mode, incarnation: u32) -> Result<Self, BpfError> {
        let fail = |error: libbpf_rs::Error| BpfError::load("ping-pong", &error);
        let mut storage = MaybeUninit::uninit();
        let open = PingpongSkelBuilder::default().open(&mut storage).map_err(fail)?;
        let skel = open.load().map_err(fail)?;
        let own = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|why| BpfError::Map { what: "a descriptor could not be kept", why })
        };
        let mode = match mode {
            Mode::Slot => generated::PP_MODE_SLOT,
            Mode::Reflect => generated::PP_MODE_REFLECT,
            Mode::Socket => generated::PP_MODE_SOCKET,
        } as u16;
        MappedArray::map(own(skel.maps.config.as_fd())?, 1, "config")?.write(0, Config { port, mode, incarnation });
        Ok(Self {
            slots: MappedArray::map(own(skel.maps.slots.as_fd())?, SLOTS, "slots")?,
            state: MappedArray::map(own(skel.maps.state.as_fd())?, 1, "state")?,
            sockets: MapHandle::try_from(&skel.maps.sockets).map_err(fail)?,
            program: own(skel.progs.pingpong_receive.as_fd())?,
            link: None,
            next: 0,
            overwritten: 0,
        })
    }

    /// Attaches the program to an interface.
    ///
    /// # Errors
    /// [`BpfError::Attach`], so that the caller can try the next rung.
    pub fn attach(&mut self, ifindex: u32, mode: XdpMode) -> Result<(), BpfError> {
        self.link = Some(xdp::attach(self.program.as_fd(), ifindex, mode)?);
        Ok(())
    }

    /// Packets that arrive on `queue` go to this AF_XDP socket.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), BpfError> {
        let value = socket.as_raw_fd().to_ne_bytes();
        self.sockets.update(&queue.to_ne_bytes(), &value, MapFlags::ANY).map_err(|error| BpfError::Map {
            what: "an AF_XDP socket could not be put behind its queue",
            why: io::Error::other(error.to_string()),
        })
    }

    /// The next packet from the slots, if it is there. Never blocks.
    pub fn take(&mut self) -> Option<Arrived> {
        for _ in 0..4 {
            let at = self.slots.at((self.next % SLOTS as u64) as usize);
            // SAFETY: the field's offset in a mapped slot; it is an aligned u64.
            let sequence = unsafe {
                let field = at.byte_add(offset_of!(Slot, sequence)).cast::<u64>();
                self.slots.atomic(field)
            };
            let whole = 2 * self.next + 2;
            let before = sequence.load(Ordering::Acquire);
            if before < whole {
                return None;
            }
            let slot = self.slots.read((self.next % SLOTS as u64) as usize);
            std::sync::atomic::fence(Ordering::Acquire);
            if before == whole && sequence.load(Ordering::Relaxed) == whole {
                self.next += 1;
                return Some(Arrived { rx_ns: slot.rx_ns, header: slot.header });
            }
            // The writer came round: what is left begins half a round behind it.
            let head = self.head();
            let resume = head.saturating_sub(SLOTS as u64 / 2).max(self.next + 1);
            self.overwritten += resume - self.next;
            self.next = resume;
        }
        None
    }

    fn head(&self) -> u64 {
        self.state.read(0).head
    }

    /// Packets that were overwritten before they were taken.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// Packets answered on the spot.
    #[must_use]
    pub fn reflected(&self) -> u64 {
        self.state.read(0).reflected
    }

    /// Packets on the port that are none of the bench's.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.state.read(0).malformed
    }

    #[cfg(test)]
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
