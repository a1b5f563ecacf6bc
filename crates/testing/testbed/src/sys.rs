// SPDX-License-Identifier: Apache-2.0
//! The few system calls that the standard library does not offer.

use crate::{Error, Result};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with, sockopt};
use rustix::process::Pid;
use rustix::thread::{CpuSet, LinkNameSpaceType};

/// Moves the calling thread into a network namespace, for good.
pub(crate) fn enter_netns(ns: BorrowedFd<'_>) -> std::io::Result<()> {
    rustix::thread::move_into_link_name_space(ns, Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// True if the process runs as root (effective uid 0).
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Processor time of all threads of a process so far, ns.
///
/// # Errors
/// There is no such process, or the kernel has no `/proc/PID/task/TID/schedstat`.
pub fn cpu_time_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    let tasks = format!("/proc/{pid}/task");
    for task in std::fs::read_dir(&tasks).map_err(|e| Error::io(format!("reading {tasks}"), e))? {
        let path = task.map_err(|e| Error::io(format!("reading {tasks}"), e))?.path().join("schedstat");
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io(format!("reading {}", path.display()), e))?;
        let time = text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
        sum += time.ok_or_else(|| {
            Error::io(format!("reading {}", path.display()), std::io::Error::other("no time on a core in it"))
        })?;
    }
    Ok(sum)
}

/// Cores that this process may use, in order.
pub fn usable_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect()
}

/// Binds a thread, or the calling one, to one core.
pub fn bind_to_core(thread: Option<Pid>, core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    if core >= CpuSet::MAX_CPU {
        return Err(Error::Spec(format!("core {core} is beyond the last one, {}", CpuSet::MAX_CPU - 1)));
    }
    set.set(core);
    rustix::thread::sched_setaffinity(thread, &set)
        .map_err(|e| Error::io(format!("binding a thread to core {core}"), e))
}

/// Turns a link's transmit checksum, TSO, GSO and GRO off, so that the link carries exactly the packets that
/// a wire would carry. The caller must be in the link's namespace.
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

/// A switch's control socket: it sets links and bridge ports without a process, which would take
/// milliseconds.
#[derive(Debug)]
pub(crate) struct LinkControl {
    socket: OwnedFd,
}

/// linux/if_bridge.h: BR_STATE_DISABLED and BR_STATE_FORWARDING.
pub(crate) const PORT_DISABLED: u8 = 0;
pub(crate) const PORT_FORWARDING: u8 = 3;

const RTM_NEWLINK: u16 = 16;
const RTM_SETLINK: u16 = 19;

impl LinkControl {
    /// Opens the socket. The caller must be in the switch's namespace; the socket stays there.
    pub(crate) fn open() -> Result<Self> {
        // `None` is protocol 0, NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(|e| Error::io("opening a netlink socket", e))?;
        Ok(LinkControl { socket })
    }

    /// Sets a port's state; the change is in force when this returns.
    pub(crate) fn set_port_state(&self, ifindex: u32, state: u8) -> Result<()> {
        const IFLA_PROTINFO_NESTED: u16 = 12 | 0x8000;
        const IFLA_BRPORT_STATE: u16 = 1;
        let mut attributes = [0u8; 12];
        attributes[0..2].copy_from_slice(&12u16.to_ne_bytes());
        attributes[2..4].copy_from_slice(&IFLA_PROTINFO_NESTED.to_ne_bytes());
        attributes[4..6].copy_from_slice(&5u16.to_ne_bytes());
        attributes[6..8].copy_from_slice(&IFLA_BRPORT_STATE.to_ne_bytes());
        attributes[8] = state;
        let what = || format!("setting bridge port {ifindex} to state {state}");
        self.ask(RTM_SETLINK, libc::AF_BRIDGE as u8, ifindex, None, &attributes, what)
    }

    /// Sets a link up or down; its peer's carrier follows.
    pub(crate) fn set_up(&self, ifindex: u32, up: bool) -> Result<()> {
        let what = || format!("setting link {ifindex} {}", if up { "up" } else { "down" });
        self.ask(RTM_NEWLINK, libc::AF_UNSPEC as u8, ifindex, Some(up), &[], what)
    }

    /// Sends one request about a link and reads the kernel's answer. `up` sets or clears IFF_UP.
    fn ask(
        &self,
        kind: u16,
        family: u8,
        ifindex: u32,
        up: Option<bool>,
        attributes: &[u8],
        what: impl Fn() -> String,
    ) -> Result<()> {
        const NLM_F_REQUEST_ACK: u16 = 1 | 4;
        const HEADERS_LEN: usize = 32;
        let len = HEADERS_LEN + attributes.len();
        let mut m = [0u8; 64];
        m[0..4].copy_from_slice(&(len as u32).to_ne_bytes());
        m[4..6].copy_from_slice(&kind.to_ne_bytes());
        m[6..8].copy_from_slice(&NLM_F_REQUEST_ACK.to_ne_bytes());
        // struct ifinfomsg: the family, then from its byte 4 the index, the flags, and the mask of flags that
        // change.
        m[16] = family;
        m[20..24].copy_from_slice(&ifindex.to_ne_bytes());
        m[24..28].copy_from_slice(&u32::from(up == Some(true)).to_ne_bytes());
        m[28..32].copy_from_slice(&u32::from(up.is_some()).to_ne_bytes());
        m[HEADERS_LEN..len].copy_from_slice(attributes);
        sendto(&self.socket, &m[..len], SendFlags::empty(), &SocketAddrNetlink::new(0, 0))
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

/// Send buffer of a socket: room for more than the 1000 frames that a queue holds by default, so that the
/// queue overflows.
const FLOOD_BUFFER: usize = 8 << 20;

/// A socket that sends whole frames out of a link, through its queueing discipline, and receives nothing. The
/// caller must be in the link's namespace.
pub(crate) fn packet_socket(link: &str) -> Result<OwnedFd> {
    let what = || format!("opening a packet socket on {link}");
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::io(what(), e))?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        // No protocol: the socket receives nothing.
        sll_protocol: 0,
        sll_ifindex: link_index(link)? as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: bind reads a sockaddr_ll of the given size, which outlives the call.
    let rc = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if rc < 0 {
        return Err(Error::io(what(), std::io::Error::last_os_error()));
    }
    sockopt::set_socket_send_buffer_size_force(&socket, FLOOD_BUFFER).map_err(|e| Error::io(what(), e))?;
    Ok(socket)
}

/// Index of a link in the calling thread's namespace.
pub(crate) fn link_index(link: &str) -> Result<u32> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::io("opening a socket to name a link", e))?;
    rustix::net::netdevice::name_to_index(&socket, link).map_err(|e| Error::io(format!("looking up link {link}"), e))
}

/// Makes a TUN device in the calling thread's namespace, which is there as long as the descriptor: what is read from it are
/// IP packets that the host sends, and what is written to it comes to the host.
pub(crate) fn open_tun(name: &str) -> Result<OwnedFd> {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    let path = "/dev/net/tun";
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let device = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map_err(|e| Error::io(format!("opening {path} (is the kernel without TUN?)"), e))?;
    // SAFETY: an `ifreq` of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the kernel reads and writes one `ifreq`, which outlives the call.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if rc != 0 {
        return Err(Error::io(format!("making the TUN device {name}"), std::io::Error::last_os_error()));
    }
    Ok(device)
}
