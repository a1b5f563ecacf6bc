// SPDX-License-Identifier: Apache-2.0
//! What an agent keeps of root's rights once everything is attached.

use caps::{CapSet, Capability, CapsHashSet};

/// Used while running: BPF maps and the `tell` program; real-time priority during a takeover;
/// locked memory for new clients; the exit status of other users' processes.
const KEPT: [Capability; 5] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_NICE,
    Capability::CAP_IPC_LOCK,
    Capability::CAP_SYS_PTRACE,
];

/// Drops all other capabilities of the calling thread, for good. Returns those it has left.
///
/// # Errors
/// The kernel's, as text.
pub fn drop_excess() -> Result<Vec<String>, String> {
    let text = |error: caps::errors::CapsError| error.to_string();
    let present = caps::read(None, CapSet::Permitted).map_err(text)?;
    let kept: CapsHashSet = KEPT.into_iter().filter(|capability| present.contains(capability)).collect();
    // What is inherited or ambient would come back with a program that is run.
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        caps::clear(None, set).map_err(text)?;
    }
    caps::set(None, CapSet::Effective, &kept).map_err(text)?;
    caps::set(None, CapSet::Permitted, &kept).map_err(text)?;
    let mut names: Vec<String> = kept.iter().map(ToString::to_string).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_what_is_named_is_left() {
        // Capabilities are a thread's: this one is thrown away.
        let left = std::thread::spawn(|| {
            drop_excess().expect("dropped");
            caps::read(None, CapSet::Permitted).expect("read")
        })
        .join()
        .expect("no panic");
        assert!(left.iter().all(|capability| KEPT.contains(capability)), "{left:?}");
    }
}
