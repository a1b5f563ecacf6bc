// SPDX-License-Identifier: Apache-2.0
//! What keeps other work away from the loop (FiDe §3.2 and §5, X-Lane §4.3).
//!
//! Nothing here is persistent: all of it ends with the thread or the process.

use std::{fs::File, io, io::Write};

use rustix::{
    mm::{MlockAllFlags, mlockall},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// One measure and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measure {
    /// In force; the text says how far.
    Held(String),
    /// Not to be had here; the text says why.
    Missing(String),
}

impl Measure {
    /// Whether it is in force.
    #[must_use]
    pub fn held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    /// The text of either.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Held(text) | Self::Missing(text) => text,
        }
    }

    fn of(result: io::Result<()>, held: String, hint: &str) -> Self {
        match result {
            Ok(()) => Self::Held(held),
            Err(error) => Self::Missing(format!("{error}; {hint}")),
        }
    }
}

/// What became of each measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measures {
    /// Pinned to one core.
    pub core: Measure,
    /// SCHED_FIFO.
    pub priority: Measure,
    /// Pages locked in memory.
    pub memory: Measure,
    /// `/dev/cpu_dma_latency` held at 0: no deep sleep states.
    pub c_states: Measure,
    /// The core is kept free of other tasks at boot (`isolcpus`).
    pub isolated: Measure,
}

/// The measures in force for the calling thread. The C-state hold ends when this is dropped.
#[derive(Debug)]
pub struct Isolation {
    measures: Measures,
    _latency: Option<File>,
}

impl Isolation {
    /// What became of each measure.
    #[must_use]
    pub fn measures(&self) -> &Measures {
        &self.measures
    }
}

/// Real-time priority of the loop: above ordinary threads, below the kernel's own migration and
/// watchdog threads.
pub const LOOP_PRIORITY: i32 = 80;

/// Takes every measure the host grants to the calling thread, which is to run on `core`.
#[must_use]
pub fn isolate(core: usize) -> Isolation {
    let latency = hold_c_states();
    let measures = Measures {
        core: Measure::of(pin(core), format!("core {core}"), "the loop runs wherever the scheduler puts it"),
        priority: Measure::of(set_fifo(LOOP_PRIORITY), format!("SCHED_FIFO {LOOP_PRIORITY}"), "needs CAP_SYS_NICE"),
        memory: lock_memory(),
        c_states: match &latency {
            Ok(_) => Measure::Held("cpu_dma_latency 0".to_owned()),
            Err(error) => Measure::Missing(format!("/dev/cpu_dma_latency: {error}")),
        },
        isolated: isolated(core),
    };
    Isolation { measures, _latency: latency.ok() }
}

/// The highest numbered core this process may run on: interrupts and daemons prefer the low ones.
#[must_use]
pub fn default_core() -> usize {
    let Ok(allowed) = sched_getaffinity(None) else { return 0 };
    (0..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core)).unwrap_or(0)
}

/// Pins the calling thread to one core.
///
/// # Errors
/// The kernel's; `InvalidInput` for a core that no kernel has.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Gives the calling thread a real-time priority; 0 takes it back.
///
/// # Errors
/// The kernel's, without CAP_SYS_NICE.
pub fn set_fifo(priority: i32) -> io::Result<()> {
    let policy = if priority == 0 { libc::SCHED_OTHER } else { libc::SCHED_FIFO };
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter outlives the call. Children start as ordinary threads again.
    let result = unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const parameter) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A real-time priority for the calling thread, for as long as this lives. Without the privilege it
/// changes nothing.
#[derive(Debug)]
pub struct Urgent(());

impl Urgent {
    /// Just below the loop: it may wait for this thread, but this thread must not disturb it.
    #[must_use]
    pub fn begin() -> Self {
        // Without CAP_SYS_NICE it is only slower.
        let _ = set_fifo(LOOP_PRIORITY - 1);
        Self(())
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        let _ = set_fifo(0);
    }
}

/// Locks what is mapped and what will be, for the whole process. Where the limit does not allow all of it, pages are
/// locked as they are touched.
#[must_use]
pub fn lock_memory() -> Measure {
    let hint = "needs CAP_IPC_LOCK or a higher `ulimit -l`";
    if mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).is_ok() {
        return Measure::Held("all pages".to_owned());
    }
    match mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT) {
        Ok(()) => Measure::Held("pages in use".to_owned()),
        Err(error) => Measure::Missing(format!("{}; {hint}", io::Error::from(error))),
    }
}

/// Keeps every core out of deep sleep for as long as the file is open.
///
/// # Errors
/// The kernel's, without the right to write `/dev/cpu_dma_latency`.
pub fn hold_c_states() -> io::Result<File> {
    let mut file = File::options().write(true).open("/dev/cpu_dma_latency")?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(file)
}

fn isolated(core: usize) -> Measure {
    let path = "/sys/devices/system/cpu/isolated";
    match std::fs::read_to_string(path) {
        Ok(list) if list_holds(list.trim(), core) => Measure::Held(format!("core {core} is in isolcpus")),
        Ok(_) => Measure::Missing(format!("core {core} is shared with other tasks; boot with isolcpus={core}")),
        Err(error) => Measure::Missing(format!("{path}: {error}")),
    }
}

/// Whether a kernel CPU list such as `2-3,7` holds `core`.
fn list_holds(list: &str, core: usize) -> bool {
    list.split(',').filter(|part| !part.is_empty()).any(|part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        matches!((low.parse::<usize>(), high.parse::<usize>()), (Ok(low), Ok(high)) if (low..=high).contains(&core))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read_as_the_kernel_writes_them() {
        for (list, core, holds) in
            [("", 0, false), ("1", 1, true), ("2-3,7", 3, true), ("2-3,7", 7, true), ("2-3,7", 4, false)]
        {
            assert_eq!(list_holds(list, core), holds, "{list:?} {core}");
        }
    }

    #[test]
    fn a_core_that_does_not_exist_is_a_missing_measure() {
        std::thread::spawn(|| assert!(!isolate(1_000_000).measures().core.held())).join().expect("no panic");
    }
}
