// SPDX-License-Identifier: Apache-2.0
//! The few system calls that the standard library has no words for.

use crate::{Error, Result};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};
use rustix::thread::{CpuSet, LinkNameSpaceType};

/// CLOCK_MONOTONIC, the clock that every number of the testbed is in.
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Moves the calling thread into a network namespace, for good.
pub(crate) fn enter_netns(ns: BorrowedFd<'_>) -> std::io::Result<()> {
    rustix::thread::move_into_link_name_space(ns, Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// True if the process runs as root (effective uid 0).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Cores that this process may use, in order.
pub fn usable_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect()
}

/// Binds the calling thread to one core.
pub fn pin_to_core(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(Error::Spec(format!("core {core} is beyond the last one, {}", CpuSet::MAX_CPU - 1)));
    }
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).map_err(|e| Error::io(format!("binding a thread to core {core}"), e))
}

/// Turns a link's transmit checksum, TSO, GSO and GRO off, so that what is on the wire is what a wire would carry.
/// The caller is in the link's namespace.
pub(crate) fn offloads_off(link: &str) -> Result<()> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    // linux/ethtool.h: ETHTOOL_STXCSUM, _STSO, _SGSO, _SGRO.
    const COMMANDS: [u32; 4] = [0x17, 0x1f, 0x24, 0x2c];
    #[repr(C)]
    struct EthtoolValue {
        cmd: u32,
        data: u32,
    }
    #[repr(C)]
    struct IfReq {
        name: [u8; libc::IFNAMSIZ],
        data: *mut EthtoolValue,
        rest: [u8; 16],
    }
    if link.len() >= libc::IFNAMSIZ {
        return Err(Error::Spec(format!("`{link}` is too long for a link name")));
    }
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::io("opening a socket for link settings", e))?;
    for cmd in COMMANDS {
        let mut value = EthtoolValue { cmd, data: 0 };
        let mut request = IfReq { name: [0; libc::IFNAMSIZ], data: &mut value, rest: [0; 16] };
        request.name[..link.len()].copy_from_slice(link.as_bytes());
        // SAFETY: SIOCETHTOOL reads a `struct ifreq` (40 bytes, as IfReq is) whose ifr_data points to an
        // `ethtool_value`; both outlive the call.
        let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) };
        if rc < 0 {
            let e = std::io::Error::last_os_error();
            return Err(Error::io(format!("turning off an offload ({cmd:#x}) of {link}"), e));
        }
    }
    Ok(())
}

/// A switch's control socket: sets the state of bridge ports without the milliseconds that a process takes.
#[derive(Debug)]
pub(crate) struct BridgeControl {
    socket: OwnedFd,
}

/// linux/if_bridge.h: BR_STATE_DISABLED and BR_STATE_FORWARDING.
pub(crate) const PORT_DISABLED: u8 = 0;
pub(crate) const PORT_FORWARDING: u8 = 3;

impl BridgeControl {
    /// The caller is in the switch's namespace; the socket stays there.
    pub(crate) fn open() -> Result<Self> {
        // No protocol is protocol 0, NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(|e| Error::io("opening a netlink socket", e))?;
        Ok(BridgeControl { socket })
    }

    /// Sets a port's state; the change is in force when this returns.
    pub(crate) fn set_port_state(&self, ifindex: u32, state: u8) -> Result<()> {
        const RTM_SETLINK: u16 = 19;
        const NLM_F_REQUEST_ACK: u16 = 1 | 4;
        const IFLA_PROTINFO_NESTED: u16 = 12 | 0x8000;
        const IFLA_BRPORT_STATE: u16 = 1;
        const LEN: usize = 44;
        let mut m = [0u8; LEN];
        m[0..4].copy_from_slice(&(LEN as u32).to_ne_bytes());
        m[4..6].copy_from_slice(&RTM_SETLINK.to_ne_bytes());
        m[6..8].copy_from_slice(&NLM_F_REQUEST_ACK.to_ne_bytes());
        // struct ifinfomsg: family, then the index at its byte 4.
        m[16] = libc::AF_BRIDGE as u8;
        m[20..24].copy_from_slice(&ifindex.to_ne_bytes());
        m[32..34].copy_from_slice(&12u16.to_ne_bytes());
        m[34..36].copy_from_slice(&IFLA_PROTINFO_NESTED.to_ne_bytes());
        m[36..38].copy_from_slice(&5u16.to_ne_bytes());
        m[38..40].copy_from_slice(&IFLA_BRPORT_STATE.to_ne_bytes());
        m[40] = state;
        let what = || format!("setting bridge port {ifindex} to state {state}");
        sendto(&self.socket, &m, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
            .map_err(|e| Error::io(what(), e))?;
        let mut answer = [0u8; 512];
        let (n, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty()).map_err(|e| Error::io(what(), e))?;
        // nlmsgerr: the (negated) error number follows the 16-byte header; 0 acknowledges.
        let code = match answer.get(16..20) {
            Some(b) if n >= 20 => i32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
            _ => -libc::EPROTO,
        };
        if code == 0 {
            return Ok(());
        }
        Err(Error::io(what(), std::io::Error::from_raw_os_error(-code)))
    }
}

/// Index of a link in the calling thread's namespace.
pub(crate) fn link_index(link: &str) -> Result<u32> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::io("opening a socket to name a link", e))?;
    rustix::net::netdevice::name_to_index(&socket, link).map_err(|e| Error::io(format!("looking up link {link}"), e))
}
