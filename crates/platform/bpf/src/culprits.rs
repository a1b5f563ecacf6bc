// SPDX-License-Identifier: Apache-2.0
//! Who else ran on the cores of a measurement: loader of `c/culprits.bpf.c`.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use crate::{BpfError, generated::culprits as generated, map::MappedArray, skel::culprits::CulpritsSkelBuilder};

pub(crate) use generated::{CulpritConfig as Config, CulpritStats as Stats};

/// Something that ran: from `start_ns` to `end_ns` (CLOCK_MONOTONIC) on core `cpu`. `kind` is one of [`kind`]; `name`
/// ends at the first zero.
pub use generated::Culprit;

/// Bytes of the ring of records.
pub const RING_BYTES: u32 = generated::CULPRIT_RING_BYTES;
/// Cores that can be recorded.
pub const CPUS: usize = generated::CULPRIT_CPUS as usize;
/// Threads of the bench itself that can be left out.
pub const OWN_MAX: usize = generated::CULPRIT_OWN_MAX as usize;

/// Values of [`Culprit::kind`].
pub mod kind {
    use super::generated;

    /// `id` is the interrupt's number, `name` its handler.
    pub const INTERRUPT: u32 = generated::CULPRIT_INTERRUPT;
    /// `id` is the vector, see [`super::softirq_name`].
    pub const SOFTIRQ: u32 = generated::CULPRIT_SOFTIRQ;
    /// `id` is the thread, `name` what it is called.
    pub const THREAD: u32 = generated::CULPRIT_THREAD;
    /// `id` is one of the processor's own, see [`super::vector_name`].
    pub const VECTOR: u32 = generated::CULPRIT_VECTOR;
    /// From when a timer ran out until its interrupt came, at least 20 us later.
    pub const LATE: u32 = generated::CULPRIT_LATE;
}

const VECTORS: &str = "the processor's own interrupts";
const TIMERS: &str = "late timers";

/// Name of a softirq (linux/interrupt.h).
#[must_use]
pub fn softirq_name(vector: u32) -> &'static str {
    const NAMES: [&str; 10] =
        ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu"];
    NAMES.get(vector as usize).copied().unwrap_or("unknown")
}

/// Name of an interrupt of the processor itself.
#[must_use]
pub fn vector_name(id: u32) -> &'static str {
    match id {
        generated::VECTOR_TIMER => "local timer",
        generated::VECTOR_RESCHEDULE => "reschedule",
        generated::VECTOR_CALL => "function call",
        generated::VECTOR_CALL_SINGLE => "single function call",
        generated::VECTOR_WORK => "irq work",
        _ => "unknown",
    }
}

/// What to record.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Cores of the measurement.
    pub cpus: Vec<usize>,
    /// What took less is left out.
    pub least_ns: u64,
    /// Threads of the bench itself, at most [`OWN_MAX`].
    pub own_threads: Vec<u32>,
}

/// The recorder. It records until it is dropped; the ring [`RING_BYTES`] long is read by whoever measures.
pub struct Recorder {
    stats: MappedArray<Stats>,
    records: OwnedFd,
    unseen: Vec<&'static str>,
    _links: Vec<libbpf_rs::Link>,
}

impl Recorder {
    /// Loads and attaches. Where the kernel has no trace points for timers or for the processor's own
    /// interrupts, those are not seen, see [`Recorder::unseen`].
    ///
    /// # Errors
    /// [`BpfError::Load`] without BTF, the trace points or the privilege.
    pub fn attach(settings: &Settings) -> Result<Self, BpfError> {
        Self::attach_with(settings, true, true)
            .or_else(|_| Self::attach_with(settings, true, false))
            .or_else(|_| Self::attach_with(settings, false, true))
            .or_else(|_| Self::attach_with(settings, false, false))
    }

    fn attach_with(settings: &Settings, vectors: bool, timers: bool) -> Result<Self, BpfError> {
        let fail = |error: libbpf_rs::Error| BpfError::load("culprit recorder", &error);
        let mut storage = MaybeUninit::uninit();
        let mut open = CulpritsSkelBuilder::default().open(&mut storage).map_err(fail)?;
        for mut program in open.open_object_mut().progs_mut() {
            let wanted = match &*program.name().to_string_lossy() {
                "on_interrupt" | "on_interrupt_end" | "on_softirq" | "on_softirq_end" | "on_switch" => true,
                "on_timer" => timers,
                _ => vectors,
            };
            program.set_autoload(wanted);
        }
        let mut skel = open.load().map_err(fail)?;
        let own = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|why| BpfError::Map { what: "a descriptor could not be kept", why })
        };
        let mut config = Config { cpus: [0; CPUS / 64], least_ns: settings.least_ns, own: [0; OWN_MAX] };
        for cpu in settings.cpus.iter().filter(|cpu| **cpu < CPUS) {
            config.cpus[cpu / 64] |= 1 << (cpu % 64);
        }
        for (place, thread) in config.own.iter_mut().zip(&settings.own_threads) {
            *place = *thread;
        }
        MappedArray::map(own(skel.maps.config.as_fd())?, 1, "config")?.write(0, config);
        let stats = MappedArray::map(own(skel.maps.stats.as_fd())?, 1, "stats")?;
        let records = own(skel.maps.records.as_fd())?;
        let mut links = Vec::new();
        for program in skel.object_mut().progs_mut() {
            if program.autoload() {
                links.push(program.attach().map_err(fail)?);
            }
        }
        let unseen = [(vectors, VECTORS), (timers, TIMERS)].into_iter().filter(|(seen, _)| !seen).map(|(_, what)| what);
        Ok(Self { stats, records, unseen: unseen.collect(), _links: links })
    }

    /// The ring of [`Culprit`]s.
    #[must_use]
    pub fn records_fd(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }

    /// What this kernel has no trace points for.
    #[must_use]
    pub fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }

    /// Records made, and records lost because the ring was full.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let stats = self.stats.read(0);
        (stats.recorded, stats.lost)
    }
}
