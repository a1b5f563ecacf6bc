// SPDX-License-Identifier: Apache-2.0
//! Faults that are planted in a running agent, to see that it ends, or refuses. Only in builds with debug
//! assertions, as tests run them, and only with `FIDE_FAULTS` in the environment; a release build has none.
//!
//! A file `fault` in the state directory names one: `loop-panics`, `loop-hangs`, `control-panics`,
//! `join-unwatched`. It is removed when it is armed.

/// One fault each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    LoopPanics,
    LoopHangs,
    ControlPanics,
    /// The kernel has no room to watch the next process that joins.
    JoinUnwatched,
}

/// The fault to happen now.
#[cfg(debug_assertions)]
#[must_use]
pub fn planted(state_dir: &std::path::Path) -> Option<Fault> {
    std::env::var_os("FIDE_FAULTS")?;
    let path = state_dir.join("fault");
    let name = std::fs::read_to_string(&path).ok()?;
    let _ = std::fs::remove_file(path);
    match name.trim() {
        "loop-panics" => Some(Fault::LoopPanics),
        "loop-hangs" => Some(Fault::LoopHangs),
        "control-panics" => Some(Fault::ControlPanics),
        "join-unwatched" => Some(Fault::JoinUnwatched),
        _ => None,
    }
}

/// The fault to happen now: none in a release.
#[cfg(not(debug_assertions))]
#[must_use]
pub fn planted(_state_dir: &std::path::Path) -> Option<Fault> {
    None
}

/// Lets it happen in the calling thread.
///
/// # Panics
/// That is its purpose.
pub fn happen(fault: Fault) {
    match fault {
        Fault::LoopPanics => panic!("the loop panics, as planted"),
        Fault::ControlPanics => panic!("the control thread panics, as planted"),
        Fault::LoopHangs => loop {
            std::thread::park();
        },
        // Affects the next join, not this moment.
        Fault::JoinUnwatched => {}
    }
}
