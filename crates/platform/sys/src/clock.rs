// SPDX-License-Identifier: Apache-2.0
//! The clocks a lease is counted on, and what their distances say (docs/internals/clocks.md).
//!
//! A lease ends on CLOCK_MONOTONIC_RAW, which nobody slews. That clock stops while the machine is suspended, and a
//! hypervisor may stop it with the machine. Two other clocks witness that: CLOCK_BOOTTIME counts a suspension, and the
//! processor's counter (TSC) goes on under hypervisors that stop only the clock of their guest's kernel.

use rustix::time::{ClockId, clock_gettime};

/// Readings of CLOCK_MONOTONIC and CLOCK_BOOTTIME are this much apart only if their reader lost its core in between. A
/// suspension is never this short.
pub const ASLEEP_NOISE_NS: u64 = 1_000_000;
/// Looks of a reader that loses its core between two clocks each time; then it takes the distance for a suspension.
const LOOKS_MAX: usize = 3;
/// A lease without an end.
pub const FOREVER_NS: u64 = u64::MAX;

fn read_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // None of them is ever negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn mono_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// CLOCK_MONOTONIC_RAW in nanoseconds: what leases and timeouts are counted on.
pub fn raw_ns() -> u64 {
    read_ns(ClockId::MonotonicRaw)
}

/// CLOCK_BOOTTIME in nanoseconds.
pub fn boot_ns() -> u64 {
    read_ns(ClockId::Boottime)
}

/// The processor's counter; 0 where it is not known to be of use.
pub fn tsc() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: both instructions are in every x86_64 processor and touch no memory. The fence keeps the
    // counter from being read before what was read earlier. A process that forbade itself the counter
    // (PR_SET_TSC) cannot read clocks either.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// One look at all clocks, in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clocks {
    /// CLOCK_MONOTONIC.
    pub mono_ns: u64,
    /// CLOCK_BOOTTIME.
    pub boot_ns: u64,
    /// CLOCK_MONOTONIC_RAW.
    pub raw_ns: u64,
    /// The processor's counter, 0 if nobody asked for it.
    pub tsc: u64,
}

impl Clocks {
    /// Reads them; no system call (vDSO).
    pub fn read(with_tsc: bool) -> Self {
        Self { mono_ns: mono_ns(), boot_ns: boot_ns(), raw_ns: raw_ns(), tsc: if with_tsc { tsc() } else { 0 } }
    }

    /// How long this machine was suspended since it booted, at most: what passed between the readings is in it.
    pub fn asleep_ns(&self) -> u64 {
        self.boot_ns.saturating_sub(self.mono_ns)
    }
}

/// A lease as it lies in shared memory: the words are bounds, and each of them has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lease {
    /// It ends then on CLOCK_MONOTONIC_RAW; 0: there is none, [`FOREVER_NS`]: it does not end.
    pub until_raw_ns: u64,
    /// For how long this machine had been suspended when the lease was given.
    pub asleep_ns: u64,
    /// The processor's counter is no lower than this.
    pub tsc_from: u64,
    /// And no higher; 0: the counter is no witness here.
    pub tsc_until: u64,
}

impl Lease {
    /// A lease without any end that clocks could reach.
    pub const FOREVER: Self = Self { until_raw_ns: FOREVER_NS, asleep_ns: FOREVER_NS, tsc_from: 0, tsc_until: 0 };

    /// For how long its holder may act after `clocks` were read: 0 if it must not ([`FOREVER_NS`] without a limit).
    /// `clocks` were read after the lease was.
    pub fn left_ns(&self, clocks: &Clocks) -> u64 {
        let suspended = clocks.asleep_ns() > self.asleep_ns.saturating_add(ASLEEP_NOISE_NS);
        let stopped = self.tsc_until != 0 && !(self.tsc_from..self.tsc_until).contains(&clocks.tsc);
        match self.until_raw_ns {
            _ if suspended || stopped => 0,
            FOREVER_NS => FOREVER_NS,
            until_ns => until_ns.saturating_sub(clocks.raw_ns),
        }
    }

    /// As [`Lease::left_ns`], by the clocks as they are now.
    pub fn left_now_ns(&self) -> u64 {
        self.left_by_ns(Clocks::read)
    }

    /// A reader that loses its core between two clocks sees a distance that is none: it looks again.
    fn left_by_ns(&self, mut read: impl FnMut(bool) -> Clocks) -> u64 {
        let mut clocks = Clocks::default();
        for _ in 0..LOOKS_MAX {
            clocks = read(self.tsc_until != 0);
            if clocks.asleep_ns() <= self.asleep_ns.saturating_add(ASLEEP_NOISE_NS) {
                break;
            }
        }
        self.left_ns(&clocks)
    }
}

/// The time namespace of this process, whose clocks may be offset against those of others: its inode, 0 if
/// there are none or `/proc` is not mounted.
pub fn time_namespace() -> u32 {
    // Inodes of namespaces are numbered with 32 bits.
    rustix::fs::stat("/proc/self/ns/time").map_or(0, |stat| u32::try_from(stat.st_ino).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
