// SPDX-License-Identifier: Apache-2.0
//! Settings that are read by system calls and tools, and therefore not in a copy of a host's files.

mod ethtool;
mod ntp;
mod qdisc;

use std::io;

pub use ethtool::{Channels, Coalesce};
pub use ntp::ClockRate;
pub use qdisc::Qdisc;

use fide_bpf::XdpFacts;

/// The part of a host that is not in files.
pub trait Machine {
    /// Interrupt coalescing of an interface.
    ///
    /// # Errors
    /// The kernel's; `Unsupported` if the driver has none.
    fn coalesce(&self, interface: &str) -> io::Result<Coalesce>;
    /// Sets it.
    ///
    /// # Errors
    /// The kernel's.
    fn set_coalesce(&self, interface: &str, wanted: &Coalesce) -> io::Result<()>;
    /// Queues of an interface.
    ///
    /// # Errors
    /// The kernel's; `Unsupported` if the driver does not report them.
    fn channels(&self, interface: &str) -> io::Result<Channels>;
    /// Name of the driver of an interface.
    ///
    /// # Errors
    /// The kernel's.
    fn driver(&self, interface: &str) -> io::Result<String>;
    /// XDP on an interface.
    ///
    /// # Errors
    /// The kernel's.
    fn xdp(&self, interface: &str) -> io::Result<XdpFacts>;
    /// The root queueing discipline of an interface.
    ///
    /// # Errors
    /// Without `tc`, or its own.
    fn qdisc(&self, interface: &str) -> io::Result<Qdisc>;
    /// Sets it; `None` goes back to the kernel's default.
    ///
    /// # Errors
    /// Without `tc`, or its own.
    fn set_qdisc(&self, interface: &str, kind: Option<&str>) -> io::Result<()>;
    /// Length of a timer tick.
    ///
    /// # Errors
    /// The kernel's.
    fn tick_ns(&self) -> io::Result<u64>;
    /// What NTP has found about the clock.
    ///
    /// # Errors
    /// The kernel's.
    fn clock_rate(&self) -> io::Result<ClockRate>;
}

/// The host this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisHost;

impl Machine for ThisHost {
    fn coalesce(&self, interface: &str) -> io::Result<Coalesce> {
        ethtool::coalesce(interface)
    }

    fn set_coalesce(&self, interface: &str, wanted: &Coalesce) -> io::Result<()> {
        ethtool::set_coalesce(interface, wanted)
    }

    fn channels(&self, interface: &str) -> io::Result<Channels> {
        ethtool::channels(interface)
    }

    fn driver(&self, interface: &str) -> io::Result<String> {
        ethtool::driver(interface)
    }

    fn xdp(&self, interface: &str) -> io::Result<XdpFacts> {
        fide_bpf::xdp_facts(ethtool::index(interface)?)
    }

    fn qdisc(&self, interface: &str) -> io::Result<Qdisc> {
        qdisc::show(interface)
    }

    fn set_qdisc(&self, interface: &str, kind: Option<&str>) -> io::Result<()> {
        qdisc::set(interface, kind)
    }

    fn tick_ns(&self) -> io::Result<u64> {
        // The coarse clock advances once a tick, and reports that as its resolution.
        let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `tick` is writable.
        match unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) } {
            0 => Ok(tick.tv_sec.unsigned_abs() * 1_000_000_000 + tick.tv_nsec.unsigned_abs()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn clock_rate(&self) -> io::Result<ClockRate> {
        ClockRate::read()
    }
}

/// A copy of a host's files, of which nothing else can be asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copy;

fn copied<T>() -> io::Result<T> {
    Err(io::Error::other("not in a copy of a host's files"))
}

impl Machine for Copy {
    fn coalesce(&self, _: &str) -> io::Result<Coalesce> {
        copied()
    }

    fn set_coalesce(&self, _: &str, _: &Coalesce) -> io::Result<()> {
        copied()
    }

    fn channels(&self, _: &str) -> io::Result<Channels> {
        copied()
    }

    fn driver(&self, _: &str) -> io::Result<String> {
        copied()
    }

    fn xdp(&self, _: &str) -> io::Result<XdpFacts> {
        copied()
    }

    fn qdisc(&self, _: &str) -> io::Result<Qdisc> {
        copied()
    }

    fn set_qdisc(&self, _: &str, _: Option<&str>) -> io::Result<()> {
        copied()
    }

    fn tick_ns(&self) -> io::Result<u64> {
        copied()
    }

    fn clock_rate(&self) -> io::Result<ClockRate> {
        copied()
    }
}
