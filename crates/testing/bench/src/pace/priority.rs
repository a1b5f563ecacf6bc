// SPDX-License-Identifier: Apache-2.0
//! Real-time priority for the whole run: all carriers, what they run in, and the links between them, alike.
//!
//! A thread that waits for others' work wakes milliseconds late, which all carriers would be blamed for, and those most that
//! keep times. On an idle machine it makes no difference.

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

/// Above ordinary processes, below what the kernel and others have for themselves.
const PRIORITY: &str = "5";
/// Set for a run that has it.
const HAS: &str = "FIDE_BENCH_HAS_PRIORITY";

/// Starts this program anew with the priority, which all that it starts inherits. Returns how it runs if it has it already,
/// or cannot have it.
pub(crate) fn get() -> &'static str {
    if env::var_os(HAS).is_some() {
        return "all carriers and links alike with SCHED_FIFO";
    }
    let chrt = |program: &std::ffi::OsStr| {
        let mut command = Command::new("chrt");
        command.args(["-f", PRIORITY]).arg(program);
        command
    };
    let may = chrt("true".as_ref()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if let (Ok(true), Ok(program)) = (may.map(|status| status.success()), env::current_exe()) {
        // It returns only if that fails.
        let _ = chrt(program.as_os_str()).args(env::args_os().skip(1)).env(HAS, "1").exec();
    }
    "as ordinary processes, since there is no SCHED_FIFO here: times follow what else runs on this machine"
}
