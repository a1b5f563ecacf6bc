// SPDX-License-Identifier: Apache-2.0
//! Attaching an XDP program to an interface, and what kernel and driver say about it without attaching anything.

use std::{
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libbpf_rs::libbpf_sys;

use crate::BpfError;

/// How XDP is attached, best first (the receive ladder of `fide doctor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// On the generic path, after the kernel made an skb.
    Generic,
}

impl XdpMode {
    fn flags(self) -> u32 {
        match self {
            Self::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Self::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// Attaches a program; it stays until the link is closed.
pub(crate) fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: XdpMode) -> Result<OwnedFd, BpfError> {
    // SAFETY: zeroes are a valid value of this plain structure.
    let mut options: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of_val(&options) as u64;
    options.flags = mode.flags();
    // SAFETY: a live program, an interface index the kernel checks, options that outlive the call.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            i32::try_from(ifindex).unwrap_or(i32::MAX),
            libbpf_sys::BPF_XDP,
            &raw const options,
        )
    };
    if fd < 0 {
        return Err(BpfError::Attach { ifindex, mode, why: io::Error::from_raw_os_error(-fd) });
    }
    // SAFETY: a new descriptor that is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// XDP on one interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFacts {
    /// Mode of the program that is attached now, anybody's.
    pub attached: Option<XdpMode>,
    /// What the driver says it can do, as `enum netdev_xdp_act` of `linux/netdev.h`. 0 where it can
    /// do nothing, and before Linux 6.3, which does not say.
    pub features: u64,
}

impl XdpFacts {
    /// Programs run in the driver.
    pub const BASIC: u64 = 1;
    /// AF_XDP without copies.
    pub const ZERO_COPY: u64 = 8;
}

/// Asks about `interface`.
///
/// # Errors
/// The kernel's, for an interface that does not exist.
pub fn xdp_facts(ifindex: u32) -> io::Result<XdpFacts> {
    // SAFETY: zeroes are a valid value.
    let mut options: libbpf_sys::bpf_xdp_query_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of_val(&options) as u64;
    let ifindex = i32::try_from(ifindex).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the options are writable for the size they say and outlive the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(ifindex, 0, &raw mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    let attached = match u32::from(options.attach_mode) {
        libbpf_sys::XDP_ATTACHED_NONE => None,
        libbpf_sys::XDP_ATTACHED_SKB => Some(XdpMode::Generic),
        // Several at once can only be a driver's beside a card's.
        _ => Some(XdpMode::Native),
    };
    Ok(XdpFacts { attached, features: options.feature_flags })
}
