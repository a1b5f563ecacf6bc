// SPDX-License-Identifier: Apache-2.0
//! Attaching an XDP program to an interface.

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
        return Err(BpfError::Attach { ifindex, mode, source: io::Error::from_raw_os_error(-fd) });
    }
    // SAFETY: a new descriptor that is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
