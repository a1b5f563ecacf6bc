// SPDX-License-Identifier: Apache-2.0
//! The conditions under which the measuring thread runs (FiDe §5, X-Lane §4.3). They are requested one by
//! one, and the outcome of each is noted, so that a result names its conditions.

use std::{collections::BTreeMap, fs::File};

use crate::pages::Pages;
use fide_net::isolation::{Measure, hold_c_states, lock_memory, pin, set_fifo};

/// The conditions that are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Pin the thread to this core.
    pub core: Option<usize>,
    /// SCHED_FIFO with this priority; `None`: an ordinary thread.
    pub fifo: Option<i32>,
    /// Hold `/dev/cpu_dma_latency` at 0.
    pub no_sleep_states: bool,
    pub lock_memory: bool,
    /// The kind of pages for packets and results.
    pub pages: Pages,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { core: None, fifo: Some(70), no_sleep_states: true, lock_memory: true, pages: Pages::Usual }
    }
}

/// The conditions in force for the calling thread; sleep states are allowed again when it is dropped.
#[derive(Debug)]
pub struct Setting {
    /// Name and outcome of each condition.
    pub found: BTreeMap<String, String>,
    _awake: Option<File>,
}

/// Sets the wanted conditions for the calling thread. A condition that cannot be had is noted, and is not an
/// error.
#[must_use]
pub fn take(wanted: &Wanted) -> Setting {
    let mut found = BTreeMap::new();
    let mut note = |name: &str, text: String| found.insert(name.to_owned(), text);
    match wanted.core.map(|core| (core, pin(core))) {
        Some((core, Ok(()))) => note("core", core.to_string()),
        Some((core, Err(error))) => note("core", format!("not pinned to {core}: {error}")),
        None => note("core", "not pinned".to_owned()),
    };
    match wanted.fifo.map(|priority| (priority, set_fifo(priority))) {
        Some((priority, Ok(()))) => note("priority", format!("SCHED_FIFO {priority}")),
        Some((priority, Err(error))) => note("priority", format!("ordinary: SCHED_FIFO {priority} refused: {error}")),
        None => note("priority", "ordinary".to_owned()),
    };
    let awake = wanted.no_sleep_states.then(hold_c_states);
    match &awake {
        Some(Ok(_)) => note("sleep_states", "cpu_dma_latency 0".to_owned()),
        Some(Err(error)) => note("sleep_states", format!("allowed: /dev/cpu_dma_latency: {error}")),
        None => note("sleep_states", "allowed".to_owned()),
    };
    match wanted.lock_memory.then(lock_memory) {
        Some(Measure::Held(what)) => note("memory", format!("locked, {what}")),
        Some(Measure::Missing(why)) => note("memory", format!("not locked: {why}")),
        None => note("memory", "not locked".to_owned()),
    };
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
    for (name, path) in [
        ("isolated_cores", "/sys/devices/system/cpu/isolated"),
        ("clock_source", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ("transparent_huge_pages", "/sys/kernel/mm/transparent_hugepage/enabled"),
        ("kernel", "/proc/sys/kernel/osrelease"),
    ] {
        note(name, read(path).unwrap_or_else(|error| format!("unknown: {error}")));
    }
    Setting { found, _awake: awake.and_then(Result::ok) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_settings_are_noted() {
        let wanted = Wanted {
            core: Some(1_000_000),
            fifo: Some(1000),
            no_sleep_states: false,
            lock_memory: false,
            pages: Pages::Usual,
        };
        let setting = std::thread::spawn(move || take(&wanted)).join().expect("no panic");
        assert!(setting.found["core"].starts_with("not pinned to 1000000"), "{:?}", setting.found);
        assert!(setting.found["priority"].starts_with("ordinary: SCHED_FIFO 1000 refused"), "{:?}", setting.found);
        assert_eq!(setting.found["memory"], "not locked");
        assert!(setting.found.contains_key("kernel"));
    }
}
