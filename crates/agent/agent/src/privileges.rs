// SPDX-License-Identifier: Apache-2.0
//! The capabilities that an agent keeps once everything is attached.

use caps::{CapSet, Capability, CapsHashSet};

/// Used while running: BPF maps and the `notify` program; real-time priority during a takeover; locked memory
/// for new clients; the exit status of other users' processes.
const KEPT: [Capability; 5] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_NICE,
    Capability::CAP_IPC_LOCK,
    Capability::CAP_SYS_PTRACE,
];

/// Drops all other capabilities of the calling thread, for good. Returns the ones it has left.
///
/// # Errors
/// The kernel's, as text.
pub fn drop_excess() -> Result<Vec<String>, String> {
    let text = |error: caps::errors::CapsError| error.to_string();
    let present = caps::read(None, CapSet::Permitted).map_err(text)?;
    let kept: CapsHashSet = KEPT.into_iter().filter(|capability| present.contains(capability)).collect();
    // Inherited or ambient capabilities would come back with an executed program.
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
    fn only_the_named_capabilities_are_left() {
        // Capabilities belong to a thread: this one is thrown away.
        let left = std::thread::spawn(|| {
            drop_excess().expect("dropped");
            caps::read(None, CapSet::Permitted).expect("read")
        })
        .join()
        .expect("no panic");
        assert!(left.iter().all(|capability| KEPT.contains(capability)), "{left:?}");
    }
}
